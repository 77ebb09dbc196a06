"""What a fused kernel records: the rounding events themselves, of tiles that a trace looks at.

A program owns a tile of rows (of keys, for dK and dV) and walks over the tiles of the other side.
The kernels that make results know nothing of a trace. Their programs run once more for the tiles
looked at, and write what they meet to memory; `summary` adds it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.events.recorder import Seen
from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.summary import features_of

ONCE = (Site.INV, Site.OUT, Site.LSE)  # events that do not belong to a tile walked over


class Kept(NamedTuple):
    """The events of sites of one shape, as kernels write them.

    Arrays are (heads, own tiles, tiles met, sites, rows, ...); a program sees them without the
    first two axes.

    before, after  (..., columns), float64: the values before and after the rounding
    valid          (...), int32: of each row the first `valid` columns exist
    """

    before: Any
    after: Any
    valid: Any


class Shape(NamedTuple):
    """The shape that the events of some sites have beside their rows.

    columns  columns of a row
    met      in how many of the tiles walked over they are recorded
    """

    columns: int
    met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What one kernel is asked to record.

    setup   what is fixed of the call, with its record
    sites   the sites whose events the kernel has, by shape
    by_key  whether its programs own tiles of keys, not of queries
    """

    setup: Setup
    sites: dict[Shape, list[Site]]
    by_key: bool

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles a head has that programs own, and how many they walk over."""
        queries, keys = self.setup.query_tiles, self.setup.key_tiles
        return (keys, queries) if self.by_key else (queries, keys)

    @property
    def rows(self) -> int:
        """The rows of a tile that a program owns."""
        return self.setup.block_k if self.by_key else self.setup.block_q

    def number(self, head: Index, own: Array) -> Array:
        """Return the number of a tile that a program owns among those of all heads."""
        return head * self.tiles[0] + own

    def shapes(self, grid: tuple[int, int]) -> list[Kept]:
        """Return the shapes and types of what is kept, for a grid of (heads, own tiles)."""
        found = []
        for shape, sites in self.sites.items():
            lead = *grid, shape.met, len(sites), self.rows
            event = jax.ShapeDtypeStruct((*lead, shape.columns), jnp.float64)
            found.append(Kept(event, event, jax.ShapeDtypeStruct(lead, jnp.int32)))
        return found

    def numbers(self, own: Array) -> Array:
        """Return what programs need to know of their tiles `own` (heads, n): (heads, n, 2), int32.

        That is the number of the tile, and where its sample of the tiles walked over begins.
        """
        number = self.number(jnp.arange(own.shape[0])[:, None], own)
        begins = sample.begin(self.setup.every, self.tiles[1], number)
        return jnp.stack(jnp.broadcast_arrays(own, begins), -1).astype(jnp.int32)

    def place(self, begins: Array, walked: Index) -> Array:
        """Return where events of a tile walked over are kept; -1 for a tile that is not looked at.

        It is `sample.place` inside a kernel, in 32 bits.
        """
        tiles, every = np.int32(self.tiles[1]), np.int32(min(self.setup.every, self.tiles[1]))
        beyond = jnp.asarray(walked, jnp.int32) - begins
        beyond = jnp.where(beyond < 0, beyond + tiles, beyond)
        return jnp.where(lax.rem(beyond, every) == 0, lax.div(beyond, every), np.int32(-1))

    def keep(self, kept: Sequence[Kept], seen: Seen, place: Index) -> None:
        """Write what was recorded of some sites in one tile, inside a kernel."""
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
    """Return what a kernel is asked to record of its sites; features: of q and k, and of v."""
    met = sample.count(setup.every, setup.query_tiles if by_key else setup.key_tiles)
    by_shape: dict[Shape, list[Site]] = {}
    for site in sites:
        columns = {Axes.TS: setup.block_k, Axes.T: 1}.get(site.axes, features_of(site, features))
        by_shape.setdefault(Shape(columns, 1 if site in ONCE else met), []).append(site)
    return Recorder(setup=setup, sites=by_shape, by_key=by_key)


def silent(setup: Setup) -> Setup:
    """Return the setup of the kernels that make results: it records nothing."""
    return replace(setup, record=None)
