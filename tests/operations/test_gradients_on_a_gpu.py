"""Published plans give every bit of torch's gradients and of its AdamW on an H100 and an H200."""

import pytest

from tests.checks.gpu_operations import inputs
from tests.operations.gpu_cases import digest
from tests.operations.gpu_gradients import golden, outputs_of

CASES = golden()
SMALL = ("/1000", "256/mean", "/64", "64x64x64", "/50", "silu_mul/", "silu/torch/bf16")


def is_quick(name):
    if name.startswith("adamw"):
        return "fused" in name or name.endswith("bf16")
    return name.endswith(SMALL) or name.startswith(("silu_mul", "silu/torch/fp32"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if is_quick(n) else [pytest.mark.thorough]) for n in CASES],
)
def test_every_bit(name):
    """A formula of another gradient, an order of its sum, a number of the settings elsewhere."""
    note = CASES[name]
    found = outputs_of(name, note, inputs(note))
    assert {n: digest(found[n]) for n in note["sha256"]} == note["sha256"]
