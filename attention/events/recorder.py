"""What a trace keeps of a tile's events: `Record` asks for it, a `Recorder` collects it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from roundscope.attention.sites import PRODUCTS, Axes, Site, site_named
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array, Event, Ops
from roundscope.emu.formats.format import Format
from roundscope.emu.sums.accumulator import Order

ERRORS = 3  # of the sums of `Ops.stats`: error, its size and square, before those in ulps
STEPS_OF_SCORES = (Site.PV, Site.ROWSUM, Site.DQ, Site.DV, Site.DK)  # sums over scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a trace keeps beside the summary of every site.

    events  sites whose every (before, after) is kept
    ones    sites whose results that equal 1 are counted, per row and tile
    steps   sums of products whose single additions are summarised, as site "<SITE>.step"
    every   1 for all events, or n: a sample of one tile in n^2, of each head every n-th tile of
            queries (of what dK and dV add up: of keys) and with it every n-th tile of the other
            side (`attention.tiles.sample`); of other events the rows of such tiles. Summaries, ones
            and steps speak of the sample; `events` are whole. `Stats.n` says how large it was:
            under a mask, causal too, tiles hold fewer events or none, and a single head's n may be
            0. On every engine the same tiles. Fused kernels walk once more over what one query tile
            in n meets, and write one tile in n^2

    Sites may be given by name. Raises TypeError or ValueError for what is no tuple of sites, and
    for steps of what is no sum of products.
    """

    events: tuple[Site, ...] = ()
    ones: tuple[Site, ...] = ()
    steps: tuple[Site, ...] = ()
    every: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(
                f"every={self.every}: a whole number, one tile in so many, both ways; 1 for all"
                " events"
            )
        for name in ("events", "ones", "steps"):
            object.__setattr__(self, name, _sites(name, getattr(self, name)))
        if others := [site for site in self.steps if site not in PRODUCTS]:
            raise ValueError(
                f"steps={', '.join(others)}: steps are of sums of products: {' '.join(PRODUCTS)}"
            )


def _sites(name: str, asked: Any) -> tuple[Site, ...]:
    """Sites, from sites or their names."""
    if isinstance(asked, str) or not isinstance(asked, Iterable):  # a Site is a str
        raise TypeError(f"{name}={asked!r}: give a tuple of sites, as (Site.P, Site.O)")
    try:
        return tuple(map(site_named, asked))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(slots=True)
class Recorder:
    """Collects the events of one tile; `seen` summarises them.

    kept    events to summarise: name, event, scale of its blocks;  others: what is handed on as it
            is
    """

    ops: Ops
    tile: Tile
    record: Record
    kept: list[tuple[str, Event, Array | None]] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)

    def seen(self) -> dict[str, Any]:
        """What was recorded, by name.

        Of a rounding in blocks: counts and ulps of the elements, errors of the numbers.
        """
        in_blocks = [event for _, event, unit in self.kept if unit is not None]
        own = [
            event if unit is None else _in_units(self.ops, event, unit)
            for _, event, unit in self.kept
        ]
        found = self.ops.stats([*own, *in_blocks])
        summaries, numbers = found[: len(own)], iter(found[len(own) :])
        for n, (_, _, unit) in enumerate(self.kept):
            if unit is not None:
                counts, sums, *rest = summaries[n]
                summaries[n] = (
                    counts,
                    self.ops.xp.concatenate([next(numbers)[1][:ERRORS], sums[ERRORS:]]),
                    *rest,
                )
        names = [name for name, *_ in self.kept]
        of_all = [self._of_all_rows(*x) for x in zip(names, own, summaries, strict=True)]
        return dict(zip(names, of_all, strict=True)) | self.others

    def keep(
        self, name: str, site: Site, before: Array, after: Array, f: Format, unit: Array | None
    ) -> None:
        """An event: its numbers before and after, their format and, of blocks, their scales."""
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
        return (
            valid
            if side is None
            else valid & (side.is_seen if side.rows is None else side.is_seen[:, None])
        )

    def _of_all_rows(
        self, name: str, event: Event, summary: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """A summary of the rows looked at as one of all of them."""
        side = self.tile.looked_at(Site[name])
        if side is None or side.rows is None:
            return summary
        (counts, sums, peak, place, row), xp, width = summary, self.ops.xp, event[0].shape[1]
        place = xp.where(place < 0, place, side.rows[place // width] * width + place % width)
        return counts, sums, peak, place, side.spread(xp, row)

    def wants_steps(self, site: Site, order: Order) -> bool:
        """Whether the additions of the sum at a site are asked for, and are not the device's
        own.
        """
        return site in self.record.steps and order is not Order.NATIVE

    def keep_steps(self, site: Site, order: Order, before: Array, after: Array, f: Format) -> None:
        """Additions of the sum at a site, (products, rows, columns)."""
        valid = self._seen(site)
        if before.shape[1] == valid.shape[0]:
            valid = self._valid_steps(site, order)
        else:  # lanes of a row, which stand as rows of their own
            before, after = (x.reshape(x.shape[0], valid.shape[0], -1) for x in (before, after))
        shape = before.shape[1:]
        valid = self.ops.xp.broadcast_to(valid, before.shape)
        flat = [v.reshape(-1, shape[1]) for v in (before, after, valid)]
        ((counts, sums, peak, place, rows),) = self.ops.stats([(flat[0], flat[1], f, flat[2])])
        rows = rows.reshape(-1, shape[0]).sum(axis=0)
        new = (counts, sums, peak, place, rows)
        name = f"{site}.step"
        self.others[name] = (
            merged(self.ops.xp, self.others[name], new) if name in self.others else new
        )

    def _valid_steps(self, site: Site, order: Order) -> Array:
        """Which additions exist and are looked at, broadcastable to (products, rows, columns): a
        masked score adds nothing.
        """
        if order is not Order.ASCENDING or site not in STEPS_OF_SCORES:
            return self._seen(site)[None]
        mask, side = self.tile.mask, self.tile.looked_at(site)
        exists = (mask if site.axes is Axes.SH else mask.T)[:, :, None]
        return exists if side is None else exists & side.is_seen


def merged(xp: Any, a: Any, b: Any) -> Any:
    """Two summaries as one: counts, sums, the largest error and its place, sums of rows."""
    return (
        a[0] + b[0],
        a[1] + b[1],
        xp.maximum(a[2], b[2]),
        xp.where(a[2] >= b[2], a[3], b[3]),
        a[4] + b[4],
    )


def _in_units(ops: Ops, event: Event, unit: Array) -> Event:
    """The elements of an event in blocks, V / (T X) rounded to P."""
    x, y, f, valid = event
    return ops.divide(x, unit), ops.divide(y, unit), f, valid
