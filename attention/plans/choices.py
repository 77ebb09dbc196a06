"""The few choices in which published kernels differ, such as how row sums or reciprocals are
computed.

Each class is the type of one field of `attention.plans.plan.Plan`. A field is set by a word such as
delta_from= in the grammar of changes (docs/reference/grammar.md), which takes the value of a
member, as in
delta_from=OUT. Stored results contain these values, so a value never changes. The text below each
value says what it computes and which kernel does so. The letters are those of
`attention.algorithm`: S scores, m running maximum, l row sum, alpha = exp(m_old - m), and L = m +
ln l. Names in capitals are sites, and c is binary32(scale log2 e).
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from roundscope.emu.numbers import as_float
from roundscope.emu.shown import shown


class DeltaFrom(StrEnum):
    """The operands from which delta is computed, written delta_from= in the grammar of changes.

    In exact arithmetic rowsum(dO O) and rowsum(P dP) are equal, since every row of P adds up to 1.
    In rounded arithmetic they differ, and the gradient of the scores, dS = P (dP - delta), then
    depends on the choice.

    * OUT, "OUT": rowsum(dO O) with the rounded output, as in every released fused kernel
      (arXiv 2307.08691, Algorithm 2).
    * WIDE_O, "O": rowsum(dO O) with the output before its last rounding.
    * P_DP, "P_DP": rowsum(P dP) with the recomputed probabilities, as in an unfused softmax.
    * CENTERED, "CENTRED": rowsum(P dP) / rowsum(P). Every row of dS then adds up to 0, even where
      the rounded P does not add up to 1. `CENTRED` is another name of this member. Its value keeps
      the British spelling because stored results contain it.
    * OTHER_ROWS, "OTHER_ROWS": a sham of CENTERED. Let c be CENTERED's delta less OUT's, row by
      row. Row i of T has OUT's delta plus c of row (i + T // 2) mod T: corrections of the same
      sizes, each in the wrong row.
    * RANDOM_SIGNS, "RANDOM_SIGNS": another sham. Row i has OUT's delta plus c_i or minus c_i, by a
      fair coin for each head and row, the same at every call: corrections of the same sizes in the
      right rows, half of which double the row's sum.

    Example:
        >>> from roundscope.attention import DeltaFrom
        >>> [str(operands) for operands in DeltaFrom]
        ['OUT', 'O', 'P_DP', 'CENTRED', 'OTHER_ROWS', 'RANDOM_SIGNS']
    """

    OUT = "OUT"
    WIDE_O = "O"
    P_DP = "P_DP"
    CENTRED = "CENTRED"  # first of the two, since its repr is part of stored keys
    CENTERED = "CENTRED"
    OTHER_ROWS = "OTHER_ROWS"
    RANDOM_SIGNS = "RANDOM_SIGNS"


REAL_DELTAS = (DeltaFrom.OUT, DeltaFrom.WIDE_O, DeltaFrom.P_DP, DeltaFrom.CENTRED)
"""The operands of delta without the shams, which neither kernels nor compiled programs compute."""


class Exponential(StrEnum):
    """How exp(x) is computed (exp= in the grammar of changes)."""

    CORRECT = "correct"
    """Correctly rounded to the format of the event."""
    BASE2 = "base2"
    """2^X, correctly rounded. GPU kernels compute powers of two and fold log2 e into the scale
    (`Log2E`). In a plan that does not, X is (S - m) log2 e.
    """
    CUDA = "cuda"
    """`expf` of CUDA's library, bit for bit, which eager kernels and XLA call. Its last step is the
    instruction ex2.
    """
    EX2 = "ex2"
    """2^X by the instruction ex2.approx.ftz.f32 of a Hopper GPU, bit for bit (`emu.instructions`).
    """


class Log2E(StrEnum):
    """Where log2 e enters, so that exp(x) is 2^(x log2 e) (log2_e= in the grammar of changes)."""

    NONE = "none"
    """Only in the exponential: SCALED = scale S and X = SCALED - m. If the exponential is a power
    of 2, its exponent is X log2 e.
    """
    SCALE = "scale"
    """In the scale: SCALED = c S and X = SCALED - m, as in cuDNN and Triton's tutorial."""
    MAXIMUM = "maximum"
    """In the scale, where m is the maximum of the unscaled scores: SCALED = c S, X = SCALED - c m,
    and DX = c (m_old - m), as in FlashAttention-2. A negative scale makes inf of the -inf of a
    masked score, for which FlashAttention-2 returns NaN, so such a call is refused.
    """
    SCORES = "scores"
    """After the scale: SCALED = scale S, LS = log2 e SCALED and X = LS - m, as in flex attention
    and in torch's memory-efficient attention.
    """


class ScoreGradient(StrEnum):
    """How dS is computed from P, dP and delta (score_gradient= in the grammar of changes)."""

    DIFFERENCE = "difference"
    """P (dP - delta), as in fused kernels."""
    SOFTMAX = "softmax"
    """P dP - delta P, where the subtraction and the product delta P are one multiply-add. This is
    the backward of an unfused softmax.
    """
    QUOTIENT = "quotient"
    """(dP / l - delta) EXP, where delta is the sum of (dP / l^2) EXP. This is EXP / l
    differentiated by the quotient rule, as JAX does.
    """


class GradientsApart(StrEnum):
    """Which gradients sum each tile separately, and then add that sum to the total.

    The word in the grammar of changes is gradients_apart=.
    """

    NONE = "none"
    """None: each gradient is one sum over all tiles."""
    DQ = "dq"
    """dQ, as in kernels that add the sums of the tiles by atomic additions, in some order."""
    ALL = "all"
    """dQ, dK and dV, as in code that adds whole tensors."""


class ScaleOfGradient(StrEnum):
    """Where the scale enters dQ and dK (gradient_scale= in the grammar of changes)."""

    RESULT = "result"
    """It multiplies dQ and dK at the end, as in FlashAttention-2."""
    PROBABILITY = "probability"
    """It multiplies P, and the product is then multiplied by dP - delta: SDS = scale P, then PD and
    DS.
    """
    REGISTER = "register"
    """It multiplies dS before its cast: SDS, then DS."""
    OPERAND = "operand"
    """It multiplies dS after its cast: DS, then SDS. The operand of dQ and dK is SDS."""


class RowSum(StrEnum):
    """How threads add up a row (row_sum= in the grammar of changes).

    A lane is a partial sum that one thread keeps. With four lanes l0 to l3, column j belongs to
    lane (j // 2) % 4, as in the accumulators of tensor cores.
    """

    PLAIN = "plain"
    """One sum by the accumulator of ROWSUM, and then L = alpha l + ROWSUM."""
    LANES = "lanes"
    """Four lanes, each with its own l. A lane starts a tile at alpha l and adds its columns one by
    one. After the last tile LANES is (l0 + l2) + (l1 + l3). FlashAttention-2.
    """
    PAIRED_LANES = "paired-lanes"
    """As lanes, but after the last tile LANES is (l0 + l1) + (l2 + l3). FlashAttention-4 on Hopper.
    """
    TILE_LANES = "tile-lanes"
    """Four lanes, each with its own l. A lane adds its columns of a tile, starting at 0, and then
    adds alpha l. After the last tile LANES is (l0 + l1) + (l2 + l3). cuDNN.
    """
    TILES = "tiles"
    """Four lanes that start at 0 in each tile and are added as (l0 + l2) + (l1 + l3). Then alpha l
    is added. Triton.
    """
    EIGHTS = "eights"
    """Eight lanes, where column j belongs to lane j % 8. In each tile the first lane starts at
    alpha l and the others at 0, and the lanes are added as ((l0 + l2) + (l4 + l6)) + ((l1 + l3) +
    (l5 + l7)). FlashAttention-4.
    """
    SIXTEENS = "sixteens"
    """Sixteen lanes, where column j belongs to lane j % 16, that start at 0 in each tile. Thread t
    of four adds its own as (l_2t + l_(2t+8)) + (l_(2t+1) + l_(2t+9)), the threads are added as (0 +
    1) + (2 + 3), and then alpha l is added. Pallas through Mosaic on Hopper.
    """
    GROUPS = "groups"
    """Four lanes that start at 0 in each group of 32 columns and are added as (l0 + l1) + (l2 +
    l3). The sums of the groups are added to alpha l one after the other. CUTLASS.
    """


class Reciprocal(StrEnum):
    """How 1 / l is computed (reciprocal= in the grammar of changes)."""

    CORRECT = "correct"
    """In binary64, so that INV is its only rounding."""
    RCP = "rcp"
    """By the instruction rcp.approx.ftz.f32 of a Hopper GPU, bit for bit."""


class Descales(StrEnum):
    """Where the scales of stored numbers enter (descales= in the grammar of changes)."""

    OPERANDS = "operands"
    """In q, k and v, before the events Q, K and V: each product is rounded to binary32."""
    PRODUCTS = "products"
    """In the factor of the scores, and in 1 / l: the operands are the stored numbers."""


class BackwardExponent(StrEnum):
    """How the backward computes P again (exponent_again= in the grammar of changes)."""

    FORWARD = "forward"
    """As in the forward, with L instead of m."""
    AFTER = "after"
    """X_B = scale S - L by one multiply-add, LS_B = log2 e X_B, and 2^LS_B, which is 0 for a masked
    score whatever L is. cuDNN.
    """
    NATURAL = "natural"
    """X_B = SCALED_B - L and `expf` of CUDA's library. CUTLASS."""
    STATE = "state"
    """As in the forward, where the event MS rounds m in base e, and EXP_B is the exponential times
    INV = 1 / l. Pallas through Mosaic on Hopper.
    """


class Logarithm(StrEnum):
    """How ln l is computed (log= in the grammar of changes)."""

    CORRECT = "correct"
    """In binary64, so that LSE is its only rounding."""
    LG2 = "lg2"
    """binary32(ln 2) times the result of lg2.approx.ftz.f32, rounded, which is CUDA's `__logf`.
    With `Log2E.MAXIMUM`, L is inf where l is NaN, as in FlashAttention-2.
    """
    LG2_FACTOR = "lg2-factor"
    """As lg2, where m is multiplied by binary32(c ln 2) and not by the scale. L is -inf where l is
    NaN. FlashAttention-3.
    """
    LG2_SUM = "lg2-sum"
    """L = binary32(ln 2) LN, where LN = c m + lg2.approx.ftz.f32(l) is one multiply-add (m + the
    same, where m has the factor c already). L is -inf where l is NaN. FlashAttention-4.
    """
    CUDA = "cuda"
    """`logf` of CUDA's library, or `log2f` where L is in base 2, bit for bit."""


class Sinks(StrEnum):
    """How a sink enters the softmax (sinks= in the grammar of changes).

    A sink is one logit per head. It takes part in the softmax of every row like the score of a key
    whose value is 0 (arXiv 2508.10925).
    """

    NONE = "none"
    """The default. In calls that have sinks, it is `KEY` if the softmax is of whole rows, else
    `LAST`.
    """
    KEY = "key"
    """As a key after the others, which counts in m and in the row sum. Eager attention of gpt-oss.
    """
    FIRST = "first"
    """As a key before the others: m starts at SINK and l at 1. vLLM's Triton kernel."""
    LAST = "last"
    """At the end, as SL = l + exp(SINK - m); m is the maximum of the keys alone. FlashAttention-3
    and -4.
    """


class CappedBy(StrEnum):
    """How the scores are divided by a softcap a (capped_by= in the grammar of changes)."""

    QUOTIENT = "quotient"
    """CAP = SS / a, and the gradient is DSC DTANH. FlashAttention-4."""
    CHAIN = "chain"
    """CAP = SS times binary32(1 / a). The gradient is also multiplied by a (event DCT) and by 1 / a
    (event DCQ), as automatic differentiation does.
    """


class Tanh(StrEnum):
    """How the tanh of a softcap is computed (tanh= in the grammar of changes)."""

    CORRECT = "correct"
    """In binary64, so that TANH is its only rounding."""
    CUDA = "cuda"
    """`tanhf` of CUDA's library, bit for bit, which torch and Triton call."""
    APPROX = "approx"
    """The instruction tanh.approx, bit for bit. FlashAttention-4."""


class RescaledSum(StrEnum):
    """The maxima whose alpha multiplies l, in plans with `kept_state` (rescaled_sum= in the grammar
    of changes). O is always multiplied by alpha of the maxima as memory holds them, after event MS.
    """

    KEPT = "kept"
    """The same maxima."""
    FIRST_TILE = "first-tile"
    """In the first query tile the maxima before MS, elsewhere the same. The compiled code of arXiv
    2510.04212.
    """
    UNROUNDED = "unrounded"
    """Everywhere the maxima before MS."""


class KeyOrder(StrEnum):
    """The order of the key tiles of a query tile (key_order= in the grammar of changes).

    Inside a tile keys stay in ascending order.
    """

    ASCENDING = "ascending"
    """From the first key tile to the last."""
    DESCENDING = "descending"
    """From the last key tile, part of which a causal call masks, to the first. FlashAttention-2 and
    -3.
    """
    MASKED_FIRST = "masked-first"
    """The tiles that causality cuts, then the others, each ascending. Flex attention."""


class QueryOrder(StrEnum):
    """The order in which the backward adds up tiles (query_order= in the grammar of changes).

    dK and dV add up query tiles, and dQ adds up key tiles.
    """

    ASCENDING = "ascending"
    """All ascending."""
    DESCENDING = "descending"
    """dK and dV from the last query tile to the first, and dQ ascending. FlashAttention-2."""
    MASKED_FIRST = "masked-first"
    """The tiles that causality cuts, then the others, each ascending. Flex attention."""
    FROM_DIAGONAL = "from-diagonal"
    """dK and dV ascending. dQ goes from the diagonal down to the first key tile in causal calls and
    in those with a window, and is ascending in others. FlashAttention-4.
    """
    WRAPPED = "wrapped"
    """Starting at the diagonal. dK and dV go up to the last query tile and then continue from the
    first one; dQ goes down to the first key tile and then continues from the last one. CUTLASS.
    """


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The columns of a tile in which a polynomial replaces the instruction ex2 in EXP.

    FlashAttention-4 has such a polynomial (`emu.instructions.polynomials`).

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
        """Return EVERY:SHARE:FIRST, the form that the grammar of changes uses."""
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
        """Return for each of the `count` columns of a tile whether the polynomial computes it."""
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

    Where several scores in a row of a tile equal the maximum, m is moved away from it. No P is then
    1, so no sum P V adds numbers of V multiplied by exactly 1. Softmax is invariant under this
    shift, so in exact arithmetic the result does not change.

    Unlike the released code, it does not clamp row sums and does not count masked scores. The shift
    has two bounds. It is at least twice the window plus an ulp of M, since P would round back to 1
    with a smaller one; this also moves a maximum of 0. It is at most half the exponent range of P,
    since P would underflow with a larger one. docs/notes/decisions.md gives the reasons.

    Args:
        beta: Factor above 1. A repeated maximum r > 0 gives m = beta r, and a negative r gives m =
            0. The paper uses 2 to 8; the default is 2.
        window: Scores closer to the maximum than this count as equal to it. It is a number, 0 or
            more, in the units of scores in base e. None (default) means the gap below which P
            rounds to 1 in its format (`Format.tie_window`).

    Raises:
        TypeError: An argument is not a number.
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
                raise TypeError(f"{name}={shown(value)}: give a number, such as 2.0")
        if not 1.0 < as_float(self.beta) < math.inf:
            raise ValueError(
                f"beta={shown(self.beta)}: the shift needs a finite beta > 1, the paper uses 2 to 8"
            )
        if self.window is not None and not 0.0 <= as_float(self.window) < math.inf:
            raise ValueError(
                f"window={shown(self.window)}: a gap between scores is 0 or more, and finite"
            )

    def __repr__(self) -> str:
        """Return the repr under the old class name, since keys of stored trials contain it."""
        return f"Stabiliser(beta={self.beta!r}, window={self.window!r})"


Stabiliser = Stabilizer
"""The name of `Stabilizer` until version 0.1, kept for one release."""
