"""What a fused kernel is made for (`Call`), and what a program does with a tile (`Work`).

`Call` also says which part of each array a program sees. `Work` computes the numbers of a tile and
records its events.

A program is one run of a kernel, for one head and one tile of the head. `running` calls kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from roundscope.attention.engines.kernels.record import Memory, Recorder
from roundscope.attention.engines.kernels.tiles import Exists, walk
from roundscope.attention.plans.choices import GradientsApart
from roundscope.attention.recording import Record
from roundscope.attention.sites import FACTORS, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import FP32, FP64, WITHIN_FP32, Held, Machine, format_of
from roundscope.emu.backends.kernels.narrowing import narrowed
from roundscope.emu.backends.kernels.ops import types
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.events.place import Index

Input = tuple[Array, pl.BlockSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a kernel is made for.

    It has the setup of the call without its record, whether it is compiled for a GPU and not
    interpreted, and how many query heads share a key head (`group`).
    """

    setup: Setup
    on_gpu: bool
    group: int

    def format(self, site: Site) -> str:
        """Return the name of the format in which the results of an event are held.

        It is binary64 if an injection may have changed them to any number, or if they are scaled in
        blocks.
        """
        if self.setup.plan.block(site) is not None or any(
            injection.site is site for injection in self.setup.inject
        ):
            return FP64
        return format_of(self.setup.plan[site].format)

    def stored(self, site: Site, x: Array) -> Array:
        """Return the results of an event as an array of the narrowest type that holds them.

        Reading memory limits the speed of a kernel.
        """
        return x.astype(self.dtype(site))

    def dtype(self, site: Site) -> np.dtype[Any]:
        """Return the narrowest type that holds the results of an event."""
        found: np.dtype[Any] = jnp.dtype(types(self.on_gpu)[self.format(site)])
        return found

    def left(self, site: Site | None) -> str:
        """Return the name of the format in which a kernel writes its results.

        The output is written in binary32, as callers need it. None means the output before its last
        rounding, which is in binary64.
        """
        name = FP64 if site is None else self.format(site)
        return FP32 if site is Site.OUT and name in WITHIN_FP32 else name

    @property
    def sums_in_slices(self) -> bool:
        """Return whether a tile's part of dQ, dK and dV may be added in slices of its rows.

        It may if three conditions hold. The sums are of fused multiply-adds whose event has the
        same rounding as each step, so that the event changes nothing. No tile is added up apart.
        And nothing is injected.
        """
        setup, sites = self.setup, (Site.DQ, Site.DK, Site.DV)
        formats = {self.format(x) for site in sites for x in (site, *FACTORS[site])}
        own = all(
            setup.plan.accumulator(site) == Accumulator() and setup.plan[site] == BINARY32
            for site in sites
        )
        are_whole = setup.plan.gradients_apart is GradientsApart.NONE
        return own and are_whole and FP64 not in formats and not setup.inject

    def read(self, site: Site, ref: Any, rows: Any = slice(None)) -> Held:
        """Return the results of an event, or some rows of them, from what a program sees."""
        return Held(array=ref[(rows, slice(None))[: len(ref.shape)]], format=self.format(site))

    def own(self, x: Array) -> Input:
        """Give a program (head, tile) its tile of query rows of an array (heads, rows, ...)."""
        return x, block(x, self.setup.block_q, lambda h, i: (h, i))

    def own_keys(self, x: Array) -> Input:
        """Give a program its tile of keys of an array (key heads, S, ...)."""
        return x, block(x, self.setup.block_k, lambda h, j: (h // self.group, j))

    def own_queries_of_scores(self, x: Array) -> Input:
        """Give a program its tile of queries of an array (heads, S, T), with all keys."""
        return x, pl.BlockSpec((None, x.shape[1], self.setup.block_q), lambda h, i: (h, 0, i))

    def own_keys_of_query_head(self, x: Array) -> Input:
        """Give a program its tile of keys of an array (heads, S, ...) of query heads."""
        return x, block(x, self.setup.block_k, lambda h, j: (h, j))

    def scalar(self, x: Array) -> Input:
        """Give all programs the same number, as an array (1,)."""
        return x[None], whole_array(x[None])

    def whole(self, x: Array) -> Input:
        """Give a program all keys of its key head, of an array (key heads, S, ...)."""
        return x, block(x, x.shape[1], lambda h, i: (h // self.group, 0))

    def whole_of_query_head(self, x: Array) -> Input:
        """Give a program all rows of its head, of an array (heads, rows, ...)."""
        return x, block(x, x.shape[1], lambda h, j: (h, 0))


def block(x: Any, rows: int, at: Callable[[Any, Any], tuple[Any, Any]]) -> pl.BlockSpec:
    """Return the block of `rows` rows that a program sees; at: (head, tile) -> which block."""
    return pl.BlockSpec(
        (None, rows, *x.shape[2:]), lambda h, i: (*at(h, i), *(0 for _ in x.shape[2:]))
    )


def whole_array(x: Any) -> pl.BlockSpec:
    """Return the block that gives every program the whole array."""
    return pl.BlockSpec(x.shape, lambda h, i: (0,) * x.ndim)


def held(arrays: tuple[Array, ...], formats: list[str]) -> list[Held]:
    """Return what a program carries from tile to tile, with the names of its formats."""
    return [Held(array=x, format=name) for x, name in zip(arrays, formats, strict=True)]


def wide(x: Array) -> Array:
    """Return an array in binary64, the type of all engines."""
    return x.astype(jnp.float64)


State = TypeVar("State")  # the state that each tile updates: arrays, or tuples of them
Refs: TypeAlias = Sequence[Any]  # the parts of arrays that a program sees, as references of Pallas


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The arithmetic of one program.

    machine  the operations of a kernel
    setup    the setup of the call, without its record
    head     the number of the program's head
    own      the number of the tile that the program owns
    watch    the recorder, where its sample of tiles begins, and the memory for events; None if
             nothing is recorded
    exists   number of a tile that is walked over -> what exists of it, None without a mask
    """

    machine: Machine
    setup: Setup
    head: Array
    own: Array
    watch: tuple[Recorder, Array, Memory] | None
    exists: Callable[[Index], Exists | None]

    @property
    def summarizes(self) -> bool:
        """True if the program writes a summary of each row of its tiles, and not their events."""
        return self.watch is not None and self.watch[0].summarizes

    def tile(
        self, f: Callable[..., Any], formats: Sequence[str], tile: Index | None, *args: Any
    ) -> tuple[Array, ...]:
        """Return the numbers that f computes from (setup, args), as arrays of these formats.

        The arguments are `Held` numbers, and what exists of the tile. f also returns what was
        recorded of the tile, which is written to memory. tile: its number; None for a step that a
        program does once.
        """
        if self.watch is None:
            return self._numbers(f, formats, args)
        recorder, begins, _ = self.watch
        return self._watched(f, formats, args, 0 if tile is None else recorder.place(begins, tile))

    def walk(
        self,
        tile: Callable[..., State],
        first: Index,
        last: Index,
        state: State,
        is_down: bool = False,
    ) -> State:
        """Return what `tiles.walk` returns, after recording what the trace looks at.

        A loop over tiles that may record is slow, since nothing is loaded ahead in it. So the tiles
        of a sample stand between loops over the others, which record nothing.

        tile: a function (work, number, state) -> state, given the work that its tile takes.
        """
        if self.watch is None or self.watch[0].setup.every == 1:
            return walk(partial(tile, self), first, last, state, is_down)
        if isinstance(first, int) and isinstance(last, int) and first >= last:
            return state
        recorder, begins, _ = self.watch
        lo, hi = jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32)
        others = partial(tile, replace(self, watch=None))

        def number(n: Array) -> Array:
            return lo + hi - 1 - n if is_down else n

        def is_other(n: Array) -> Array:
            return (n < hi) & (recorder.place(begins, number(n)) < 0)

        def some(x: tuple[Array, State]) -> tuple[Array, State]:
            n, state = x
            to = lax.while_loop(is_other, lambda n: n + 1, n)
            state = walk(lambda n, state: others(number(n), state), n, to, state)
            return to + 1, lax.cond(to < hi, lambda: tile(self, number(to), state), lambda: state)

        found: State = lax.while_loop(lambda x: x[0] < hi, some, (lo, state))[1]
        return found

    def _numbers(
        self, f: Callable[..., Any], formats: Sequence[str], args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        return narrowed(self.machine, partial(f, self.setup), formats)(*args)[0]

    def _watched(
        self, f: Callable[..., Any], formats: Sequence[str], args: tuple[Any, ...], place: Index
    ) -> tuple[Array, ...]:
        """Return the numbers of a tile, and write its events at index `place` of the sample."""
        assert self.watch is not None
        recorder, _, memory = self.watch
        own = memory._replace(waiting={})
        machine = replace(self.machine, seen=partial(recorder.keep, own, place))
        recorded = partial(f, replace(self.setup, record=Record()))
        found = narrowed(machine, recorded, formats)(*args)[0]
        recorder.keep_columns(own, place)
        return found
