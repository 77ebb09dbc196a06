"""What a fused kernel records: the rounding events of the tiles that a trace looks at.

A program owns a tile of queries, or of keys for dK and dV. It walks over the tiles of the other
side: it computes them one after the other. The kernels that compute results record nothing. For a
trace, a kernel runs a second time for the own tiles that the trace looks at. Its programs write a
summary of each row of a tile to memory (`by_row`), or of a sample of the tiles the events: a sample
has few programs, and more of them summarize the events afterwards. `summary` adds them up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.engines.kernels.by_row import (
    FIELDS,
    LONG,
    Scratch,
    scratch,
    write_by_row,
    write_columns,
)
from roundscope.attention.engines.kernels.tiles import head_number
from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.parts import features_of
from roundscope.emu.backends.ops import Event
from roundscope.events.place import Index

ONCE = (Site.INV, Site.OUT, Site.LSE)  # events that happen once per own tile


class Events(NamedTuple):
    """The events of some sites that have the same `Shape`, as kernels write them.

    The arrays are (heads, own tiles, tiles recorded, sites, rows, ...).

    before, after  (..., columns), float64: the values before and after the rounding
    valid          (...), int32: how many columns of each row exist; these are the first ones
    """

    before: Any
    after: Any
    valid: Any


class Kept(NamedTuple):
    """What kernels write of all sites that have the same `Shape`.

    The arrays are (heads, own tiles, tiles recorded, ...). A program sees them without the first
    two axes. Of a tile that no program computes they have any bits.

    rows    the summaries of rows, if kernels summarize: of several columns as by
            `write_by_row`, of one column as by `write_columns`; else None
    events  the events of the sites `Recorder.written`; None without such sites
    """

    rows: Any
    events: Events | None


class Shape(NamedTuple):
    """The size of the events of a site, apart from the rows of the own tile.

    An event has so many columns in each row, is recorded at `met` of the tiles walked over, and may
    happen once per own tile.
    """

    columns: int
    met: int
    is_once: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What one kernel has to record: the setup of the call with its record, and the sites by shape.

    by_key: whether its programs own tiles of keys, and not of queries.
    """

    setup: Setup
    sites: dict[Shape, list[Site]]
    by_key: bool

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles of a head programs own, and how many tiles each program walks over."""
        queries, keys = self.setup.query_tiles, self.setup.key_tiles
        return (keys, queries) if self.by_key else (queries, keys)

    @property
    def rows(self) -> int:
        """How many rows a tile that a program owns has."""
        return self.setup.block_k if self.by_key else self.setup.block_q

    def heads(self, count: int) -> Array:
        """Return the numbers of the heads of a kernel's arrays, of which there are `count`."""
        return head_number(self.setup, jnp.arange(count))

    def number(self, head: Index, own: Array) -> Array:
        """Return the index of an own tile, counted through the own tiles of all heads."""
        return head * self.tiles[0] + own

    @property
    def summarizes(self) -> bool:
        """True if kernels write a summary of each row of a tile, False if they write its events.

        They summarize if all tiles are recorded, and if no row has more events than a count holds.
        """
        return self.setup.every == 1 and all(shape.columns < LONG for shape in self.sites)

    def written(self, shape: Shape) -> list[Site]:
        """Return the sites of a shape whose events are written to memory, in their order."""
        assert self.setup.record is not None
        own, asked = self.sites[shape], self.setup.record.events
        return [site for site in own if site in asked] if self.summarizes else own

    def shapes(self, grid: tuple[int, int]) -> list[Kept]:
        """Return the shapes and types of the recorded arrays, for a grid of (heads, own tiles)."""
        return [self._shape(shape, (*grid, shape.met)) for shape in self.sites]

    def scratch(self, grid: tuple[int, int]) -> Scratch | None:
        """Return the shapes and types of the memory through which events pass; None without it."""
        side = max(self.rows, *(shape.columns for shape in self.sites))
        return scratch(grid, side) if self.summarizes else None

    def _shape(self, shape: Shape, lead: tuple[int, ...]) -> Kept:
        """Return the shapes and types of the arrays of sites of one shape."""
        count, rows, events = len(self.sites[shape]), None, None
        if self.summarizes:
            of_columns = FIELDS, self.rows, 1 << (count - 1).bit_length()
            own = of_columns if shape.columns == 1 else (count, self.rows, FIELDS)
            rows = jax.ShapeDtypeStruct((*lead, *own), jnp.float64)
        if count := len(self.written(shape)):
            of_rows = *lead, count, self.rows
            event = jax.ShapeDtypeStruct((*of_rows, shape.columns), jnp.float64)
            events = Events(event, event, jax.ShapeDtypeStruct(of_rows, jnp.int32))
        return Kept(rows, events)

    def numbers(self, own: Array) -> Array:
        """Return each program's own tile, of `own` (heads, n), and where its sample of tiles
        begins.

        The sample (`tiles.sample`) is of those that it walks over. The result is (heads, n, 2),
        int32.
        """
        number = self.number(self.heads(own.shape[0])[:, None], own)
        begins = sample.begin(self.setup.every, self.tiles[1], number)
        return jnp.stack(jnp.broadcast_arrays(own, begins), -1).astype(jnp.int32)

    def place(self, begins: Array, walked: Index) -> Array:
        """Return the index at which the events of the tile `walked` are recorded, or -1 if they are
        not.

        This is `sample.place` inside a kernel, in 32 bits; begins: where the sample begins.
        """
        tiles, every = np.int32(self.tiles[1]), np.int32(min(self.setup.every, self.tiles[1]))
        beyond = jnp.asarray(walked, jnp.int32) - begins
        beyond = jnp.where(beyond < 0, beyond + tiles, beyond)
        return jnp.where(lax.rem(beyond, every) == 0, lax.div(beyond, every), np.int32(-1))

    def keep(
        self, to: "Memory", place: Index, name: str, before: Array, after: Array, exists: Array
    ) -> None:
        """Write what is recorded of an event of a site, by name, of one tile to memory, inside a
        kernel.

        What has one column waits in `Memory.waiting` for `keep_columns`. `place` is the index of
        the tile among those that are recorded; before, after and what exists are (rows, columns).
        """
        site, record = Site[name], self.setup.record
        assert record is not None
        event = before, after, self.setup.plan[site].format, exists
        for kept, (shape, sites) in zip(to.kept, self.sites.items(), strict=True):
            if site not in sites:
                continue
            if shape.columns == 1:
                to.waiting[site] = event
            elif to.scratch is not None:
                at = place, sites.index(site)
                write_by_row(kept.rows, at, event, to.scratch, to.on_gpu, site in record.ones)
            if kept.events is not None and site in (written := self.written(shape)):
                at = place, written.index(site)
                for ref, x in zip(kept.events, (before, after), strict=False):
                    ref[*at, :, :] = x.astype(jnp.float64)
                kept.events.valid[*at, :] = exists.sum(axis=1, dtype=jnp.int32)

    def keep_columns(self, to: "Memory", place: Index) -> None:
        """Write what waits after the events of a tile to memory, inside a kernel."""
        assert self.setup.record is not None
        for kept, (shape, sites) in zip(to.kept, self.sites.items(), strict=True):
            is_here = any(site in to.waiting for site in sites)
            if kept.rows is not None and shape.columns == 1 and is_here:
                with_ones = any(site in self.setup.record.ones for site in sites)
                write_columns(kept.rows, place, [to.waiting[site] for site in sites], with_ones)


class Memory(NamedTuple):
    """What a program sees of the memory for its events; on_gpu: whether it has several threads.

    `scratch` is None if events are not summarized by row. `waiting` has the events of one column of
    a tile, in registers.
    """

    kept: Sequence[Kept]
    scratch: Scratch | None
    on_gpu: bool
    waiting: dict[Site, Event]


def recorder(
    setup: Setup, sites: Sequence[Site], features: tuple[int, int], by_key: bool = False
) -> Recorder:
    """Return what a kernel has to record of its sites.

    features: how many features q and k have, and how many v has.
    """
    met = sample.count(setup.every, setup.query_tiles if by_key else setup.key_tiles)
    by_shape: dict[Shape, list[Site]] = {}
    for site in sites:
        columns = {Axes.TS: setup.block_k, Axes.T: 1}.get(site.axes, features_of(site, features))
        shape = Shape(columns, 1 if site in ONCE else met, site in ONCE)
        by_shape.setdefault(shape, []).append(site)
    return Recorder(setup=setup, sites=by_shape, by_key=by_key)


def silent(setup: Setup) -> Setup:
    """Return the setup of the kernels that compute results, which records nothing."""
    return replace(setup, record=None)
