"""What a fused kernel keeps of rounding events: sums over each of its rows, in memory of its program, and those of heads made of them.

A program owns a tile of rows (of keys, for dK and dV) and walks over the other tiles; nothing kept grows with their number, but counts
of results that equal 1, which a `Record` asks for by tile. It writes the events of a tile to memory and looks at them site by site, some
columns at a time, in a loop: a program text with every site in it takes Triton and ptxas minutes to compile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from attention.head import Setup
from attention.sites import Axes, Site
from emu.classify import COUNTS, SUMS, Judged, judged
from emu.row_stats import NOWHERE, RowStats, nothing_seen, of_exact_rows, of_rows, with_columns

COLUMNS = 8  # looked at together: with more of them registers do not suffice, and a kernel takes up to six times as long
ONCE = (Site.INV, Site.OUT, Site.LSE)  # events without a tile walked over


class Kept(NamedTuple):
    """Arrays (heads, own tiles, ...), or what a program sees of them, without the first two axes.

    counts (sites, 11, rows), sums (sites, 6, rows), peak (sites, rows): as in `emu.row_stats`
    place  (sites, rows): (tile walked over) x (columns) + (column) of the first event that has the peak
    before, after, valid   (sites, rows, columns): the events of one tile; of each row the first `valid` (sites, rows) exist
    order  (sites,): those of one tile that something was rounded at
    ones   (sites asked for, tiles walked over, rows), int32; None where none is asked for
    """

    counts: Any
    sums: Any
    peak: Any
    place: Any
    before: Any
    after: Any
    valid: Any
    order: Any
    ones: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What is asked of one kernel.

    sites, columns  whose events, and how many columns those of each have;  counted: of these the sites whose ones are counted
    tiles           its programs walk over
    """

    setup: Setup
    counted: tuple[Site, ...]
    sites: tuple[Site, ...]
    columns: tuple[int, ...]
    tiles: int

    def nothing(self, grid: tuple[int, int], rows: int) -> Kept:
        """Before the first tile of every program: a grid of (heads, own tiles)."""
        sites, most = (*grid, len(self.sites)), max(*self.columns, COLUMNS)
        return Kept(
            counts=jnp.zeros((*sites, len(COUNTS), rows), jnp.int32), sums=jnp.zeros((*sites, len(SUMS), rows)),
            peak=jnp.full((*sites, rows), -1.0), place=jnp.full((*sites, rows), NOWHERE, jnp.int32),
            before=jnp.zeros((*sites, rows, most)), after=jnp.zeros((*sites, rows, most)), valid=jnp.zeros((*sites, rows), jnp.int32),
            order=jnp.zeros(sites, jnp.int32),
            ones=jnp.zeros((*grid, len(self.counted), self.tiles, rows), jnp.int32) if self.counted else None,
        )  # fmt: skip

    def formats(self) -> Array:
        """What is needed to judge the events of each site: (sites, 5), its columns and its format."""
        return jnp.asarray(np.array([(n, *self.judged(k)) for k, n in enumerate(self.columns)], np.int64))

    def judged(self, n: int) -> Judged:
        """The format of site n."""
        return judged(self.setup.plan[self.sites[n]].format)

    def keep(self, kept: Kept, formats: Sequence[Any], barrier: Callable[[], None], seen: Mapping[str, Any], tile: Any) -> None:
        """Add what was seen of some sites in one tile (walked over) to what a program has kept; formats: the array above."""
        for n, site in enumerate(self.counted):
            if f"{site}.ones" in seen:
                kept.ones[n, tile, :] = seen[f"{site}.ones"].astype(jnp.int32)
        inexact: list[int] = []
        for name, (before, after, valid) in ((name, x) for name, x in seen.items() if not name.endswith(".ones")):
            n = self.sites.index(name)  # type: ignore[arg-type]
            if before is after:
                _add(kept, np.int32(n), np.int32(self.columns[n]), of_exact_rows(after, valid, self.judged(n)), tile)
                continue
            kept.before[n, :, : before.shape[1]], kept.after[n, :, : before.shape[1]], kept.valid[n, :] = before, after, valid
            kept.order[len(inexact)] = np.int32(n)
            inexact.append(n)
        barrier()  # every thread reads what others wrote

        def look(k: Array, _: Any) -> None:
            _look_at(kept, kept.order[k], formats[0], tile)

        lax.fori_loop(np.int32(0), np.int32(len(inexact)), look, None)
        barrier()  # before the next tile is written

    def of_heads(self, kept: Kept) -> dict[str, Any]:
        """What `attention.trace.trace_of_whole` takes, of all heads."""
        found: dict[str, Any] = {}
        counts, sums = kept.counts.astype(jnp.int64).sum((1, 4)), kept.sums.sum((1, 4))
        rows, (peak, place) = _joined(kept.sums[:, :, :, SUMS.index("ulps")]), self._worst(kept)
        for n, site in enumerate(self.sites):
            found[site] = counts[:, n], sums[:, n], peak[:, n], place[:, n], rows[:, n]
        for n, site in enumerate(self.counted):
            found[f"{site}.ones"] = _joined(kept.ones[:, :, n])[:, : 1 if site in ONCE else None]
        return found

    def _worst(self, kept: Kept) -> tuple[Array, Array]:
        """(heads, sites): the largest error, and the flat index of the first event that has it, by query tile, then by key tile."""
        _, tiles, _, rows = kept.peak.shape
        setup, columns = self.setup, jnp.asarray(self.columns)[:, None]
        by_key, is_score = (jnp.asarray([site.axes is axes for site in self.sites])[:, None] for axes in (Axes.SH, Axes.TS))
        walked, column = jnp.divmod(kept.place.astype(jnp.int64), columns)
        own, row = (lax.broadcasted_iota(jnp.int64, kept.place.shape, axis) for axis in (1, 3))
        tile = jnp.where(by_key, walked * tiles + own, own * setup.key_tiles + walked)
        top = kept.peak.max((1, 3), keepdims=True)
        order = jnp.where(kept.peak == top, (tile * rows + row) * columns + column, np.iinfo(np.int64).max)
        across = jnp.where(is_score, walked * setup.block_k + column, column)
        flat = (own * rows + row) * jnp.where(is_score, setup.keys, columns) + across
        first = jnp.min(jnp.where(order == order.min((1, 3), keepdims=True), flat, np.iinfo(np.int64).max), (1, 3))
        top = top[:, 0, :, 0]
        return jnp.maximum(top, 0.0), jnp.where(top < 0.0, -1, first)


def recorder(setup: Setup, sites: Sequence[Site], features: tuple[int, int], tiles: int) -> Recorder | None:
    """For a kernel's sites, features of q and k, and of v, and how many tiles its programs walk over; None without a record."""
    if setup.record is None:
        return None
    wide = {Site.DQ: features[0], Site.DK: features[0]}
    columns = {Axes.TS: setup.block_k, Axes.T: 1, Axes.TH: features[1], Axes.SH: features[1]}
    counted = tuple(site for site in sites if site in setup.record.ones)
    own = tuple(wide.get(site, columns[site.axes]) for site in sites)
    return Recorder(setup=setup, counted=counted, sites=tuple(sites), columns=own, tiles=tiles)


def _look_at(kept: Kept, n: Array, formats: Any, tile: Any) -> None:
    """Add the events of site n, some columns at a time."""
    rows, f = kept.peak.shape[-1], Judged(*(formats[n, k] for k in range(1, 5)))
    columns, valid = formats[n, 0].astype(jnp.int32), kept.valid[n, :]

    def look(c: Array, so_far: Any) -> Any:
        part = pl.ds(c * np.int32(COLUMNS), COLUMNS)
        column = c * np.int32(COLUMNS) + lax.broadcasted_iota(jnp.int32, (rows, COLUMNS), 1)
        return with_columns(so_far, kept.before[n, :, part], kept.after[n, :, part], column < valid[:, None], column, f)

    looks = lax.div(columns + np.int32(COLUMNS - 1), np.int32(COLUMNS))
    _add(kept, n, columns, of_rows(lax.fori_loop(np.int32(0), looks, look, nothing_seen((rows, COLUMNS)))), tile)


def _add(kept: Kept, n: Any, columns: Any, stats: RowStats, tile: Any) -> None:
    """Add those of site n: all reads, then all writes, of which a compiler does not see that they are of other numbers."""
    added = [(kept.counts, COUNTS.index(name), x) for name, x in stats.counts.items()]
    added += [(kept.sums, SUMS.index(name), x) for name, x in stats.sums.items()]
    before = [array[n, k, :] for array, k, _ in added]
    peak, first, place = kept.peak[n, :], kept.place[n, :], jnp.asarray(tile, jnp.int32) * columns + stats.column
    is_new = (stats.peak > peak) | ((stats.peak == peak) & (place < first))
    for (array, k, x), old in zip(added, before, strict=True):
        array[n, k, :] = old + x
    kept.peak[n, :], kept.place[n, :] = jnp.where(is_new, stats.peak, peak), jnp.where(is_new, place, first)


def _joined(x: Array) -> Array:
    """(heads, own tiles, n, rows of a tile) -> (heads, n, rows)."""
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)
