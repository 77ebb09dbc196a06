"""Summaries of the events that fused kernels record, first by tile and then by head.

What kernels write needs much memory, so the own tiles are recorded and summarized in several parts,
one after the other. A program of a kernel owns one tile and walks over the tiles of the other side
(`record`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.engines.kernels.by_row import Written
from roundscope.attention.engines.kernels.record import ONCE, Kept, Recorder, Shape
from roundscope.attention.engines.kernels.tiles import seen_tiles
from roundscope.attention.events.recorder import Seen
from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.summary import flat_place
from roundscope.emu.backends.xla.ops import judged_stats
from roundscope.emu.stats.classify import COUNTS, SUMS, Judged, judged

BYTES = 2**32  # in memory at once, or more if one tile of every head has more
LAST = np.iinfo(np.int64).max


class _Tiles(NamedTuple):
    """The summaries of a site by tile: the fields of `events.recorder.Summary`, and an order.

    peak   the largest error in ulps, -1 without events
    order  the position of the tile in the other engines; of tiles with equal peaks the first counts
    place  the flat index of the peak in its head
    """

    counts: Array
    sums: Array
    peak: Array
    order: Array
    place: Array
    rows: Array


class _Ones(NamedTuple):
    """The ones of a site by tile.

    ones    how many results of each row equal 1
    walked  the number of the tile walked over
    """

    ones: Array
    walked: Array


class _Events(NamedTuple):
    """The events of a site by tile, before and after the rounding.

    They are 0 in tiles in which no query sees a key.
    """

    before: Array
    after: Array


def summarized(recorder: Recorder, heads: int, kernel: Callable[[Array], Sequence[Kept]]) -> Seen:
    """Return what was recorded of all heads, by name.

    The result has what an `attention.trace.summary.Part` has in its fields `whole` and `tiles`
    together. The caller separates them: only single events are by tile.

    kernel: a function from the numbers of own tiles (heads, n) to the events that it recorded.
    """
    every, (tiles, _) = recorder.setup.every, recorder.tiles
    grid = heads, 1
    own = jax.tree.leaves((recorder.shapes(grid), recorder.scratch(grid)))
    size_of_tiles = sum(math.prod(x.shape) * x.dtype.itemsize for x in own)
    wanted = sample.count(every, tiles)
    parts = -(-wanted // max(1, BYTES // size_of_tiles))
    size = -(-wanted // parts)

    def part(first: Array) -> Any:
        k = first + jnp.arange(size)
        number = recorder.heads(heads)[:, None]
        own = sample.chosen(every, tiles, number, jnp.minimum(k, wanted - 1))
        own = jnp.broadcast_to(own, (heads, size))
        kept = zip(recorder.sites.items(), kernel(own), strict=True)
        found = [_of_tiles(recorder, *sites, x, own, k < wanted) for sites, x in kept]
        return {name: x for part in found for name, x in part.items()}, own

    found = lax.map(part, jnp.arange(parts) * size)
    return _of_heads(
        recorder,
        *jax.tree.map(
            lambda x: jnp.moveaxis(x, 0, 1).reshape(heads, parts * size, *x.shape[3:]), found
        ),
    )


def tiles_of(x: Array, own: Array, rows: int) -> Array:
    """Return the tiles `own` (heads, n) of an array (heads or key heads, rows of a head, ...).

    The result is (heads, n * rows, ...), where `rows` is the number of rows of a tile.
    """
    heads, tiles = jnp.arange(own.shape[0])[:, None], x.reshape(x.shape[0], -1, rows, *x.shape[2:])
    return tiles[heads * x.shape[0] // own.shape[0], own].reshape(own.shape[0], -1, *x.shape[2:])


def _of_tiles(
    recorder: Recorder, shape: Shape, sites: Sequence[Site], kept: Kept, own: Array, is_new: Array
) -> dict[str, Any]:
    """Return `_Tiles` for each site of one shape, and `_Ones` and `_Events` if they are recorded.

    own     the numbers of the tiles that programs owned, (heads, n)
    is_new  (n,) of bool: whether a tile was not summarized before; other tiles do not count
    """
    setup = recorder.setup
    assert setup.record is not None
    walked = [_walked(recorder, site, own, shape.met) for site in sites]
    each = [(n, own[..., None]) if recorder.by_key else (own[..., None], n) for n in walked]
    is_met = [_is_met(setup, i.astype(jnp.int32), j.astype(jnp.int32)) for i, j in each]
    is_written = jnp.broadcast_to(jnp.stack(is_met, -1), (*own.shape, shape.met, len(sites)))
    counted = is_written & is_new[:, None, None]
    found = (_from_rows if recorder.summarizes else _from_events)(recorder, shape, kept, counted)
    result: dict[str, Any] = {}
    for n, (site, (i, j)) in enumerate(zip(sites, each, strict=True)):
        counts, sums, peak, local, rows, ones = (x[:, :, :, n] for x in found)
        place = jnp.where(local < 0, -1, flat_place(setup, site, i, j, local, shape.columns))
        size = jnp.where(local < 0, -1.0, peak)
        by_tile = _Tiles(counts, sums, size, i * setup.key_tiles + j, place, rows)
        result[str(site)] = _Tiles(counts.sum(2), sums.sum(2), *_worst(by_tile, 2), rows.sum(2))
        if site in setup.record.ones:
            result[f"{site}.ones"] = _Ones(ones, walked[n])
        if site in setup.record.events and kept.events is not None:
            at, there = recorder.written(shape).index(site), is_written[:, :, :, n, None, None]
            result[f"{site}.events"] = _Events(
                *(jnp.where(there, x[:, :, :, at], 0.0) for x in kept.events[:2])
            )
    return result


class _Found(NamedTuple):
    """Summaries by tile, (heads, own tiles, tiles recorded, sites, ...).

    counts, sums, peak, local  as `Ops.stats` returns them, `local` the place in the tile
    rows, ones                 the signed errors in ulps, and how many results equal 1, of each row
    """

    counts: Array
    sums: Array
    peak: Array
    local: Array
    rows: Array
    ones: Array


def _from_rows(recorder: Recorder, shape: Shape, kept: Kept, counted: Array) -> _Found:
    """Return the summaries of tiles from those of their rows; counted: which tiles count."""
    own, is_counted = Written(kept.rows, counted.shape[3], shape.columns == 1), counted[..., None]
    exists = is_counted & (own.flag("n") > 0)
    size, column = own.worst()
    size = jnp.where(exists, size, -1.0)
    worst = jnp.argmax(size, -1, keepdims=True)
    peak, column = (jnp.take_along_axis(x, worst, -1)[..., 0] for x in (size, column))
    place = worst[..., 0] * shape.columns + column.astype(jnp.int64)
    return _Found(
        jnp.stack([jnp.where(is_counted, own.flag(name), 0).sum(-1) for name in COUNTS], -1),
        jnp.stack([jnp.where(exists, own.sum(name), 0.0).sum(-1) for name in SUMS], -1),
        peak,
        jnp.where(peak < 0.0, -1, place),
        jnp.where(exists, own.sum("ulps"), 0.0),
        jnp.where(is_counted, own.flag("ones"), 0),
    )


def _from_events(recorder: Recorder, shape: Shape, kept: Kept, counted: Array) -> _Found:
    """Return the summaries of tiles from their events; counted: which tiles count."""
    assert kept.events is not None
    valid = jnp.where(counted[..., None], kept.events.valid, 0)
    exists = jnp.arange(shape.columns, dtype=jnp.int32) < valid[..., None]
    plan, sites = recorder.setup.plan, recorder.sites[shape]
    formats = Judged(*np.array([judged(plan[site].format) for site in sites], np.int64).T)
    stats: Any = jax.vmap(judged_stats, (0, 0, Judged(0, 0, 0, 0), 0))
    for _ in range(3):
        stats = jax.vmap(stats, (0, 0, None, 0))
    ones = (kept.events.after == 1.0) & exists
    found = stats(kept.events.before, kept.events.after, formats, exists)
    return _Found._make((*found, ones.sum(-1)))


def _is_met(setup: Setup, i: Array, j: Array) -> Array:
    """Return whether some query of tile i sees a key of tile j, so that a kernel computes it."""
    return jnp.asarray(j < seen_tiles(setup, i))


def _walked(recorder: Recorder, site: Site, own: Array, met: int) -> Array:
    """Return the numbers of the recorded tiles of each own tile, (heads, n, met)."""
    if site in ONCE:
        return jnp.zeros((*own.shape, 1), jnp.int64)
    number = recorder.number(recorder.heads(own.shape[0])[:, None], own)
    found = sample.chosen(
        recorder.setup.every, recorder.tiles[1], number[..., None], jnp.arange(met)
    )
    return jnp.broadcast_to(found, (*own.shape, met))


def _of_heads(recorder: Recorder, found: dict[str, Any], own: Array) -> Seen:
    """Return what was recorded of heads, from what was recorded of their own tiles (heads, n)."""
    (tiles, walked), heads = recorder.tiles, jnp.arange(own.shape[0])[:, None]
    whole: dict[str, Any] = {}
    for name, tile in found.items():
        if isinstance(tile, _Ones):
            met = 1 if name.removesuffix(".ones") in ONCE else walked
            ones = jnp.zeros((own.shape[0], met, tiles, recorder.rows), jnp.int64)
            whole[name] = _joined(
                ones.at[heads[..., None], tile.walked, own[..., None]].add(tile.ones)
            )
        elif isinstance(tile, _Events):
            whole[name] = tuple(
                _as_engines_have(recorder, Site[name.removesuffix(".events")], x[:, :tiles])
                for x in tile
            )
        else:
            peak, _, place = _worst(tile, 1)
            rows = jnp.zeros((own.shape[0], tiles, recorder.rows)).at[heads, own].add(tile.rows)
            whole[name] = (
                tile.counts.sum(1),
                tile.sums.sum(1),
                jnp.maximum(peak, 0.0),
                place,
                _joined(rows),
            )
    return whole


def _as_engines_have(recorder: Recorder, site: Site, x: Array) -> Array:
    """Return events of kernels in the shape of other engines: key tiles first in the backward.

    x: (heads, own tiles, tiles walked over, rows, columns).
    """
    x = x.squeeze(-1) if site.axes is Axes.T else x
    if site in ONCE:
        return x.reshape(x.shape[0], -1, *x.shape[4:])
    return x if recorder.by_key or site.stage == "forward" else x.swapaxes(1, 2)


def _worst(tiles: _Tiles, axis: int) -> tuple[Array, Array, Array]:
    """Return peak, order and place of the first tile along an axis that has the largest error."""
    is_top = tiles.peak == tiles.peak.max(axis, keepdims=True)
    first = jnp.argmin(jnp.where(is_top, tiles.order, LAST), axis, keepdims=True)
    peak, order, place = (
        jnp.take_along_axis(x, first, axis).squeeze(axis)
        for x in (tiles.peak, tiles.order, tiles.place)
    )
    return peak, order, place


def _joined(x: Array) -> Array:
    """Return (..., own tiles, rows of a tile) as (..., rows of a head)."""
    return x.reshape(*x.shape[:-2], -1)
