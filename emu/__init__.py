"""Arithmetic of small floating-point formats, bit for bit: rounding, sums of products, exp, error statistics.

    round_to(x, "bf16")              every number of an array rounded once
    error_of, ulp_of, stats_of       what that did
    dot, sum                         sums of products by an `Accumulator`
    exp                              correctly rounded
    explain(value, rounding("bf16")) one rounding in bits

NumPy and JAX arrays alike. Importing emu imports neither numba nor jax.
"""

from emu.accumulate import Accumulator, Order
from emu.api import dot, error_of, exp, round_to, round_with_stats, stats_of, sum, ulp_of
from emu.explain import explain
from emu.formats import NAMED, Format, format_named
from emu.rounding import BF16, BINARY32, BINARY64, E4M3, E5M2, FP16, NanPolicy, Overflow, Rounding, RoundingMode, rounding
from emu.stats import Stats

__all__ = [
    "BF16", "BINARY32", "BINARY64", "E4M3", "E5M2", "FP16", "NAMED", "Accumulator", "Format", "NanPolicy", "Order", "Overflow",
    "Rounding", "RoundingMode", "Stats", "dot", "error_of", "exp", "explain", "format_named", "round_to", "round_with_stats",
    "rounding",    "stats_of", "sum", "ulp_of",
]  # fmt: skip
