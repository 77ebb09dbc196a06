"""`align`: which operations of two runs are the same one, and how their results correspond.

Operations are matched by module and name. A stretch of other operations in either run is matched
as a whole if as many of its results are read later; else, as where only one run has it, together
with the operations after it.

A run of several forward passes, as of a server that reads one token at a time, is matched with a
run of one pass: results of the passes are parts of the result of the one. A run of a larger batch,
or one with padding, has the results of the other one as a part (`ports`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import NamedTuple

from roundscope.operations.models.comparing.ports import Name, Port, Slot, Unconnected, connected
from roundscope.operations.models.comparing.tokens import Incomparable, Tokens, common_tokens
from roundscope.operations.models.tape import UNKNOWN, Entry, Tape


class Pair(NamedTuple):
    """The same operation in two runs: its entries in each, by forward pass where these differ."""

    a: tuple[tuple[int, ...], ...]
    b: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The pairs of two runs, in the order of a.

    Attributes:
        a: A run.
        b: The other one.
        pairs: The pairs; the last one is what comes after them: log-probabilities, or outputs.
        ports: Of each run, how its values correspond to the results of the pairs.
        results: Of each run and slot, the values that make it up.
        loose: Of each run, values that have no part in any slot, such as those of padding.
        tokens: Of each run, where the compared tokens are; {} if they read none.
    """

    a: Tape
    b: Tape
    pairs: Sequence[Pair]
    ports: dict[Name, dict[int, Port]] = field(default_factory=dict)
    results: dict[Name, dict[Slot, list[int]]] = field(default_factory=dict)
    loose: dict[Name, set[int]] = field(default_factory=dict)
    tokens: dict[Name, Tokens] = field(default_factory=dict)

    def tape(self, name: Name) -> Tape:
        """Return a run by its name."""
        return self.a if name == "a" else self.b


def _key(entry: Entry) -> tuple[str, str]:
    return entry.module, entry.function if entry.operation == UNKNOWN else entry.operation


def align(a: Tape, b: Tape) -> Alignment:
    """Match the operations of two runs.

    Raises:
        Incomparable: Their tokens, forward passes or results do not correspond.
    """
    if a.steps != b.steps and 1 not in (a.steps, b.steps):
        raise Incomparable(
            f"{a.steps} and {b.steps} forward passes: compare runs of as many, or with one of one"
        )
    tokens = common_tokens(a, b)
    pairs = _joined(a, b)
    found = Alignment(
        a=a,
        b=b,
        pairs=pairs,
        ports={"a": {}, "b": {}},
        results={"a": {}, "b": {}},
        loose={"a": set(), "b": set()},
        tokens={} if tokens is None else {"a": tokens[0], "b": tokens[1]},
    )
    read_a, read_b = _readers(a), _readers(b)
    number, reason = 0, ""
    while number < len(pairs) - 1:
        pair = pairs[number]
        values_a = [_outputs(a, call, read_a) for call in pair.a]
        values_b = [_outputs(b, call, read_b) for call in pair.b]
        where = title(a, pair.a)
        try:
            if len({len(values) for values in (*values_a, *values_b)}) > 1:
                raise Unconnected(f"{where}: other numbers of results are read later")
            each = [
                connected(
                    (number, k),
                    [(a, [values[k] for values in values_a]), (b, [x[k] for x in values_b])],
                    tokens,
                )
                for k in range(len(values_a[0]))
            ]
        except Unconnected as error:
            if not reason:
                made_anew = tokens is not None and (
                    _made_anew(a, values_a, tokens[0]) or _made_anew(b, values_b, tokens[1])
                )
                reason = f"{where}: {error}{made_anew or ''}"
            if number == len(pairs) - 2:
                raise Incomparable(reason) from None
            one, two = pairs[number : number + 2]
            pairs[number : number + 2] = [Pair(_merged(one.a, two.a), _merged(one.b, two.b))]
            continue
        for k, ports in enumerate(each):
            values: dict[Name, list[int]] = {
                "a": [x[k] for x in values_a],
                "b": [x[k] for x in values_b],
            }
            for name, own in ports.items():
                found.ports[name] |= own
                found.results[name][number, k] = [v for v in values[name] if v in own]
                found.loose[name] |= {v for v in values[name] if v not in own}
        number, reason = number + 1, ""
    return found


def _made_anew(tape: Tape, values: Sequence[Sequence[int]], tokens: Tokens) -> str:
    """Return what to do where each forward pass makes a result for all tokens so far, else ""."""
    ends = [*accumulate(tokens.lengths)]
    if len(values) < 2 or len(values) != len(ends):
        return ""
    for one in zip(*values, strict=False):
        if ends in map(list, zip(*(tape.values[v].shape for v in one), strict=False)):
            return (
                "; each forward pass makes it anew for all tokens so far, as models with ALiBi do,"
                " so it is no part of the other run's; let both sides read the tokens in the same"
                f" passes (of PyTorch's models, run=decoded(prompt={ends[0]}) on both)"
            )
    return ""


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
    read_a, read_b = _readers(a), _readers(b)
    each = []  # of each forward pass, by where a stretch ends in either run
    for n in range(max(len(by_a), len(by_b))):
        own, other = by_a[min(n, len(by_a) - 1)], by_b[min(n, len(by_b) - 1)]

        def stands_alone(
            x: Sequence[int],
            y: Sequence[int],
            own: list[Entry] = own,
            other: list[Entry] = other,
        ) -> bool:
            return _read_later(a, [own[i].number for i in x], read_a) == _read_later(
                b, [other[j].number for j in y], read_b
            )

        keys = [[(_key(e), is_same and e.step) for e in entries] for entries in (own, other)]
        matched = _matched(keys[0], keys[1], stands_alone)
        each.append([(x[-1] + 1, y[-1] + 1) for x, y in matched[:-1]])
    which = 0 if len(by_a) == 1 else 1  # the run of one pass, whose stretches all passes share
    shared = set.intersection(*({ends[which] for ends in stretches} for stretches in each))
    kept = [[ends for ends in stretches if ends[which] in shared] for stretches in each]

    def calls(entries: Sequence[list[Entry]], side: int) -> list[tuple[tuple[int, ...], ...]]:
        found = []
        for step, own in enumerate(entries):
            cuts = [0, *(ends[side] for ends in kept[step]), len(own)]
            found.append([tuple(e.number for e in own[i:j]) for i, j in pairwise(cuts)])
        return list(zip(*found, strict=True))

    *pairs, left = (Pair(x, y) for x, y in zip(calls(by_a, 0), calls(by_b, 1), strict=True))
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


def ending(tape: Tape) -> int:
    """Return the value that is compared in the end: log-probabilities, logits, or the output."""
    value = next(v for v in (tape.logprobs, tape.logits, tape.output) if v is not None)
    return value


def _outputs(tape: Tape, call: Sequence[int], readers: dict[int, set[int]]) -> list[int]:
    """Return the results of a call: all of one entry, and of several those that others read."""
    values = [v for n in call for v in tape.entries[n].outputs]
    if len(call) == 1:
        return values
    return [v for v in values if not readers.get(v, set()) <= set(call)]


def title(tape: Tape, calls: Sequence[Sequence[int]]) -> str:
    """Return a pair in words, by the entries of a run."""
    return " + ".join(tape.entries[n].title for n in calls[0]) or "the end of the run"
