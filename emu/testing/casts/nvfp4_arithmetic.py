"""NVFP4 as libraries compute it: each step of the two scales and of a quotient in float32.

With T for the scale of the array, a for the largest magnitude of a block and X for its scale,
`BlockFormat` rounds a / (6 T) once to X, and a number over X T once to its element. Libraries round
each division and product to float32 on the way, in different orders, and end the scales of blocks
at different smallest numbers. Sources: torchao 0.18.0 (prototype/mx_formats/nvfp4_tensor.py),
compressed-tensors 0.20.0 (quantization/utils/helpers.py, lifecycle/forward_helpers.py), vLLM
(quantization/utils/nvfp4_emulation_utils.py) and fouroversix (quantize/pytorch/reference.py).
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines
from roundscope.emu.roundings.modes import Overflow, Rounding
from roundscope.emu.testing.casts.quantized import expected_scales
from roundscope.emu.testing.casts.records import Numbers

F32 = np.float32
Single = np.ndarray  # float32 numbers, so that every operation on them rounds to float32
Step = Callable[[Single, Single, Single], Single]

# of the largest magnitude a of a block, the largest element m and T: the number that becomes X
SCALES: dict[str, Step] = {
    "a / m / T": lambda a, m, t: a / m / t,
    "a / m (1 / T)": lambda a, m, t: a / m * (F32(1) / t),
    "a (1 / m) / T": lambda a, m, t: a * (F32(1) / m) / t,
    "a (1 / m) (1 / T)": lambda a, m, t: a * (F32(1) / m) * (F32(1) / t),
}
# of a number v, X and T: what becomes an element
QUOTIENTS: dict[str, Step] = {
    "v / (X T)": lambda v, x, t: v / (x * t),
    "v / (X / (1 / T))": lambda v, x, t: v / (x / (F32(1) / t)),
    "v (1 / (X T))": lambda v, x, t: v * (F32(1) / (x * t)),
    "v ((1 / T) / X)": lambda v, x, t: v * ((F32(1) / t) / x),
}


def in_float32(f: BlockFormat) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Yield NVFP4 quantizers whose steps round to float32, by names with their formulas.

    A block whose scale rounds to zero gets the smallest normal number of the scale format, its
    epsilon, zero, or the smallest number, as asked.
    """
    s = f.scale
    ends = {
        "": (0.0, s.min_positive),
        f", scales of {s.min_normal:g} or more": (s.min_normal, s.min_normal),
        f", {s.epsilon:g} for scales that round to zero": (0.0, s.epsilon),
        ", scales that round to zero are zero": (0.0, 0.0),
    }
    for (scale, of), (quotient, by), (end, (least, zero)) in product(
        SCALES.items(), QUOTIENTS.items(), ends.items()
    ):
        name = f"in float32: scales {scale}, elements {quotient}{end}"
        yield name, partial(_quantized, f=f, of=of, by=by, least=least, zero=zero)


def _quantized(
    x: np.ndarray, f: BlockFormat, of: Step, by: Step, least: float, zero: float
) -> np.ndarray:
    at = layout_of(x.shape, f, -1)
    lines = to_lines(np, x, at)
    t, m = (np.array(a, F32) for a in (expected_scales(x, f)[1], f.element.format.max_finite))
    a = np.abs(lines).max(axis=1)
    to_scale = Rounding(format=f.scale, overflow=Overflow.SATURATE)
    wanted = np.maximum(of(a, m, t), F32(least))
    scales: Numbers = round_to(np.where(np.isfinite(wanted), wanted, F32(np.nan)), to_scale)
    scales = np.where(scales == 0, F32(zero), scales)
    quotients = by(lines, scales[:, None].astype(F32), t).astype(np.float64)
    elements = np.where(scales[:, None] == 0, 0.0, round_to(quotients, f.element))
    y = elements * (scales.astype(np.float64) * float(t))[:, None]
    array: np.ndarray = from_lines(np, y.astype(F32), at)
    return array
