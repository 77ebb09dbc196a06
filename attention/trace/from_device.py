"""How the records of a call are copied from JAX's device to NumPy.

Copies are slow, so there are few. If there are many tiles, the device adds them up first. With a
sample, only the rows that were looked at are copied. Small arrays are joined into one.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.parts import Part, features_of, site_of, summaries, tiles_added
from roundscope.events.recorder import Seen

LARGE = 1 << 20  # sums of rows, per site, from which on a device adds up the tiles
SMALL = 1 << 16  # elements of an array that is copied with others
_LIKE = {site.axes: site for site in Site}  # sites of one shape share a compilation


def fetched(setup: Setup, parts: Sequence[Part], features: tuple[int, int]) -> list[Part]:
    """Return the parts of a call in NumPy; features: how many q and k, and v, have."""
    with jax.enable_x64(True):
        parts = [_added(setup, part, features) for part in parts]
        is_far = any(_is_far((part.whole, part.tiles)) for part in parts)
        sampled = is_far and setup.every > 1
        seen = [(rows_seen(setup, part) if sampled else part.whole, part.tiles) for part in parts]
        found = gathered(seen) if is_far else jax.device_get(seen)
    wholes = [
        all_rows(setup, part, whole) if sampled else whole
        for part, (whole, _) in zip(parts, found, strict=True)
    ]
    return [
        part._replace(whole=whole, tiles=tiles)
        for part, whole, (_, tiles) in zip(parts, wholes, found, strict=True)
    ]


def rows_seen(setup: Setup, part: Part) -> Seen:
    """Return what was recorded of whole heads, with row sums only for the tiles looked at."""
    whole = summaries(part.whole)
    taken = _taken(
        setup.every,
        part.number,
        tuple(_tiles(setup, name) for name in whole),
        [row for *_, row in whole.values()],
    )
    return part.whole | {
        name: (*seen, row) for (name, (*seen, _)), row in zip(whole.items(), taken, strict=True)
    }


def all_rows(setup: Setup, part: Part, whole: Seen) -> Seen:
    """Return what `rows_seen` returned, copied to NumPy, with the sums of all rows.

    The sum of a row that was not looked at is 0 (`attention.tiles.sample.Side.spread`).
    """
    result = dict(whole)
    for name, (*summary, seen) in summaries(whole).items():
        row = np.zeros(part.whole[name][-1].shape)
        np.put_along_axis(
            row,
            _rows(np, setup.every, part.number, *_tiles(setup, name), row.shape[0]),
            seen,
            axis=1,
        )
        result[name] = (*summary, row)
    return result


def gathered(seen: Any) -> Any:
    """Return a tree of arrays in NumPy, copying the small ones of each type at once."""
    leaves, tree = jax.tree.flatten(seen)
    small: dict[Any, list[int]] = {}
    for n, x in enumerate(leaves):
        if x.size < SMALL:
            small.setdefault(x.dtype, []).append(n)
    joined = _joined([[leaves[n] for n in of_type] for of_type in small.values()])
    others = [n for n, x in enumerate(leaves) if x.size >= SMALL]
    parts, large = jax.device_get((joined, [leaves[n] for n in others]))
    found = dict(zip(others, large, strict=True))
    for of_type, flat in zip(small.values(), parts, strict=True):
        ends = np.cumsum([leaves[n].size for n in of_type])
        found |= {
            n: x.reshape(leaves[n].shape)
            for n, x in zip(of_type, np.split(flat, ends[:-1]), strict=True)
        }
    return jax.tree.unflatten(tree, [found[n] for n in range(len(leaves))])


def _is_far(seen: Any) -> bool:
    """Return whether some array of a tree is on a device that does not share the host's memory."""
    return any(
        d.platform != "cpu"
        for x in jax.tree.leaves(seen)
        if isinstance(x, Array)
        for d in x.devices()
    )


def _added(setup: Setup, part: Part, features: tuple[int, int]) -> Part:
    """Return the part with its tiles added up to whole heads, if they are many."""
    tiles = summaries(part.tiles)
    if not any(isinstance(seen[-1], Array) and seen[-1].size >= LARGE for seen in tiles.values()):
        return part
    own = {
        name: (_LIKE[site_of(name).axes], features_of(site_of(name), features)) for name in tiles
    }
    whole = {
        name: _tiles_added(setup, *own[name], part.backward, seen) for name, seen in tiles.items()
    }
    return part._replace(
        whole=part.whole | whole,
        tiles={name: x for name, x in part.tiles.items() if name not in tiles},
    )


def _tiles(setup: Setup, name: str) -> tuple[int, int]:
    """Return how many tiles the rows of a site have in a head, and how many rows each tile has."""
    of_keys = site_of(name).axes is Axes.SH
    return (setup.key_tiles, setup.block_k) if of_keys else (setup.query_tiles, setup.block_q)


def _rows(xp: ModuleType, every: int, number: int, tiles: int, size: int, heads: int) -> Any:
    """Return the numbers of the rows of the tiles looked at, (heads, n)."""
    own = sample.chosen(
        every, tiles, xp.arange(heads)[:, None] % number, xp.arange(sample.count(every, tiles))
    )
    return (own[:, :, None] * size + xp.arange(size)).reshape(heads, -1)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _taken(
    every: int, number: int, tiles: tuple[tuple[int, int], ...], rows: list[Array]
) -> list[Array]:
    """Return those sums of rows (heads, rows) that belong to the tiles looked at."""
    own = [_rows(jnp, every, number, *x, row.shape[0]) for x, row in zip(tiles, rows, strict=True)]
    return [jnp.take_along_axis(row, x, axis=1) for x, row in zip(own, rows, strict=True)]


_tiles_added = jax.jit(tiles_added, static_argnums=(0, 1, 2, 3))


@jax.jit
def _joined(arrays: list[list[Array]]) -> list[Array]:
    """Return each list of arrays as one flat array."""
    return [jnp.concatenate([x.ravel() for x in of_type]) for of_type in arrays]
