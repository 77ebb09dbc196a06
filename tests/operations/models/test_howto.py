"""docs/howto/compare.md: its code runs as it stands there."""

import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from roundscope.experiments.cli.main import main
from tests.operations.models import small

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "compare.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokens = small.tokens()
    names = {
        "model": small.llama(),
        "other": small.with_split_k(small.with_late_cast(small.llama())),
        "tokens": tokens,
    }
    blocks = BLOCK.findall(PAGE)
    assert [kind for kind, _ in blocks] == ["python", "python", "python", "sh"]
    one_process, by_token, capturing = (code for kind, code in blocks if kind == "python")
    exec(one_process, names)
    [shown] = re.findall(r"^    (The gap .*)$", PAGE, re.M)
    assert shown in capsys.readouterr().out
    with warnings.catch_warnings():  # newer versions have another name for an argument
        warnings.simplefilter("ignore", FutureWarning)
        exec(by_token, names := names | {"tokens": tokens[:, :8]})
    assert str(names["found"]).startswith("The ")
    names["tokens"] = tokens
    with torch.no_grad():
        exec(capturing, names)
        other = {"model": names["other"], "tokens": tokens}
        exec(capturing.replace("trainer", "server"), other)
    assert "34 operations" in capsys.readouterr().out
    _, *words = shlex.split(blocks[-1][1])
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1 and (tmp_path / "compare" / "report.html").exists()
