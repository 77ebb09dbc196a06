"""Roundscope: a microscope for low-precision arithmetic in attention.

    import roundscope as rs
    out = rs.attend(q, k, v, plan="fa2-bf16")

Re-exports the public API: `roundscope.emu` is the arithmetic, `roundscope.attention` the emulated
attention, `roundscope.operations` the other operations of a transformer step, `roundscope.tools`
the commands, `roundscope.experiments` trainings and studies, `roundscope.torch`, `roundscope.jax`
and `roundscope.flax` are for models of these libraries. Names are imported when they are first
used, so `import roundscope` loads neither jax, numba nor torch: nor anything that takes time, since
Ctrl-C has no effect of our own before `roundscope.__main__`.
"""

TYPE_CHECKING = False  # as in typing, which is not loaded yet
if TYPE_CHECKING:
    from typing import Any

    from roundscope import attention, emu
    from roundscope.attention import *  # noqa: F403

__version__ = "0.2.0"

_PACKAGES = ("attention", "emu", "operations")
_ADAPTERS = ("flax", "jax", "torch")  # need libraries that may be missing, so * has none of them
_OF_ATTENTION = (
    "PRESETS",
    "PRODUCTS",
    "AddUlps",
    "Axes",
    "Bias",
    "DeltaFrom",
    "ErrorBudget",
    "Exact",
    "Examined",
    "FlipBit",
    "Injection",
    "Noise",
    "Packed",
    "Plan",
    "Record",
    "SetTo",
    "Site",
    "Stabiliser",
    "Stabilizer",
    "Trace",
    "attend",
    "attend_packed",
    "error_budget",
    "examine",
    "head_plans",
    "packed_sequences",
    "plan_of_call",
    "reseeded",
    "rotated",
    "row_sums",
)
__all__ = ["__version__", "attention", "emu", *_OF_ATTENTION]


def __getattr__(name: str) -> "Any":
    import importlib

    if name in (*_PACKAGES, *_ADAPTERS):
        return importlib.import_module(f"roundscope.{name}")
    if name in _OF_ATTENTION:
        return getattr(importlib.import_module("roundscope.attention"), name)
    raise AttributeError(f"module 'roundscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
