"""`compare_tapes`: where two runs of a model differ first, which operations make the difference,
and how much of the gap between their log-probabilities each of them is worth.
"""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

import numpy as np

from roundscope.operations.models.comparing.align import Alignment, align, ending, title
from roundscope.operations.models.comparing.comparable import check_comparable
from roundscope.operations.models.comparing.comparison import Comparison, Group, Made, Row
from roundscope.operations.models.comparing.differences import (
    differences,
    flips_of,
    gap_of,
    kl_of,
    routes_of,
)
from roundscope.operations.models.comparing.ports import NAMES, Name, Slot
from roundscope.operations.models.comparing.shares import Share, shares
from roundscope.operations.models.comparing.tokens import Incomparable, passes
from roundscope.operations.models.comparing.words import FEW, functions_of, summed, words_for
from roundscope.operations.models.replay import NotRunnable, Replay, check_replays, same, wide
from roundscope.operations.models.tape import UNKNOWN, Tape

MOST_NAMES = 3  # of modules, in the name of a group
REPEATS = 4  # runs with other last bits, by which the noise of a share is measured


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
    of_weights = check_comparable(a, b)
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
    notes = [*of_weights, *_notes(a, b)]
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
        words = words_for(replay, own[0], identify)
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
        flips=(*([] if logits is None else flips_of(*logits)), *routes_of(replay)),
        notes=tuple(notes),
    )


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
    if is_last and a.has_default_logprobs != b.has_default_logprobs:
        ulps = 0.0  # one of them is not rounded to the type of the other
    is_shown = bool(longer) or made in ("here", "undecided")
    operation = summed([entry.operation for entry in longer]) or "end"
    return Row(
        number=number,
        title=summed([entry.title for entry in longer]) or "the end of the run",
        operation=operation if is_shown else "",
        function=(functions_of(entries_a), functions_of(entries_b)),
        made=made,
        differ=differ,
        ulps=ulps,
    )


def _groups(rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
    """Return the operations whose arithmetic differs in the same way, by a name for them."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row.made == "here":
            found.setdefault((row.operation, *row.function), []).append(row)
    named: dict[str, tuple[int, ...]] = {}
    for (operation, *_), own in found.items():
        alike = [row for row in rows if row.operation == operation]
        lasts = list(dict.fromkeys(_last(row) for row in own))
        if len(own) == 1 and sum(_last(row) == lasts[0] for row in alike) > 1:
            lasts = [own[0].title.removeprefix(f"{operation} ")]  # one layer's alone
        is_said = len(lasts) <= MOST_NAMES and len(own) < len(alike)
        name = f"{operation} {' and '.join(filter(None, lasts)) if is_said else ''}".strip()
        while name in named:
            name += "'"
        named[name] = tuple(row.number for row in own)
    return named


def _last(row: Row) -> str:
    """Return the last part of the path of a row's module, "" if it has none."""
    path = row.title.removeprefix(row.operation).strip()
    return path.rpartition(".")[2] if " " not in path else ""


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


def _notes(a: Tape, b: Tape) -> list[str]:
    notes = [
        f"{name}: {a.about.get(name, 'not said')} and {b.about.get(name, 'not said')}"
        for name in sorted({*a.about, *b.about})
        if a.about.get(name) != b.about.get(name)
    ]
    if max(a.steps, b.steps) > 1:
        notes.append(passes(a, b))
    told: dict[str, list[str]] = {}
    for name, tape in (("A", a), ("B", b)):
        for text in dict.fromkeys(x.note for x in tape.entries if x.operation != UNKNOWN):
            told.setdefault(text, []).append(name)
    notes += [f"{' and '.join(names)}: {text}" for text, names in told.items() if text]
    if sides := [name for name, tape in (("A", a), ("B", b)) if tape.has_default_logprobs]:
        notes.append(
            f"{' and '.join(sides)}: the log-probabilities are computed from the logits in"
            " binary64, the default"
        )
    return notes
