"""How the threads of a kernel add up a row, the reciprocal of the row sum, and its gradient.

A lane is a partial sum of a row that one thread keeps. In plans that add up in four lanes, column j
belongs to lane (j // 2) % 4, since the tensor core gives that column to that thread.

The gradient of scores by the quotient rule, as JAX differentiates its softmax, is dS = (dP / l -
delta) EXP. Here delta is the sum of (dP / l^2) EXP over the keys, which is rowsum(P dP) / l.
"""

from dataclasses import replace
from types import ModuleType

from roundscope.attention.hook import Events
from roundscope.attention.plans.choices import Reciprocal, RowSum, Sinks
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array
from roundscope.emu.instructions.approximate import rcp
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.odd import WIDEST, sum_to_round


def new_row_sum(at: Events, al: Array, e: Array) -> Array:
    """Return the new row sum alpha l + rowsum(e), (bq,), or (bq, 4) in plans that keep lanes.

    These are two events, ROWSUM and L. Where the lanes start at alpha l, it is only the event L.

    al: alpha l, in the shape of l; e: EXP, or P in plans that sum P, (bq, bk).
    """
    how = at.plan.row_sum
    if how is RowSum.PLAIN:
        return at(Site.L, rescaled_sum(at, al, row_sum(at, e), (Site.AL, Site.L)))
    if how in (RowSum.LANES, RowSum.PAIRED_LANES):
        return at(Site.L, *sum_in_lanes(at, e, al, Site.L))
    if how is RowSum.TILE_LANES:
        own = at(Site.ROWSUM, *sum_in_lanes(at, e, at.ops.xp.zeros(al.shape), Site.ROWSUM))
        return at(Site.L, sum_to_round(at.ops, at.plan[Site.L].format.precision, al, own))
    if how is RowSum.TILES:
        own, exact = sum_in_lanes(at, e, at.ops.xp.zeros((*al.shape, 4)), Site.ROWSUM)
        whole = at(
            Site.ROWSUM, _in_pairs(at, crossed(own)), None if exact is None else exact.sum(axis=1)
        )
        return at(Site.L, at.ops.odd_sum(al, whole))
    if how is RowSum.EIGHTS:
        return at(Site.L, *_sum_in_eights(at, al, e))
    if how is RowSum.SIXTEENS:
        return at(Site.L, at.ops.odd_sum(al, at(Site.ROWSUM, *_sum_in_sixteens(at, e))))
    l = al
    for lo in range(0, e.shape[1], 32):
        own, exact = sum_in_lanes(
            at, e[:, lo : lo + 32], at.ops.xp.zeros((*al.shape, 4)), Site.ROWSUM
        )
        l = at(
            Site.L,
            l + at(Site.ROWSUM, _in_pairs(at, own), None if exact is None else exact.sum(axis=1)),
        )
    return l


def rescaled_sum(at: Events, kept: Array, new: Array, events: tuple[Site, Site]) -> Array:
    """Return kept + new before its event, where kept is a product with alpha.

    In plans with `registers` in which the product keeps more than 51 bits, that is all, the sum is
    one multiply-add: it is rounded to odd, so that its event is its only rounding.

    events: of the product, and of the sum.
    """
    if not at.plan.registers:
        return kept + new
    of_product, of_sum = (at.plan[site].format.precision for site in events)
    is_rounded = of_product <= WIDEST  # an array where formats are data
    if is_rounded is True:
        return kept + new
    # not hidden, XLA of jax 0.11.2 fuses this with transpositions on a GPU, and the sum is wrong
    once = sum_to_round(at.ops, of_sum, *map(at.ops.hidden, (kept, new)))
    return once if is_rounded is False else at.ops.xp.where(is_rounded, kept + new, once)


def whole_row_sum(at: Events, al: Array, e: Array) -> Array:
    """Return alpha l + sum_s e of a whole row, (bq,), before L's own rounding.

    al: alpha l, which is 0, or the exponential of a sink. With `Sinks.KEY` it is one of the terms
    of the row sum; otherwise it is added to the row sum.
    """
    if at.plan.sinks is Sinks.KEY:
        return row_sum(at, at.ops.xp.concatenate([e, al[:, None]], axis=1))
    return al + row_sum(at, e)


def row_sum(at: Events, e: Array) -> Array:
    """Return ROWSUM, (bq,): the sum of e (bq, bk) over the keys, as a sum of products e times 1."""
    ones = at.ops.xp.ones((e.shape[1], 1))
    total, exact = at.sum(Site.ROWSUM, e, ones)
    return at(Site.ROWSUM, total.squeeze(1), None if exact is None else exact.squeeze(1))


def sum_in_lanes(at: Events, e: Array, start: Array, event: Site) -> tuple[Array, Array | None]:
    """Return start (bq, 4) plus, in each lane, the sum of its columns of e (bq, bk).

    The second result is the same in binary64 if there is an Exact() injection at the event, else
    None.
    """
    rows, columns = e.shape
    if missing := -columns % 8:
        e = at.ops.xp.concatenate([e, at.ops.xp.zeros((rows, missing))], axis=1)
        columns += missing
    lanes = (at.ops.in_lanes or _in_lanes)(e)
    total, exact = at.sum(
        Site.ROWSUM,
        lanes,
        at.ops.xp.ones((lanes.shape[1], 1)),
        init=start.reshape(-1, 1),
        event=event,
    )
    return total.reshape(start.shape), None if exact is None else exact.reshape(start.shape)


def _in_lanes(e: Array) -> Array:
    """Return e (rows, n) as (4 rows, n / 4), a row for each lane of each row of e."""
    rows, columns = e.shape
    by_lane: Array = e.reshape(rows, columns // 8, 4, 2).transpose(0, 2, 1, 3)
    return by_lane.reshape(rows * 4, columns // 4)


def _sum_in_eights(at: Events, al: Array, e: Array) -> tuple[Array, Array | None]:
    """Return al + rowsum(e), (bq,), in eight lanes: column j belongs to lane j % 8.

    The last addition is not rounded yet. The second result is the sum in binary64 if there is an
    Exact() injection at L, else None.
    """
    xp, rows = at.ops.xp, e.shape[0]
    start = xp.where(xp.arange(8) == 0, al[:, None], 0.0)
    total, exact = _sum_by_column(at, e, start, Site.L)
    lanes = total.reshape(rows, 4, 2)
    for half in (2, 1):  # (0 + 1) + (2 + 3), of pairs
        lanes = at.ops.round(lanes.reshape(rows, half, 2, 2).sum(axis=2), at.plan[Site.LANES], None)
    return lanes.sum(axis=(1, 2)), exact


def _sum_in_sixteens(at: Events, e: Array) -> tuple[Array, Array | None]:
    """Return rowsum(e), (bq,), in sixteen lanes: column j belongs to lane j % 16.

    The last addition is not rounded yet. The second result is the sum in binary64 if there is an
    Exact() injection at ROWSUM, else None.
    """
    rows = e.shape[0]
    lanes, exact = _sum_by_column(at, e, at.ops.xp.zeros((rows, 16)), Site.ROWSUM)
    lanes = lanes.reshape(rows, 2, 4, 2)  # the four of a thread, and then the threads
    for axis in (1, 2):
        lanes = at.ops.round(lanes.sum(axis=axis), at.plan[Site.LANES], None)
    return _in_pairs(at, lanes), exact


def _sum_by_column(at: Events, e: Array, start: Array, event: Site) -> tuple[Array, Array | None]:
    """Return start (bq, n) plus, in lane j % n, the sum of the columns j of e (bq, bk).

    The second result is the whole sum in binary64, (bq,), if there is an Exact() injection at the
    event, else None.
    """
    xp, (rows, columns), lanes = at.ops.xp, e.shape, start.shape[1]
    if missing := -columns % lanes:
        e = xp.concatenate([e, xp.zeros((rows, missing))], axis=1)
    own = e.reshape(rows, -1, lanes).transpose(0, 2, 1).reshape(rows * lanes, -1)
    total, exact = at.sum(
        Site.ROWSUM, own, xp.ones((own.shape[1], 1)), init=start.reshape(-1, 1), event=event
    )
    total = total.reshape(rows, lanes)
    return total, None if exact is None else exact.reshape(rows, lanes).sum(axis=1)


def added_lanes(at: Events, l: Array) -> Array:
    """Return the sum of four lanes (rows, 4) in the order in which threads exchange them, (rows,).

    The last addition is not rounded yet, since the event rounds it.
    """
    is_crossed = at.plan.row_sum is RowSum.LANES
    if at.ops.in_pairs is not None:
        return at.ops.in_pairs(l, is_crossed, at.plan[Site.LANES])
    return _in_pairs(at, crossed(l) if is_crossed else l)


def crossed(l: Array) -> Array:
    """Return four lanes (rows, 4) in the order l0, l2, l1, l3, as pairs (rows, 2, 2)."""
    return l.reshape(-1, 2, 2).swapaxes(1, 2)


def _in_pairs(at: Events, l: Array) -> Array:
    """Return (l0 + l1) + (l2 + l3), (rows,), the last addition not rounded yet."""
    pairs = at.ops.round(l.reshape(-1, 2, 2).sum(axis=2), at.plan[Site.LANES], None)
    return pairs.sum(axis=1)


def inverse(at: Events, l: Array) -> Array:
    """Return 1 / l by the plan's reciprocal, before its event; 0 in rows that have no key."""
    if at.plan.reciprocal is Reciprocal.RCP:
        whole = at.ops.xp.where(l == 0.0, 1.0, l)
        return at.ops.xp.where(l == 0.0, 0.0, at.ops.call(rcp, at.ops.round(whole, BINARY32, None)))
    return reciprocal(at.ops.xp, l)


def reciprocal(xp: ModuleType, l: Array) -> Array:
    """Return 1 / l in binary64, or 0 where l is 0, in rows that have no key."""
    return xp.where(l == 0.0, 0.0, 1.0 / xp.where(l == 0.0, 1.0, l))


def quotient_terms(at: Events, e: Array, l: Array, dp: Array) -> Array:
    """Return (dP / l^2) EXP, (bq, bk), whose row sums are delta; e, dp: (bq, bk), l: (bq,)."""
    mul = at.ops.multiply
    squared = at(Site.INV2, inverse(at, at(Site.LL, mul(l, l))))
    return at(Site.PDP, mul(at(Site.DPL2, mul(dp, squared[:, None])), e))


def quotient_gradient(at: Events, e: Array, l: Array, dp: Array, delta: Array) -> Array:
    """Return (dP / l - delta) EXP, (bq, bk), not rounded yet.

    The events of delta's terms are recorded here, since the pass that computes delta records
    nothing.
    """
    mul = at.ops.multiply
    quotient_terms(at, e, l, dp)
    inv = replace(at, recorder=None)(Site.INV, inverse(at, l))  # the forward's event
    dpl = at(Site.DPL, mul(dp, inv[:, None]))
    return mul(at(Site.DPD, dpl - delta[:, None]), e)
