"""`compare_tapes`: where two runs of a model differ first, which operations make the difference,
and how much of the gap between their log-probabilities each of them is worth.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from roundscope.operations.models.align import Alignment, align, ending, title
from roundscope.operations.models.ports import NAMES, Name, Slot
from roundscope.operations.models.replay import (
    NotRunnable,
    Replay,
    check_replays,
    log_softmax,
    same,
    wide,
)
from roundscope.operations.models.shares import Share, shares
from roundscope.operations.models.tape import PARAMETER, UNKNOWN, Entry, Tape, refs
from roundscope.operations.models.tape_file import digested
from roundscope.operations.models.tokens import Incomparable, common_tokens, passes

TOP = 8  # the most probable tokens that are compared as a set
LAYER = re.compile(r"((?:\w+\.)*?\d+)\.")  # the path of the first module in a list
MOST_STEPS = 8  # of an arithmetic that are told
FEW = 5  # names up to which all are told
REPEATS = 4  # runs with other last bits, by which the noise of a share is measured
Digests: TypeAlias = Mapping[str, tuple[str, tuple[int, ...], str]]  # type, shape and digest
Made = Literal["here", "inherited", "equal", "undecided"]


class Row(NamedTuple):
    """An operation of two runs.

    Attributes:
        number: Its number among the operations that were compared.
        title: Its name and module.
        operation: Its name.
        function: What computed it, in the first and in the second run.
        made: "equal" results; a difference made "here", where the first run's arithmetic gives
            other results on the second run's inputs; "inherited" from its inputs; or "undecided".
        differ: The share of its numbers that differ, on the same inputs if it is made here.
        ulps: The largest difference of these, in units of the last place of the coarser type; 0
            too where one side's log-probabilities are computed in binary64 and not rounded.
    """

    number: int
    title: str
    operation: str
    function: tuple[str, str]
    made: Made
    differ: float
    ulps: float


class Group(NamedTuple):
    """Operations whose arithmetic differs in the same way.

    Attributes:
        name: The operation.
        a: What computes it in the first run.
        b: What computes it in the second run.
        rows: The numbers of its rows.
        share: Its part of the gap.
        alone: The gap that it makes alone, as a part of the whole one.
        without: What is missing from the gap where all others are put in.
        noise: How far `alone` moves if last bits of its results are rolled again.
        is_most: Whether one of its rows is a stretch of most operations of the run.
    """

    name: str
    a: str
    b: str
    rows: tuple[int, ...]
    share: float
    alone: float
    without: float
    noise: float
    is_most: bool = False

    def __str__(self) -> str:
        return self.name if self.a == self.b else f"{self.name} (A: {self.a}; B: {self.b})"

    @property
    def is_told_apart(self) -> bool:
        """Whether its share is above its noise."""
        return abs(self.share) > self.noise


class Flip(NamedTuple):
    """A decision that differs: the most probable token or tokens, or the experts of a token.

    Attributes:
        position: The position of the token.
        what: "argmax" or "top-8" of the logits, or "experts" of a module that routes tokens.
        a: The tokens or experts of the first run that the second one does not have.
        b: Those of the second run that the first one does not have.
        margin: The margin in the first run's logits or scores by which it was decided.
    """

    position: int
    what: str
    a: tuple[int, ...]
    b: tuple[int, ...]
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What differs between two runs. Printed, it is its sentence.

    Attributes:
        equal: Whether every result of every operation is equal.
        rows: The operations in the order of the first run.
        first: The first whose result differs from equal inputs; None if there is none.
        groups: What makes the difference, the largest share first.
        left: The part of the gap that is not explained by the groups.
        interaction: What the gaps of each group alone miss of the whole one.
        unknown: How many operations are not known by a name in either run.
        gap: The difference of the log-probabilities by token, second minus first.
        kl: The mean over tokens of KL(first || second), in nats; None without logits.
        mean: The mean of |gap|.
        largest: The largest |gap|.
        is_logprobs: Whether the gap is one of log-probabilities; else of the outputs.
        flips: Decisions that differ.
        notes: What else a reader must know.
        is_partial: Whether the second run is known by some of its results alone, which are the
            rows then.
    """

    equal: bool
    rows: tuple[Row, ...]
    first: Row | None
    groups: tuple[Group, ...]
    left: float
    interaction: float
    unknown: int
    gap: np.ndarray
    kl: float | None
    mean: float
    largest: float
    is_logprobs: bool
    flips: tuple[Flip, ...]
    notes: tuple[str, ...]
    is_partial: bool = False

    def __repr__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The answer in a sentence, and in a second one what is not told apart."""
        stretch = next((group.name for group in self.groups if group.is_most), "")
        return self._answer + (
            f" {stretch} is one stretch of most operations, which are not told apart: compile the"
            " leaves of the model instead of all of it, or compare models of one architecture."
            if stretch
            else ""
        )

    @property
    def _answer(self) -> str:
        if self.is_partial:
            return self._partial_answer
        what = "log-probabilities" if self.is_logprobs else "numbers of the output"
        size = f"{self.gap.size:,} {what}"
        count = f"{len(self.rows):,} operations, {size}"
        if self.equal:
            return f"The two runs are equal: {count}, every bit."
        if not self.groups:
            made = sum(row.made == "undecided" for row in self.rows)
            if not made:
                return f"The {what} are equal, though intermediate results differ."
            return (
                f"The two runs differ, and of {made} operations it is not decided which makes it."
            )
        if not self.gap.any():
            names = ", ".join(group.name for group in self.groups)
            return f"The {what} are equal, every bit; {names} differ."
        if isnan(self.groups[0].share):
            names = ", ".join(str(group) for group in self.groups)
            if lost := int((~np.isfinite(self.gap)).sum()):
                first = next((row for row in self.rows if row.ulps == inf), None)
                where = "" if first is None else f", first in {first.title}"
                return f"{lost:,} of {size} are infinite or NaN in one run{where}; made by {names}."
            return f"The {what} differ; made by {names}."
        parts = [f"{group}: {group.share:.0%}" for group in self.groups if group.is_told_apart]
        rest = [str(group) for group in self.groups if not group.is_told_apart]
        parts += [f"{', '.join(rest)}: not told apart from noise"] if rest else []
        return f"The gap of the {what} is made by {'; '.join(parts)}."

    @property
    def _partial_answer(self) -> str:
        total = len(self.rows)
        differing = [row for row in self.rows if row.made != "equal"]
        if not differing:
            also = f", and its {self.gap.size:,} log-probabilities" if self.gap.size else ""
            if self.gap.any():
                return (
                    f"The {total:,} results that B kept are equal, every bit, but its"
                    f" log-probabilities differ, by up to {self.largest:.2g}."
                )
            return f"The {total:,} results that B kept{also} are equal, every bit."
        here = sum(row.made == "here" for row in differing)
        told = f"{len(differing):,} of the {total:,} results that B kept differ"
        told += f", {here:,} of them by what is done there and {len(differing) - here:,} inherited"
        if self.first is not None:
            told += f"; the first is {self.first.title}"
        parts = [
            str(group) + ("" if isnan(group.share) else f": {group.share:.0%}")
            for group in self.groups
        ]
        named = {n for group in self.groups for n in group.rows}
        if nameless := sum(row.made == "here" and row.number not in named for row in differing):
            parts.append(f"{nameless:,} by arithmetic that is not known")
        of_gap = " of the gap" if self.groups and not isnan(self.groups[0].share) else ""
        return f"{told}. Made{of_gap} by {'; '.join(parts)}." if parts else f"{told}."


def compare_tapes(
    a: Tape,
    b: Tape,
    *,
    identify: Callable[[Tape, int], str] = lambda tape, number: "",
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare two runs of a model on the same inputs.

    Args:
        a: A run.
        b: The other one.
        identify: Says which arithmetic an entry of a tape has, in words, "" where it is not known.
        tell: Told what is done, in words.

    Raises:
        Incomparable: They are of other tokens or weights, or of operations that do not correspond.
        ReplayError: A run, run again, gives other bits.
    """
    _check(a, b)
    replay = Replay(align(a, b))
    for number in range(len(replay.pairs)):
        if lost := replay.unconnected(number):
            names = ", ".join(
                a.entries[a.made_by[v]].title if v in a.made_by else str(v) for v in lost
            )
            raise Incomparable(f"{_title(replay.alignment, number)}: only one run reads {names}")
    tell("running both runs again")
    for tape, name in ((a, "A"), (b, "B")):
        check_replays(tape, name)
    tell("comparing operations")
    rows = [_row(replay, number) for number in range(len(replay.pairs))]
    rows = [row for row in rows if row.operation]
    ends = [replay.ended_with(name, replay.last(name)) for name in NAMES]
    if ends[0].shape != ends[1].shape:
        raise Incomparable(f"the runs end with {ends[0].size} and {ends[1].size} numbers")
    gap = gap_of(*ends)
    found = _groups(rows)
    groups: list[Group] = []
    left = interaction = 0.0
    worth: dict[str, Share] = {}
    noise: dict[str, float] = {}
    notes = _notes(a, b)
    if not_finite := int((~np.isfinite(gap)).sum()):
        what = [int((~np.isfinite(end)).sum()) for end in ends]
        notes.insert(
            0,
            f"infinite or NaN: {what[0]:,} numbers in A and {what[1]:,} in B of {gap.size:,}; the"
            f" gap of {not_finite:,} is not finite, so there are no shares",
        )
    if found and not not_finite and (size := float(gap @ gap)) > 0:
        tell(f"replaying {len(found)} groups of operations")

        def value(names: frozenset[str]) -> float:
            swapped = {n for name in names for n in found[name]}
            return float((replay.ended(swapped) - ends[0]) @ gap) / size

        try:
            worth = shares(list(found), value)
            noise = {name: _noise(replay, found[name], worth[name], ends[0], gap) for name in found}
            left = 1.0 - value(frozenset(found))
            interaction = 1.0 - left - sum(share.alone for share in worth.values())
        except NotRunnable as error:
            worth = {}
            notes.append(
                f"no shares: {error} cannot run on other inputs from a file; compare the models"
                " themselves"
            )
    if replay.put_in:
        notes.append(
            f"{len(replay.put_in)} operations cannot run on other inputs, so their difference was"
            " put in: shares are not exact"
        )
    for name, own in found.items():
        share = worth.get(name, Share(nan, nan, nan))
        words = _words(replay, own[0], identify)
        is_most = any(_is_most(replay.alignment, number) for number in own)
        groups.append(Group(name, *words, own, *share, noise.get(name, 0.0), is_most))
    groups.sort(key=lambda group: -abs(group.share))
    logits = _logits(replay)
    return Comparison(
        equal=all(row.made == "equal" for row in rows) and not gap.any(),
        rows=tuple(rows),
        first=next((row for row in rows if row.made == "here"), None),
        groups=tuple(groups),
        left=left,
        interaction=interaction,
        unknown=sum(_has_unknown(replay.alignment, row.number) for row in rows),
        gap=gap,
        kl=None if logits is None else kl_of(*logits),
        mean=float(np.abs(gap).mean()) if gap.size else 0.0,
        largest=float(np.abs(gap).max(initial=0.0)),
        is_logprobs=(a.logprobs if a.logits is None else a.logits) is not None,
        flips=(*([] if logits is None else flips_of(*logits)), *_routes(replay)),
        notes=tuple(notes),
    )


def gap_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return b - a, and 0 where both are infinite or NaN alike."""
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        found: np.ndarray = np.where(alike, 0.0, b - a)
    return found


def _check(a: Tape, b: Tape) -> None:
    """Refuse runs of other tokens, or of other weights."""
    weights = digested(a), digested(b)
    _check_architectures(*weights)
    other = [
        name
        for name, one in weights[0].items()
        if one[:2] == (two := weights[1].get(name, one))[:2] and one[2] != two[2]
    ]
    if other:
        largest, name = max((_apart(a, b, name), name) for name in other)
        name = name.removeprefix(PARAMETER)
        which = f"such as {name}" if largest < 0 else f"{name} most, by up to {largest:.3g}"
        raise Incomparable(
            f"weights: the runs are of other ones: {len(other)} of {len(weights[0])} parameters"
            f" differ, {which}; give both the same"
        )
    common_tokens(a, b)


def _apart(a: Tape, b: Tape, name: str) -> float:
    """Return the largest difference of a parameter; -1 if a file has no weights, and inf of NaN."""
    found = []
    for tape in (a, b):
        value = next(i for i, value in enumerate(tape.values) if value.name == name)
        if tape.values[value].array is None:
            return -1.0
        found.append(wide(tape.numpy(value)))
    largest = float(np.abs(found[0] - found[1]).max(initial=0.0))
    return inf if isnan(largest) else largest


def _check_architectures(a: Digests, b: Digests) -> None:
    """Refuse runs that have fewer than half of their parameters in common, by name or by shape.

    A run may have names that the other one has not, as where layers are fused, or none, as where
    the model is compiled as a whole.
    """
    names = [{name.removeprefix(PARAMETER) for name in each} for each in (a, b)]
    alone = [sorted(own - other) for own, other in (names, names[::-1])]
    _check_layers(names)
    if all(alone) and 2 * len(names[0] & names[1]) < min(map(len, names)):
        told = "; ".join(
            f"{side} alone has {len(own)}, such as {own[0]!r}"
            for side, own in zip("AB", alone, strict=True)
        )
        raise Incomparable(
            f"parameter names differ: two architectures, or one inside another module ({told});"
            " compare runs of the same model class"
        )
    common = [name for name in a if name in b]
    other = [name for name in common if a[name][1] != b[name][1]]
    if 2 * len(other) > len(common):
        one, two = a[other[0]][1], b[other[0]][1]
        raise Incomparable(
            f"parameter shapes differ: two architectures ({len(other)} of {len(common)}, such as"
            f" {other[0].removeprefix(PARAMETER)!r}, {one} and {two}); compare runs of the same"
            " model"
        )


def _check_layers(names: Sequence[set[str]]) -> None:
    """Refuse models of which one has layers, modules in a list, that the other one has not."""
    layers = [{m.group(1) for name in own if (m := LAYER.match(name)) is not None} for own in names]
    lists = [{path.rpartition(".")[0] for path in own} for own in layers]
    told = []
    for side, n in (("A", 0), ("B", 1)):
        missing = sorted(
            (path for path in layers[1 - n] - layers[n] if path.rpartition(".")[0] in lists[n]),
            key=lambda path: (path.rpartition(".")[0], int(path.rpartition(".")[2])),
        )
        if missing:
            which = ", ".join(missing[:FEW]) + (", ..." if len(missing) > FEW else "")
            told.append(f"{side} has no {which}")
    if told:
        raise Incomparable(f"layers differ: {'; '.join(told)}; compare models of as many layers")


def _is_most(alignment: Alignment, number: int) -> bool:
    """Return whether a pair is a stretch of most operations of a run."""
    for name in NAMES:
        calls = getattr(alignment.pairs[number], name)
        count = sum(map(len, calls))
        if len(calls[0]) > FEW and 2 * count > len(alignment.tape(name).counted):
            return True
    return False


def _has_unknown(alignment: Alignment, number: int) -> bool:
    return any(
        alignment.tape(name).entries[n].operation == UNKNOWN
        for name in NAMES
        for call in getattr(alignment.pairs[number], name)
        for n in call
    )


def _title(alignment: Alignment, number: int) -> str:
    pair = alignment.pairs[number]
    longer = (alignment.b, pair.b) if len(pair.b[0]) > len(pair.a[0]) else (alignment.a, pair.a)
    return title(*longer)


def _row(replay: Replay, number: int) -> Row:
    """Return what became of an operation: equal, made here, or inherited."""
    pair, a, b = replay.pairs[number], replay.alignment.a, replay.alignment.b
    entries_a = [a.entries[n] for n in pair.a[0]]
    entries_b = [b.entries[n] for n in pair.b[0]]
    longer = entries_b if len(entries_b) > len(entries_a) else entries_a
    recorded = replay.recorded
    is_last = number == len(replay.pairs) - 1

    def numbers(name: Name, slots: dict[Slot, Any]) -> list[np.ndarray]:
        if is_last:
            return [replay.end_of(name, slots)]
        return [replay.alignment.tape(name).arrays.numpy(slots[s]) for s in sorted(slots)]

    def results(name: Name) -> dict[Slot, Any]:
        return {s: x for s, x in recorded[name].items() if s[0] == number}

    if is_last:
        own, other = (numbers(n, recorded[n]) for n in NAMES)
    else:
        own, other = numbers("a", results("a")), numbers("b", results("b"))
    is_equal = all(map(same, own, other))
    inputs = replay.reads(number)
    reads_equal = all(
        same(a.arrays.numpy(recorded["a"][s]), b.arrays.numpy(recorded["b"][s])) for s in inputs
    )
    made: Made = "equal"
    if not (is_equal and reads_equal):
        try:
            found = recorded["b"] if is_last else replay.run("a", number, recorded["b"])
            again = numbers("a", found)
            if not all(map(same, again, other)):
                made, own = "here", again
            elif not is_equal:
                made = "inherited"
        except NotRunnable:
            made = "here" if reads_equal else "undecided"
    types = None
    if is_last:  # its numbers are in binary64
        ends = [tape.numpy(ending(tape)).dtype for tape in (a, b)]
        types = min(ends, key=lambda dtype: dtype.itemsize)
    differ, ulps = differences(own, other, types)
    if is_last and _has_default(a) != _has_default(b):
        ulps = 0.0  # one of them is not rounded to the type of the other
    is_shown = bool(longer) or made in ("here", "undecided")
    operation = _summed([entry.operation for entry in longer]) or "end"
    return Row(
        number=number,
        title=_summed([entry.title for entry in longer]) or "the end of the run",
        operation=operation if is_shown else "",
        function=(_functions(entries_a), _functions(entries_b)),
        made=made,
        differ=differ,
        ulps=ulps,
    )


def _functions(entries: Sequence[Entry]) -> str:
    return _summed([entry.function.removeprefix("torch.") for entry in entries])


def _summed(words: Sequence[str]) -> str:
    """Return words as a sum, each once; of many the first and the last."""
    each = list(dict.fromkeys(words))
    if len(each) > FEW:
        return f"{each[0]} to {each[-1]} ({len(words)} operations)"
    return " + ".join(each)


def differences(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray], dtype: np.dtype | None = None
) -> tuple[float, float]:
    """Return the share of numbers that differ, and the largest difference in ulps of a type, by
    default the coarser one.
    """
    count = total = 0
    largest = 0.0
    for one, two in zip(x, y, strict=True):
        narrow = dtype or min((one.dtype, two.dtype), key=lambda dtype: dtype.itemsize)
        u, v = wide(one), wide(two)
        unequal = (u != v) & ~(np.isnan(u) & np.isnan(v))
        count, total = count + int(unequal.sum()), total + u.size
        if (unequal & ~(np.isfinite(u) & np.isfinite(v))).any():
            largest = inf
        finite = unequal & np.isfinite(u) & np.isfinite(v)
        if finite.any():
            top = np.maximum(np.abs(u[finite]), np.abs(v[finite]))
            apart = np.abs(u[finite] - v[finite]) / _ulp(top, narrow)
            largest = max(largest, float(apart.max()))
    return (count / total if total else 0.0), largest


def _ulp(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the unit of the last place of normal numbers in a type."""
    digits = {"bfloat16": 8, "float16": 11, "float32": 24, "float8_e4m3fn": 4, "float8_e5m2": 3}
    exponent = np.frexp(x)[1]
    ulp: np.ndarray = np.ldexp(1.0, exponent - digits.get(dtype.name, 53))
    return ulp


def _groups(rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
    """Return the operations whose arithmetic differs in the same way, by a name for them."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.made == "here":
            found.setdefault((row.operation, *row.function), []).append(row)
    named: dict[str, tuple[int, ...]] = {}
    for (operation, *_), own in found.items():
        lasts = {row.title.rpartition(".")[2] for row in own}
        total = sum(row.operation == operation for row in rows)
        last = lasts.pop() if len(lasts) == 1 and len(own) < total else ""
        base = f"{operation} {last}".strip() if "." in own[0].title else str(operation)
        name = base
        while name in named:
            name += "'"
        named[name] = tuple(row.number for row in own)
    return named


def _noise(
    replay: Replay, own: Sequence[int], worth: Share, start: np.ndarray, gap: np.ndarray
) -> float:
    """Return how far the share of a group alone moves if last bits of its results are others."""
    if max(own) == len(replay.pairs) - 1:
        return 0.0
    size = float(gap @ gap)
    rolled = [
        float((replay.ended(own, {n: 1000 * r + n for n in own}) - start) @ gap) / size
        for r in range(REPEATS)
    ]
    return float(np.sqrt(np.mean((np.array(rolled) - worth.alone) ** 2)))


def _words(replay: Replay, number: int, identify: Callable[[Tape, int], str]) -> tuple[str, str]:
    """Return what computes a pair in either run, in words that differ where the runs do."""
    words: list[str] = []
    functions: list[str] = []
    types: list[str] = []
    steps: list[list[str]] = []
    for name in NAMES:
        tape = replay.alignment.tape(name)
        entries = [tape.entries[n] for n in getattr(replay.pairs[number], name)[0]]
        exact = identify(tape, entries[0].number) if len(entries) == 1 else ""
        is_default = not entries and _has_default(tape)
        functions.append("in binary64 (the default)" if is_default else _functions(entries))
        words.append(exact or functions[-1])
        steps.append([x for entry in entries for x in entry.settings.get("arithmetic", [])])
        types.append(tape.values[entries[-1].outputs[0]].dtype if entries else "")
    if all(steps) and steps[0] != steps[1]:
        told = _apart_words(*steps)
        same_name = words[0] == words[1]
        words = [x if same_name else f"{w} [{x}]" for w, x in zip(words, told, strict=True)]
    if types[0] != types[1]:
        if functions[0] == functions[1] and all(text.endswith("tied") for text in words):
            words = functions  # plans of another type have other names, which tell no more
        words = [_typed(text, dtype) for text, dtype in zip(words, types, strict=True)]
    elif words[0] == words[1]:
        words = [
            f"{text}{how}" for text, how in zip(words, _ways(replay.alignment, number), strict=True)
        ]
    return words[0], words[1]


def _apart_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """Return two sequences of steps in words, without what both begin and end with."""
    head = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    rest = min(len(a), len(b)) - head
    tail = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
    head, tail = max(head - 1, 0), max(tail - 1, 0)  # one word that both have, as a place
    told = []
    for each in (a, b):
        own = [*each[head : len(each) - tail]]
        if len(own) > MOST_STEPS:
            own = [*own[: MOST_STEPS - 1], f"... ({len(own)} steps)"]
        told.append(", ".join([*["..."] * (head > 0), *own, *["..."] * (tail > 0)]))
    return told


def _typed(text: str, dtype: str) -> str:
    """Return what computes an operation and the type of its results in words."""
    if not dtype:
        return text
    return f"in {dtype}: {text}" if text.endswith("tied") else f"{text} in {dtype}"


def _ways(alignment: Alignment, number: int) -> list[str]:
    """Return how often a pair is called, or of which shape its result is, where these differ."""
    passes, shapes = [], []
    for name in NAMES:
        calls, tape = getattr(alignment.pairs[number], name), alignment.tape(name)
        passes.append(len(calls))
        outputs = tape.entries[calls[0][-1]].outputs if calls[0] else ()
        shapes.append(tape.values[outputs[0]].shape if outputs else ())
    if passes[0] != passes[1]:
        return [", once" if n == 1 else f", in {n} forward passes" for n in passes]
    if shapes[0] != shapes[1]:
        return [f", {shape}" for shape in shapes]
    return ["", ""]


def _logits(replay: Replay) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the logits of both runs as (tokens, vocabulary), if they have any."""
    found = []
    for name in NAMES:
        tape = replay.alignment.tape(name)
        if tape.logits is None:
            return None
        x = replay.compared(name, wide(tape.numpy(tape.logits)))
        found.append(x.reshape(-1, x.shape[-1]))
    return (found[0], found[1]) if found[0].shape == found[1].shape else None


def kl_of(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mean over tokens of KL(a || b) of logits, in nats."""
    p, q = log_softmax(a), log_softmax(b)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def flips_of(a: np.ndarray, b: np.ndarray) -> list[Flip]:
    """Return the decisions that logits (tokens, vocabulary) make differently."""
    found = []
    for what, k in (("argmax", 1), (f"top-{TOP}", TOP)):
        if k >= a.shape[-1]:
            continue
        best = [np.sort(np.argpartition(-x, k - 1)[:, :k]) for x in (a, b)]
        for t in np.flatnonzero((best[0] != best[1]).any(-1)):
            one, two = set(best[0][t].tolist()), set(best[1][t].tolist())
            sorted_a = np.sort(a[t])[::-1]
            margin = float(sorted_a[k - 1] - sorted_a[k])
            found.append(
                Flip(int(t), what, tuple(sorted(one - two)), tuple(sorted(two - one)), margin)
            )
    return found


def _routes(replay: Replay) -> list[Flip]:
    """Return the tokens that go to other experts: functions `topk` of tables of as many rows."""
    chosen = [
        [e for e in tape.entries if e.function.rpartition(".")[2] == "topk"]
        for tape in (replay.alignment.a, replay.alignment.b)
    ]
    found = []
    for one, two in zip(*chosen, strict=False):
        tables = []
        for tape, entry in zip((replay.alignment.a, replay.alignment.b), (one, two), strict=True):
            if len(entry.outputs) != 2 or tape.values[entry.outputs[1]].array is None:
                return []
            tables.append(tape.numpy(entry.outputs[1]))
        x, y = tables
        if one.module != two.module or x.shape != y.shape or x.ndim != 2:
            continue
        differ = np.flatnonzero((np.sort(x, -1) != np.sort(y, -1)).any(-1))
        if not differ.size:
            continue
        ranked = -np.sort(-wide(replay.alignment.a.numpy(refs(one.arguments)[0])), -1)
        for t in differ:
            a, b = set(x[t].tolist()), set(y[t].tolist())
            k = x.shape[-1]
            margin = float(ranked[t, k - 1] - ranked[t, k]) if k < ranked.shape[-1] else 0.0
            what = f"experts {one.module}"
            found.append(Flip(int(t), what, tuple(sorted(a - b)), tuple(sorted(b - a)), margin))
    return found


def _notes(a: Tape, b: Tape) -> list[str]:
    notes = [
        f"{name}: {a.about.get(name, 'not said')} and {b.about.get(name, 'not said')}"
        for name in sorted({*a.about, *b.about})
        if a.about.get(name) != b.about.get(name)
    ]
    if max(a.steps, b.steps) > 1:
        notes.append(passes(a, b))
    if sides := [name for name, tape in (("A", a), ("B", b)) if _has_default(tape)]:
        notes.append(
            f"{' and '.join(sides)}: the log-probabilities are computed from the logits in"
            " binary64, the default"
        )
    return notes


def _has_default(tape: Tape) -> bool:
    """Return whether the log-probabilities of a run are computed here, from its logits."""
    return tape.logprobs is None and tape.logits is not None
