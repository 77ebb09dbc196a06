"""The few choices in which published kernels differ: where delta comes from, how exp, sums of rows
and reciprocals are computed.

Each is a field of `attention.plans.plan.Plan`, with a word in the grammar (docs/grammar.md).
"""

from dataclasses import dataclass
from enum import StrEnum


class DeltaFrom(StrEnum):
    """Where delta = rowsum(dO O) = rowsum(P dP) takes its operands: the same number in exact
    arithmetic, since rowsum(P) = 1.
    """

    OUT = "OUT"  # the rounded output, as every released kernel does
    WIDE_O = "O"  # the output before its last rounding
    P_DP = "P_DP"  # rowsum(P dP), from the recomputed probabilities
    # rowsum(P dP) / rowsum(P): the delta for which every row of dS = P (dP - delta) sums to 0,
    # whatever P lost
    CENTRED = "CENTRED"


class Exponential(StrEnum):
    """How exp(x) is computed."""

    CORRECT = "correct"  # correctly rounded to the event's format
    # 2^X: what GPU kernels do, which fold log2 e into the scale (`Log2E`; else X = (S - m) log2 e)
    BASE2 = "base2"
    CUDA = "cuda"  # expf of CUDA's library, which ex2 ends: what eager kernels and XLA call
    EX2 = "ex2"  # the same by ex2.approx.ftz.f32 of a Hopper GPU, to the bit (emu.instructions)


class Log2E(StrEnum):
    """Where log2 e enters, so that exp(x) is 2^(x log2 e); c is binary32(scale log2 e)."""

    NONE = (  # SCALED = scale S; X = SCALED - m, and the exponential's argument is X, or X log2 e
        "none"
    )
    SCALE = "scale"  # SCALED = c S; X = SCALED - m: cuDNN, memory-efficient attention
    # m is of the scores unscaled; SCALED = c S, X = SCALED - c m, DX = c (m_old - m):
    # FlashAttention-2
    MAXIMUM = "maximum"
    SCORES = (  # SCALED = scale S, LS = log2 e SCALED; X = LS - m: kernels that Triton compiles
        "scores"
    )


class ScoreGradient(StrEnum):
    """How dS is computed from P, dP and delta."""

    DIFFERENCE = "difference"  # P (dP - delta): fused kernels
    SOFTMAX = (  # P dP - delta P, one multiply-add: the backward of a softmax that stands alone
        "softmax"
    )
    # (dP / l - delta) EXP with delta = sum dP / l^2 EXP: a quotient that is differentiated, as in
    # JAX
    QUOTIENT = "quotient"


class GradientsApart(StrEnum):
    """Which gradients add up tile by tile, each tile's part a sum of its own."""

    NONE = "none"  # one sum over all tiles
    DQ = "dq"  # dQ: what atomic additions do, in some order
    ALL = "all"  # dK and dV too: code that adds tensors


class ScaleOfGradient(StrEnum):
    """Where the scale enters the gradients of Q and K."""

    RESULT = "result"  # dQ and dK, as they leave
    PROBABILITY = "probability"  # P, before it meets dP - delta: SDS = scale P, then PD and DS
    REGISTER = "register"  # dS before its cast: SDS, then DS
    OPERAND = "operand"  # dS after its cast: DS, then SDS, which is the operand


class RowSum(StrEnum):
    """How threads add up a row.

    In lanes, column j belongs to lane (j // 2) % 4, as in the accumulators of tensor cores.
    """

    PLAIN = "plain"  # ROWSUM by its accumulator, and L = alpha l + ROWSUM
    # four lanes: each goes on from alpha l, column by column; LANES adds (l0 + l2) + (l1 + l3):
    # FlashAttention-2
    LANES = "lanes"
    # four lanes: a tile's columns from 0, then alpha l is added; (l0 + l1) + (l2 + l3): cuDNN
    TILE_LANES = "tile-lanes"
    # of each tile four lanes from 0, (l0 + l2) + (l1 + l3); then alpha l is added: Triton
    TILES = "tiles"
    # eight lanes, column j to lane j % 8, the first from alpha l; l0 + l2 + l4 + l6 and so on:
    # FlashAttention-4
    EIGHTS = "eights"
    # of 32 columns four lanes from 0, (l0 + l1) + (l2 + l3); alpha l plus one group after the
    # other: CUTLASS
    GROUPS = "groups"


class Reciprocal(StrEnum):
    """How 1 / l is computed."""

    CORRECT = "correct"  # to binary64; INV is its only rounding
    RCP = "rcp"  # rcp.approx.ftz.f32


class BackwardExponent(StrEnum):
    """How the backward gets P again."""

    FORWARD = "forward"  # as the forward did, with L in the place of m
    AFTER = "after"  # X_B = scale S - L by one multiply-add, LS_B = log2 e X_B, and 2^LS_B: cuDNN
    NATURAL = "natural"  # X_B = SCALED_B - L and CUDA's expf: CUTLASS


class Logarithm(StrEnum):
    """How ln l is computed."""

    CORRECT = "correct"  # to binary64; LSE is its only rounding
    LG2 = "lg2"  # binary32(ln 2) times lg2.approx.ftz.f32, rounded: __logf of CUDA
    CUDA = "cuda"  # logf of CUDA's library, or log2f where L is in base 2, to the bit


class Sinks(StrEnum):
    """How a sink enters: a logit of each head that takes part in every row's softmax, and whose
    value is 0.
    """

    # as `KEY` where the softmax is of whole rows, else as `LAST`, in calls that have sinks
    NONE = "none"
    KEY = "key"  # as a key behind the others, in m and in the row sum: eager attention of gpt-oss
    FIRST = "first"  # as a key that comes first: m = SINK, l = 1. vLLM's Triton kernel
    LAST = (  # m is of the keys alone; at the end, SL = l + exp(SINK - m): FlashAttention-3 and -4
        "last"
    )


class CappedBy(StrEnum):
    """How a softcap c divides and multiplies."""

    QUOTIENT = "quotient"  # CAP = SS / c; the gradient is DSC DTANH: FlashAttention-4
    # CAP = SS times binary32(1 / c); the gradient takes c and 1 / c too, DCT and DCQ: automatic
    # differentiation
    CHAIN = "chain"


class Tanh(StrEnum):
    """How the tanh of a softcap is computed."""

    CORRECT = "correct"
    CUDA = "cuda"  # tanhf of CUDA's library, to the bit: torch, Triton


class KeyOrder(StrEnum):
    """The order in which a query tile meets the key tiles; inside a tile keys stay ascending."""

    ASCENDING = "ascending"
    DESCENDING = "descending"  # FlashAttention-2 and -3: the last, masked tile first
    MASKED_FIRST = (  # tiles that causality cuts, then the others, each ascending: flex attention
        "masked-first"
    )


class QueryOrder(StrEnum):
    """The order in which the backward adds up tiles: the query tiles in dK and dV, and the key
    tiles in dQ.
    """

    ASCENDING = "ascending"  # all ascending
    DESCENDING = (  # dK and dV from the last query tile down, dQ ascending: FlashAttention-2
        "descending"
    )
    MASKED_FIRST = (  # tiles that causality cuts, then the others, each ascending: flex attention
        "masked-first"
    )
    # from the diagonal on: dK and dV up to the last query tile, then from the first; dQ down, then
    # from the last: CUTLASS
    WRAPPED = "wrapped"


@dataclass(frozen=True, slots=True)
class Polynomial:
    """In which columns of a tile a polynomial takes the place of ex2 in EXP
    (`emu.instructions.polynomial`), as in FlashAttention-4.

    A tile has fragments of 32 columns. In fragments from `first` on, but not in the tile's last,
    column c of its fragment is computed by the polynomial where (c - c % 2) % every >= every -
    share. every = 1 and share = 1: all columns but those.
    """

    every: int
    share: int = 4
    first: int = 0

    def __post_init__(self) -> None:
        if not (self.every >= 1 and 1 <= self.share <= self.every and self.first >= 0):
            told = (
                "EVERY:SHARE:FIRST, share columns in every so many, 1 <= SHARE <= EVERY, from"
                " fragment FIRST on, such as 10:4:1"
            )
            raise ValueError(f"polynomial={self}: {told}")

    def __str__(self) -> str:
        return f"{self.every}:{self.share}:{self.first}"

    @staticmethod
    def parse(text: str) -> "Polynomial | None":
        """From EVERY:SHARE:FIRST or none. Raises ValueError for anything else."""
        if text == "none":
            return None
        try:
            return Polynomial(*map(int, text.split(":")))
        except (TypeError, ValueError):
            told = (
                "share columns in every so many, 1 <= SHARE <= EVERY, from fragment FIRST on, such"
                " as 10:4:1"
            )
            raise ValueError(f"give none, or EVERY:SHARE:FIRST, {told}") from None

    def columns(self, count: int) -> tuple[bool, ...]:
        """Of each column of a tile of so many, whether the polynomial computes it."""
        last = -(-count // 32) - 1

        def own(c):
            return (
                self.first <= c // 32 < last
                and (c % 32 // 2 * 2) % self.every >= self.every - self.share
            )

        return tuple(own(c) for c in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stabiliser:
    """The shifted maximum of arXiv 2510.04212, Algorithm 1: where several scores of a tile row
    share the maximum, m moves away from it, so that no P is 1 and no sum of P V is a sum of
    unrounded V.

    beta    a repeated maximum r > 0 gives m = beta r; a negative one gives m = 0. beta > 1
    window  scores closer to the maximum than this count as equal to it; None takes the gap below
            which P rounds to 1 in its format (`Format.tie_window`)

    Softmax is invariant under the shift, so the result is exact in exact arithmetic for every
    input. Unlike the released code it clamps no row sum and counts no masked score; and the shift
    is kept between twice the window plus an ulp of M (a smaller one rounds P back to 1; this also
    moves a maximum of 0) and half the exponent range of P (a larger one would underflow).
    docs/decisions.md says why.
    """

    beta: float = 2.0
    window: float | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("beta", self.beta),
            ("window", 0.0 if self.window is None else self.window),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name}={value!r}: give a number, such as 2.0")
        if not self.beta > 1.0:
            raise ValueError(f"beta={self.beta}: the shift needs beta > 1, the paper uses 2 to 8")
        if self.window is not None and not self.window >= 0.0:
            raise ValueError(f"window={self.window}: a gap between scores is 0 or more")
