"""docs/howto/compare.md: its code runs as it stands there."""

import re
import shlex
from pathlib import Path

import jax
import pytest
import torch

pytest.importorskip("transformers")

from roundscope.experiments.cli.main import main
from roundscope.jax import compare
from tests.operations.models import jax_small, small

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
    kinds = [kind for kind, _ in blocks]
    assert kinds == [*["python"] * 3, "sh", "python", "python", "sh", *["python"] * 3]
    codes = [code for kind, code in blocks if kind == "python"]
    one_process, by_token, capturing, generating, kept, *_ = codes
    exec(one_process, names)
    shown, _ = re.findall(r"^    (The gap .*)$", PAGE, re.M)
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


*_, JAX, JITTED, CAPTURING = (code for kind, code in BLOCK.findall(PAGE) if kind == "python")


def of_jax():
    changes = {"norm": jax_small.late_rms_norm, "down": jax_small.split_linear}
    return {
        "model": jax_small.llama,
        "other": jax_small.changed(**changes),
        "params": jax_small.parameters(),
        "tokens": jax_small.tokens(),
    }


def test_the_code_for_jax_runs(tmp_path, monkeypatch, capsys):
    """Whose sentence has these shares on some CPUs."""
    monkeypatch.chdir(tmp_path)
    names = of_jax()
    with jax.numpy_dtype_promotion("standard"):
        exec(JAX, names)
        _, shown = re.findall(r"^    (The gap .*)$", PAGE, re.M)
        assert re.sub(r"\d+%", "", shown) == re.sub(r"\d+%", "", capsys.readouterr().out.strip())
        exec(CAPTURING, names)
        given = (names[name] for name in ("model", "params", "tokens"))
        assert compare("trainer.safetensors", tuple(given)).equal


@pytest.mark.thorough
def test_the_code_for_jitted_functions_runs(capsys):
    with jax.numpy_dtype_promotion("standard"):
        exec(JITTED, of_jax() | {"compare": compare})
    assert capsys.readouterr().out.count("The ") == 2
