"""What a program of a fused kernel does with a tile: it computes its numbers and records its
events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from jax import Array, lax

from roundscope.attention.engines.kernels.masks import Exists
from roundscope.attention.engines.kernels.record import Memory, Recorder
from roundscope.attention.events.recorder import Record
from roundscope.attention.tiles.index import Index
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.held import Machine
from roundscope.emu.backends.kernels.narrowing import narrowed

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

        f also returns what was recorded of the tile. It is written to memory if the trace looks at
        the tile.

        tile: the number of the tile that is walked over; None for a step that a program does once.
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
        self, f: Callable[..., Any], formats: Sequence[str], args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        """Return the numbers of a tile without recording it."""
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
