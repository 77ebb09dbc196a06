"""Running the operations of two runs again, each with the arithmetic of either run.

`Replay.ended(swapped)` is the first run with some operations of the second one in the places of its
own. An operation runs with what leads to it since the operations before: views, and casts. Where
the results that it is given are of another type than in its own run, they are rounded to that type
first.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from roundscope.operations.models.comparing.align import Alignment, ending, title
from roundscope.operations.models.comparing.ports import Name, Port, Slot
from roundscope.operations.models.tape import Tape

Slots = Mapping[Slot, Any]


class ReplayError(RuntimeError):
    """A run does not give the same bits again, so nothing can be said by replaying it."""


class NotRunnable(RuntimeError):
    """An operation that cannot run on other inputs than those that were captured."""


def check_replays(tape: Tape, name: str = "run") -> None:
    """Run every entry of a tape that can run again, and compare every bit of every result.

    Args:
        tape: The tape.
        name: What the run is called in an error message.

    Raises:
        ReplayError: One differs; it is named.
    """
    for entry in tape.entries:
        if entry.number not in tape.runners:
            continue
        if "empty" in entry.function.rpartition(".")[2]:  # whose numbers mean nothing
            continue
        again = tape.run(entry.number, {})
        for value, x in zip(entry.outputs, again, strict=True):
            if not same(tape.numpy(value), tape.arrays.numpy(x)):
                raise ReplayError(
                    f"{name}: {entry.title}, entry {entry.number} ({entry.function}): run again on"
                    " the same inputs it gives other bits; make it deterministic (model.eval() for"
                    " dropout, one thread, no atomics), or compare runs without it"
                )


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether two arrays hold the same numbers, NaN equal to NaN and 0 not to -0."""
    if x.shape != y.shape:
        return False
    if x.dtype == y.dtype and x.tobytes() == y.tobytes():
        return True
    x, y = wide(x), wide(y)
    return bool(np.all(((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))))


def wide(x: np.ndarray) -> np.ndarray:
    """Return numbers in binary64."""
    return x.astype(np.float64)


class Replay:
    """Two aligned runs, whose operations run again."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment, self.pairs = alignment, alignment.pairs
        self.put_in: set[int] = set()  # pairs of which only a difference is put in
        self._plans: dict[tuple[Name, int, int], tuple[list[int], set[int]]] = {}

    @cached_property
    def recorded(self) -> dict[Name, dict[Slot, Any]]:
        """The results of the pairs as either run had them."""
        found: dict[Name, dict[Slot, Any]] = {"a": {}, "b": {}}
        for name, slots in self.alignment.results.items():
            tape = self.alignment.tape(name)
            for slot, values in slots.items():
                found[name][slot] = self._slot(name, slot, [tape.values[v].array for v in values])
        return found

    def _slot(self, name: Name, slot: Slot, arrays: Sequence[Any]) -> Any:
        """Return a result from what a run has of it."""
        tape = self.alignment.tape(name)
        ports = [self.alignment.ports[name][v] for v in self.alignment.results[name][slot]]
        parts = []
        for x, port in zip(arrays, ports, strict=True):
            x = tape.arrays.shaped(x, port.view) if port.view else x
            for span in port.inside:
                x = tape.arrays.part(x, *span)
            parts.append(x)
        first = ports[0].part
        return parts[0] if first is None else tape.arrays.joined(parts, first.axis)

    def _value(self, name: Name, value: int, port: Port, slots: Slots) -> Any:
        """Return a value of a run from a result, in the type that it has in that run."""
        tape = self.alignment.tape(name)
        old = tape.values[value]
        x = tape.arrays.cast(slots[port.slot], old.dtype)
        if port.part:
            x = tape.arrays.part(x, *port.part)
        if port.inside:
            whole = tape.arrays.shaped(old.array, port.view or old.shape)
            x = tape.arrays.put(whole, port.inside, x)
        return tape.arrays.shaped(x, old.shape) if port.view else x

    def _plan(self, name: Name, pair: int, call: int) -> tuple[list[int], set[int]]:
        """Return what runs for a call of a pair, and the values that it begins with."""
        key = (name, pair, call)
        if key not in self._plans:
            tape, numbers = self.alignment.tape(name), getattr(self.pairs[pair], name)[call]
            if pair == len(self.pairs) - 1:
                self._plans[key] = tape.needs([ending(tape)], numbers)
            else:
                results = self.alignment.results[name]
                own = [
                    v
                    for slot, values in results.items()
                    if slot[0] == pair
                    for v in values
                    if tape.made_by[v] in numbers
                ]
                self._plans[key] = tape.needs(own, numbers)
        return self._plans[key]

    def reads(self, pair: int) -> set[Slot]:
        """Return the results that a pair reads, in either run."""
        found: set[Slot] = set()
        for name in ("a", "b"):
            ports = self.alignment.ports[name]
            for call in range(len(getattr(self.pairs[pair], name))):
                begin = self._plan(name, pair, call)[1]
                found |= {ports[v].slot for v in begin if v in ports}
        return found

    def unconnected(self, pair: int) -> set[int]:
        """Return values of operations that a pair reads in one run, and the other one has not."""
        found: set[int] = set()
        for name in ("a", "b"):
            tape, ports = self.alignment.tape(name), self.alignment.ports[name]
            for call in range(len(getattr(self.pairs[pair], name))):
                begin = self._plan(name, pair, call)[1]
                loose = self.alignment.loose[name]
                found |= {v for v in begin - loose if v in tape.made_by and v not in ports}
        return found

    def run(self, name: Name, pair: int, slots: Slots) -> dict[Slot, Any]:
        """Return the results of a pair with the arithmetic of a run.

        Args:
            name: The run whose arithmetic it is.
            pair: The number of the pair.
            slots: The results that it reads, of whatever run.
        """
        tape, ports = self.alignment.tape(name), self.alignment.ports[name]
        if not (self.is_runnable(name, pair) or self._is_as_recorded(name, pair, slots)):
            return self._put_in(name, pair, slots)
        if not self.is_runnable(name, pair):
            if pair == len(self.pairs) - 1:
                return {(pair, 0): self.last(name)}
            return {s: x for s, x in self.recorded[name].items() if s[0] == pair}
        known: dict[int, Any] = {}
        for call in range(len(getattr(self.pairs[pair], name))):
            numbers, begin = self._plan(name, pair, call)
            for value in begin:
                if value in ports and value not in known:
                    known[value] = self._value(name, value, ports[value], slots)
            for number in numbers:
                entry = tape.entries[number]
                if all(v in known for v in entry.outputs):
                    continue
                known |= zip(entry.outputs, tape.run(number, known), strict=True)
        if pair == len(self.pairs) - 1:
            return {(pair, 0): known.get(ending(tape), self.last(name))}
        return {
            slot: self._slot(name, slot, [known[v] for v in values])
            for slot, values in self.alignment.results[name].items()
            if slot[0] == pair
        }

    def _put_in(self, name: Name, pair: int, slots: Slots) -> dict[Slot, Any]:
        """Return the results of a pair whose arithmetic cannot run: those of the other run, plus
        the difference between the two where it is known.

        Raises:
            NotRunnable: The other run's arithmetic cannot run either.
        """
        tape = self.alignment.tape(name)
        other: Name = "b" if name == "a" else "a"
        if pair == len(self.pairs) - 1 or not self.is_runnable(other, pair):
            raise NotRunnable(title(tape, getattr(self.pairs[pair], name)))
        self.put_in.add(pair)
        old = self.run(other, pair, self.recorded[name])
        now = self.run(other, pair, slots)
        own = self.recorded[name]
        return {s: tape.arrays.shifted(now[s], own[s], old[s]) for s in now}

    def is_runnable(self, name: Name, pair: int) -> bool:
        """Return whether a pair can run on other inputs."""
        runners = self.alignment.tape(name).runners
        calls = range(len(getattr(self.pairs[pair], name)))
        return all(n in runners for call in calls for n in self._plan(name, pair, call)[0])

    def _is_as_recorded(self, name: Name, pair: int, slots: Slots) -> bool:
        """Return whether what a pair reads is what it read in its own run."""
        own, numpy = self.recorded[name], self.alignment.tape(name).arrays.numpy
        ports = self.alignment.ports[name]
        calls = range(len(getattr(self.pairs[pair], name)))
        read = {v for call in calls for v in self._plan(name, pair, call)[1] if v in ports}
        return all(
            slots[s] is own[s] or same(numpy(slots[s]), numpy(own[s]))
            for s in {ports[v].slot for v in read}
        )

    def end_of(self, name: Name, slots: Slots) -> np.ndarray:
        """Return what a run ends with, in binary64: log-probabilities by token, or its output."""
        pair = len(self.pairs) - 1
        return self.ended_with(name, self.run(name, pair, slots)[pair, 0])

    def last(self, name: Name) -> Any:
        """Return the last value of a run, as the run had it."""
        tape = self.alignment.tape(name)
        return tape.values[ending(tape)].array

    def ended_with(self, name: Name, array: Any) -> np.ndarray:
        """Return log-probabilities of the tokens, or the output, from the last value of a run."""
        tape = self.alignment.tape(name)
        x = wide(tape.arrays.numpy(array))
        if tape.logprobs is None and tape.logits is None:
            return self._rows(name, x).reshape(-1)
        first, end = self.predicting
        if tape.logprobs is None:
            x = self.compared(name, x)[:, : end - first]
            x = np.take_along_axis(log_softmax(x), self._predicted(first, end), -1)
        else:
            start = self.alignment.tokens[name].start
            x = self._rows(name, x)[:, start + first : start + end]
        return x.reshape(-1)

    @cached_property
    def common(self) -> tuple[int, int]:
        """The tokens, (first, end) among those that are compared, of which both runs have logits.

        Log-probabilities are as if logits of all tokens were there.
        """
        first, count = 0, 0
        for name, own in self.alignment.tokens.items():
            tape = self.alignment.tape(name)
            first, count = max(first, tape.first - own.start), own.size
        return first, count

    @property
    def predicting(self) -> tuple[int, int]:
        """The tokens, (first, end), whose logits are of a token that is known."""
        first, end = self.common
        return first, min(end, self._known().shape[1] - 1)

    def _known(self) -> np.ndarray:
        """Return the compared tokens, and the last one of a generation, which that did not read."""
        found = []
        for name, own in self.alignment.tokens.items():
            tape = self.alignment.tape(name)
            assert tape.tokens is not None
            tokens = tape.tokens[own.row : own.row + own.rows, own.start :]
            found.append((tokens.shape[1], tape.steps, tokens))
        (short, steps, tokens), (long, _, more) = sorted(found, key=lambda x: x[0])
        return more if long == short + 1 and steps > 1 else tokens[:, :short]

    def _predicted(self, first: int, end: int) -> np.ndarray:
        return self._known()[:, first + 1 : end + 1, None]

    def _rows(self, name: Name, x: np.ndarray) -> np.ndarray:
        if not (own := self.alignment.tokens.get(name)) or len(x) != own.batch:
            return x
        return x[own.row : own.row + own.rows]

    def compared(self, name: Name, logits: np.ndarray) -> np.ndarray:
        """Return the logits of the tokens of which both runs have them."""
        own, tape = self.alignment.tokens[name], self.alignment.tape(name)
        first, end = self.common
        start = own.start - tape.first
        return self._rows(name, logits)[:, start + first : start + end]

    def ended(
        self, swapped: Collection[int], nudged: Mapping[int, int] | None = None
    ) -> np.ndarray:
        """Return what the first run ends with if some pairs have the arithmetic of the second.

        Args:
            swapped: The numbers of these pairs.
            nudged: Pairs some numbers of whose results are moved by one unit, each with a seed.
        """
        slots = dict(self.recorded["a"])
        nudged = nudged or {}
        if not (changed := {*swapped, *nudged}):
            return self.ended_with("a", self.last("a"))
        arrays = self.alignment.a.arrays
        moved: set[Slot] = set()
        last = len(self.pairs) - 1
        for pair in range(min(changed), last):
            if pair not in changed and not self.reads(pair) & moved:
                continue
            found = self.run("b" if pair in swapped else "a", pair, slots)
            if pair in nudged:
                found = {slot: arrays.nudged(x, nudged[pair]) for slot, x in found.items()}
            slots |= found
            moved |= set(found)
        return self.end_of("b" if last in swapped else "a", slots)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Return log-probabilities in binary64."""
    x = x - x.max(-1, keepdims=True)
    found: np.ndarray = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return found
