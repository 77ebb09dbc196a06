"""What a fused kernel hands on of rounding events: the events themselves, of tiles that a trace
looks at.

A program owns a tile of rows (of keys, for dK and dV) and walks over the other tiles. The kernels
that make results know nothing of a trace. Their programs run once more for the tiles looked at, and
write what they meet to memory; `summary` adds it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.summary import features_of

ONCE = (Site.INV, Site.OUT, Site.LSE)  # events without a tile walked over


class Kept(NamedTuple):
    """Of sites of one shape, arrays (heads, own tiles, tiles met, sites, rows, ...), or what a
    program sees of them, without two axes.

    before, after  (..., columns), float64;  valid (...), int32: of each row the first `valid` exist
    """

    before: Any
    after: Any
    valid: Any


class Shape(NamedTuple):
    """Sites whose events have one shape, beside the rows: so many columns, met in so many of the
    tiles walked over.
    """

    columns: int
    met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What is asked of one kernel.

    setup, sites   of the call; the sites whose events it has, by shape
    by_key         whether its programs own tiles of keys
    """

    setup: Setup
    sites: dict[Shape, list[Site]]
    by_key: bool

    @property
    def tiles(self) -> tuple[int, int]:
        """Of a head, to own and to walk over."""
        queries, keys = self.setup.query_tiles, self.setup.key_tiles
        return (keys, queries) if self.by_key else (queries, keys)

    @property
    def rows(self) -> int:
        """Of an own tile."""
        return self.setup.block_k if self.by_key else self.setup.block_q

    def number(self, head: Any, own: Any) -> Any:
        """Of an own tile among those of all heads."""
        return head * self.tiles[0] + own

    def shapes(self, grid: tuple[int, int]) -> list[Kept]:
        """Of what is kept, for a grid of (heads, own tiles)."""
        found = []
        for shape, sites in self.sites.items():
            lead = *grid, shape.met, len(sites), self.rows
            event = jax.ShapeDtypeStruct((*lead, shape.columns), jnp.float64)
            found.append(Kept(event, event, jax.ShapeDtypeStruct(lead, jnp.int32)))
        return found

    def numbers(self, own: Array) -> Array:
        """What a program of an own tile (heads, n) knows, (heads, n, 2), int32: the tile, and where
        its sample of the others begins.
        """
        number = self.number(jnp.arange(own.shape[0])[:, None], own)
        begins = sample.begin(self.setup.every, self.tiles[1], number)
        return jnp.stack(jnp.broadcast_arrays(own, begins), -1).astype(jnp.int32)

    def place(self, begins: Any, walked: Any) -> Any:
        """Where events of a tile walked over are kept, inside a kernel; -1 for one that is not
        looked at.

        As `sample.place`.
        """
        tiles, every = np.int32(self.tiles[1]), np.int32(min(self.setup.every, self.tiles[1]))
        beyond = jnp.asarray(walked, jnp.int32) - begins
        beyond = jnp.where(beyond < 0, beyond + tiles, beyond)
        return jnp.where(lax.rem(beyond, every) == 0, lax.div(beyond, every), np.int32(-1))

    def keep(self, kept: Sequence[Kept], seen: dict[str, Any], place: Any) -> None:
        """Write what was seen of some sites in one tile, inside a kernel."""
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
    """For a kernel's sites, features of q and k, and of v."""
    met = sample.count(setup.every, setup.query_tiles if by_key else setup.key_tiles)
    by_shape: dict[Shape, list[Site]] = {}
    for site in sites:
        columns = {Axes.TS: setup.block_k, Axes.T: 1}.get(site.axes, features_of(site, features))
        by_shape.setdefault(Shape(columns, 1 if site in ONCE else met), []).append(site)
    return Recorder(setup=setup, sites=by_shape, by_key=by_key)


def silent(setup: Setup) -> Setup:
    """Of the kernels that make results."""
    return replace(setup, record=None)
