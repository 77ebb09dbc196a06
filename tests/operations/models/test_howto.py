"""docs/howto/compare.md: its code runs as it stands there."""

import re
import shlex
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
    assert [kind for kind, _ in blocks] == [*["python"] * 3, "sh", "python", "python", "sh"]
    codes = [code for kind, code in blocks if kind == "python"]
    one_process, by_token, capturing, generating, kept = codes
    exec(one_process, names)
    [shown] = re.findall(r"^    (The gap .*)$", PAGE, re.M)
    assert shown in capsys.readouterr().out
    exec(by_token, names := names | {"tokens": tokens[:, :8]})
    assert str(names["found"]).startswith("The ")
    with torch.no_grad():
        exec(capturing.replace("trainer", "short"), names)
        exec(generating, names)
        assert names["found"].gap.size == 4 and not names["found"].equal
        capsys.readouterr()
        exec(kept, names)
        assert "results that B kept" in capsys.readouterr().out
        names["tokens"] = tokens
        exec(capturing, names)
        exec(capturing.replace("trainer", "server"), {"model": names["other"], "tokens": tokens})
    assert "34 operations" in capsys.readouterr().out
    _, *words = shlex.split(blocks[3][1])
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1 and (tmp_path / "compare" / "report.html").exists()
