"""`RecordBase` says what a trace keeps besides its summaries; a `Recorder` collects it, by places.

A trace summarizes the rounding events of each site. A sample of the events may be enough for that:
the tiles of the sample are "looked at", and the other tiles are not (`attention.tiles.sample`).
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from roundscope.emu.backends.ops import Array, Event, Ops
from roundscope.emu.formats.format import Format
from roundscope.emu.numbers import check_array
from roundscope.emu.shown import shown
from roundscope.emu.sums.accumulator import Order
from roundscope.events.place import Place
from roundscope.events.sites import SiteBase

ERRORS = 3  # how many sums of `Ops.stats` (error, |error|, error^2) precede the sums in ulps

# The summary of one site's events in one tile or head: counts (by `COUNTS`), sums (by `SUMS`), the
# largest error in ulps, the flat index of its event, and the errors in ulps summed over each row.
Summary = tuple[Array, Array, Array, Array, Array]

# What was recorded, by name: under "<SITE>" and "<SITE>.step" a `Summary`, under these names with
# ".away" behind a `Summary` of |before| and its rounding, under "<SITE>.ones" an array of counts
# per row, under "<SITE>.hits" one of the entries of each row that injections hit, and under
# "<SITE>.events" the pair (before, after).
Seen = dict[str, Any]
NO_SUMMARIES = (".ones", ".hits", ".events")  # endings of the names of what is no `Summary`


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBase:
    """What a trace keeps besides the summary of every site; a record of an operation's own sites.

    Args:
        events: Sites whose single events are kept, each as its values before and after.
        ones: Sites for which the results that equal 1 are counted.
        steps: Sums of products whose single additions are summarized too.
        away: Whether the errors of each row are also counted away from zero.
    """

    events: tuple[Any, ...] = ()
    ones: tuple[Any, ...] = ()
    steps: tuple[Any, ...] = ()
    away: bool = False


def check_record(record: RecordBase, sites: type[SiteBase], products: tuple[SiteBase, ...]) -> None:
    """Put sites in the place of names in a record.

    Raises:
        TypeError: `events`, `ones` or `steps` is not a collection of sites.
        ValueError: A name is not a site, or `steps` names a site that is not a sum of products.
    """
    if not isinstance(record.away, bool):
        raise TypeError(f"away={shown(record.away)}: give True or False")
    for name in ("events", "ones", "steps"):
        object.__setattr__(record, name, _sites(sites, name, getattr(record, name)))
    if others := [site for site in record.steps if site not in products]:
        raise ValueError(
            f"steps={', '.join(others)}: steps are of sums of products: {' '.join(products)}"
        )


def _sites(sites: type[SiteBase], name: str, asked: Any) -> tuple[SiteBase, ...]:
    """Return the sites of the argument `name`, given as sites or their names.

    A string is refused although it is a collection of letters. This includes a single site, which
    is a string.
    """
    if isinstance(asked, (str, bytes)):
        names = tuple(asked.replace(",", " ").split()) if isinstance(asked, str) else ("P", "O")
        raise TypeError(f"{name}={shown(asked)}: give a tuple of sites, such as {shown(names)}")
    check_array(name, asked)
    try:
        given = tuple(asked)
    except TypeError:
        told = f"{name}={shown(asked)}: give a tuple of sites, such as ('P', 'O'), or () for none"
        raise TypeError(told) from None
    try:
        return tuple(map(sites.named, given))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(slots=True)
class Recorder:
    """A collector of the events of one tile; `seen` summarizes them.

    ops, tile   the array library and the tile whose events these are
    record      what is asked for
    kept        the events to summarize, each with its name, its site and the scales of its blocks,
                which are None where the site has no block format
    others      what is returned as it is, without a summary, by name: ones, single events, steps
    """

    ops: Ops
    tile: Place
    record: RecordBase
    kept: list[tuple[str, SiteBase, Event, Array | None]] = field(default_factory=list)
    others: Seen = field(default_factory=dict)

    def seen(self) -> Seen:
        """Return what was recorded, by name.

        For a site that rounds in blocks, the counts and the errors in ulps are those of the
        elements, which are the numbers divided by the scale of their block. The other errors are
        those of the numbers themselves.
        """
        in_blocks = [event for _, _, event, unit in self.kept if unit is not None]
        own = [
            event if unit is None else _in_units(self.ops, event, unit)
            for _, _, event, unit in self.kept
        ]
        if not own:
            return self.others
        found = self.ops.stats([*own, *in_blocks])
        summaries, numbers = found[: len(own)], iter(found[len(own) :])
        for n, (_, _, _, unit) in enumerate(self.kept):
            if unit is not None:
                counts, sums, *rest = summaries[n]
                summaries[n] = (
                    counts,
                    self.ops.xp.concatenate([next(numbers)[1][:ERRORS], sums[ERRORS:]]),
                    *rest,
                )
        names = [name for name, *_ in self.kept]
        of_all = [
            self._of_all_rows(site, event, summary)
            for (_, site, *_), event, summary in zip(self.kept, own, summaries, strict=True)
        ]
        return dict(zip(names, of_all, strict=True)) | self.others

    def keep(
        self, name: str, site: SiteBase, before: Array, after: Array, f: Format, unit: Array | None
    ) -> None:
        """Keep an event of a site under a name, to be summarized by `seen`.

        before, after  the numbers before and after the rounding, (rows, columns) or (rows,)
        f              the format of the numbers
        unit           the scale of each number's block, or None without blocks
        """
        x, y = (v if v.ndim == 2 else v[:, None] for v in (before, after))
        valid = self.ops.xp.broadcast_to(self._seen(site), x.shape)
        if site in self.record.ones:
            self.others[f"{name}.ones"] = ((y == 1.0) & valid).sum(axis=1)
        if site in self.record.events:
            self.others[f"{name}.events"] = (before, after)
        side = self.tile.looked_at(site)
        if side is not None and side.rows is not None:
            x, y, valid, unit = (v if v is None else v[side.rows] for v in (x, y, valid, unit))
        if self.ops.seen is not None:
            self.others[name] = self.ops.seen(name, (x, y, f, valid))
        else:
            self.kept.append((name, site, (x, y, f, valid), unit))
            if self.record.away:
                self.kept.append((f"{name}.away", site, (*self._positive(x, y), f, valid), unit))

    def keep_hits(self, site: SiteBase, hit: Array) -> None:
        """Count the entries of each row that exist and that an injection hit.

        They are counted in every tile, looked at or not. Nothing is counted inside a fused kernel.
        """
        if self.ops.seen is None:
            there = hit if hit.ndim == 2 else hit[:, None]
            self.others[f"{site}.hits"] = (there & self.tile.valid(site)).sum(axis=1)

    def _positive(self, before: Array, after: Array) -> tuple[Array, Array]:
        """Return an event with the signs of both numbers changed where the first is negative.

        The error of such an event is positive if it leads away from zero.
        """
        xp, is_negative = self.ops.xp, before < 0.0
        return xp.where(is_negative, -before, before), xp.where(is_negative, -after, after)

    def _seen(self, site: SiteBase) -> Array:
        """Return which entries of an event exist and are looked at, (rows, columns or 1)."""
        valid, side = self.tile.valid(site), self.tile.looked_at(site)
        return (
            valid
            if side is None
            else valid & (side.is_seen if side.rows is None else side.is_seen[:, None])
        )

    def _of_all_rows(self, site: SiteBase, event: Event, summary: Summary) -> Summary:
        """Return the summary of an event with row numbers and row sums of the whole tile.

        `summary` has only the rows that are looked at. In the result the index of the largest error
        counts all rows, and the sum of a row that is not looked at is 0.
        """
        side = self.tile.looked_at(site)
        if side is None or side.rows is None:
            return summary
        (counts, sums, peak, place, row), xp, width = summary, self.ops.xp, event[0].shape[1]
        place = xp.where(place < 0, place, side.rows[place // width] * width + place % width)
        return counts, sums, peak, place, side.spread(xp, row)

    def wants_steps(self, site: SiteBase, order: Order) -> bool:
        """Return whether the additions of the sum at a site are asked for and can be observed.

        The additions of a native sum (`Order.NATIVE`) cannot be observed, since the device makes
        them.
        """
        return site in self.record.steps and order is not Order.NATIVE

    def keep_steps(
        self, site: SiteBase, order: Order, before: Array, after: Array, f: Format
    ) -> None:
        """Add the additions of a sum at a site to the summary of the sum's earlier additions.

        before, after: the running totals before and after their rounding to the format f, shaped
        (products, rows, columns).
        """
        valid = self._seen(site)
        if before.shape[1] == valid.shape[0]:
            valid = self._valid_steps(site, order)
        else:  # each lane of a row is a row here
            before, after = (x.reshape(x.shape[0], valid.shape[0], -1) for x in (before, after))
        shape = before.shape[1:]
        valid = self.ops.xp.broadcast_to(valid, before.shape)
        x, y, there = (v.reshape(-1, shape[1]) for v in (before, after, valid))
        events = {f"{site}.step": (x, y)}
        if self.record.away:
            events[f"{site}.step.away"] = self._positive(x, y)
        found = self.ops.stats([(*event, f, there) for event in events.values()])
        for name, (*summary, rows) in zip(events, found, strict=True):
            new: Any = (*summary, rows.reshape(-1, shape[0]).sum(axis=0))
            self.others[name] = (
                merged(self.ops.xp, self.others[name], new) if name in self.others else new
            )

    def _valid_steps(self, site: SiteBase, order: Order) -> Array:
        """Return which additions exist and are looked at.

        The result broadcasts to (products, rows, columns).
        """
        exists, side = self.tile.valid_steps(site, order), self.tile.looked_at(site)
        if exists is None:
            return self._seen(site)[None]
        return exists if side is None else exists & side.is_seen


def merged(xp: ModuleType, a: Summary, b: Summary) -> Summary:
    """Return the summary of two sets of events, from the summaries of each."""
    return (
        a[0] + b[0],
        a[1] + b[1],
        xp.maximum(a[2], b[2]),
        xp.where(a[2] >= b[2], a[3], b[3]),
        a[4] + b[4],
    )


def _in_units(ops: Ops, event: Event, unit: Array) -> Event:
    """Return an event in blocks with its numbers divided by the scale of their block, `unit`."""
    x, y, f, valid = event
    return ops.divide(x, unit), ops.divide(y, unit), f, valid
