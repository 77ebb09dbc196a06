"""What a program of a fused kernel does with a tile: its arithmetic, and what it writes down
of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jax import Array, lax

from roundscope.attention.engines.kernels.record import Kept, Recorder
from roundscope.attention.events.recorder import Record
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import Held, Machine
from roundscope.emu.backends.kernels.narrowing import narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A program's arithmetic.

    machine  what does it;  setup: of the call, without a record;  head, own: the numbers of the
             program's head and tile
    watch    who looks at its events, where the sample of tiles begins, and where events are
             written; None where nobody looks
    """

    machine: Machine
    setup: Setup
    head: Any
    own: Any
    watch: tuple[Recorder, Any, Sequence[Kept]] | None

    def tile(
        self, f: Callable[..., Any], formats: Sequence[str], tile: Any, *args: Held
    ) -> tuple[Array, ...]:
        """What f returns of (setup, args): numbers, as arrays for these formats, and what was seen
        of a tile, which is written where the tile is looked at. tile: the number of the one walked
        over; None for what a program does once.
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
        return narrowed(self.machine, partial(f, self.setup), formats)(*args)[0]

    def _watched(
        self, f: Callable[..., Any], formats: Sequence[str], args: tuple[Held, ...], place: Any
    ) -> tuple[Array, ...]:
        assert self.watch is not None
        recorder, _, kept = self.watch
        found, seen = narrowed(
            self.machine, partial(f, replace(self.setup, record=Record())), formats
        )(*args)
        recorder.keep(kept, seen, place)
        return found
