"""docs/howto/model-budget.md: its code runs, and its table is that of the model."""

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from roundscope.torch import error_budget
from tests.operations.models import small

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "model-budget.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
BLOCKS = BLOCK.findall(PAGE)


def test_the_page_runs(capsys):
    assert [kind for kind, _ in BLOCKS] == ["python", "text", "python", "sh"]
    names = {"model": small.llama(layers=1), "tokens": small.tokens(1, 64)[:, :8]}
    first, second = (code for kind, code in BLOCKS if kind == "python")
    exec(first, names)
    assert "rms_norm: XC=fp32 XW=fp32" in capsys.readouterr().out
    names["tokens"] = small.tokens()
    exec(second, names)
    assert names["found"].total.gradients.error > 1e-4


@pytest.mark.thorough
def test_the_table_is_that_of_the_model():
    """Up to what another processor adds in another order."""
    found = error_budget(small.llama(), small.tokens())
    (table,) = (text for kind, text in BLOCKS if kind == "text")
    for line in (*found.lines, *found.events[:6]):
        (row,) = re.findall(rf"^{line.name} +\d+ +([\d.]+) +([\d.]+) ", table, re.M)
        for told, result in zip(row, found.results, strict=True):
            assert float(told) == pytest.approx(100 * line.share(result, found.total), abs=8)
