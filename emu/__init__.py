"""Arithmetic of small floating-point formats, bit for bit.

`emu` emulates what low-precision hardware computes: rounding, sums of products, exp and the
statistics of rounding errors. Its main functions are::

    round_to(x, "bf16")              rounds every number of an array once
    error_of, ulp_of, stats_of       describe the errors of that rounding
    dot, sum                         add up products as an `Accumulator` says
    exp                              returns the correctly rounded e^x
    explain(value, rounding("bf16")) shows one rounding in bits
    round_blocks(x, "mxfp8_e4m3")    rounds to a block format: MX, NVFP4, FP8 in blocks
    to_blocks, from_blocks           convert between an array and its elements and scales
    codes_of, pack                   store elements and scales as codes and as bytes
    block_stats                      describes the errors of a block format

Every function takes NumPy and JAX arrays and gives the same bits for both. Those of whole arrays,
from `round_to` to `round_blocks` and `block_stats`, take tensors of PyTorch too, on a CPU or a GPU,
and return tensors of the same device. Importing `emu` imports neither numba, jax nor torch.
"""

from roundscope.emu.api import dot, error_of, exp, round_to, round_with_stats, stats_of, sum, ulp_of
from roundscope.emu.blocks.api import from_blocks, round_blocks, to_blocks
from roundscope.emu.blocks.blocked import Blocked
from roundscope.emu.blocks.codes import Codes, blocked_of, codes_of, pack, unpack
from roundscope.emu.blocks.format import BLOCK_NAMED, INT8, BlockFormat, block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.blocks.stats import BlockStats, block_stats, distinct_elements
from roundscope.emu.explanation.one_rounding import explain
from roundscope.emu.formats.format import NAMED, Format, format_named
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
    E4M3,
    E5M2,
    FP16,
    NanPolicy,
    Overflow,
    Rounding,
    RoundingMode,
    rounding,
)
from roundscope.emu.stats.summary import Stats
from roundscope.emu.sums.accumulator import Accumulator, Order

__all__ = [
    "BF16",
    "BINARY32",
    "BINARY64",
    "BLOCK_NAMED",
    "E4M3",
    "E5M2",
    "FP16",
    "INT8",
    "NAMED",
    "Accumulator",
    "BlockFormat",
    "BlockStats",
    "Blocked",
    "Codes",
    "Format",
    "NanPolicy",
    "Order",
    "Overflow",
    "Rounding",
    "RoundingMode",
    "ScaleRule",
    "Stats",
    "block_format",
    "block_stats",
    "blocked_of",
    "codes_of",
    "distinct_elements",
    "dot",
    "error_of",
    "exp",
    "explain",
    "format_named",
    "from_blocks",
    "pack",
    "round_blocks",
    "round_to",
    "round_with_stats",
    "rounding",
    "stats_of",
    "sum",
    "to_blocks",
    "ulp_of",
    "unpack",
]
