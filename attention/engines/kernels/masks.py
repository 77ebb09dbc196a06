"""Which scores exist in a call with a mask: arrays that programs read beside their inputs.

A tile without any score that exists changes nothing, and programs pass over it. Arrays have int8
numbers, since kernels have no arrays of bool in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Index

State = TypeVar("State")


class Exists(NamedTuple):
    """What exists of a tile that is not whole; None for what no event of the program asks for.

    scores  (queries, keys) of bool: the scores that are neither masked nor padding
    rows    (queries,) of bool: rows with such a score
    keys    (keys,) of bool: keys with such a score
    """

    scores: Array
    rows: Array | None
    keys: Array | None


class Masks(NamedTuple):
    """What exists of all tiles of all query heads.

    scores  (heads, T, S)
    rows    (heads, key tiles, T): whether a query sees a key of the tile
    keys    (heads, query tiles, S): whether a query of the tile sees the key
    """

    scores: Array
    rows: Array
    keys: Array

    @property
    def seeing(self) -> Array:
        """Return which queries see some key, (heads, T)."""
        return self.rows.max(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What a program reads of the masks.

    inputs  arrays, and what a program sees of each
    exists  (what it sees, number of the tile that it walks over) -> `Exists`
    """

    inputs: list[tuple[Array, pl.BlockSpec]]
    exists: Callable[[Sequence[Any], Index], Exists]


def masks(setup: Setup, mask: Array | None) -> Masks | None:
    """Return what exists where a mask (heads, T, S) of bool, causality and the sizes allow it.

    The result is None in a call without a mask.
    """
    if mask is None:
        return None
    heads, rows, keys = mask.shape
    t, s = jnp.arange(rows)[:, None], jnp.arange(keys)[None, :]
    here = (t < setup.queries) & (s < setup.keys)
    here = here & (s <= t) if setup.is_causal else here
    scores = (mask & here).astype(jnp.int8)
    by_row = scores.reshape(heads, rows, -1, setup.block_k).max(3).swapaxes(1, 2)
    return Masks(scores, by_row, scores.reshape(heads, -1, setup.block_q, keys).max(2))


def by_query(setup: Setup, found: Masks | None) -> Reader | None:
    """Return what programs read that own a tile of queries; None without a mask."""
    if found is None:
        return None
    heads_rows = pl.BlockSpec((None, setup.block_q, found.scores.shape[2]), lambda h, i: (h, i, 0))
    of_tiles = pl.BlockSpec((None, found.rows.shape[1], setup.block_q), lambda h, i: (h, 0, i))

    def exists(refs: Sequence[Any], j: Index) -> Exists:
        scores, rows = refs
        own = pl.ds(j * setup.block_k, setup.block_k)
        return Exists(scores[:, own] != 0, rows[j, :] != 0, None)

    return Reader(inputs=[(found.scores, heads_rows), (found.rows, of_tiles)], exists=exists)


def by_key(setup: Setup, found: Masks | None) -> Reader | None:
    """Return what programs read that own a tile of keys; None without a mask."""
    if found is None:
        return None
    columns = pl.BlockSpec((None, found.scores.shape[1], setup.block_k), lambda h, j: (h, 0, j))
    of_tiles = pl.BlockSpec((None, found.keys.shape[1], setup.block_k), lambda h, j: (h, 0, j))

    def exists(refs: Sequence[Any], i: Index) -> Exists:
        scores, keys = refs
        own = pl.ds(i * setup.block_q, setup.block_q)
        return Exists(scores[own, :] != 0, None, keys[i, :] != 0)

    return Reader(inputs=[(found.scores, columns), (found.keys, of_tiles)], exists=exists)


def if_any(exists: Exists | None, compute: Callable[[], State], state: State) -> State:
    """Return what a tile computes, or the state unchanged if no score of the tile exists."""
    if exists is None:
        return compute()
    some = exists.keys if exists.rows is None else exists.rows
    assert some is not None
    found: State = lax.cond(some.astype(jnp.int32).max() > 0, compute, lambda: state)
    return found


def reading(reader: Reader | None, refs: Sequence[Any]) -> Callable[[Index], Exists | None]:
    """Return a function from the number of a tile to what exists of it, None without a mask."""
    return (lambda _: None) if reader is None else partial(reader.exists, refs)
