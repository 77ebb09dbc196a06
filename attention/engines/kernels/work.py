"""What a program of a fused kernel does with a tile: its arithmetic, and what it records of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from jax import Array, lax

from roundscope.attention.engines.kernels.record import Kept, Recorder
from roundscope.attention.events.recorder import Record
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import Held, Machine
from roundscope.emu.backends.kernels.narrowing import narrowed

Refs: TypeAlias = Sequence[Any]  # what a program sees of arrays: references of Pallas


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A program's arithmetic.

    machine  what computes
    setup    of the call, without a record
    head     the number of the program's head
    own      the number of the tile that the program owns
    watch    who looks at its events, where the sample of tiles begins, and where events are
             written; None where nobody looks
    """

    machine: Machine
    setup: Setup
    head: Array
    own: Array
    watch: tuple[Recorder, Array, Sequence[Kept]] | None

    def tile(
        self, f: Callable[..., Any], formats: Sequence[str], tile: Index | None, *args: Held
    ) -> tuple[Array, ...]:
        """Return the numbers that f computes of (setup, args), as arrays for these formats.

        f returns what was recorded of the tile too; that is written to memory where the tile is
        looked at.

        tile: the number of the tile walked over; None for what a program does once.
        """
        if self.watch is None:
            return self._numbers(f, formats, args)
        recorder, begins, _ = self.watch
        place = 0 if tile is None else recorder.place(begins, tile)
        if tile is None or recorder.setup.every == 1:
            return self._watched(f, formats, args, place)
        found: tuple[Array, ...] = lax.cond(
            place >= 0,
            lambda: self._watched(f, formats, args, place),
            lambda: self._numbers(f, formats, args),
        )
        return found

    def _numbers(
        self, f: Callable[..., Any], formats: Sequence[str], args: tuple[Held, ...]
    ) -> tuple[Array, ...]:
        """Return the numbers of a tile that nobody looks at."""
        return narrowed(self.machine, partial(f, self.setup), formats)(*args)[0]

    def _watched(
        self, f: Callable[..., Any], formats: Sequence[str], args: tuple[Held, ...], place: Index
    ) -> tuple[Array, ...]:
        """Return the numbers of a tile and write its events to the place of the sample."""
        assert self.watch is not None
        recorder, _, kept = self.watch
        found, seen = narrowed(
            self.machine, partial(f, replace(self.setup, record=Record())), formats
        )(*args)
        recorder.keep(kept, seen, place)
        return found
