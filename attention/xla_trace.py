"""What was seen, on its way off JAX's device. Copies are slow: tiles are added up before, of a sample's rows come those that were seen, and
small arrays come as one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attention import sample, trace
from attention.head import Setup
from attention.sites import Axes, Site
from attention.trace import Part, features_of, site_of, summaries

LARGE = 1 << 20  # sums of rows, per site, from which on a device adds up the tiles
SMALL = 1 << 16  # elements of an array that is copied with others
_LIKE = {site.axes: site for site in Site}  # sites of one shape share a compilation


def fetched(setup: Setup, parts: Sequence[Part], features: tuple[int, int]) -> list[Part]:
    """The parts of a call in NumPy."""
    with jax.enable_x64(True):
        parts = [_added(setup, part, features) for part in parts]
        seen = [(part.whole, part.tiles) for part in parts]
        if not _is_far(seen):
            return [part._replace(whole=whole, tiles=tiles) for part, (whole, tiles) in zip(parts, jax.device_get(seen), strict=True)]
        if setup.every == 1:
            found = gathered(seen)
        else:
            taken = gathered([(rows_seen(setup, part), part.tiles) for part in parts])
            found = [(all_rows(setup, part, whole), tiles) for part, (whole, tiles) in zip(parts, taken, strict=True)]
    return [part._replace(whole=whole, tiles=tiles) for part, (whole, tiles) in zip(parts, found, strict=True)]


def rows_seen(setup: Setup, part: Part) -> dict[str, Any]:
    """What was seen of whole heads, of the sums of rows those of the tiles looked at."""
    whole = summaries(part.whole)
    rows = _taken(setup, part.number, {name: row for name, (*_, row) in whole.items()})
    return part.whole | {name: (*seen[:-1], rows[name]) for name, seen in whole.items()}


def all_rows(setup: Setup, part: Part, whole: dict[str, Any]) -> dict[str, Any]:
    """What `rows_seen` took, in NumPy, of all rows: of others the sum is 0."""
    result = dict(whole)
    for name, (*summary, seen) in summaries(whole).items():
        row = np.zeros(part.whole[name][-1].shape)
        np.put_along_axis(row, _rows(np, setup, part.number, name, row), seen, axis=1)
        result[name] = (*summary, row)
    return result


def gathered(seen: Any) -> Any:
    """A tree of arrays in NumPy, the small ones in a copy for each type."""
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
        found |= {n: x.reshape(leaves[n].shape) for n, x in zip(of_type, np.split(flat, ends[:-1]), strict=True)}
    return jax.tree.unflatten(tree, [found[n] for n in range(len(leaves))])


def _is_far(seen: Any) -> bool:
    """Whether something is on a device that does not share the host's memory."""
    return any(d.platform != "cpu" for x in jax.tree.leaves(seen) if isinstance(x, Array) for d in x.devices())


def _added(setup: Setup, part: Part, features: tuple[int, int]) -> Part:
    """With tiles that are many as whole heads."""
    tiles = summaries(part.tiles)
    if not any(isinstance(seen[-1], Array) and seen[-1].size >= LARGE for seen in tiles.values()):
        return part
    own = {name: (_LIKE[site_of(name).axes], features_of(site_of(name), features)) for name in tiles}
    whole = {name: _tiles_added(setup, *own[name], part.backward, seen) for name, seen in tiles.items()}
    return part._replace(whole=part.whole | whole, tiles={name: x for name, x in part.tiles.items() if name not in tiles})


def _rows(xp: Any, setup: Setup, number: int, name: str, row: Any) -> Any:
    """The rows of tiles looked at, (heads, n), of sums (heads, rows)."""
    of_keys = site_of(name).axes is Axes.SH
    tiles, size = (setup.key_tiles, setup.block_k) if of_keys else (setup.query_tiles, setup.block_q)
    head = xp.arange(row.shape[0])[:, None] % number
    own = sample.chosen(setup.every, tiles, head, xp.arange(sample.count(setup.every, tiles)))
    return (own[:, :, None] * size + xp.arange(size)).reshape(row.shape[0], -1)


@partial(jax.jit, static_argnums=(0, 1))
def _taken(setup: Setup, number: int, rows: dict[str, Array]) -> dict[str, Array]:
    return {name: jnp.take_along_axis(row, _rows(jnp, setup, number, name, row), axis=1) for name, row in rows.items()}


_tiles_added = jax.jit(trace.tiles_added, static_argnums=(0, 1, 2, 3))


@jax.jit
def _joined(arrays: list[list[Array]]) -> list[Array]:
    return [jnp.concatenate([x.ravel() for x in of_type]) for of_type in arrays]
