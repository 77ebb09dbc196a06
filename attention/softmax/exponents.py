"""How scores become exponents of the plan's base, and exponents become exponentials.

Plans differ in where the scale and log2 e enter, and in which products are rounded (`Log2E`). `at`
is the hook of the tile. Scores are (bq, bk), and numbers that a row has only once are (bq,).
"""

import math
from dataclasses import replace

import numpy as np

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import BackwardExponent, Exponential, Log2E, RescaledSum
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.softmax.bias import times_scale
from roundscope.attention.softmax.maximum import finite, masked, new_maximum
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.functions import LOG2_E, exp2_64, exp64
from roundscope.emu.instructions.approximate import ex2, expf
from roundscope.emu.instructions.polynomials import poly_ex2
from roundscope.emu.roundings.modes import BINARY32

LOG2_E32 = 1.44269502162933349609375  # binary32(log2 e)
EXPONENTIALS = {
    Exponential.CORRECT: exp64,
    Exponential.CUDA: expf,
    Exponential.BASE2: exp2_64,
    Exponential.EX2: ex2,
}


def exponents(at: Events, scale: float, m_old: Array, s: Array) -> tuple[Array, Array, Array]:
    """Return the new maximum m, the exponents of EXP (bq, bk), and those of ALPHA (bq,).

    scale  the factor of the scores, or the softcap if s is a tanh
    m_old  the maximum before this tile, (bq,)
    s      the scores S, not masked yet; masked ones have the exponent -inf
    """
    ops, plan, mul, xp = at.ops, at.plan, at.ops.multiply, at.ops.xp
    scale = base2_scale(at.ops, plan, scale)
    if plan.log2_e is Log2E.MAXIMUM:
        s = masked(at, s)
        m = new_maximum(at, m_old, s, scale)
        cm = shifted(at, at(Site.CM, mul(finite(xp, m), scale)))[:, None]
        scaled = at(Site.SCALED, mul(s, scale))
        x = (
            multiply_add(at, Site.X, s, scale, cm, scaled)
            if plan.fused_exponent
            else at(Site.X, scaled - cm)
        )
        dx = at(Site.DX, mul(at(Site.DM, m_old - finite(xp, m)), scale))
        if _is_negative(scale):  # the first tile of a row rescales nothing: not by exp(-inf scale)
            dx = xp.where(m_old == -math.inf, -math.inf, dx)
        return m, x, dx
    scaled, factor, factors = _scaled(at, scale, s, Site.SCALED, Site.LS)
    scaled = masked(at, scaled)
    m = new_maximum(at, m_old, scaled)
    shift = finite(xp, m)
    less = shifted(at, shift)[:, None]
    if plan.fused_exponent:
        x = multiply_add(at, Site.X, masked(at, factors), factor, less, scaled)
    else:
        x = at(Site.X, exponent(ops, plan, scaled - less))
    if plan.kept_state:  # alpha is computed from both maxima as memory holds them
        m_old, shift = (ops.round(y, plan[Site.MS], None) for y in (m_old, shift))
    return m, x, at(Site.DM, exponent(ops, plan, m_old - shift))


def alpha_of_sum(at: Events, m_old: Array, m: Array, alpha: Array) -> Array:
    """Return the factor of l: alpha, or that of the maxima before event MS (`RescaledSum`).

    m_old, m  the maximum before and after this tile, (bq,)
    alpha     the factor of O, (bq,)
    """
    xp, plan = at.ops.xp, at.plan
    if plan.rescaled_sum is RescaledSum.KEPT:
        return alpha
    again = replace(at, recorder=None)  # a trace counts DM and ALPHA once
    dm = again(Site.DM, exponent(at.ops, plan, m_old - finite(xp, m)))
    unrounded = again(Site.ALPHA, exponential(at, dm))
    if plan.rescaled_sum is RescaledSum.UNROUNDED:
        return unrounded
    return xp.where(at.tile.i == 0, unrounded, alpha)


def shifted(at: Events, m: Array) -> Array:
    """Return what the exponents subtract: m, or m - offset in plans with an `offset`."""
    return at(Site.MO, m - at.plan.offset) if at.plan.offset else m


def exponents_again(at: Events, scale: float, s: Array, lse: Array) -> Array:
    """Return the exponents of EXP_B (bq, bk), from the scores S and L; masked ones are -inf.

    lse: L, (bq,), finite: 0 in rows without a key.
    """
    plan, mul = at.plan, at.ops.multiply
    if plan.exponent_again is BackwardExponent.AFTER:
        x = multiply_add(at, Site.X_B, masked(at, s), scale, lse[:, None])
        return masked(at, at(Site.LS_B, mul(x, LOG2_E32)))
    if plan.exponent_again is BackwardExponent.NATURAL:
        scaled = masked(at, times_scale(at, Site.SCALED_B, s, scale))
        fused = plan.fused_exponent and plan.log2_e is Log2E.NONE
        return (
            multiply_add(at, Site.X_B, masked(at, s), scale, lse[:, None])
            if fused
            else at(Site.X_B, scaled - lse[:, None])
        )
    if plan.scaled_keys:
        return at(Site.X_B, masked(at, s) - lse[:, None])
    scale = base2_scale(at.ops, plan, scale)
    if plan.log2_e is not Log2E.NONE and not plan.lse_base2:
        lse = at(Site.LSE2, mul(lse, LOG2_E32))
    scaled, factor, factors = _scaled(at, scale, s, Site.SCALED_B, Site.LS_B)
    scaled = masked(at, scaled)
    if not plan.fused_exponent:
        return at(Site.X_B, exponent(at.ops, plan, scaled - lse[:, None]))
    return multiply_add(at, Site.X_B, masked(at, factors), factor, lse[:, None], scaled)


def _scaled(
    at: Events, scale: float, s: Array, site: Site, in_base2: Site
) -> tuple[Array, float, Array]:
    """Return the scores in the units of the exponent, and two factors whose product they are.

    site      the event of the product of the scores and the scale
    in_base2  the event of its product with log2 e, in plans with log2_e=scores
    """
    scaled = times_scale(at, site, s, scale)
    if at.plan.log2_e is not Log2E.SCORES:
        return scaled, scale, s
    return at(in_base2, at.ops.multiply(scaled, LOG2_E32)), LOG2_E32, scaled


def base2_scale(ops: Ops, plan: Plan, scale: Array | float) -> Array | float:
    """Return the factor of the scores: scale, or c = binary32(scale log2 e).

    It is an array where plans are data (`attention.plans.traced`). In plans with `scaled_queries`
    it is what is left for the scores, `scale` itself.
    """
    return scale if plan.scaled_queries else in_base2(ops, plan, scale)


def in_base2(ops: Ops, plan: Plan, scale: Array | float) -> Array | float:
    """Return c in plans with log2_e=scale or maximum, which multiply by c, else scale."""
    if plan.log2_e not in (Log2E.SCALE, Log2E.MAXIMUM):
        return scale
    if isinstance(scale, (int, float)):
        return float(np.float32(scale * LOG2_E))
    return ops.round(ops.multiply(scale, LOG2_E), BINARY32, None)


def multiply_add(
    at: Events, site: Site, x: Array, factor: float, less: Array, product: Array | None = None
) -> Array:
    """Return x times factor, minus less, with the event as its only rounding.

    The sum before the event is rounded to odd, so that two roundings give what one would. Where x
    is -inf, the result is what IEEE 754's fma gives, NaN where `less` is NaN, and else -inf; with a
    negative factor it is inf if the score exists, which -inf of a masked score never is.

    less     what is subtracted, broadcastable to x
    product  the rounded product of x and factor; plans with `unfused_if_cut` subtract from it in
             tiles that are cut
    """
    xp = at.ops.xp
    total = at.ops.odd_sum(*xp.broadcast_arrays(at.ops.multiply(finite(xp, x), factor), -less))
    if product is not None and at.plan.unfused_if_cut:
        total = xp.where(at.tile.is_cut, product - less, total)
    lowest = -math.inf
    if _is_negative(factor):
        lowest = xp.where(at.tile.mask, math.inf, -math.inf)
    return xp.where((x == -math.inf) & (less == less), lowest, at(site, total))


def _is_negative(factor: Array | float) -> bool:
    """Return whether a factor of scores is negative; a factor that is data is not known to be."""
    return isinstance(factor, (int, float)) and factor < 0.0


def exponent(ops: Ops, plan: Plan, x: Array) -> Array:
    """Return the exponent of the plan's base for exp(x).

    It is x log2 e where the plan computes 2^x and the scores do not contain the factor log2 e yet,
    and x otherwise.
    """
    if plan.exp in (Exponential.CORRECT, Exponential.CUDA) or plan.log2_e is not Log2E.NONE:
        return x
    return ops.multiply(x, LOG2_E)


def exponential(at: Events, x: Array) -> Array:
    """Return the plan's base, e or 2, to the power of x, before the event's rounding."""
    if at.plan.exp in (Exponential.EX2, Exponential.CUDA):
        x = at.ops.round(x, BINARY32, None)  # the register that the instruction reads
    return at.ops.call(EXPONENTIALS[at.plan.exp], x)


def exponential_of_tile(at: Events, x: Array) -> Array:
    """Return `exponential` of a tile (bq, bk), in the `polynomial` columns by a polynomial."""
    if at.plan.polynomial is None or not any(columns := at.plan.polynomial.columns(x.shape[1])):
        return exponential(at, x)
    by_polynomial = at.ops.call(poly_ex2, at.ops.round(x, BINARY32, None))
    return at.ops.xp.where(at.ops.xp.asarray(columns), by_polynomial, exponential(at, x))


def exponential_again(at: Events, x: Array) -> Array:
    """Return the exponential of the backward: as in the forward, or CUDA's expf with `NATURAL`."""
    if at.plan.exponent_again is BackwardExponent.NATURAL:
        return at.ops.call(expf, at.ops.round(x, BINARY32, None))
    return exponential(at, x)
