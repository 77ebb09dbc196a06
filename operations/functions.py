"""exp and log as implementations of operations compute them, in binary64 before the event's
rounding.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.functions import exp64, log64, whole_exp
from roundscope.emu.instructions.approximate import ex2, expf, lg2, rsqrt
from roundscope.emu.instructions.polynomials import LN_2, logf
from roundscope.emu.instructions.sleef import sleef_expf
from roundscope.emu.roundings.modes import BINARY32
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import SiteBase

LOG2_E32 = 1.44269502162933349609375  # binary32(log2 e)


class Exponential(StrEnum):
    """How exp(x) is computed."""

    CORRECT = "correct"
    """Correctly rounded to the format of the event."""
    CUDA = "cuda"
    """`expf` of CUDA's library."""
    EX2 = "ex2"
    """2^(x log2 e) by the instruction ex2.approx.ftz.f32, after the product is rounded to
    binary32.
    """
    SLEEF = "sleef"
    """`Sleef_expf_u10`, which PyTorch's vectorized kernels on a CPU call."""


def exp_field(*, number: int, forward: int) -> Exponential:
    """Return the declaration of a plan's field `exp`, as `choice` does.

    Args:
        number: Its place in the text of which keys are made.
        forward: When a search for a plan changes it (`Moves`).
    """
    return choice(
        Exponential.CORRECT,
        number=number,
        called="exp",
        doc="How exp is computed, one of `Exponential`: correct (default), cuda, ex2 or sleef.",
        moves=Moves(forward=forward),
    )


class Logarithm(StrEnum):
    """How ln(x) is computed."""

    CORRECT = "correct"
    """Correctly rounded to the format of the event."""
    CUDA = "cuda"
    """`logf` of CUDA's library."""
    LG2 = "lg2"
    """log2(x) by the instruction lg2.approx.ftz.f32, times ln 2."""


def _ex2(ops: Ops, x: Array) -> Array:
    return ex2(ops, ops.round(ops.multiply(x, LOG2_E32), BINARY32, None))


def _lg2(ops: Ops, x: Array) -> Array:
    return ops.multiply(lg2(ops, x), LN_2)


OF_BINARY32: dict[str, Callable[[Ops, Array], Array]] = {
    "exp=cuda": expf,
    "exp=ex2": _ex2,
    "exp=sleef": sleef_expf,
    "log=cuda": logf,
    "log=lg2": _lg2,
}
"""The functions whose argument is a register of binary32."""


def exponential(at: Events[BasePlan, Rows], site: SiteBase, x: Array, kind: Exponential) -> Array:
    """Return exp(x), rounded by the event of a site."""
    if kind is Exponential.CORRECT:
        if at.plan[site].format.fits_binary32:
            return at(site, at.ops.call(exp64, x))
        return at(site, whole_exp(at.ops, x, to_odd=not at.plan[site].is_identity))
    return at(site, at.ops.call(OF_BINARY32[f"exp={kind}"], at.ops.round(x, BINARY32, None)))


def logarithm(at: Events[BasePlan, Rows], site: SiteBase, x: Array, kind: Logarithm) -> Array:
    """Return ln(x), rounded by the event of a site."""
    if kind is Logarithm.CORRECT:
        return at(site, at.ops.call(log64, x))
    return at(site, at.ops.call(OF_BINARY32[f"log={kind}"], at.ops.round(x, BINARY32, None)))


def exponentials(
    at: Events[BasePlan, Rows], sites: Any, x: Array, kind: Exponential
) -> tuple[Array, Array, Array, Array]:
    """Return the maximum of each row of x (R, V), and the events D, EXP and S of these sites: the
    distances from it, their exponentials and the sum of these.
    """
    xp = at.ops.xp
    m = xp.max(x, axis=1)
    d = at(sites.D, x - m[:, None])
    e = exponential(at, sites.EXP, d, kind)
    return m, d, e, at.product(sites.S, e, xp.ones((x.shape[1], 1)))[:, 0]


class Root(StrEnum):
    """How 1 / sqrt(x) is computed, for events of a root and of its reciprocal."""

    DIVIDED = "divided"
    """A root and a division, two events."""
    CORRECT = "correct"
    """One event, 1 / sqrt(x) rounded once."""
    RSQRT = "rsqrt"
    """The instruction rsqrt.approx.f32 of NVIDIA's GPUs, of x in binary32."""


def reciprocal_root(
    at: Events[BasePlan, Rows], root: SiteBase, site: SiteBase, x: Array, kind: Root
) -> Array:
    """Return 1 / sqrt(x), rounded by the event of a site, after that of its root if it has one."""
    xp = at.ops.xp
    if kind is Root.DIVIDED:
        sd = at(root, xp.sqrt(x))
        return at(site, at.ops.divide(xp.ones_like(sd), sd))
    if kind is Root.RSQRT:
        return at(site, at.ops.call(rsqrt, at.ops.round(x, BINARY32, None)))
    return at(site, at.ops.divide(xp.ones_like(x), xp.sqrt(x)))


def plus(at: Events[BasePlan, Rows], site: SiteBase, x: Array, y: Array) -> Array:
    """Return x + y, rounded once by the event of a site: a multiply-add if x is a product that did
    not round.
    """
    if at.plan[site].is_identity:
        return at(site, x + y)
    return at(site, at.ops.odd_sum(at.ops.hidden(x), y))


def constant(plan: BasePlan, site: SiteBase, value: float) -> float:
    """Return a number that an event reads: in binary32, unless the event's format is wider."""
    if not plan[site].format.fits_binary32:
        return float(value)
    return float(np.float32(value))
