"""Summaries of the events that fused kernels record, first by tile and then by head.

What kernels write needs much memory, so the own tiles are recorded and summarized in several parts,
one after the other. A program of a kernel owns one tile and walks over the tiles of the other side
(`record`).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.engines.kernels.by_row import LONG, Written, summarized_by_row
from roundscope.attention.engines.kernels.record import ONCE, Events, Kept, Recorder, Shape
from roundscope.attention.engines.kernels.tiles import seen_tiles
from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.trace.parts import flat_place
from roundscope.emu.backends.xla.ops import events_reduced, judged_events, row_stats
from roundscope.emu.stats.classify import COUNTS, SUMS, Judged, judged
from roundscope.events.recorder import Seen

BYTES = 2**32  # in memory at once, or more if one tile of every head has more


class _Total(NamedTuple):
    """What was recorded of some events of each site of a shape; all arrays have the same axes.

    counts  in the order of COUNTS
    sums    in the order of SUMS, then that of the errors in ulps counted away from zero
    peak    the largest error in ulps, -1 without events
    key     the number of the first event with this error: number of the tile, times the entries of
            a tile, plus the place in the tile. Tiles count as in the other engines
    """

    counts: list[Array]
    sums: list[Array]
    peak: Array
    key: Array


class _Found(NamedTuple):
    """What was recorded of the sites of one shape, of some own tiles.

    total   of all these tiles, (heads, sites)
    rows    the signed errors in ulps of each row, (heads, own tiles, sites, rows)
    away    the same, counted away from zero
    walked  the numbers of the tiles walked over, (heads, own tiles, tiles recorded)
    ones    by the name of a site: how many results of each row equal 1, (heads, own tiles, tiles
            recorded, rows)
    events  by the name of a site: its events before and after the rounding, which are 0 in tiles in
            which no query sees a key
    """

    total: _Total
    rows: Array
    away: Array
    walked: Array
    ones: dict[str, Array]
    events: dict[str, tuple[Array, ...]]


def summarized(
    recorder: Recorder, heads: int, kernel: Callable[[Array], Sequence[Kept]], on_gpu: bool
) -> Seen:
    """Return what was recorded of all heads, by name, as `kernel` records own tiles (heads, n).

    The result has what an `attention.trace.parts.Part` has in its fields `whole` and `tiles`
    together. The caller separates them: only single events are by tile.
    """
    every, (tiles, _) = recorder.setup.every, recorder.tiles
    grid = heads, 1
    own = jax.tree.leaves((recorder.shapes(grid), recorder.scratch(grid)))
    size_of_tiles = sum(math.prod(x.shape) * x.dtype.itemsize for x in own)
    wanted = sample.count(every, tiles)
    parts = -(-wanted // max(1, BYTES // size_of_tiles))
    size = -(-wanted // parts)

    def part(first: Array) -> tuple[Array, list[_Found]]:
        k = first + jnp.arange(size)
        number = recorder.heads(heads)[:, None]
        own = sample.chosen(every, tiles, number, jnp.minimum(k, wanted - 1))
        own = jnp.broadcast_to(own, (heads, size))
        kept = zip(recorder.sites, kernel(own), strict=True)
        return own, [_of_tiles(recorder, shape, x, own, k < wanted, on_gpu) for shape, x in kept]

    own, found = lax.map(part, jnp.arange(parts) * size)
    seen: Seen = {}
    for shape, of_parts in zip(recorder.sites, found, strict=True):
        seen |= _of_heads(recorder, shape, _parts_joined(own), of_parts)
    return seen


def tiles_of(x: Array, own: Array, rows: int) -> Array:
    """Return the tiles `own` (heads, n) of an array (heads or key heads, rows of a head, ...).

    The result is (heads, n * rows, ...), where `rows` is the number of rows of a tile.
    """
    heads, tiles = jnp.arange(own.shape[0])[:, None], x.reshape(x.shape[0], -1, rows, *x.shape[2:])
    return tiles[heads * x.shape[0] // own.shape[0], own].reshape(own.shape[0], -1, *x.shape[2:])


def _of_tiles(
    recorder: Recorder, shape: Shape, kept: Kept, own: Array, is_new: Array, on_gpu: bool
) -> _Found:
    """Return what was recorded of the sites of one shape, of the own tiles numbered `own`, (heads,
    n).

    is_new: (n,) of bool: whether a tile was not summarized before; other tiles do not count.
    """
    setup, record = recorder.setup, recorder.setup.record
    assert record is not None
    walked = _walked(recorder, shape, own)
    i, j = (walked, own[..., None]) if recorder.by_key else (own[..., None], walked)
    # whether some query of tile i sees a key of tile j, so that a kernel computes it
    is_met = jnp.asarray(j.astype(jnp.int32) < seen_tiles(setup, i.astype(jnp.int32)))
    is_written = jnp.broadcast_to(is_met, walked.shape)
    counted = (is_written & is_new[:, None])[..., None, None]
    if recorder.summarizes:
        rows, ones = _from_rows(recorder, shape, kept.rows)
    else:
        assert kept.events is not None
        rows, ones = _from_events(recorder, shape, kept.events, on_gpu)
    exists = counted & (rows.counts[0] > 0)
    tile = (i * setup.key_tiles + j)[..., None, None]
    of_rows = _Total(
        [jnp.where(counted, x, 0) for x in rows.counts],
        [jnp.where(exists, x, 0.0) for x in rows.sums],
        jnp.where(exists, rows.peak, -1.0),
        tile * (recorder.rows * shape.columns) + rows.key,
    )
    names = {str(site): n for n, site in enumerate(recorder.sites[shape])}
    written, there = recorder.written(shape), is_written[..., None, None]
    return _Found(
        _together(_together(of_rows, 4), 1, 2),
        of_rows.sums[SUMS.index("ulps")].sum(2),
        of_rows.sums[-1].sum(2),
        walked,
        {
            x: jnp.where(counted[..., 0], ones[:, :, :, names[x]], 0)
            for x in names
            if x in record.ones
        },
        {
            site: tuple(
                jnp.where(there, x[:, :, :, written.index(site)], 0.0) for x in kept.events[:2]
            )
            for site in written
            if kept.events is not None and site in record.events
        },
    )


def _together(x: _Total, *axes: int) -> _Total:
    """Return what was recorded of all events along some axes."""
    *added, peak, key = events_reduced([*x.counts, *x.sums], x.peak, x.key, axes)
    return _Total(added[: len(COUNTS)], added[len(COUNTS) :], peak, key)


def _from_rows(recorder: Recorder, shape: Shape, rows: Array) -> tuple[_Total, Array]:
    """Return what kernels summarized of rows, and how many results of each row equal 1.

    All arrays are (heads, own tiles, tiles recorded, sites, rows), and keys are places in the tile.
    Where there is no event, only the counts have a meaning.
    """
    own = Written(rows, len(recorder.sites[shape]), shape.columns == 1)
    peak, column = own.worst()
    place = jnp.arange(recorder.rows) * shape.columns + column.astype(jnp.int64)
    counts, sums = [own.flag(x) for x in COUNTS], [*(own.sum(x) for x in SUMS), own.away()]
    return _Total(counts, sums, peak, place), own.flag("ones")


def _from_events(
    recorder: Recorder, shape: Shape, events: Events, on_gpu: bool
) -> tuple[_Total, Array]:
    """Return what `_from_rows` returns, from the events that kernels wrote."""
    formats = [recorder.setup.plan[site].format for site in recorder.sites[shape]]
    if 1 < shape.columns < LONG:
        lead, rest = events.valid.shape[:3], events.before.shape[3:]
        x, y = (v.reshape(-1, *rest) for v in (events.before, events.after))
        valid = events.valid.reshape(-1, *rest[:-1])
        found = summarized_by_row(x, y, valid, formats, on_gpu)
        return _from_rows(recorder, shape, found.reshape(*lead, *found.shape[1:]))
    before, after, valid = events
    exists = jnp.arange(shape.columns, dtype=jnp.int32) < valid[..., None]
    each = Judged(*np.array([judged(f) for f in formats], np.int64).T[..., None, None])
    deep = any(f.is_deep for f in formats)
    flags, sums = judged_events(before, after, each, exists, has_deep=deep)
    ulps = sums[SUMS.index("ulps")]
    sums.append(jnp.where(before < 0.0, -ulps, ulps))
    size = jnp.where(exists, sums[SUMS.index("abs_ulps")], -1.0)
    place = jnp.arange(recorder.rows * shape.columns).reshape(-1, shape.columns)
    found_rows = row_stats(
        [flag & exists for flag in flags], sums, size, jnp.broadcast_to(place, before.shape)
    )
    return _Total(*found_rows), ((after == 1.0) & exists).sum(-1)


def _walked(recorder: Recorder, shape: Shape, own: Array) -> Array:
    """Return the numbers of the recorded tiles of each own tile, (heads, n, met)."""
    if shape.is_once:
        return jnp.zeros((*own.shape, 1), jnp.int64)
    number = recorder.number(recorder.heads(own.shape[0])[:, None], own)
    found = sample.chosen(
        recorder.setup.every, recorder.tiles[1], number[..., None], jnp.arange(shape.met)
    )
    return jnp.broadcast_to(found, (*own.shape, shape.met))


def _of_heads(recorder: Recorder, shape: Shape, own: Array, found: _Found) -> Seen:
    """Return what was recorded of heads at the sites of one shape, by name.

    own    the numbers of the own tiles, (heads, n)
    found  what was recorded, with an axis of parts first
    """
    setup, total = recorder.setup, _together(found.total, 0)
    counts, sums = jnp.stack(total.counts, -1), jnp.stack(total.sums[: len(SUMS)], -1)
    order, local = jnp.divmod(total.key, recorder.rows * shape.columns)
    i, j = jnp.divmod(order, setup.key_tiles)
    rows, away = (_of_all_tiles(recorder, _parts_joined(x)) for x in (found.rows, found.away))
    assert setup.record is not None
    seen: Seen = {}
    for n, site in enumerate(recorder.sites[shape]):
        place = flat_place(setup, site, i[:, n], j[:, n], local[:, n], shape.columns)
        place = jnp.where(total.peak[:, n] < 0.0, -1, place)
        peak = jnp.maximum(total.peak[:, n], 0.0)
        summary = counts[:, n], sums[:, n], peak, place
        seen[str(site)] = *summary, _joined(rows[:, :, n])
        if setup.record.away:
            seen[f"{site}.away"] = *summary, _joined(away[:, :, n])
    heads = jnp.arange(own.shape[0])[:, None, None]
    shape_of_ones = own.shape[0], 1 if shape.is_once else recorder.tiles[1], recorder.tiles[0]
    for name, x in found.ones.items():
        ones = jnp.zeros((*shape_of_ones, recorder.rows), jnp.int64)
        at = heads, _parts_joined(found.walked), own[..., None]
        seen[f"{name}.ones"] = _joined(ones.at[at].add(_parts_joined(x)))
    for name, events in found.events.items():
        joined = (_parts_joined(x)[:, : recorder.tiles[0]] for x in events)
        seen[f"{name}.events"] = tuple(_as_engines_have(recorder, Site[name], x) for x in joined)
    return seen


def _of_all_tiles(recorder: Recorder, rows: Array) -> Array:
    """Return sums of rows (heads, own tiles, sites, rows) of all tiles, 0 where none is known."""
    (tiles, _), number = recorder.tiles, recorder.heads(rows.shape[0])[:, None]
    at = sample.place(jnp, recorder.setup.every, tiles, number, jnp.arange(tiles))
    at = jnp.broadcast_to(at, (rows.shape[0], tiles))[..., None, None]
    return jnp.where(at < 0, 0.0, jnp.take_along_axis(rows, jnp.maximum(at, 0), 1))


def _parts_joined(x: Array) -> Array:
    """Return (parts, heads, own tiles, ...) as (heads, own tiles of all parts, ...)."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])


def _as_engines_have(recorder: Recorder, site: Site, x: Array) -> Array:
    """Return events of kernels in the shape of other engines: key tiles first in the backward.

    x: (heads, own tiles, tiles walked over, rows, columns).
    """
    x = x.squeeze(-1) if site.axes is Axes.T else x
    if site in ONCE:
        return x.reshape(x.shape[0], -1, *x.shape[4:])
    return x if recorder.by_key or site.stage == "forward" else x.swapaxes(1, 2)


def _joined(x: Array) -> Array:
    """Return (..., own tiles, rows of a tile) as (..., rows of a head)."""
    return x.reshape(*x.shape[:-2], -1)
