"""docs/howto/operations.md and adamw.md: their code runs as it stands there, and does what the
pages say.
"""

import re
from pathlib import Path

import numpy as np

from roundscope.operations import run

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def names_of(page, capsys):
    """Return the names that the code of a page defines."""
    names, text = {}, (HOWTO / page).read_text("utf-8")
    for cell in re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", text, re.M | re.S):
        exec(cell, names)
        assert capsys.readouterr().out
    return names


def test_updates_vanish_as_the_page_says(capsys):
    """A share that counts another thing; a rounding that repairs nothing."""
    names = names_of("adamw.md", capsys)
    for (name, lr), (stalled, moved) in names["found"].items():
        if name != "BF16, to nearest":
            assert moved > 0.95
        elif lr == 1e-5:
            assert stalled > 0.9 and moved < 0.2
    nearest, stochastic, wide = names["kept"].values()
    assert nearest == 1 and abs(stochastic - 0.999**100) < 0.01 and abs(wide - 0.999**100) < 1e-4


def test_the_page_runs(capsys):
    """A name that was changed; two plans that the page calls different and that are not."""
    names = names_of("operations.md", capsys)
    assert names["y"].dtype == "bfloat16" and names["exact"].dtype == np.float64
    assert (names["changed"][:2] > 0).all() and not names["changed"][2:].any()
    assert 0 < names["apart"].mean() < 1
    forward = run("rms_norm", "transformers-llama; XC=fp32 XW=fp32", names["given"])
    assert np.array_equal(forward.outputs["out"].astype("f4"), names["torch_cpu"])
