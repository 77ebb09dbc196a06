"""docs/howto/send-hardware.md: its scripts run as they stand, and `identify` reads their files."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open

from roundscope.attention import examine
from roundscope.attention.torch.operator import attention
from roundscope.tools.identify.command import read
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.tensors.layers import read_layers

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "send-hardware.md"
SCRIPTS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
ROLES = {"q", "k", "v", "do", "out", "dq", "dk", "dv"}


def written(script, folder, monkeypatch, tokens, kernel=None):
    """The path of the file that a script of the page writes, with fewer tokens and another kernel.

    kernel: a function of q, k and v in place of the script's call
    """
    text = script.replace("512", str(tokens)).replace("128", "32").replace("4, ", "2, ", 1)
    if kernel is not None:
        text, count = re.subn(r"return torch\.nn\.[^\n]*", "return kernel(q, k, v)", text)
        assert count == 1
    monkeypatch.chdir(folder)
    with jax.numpy_dtype_promotion("standard"):  # as where the script is run
        exec(compile(text, str(PAGE), "exec"), {"kernel": kernel})
    return folder / "hardware.safetensors"


@pytest.mark.parametrize("script", SCRIPTS[:2], ids=["torch", "jax"])
def test_scripts_write_what_is_read(script, tmp_path, monkeypatch):
    """A script of another release of its library; axes that its layout does not have."""
    path = written(script, tmp_path, monkeypatch, 40)
    [layer] = read_layers(path)
    assert layer.is_causal and layer.q.shape[1] == 40
    assert any(note.startswith("the file says: ") and "; " in note for note in layer.notes)
    assert not any("not read" in note for note in layer.notes)
    with safe_open(path, "np") as file:
        assert set(file.keys()) == ROLES
    call = read(IdentifyOptions(source=str(path)))
    x = call.given
    close = examine(x.q, x.k, x.v, x.do, plan="exact", is_causal=True)
    for name in ("out", "dq", "dk", "dv"):  # of the same call
        np.testing.assert_allclose(getattr(call.returned, name), getattr(close, name), atol=0.1)


def test_the_scripts_are_short():
    """A script that nobody reads before running it."""
    lines = [line for line in SCRIPTS[0].splitlines() if line.strip()]
    assert len(SCRIPTS) == 3 and len(lines) <= 26


@pytest.mark.thorough
@pytest.mark.parametrize("plan", ["aiter-ck", "aiter-asm"])
def test_a_file_of_such_a_machine_is_named(plan, tmp_path, monkeypatch):
    """A build whose casts are told wrong."""

    def kernel(q, k, v):
        return attention(q, k, v, plan=plan, is_causal=True, block_q=128, block_k=64)

    path = written(SCRIPTS[0], tmp_path, monkeypatch, 256, kernel)
    call = read(IdentifyOptions(source=str(path)))
    found = identify(call.given, call.returned, lambda text: None, 400, call.head, [])
    assert found.kind is Kind.SAME and found.plan == plan
    assert all(c.equal == 1.0 for c in found.whole.counts.values())
