"""The hook `at`: rounds, perturbs if asked, records if asked. One `Events` per tile; the algorithm only calls it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from roundscope.attention.injection import (
    AddUlps,
    Bias,
    Exact,
    FlipBit,
    Injection,
    Noise,
    SetTo,
    Where,
)
from roundscope.attention.plan import Plan, site_named
from roundscope.attention.sites import BLOCK_AXIS, PRODUCTS, RESCALES, Axes, Site
from roundscope.attention.tiles.sample import Side
from roundscope.emu.backends.ops import ANY_PRODUCT, Array, Event, Ops
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.formats.codes import decode, encode
from roundscope.emu.formats.format import Format
from roundscope.emu.formats.spacing import spacing
from roundscope.emu.rounding.modes import BINARY64, Rounding, RoundingMode
from roundscope.emu.rounding.random import event_bits
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate

STREAMS = 64  # random streams of a head
NOISE = 2**31  # the step whose random bits are an injection's, not a rounding's
_WHOLE = Accumulator(step=BINARY64)
ERRORS = 3  # of the sums of `Ops.stats`: error, its size and square, before those in ulps
STEPS_OF_SCORES = (Site.PV, Site.ROWSUM, Site.DQ, Site.DV, Site.DK)  # sums over scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a trace keeps beside the summary of every site.

    events  sites whose every (before, after) is kept
    ones    sites whose results that equal 1 are counted, per row and tile
    steps   sums of products whose single additions are summarised, as site "<SITE>.step"
    every   1 for all events, or n: a sample of one tile in n^2, of each head every n-th tile of queries (of what dK and dV add up: of keys)
            and with it every n-th tile of the other side (`attention.tiles.sample`); of other events the rows of such tiles.
            Summaries, ones and steps speak of the sample; `events` are whole. `Stats.n` says how large it was: under a mask, causal
            too, tiles hold fewer events or none, and a single head's n may be 0. On every engine the same tiles. Fused kernels
            walk once more over what one query tile in n meets, and write one tile in n^2

    Sites may be given by name. Raises TypeError or ValueError for what is no tuple of sites, and for steps of what is no sum of products.
    """

    events: tuple[Site, ...] = ()
    ones: tuple[Site, ...] = ()
    steps: tuple[Site, ...] = ()
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every={self.every}: a whole number, one tile in so many, both ways; 1 for all events")
        for name in ("events", "ones", "steps"):
            object.__setattr__(self, name, _sites(name, getattr(self, name)))
        if others := [site for site in self.steps if site not in PRODUCTS]:
            raise ValueError(f"steps={', '.join(others)}: steps are of sums of products: {' '.join(PRODUCTS)}")


def _sites(name: str, asked: Any) -> tuple[Site, ...]:
    """Sites, from sites or their names."""
    if isinstance(asked, str) or not isinstance(asked, Iterable):  # a Site is a str
        raise TypeError(f"{name}={asked!r}: give a tuple of sites, as (Site.P, Site.O)")
    try:
        return tuple(map(site_named, asked))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Where a tile stands, and which of its entries exist.

    head       flat index batch * heads + head;  heads: per batch entry
    i, j       index of the query tile and key tile;  row0, key0: their first query and key
    mask       (queries, keys): the scores that exist
    rows       (queries,): rows that have had a key by now;  rescaled: rows that had one before this tile
    keys       (keys,): keys that some query of this tile sees
    sample     what a trace looks at, of queries and of keys; None for all
    is_whole   all scores exist
    is_unrecorded    events may happen where none exists, if they leave what is there as it is: nobody counts them
    """

    head: Any
    heads: int
    i: Any
    j: Any
    row0: Any
    key0: Any
    mask: Array
    rows: Array
    rescaled: Array
    keys: Array
    sample: tuple[Side, Side] | None = None
    is_whole: bool = False
    is_unrecorded: bool = False

    def valid(self, site: Site) -> Array:
        """Which entries of an event exist, as a (rows, columns or 1) array."""
        if site.axes is Axes.TS:
            return self.mask
        if site.axes is Axes.SH:
            return self.keys[:, None]
        return (self.rescaled if site in RESCALES else self.rows)[:, None]

    def looked_at(self, site: Site) -> Side | None:
        """What a trace looks at of an event; None for all of it."""
        return None if self.sample is None else self.sample[site.axes is Axes.SH]


@dataclass(frozen=True, slots=True)
class Events:
    """`at(site, value)`: the event of one site over one tile.

    kept    what `seen` summarises: name, event, scale of its blocks;  others: what it hands on as it is
    """

    ops: Ops
    plan: Plan
    tile: Tile
    inject: tuple[Injection, ...]
    record: Record | None
    kept: list[tuple[str, Event, Array | None]] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)

    def __call__(self, site: Site, value: Array, exact: Array | None = None, kept: Array | None = None) -> Array:
        """The value rounded by the plan, perturbed by the injections at this site, recorded if asked.

        exact  what Exact() puts in its place, if that is not the value itself
        kept   what stays where the event does not exist, if that is not the value itself
        """
        r = self.plan[site]
        random = self._random(site, r.seed, value) if r.mode is RoundingMode.STOCHASTIC else None
        block, unit = self.plan.block(site), None
        if block is None:
            after = self.ops.round(value, r, random)
        else:
            after, unit = self._rounded_in_blocks(site, value, block, random)
        for injection in self.inject:
            if injection.site is site:
                hit = self._inject(injection, value if exact is None else exact, after, r.format, unit)
                after = self.ops.xp.where(self._selected(injection, after), hit, after)
        if not self._may_happen_everywhere(site, r, kept):
            valid = self.tile.valid(site) if value.ndim == 2 else self.tile.valid(site).squeeze(1)
            after = self.ops.xp.where(valid, after, value if kept is None else kept)
        self._keep(str(site), site, value, after, r.format, unit)
        return after

    def _may_happen_everywhere(self, site: Site, r: Rounding, kept: Array | None) -> bool:
        """Whether all of the event exists, or it does nothing elsewhere: there it meets 0, -inf or NaN, or scores that are masked later.
        But what it meets of DP and DPD is multiplied by P = 0, and an infinity would become NaN; and a sum so far of -0 would become +0.
        """
        if self.tile.is_whole and site not in RESCALES:
            return True
        if kept is not None:
            return False
        disturbed = site in (Site.DP, Site.DPD) or any(injection.site is site for injection in self.inject)
        return self.tile.is_unrecorded and r.keeps_specials and not disturbed

    def _rounded_in_blocks(self, site: Site, value: Array, block: BlockFormat, random: Array | None) -> tuple[Array, Array]:
        """(the value rounded, the scale of each entry, 1 where it is NaN). Entries that do not exist are zeros of their block."""
        xp = self.ops.xp
        there = xp.where(self.tile.valid(site), value, 0.0)
        after, unit = self.ops.round_blocks(there, block, BLOCK_AXIS[site], random)
        return after, xp.where(xp.isnan(unit), 1.0, unit)

    def sum(self, site: Site, a: Array, b: Array, init: Array | None = None, event: Site | None = None) -> tuple[Array, Array | None]:
        """init + a @ b by the site's accumulator, and the binary64 sum if an injection at `event` wants it.

        a: (T, K), b: (K, N); event: the site at which the sum rounds, if not this one.
        """
        xp = self.ops.xp
        acc = self.plan.accumulator(site)
        start = xp.zeros((a.shape[0], b.shape[1])) if init is None else init
        if self.ops.own_sum is not None:
            return self.ops.own_sum(acc, a, b, start), self._exact_sum(event or site, a, b, start)
        keep_steps = self.record is not None and site in self.record.steps and acc.order is not Order.NATIVE
        steps: list[Any] | None = [] if keep_steps else None
        step = self._stochastic_step(site, acc.step) if acc.step.mode is RoundingMode.STOCHASTIC else None
        total = accumulate(self.ops, acc, a.T, b, start, step, steps, ANY_PRODUCT if self.inject else self.plan.product_bits(site))
        for before, after in steps or ():
            self._keep_steps(site, before, after, acc.step.format)
        return total, self._exact_sum(event or site, a, b, start)

    def _exact_sum(self, event: Site, a: Array, b: Array, init: Array) -> Array | None:
        """init + a @ b in binary64 if an injection at the event wants it."""
        if not any(i.site is event and isinstance(i.what, Exact) for i in self.inject):
            return None
        return accumulate(self.ops, _WHOLE, a.T, b, init) if self.ops.own_sum is None else self.ops.own_sum(_WHOLE, a, b, init)

    def product(self, site: Site, a: Array, b: Array, init: Array | None = None) -> Array:
        """The event of a sum of products: init + a @ b, added up and then rounded."""
        return self(site, *self.sum(site, a, b, init), kept=init)

    def _coordinates(self, site: Site, value: Array) -> tuple[Array, Array, Any]:
        """Global row and second index of every entry (broadcastable), and the index of the repeating tile."""
        xp, tile, axes = self.ops.xp, self.tile, site.axes
        first = (tile.key0 if axes is Axes.SH else tile.row0) + xp.arange(value.shape[0])
        second = xp.arange(value.shape[1] if value.ndim == 2 else 1)
        if axes is Axes.TS:
            second = tile.key0 + second
        first = first[:, None] if value.ndim == 2 else first
        return first, second, tile.i if axes is Axes.SH else tile.j

    def _random(self, site: Site, seed: int, value: Array, step: Any = 0) -> Array:
        rows, columns, tile = self._coordinates(site, value)
        if site.axes is not Axes.TS:
            columns = columns + tile * 65536
        stream = self.tile.head * STREAMS + site.stream
        return event_bits(self.ops.xp, seed, stream, rows, columns, step).reshape(value.shape)

    def _stochastic_step(self, site: Site, r: Rounding) -> Any:
        return lambda k, total: self.ops.round(total, r, self._random(site, r.seed, total, k + 1))

    def _selected(self, injection: Injection, value: Array) -> Array:
        rows, second, tile = self._coordinates(injection.site, value)
        is_score = injection.site.axes is Axes.TS
        chosen = [
            (injection.batch, self.tile.head // self.tile.heads),
            (injection.heads, self.tile.head % self.tile.heads),
            (injection.rows, rows),
            (injection.columns if is_score else injection.features, second),
            (injection.tiles, tile),
        ]
        selected = self.ops.xp.ones(value.shape, dtype=bool)
        for where, index in chosen:
            if where is not None:
                selected = selected & _among(index, where)
        return selected

    def _inject(self, injection: Injection, exact: Array, after: Array, f: Format, unit: Array | None) -> Array:
        xp, what = self.ops.xp, injection.what
        match what:
            case AddUlps():
                return after + what.ulps * self._ulp(after, f, unit)
            case Noise():
                sign = (self._random(injection.site, what.seed, after, NOISE) & 1) * 2 - 1
                return after + sign.astype("float64") * what.ulps * self._ulp(after, f, unit)
            case Bias():
                return after + what.value
            case SetTo():
                return xp.full_like(after, what.value)
            case FlipBit():
                element = after if unit is None else self.ops.divide(after, unit)
                flipped = decode(self.ops, encode(self.ops, element, f) ^ (1 << what.bit), f)
                return flipped if unit is None else self.ops.multiply(flipped, unit)
            case Exact():
                return exact
        raise TypeError(f"what={what!r}: not an injection")

    def _ulp(self, x: Array, f: Format, unit: Array | None) -> Array:
        """An ulp at x; in a block, of its element times the scale."""
        return spacing(self.ops, x, f) if unit is None else self.ops.multiply(spacing(self.ops, self.ops.divide(x, unit), f), unit)

    def seen(self) -> dict[str, Any]:
        """What was recorded, by name. Of a rounding in blocks: counts and ulps of the elements, errors of the numbers."""
        in_blocks = [event for _, event, unit in self.kept if unit is not None]
        own = [event if unit is None else _in_units(self.ops, event, unit) for _, event, unit in self.kept]
        found = self.ops.stats([*own, *in_blocks])
        summaries, numbers = found[: len(own)], iter(found[len(own) :])
        for n, (_, _, unit) in enumerate(self.kept):
            if unit is not None:
                counts, sums, *rest = summaries[n]
                summaries[n] = counts, self.ops.xp.concatenate([next(numbers)[1][:ERRORS], sums[ERRORS:]]), *rest
        names = [name for name, *_ in self.kept]
        of_all = [self._of_all_rows(*x) for x in zip(names, own, summaries, strict=True)]
        return dict(zip(names, of_all, strict=True)) | self.others

    def _keep(self, name: str, site: Site, before: Array, after: Array, f: Format, unit: Array | None) -> None:
        if self.record is None:
            return
        x, y = (v if v.ndim == 2 else v[:, None] for v in (before, after))
        valid = self.ops.xp.broadcast_to(self._seen(site), x.shape)
        if site in self.record.ones:
            self.others[f"{name}.ones"] = ((y == 1.0) & valid).sum(axis=1)
        if site in self.record.events:
            self.others[f"{name}.events"] = (before, after)
        side = self.tile.looked_at(site)
        if side is not None and side.rows is not None:
            x, y, valid, unit = (v if v is None else v[side.rows] for v in (x, y, valid, unit))
        self.kept.append((name, (x, y, f, valid), unit))

    def _seen(self, site: Site) -> Array:
        """Which entries of an event exist and are looked at."""
        valid, side = self.tile.valid(site), self.tile.looked_at(site)
        return valid if side is None else valid & (side.is_seen if side.rows is None else side.is_seen[:, None])

    def _of_all_rows(self, name: str, event: Event, summary: tuple[Array, ...]) -> tuple[Array, ...]:
        """A summary of the rows looked at as one of all of them."""
        side = self.tile.looked_at(Site[name])
        if side is None or side.rows is None:
            return summary
        (counts, sums, peak, place, row), xp, width = summary, self.ops.xp, event[0].shape[1]
        place = xp.where(place < 0, place, side.rows[place // width] * width + place % width)
        return counts, sums, peak, place, side.spread(xp, row)

    def _keep_steps(self, site: Site, before: Array, after: Array, f: Format) -> None:
        shape = before.shape[1:]
        valid = self.ops.xp.broadcast_to(self._valid_steps(site), before.shape)
        flat = [v.reshape(-1, shape[1]) for v in (before, after, valid)]
        ((counts, sums, peak, place, rows),) = self.ops.stats([(flat[0], flat[1], f, flat[2])])
        rows = rows.reshape(-1, shape[0]).sum(axis=0)
        new = (counts, sums, peak, place, rows)
        name = f"{site}.step"
        self.others[name] = _merged(self.ops.xp, self.others[name], new) if name in self.others else new

    def _valid_steps(self, site: Site) -> Array:
        """Which additions exist and are looked at, broadcastable to (products, rows, columns): a masked score adds nothing."""
        if self.plan.accumulator(site).order is not Order.ASCENDING or site not in STEPS_OF_SCORES:
            return self._seen(site)[None]
        mask, side = self.tile.mask, self.tile.looked_at(site)
        exists = (mask if site.axes is Axes.SH else mask.T)[:, :, None]
        return exists if side is None else exists & side.is_seen


def _merged(xp: Any, a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1], xp.maximum(a[2], b[2]), xp.where(a[2] >= b[2], a[3], b[3]), a[4] + b[4]


def _in_units(ops: Ops, event: Event, unit: Array) -> Event:
    """The elements of an event in blocks, V / (T X) rounded to P."""
    x, y, f, valid = event
    return ops.divide(x, unit), ops.divide(y, unit), f, valid


def _among(index: Any, where: Where) -> Any:
    """Whether each index is in the selection."""
    if isinstance(where, range):
        return (index >= where.start) & (index < where.stop) & ((index - where.start) % where.step == 0)
    found = index == -1
    for i in where or ():  # type: ignore[union-attr]
        found = found | (index == i)
    return found
