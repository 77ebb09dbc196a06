"""`Trace`: what was seen of a call's rounding events, per site, per head and per row."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.stats.summary import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What was seen.

    stats   per site (and per "<SITE>.step" asked for): `Stats` of shape (batch, heads)
    rows    per site: signed error in ulps, summed over each row's events, (batch, heads, queries or
            keys)
    ones    per site asked for: results that equal 1, counted per row and repeating tile, (batch,
            heads, tiles, queries or keys)
    events  per site asked for: (before, after), float64. One per score: (B, N, T, S). Repeated
            events keep the other tile index in front: one per row (B, N, tiles, T), per feature (B,
            N, tiles, T or S, H)
    """

    stats: dict[str, Stats]
    rows: dict[str, np.ndarray]
    events: dict[str, tuple[np.ndarray, np.ndarray]]
    ones: dict[str, np.ndarray] = field(default_factory=dict)

    def __str__(self) -> str:
        """A line for each event that occurred: how many, how many inexact, how far on the mean."""
        lines = [f"{'event':10} {'count':>10} {'inexact':>8} {'mean error, ulps':>17} {'z':>7}"]
        for name, stats in self.stats.items():
            total, rows = stats.total(), self.rows[name]
            if not int(total.n):
                continue
            # the signs of rows flipped by coins: errors inside a row may depend on each other
            null = float(np.sqrt(max(np.square(rows).sum(), float(total.sq_ulps))))
            z = float(rows.sum()) / null if null > 0.0 else 0.0
            inexact = f"{100 * float(total.inexact) / int(total.n):.1f} %"
            mean = f"{float(total.mean_ulps):+.5g}"
            lines.append(f"{name:10} {int(total.n):>10} {inexact:>8} {mean:>17} {z:>+7.1f}")
        return "\n".join(lines)

    def __add__(self, other: "Trace") -> "Trace":
        """The events of two different stages of one call, in one trace."""
        parts = {f.name: getattr(self, f.name) | getattr(other, f.name) for f in fields(self)}
        return Trace(**parts)

    def in_order(self) -> "Trace":
        """By site, as `Site` lists them, steps of a site's sum behind it."""
        place = {str(site): n for n, site in enumerate(Site)}

        def ordered(x: dict[str, Any]) -> dict[str, Any]:
            return {
                name: x[name]
                for name in sorted(x, key=lambda name: (place[str(site_of(name))], name))
            }

        return Trace(**{f.name: ordered(getattr(self, f.name)) for f in fields(self)})


class Part(NamedTuple):
    """What an engine saw in one stage of a call, by name; heads along the first axis.

    lead      (batch, heads), of query heads or of key heads
    number    heads that are numbered one after another: all, or those of a batch entry
    whole     of whole heads: events that are not repeated, or that an engine has added up
    tiles     of tiles, (heads, query tile, key tile, ...), in the backward (heads, key tile, query
              tile, ...)
    """

    lead: tuple[int, ...]
    number: int
    whole: dict[str, Any]
    tiles: dict[str, Any]
    backward: bool


def site_of(name: str) -> Site:
    """The site that a trace's key speaks of: "PV" and "PV.step" are both PV."""
    return Site[name.partition(".")[0]]


def trace_of(setup: Setup, parts: Sequence[Part], features: tuple[int, int]) -> Trace:
    """From all parts of a call; features: of q and k, and of v. What is on JAX's device is copied
    once, at the end.
    """
    if "jax" in sys.modules:
        from roundscope.attention.trace.from_device import fetched

        parts = fetched(setup, parts, features)
    found = (
        _of_whole(setup, p.whole, p.lead) + _of_tiles(setup, p.tiles, p.lead, features, p.backward)
        for p in parts
    )
    return sum(found, Trace(stats={}, rows={}, events={})).in_order()


def _of_whole(setup: Setup, seen: dict[str, Any], lead: tuple[int, ...]) -> Trace:
    """Of whole heads. Ones may be (heads, rows), or by the repeating tile (heads, tiles, rows)."""
    stats, rows, events, ones = {}, {}, {}, {}
    for name, value in seen.items():
        if name.endswith(".ones"):
            tiles = value.shape[1] if value.ndim == 3 else 1
            ones[name.removesuffix(".ones")] = np.asarray(value).reshape(*lead, tiles, -1)[
                ..., : _size(setup, name)
            ]
            continue
        if name.endswith(".events"):
            size = _size(setup, name)
            events[name.removesuffix(".events")] = tuple(
                np.asarray(v).reshape(*lead, *v.shape[1:])[:, :, :size] for v in value
            )
            continue
        counts, sums, peak, place, row = (np.asarray(v) for v in value)
        stats[name] = Stats.of(
            *(v.reshape(*lead, *v.shape[1:]) for v in (counts, sums, peak, place))
        )
        rows[name] = row.reshape(*lead, -1)[..., : _size(setup, name)]
    return Trace(stats=stats, rows=rows, events=events, ones=ones)  # type: ignore[arg-type]


def _of_tiles(
    setup: Setup,
    seen: dict[str, Any],
    lead: tuple[int, ...],
    features: tuple[int, int],
    backward: bool,
) -> Trace:
    events, ones, own = {}, {}, summaries(seen)
    for name in (name for name in seen if name not in own):
        bare, _, kind = name.rpartition(".")
        if kind == "ones":
            v = _by_row(site_of(bare), seen[name].swapaxes(1, 2) if backward else seen[name])
            ones[bare] = v.reshape(*lead, *v.shape[1:])[..., : _size(setup, name)]
        else:
            before, after = (
                _gather(setup, site_of(bare), v.swapaxes(1, 2) if backward else v, lead)
                for v in seen[name]
            )
            events[bare] = (before, after)
    of = {name: (site_of(name), features_of(site_of(name), features)) for name in own}
    whole = {name: tiles_added(setup, *of[name], backward, own[name]) for name in own}
    return _of_whole(setup, whole, lead) + Trace(stats={}, rows={}, events=events, ones=ones)


def summaries(seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen, without single events and ones."""
    return {name: value for name, value in seen.items() if not name.endswith((".ones", ".events"))}


def features_of(site: Site, features: tuple[int, int]) -> int:
    """Of the events of a site that has them, repeated by tile; features: of q and k, and of v."""
    return features[0] if site in (Site.DQ, Site.DK) else features[1]


def tiles_added(
    setup: Setup, site: Site, features: int, backward: bool, seen: Any
) -> tuple[Any, ...]:
    """Summaries of tiles (counts, sums, peak, place, sums of rows) as those of heads. NumPy or
    JAX.
    """
    counts, sums, peak, place, row = (v.swapaxes(1, 2) for v in seen) if backward else seen
    place = counts.__array_namespace__().where(
        counts[..., 0] > 0, place, -1
    )  # a tile that was left out has no place
    return (
        counts.sum((1, 2)),
        sums.sum((1, 2)),
        *_worst(setup, site, peak, place, features),
        _by_row(site, row).sum(1),
    )


def _size(setup: Setup, name: str) -> int:
    """Rows of a head: queries, or keys."""
    return setup.keys if site_of(name).axes is Axes.SH else setup.queries


def _by_row(site: Site, row: Any) -> Any:
    """(heads, query tile, key tile, rows of a tile) as (heads, repeating tiles, rows of a head in
    whole tiles).
    """
    v = row if site.axes is Axes.SH else row.swapaxes(1, 2)
    return v.reshape(*v.shape[:2], -1)


def _worst(setup: Setup, site: Site, peak: Any, place: Any, features: int) -> tuple[Any, Any]:
    """The largest error of each head and the flat (row, column) index of its event in the whole
    head.
    """
    xp = peak.__array_namespace__()
    heads, _, nk = peak.shape
    tile = xp.where(place < 0, -1.0, peak).reshape(heads, -1).argmax(1)
    i, j = xp.divmod(tile, nk)
    here = xp.arange(heads)
    local = place.reshape(heads, -1)[here, tile]
    return peak.reshape(heads, -1)[here, tile], xp.where(
        local < 0, -1, flat_place(setup, site, i, j, local, features)
    )


def flat_place(setup: Setup, site: Site, i: Any, j: Any, local: Any, features: int) -> Any:
    """The flat (row, column) index in a head of an event of tile (i, j), from that in the tile."""
    if site.axes is Axes.TS:
        return (
            (i * setup.block_q + local // setup.block_k) * setup.keys
            + j * setup.block_k
            + local % setup.block_k
        )
    first = j * setup.block_k if site.axes is Axes.SH else i * setup.block_q
    return first * (1 if site.axes is Axes.T else features) + local


def _gather(setup: Setup, site: Site, v: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
    """(heads, query tile, key tile, ...) of one site as whole arrays."""
    _, nq, nk = v.shape[:3]
    if site.axes is Axes.TS:
        whole = v.transpose(0, 1, 3, 2, 4).reshape(*lead, nq * setup.block_q, nk * setup.block_k)
        return whole[:, :, : setup.queries, : setup.keys]
    if site.axes is Axes.SH:
        whole = v.reshape(*lead, nq, nk * setup.block_k, *v.shape[4:])
        return whole[:, :, :, : setup.keys]
    whole = v.swapaxes(1, 2).reshape(*lead, nk, nq * setup.block_q, *v.shape[4:])
    return whole[:, :, :, : setup.queries]
