"""`Events`, the hook `at`, which rounds values, injects errors and records events.

There is one hook for each tile. The equations (`attention.algorithm`) only call it. They know the
names of their rounding events, but not the formats, the injections or what is recorded. After the
hook come the errors that injections make, and the random bits of events.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Generic, TypeVar

from roundscope.emu.backends.ops import ANY_PRODUCT, Array, Ops
from roundscope.emu.blocks.by_reciprocal import (
    divides_in_binary32,
    round_blocks_by_reciprocal,
)
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import tensor_scale
from roundscope.emu.formats.codes import decode, encode
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.roundings.modes import BINARY64, Rounding, RoundingMode
from roundscope.emu.roundings.random import event_bits
from roundscope.emu.sums.accumulator import Accumulator, accumulate, add_aligned
from roundscope.emu.sums.aligned import factors_of
from roundscope.events.injection import (
    SHARES,
    AddUlps,
    Bias,
    Exact,
    FlipBit,
    InjectionBase,
    Mask,
    Noise,
    SetTo,
    Where,
)
from roundscope.events.operand import Operand, operand_of
from roundscope.events.place import Index, Place
from roundscope.events.plan import BasePlan
from roundscope.events.recorder import Recorder, Seen
from roundscope.events.sites import SiteBase

_WHOLE = Accumulator(step=BINARY64)


P = TypeVar("P", bound=BasePlan, covariant=True)
T = TypeVar("T", bound=Place, covariant=True)


@dataclass(frozen=True, slots=True)
class Events(Generic[P, T]):
    """The rounding events of one tile; calling `at(site, value)` performs the event of a site.

    ops, plan  the array library, and the plan that gives each site its format
    tile       where the tile is, and which of its entries exist
    inject     the injections of the call, of all sites
    recorder   what collects the events, or None
    sink       the logit of the head's sink, a scalar, or None
    bias       the tile of the bias of the scores, (rows, columns), or None

    An event is one operation on binary64 numbers and one rounding to the site's format. If binary64
    does not hold the exact result of the operation, the result is first rounded to the nearest
    binary64 number, so there are two roundings. In detail:

    - Binary64 holds products of numbers of up to 26 bits, and sums of numbers of similar size, so
      these events are one rounding.
    - Sums and quotients of numbers of p <= 24 bits, rounded to the nearest number of p bits, equal
      the result of a single rounding (53 >= 2 p + 2).
    - In directed modes and to odd, a sum or quotient that binary64 does not hold may be rounded in
      the wrong direction. For example, 2^-60 - 1 is -1 in binary64, and fp32:toward-positive leaves
      it at -1, but a single rounding would give -1 + 2^-24.
    - In stochastic modes the probability is off by at most 2^(p - 54).
    - A sum of x and -x is +0 in every mode. In the mode toward-negative, IEEE 754 (6.3) has -0.

    Each step of an accumulator is a single rounding in every mode (`emu.sums.odd`), and so is an
    event that is a multiply-add: X in plans with `fused_exponent`, and L and O in plans with
    `registers` that do not round AL and AO.

    Some entries do not exist (`Tile.valid`): masked scores, padding, rows without a key so far, and
    the rescaling of a row that had no key yet. These are not rounded, injected into or recorded.
    They keep the value before the event, or the value that `kept` gives. The operations before and
    after an event are still computed for them. So a row without a visible key in a backward tile
    leaves the running sum of its dQ unchanged. At a masked score, DP and DPD are not rounded, but
    the steps of DP's accumulator are. There P = 0 multiplies them. If they were rounded, a number
    beyond the format could become infinite, and 0 times infinity is NaN.
    """

    ops: Ops
    plan: P
    tile: T
    inject: tuple[InjectionBase, ...]
    recorder: Recorder | None
    sink: Array | None = None
    bias: Array | None = None

    def __call__(
        self, site: SiteBase, value: Array, exact: Array | None = None, kept: Array | None = None
    ) -> Array:
        """Return the value rounded by the plan and perturbed by the injections at this site.

        The event is recorded if there is a recorder.

        value  what is rounded, (rows, columns) or (rows,) as the site's axes say
        exact  the values that an Exact() injection replaces the result by, if not `value`
        kept   the values of entries where the event does not exist, if not `value`
        """
        return self._event(site, value, exact, kept)[0]

    def operand(self, site: SiteBase, value: Array) -> Operand:
        """Return the result of an event as a matrix unit reads it: apart from its scales."""
        after, unit = self._event(site, value)
        block = self.plan.block(site)
        if block is None or not block.tensor:
            return Operand(after, unit)
        scale = tensor_scale(self.ops, value, block)
        return Operand(self.ops.divide(after, scale), self.ops.divide(unit, scale), scale)

    def _event(
        self, site: SiteBase, value: Array, exact: Array | None = None, kept: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Return the event's result and, if it rounds in blocks, the scale of each entry."""
        r = self.plan[site]
        random = (
            self._random(site, r.seed, value.shape) if r.mode is RoundingMode.STOCHASTIC else None
        )
        block, unit = self.plan.block(site), None
        if block is None:
            after = self.ops.round(value, r, random)
        else:
            after, unit = self._rounded_in_blocks(site, value, block, random)
        hit = None
        for injection in self.inject:
            if injection.site is site:
                before = value if exact is None else exact
                own = _hit(self.ops, self.tile, injection, before, after, r.format, unit)
                there = selected(self.ops.xp, self.tile, injection, after.shape)
                after = self.ops.xp.where(there, own, after)
                hit = there if hit is None else hit | there
        if not self._may_happen_everywhere(site, r, kept):
            valid = self.tile.valid(site) if value.ndim == 2 else self.tile.valid(site).squeeze(1)
            as_it_was = (self.ops.absent or _same)(value) if kept is None else kept
            after = self.ops.xp.where(valid, after, as_it_was)
        if self.recorder is not None:
            self.recorder.keep(str(site), site, value, after, r.format, unit)
            if hit is not None:
                self.recorder.keep_hits(site, hit)
        return after, unit

    def _may_happen_everywhere(self, site: SiteBase, r: Rounding, kept: Array | None) -> bool:
        """Return whether the event may be applied to all entries, also those that do not exist.

        It may if all entries exist, or if the rounding does not change those that do not
        (`Place.may_round_missing`): these are 0, infinite or NaN, or recorded nowhere. Events with
        `kept`, a sum so far, may not, since they would turn its -0 into +0.
        """
        if self.tile.is_complete(site):
            return True
        if kept is not None:
            return False
        return (
            self.tile.may_round_missing(site)
            and r.keeps_specials
            and not any(injection.site is site for injection in self.inject)
        )

    def _rounded_in_blocks(
        self, site: SiteBase, value: Array, block: BlockFormat, random: Array | None
    ) -> tuple[Array, Array]:
        """Return the value rounded in blocks, and the scale of each entry, with 1 in place of NaN.

        Entries that do not exist count as zeros of their block.
        """
        xp = self.ops.xp
        there = xp.where(self.tile.valid(site), value, 0.0)
        is_product = self.plan.multiplies_by_reciprocal and divides_in_binary32(block)
        round_blocks = (
            partial(round_blocks_by_reciprocal, self.ops) if is_product else self.ops.round_blocks
        )
        after, unit = round_blocks(there, block, self.plan.BLOCK_AXIS[site], random)
        return after, xp.where(xp.isnan(unit), 1.0, unit)

    def sum(
        self,
        site: SiteBase,
        a: Array | Operand,
        b: Array | Operand,
        init: Array | None = None,
        event: SiteBase | None = None,
    ) -> tuple[Array, Array | None]:
        """Return init + a @ b by the site's accumulator, before the event's own rounding.

        The second result is the same sum in binary64 if there is an Exact() injection at the event,
        else None. Both results are arguments of the event: `at(site, *at.sum(site, a, b))`.

        a, b   (T, K) and (K, N); the scale of an `Operand` has no part in the sum
        init   (T, N), the numbers that the sum starts from; zeros if None
        event  the site that rounds the sum, if it is not `site`
        """
        xp = self.ops.xp
        acc = self.plan.accumulator(site)
        left, right = operand_of(a), operand_of(b)
        a, b = left.numbers, right.numbers
        start = xp.zeros((a.shape[0], b.shape[1])) if init is None else init
        if self.ops.own_sum is not None:
            return self.ops.own_sum(acc, a, b, start), self._exact_sum(event or site, a, b, start)
        recorder = (
            self.recorder
            if self.recorder is not None and self.recorder.wants_steps(site, acc.order)
            else None
        )
        steps: list[tuple[Array, Array]] | None = None if recorder is None else []
        step = (
            self._stochastic_step(site, acc.step)
            if acc.step.mode is RoundingMode.STOCHASTIC
            else None
        )
        if acc.alignment is not None and (left.units is not None or right.units is not None):
            first, second = (
                factors_of(self.ops, acc.alignment, n, x.numbers, x.units)
                for n, x in enumerate((left.turned(self.ops), right))
            )
            total = add_aligned(self.ops, acc, first, second, self.ops.hidden(start), steps)
        else:
            total = accumulate(
                self.ops,
                acc,
                a.T,
                b,
                start,
                step,
                steps,
                ANY_PRODUCT if self.inject else self.plan.product_bits(site),
            )
        if recorder is not None:
            for before, after in steps or ():
                recorder.keep_steps(site, acc.order, before, after, acc.step.format)
        return total, self._exact_sum(event or site, a, b, start)

    def _exact_sum(self, event: SiteBase, a: Array, b: Array, init: Array) -> Array | None:
        """Return init + a @ b in binary64, or None without an Exact() injection at the event."""
        if not any(i.site is event and isinstance(i.what, Exact) for i in self.inject):
            return None
        return (
            accumulate(self.ops, _WHOLE, a.T, b, init)
            if self.ops.own_sum is None
            else self.ops.own_sum(_WHOLE, a, b, init)
        )

    def product(
        self, site: SiteBase, a: Array | Operand, b: Array | Operand, init: Array | None = None
    ) -> Array:
        """Return init + a @ b, added by the site's accumulator and rounded by its event.

        Where the event does not exist, the result is `init`.
        """
        return self(site, *self.sum(site, a, b, init), kept=init)

    def seen(self) -> Seen:
        """Return what was recorded of the tile so far, by name; empty without a recorder."""
        return {} if self.recorder is None else self.recorder.seen()

    def _random(self, site: SiteBase, seed: int, shape: tuple[int, ...], step: Index = 0) -> Array:
        """Return the random bits of the event, or, if step > 0, of that addition of its sum."""
        return random_bits(self.ops.xp, self.tile, site, seed, shape, step)

    def _stochastic_step(self, site: SiteBase, r: Rounding) -> Callable[[Index, Array], Array]:
        """Return the function (k, total) -> rounded total, k being the addition, counted from 0."""
        return lambda k, total: self.ops.round(
            total, r, self._random(site, r.seed, total.shape, k + 1)
        )


def _same(x: Array) -> Array:
    return x


STREAMS = 64  # of a head, before the later ones
LATER = 2**30  # first step of streams 64 and above; no sum has that many additions
# steps whose random bits belong to an injection, not to a rounding: the signs of noise, and which
# entries are in a share
NOISE, CHOSEN = 2**31, 2**31 + 1
TILE = 65536  # how far the column index of a repeated event moves on per tile


def random_bits(
    xp: ModuleType, tile: Place, site: SiteBase, seed: int, shape: tuple[int, ...], step: Index = 0
) -> Array:
    """Return the random integers in [0, 2^31) of a tile's event, an array of the given shape.

    They depend on the coordinates of an entry in its head, and not on the size of query tiles. For
    events of scores they do not depend on the size of key tiles either.

    seed  the seed of the rounding or injection
    step  which addition of a sum, counted from 1; 0 for the event itself, NOISE or CHOSEN for an
          injection
    """
    if site.stream >= STREAMS:
        step = step + LATER * (site.stream // STREAMS)
    rows, columns, repeated = tile.coordinates(xp, site, shape)
    if not site.has_columns:
        columns = columns + repeated * TILE
    return event_bits(
        xp, seed, tile.head * STREAMS + site.stream % STREAMS, rows, columns, step
    ).reshape(shape)


def _hit(
    ops: Ops,
    tile: Place,
    injection: InjectionBase,
    exact: Array,
    after: Array,
    f: Format,
    unit: Array | None,
) -> Array:
    """Return an event's result with the injection's error at every entry.

    exact   the values that an Exact() injection uses: those before the rounding, or sums in
            binary64
    after   the result, a number of the format f
    unit    the scale of each entry's block, or None where the site has no block format
    """
    what = injection.what
    match what:
        case AddUlps():
            return after + what.ulps * _ulp(ops, after, f, unit)
        case Noise():
            sign = (
                random_bits(ops.xp, tile, injection.site, what.seed, after.shape, NOISE) & 1
            ) * 2 - 1
            return after + sign.astype("float64") * what.ulps * _ulp(ops, after, f, unit)
        case Bias():
            return after + what.value
        case SetTo():
            return ops.xp.full_like(after, what.value)
        case FlipBit():
            element = after if unit is None else ops.divide(after, unit)
            flipped = decode(ops, encode(ops, element, f) ^ (1 << what.bit), f)
            return flipped if unit is None else ops.multiply(flipped, unit)
        case Exact():
            return exact


def _ulp(ops: Ops, x: Array, f: Format, unit: Array | None) -> Array:
    """Return the ulp at x; in a block it is the ulp of the element times the block's scale."""
    return (
        spacing(ops, x, f)
        if unit is None
        else ops.multiply(spacing(ops, ops.divide(x, unit), f), unit)
    )


def selected(
    xp: ModuleType, tile: Place, injection: InjectionBase, shape: tuple[int, ...]
) -> Array:
    """Return which entries of the tile's event, an array of bool, the injection selects."""
    rows, second, repeated = tile.coordinates(xp, injection.site, shape)
    chosen = [
        (injection.batch, tile.head // tile.heads),
        (injection.heads, tile.head % tile.heads),
        (injection.rows, rows),
        (injection.columns if injection.site.has_columns else injection.features, second),
        (injection.tiles, repeated),
    ]
    found = xp.ones(shape, dtype=bool)
    for where, index in chosen:
        if where is not None:
            found = found & _among(index, where)
    if injection.share is not None and injection.share < 1.0:
        most = round(injection.share * SHARES) - 1  # of the random integers that are in the share
        site, seed = injection.site, injection.seed
        found = found & (random_bits(xp, tile, site, seed, shape, CHOSEN) <= most)
    if injection.mask is not None:
        found = found & _of_mask(xp, tile, injection.mask, rows, second)
    return found


def _of_mask(xp: ModuleType, tile: Place, mask: Mask, rows: Array, second: Array) -> Array:
    """Return the mask at entries of a tile; those beyond its last row or column do not exist.

    An axis of one entry stands for all of them.
    """
    places = (tile.head // tile.heads, tile.head % tile.heads, rows, second)
    at = tuple(xp.minimum(place, size - 1) for place, size in zip(places, mask.shape, strict=True))
    return xp.asarray(mask.entries)[at]


def _among(index: Index, where: Where) -> Array:
    """Return whether each index is selected: an array of bool, or a bool if `index` is an int."""
    if isinstance(where, range):
        return (
            (index >= where.start)
            & (index < where.stop)
            & ((index - where.start) % where.step == 0)
        )
    found = index == -1
    for i in where:  # type: ignore[union-attr]  # an Injection has made a tuple of every int
        found = found | (index == i)
    return found
