"""NVFP4 as libraries compute it: each step of the two scales and of a quotient in float32.

With T for the scale of the array, a for the largest magnitude of a block and X for its scale,
`BlockFormat` rounds a / (6 T) once to X, and a number over X T once to its element. Libraries round
each division and product to float32 on the way, in different orders, and end the scales of blocks
at different smallest numbers. Some hold E = 1 / T in place of T, or compute E from the largest
magnitude A of the array, 2688 / A, and T from it. Sources: torchao 0.18.0
(prototype/mx_formats/nvfp4_tensor.py), compressed-tensors 0.20.0 (quantization/utils/helpers.py,
lifecycle/forward_helpers.py), fouroversix (quantize/pytorch/reference.py) and Transformer Engine
(pytorch/custom_recipes/quantization_nvfp4.py).
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines
from roundscope.emu.roundings.modes import Overflow, Rounding
from roundscope.emu.testing.casts.quantized import expected_scales
from roundscope.emu.testing.casts.records import Numbers

F32 = np.float32
Single = Any  # float32, one number or an array: every operation on them rounds to float32
Step = Callable[[Single, Single, Single, Single], Single]

# of the largest magnitude a of a block, the largest element m, T and E: the number that becomes X
SCALES: dict[str, Step] = {
    "a / m / T": lambda a, m, t, e: a / m / t,
    "a / m E": lambda a, m, t, e: a / m * e,
    "a (1 / m) / T": lambda a, m, t, e: a * (F32(1) / m) / t,
    "a (1 / m) E": lambda a, m, t, e: a * (F32(1) / m) * e,
}
# of a number v, X, T and E: what becomes an element
QUOTIENTS: dict[str, Step] = {
    "v / (X T)": lambda v, x, t, e: v / (x * t),
    "v / (X / E)": lambda v, x, t, e: v / (x / e),
    "v (1 / (X T))": lambda v, x, t, e: v * (F32(1) / (x * t)),
    "v (E / X)": lambda v, x, t, e: v * (e / x),
}
OF_ARRAY = {"E = 1 / T": False, "E = 2688 / A, T = 1 / E": True}  # whether E comes from A


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
    for (whole, from_array), (scale, of), (quotient, by), (end, (least, zero)) in product(
        OF_ARRAY.items(), SCALES.items(), QUOTIENTS.items(), ends.items()
    ):
        name = f"in float32: {whole}, scales {scale}, elements {quotient}{end}"
        quantizer = partial(_quantized, f=f, of=of, by=by, from_array=from_array)
        yield name, partial(quantizer, least=least, zero=zero)


def _quantized(
    x: np.ndarray,
    f: BlockFormat,
    of: Step,
    by: Step,
    from_array: bool,
    least: float,
    zero: float,
) -> np.ndarray:
    at = layout_of(x.shape, f, -1)
    lines = to_lines(np, x, at)
    m, own = f.element.format.max_finite, expected_scales(x, f)[1]
    t, e = _of_array(x, f) if from_array else (F32(own), F32(1) / F32(own))
    a = np.abs(lines).max(axis=1)
    to_scale = Rounding(format=f.scale, overflow=Overflow.SATURATE)
    wanted = np.maximum(of(a, F32(m), t, e), F32(least))
    scales: Numbers = round_to(np.where(np.isfinite(wanted), wanted, F32(np.nan)), to_scale)
    scales = np.where(scales == 0, F32(zero), scales)
    quotients = by(lines, scales[:, None].astype(F32), t, e).astype(np.float64)
    elements = np.where(scales[:, None] == 0, 0.0, round_to(quotients, f.element))
    y = elements * (scales.astype(np.float64) * own)[:, None]
    array: np.ndarray = from_lines(np, y.astype(F32), at)
    return array


def _of_array(x: np.ndarray, f: BlockFormat) -> tuple[Single, Single]:
    """Return T and E from the largest magnitude of an array, or from that of the given scale."""
    product = f.scale.max_finite * f.element.format.max_finite
    if f.tensor_scale is not None:
        top = f.tensor_scale * product
    else:
        top = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) or product
    e = np.array(product, F32) / np.array(top, F32)
    return F32(1) / e, e
