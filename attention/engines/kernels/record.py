"""What a fused kernel records: the rounding events of the tiles that a trace looks at.

A program owns a tile of queries, or of keys for dK and dV. It walks over the tiles of the other
side: it computes them one after the other. The kernels that compute results record nothing. For a
trace, a kernel runs a second time for the own tiles that the trace looks at, and its programs write
the events to memory. `summary` adds them up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.engines.kernels.tiles import head_number
from roundscope.attention.events.recorder import Seen
from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.summary import features_of

ONCE = (Site.INV, Site.OUT, Site.LSE)  # events that happen once per own tile


class Kept(NamedTuple):
    """The events of all sites that have the same `Shape`, as kernels write them.

    The arrays are (heads, own tiles, tiles recorded, sites, rows, ...). A program sees them without
    the first two axes.

    before, after  (..., columns), float64: the values before and after the rounding
    valid          (...), int32: how many columns of each row exist; these are the first ones
    """

    before: Any
    after: Any
    valid: Any


class Shape(NamedTuple):
    """The size of the events of a site, apart from the rows of the own tile.

    columns  how many columns an event has in each row
    met      at how many of the tiles walked over the event is recorded
    """

    columns: int
    met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What one kernel has to record.

    setup   the setup of the call, including its record
    sites   the sites whose events the kernel has, by shape
    by_key  whether its programs own tiles of keys, and not of queries
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

    def shapes(self, grid: tuple[int, int]) -> list[Kept]:
        """Return the shapes and types of the recorded arrays, for a grid of (heads, own tiles)."""
        found = []
        for shape, sites in self.sites.items():
            lead = *grid, shape.met, len(sites), self.rows
            event = jax.ShapeDtypeStruct((*lead, shape.columns), jnp.float64)
            found.append(Kept(event, event, jax.ShapeDtypeStruct(lead, jnp.int32)))
        return found

    def numbers(self, own: Array) -> Array:
        """Return two numbers for each program: its own tile, and where its sample begins.

        The sample is the one of the tiles that the program walks over (`tiles.sample`).

        own: the numbers of the own tiles, (heads, n). The result is (heads, n, 2), of int32.
        """
        number = self.number(self.heads(own.shape[0])[:, None], own)
        begins = sample.begin(self.setup.every, self.tiles[1], number)
        return jnp.stack(jnp.broadcast_arrays(own, begins), -1).astype(jnp.int32)

    def place(self, begins: Array, walked: Index) -> Array:
        """Return the index at which the events of a tile are recorded, or -1 if they are not.

        This is `sample.place` inside a kernel, in 32 bits.

        begins: where the sample begins; walked: the number of the tile that is walked over.
        """
        tiles, every = np.int32(self.tiles[1]), np.int32(min(self.setup.every, self.tiles[1]))
        beyond = jnp.asarray(walked, jnp.int32) - begins
        beyond = jnp.where(beyond < 0, beyond + tiles, beyond)
        return jnp.where(lax.rem(beyond, every) == 0, lax.div(beyond, every), np.int32(-1))

    def keep(self, kept: Sequence[Kept], seen: Seen, place: Index) -> None:
        """Write the events of one tile to memory, inside a kernel."""
        for part, sites in zip(kept, self.sites.values(), strict=True):
            for n, site in enumerate(sites):
                if site in seen:
                    (
                        part.before[place, n, :, :],
                        part.after[place, n, :, :],
                        part.valid[place, n, :],
                    ) = seen[site]


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
        by_shape.setdefault(Shape(columns, 1 if site in ONCE else met), []).append(site)
    return Recorder(setup=setup, sites=by_shape, by_key=by_key)


def silent(setup: Setup) -> Setup:
    """Return the setup of the kernels that compute results, which records nothing."""
    return replace(setup, record=None)
