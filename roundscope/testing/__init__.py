"""Tests of kernels and casts: assertions, statistics and families of inputs.

    from roundscope.testing import assert_as_good_as

    def test_flash():
        assert_as_good_as(flash, "fa2", is_causal=True)

Assertions on arrays and casts take NumPy arrays, JAX arrays and tensors of PyTorch::

    assert_bit_equal(actual, expected)      dtype, shape and every bit
    assert_max_ulp(actual, expected, 1)     at most one number of the format apart
    assert_rounds_as(cast, "e4m3fn")        a cast rounds as `emu.round_to` does
    assert_unbiased(actual, exact, "bf16")  errors have no preferred sign

Assertions on attention kernels take a function (q, k, v, *, scale, is_causal)::

    assert_as_good_as(kernel, "fa2")        as exact as the plan, and no more biased
    assert_deterministic(kernel)            the same bits at each call
    assert_invariant(kernel, "batch")       the same bits whatever else is in the batch

Names are imported when they are first used. `roundscope.testing.strategies` has strategies for
Hypothesis, and `pytest --pyargs roundscope.testing.attention --kernel module:function` tests a
kernel without a line of code.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundscope.attention.testing.assertions import (
        assert_as_good_as,
        assert_deterministic,
        assert_invariant,
    )
    from roundscope.attention.testing.calls import Inputs, Outputs
    from roundscope.attention.testing.comparison import Comparison
    from roundscope.attention.testing.errors import Margins
    from roundscope.attention.testing.families import FAMILIES, draw
    from roundscope.attention.testing.foreign.user import Kernel, kernel_of
    from roundscope.emu.testing import (
        assert_bit_equal,
        assert_max_ulp,
        assert_rounds_as,
        assert_unbiased,
    )

_HOMES = {
    "Comparison": "attention.testing.comparison",
    "FAMILIES": "attention.testing.families",
    "Inputs": "attention.testing.calls",
    "Kernel": "attention.testing.foreign.user",
    "Margins": "attention.testing.errors",
    "Outputs": "attention.testing.calls",
    "assert_as_good_as": "attention.testing.assertions",
    "assert_bit_equal": "emu.testing",
    "assert_deterministic": "attention.testing.assertions",
    "assert_invariant": "attention.testing.assertions",
    "assert_max_ulp": "emu.testing",
    "assert_rounds_as": "emu.testing",
    "assert_unbiased": "emu.testing",
    "draw": "attention.testing.families",
    "kernel_of": "attention.testing.foreign.user",
}
__all__ = [
    "FAMILIES",
    "Comparison",
    "Inputs",
    "Kernel",
    "Margins",
    "Outputs",
    "assert_as_good_as",
    "assert_bit_equal",
    "assert_deterministic",
    "assert_invariant",
    "assert_max_ulp",
    "assert_rounds_as",
    "assert_unbiased",
    "draw",
    "kernel_of",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"roundscope.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'roundscope.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
