"""The few choices in which published kernels differ: where delta comes from, and how exponentials,
row sums, reciprocals, logarithms and gradients are computed.

Each class is the type of one field of `attention.plans.plan.Plan` and has a word in the grammar of
changes (docs/grammar.md). The values of the enumerations are those words; stored results have them,
so a value never changes. Below each value stands what it computes and whose kernel does so. Letters
are those of `attention.algorithm`: S scores, m running maximum, l row sum, L = m + ln l. Names in
capitals are sites, and c is binary32(scale log2 e).
"""

from dataclasses import dataclass
from enum import StrEnum


class DeltaFrom(StrEnum):
    """Where delta takes its operands (the word delta_from=).

    In exact arithmetic rowsum(dO O) and rowsum(P dP) are one number, since every row of P adds up
    to 1. In rounded arithmetic they differ, and with them dS = P (dP - delta).

    * OUT, "OUT": rowsum(dO O) with the rounded output, as every released fused kernel has it
      (arXiv 2307.08691, Algorithm 2).
    * WIDE_O, "O": rowsum(dO O) with the output before its last rounding.
    * P_DP, "P_DP": rowsum(P dP) with the recomputed probabilities, as an unfused softmax has it.
    * CENTERED, "CENTRED": rowsum(P dP) / rowsum(P), for which every row of dS adds up to 0,
      whatever P lost. `CENTRED` is another name of the member; the value keeps that spelling, since
      stored results have it.

    Example:
        >>> from roundscope.attention import DeltaFrom
        >>> [str(operands) for operands in DeltaFrom]
        ['OUT', 'O', 'P_DP', 'CENTRED']
    """

    OUT = "OUT"
    WIDE_O = "O"
    P_DP = "P_DP"
    CENTRED = "CENTRED"  # first of the two, so that reprs, of which stored keys are made, stay
    CENTERED = "CENTRED"


class Exponential(StrEnum):
    """How exp(x) is computed (the word exp=)."""

    CORRECT = "correct"
    """Correctly rounded to the format of the event."""
    BASE2 = "base2"
    """2^X, correctly rounded. GPU kernels compute powers of two: they fold log2 e into the scale
    (`Log2E`); without that, X = (S - m) log2 e.
    """
    CUDA = "cuda"
    """`expf` of CUDA's library, to the bit, as eager kernels and XLA call it. It ends in ex2."""
    EX2 = "ex2"
    """2^X by ex2.approx.ftz.f32 of a Hopper GPU, to the bit (`emu.instructions`)."""


class Log2E(StrEnum):
    """Where log2 e enters, so that exp(x) is 2^(x log2 e) (the word log2_e=)."""

    NONE = "none"
    """Nowhere before the exponential: SCALED = scale S and X = SCALED - m. With a base of 2 the
    exponential's argument is X log2 e.
    """
    SCALE = "scale"
    """In the scale: SCALED = c S and X = SCALED - m, as in cuDNN and Triton's tutorial."""
    MAXIMUM = "maximum"
    """In the scale, with m of the unscaled scores: SCALED = c S, X = SCALED - c m, and
    DX = c (m_old - m), as in FlashAttention-2.
    """
    SCORES = "scores"
    """After the scale: SCALED = scale S, LS = log2 e SCALED and X = LS - m, as in flex attention
    and in torch's memory-efficient attention.
    """


class ScoreGradient(StrEnum):
    """How dS is computed from P, dP and delta (the word score_gradient=)."""

    DIFFERENCE = "difference"
    """P (dP - delta), as in fused kernels."""
    SOFTMAX = "softmax"
    """P dP - delta P, the subtraction and its product being one multiply-add: the backward of a
    softmax that stands alone.
    """
    QUOTIENT = "quotient"
    """(dP / l - delta) EXP with delta = sum dP / l^2 EXP: EXP / l differentiated as a quotient, as
    JAX does.
    """


class GradientsApart(StrEnum):
    """Which gradients add up tile by tile, where each tile's part is a sum of its own (the word
    gradients_apart=).
    """

    NONE = "none"
    """None of them: each is one sum over all tiles."""
    DQ = "dq"
    """dQ, as kernels do that add the parts by atomic additions, in some order."""
    ALL = "all"
    """dQ, dK and dV, as code does that adds tensors."""


class ScaleOfGradient(StrEnum):
    """Where the scale enters the gradients of Q and K (the word gradient_scale=)."""

    RESULT = "result"
    """It multiplies dQ and dK at the end, as in FlashAttention-2."""
    PROBABILITY = "probability"
    """It multiplies P before dP - delta does: SDS = scale P, then PD and DS."""
    REGISTER = "register"
    """It multiplies dS before its cast: SDS, then DS."""
    OPERAND = "operand"
    """It multiplies dS after its cast: DS, then SDS, which is the operand of dQ and dK."""


class RowSum(StrEnum):
    """How threads add up a row (the word row_sum=).

    In four lanes, column j belongs to lane (j // 2) % 4, as in the accumulators of tensor cores.
    """

    PLAIN = "plain"
    """ROWSUM by its accumulator, and then L = alpha l + ROWSUM."""
    LANES = "lanes"
    """Four lanes. Each goes on from alpha l, column by column, over all tiles; at the end LANES is
    (l0 + l2) + (l1 + l3). FlashAttention-2.
    """
    TILE_LANES = "tile-lanes"
    """Four lanes. Each adds the columns of a tile from 0, and then alpha l is added; at the end
    LANES is (l0 + l1) + (l2 + l3). cuDNN.
    """
    TILES = "tiles"
    """Four lanes from 0 in each tile, added as (l0 + l2) + (l1 + l3), and then alpha l is added.
    Triton.
    """
    EIGHTS = "eights"
    """Eight lanes, column j in lane j % 8, the first going on from alpha l; in each tile added as
    ((l0 + l2) + (l4 + l6)) + ((l1 + l3) + (l5 + l7)). FlashAttention-4.
    """
    GROUPS = "groups"
    """Four lanes from 0 in each group of 32 columns, added as (l0 + l1) + (l2 + l3); alpha l plus
    one group after the other. CUTLASS.
    """


class Reciprocal(StrEnum):
    """How 1 / l is computed (the word reciprocal=)."""

    CORRECT = "correct"
    """In binary64, so that INV is its only rounding."""
    RCP = "rcp"
    """By the instruction rcp.approx.ftz.f32 of a Hopper GPU, to the bit."""


class BackwardExponent(StrEnum):
    """How the backward computes P again (the word exponent_again=)."""

    FORWARD = "forward"
    """As the forward computed it, with L in the place of m."""
    AFTER = "after"
    """X_B = scale S - L by one multiply-add, LS_B = log2 e X_B, and 2^LS_B. cuDNN."""
    NATURAL = "natural"
    """X_B = SCALED_B - L and `expf` of CUDA's library. CUTLASS."""


class Logarithm(StrEnum):
    """How ln l is computed (the word log=)."""

    CORRECT = "correct"
    """In binary64, so that LSE is its only rounding."""
    LG2 = "lg2"
    """binary32(ln 2) times lg2.approx.ftz.f32, rounded: `__logf` of CUDA."""
    CUDA = "cuda"
    """`logf` of CUDA's library, or `log2f` where L is in base 2, to the bit."""


class Sinks(StrEnum):
    """How a sink enters (the word sinks=).

    A sink is a logit of each head that takes part in the softmax of every row and whose value is 0
    (arXiv 2508.10925).
    """

    NONE = "none"
    """In calls that have sinks, as `KEY` where the softmax is of whole rows, else as `LAST`."""
    KEY = "key"
    """As a key behind the others, in m and in the row sum. Eager attention of gpt-oss."""
    FIRST = "first"
    """As a key that comes first: m begins at SINK and l at 1. vLLM's Triton kernel."""
    LAST = "last"
    """m is of the keys alone, and at the end SL = l + exp(SINK - m). FlashAttention-3 and -4."""


class CappedBy(StrEnum):
    """How a softcap c divides and multiplies (the word capped_by=)."""

    QUOTIENT = "quotient"
    """CAP = SS / c, and the gradient is DSC DTANH. FlashAttention-4."""
    CHAIN = "chain"
    """CAP = SS times binary32(1 / c), and the gradient is multiplied with c and 1 / c too, DCT and
    DCQ, as automatic differentiation does.
    """


class Tanh(StrEnum):
    """How the tanh of a softcap is computed (the word tanh=)."""

    CORRECT = "correct"
    """In binary64, so that TANH is its only rounding."""
    CUDA = "cuda"
    """`tanhf` of CUDA's library, to the bit, as torch and Triton call it."""


class KeyOrder(StrEnum):
    """The order in which a query tile meets the key tiles (the word key_order=).

    Inside a tile keys stay in ascending order.
    """

    ASCENDING = "ascending"
    """From the first key tile to the last."""
    DESCENDING = "descending"
    """From the last key tile, which a causal call masks, to the first. FlashAttention-2 and -3."""
    MASKED_FIRST = "masked-first"
    """The tiles that causality cuts, then the others, each ascending. Flex attention."""


class QueryOrder(StrEnum):
    """The order in which the backward adds up tiles (the word query_order=).

    These are the query tiles in dK and dV, and the key tiles in dQ.
    """

    ASCENDING = "ascending"
    """All ascending."""
    DESCENDING = "descending"
    """dK and dV from the last query tile down, dQ ascending. FlashAttention-2."""
    MASKED_FIRST = "masked-first"
    """The tiles that causality cuts, then the others, each ascending. Flex attention."""
    WRAPPED = "wrapped"
    """From the diagonal on. dK and dV go up to the last query tile and then on from the first; dQ
    goes down to the first key tile and then on from the last. CUTLASS.
    """


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The columns of a tile in which a polynomial takes the place of ex2 in EXP, as in
    FlashAttention-4 (`emu.instructions.polynomial`).

    A tile consists of fragments of 32 columns. In every fragment from number `first` on, except the
    last of the tile, the polynomial computes column c of the fragment where (c - c % 2) % every >=
    every - share. With every = 1 and share = 1 it computes all columns of those fragments.

    Args:
        every: Length of the pattern in columns, 1 or more.
        share: How many columns of every pattern the polynomial computes, from 1 to `every`.
        first: Number of the first fragment that has such columns, counted from 0.

    Raises:
        ValueError: A number is out of its range.

    Example:
        >>> from roundscope.attention.plans.choices import Polynomial
        >>> Polynomial.parse("10:4:1") == Polynomial(every=10, share=4, first=1)
        True
    """

    every: int
    share: int = 4
    first: int = 0

    def __post_init__(self) -> None:
        if not (self.every >= 1 and 1 <= self.share <= self.every and self.first >= 0):
            form = (
                "EVERY:SHARE:FIRST, share columns in every so many, 1 <= SHARE <= EVERY, from"
                " fragment FIRST on, such as 10:4:1"
            )
            raise ValueError(f"polynomial={self}: {form}")

    def __str__(self) -> str:
        """Return EVERY:SHARE:FIRST, as the grammar writes it."""
        return f"{self.every}:{self.share}:{self.first}"

    @staticmethod
    def parse(text: str) -> "Polynomial | None":
        """Return the polynomial of EVERY:SHARE:FIRST, or None for the text none.

        Raises:
            ValueError: The text is anything else.
        """
        if text == "none":
            return None
        try:
            return Polynomial(*map(int, text.split(":")))
        except (TypeError, ValueError):
            form = (
                "share columns in every so many, 1 <= SHARE <= EVERY, from fragment FIRST on, such"
                " as 10:4:1"
            )
            raise ValueError(f"give none, or EVERY:SHARE:FIRST, {form}") from None

    def columns(self, count: int) -> tuple[bool, ...]:
        """Return, for each column of a tile of `count` columns, whether the polynomial computes
        it.
        """
        last = -(-count // 32) - 1

        def is_polynomial(c: int) -> bool:
            return (
                self.first <= c // 32 < last
                and (c % 32 // 2 * 2) % self.every >= self.every - self.share
            )

        return tuple(is_polynomial(c) for c in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stabilizer:
    """The shifted maximum of arXiv 2510.04212, Algorithm 1.

    Where several scores of a tile row share the maximum, m moves away from it, so that no P is 1
    and no sum of P V is a sum of unrounded V. Softmax is invariant under the shift, so the result
    is exact in exact arithmetic for every input.

    Unlike the released code it clamps no row sum and counts no masked score. The shift is kept
    between twice the window plus an ulp of M (a smaller one rounds P back to 1; this also moves a
    maximum of 0) and half the exponent range of P (a larger one would underflow). docs/decisions.md
    says why.

    Args:
        beta: Factor above 1. A repeated maximum r > 0 gives m = beta r; a negative one gives m = 0.
            The paper uses 2 to 8; default 2.
        window: Scores closer to the maximum than this count as equal to it. A number, 0 or more, in
            the units of scores in base e; None (default) takes the gap below which P rounds to 1 in
            its format (`Format.tie_window`).

    Raises:
        TypeError: An argument is no number.
        ValueError: `beta` is not above 1, or `window` is below 0.

    Example:
        >>> from dataclasses import replace
        >>> from roundscope.attention import Plan
        >>> from roundscope.attention.plans.choices import Stabilizer
        >>> plan = replace(Plan.preset("qiu-yao"), stabiliser=Stabilizer(beta=2.0))
        >>> plan == replace(plan, stabiliser=Stabilizer())
        True
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

    def __repr__(self) -> str:
        """Return the record under its old name, since keys of stored trials are made of reprs."""
        return f"Stabiliser(beta={self.beta!r}, window={self.window!r})"


Stabiliser = Stabilizer
"""The name of `Stabilizer` until version 0.1, kept for one release."""
