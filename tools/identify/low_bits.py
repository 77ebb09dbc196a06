"""Whether the error of an output is of the size that a low-bit format makes.

Between "these are the numbers of a plan" and "no rounding explains this" there are kernels whose
operands have few bits and whose arithmetic no plan has yet. Their error is that of a format, and
every row has it; what is wrong in a few rows only, or is larger, is not.
"""

from dataclasses import dataclass

import numpy as np

from roundscope.attention import Plan
from roundscope.attention.testing.calls import Inputs
from roundscope.emu.stats.comparison import gain
from roundscope.tools.identify.candidates import Candidate, emulated, options_of
from roundscope.tools.identify.meanings import exact_rows

FORMATS = {  # the operands that are rounded, and the changes of fa2-bf16 that round them
    "P in E4M3": "P=e4m3fn",
    "P in E5M2": "P=e5m2",
    "P in 4 significant bits of any range": "P=e8m3",
    "P in 3 significant bits of any range": "P=e8m2",
    "P in INT8 with scales": "P=int8[128x64]",
    "q and k in INT8 with a scale for every 128 and 64 tokens": "Q=int8[128x{0}] K=int8[64x{0}]",
    "q and k in INT8 with a scale for each token": "Q=int8[1x{0}] K=int8[1x{0}]",
    "q, k, v and P in INT8 with scales": (
        "Q=int8[128x{0}] K=int8[64x{0}] V=int8[64x{0}] P=int8[128x64]"
    ),
    "q, k, v and P in E4M3": "Q=e4m3fn:saturate K=e4m3fn:saturate V=e4m3fn:saturate P=e4m3fn",
    "q, k, v and P in E5M2": "Q=e5m2:saturate K=e5m2:saturate V=e5m2:saturate P=e5m2",
    "q, k, v and P in MXFP8": "Q=mxfp8_e4m3 K=mxfp8_e4m3 V=mxfp8_e4m3 P=mxfp8_e4m3",
    "q and k in INT4 with a scale for each token": "Q=int4[1x{0}] K=int4[1x{0}]",
    "q, k, v and P in NVFP4": "Q=nvfp4 K=nvfp4 V=nvfp4 P=nvfp4",
    "q, k, v and P in MXFP4": "Q=mxfp4 K=mxfp4 V=mxfp4 P=mxfp4",
}
ALIKE = 1.5  # two errors are of one size if neither is so many times the other
ROWS = 0.05  # the share of rows whose errors may be of another size
OTHER = 3.0  # which is: so many times the format's own
ALONG = 0.3  # the correlation of errors from which a format has made part of them
FACTOR = 0.8  # the share of an error that is proportional to the result, which no rounding's is


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A low-bit format, and the error that it makes in a call.

    words  the operands that it rounds
    error  the relative rms of the output from the exact result
    along  the correlation of its errors with those of the output that is asked about
    """

    words: str
    error: float
    along: float = 0.0

    def is_like(self, error: float) -> bool:
        """Return whether another error is of this size."""
        return max(error / self.error, self.error / max(error, 1e-300)) <= ALIKE


def of_low_bits(x: Inputs, out: np.ndarray) -> tuple[Sized | None, list[Sized]]:
    """Return the format whose error is as large as that of an output, and all that were tried.

    None stands for none: another size, or errors that some rows have and others do not.

    Args:
        x: the call of one key head.
        out: the output of it, (1, T, N, H).
    """
    exact = exact_rows(x, np.arange(x.q.shape[1]))
    error, rows = _sizes(out, exact)
    is_factor = abs(gain(out, exact)) > FACTOR * error  # such as a scale that is not applied
    tried, found = [], []
    for words, changes in FORMATS.items():
        plan = Plan.preset("fa2-bf16").changed(changes.format(x.q.shape[3]))
        c = Candidate(plan=plan, block_k=min(64, x.k.shape[1]))
        result = emulated(c, x.q, x.k, x.v, **options_of(x)).out
        own, of_rows = _sizes(result, exact)
        tried.append(Sized(words=words, error=own, along=_along(out - exact, result - exact)))
        is_even = (rows > OTHER * np.maximum(of_rows, np.median(of_rows))).mean() <= ROWS
        if is_even and not is_factor and tried[-1].is_like(error):
            found.append(tried[-1])
    best = max(found, key=lambda s: s.along, default=None)
    if best is not None and best.along < ALONG:  # the sizes alone are alike
        best = min(found, key=lambda s: abs(np.log(s.error / error)))
    return best, tried


def _along(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two arrays of errors."""
    size = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / size if size else 0.0


def _sizes(out: np.ndarray, exact: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the relative rms of an output's error, and the rms of each row's error."""
    off = np.square(np.asarray(out, np.float64) - exact)
    return float(np.sqrt(off.sum() / np.square(exact).sum())), np.sqrt(off.mean(-1)).reshape(-1)
