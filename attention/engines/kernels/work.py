"""What a program of a fused kernel does with a tile: it computes its numbers and records its
events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from roundscope.attention.engines.kernels.record import Memory, Recorder
from roundscope.attention.engines.kernels.tiles import Exists, walk
from roundscope.attention.events.recorder import Record
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Index
from roundscope.emu.backends.kernels.held import Machine
from roundscope.emu.backends.kernels.narrowing import narrowed

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

        The arguments are `Held` numbers, and what exists of the tile.

        f also returns what was recorded of the tile, which is written to memory.

        tile: the number of the tile that is walked over; None for a step that a program does once.
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
