"""`Formats`: the format to which every event of every layer and matrix rounds.

It exists in words and as the table of numbers that XLA reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.grammar.changes import Change
from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.traced import SEED, is_even, row_of
from roundscope.emu.formats.format import unknown
from roundscope.emu.roundings.modes import BF16, BINARY32, Rounding, RoundingMode
from roundscope.emu.roundings.random import threefry2x32
from roundscope.experiments.train.mx.sites import GROUPS, INDEX, Site

Kept = BlockFormat | Rounding
Written = tuple[tuple[tuple[Site, ...] | None, Kept], ...]
MX, ALL = "mx", "all"
M = TypeVar("M", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """formats[layer][matrix][event], with events in the order of `INDEX`."""

    formats: tuple[tuple[tuple[Kept, ...], ...], ...]

    @property
    def drawn(self) -> frozenset[Site]:
        """The events with a stochastic rounding somewhere."""
        stochastic = RoundingMode.STOCHASTIC
        return frozenset(
            site
            for row in self.formats
            for own in row
            for site in Site
            if _element(own[INDEX[site]]).mode is stochastic
        )

    @property
    def rounded(self) -> frozenset[Site]:
        """The events that are not FP32 everywhere."""
        return frozenset(
            site
            for row in self.formats
            for own in row
            for site in Site
            if own[INDEX[site]] != BINARY32
        )

    @property
    def even(self) -> bool:
        """Return whether `round_even` is sufficient."""
        return all(is_even(f) for row in self.formats for own in row for f in own)

    def table(self, seed: int = 0) -> np.ndarray:
        """Return the table that `round_row` reads, (layers, matrices, events, FIELDS) int32.

        seed: that of all stochastic roundings.
        """
        table = np.array(
            [[[row_of(f) for f in own] for own in row] for row in self.formats], np.int32
        )
        table[..., SEED] = np.uint32(seed).view(np.int32)
        return table


def _element(f: Kept) -> Rounding:
    return f.element if isinstance(f, BlockFormat) else f


def reseeded(table: Array, step: Array) -> Array:
    """Return the table (layers, matrices, events, FIELDS) of one step.

    Every event draws from (its seed, step, place).
    """
    seeds = lax.bitcast_convert_type(table[..., SEED], jnp.uint32)
    place = jnp.arange(seeds.size, dtype=jnp.uint32).reshape(seeds.shape)
    step = jnp.broadcast_to(step.astype(jnp.uint32), seeds.shape)
    word = threefry2x32(seeds, step, place, jnp.zeros_like(place))[0]
    return table.at[..., SEED].set(lax.bitcast_convert_type(word, jnp.int32))


def put(
    formats: np.ndarray,
    layers: Sequence[int],
    matrices: Sequence[int],
    sites: Sequence[Site],
    f: Kept,
) -> None:
    """Write a format into some places of an array of objects (layers, matrices, events)."""
    for index in (
        (layer, matrix, INDEX[site]) for layer in layers for matrix in matrices for site in sites
    ):
        formats[index] = f


def put_mx(formats: np.ndarray, layers: Sequence[int], matrices: Sequence[int], f: Kept) -> None:
    """Write mx=FORMAT: the six operands have the format, every other event is BF16.

    The emulator of arXiv 2506.20752 does the same.
    """
    put(formats, layers, matrices, tuple(Site), BF16)
    put(formats, layers, matrices, GROUPS["operands"], f)


def as_formats(formats: np.ndarray) -> tuple[tuple[tuple[Kept, ...], ...], ...]:
    """Return an array of objects (layers, matrices, events) as `Formats` keeps it."""
    return tuple(tuple(map(tuple, row)) for row in formats)


def sites_named(name: str) -> tuple[Site, ...]:
    """Return the events that a name, of an event or of a group, stands for. Raises ValueError."""
    if name in GROUPS:
        return GROUPS[name]
    if name not in INDEX:
        raise ValueError(unknown("site", name, (*Site, *GROUPS)))
    return (next(site for site in Site if site == name),)


def kept(text: str, block: int) -> Kept:
    """Return FORMAT[:RULE][:MODE] as a format, with blocks of `block` numbers.

    Raises ValueError.
    """
    found = event_of(text)
    if isinstance(found, BlockFormat):
        found = replace(found, size=block)
    row_of(found)
    return found


def written(change: Change, block: int) -> Written:
    """Return (events, format) of what a change of linear layers writes, in turn.

    events are None for mx=. Raises ValueError.
    """
    place = change.where.get("site")
    return tuple((_events(name, place), kept(value, block)) for name, value in change.what)


def _events(name: str, place: str | None) -> tuple[Site, ...] | None:
    if name == MX or (name and name not in (*Site, *GROUPS)):
        if name != MX:
            named = f"{unknown('site', name, (*Site, *GROUPS, MX))}; put ; between two changes"
            raise ValueError(
                f"{name}= is not of linear layers; those take SITE=FORMAT[:RULE][:MODE] or"
                f" {MX}=FORMAT; {named}"
            )
        if place is not None:
            raise ValueError(f"{MX}= is of all events; leave site= out, or write the format alone")
        return None
    if name and place is not None:
        raise ValueError(f"{name}= says its events itself; leave site= out")
    names = (name or place or "all").split(",")
    return tuple(site for part in names for site in sites_named(part))


def put_written(
    formats: np.ndarray, layers: Sequence[int], matrices: Sequence[int], what: Written
) -> None:
    """Write the formats of a change into some places of an array of objects.

    The axes of the array are (layers, matrices, events).
    """
    for sites, f in what:
        if sites is None:
            put_mx(formats, layers, matrices, f)
        else:
            put(formats, layers, matrices, sites, f)


def matrices_of(text: str, kind: type[M]) -> tuple[M, ...]:
    """Return the matrices of a text such as up,down or all.

    Raises ValueError with the nearest name.
    """
    found: list[M] = []
    for name in text.split(","):
        if name not in (*kind, ALL):
            raise ValueError(unknown("matrix", name, (*kind, ALL)))
        found += list(kind) if name == ALL else [kind(name)]
    return tuple(found)
