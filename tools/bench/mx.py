"""The contest of quantizing blocks and back (float32 -> MX -> float32)."""

from typing import Any

import numpy as np

from roundscope.tools.bench.rivals import ML_DTYPES, Rival, Round, on_cpu, on_torch
from roundscope.tools.bench.round import Contest, sample


def _numbers(size: int) -> np.ndarray:
    """Return numbers for whole blocks. Raises ValueError for a size that cuts one."""
    if size < 1 << 16 or size % (1 << 16):
        raise ValueError(f"size={size}: give a multiple of 65536, which whole blocks fill")
    x = sample(size)
    x[~np.isfinite(x)] = 1.0  # otherwise one in 512 blocks would be NaN throughout
    return x


def _quantizing(name: str) -> Any:
    from roundscope.emu import round_blocks

    return lambda x, out: round_blocks(x, name, out=out)


def _expected(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return y; for a scale of the whole tensor, of which x is a part, the results on x."""
    from roundscope.emu import BLOCK_NAMED, round_blocks

    return round_blocks(x, name) if BLOCK_NAMED[name].tensor else y


def ml_dtypes_and_numpy(name: str) -> Round | None:
    """Return the format written with NumPy and ml_dtypes.

    frexp gives the shared exponent, ldexp scales, and a cast to an ml_dtypes type rounds the
    elements.
    """
    import ml_dtypes

    from roundscope.emu import BLOCK_NAMED

    f = BLOCK_NAMED[name]
    element = f.element.format
    if not f.power_of_two or element.name not in ML_DTYPES:
        return None
    dtype = getattr(ml_dtypes, ML_DTYPES[element.name])
    k = f.size
    largest = np.float32(element.max_finite)

    def there_and_back(x: np.ndarray) -> np.ndarray:
        blocks = x.reshape(-1, k)
        top = np.abs(blocks).max(axis=1, keepdims=True)
        shared = np.clip(np.frexp(top)[1] - 1 - element.emax, -127, 127)
        elements = np.clip(np.ldexp(blocks, -shared), -largest, largest).astype(dtype)
        back = np.ldexp(elements.astype(np.float32), shared)
        return np.where(np.isfinite(top), back, np.float32(np.nan)).reshape(-1)

    return there_and_back


def ours_on_xla(name: str) -> Round:
    """Return emu.round_blocks under jit."""
    import jax

    from roundscope.emu import round_blocks

    return jax.jit(lambda x: round_blocks(x, name))


def microxcaling(name: str) -> Round | None:
    """Return mx.mx_ops._quantize_mx on the CPU with round="even"; it needs PyTorch."""
    from mx.formats import ElemFormat
    from mx.mx_ops import _quantize_mx

    known = {
        "mxfp8_e4m3": "fp8_e4m3",
        "mxfp8_e5m2": "fp8_e5m2",
        "mxfp6_e3m2": "fp6_e3m2",
        "mxfp6_e2m3": "fp6_e2m3",
        "mxfp4": "fp4_e2m1",
        "mxint8": "int8",
    }
    if name not in known:
        return None
    form = ElemFormat.from_str(known[name])
    return lambda x: (
        _quantize_mx(x.reshape(-1, 32), 8, form, axes=[-1], block_size=32, round="even")
        .reshape(-1)
        .numpy()
    )


def torchao(name: str) -> Round | None:
    """Return torchao's MXTensor.to_mx and dequantize on the CPU, with scaling mode FLOOR."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    known = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}
    if name not in known:
        return None
    dtype = known[name]
    return lambda x: (
        MXTensor.to_mx(x.reshape(-1, 32), dtype, 32).dequantize(torch.float32).reshape(-1).numpy()
    )


BLOCKS = Contest(
    name="mx",
    title="Quantizing blocks",
    doing="block formats",
    formats=("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8", "nvfp4", "fp8_1x128"),
    repeat=7,
    numbers=_numbers,
    ours=_quantizing,
    on_xla=ours_on_xla,
    on_host=lambda name, x: _quantizing(name)(x, None),
    rivals=(
        Rival("ours, XLA on CPU", ours_on_xla, on_cpu),
        Rival("ml_dtypes + NumPy", ml_dtypes_and_numpy),
        Rival("microxcaling", microxcaling, on_torch, "log2 in float32; no -0"),
        Rival("torchao", torchao, on_torch),
    ),
    expected=_expected,
)
