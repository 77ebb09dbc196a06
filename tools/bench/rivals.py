"""What a user would round an array with instead: functions of a float32 array, one per format.

A maker returns None where the library has no such format, and raises ImportError where the library
is not installed. PyTorch, a large download, and QPyTorch, which needs it and a C++ compiler, are in
no extra of this package: they take part where they are installed.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Round = Callable[[np.ndarray], Any]


class Rival(NamedTuple):
    """A library that takes part.

    make    from the name of a format, the function that rounds to it
    enter   turns the input into the library's array; its time is not measured
    note    what explains its differences from ours
    """

    name: str
    make: Callable[[str], Round | None]
    enter: Callable[[np.ndarray], Any] = np.asarray
    note: str = ""


ML_DTYPES = {
    "bf16": "bfloat16",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e3m2fn": "float6_e3m2fn",
    "e2m3fn": "float6_e2m3fn",
    "e2m1fn": "float4_e2m1fn",
}
GFLOAT = {
    "bf16": "bfloat16",
    "fp16": "binary16",
    "e4m3fn": "ocp_e4m3",
    "e5m2": "ocp_e5m2",
    "e3m2fn": "ocp_e3m2",
    "e2m3fn": "ocp_e2m3",
    "e2m1fn": "ocp_e2m1",
}
TORCH = {"bf16": "bfloat16", "fp16": "float16", "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2"}
IEEE_LIKE = {"bf16": (8, 7), "fp16": (5, 10), "e5m2": (5, 2)}  # exponent and fraction bits


def ml_dtypes_there_and_back(name: str) -> Round | None:
    """Return x.astype(format).astype(float32); binary16 is NumPy's type."""
    import ml_dtypes

    if name != "fp16" and name not in ML_DTYPES:
        return None
    dtype = np.float16 if name == "fp16" else getattr(ml_dtypes, ML_DTYPES[name])
    return lambda x: x.astype(dtype).astype(np.float32)


def gfloat_round(name: str) -> Round | None:
    """Return gfloat.round_ndarray, saturating where the format has neither infinity nor NaN."""
    import gfloat
    import gfloat.formats

    if name not in GFLOAT:
        return None
    info = getattr(gfloat.formats, f"format_info_{GFLOAT[name]}")
    saturates = name in ("e3m2fn", "e2m3fn", "e2m1fn")
    return lambda x: gfloat.round_ndarray(info, x, sat=saturates).astype(np.float32)


def pychop_chop(name: str) -> Round | None:
    """Return pychop.Chop, which only knows formats with the exponents of IEEE 754."""
    from pychop import Chop

    if name not in IEEE_LIKE:
        return None
    exponent, fraction = IEEE_LIKE[name]
    chop: Round = Chop(exp_bits=exponent, sig_bits=fraction)
    return chop


def torch_there_and_back(name: str) -> Round | None:
    """Return x.to(format).to(float32) of PyTorch on the CPU."""
    import torch

    if name not in TORCH:
        return None
    dtype = getattr(torch, TORCH[name])
    return lambda x: x.to(dtype).to(torch.float32)  # type: ignore[attr-defined]


def qtorch_quantize(name: str) -> Round | None:
    """Return qtorch.quant.float_quantize to nearest, for formats with the exponents of IEEE 754."""
    quantize = _float_quantize()
    if quantize is None:
        raise ImportError("qtorch cannot be imported")
    if name not in IEEE_LIKE:
        return None
    exponent, fraction = IEEE_LIKE[name]
    return lambda x: quantize(x, exponent, fraction, rounding="nearest")


@cache
def _float_quantize() -> Any:
    """Return QPyTorch's function, or None if it cannot be imported.

    Importing compiles it, which takes half a minute and fails in many ways, so it is tried only
    once.
    """
    try:
        from qtorch.quant import float_quantize
    except (ImportError, OSError, RuntimeError):
        return None
    return float_quantize


def reduce_precision(name: str) -> Round | None:
    """Return jax.lax.reduce_precision under jit, where its parameters name the format."""
    import jax

    if name not in ("bf16", "fp16"):
        return None
    exponent, fraction = IEEE_LIKE[name]
    return jax.jit(lambda x: jax.lax.reduce_precision(x, exponent, fraction))


def ours_on_xla(name: str) -> Round:
    """Return emu.backends.xla.rounding.round_array under jit."""
    import jax

    from roundscope.emu.backends.xla import rounding as xla
    from roundscope.emu.roundings.modes import rounding, without_saturation

    return jax.jit(lambda x: xla.round_array(x, without_saturation(rounding(name))))


def on_cpu(x: np.ndarray) -> Any:
    """Return x as a JAX array of this machine's processor."""
    import jax

    return jax.device_put(x, jax.devices("cpu")[0])


def on_torch(x: np.ndarray) -> Any:
    """Return x as a PyTorch tensor that shares its memory."""
    import torch

    return torch.from_numpy(x)


RIVALS = (
    Rival("ours, XLA on CPU", ours_on_xla, on_cpu),
    Rival("ml_dtypes astype", ml_dtypes_there_and_back),
    Rival("lax.reduce_precision", reduce_precision, on_cpu, "flushes subnormals"),
    Rival("gfloat.round_ndarray", gfloat_round),
    Rival("pychop.Chop", pychop_chop),
    Rival("torch .to", torch_there_and_back, on_torch, "saturates"),
    Rival("qtorch float_quantize", qtorch_quantize, on_torch, "saturates; ties away; no -0"),
)
