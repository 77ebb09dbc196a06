"""`compare_results`: a run against results that another program kept of its own.

That program cannot run again here. Of each result that it kept, the run's arithmetic is repeated on
the other results that it kept: if it gives the same bits, the difference is inherited; else it is
made between the results before and this one. Where an `Alternative` of these operations gives the
bits that were kept, that is what the other program does there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from math import nan
from typing import Any

import numpy as np
from torch import Tensor

from roundscope.operations.models.comparing.comparison import Comparison, Group, Row
from roundscope.operations.models.comparing.differences import differences, flips_of, gap_of, kl_of
from roundscope.operations.models.comparing.named import title
from roundscope.operations.models.comparing.shares import Share, shares
from roundscope.operations.models.comparing.words import functions_of
from roundscope.operations.models.replay import check_replays, log_softmax, same, wide
from roundscope.operations.models.revival import FAILURES
from roundscope.operations.models.tape import Tape
from roundscope.operations.models.torch.budget.evaluating import (
    Missing,
    Overrides,
    evaluated,
    needed_for,
)
from roundscope.operations.models.torch.comparing.alternatives import Alternative, alternatives
from roundscope.operations.models.torch.comparing.candidates import is_plan
from roundscope.operations.models.torch.comparing.dumps import Results
from roundscope.operations.models.torch.comparing.kept import FEW, Kept, compared_of, matched
from roundscope.operations.models.torch.comparing.reviving import words_of

MOST = 64  # combinations of alternatives that are tried for one result


def compare_results(
    tape: Tape, given: Results, *, tell: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Compare a run with results of another program.

    Args:
        tape: The run, of one sequence.
        given: The results.
        tell: Told what is done, in words.

    Raises:
        Incomparable: The run has no tokens or several sequences, or none of the names.
        ReplayError: The run, run again, gives other bits.
    """
    tell("running A again")
    check_replays(tape, "A")
    tell("comparing results")
    kept, unknown = matched(tape, given)
    known: dict[int, Tensor] = {}
    for own in kept:
        _decide(tape, own, known)
        known |= dict(zip(own.values, own.whole, strict=True))
    groups = _groups(tape, kept)
    start, end, is_logprobs = _ends(tape, given, kept)
    gap = gap_of(start, end)
    worth: dict[str, Share] = {}
    left, notes = nan, []
    if groups and np.isfinite(gap).all() and (size := float(gap @ gap)) > 0:
        tell(f"replaying A with {len(groups)} alternatives")

        def value(names: frozenset[str]) -> float:
            overrides = {n: x for name in names for n, x in groups[name].items()}
            return float((_logprobs_of(tape, overrides, len(gap)) - start) @ gap) / size

        worth = shares(list(groups), value)
        left = 1.0 - value(frozenset(groups))
    nameless = [own for own in kept if own.made == "here" and not own.overrides]
    if nameless:
        notes.append(
            "not attributed: "
            + "; ".join(f"{o.name} (after {_segment(tape, o)})" for o in nameless[:FEW])
            + (f" and {len(nameless) - FEW} more" if len(nameless) > FEW else "")
            + ": no arithmetic that is known gives the bits of B"
        )
    if groups and gap.size:
        everything = {n: x for own in groups.values() for n, x in own.items()}
        given_again = _given_again(tape, kept, everything)
        notes.append(
            f"A with the arithmetic that was found in all places of its kind gives {given_again:,}"
            f" of {len(kept):,} results of B, every bit"
        )
    notes += _notes(tape, kept, unknown, gap)
    numbers = {id(own): n for n, own in enumerate(kept)}
    found = []
    for name, overrides in groups.items():
        own_rows = tuple(numbers[id(o)] for o in kept if set(o.overrides) & set(overrides))
        first = min(overrides)
        found.append(
            Group(
                _kind(tape, first, name),
                words_of(tape, first) or tape.entries[first].function.removeprefix("torch."),
                overrides[first].words,
                own_rows,
                *worth.get(name, Share(nan, nan, nan)),
                0.0,
            )
        )
    found.sort(key=lambda group: -abs(group.share))
    rows = tuple(_row(tape, n, own) for n, own in enumerate(kept))
    logits = _logits(tape, kept)
    return Comparison(
        equal=all(own.made == "equal" for own in kept) and not gap.any(),
        rows=rows,
        first=next((row for row in rows if row.made == "here"), None),
        groups=tuple(found),
        left=left if groups or not gap.any() else 1.0,
        interaction=0.0,
        unknown=len(unknown),
        gap=gap,
        kl=None if logits is None else kl_of(*logits),
        mean=float(np.abs(gap).mean()) if gap.size else 0.0,
        largest=float(np.abs(gap).max(initial=0.0)),
        is_logprobs=is_logprobs,
        flips=() if logits is None else tuple(flips_of(*logits)),
        notes=tuple(notes),
        is_partial=True,
    )


def _decide(tape: Tape, own: Kept, known: Mapping[int, Tensor]) -> None:
    """Say whether a result is equal, inherited or made here, and by which arithmetic."""
    theirs = compared_of(tape, own, own.whole)
    ours = compared_of(tape, own, [tape.values[v].array for v in own.values])
    is_equal = all(map(same, ours, theirs))
    try:
        again = evaluated(tape, own.values, known, {})
    except Missing:
        own.made = "equal" if is_equal else "undecided"
        own.differ, own.ulps = differences(ours, theirs)
        return
    needed = needed_for(tape, own.values, known, {})
    own.segment = [n for n in needed if tape.entries[n].is_counted]
    numbers = compared_of(tape, own, again.values)
    if all(map(same, numbers, theirs)):
        own.made = "equal" if is_equal else "inherited"
        own.differ, own.ulps = differences(ours, theirs)
        return
    own.made = "here"
    own.differ, own.ulps = differences(numbers, theirs)
    for overrides in _choices(tape, own.segment):
        try:
            other = evaluated(tape, own.values, known, overrides)
        except FAILURES:
            continue
        if all(map(same, compared_of(tape, own, other.values), theirs)):
            own.overrides = dict(overrides)
            return


def _choices(tape: Tape, segment: Sequence[int]) -> Iterator[dict[int, Alternative]]:
    """Yield alternatives of the operations of a segment.

    First of all operations of a kind, such as its linear layers, then of those of one name, such as
    `down_proj`, and then of two kinds.
    """
    kinds: dict[str, dict[str, dict[int, Alternative]]] = {}
    named: dict[tuple[str, str, str], dict[int, Alternative]] = {}
    for number in segment:
        entry = tape.entries[number]
        last = entry.module.rpartition(".")[2]
        for each in alternatives(tape, entry):
            kinds.setdefault(entry.operation, {}).setdefault(each.words, {})[number] = each
            named.setdefault((entry.operation, last, each.words), {})[number] = each
    few = {key: own for key, own in named.items() if len(own) < len(kinds[key[0]][key[2]])}
    for plans in (False, True):  # which take longer
        for by_words in kinds.values():
            yield from (own for words, own in by_words.items() if is_plan(words) == plans)
        yield from (own for (_, _, words), own in few.items() if is_plan(words) == plans)
    tried = 0
    for one, two in combinations(kinds.values(), 2):
        both = ([own for words, own in each.items() if not is_plan(words)] for each in (one, two))
        for x, y in product(*both):
            if (tried := tried + 1) > MOST:
                return
            yield x | y


def _groups(tape: Tape, kept: Sequence[Kept]) -> dict[str, dict[int, Alternative]]:
    """Return what was found, by operation and words, with every entry that has it."""
    found: dict[str, dict[int, Alternative]] = {}
    for own in kept:
        for number, each in own.overrides.items():
            name = f"{tape.entries[number].operation}: {each.words}"
            found.setdefault(name, {})[number] = each
    return found


def _kind(tape: Tape, number: int, name: str) -> str:
    operation = name.partition(":")[0]
    last = tape.entries[number].module.rpartition(".")[2]
    return f"{operation} {last}" if operation == "linear" else operation


def _given_again(tape: Tape, kept: Sequence[Kept], overrides: Overrides) -> int:
    """Return how many results the run gives, every bit, with other arithmetic from its start."""
    try:
        found = evaluated(tape, [v for own in kept for v in own.values], {}, overrides).values
    except Missing:
        return 0
    count, start = 0, 0
    for own in kept:
        values = found[start : start + len(own.values)]
        start += len(values)
        count += all(map(same, compared_of(tape, own, values), compared_of(tape, own, own.whole)))
    return count


def _logprobs_of(tape: Tape, overrides: Overrides, count: int) -> np.ndarray:
    """Return log-probabilities of the last tokens by the run with other arithmetic."""
    assert tape.logits is not None
    (logits,) = evaluated(tape, [tape.logits], {}, overrides).values
    return _of_tokens(tape, logits)[-count:] if count else np.zeros(0)


def _of_tokens(tape: Tape, logits: Any) -> np.ndarray:
    assert tape.tokens is not None
    x = wide(tape.arrays.numpy(logits))[0]
    found: np.ndarray = np.take_along_axis(log_softmax(x[:-1]), tape.tokens[0, 1:, None], -1)
    return found[:, 0]


def _ends(tape: Tape, given: Results, kept: Sequence[Kept]) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the log-probabilities of both for the tokens of which B has them, and whether it has.

    Without them they are those of no token.
    """
    none = np.zeros(0)
    if tape.logits is None:
        return none, none, False
    ours = _of_tokens(tape, tape.values[tape.logits].array)
    if given.logprobs is not None:
        theirs = given.logprobs[-len(ours) :]
        ours = ours[len(ours) - len(theirs) :]
        known = ~np.isnan(theirs) | np.isnan(ours)
        first = int(np.argmax(known)) if known.any() else len(theirs)
        return ours[first:], theirs[first:], True
    own = next((o for o in kept if o.values == [tape.logits]), None)
    if own is None:
        return none, none, True
    theirs = _of_tokens(tape, own.whole[0])
    first = int(own.rows.min())
    return ours[first:], theirs[first:], True


def _logits(tape: Tape, kept: Sequence[Kept]) -> tuple[np.ndarray, np.ndarray] | None:
    own = next((o for o in kept if o.values == [tape.logits]), None)
    if own is None:
        return None
    (ours,) = compared_of(tape, own, [tape.values[own.values[0]].array])
    (theirs,) = compared_of(tape, own, own.whole)
    return wide(ours), wide(theirs)


def _segment(tape: Tape, own: Kept) -> str:
    each = [tape.entries[n].title for n in own.segment]
    return " + ".join(each[:3]) + (f" and {len(each) - 3} more" if len(each) > 3 else "")


def _row(tape: Tape, number: int, own: Kept) -> Row:
    made = [tape.entries[tape.made_by[v]] for v in own.values if v in tape.made_by]
    name = title(tape, own.values)
    return Row(
        number=number,
        title=name if name.endswith(own.name) else f"{name} ({own.name} of B)",
        operation=made[0].operation if made else "input",
        function=(
            functions_of(made),
            "; ".join(dict.fromkeys(x.words for x in own.overrides.values())) or "not known",
        ),
        made=own.made,  # type: ignore[arg-type]
        differ=own.differ,
        ulps=own.ulps,
    )


def _notes(tape: Tape, kept: Sequence[Kept], unknown: Sequence[str], gap: np.ndarray) -> list[str]:
    notes = []
    counted = {n for own in kept for n in own.segment}
    without = [e for e in tape.counted if e.number not in counted]
    if unknown:
        more = f" and {len(unknown) - FEW} more" if len(unknown) > FEW else ""
        notes.append(
            "names of B that are no module of A, or of another shape:"
            f" {', '.join(unknown[:FEW])}{more}"
        )
    if without:
        more = f" and {len(without) - FEW} more" if len(without) > FEW else ""
        told = ", ".join(e.title for e in without[:FEW])
        notes.append(f"no result of B depends on, or tells of: {told}{more}")
    if not gap.size:
        notes.append("B has no logits and no logprobs, so there is no gap and there are no shares")
    notes.append(
        "B is known by its results alone and was not run again: a difference is made here where"
        " A's arithmetic on B's results before gives other bits than B kept"
    )
    return notes
