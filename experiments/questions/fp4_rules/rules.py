"""Published rules for a block of FP4, as data, and what one makes of a matrix.

Numbers V of a matrix (n, K) lie in blocks along the last axis. A rule gives each block a scale s
and each number an element P, and the block stands for Q = s P / c:

    X, T = the scales of a block and of the array, as the block format has them,
    s    = X T,
    P    = round(c V / s).

c is 1 but for two rules that leave room for stochastic rounding, which must not clip. With
`turned`, V is first multiplied by a Hadamard matrix of so many rows with random signs; the other
factor of a product is multiplied by the same, so the product does not change. With `corrected`, s
is corrected after rounding (MS-EDEN, below).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roundscope.attention.inputs.rotation import rotated
from roundscope.emu import from_blocks, round_to, to_blocks
from roundscope.emu.blocks.format import BlockFormat, block_format
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines
from roundscope.emu.roundings.modes import RoundingMode

Array = np.ndarray
EDEN_TOP, EDEN_ROOM = 256.0, 17 / 16 * 0.93  # of arXiv 2601.22813's released training code


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A published rule.

    Attributes:
        name: What it is called here.
        format: The block format, in the words of `emu.block_format`.
        source: Where it was published.
        turned: The rows of the Hadamard matrix in front; 0: none.
        room: c, see above.
        by_row: Whether each row has a scale T of its own, in place of one for the whole array.
        corrected: Whether scales are corrected as MS-EDEN does.
    """

    name: str
    format: str
    source: str
    turned: int = 0
    room: float = 1.0
    by_row: bool = False
    corrected: bool = False

    @property
    def block(self) -> BlockFormat:
        """The block format."""
        return block_format(self.format)

    @property
    def is_random(self) -> bool:
        """Return whether the rule draws random numbers, so that its results depend on a seed."""
        is_drawn = self.block.element.mode is RoundingMode.STOCHASTIC
        return is_drawn or bool(self.turned) or self.corrected


OCP, TORCHAO, RECIPE = "OCP MX 1.0", "torchao", "arXiv 2506.08027"
TSENG, NVIDIA, TETRAJET = "arXiv 2502.20586", "arXiv 2509.25149", "TetraJet-v2"
QUARTET, COOK, UFP4 = "arXiv 2601.22813", "arXiv 2512.02010", "arXiv 2606.20381"
FLOOR, RCEIL, NVFP4 = "MX floor", "MX RCEIL", "NVFP4, amax / 6"
FLOOR_SR, RCEIL_SR, TSENG_SR = "MX floor, SR", "MX RCEIL, SR", "MX floor, SR of 3/4 V"
SR, SR_ROOM, RHT_SR = "NVFP4, SR", "NVFP4, SR of 16/17 V", "RHT, NVFP4, SR of 16/17 V"
FOUR, EDEN, RHT = "NVFP4, 4over6", "MS-EDEN", "RHT, NVFP4"
UNIFORM, RHT_UNIFORM = "E1M2 for E2M1", "RHT, E1M2 for E2M1"
_E1M2 = "int4[16]*e4m3fn*fp32"  # k / 4 with |k| <= 7, the numbers of E1M2 and of symmetric INT4
RULES = (
    Rule(name=FLOOR, format="mxfp4", source=OCP),
    Rule(name="MX ceil", format="mxfp4:ceil", source=TORCHAO),
    Rule(name="MX even", format="mxfp4:even", source=TORCHAO),
    Rule(name=RCEIL, format="mxfp4:rceil", source=RECIPE),
    Rule(name="RHT, MX RCEIL", format="mxfp4:rceil", source="arXiv 2605.09825", turned=32),
    Rule(name=FLOOR_SR, format="mxfp4:stochastic", source=TSENG),
    Rule(name=TSENG_SR, format="mxfp4:stochastic", source=TSENG, room=3 / 4),
    Rule(name=f"RHT, {TSENG_SR}", format="mxfp4:stochastic", source=TSENG, room=3 / 4, turned=32),
    Rule(name=RCEIL_SR, format="mxfp4:rceil:stochastic", source=RECIPE),
    Rule(name=NVFP4, format="nvfp4", source=NVIDIA),
    Rule(name="NVFP4, 16 x 16", format="e2m1fn[16x16]*e4m3fn*fp32", source=NVIDIA),
    Rule(name="NVFP4, a scale a token", format="nvfp4", source="TransformerEngine", by_row=True),
    Rule(name=FOUR, format="nvfp4:4over6", source=COOK),
    Rule(name=RHT, format="nvfp4", source=NVIDIA, turned=16),
    Rule(name="RHT, NVFP4, 4over6", format="nvfp4:4over6", source=COOK, turned=16),
    Rule(name=SR, format="nvfp4:stochastic", source=NVIDIA),
    Rule(name="RHT, NVFP4, SR", format="nvfp4:stochastic", source=NVIDIA, turned=16),
    Rule(name=SR_ROOM, format="nvfp4:stochastic", source=TETRAJET, room=16 / 17),
    Rule(name=RHT_SR, format="nvfp4:stochastic", source=TETRAJET, room=16 / 17, turned=32),
    Rule(name=EDEN, format="nvfp4", source=QUARTET, turned=32, corrected=True),
    Rule(name=UNIFORM, format=_E1M2, source=UFP4),
    Rule(name=RHT_UNIFORM, format=_E1M2, source=UFP4, turned=16),
)
NAMED = {rule.name: rule for rule in RULES}


class Rounded(NamedTuple):
    """A matrix under a rule, all in binary64, (n, K).

    v      the numbers, after the Hadamard matrix if there is one
    q      what stands for them
    ideal  what would stand for them if every scale were amax / m, m the largest element, unrounded
    """

    v: Array
    q: Array
    ideal: Array


def turned(rule: Rule, pair: Sequence[Array], seed: int) -> tuple[Array, Array]:
    """Return two factors (n, K) and (m, K) of a product, after the rule's Hadamard matrix."""
    a, b = (np.asarray(x, np.float32) for x in pair)
    if not rule.turned:
        return a, b
    parts = (x.reshape(len(x), -1, rule.turned) for x in (a, b))
    u, w = rotated(*parts, seed=seed)
    return np.asarray(u).reshape(a.shape), np.asarray(w).reshape(b.shape)


def rounded(rule: Rule, v: Array, seed: int) -> Rounded:
    """Return a matrix (n, K) of float32 numbers, already turned, under a rule."""
    f = block_format(rule.block, seed=seed)
    wide = np.asarray(v, np.float64)
    if rule.corrected:
        q = _corrected(rule, wide, f, seed)
    elif rule.by_row:
        q = np.concatenate([from_blocks(to_blocks(row[None], f)) for row in v])
    elif rule.room == 1.0:
        q = from_blocks(to_blocks(v, f))
    else:
        unit = _units(v, f)
        q = unit * round_to(rule.room * wide / unit, f.element) / rule.room
    return Rounded(wide, np.asarray(q, np.float64), _ideal(wide, f))


def _units(v: Array, f: BlockFormat) -> Array:
    """Return the scale s of every number, (n, K)."""
    b = to_blocks(v, f)
    return np.repeat(b.scales.astype(np.float64) * float(b.tensor), f.size, axis=-1)


def _ideal(v: Array, f: BlockFormat) -> Array:
    """Return what elements and unrounded scales of amax / m stand for; random bits are the same."""
    at = layout_of(v.shape, f, -1)
    blocks = to_lines(np, np.abs(v), at)
    top = np.broadcast_to(blocks.max(axis=1, keepdims=True), blocks.shape)
    top = np.where(np.isfinite(top), top, np.nan)  # as a block format has it
    s = from_lines(np, np.where(top == 0.0, 1.0, top), at) / f.element.format.max_finite
    return np.asarray(s * round_to(v / s, f.element))


def _corrected(rule: Rule, v: Array, f: BlockFormat, seed: int) -> Array:
    """Return Q of MS-EDEN, as the training code of arXiv 2601.22813 has it.

    With u = V / s of the numbers that one Hadamard matrix spans and P = round(u), the scales X of
    their blocks become X <u, u> / <u, P>, rounded stochastically to E4M3. The length of Q along V
    is then that of V. A largest magnitude becomes 6 / 0.988, which clips a little, and T leaves the
    largest scale 256, so that a correction finds room.
    """
    blocks = v.reshape(len(v), -1, f.size)
    top = np.abs(blocks).max(axis=2, keepdims=True)
    m = f.element.format.max_finite / EDEN_ROOM
    t = (np.abs(v).max() or m * EDEN_TOP) / (m * EDEN_TOP)
    x = round_to(top / m / t, f.scale)
    x = np.where(x == 0.0, 1.0, x)
    u = blocks / (x * t)
    p = round_to(u, f.element)
    spans = (len(v), -1, rule.turned)
    square, along = ((u * each).reshape(spans).sum(axis=2) for each in (u, p))
    c = np.where(along == 0.0, 1.0, square / np.where(along == 0.0, 1.0, along))
    each = np.repeat(c, rule.turned // f.size, axis=1)[:, :, None]
    scales = round_to(x * each, f.scale, "stochastic", seed=seed)
    return np.asarray((p * scales * t).reshape(v.shape))
