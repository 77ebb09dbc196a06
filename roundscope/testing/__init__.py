"""Tests of kernels and casts that are not ours: assertions, statistics and families of inputs.

    from roundscope.testing import assert_as_good_as

    def test_flash():
        assert_as_good_as(flash, "fa2", is_causal=True)

Names are imported when they are first used. `roundscope.testing.strategies` has strategies for
Hypothesis, and `pytest --pyargs roundscope.testing.attention --kernel module:function` tests a
kernel without a line of code.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roundscope.attention.testing.calls import Inputs, Outputs
    from roundscope.attention.testing.comparison import Comparison
    from roundscope.attention.testing.families import FAMILIES, draw
    from roundscope.attention.testing.margins import Margins
    from roundscope.attention.testing.paired import assert_as_good_as
    from roundscope.attention.testing.user import Kernel, kernel_of

_HOMES = {
    "Comparison": "attention.testing.comparison",
    "FAMILIES": "attention.testing.families",
    "Inputs": "attention.testing.calls",
    "Kernel": "attention.testing.user",
    "Margins": "attention.testing.margins",
    "Outputs": "attention.testing.calls",
    "assert_as_good_as": "attention.testing.paired",
    "draw": "attention.testing.families",
    "kernel_of": "attention.testing.user",
}
__all__ = [
    "FAMILIES",
    "Comparison",
    "Inputs",
    "Kernel",
    "Margins",
    "Outputs",
    "assert_as_good_as",
    "draw",
    "kernel_of",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"roundscope.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'roundscope.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
