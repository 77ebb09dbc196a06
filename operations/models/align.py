"""`align`: which operations of two runs are the same one, and how their results correspond.

Operations are matched by module and name. A stretch of other operations in either run is matched
as a whole if as many of its results are read later; else, as where only one run has it, together
with the operations after it.

A run of several forward passes, as of a server that reads one token at a time, is matched with a
run of one pass: results of the passes are parts of the result of the one. A run of a larger batch
has the results of the smaller one as rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from roundscope.operations.models.tape import UNKNOWN, Entry, Tape

Name = Literal["a", "b"]
Slot = tuple[int, int]  # the number of a pair, and of its output


class Incomparable(ValueError):
    """Two runs of which operations cannot be matched, or that are of other inputs."""


class Pair(NamedTuple):
    """The same operation in two runs: its entries in each, by forward pass where these differ."""

    a: tuple[tuple[int, ...], ...]
    b: tuple[tuple[int, ...], ...]


class Port(NamedTuple):
    """How a value of a run corresponds to a result that both runs have.

    It is the same ("whole"), a part of it along an axis ("part"), or has it as its rows ("rows").
    """

    slot: Slot
    kind: Literal["whole", "part", "rows"] = "whole"
    axis: int = 0
    start: int = 0
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The pairs of two runs, in the order of a.

    Attributes:
        a: A run.
        b: The other one.
        pairs: The pairs; the last one is what comes after them: log-probabilities, or outputs.
        ports: Of each run, how its values correspond to the results of the pairs.
        results: Of each run and slot, the values that make it up.
    """

    a: Tape
    b: Tape
    pairs: Sequence[Pair]
    ports: dict[Name, dict[int, Port]] = field(default_factory=dict)
    results: dict[Name, dict[Slot, list[int]]] = field(default_factory=dict)

    def tape(self, name: Name) -> Tape:
        """Return a run by its name."""
        return self.a if name == "a" else self.b


def _key(entry: Entry) -> tuple[str, str]:
    return entry.module, entry.function if entry.operation == UNKNOWN else entry.operation


def align(a: Tape, b: Tape) -> Alignment:
    """Match the operations of two runs.

    Raises:
        Incomparable: Their forward passes or results do not correspond.
    """
    if a.steps != b.steps and 1 not in (a.steps, b.steps):
        raise Incomparable(
            f"{a.steps} and {b.steps} forward passes: compare runs of as many, or with one of one"
        )
    pairs = _joined(a, b)
    while (number := _unequal(a, b, pairs)) is not None:
        one, two = pairs[number : number + 2]
        pairs[number : number + 2] = [Pair(_merged(one.a, two.a), _merged(one.b, two.b))]
    alignment = Alignment(
        a=a, b=b, pairs=pairs, ports={"a": {}, "b": {}}, results={"a": {}, "b": {}}
    )
    for number, (outs_a, outs_b) in enumerate(_results(a, b, pairs)):
        for k in range(len(outs_a[0])):
            _connect(alignment, (number, k), [o[k] for o in outs_a], [o[k] for o in outs_b])
    return alignment


def _results(
    a: Tape, b: Tape, pairs: Sequence[Pair]
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Yield the results of each pair but the last, in either run and forward pass."""
    used = _used(a, [p.a for p in pairs]), _used(b, [p.b for p in pairs])
    for pair in pairs[:-1]:
        yield (
            [_outputs(a, call, used[0]) for call in pair.a],
            [_outputs(b, call, used[1]) for call in pair.b],
        )


def _unequal(a: Tape, b: Tape, pairs: Sequence[Pair]) -> int | None:
    """Return the first pair of which the runs go on with other results; None if there is none."""
    for number, (outs_a, outs_b) in enumerate(_results(a, b, pairs)):
        if len({len(outs) for outs in (*outs_a, *outs_b)}) > 1:
            return number
    return None


def _merged(
    one: Sequence[tuple[int, ...]], two: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    return tuple((*x, *y) for x, y in zip(one, two, strict=True))


def _joined(a: Tape, b: Tape) -> list[Pair]:
    """Return the pairs, the last one with what is left at the ends."""
    is_same = a.steps == b.steps
    (by_a, end_a), (by_b, end_b) = (
        ([t.counted], ()) if is_same else (list(_by_step(t)), _after_passes(t)) for t in (a, b)
    )
    for tape, steps in ((a, by_a), (b, by_b)):
        if any([_key(e) for e in step] != [_key(e) for e in steps[0]] for step in steps):
            name = "the first run" if tape is a else "the second run"
            raise Incomparable(f"{name}: its forward passes are not of the same operations")
    keys_a = [(_key(e), is_same and e.step) for e in by_a[0]]
    keys_b = [(_key(e), is_same and e.step) for e in by_b[0]]
    read_a, read_b = _readers(a), _readers(b)

    def stands_alone(x: Sequence[int], y: Sequence[int]) -> bool:
        return _read_later(a, [by_a[0][i].number for i in x], read_a) == _read_later(
            b, [by_b[0][j].number for j in y], read_b
        )

    pairs = [
        Pair(
            tuple(tuple(step[i].number for i in x) for step in by_a),
            tuple(tuple(step[j].number for j in y) for step in by_b),
        )
        for x, y in _matched(keys_a, keys_b, stands_alone)
    ]
    left = pairs.pop()
    return [*pairs, Pair((sum(left.a, ()) + end_a,), (sum(left.b, ()) + end_b,))]


def _by_step(tape: Tape) -> Iterator[list[Entry]]:
    end = {*_after_passes(tape)}
    for step in range(tape.steps):
        yield [e for e in tape.counted if e.step == step and e.number not in end]


def _after_passes(tape: Tape) -> tuple[int, ...]:
    """Return the operations that follow the logits of all forward passes: log-probabilities."""
    if tape.logits is None or tape.logprobs is None:
        return ()
    last = tape.made_by.get(tape.logits, len(tape.entries))
    return tuple(entry.number for entry in tape.counted if entry.number > last)


def _readers(tape: Tape) -> dict[int, set[int]]:
    """Return which operations read a value; the end of the run is -1."""
    found: dict[int, set[int]] = {}
    for entry in tape.counted:
        for value in tape.needs(list(entry.outputs), [entry.number])[1]:
            found.setdefault(value, set()).add(entry.number)
    for value in tape.needs([ending(tape)])[1]:
        found.setdefault(value, set()).add(-1)
    return found


def _read_later(tape: Tape, numbers: Sequence[int], readers: dict[int, set[int]]) -> int:
    """Return how many results of some entries others read."""
    values = [v for n in numbers for v in tape.entries[n].outputs]
    return sum(not readers.get(v, set()) <= set(numbers) for v in values)


def _matched(
    a: Sequence[object],
    b: Sequence[object],
    stands_alone: Callable[[Sequence[int], Sequence[int]], bool],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return which numbers of two sequences go together; the last of them may be empty."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    only_a: tuple[int, ...] = ()
    only_b: tuple[int, ...] = ()
    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    for code, i, i_end, j, j_end in codes:
        if code != "equal":
            only_a, only_b = (*only_a, *range(i, i_end)), (*only_b, *range(j, j_end))
            if only_a and only_b and stands_alone(only_a, only_b):
                found.append((only_a, only_b))
                only_a = only_b = ()
            continue
        for x, y in zip(range(i, i_end), range(j, j_end), strict=True):
            # of operations with one name the first are matched, wherever more of them are
            if only_b and not only_a and b[only_b[0]] == a[x]:
                found.append(((x,), (only_b[0],)))
                only_b = (*only_b[1:], y)
            elif only_a and not only_b and a[only_a[0]] == b[y]:
                found.append(((only_a[0],), (y,)))
                only_a = (*only_a[1:], x)
            else:
                found.append(((*only_a, x), (*only_b, y)))
                only_a = only_b = ()
    return [*found, (only_a, only_b)]


def _used(tape: Tape, pairs: Sequence[tuple[tuple[int, ...], ...]]) -> set[int]:
    """Return the values that operations, or the end, read from others."""
    used: set[int] = set()
    for calls in pairs:
        for call in calls:
            given = [v for n in call for v in tape.entries[n].outputs]
            used |= tape.needs(given, call)[1]
    return used | tape.needs([ending(tape)], pairs[-1][0])[1]


def ending(tape: Tape) -> int:
    """Return the value that is compared in the end: log-probabilities, logits, or the output."""
    value = next(v for v in (tape.logprobs, tape.logits, tape.output) if v is not None)
    return value


def _outputs(tape: Tape, call: Sequence[int], used: set[int]) -> list[int]:
    """Return the results of a call: all of one entry, and of several those that others read."""
    values = [v for n in call for v in tape.entries[n].outputs]
    return values if len(call) == 1 else [v for v in values if v in used]


def _connect(alignment: Alignment, slot: Slot, values_a: list[int], values_b: list[int]) -> None:
    """Say how the values of two runs correspond to a result."""
    for name, values in (("a", values_a), ("b", values_b)):
        alignment.results[name][slot] = values  # type: ignore[index]
    tape_a, tape_b = alignment.a, alignment.b
    shapes_a = [tape_a.values[v].shape for v in values_a]
    shapes_b = [tape_b.values[v].shape for v in values_b]
    ports_a, ports_b = alignment.ports["a"], alignment.ports["b"]
    where = title(tape_a, alignment.pairs[slot[0]].a)
    if len(values_a) == len(values_b) == 1:
        (shape_a,), (shape_b,) = shapes_a, shapes_b
        ports_a[values_a[0]], ports_b[values_b[0]] = Port(slot), Port(slot)
        if shape_a == shape_b:
            return
        large, shape, small = (
            (ports_a, shape_a, shape_b) if shape_a > shape_b else (ports_b, shape_b, shape_a)
        )
        if not small or shape[1:] != small[1:] or shape[0] % small[0]:
            raise Incomparable(f"{where}: shapes {shape_a} and {shape_b}")
        tape, value = (tape_a, values_a[0]) if large is ports_a else (tape_b, values_b[0])
        large[value] = Port(slot, "rows", 0, tape.row * small[0], small[0])
        return
    values, shapes, ports, full = (
        (values_b, shapes_b, ports_b, shapes_a[0])
        if len(values_a) == 1
        else (values_a, shapes_a, ports_a, shapes_b[0])
    )
    (ports_a if len(values_a) == 1 else ports_b)[
        (values_a if len(values_a) == 1 else values_b)[0]
    ] = Port(slot)
    first = shapes[0]
    axes = [i for i, (x, y) in enumerate(zip(full, first, strict=False)) if x != y]
    if len(full) != len(first) or len(axes) != 1:
        raise Incomparable(
            f"{where}: shapes {full} and {first} in the first of {len(values)} passes"
        )
    start = 0
    for value, shape in zip(values, shapes, strict=True):
        ports[value] = Port(slot, "part", axes[0], start, shape[axes[0]])
        start += shape[axes[0]]
    if start != full[axes[0]]:
        raise Incomparable(
            f"{where}: {start} tokens in {len(values)} passes, and {full[axes[0]]} in"
            " one; generate() keeps the logits of last tokens only: call the model with a cache"
        )


def title(tape: Tape, calls: Sequence[Sequence[int]]) -> str:
    """Return a pair in words, by the entries of a run."""
    return " + ".join(tape.entries[n].title for n in calls[0]) or "the end of the run"
