"""Sentences of steps 1 and 2, of the replays of step 6, and of what a run's diagnosis says and does not show."""

import numpy as np

from experiments.diagnose.guilty import REPEATS, Guilty
from experiments.diagnose.replayed import Cause, Replayed
from experiments.diagnose.runs import Case
from experiments.diagnose.search import Outcome
from experiments.diagnose.states import RunPart
from experiments.diagnose.units import change_words, unit_words

NEVER = "the run never failed"
KINDS = {
    "not finite": "its loss is not finite", "rise": "its loss rises for good", "stay": "its loss jumps up and stays",
    "spike": "its loss spikes",
}  # fmt: skip


def cause(part: RunPart) -> str:
    """What the replays say, in a few words."""
    return NEVER if part.replayed is None else str(part.replayed.cause)


def headline(part: RunPart) -> str:
    """What the replays say."""
    r = part.replayed
    if r is None:
        return f"{_whom(part.case)} never failed in {part.case.last} steps, so nothing is replayed; its last state was looked at."
    ends = {
        Cause.ROUNDING: lambda: _found(r), Cause.OTHER: lambda: _other(r),
        Cause.LUCK: lambda: "Among other arms, with other last bits, the same replay survives: the failure is a matter of luck here.",
        Cause.LOST: lambda: "Replayed, it does not fail: the log was written by another version, or on another device.",
    }  # fmt: skip
    return f"{_whom(part.case)} fails at step {_step(part.case)}: {_kind(part.case)}. {ends[r.cause]()}"


def _whom(case: Case) -> str:
    return "The run" if len(case.settings.arms) == 1 else f"Arm {case.own.name}"


def _step(case: Case) -> int:
    assert case.failure is not None
    return case.failure.step


def _kind(case: Case) -> str:
    assert case.failure is not None
    return KINDS[case.failure.kind]


def _found(r: Replayed) -> str:
    g = r.guilty
    assert g is not None
    cure = f"The replay survives if {unit_words(g.found, g.all_units)} {'is' if len(g.found) == 1 else 'are'} exact ({_size(g)})"
    if not g.holds:
        return f"No set of events is shown to be at fault: the best, {unit_words(g.found, g.all_units)}, does not hold up{_confirmed(g)}."
    return f"{cure}{_confirmed(g)}; low alone, with all else exact, it {'survives too' if g.only.survives else 'still fails'}."


def _confirmed(g: Guilty) -> str:
    o = g.confirmed
    return "" if o is None else f", in {len(o.fates) - o.failures} of {len(o.fates)} replays with other last bits"


def _size(g: Guilty) -> str:
    return f"{g.size} of {g.of} events{', counted by head' if _is_single(g) else ''}"


def _is_single(g: Guilty) -> bool:
    """Whether the last level's elements are events of one head."""
    return g.of == len(g.all_units)


def _other(r: Replayed) -> str:
    tried = f"step{'s' if len(r.sanity) > 1 else ''} {', '.join(str(s.first) for s in r.sanity)}"
    if not r.case.units:
        return "No event of attention rounds to fewer bits than FP32, so rounding there is not it. The learning rate comes to mind first."
    return (
        f"It fails too with every event of attention exact, from the state before {tried}: it is not rounding in attention, or the damage "
        f"is done before. The learning rate, {r.case.own.lr:g}, comes to mind first; then data and the linear layers."
    )


def replayed(part: RunPart) -> str:
    """Step 1."""
    r = part.replayed
    if r is None:
        return f"Does the failure come again? There is none: no loss rose, jumped up or was not finite in {part.case.last} steps."
    device = "" if r.same_device else f"; it was written on another device, {r.case.about['device']}"
    bits = (
        f"the losses of all {r.compared} steps that the log has are the log's, bit for bit"
        if r.equal == r.compared
        else f"{r.equal} of {r.compared} losses have the log's bits{device}"
    )
    twice = "a second replay gives the same bits" if r.again else "a second replay gives OTHER bits, which must not be"
    failed = "it does not fail" if r.failed is None else f"it fails at step {r.failed}"
    return f"Does the failure come again, and is it rounding? Replayed from step {r.own.first}, {failed}: {bits}; {twice}. {_sanity(r)}"


def _sanity(r: Replayed) -> str:
    said = []
    for s in r.sanity:
        low, exact = (f"{o.failures} of {len(o.fates)} times{at(o)}" for o in (s.low, s.exact))
        said.append(f"from step {s.first}, with other last bits, it fails as it was {low}, and with every event of attention exact {exact}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def at(outcome: Outcome) -> str:
    """When an arm failed, for a sentence; nothing if it did not."""
    steps = [f.failed for f in outcome.fates if f.failed is not None]
    if not steps:
        return ""
    return f" (step {int(np.median(steps))})"


def searched(part: RunPart) -> str:
    """Step 2."""
    r = part.replayed
    if r is None or r.guilty is None:
        why = NEVER if r is None else "everything exact fails too" if r.cause is Cause.OTHER else "the failure is not stable under replay"
        return f"Which roundings must be exact? Not searched: {why}."
    g = r.guilty
    controls = sum(o.survives for o in g.controls)
    random = (
        f"of {len(g.controls)} random sets of the same size {controls} survive{'s' if controls == 1 else ''}"
        if g.controls
        else "there is no other set of this size to compare with"
    )
    minimal = "each of its elements, put back alone, makes it fail again" if g.is_minimal else (
        f"but without {', '.join(n for n, o in g.without if o.survives)} it survives too: the set is not minimal")  # fmt: skip
    only = "fails" if not g.only.survives else "survives"
    return (
        f"Which roundings must be exact? {_size(g).capitalize()}: {unit_words(g.found, g.all_units)}{_confirmed(g)}; {minimal}; {random}. "
        f"Low alone, all else exact, it {only}{at(g.only)}. {_ties(g)}{_turns(g)}{len(g.outcomes)} sets, "
        f"{'each once' if g.repeats == 1 else f'each {g.repeats} times and all must survive'}; {r.arm_steps:,} arm-steps."
    )


def _ties(g: Guilty) -> str:
    if not g.ties:
        return ""
    shown = "; or ".join(unit_words(o.units, g.all_units) for o in g.ties[:3])
    return f"{len(g.ties)} other set{'s' if len(g.ties) > 1 else ''} no larger than it survive{'' if len(g.ties) > 1 else 's'}: {shown}. "


def _turns(g: Guilty) -> str:
    if not g.turns:
        return ""
    return f"More exact is not always better: in {len(g.turns)} pairs of sets the one that survives lies inside one that fails. "


def change(g: Guilty) -> str:
    """The set as `roundscope train` takes it."""
    return change_words(g.found)


def survivors(part: RunPart | None) -> str:
    """Step 6: what became of the replays."""
    if part is None or not part.survivals:
        return ""
    done = [name for name, o in part.survivals.items() if o.survives]
    lost = [f"{name} ({o.failures} of {len(o.fates)})" for name, o in part.survivals.items() if not o.survives]
    return f"Replays survive with: {', '.join(done) or 'none'}. They fail with: {', '.join(lost) or 'none'}."


def not_shown(part: RunPart) -> list[str]:
    """What replays and the state leave open."""
    case = part.case
    linear = f"The linear layers stay as they are (matmul={case.settings.config.matmul}), and so do the order of sums and the optimiser."
    lines = [f"Steps 3 to 6 look at one state, before step {part.step}, on its batch and, if that is small, those after it.", linear]
    if part.replayed is None:
        return [*lines, "Whether the run would have failed later, or with another seed."]
    lines.append(f"What comes after step {case.until} (--until): 'survives' means up to there, from this checkpoint, on these batches.")
    if part.replayed.guilty is not None:
        lines.append("Other seeds: the set is that of this failure. No element can be left out; a smaller set of other elements may exist.")
    if part.survivals:
        lines.append(
            f"How often: stochastic repairs are replayed {REPEATS} times, others as often as the sets of step 2; all must survive."
        )
    if part.survivals:
        lines.append("The replay's sham is stochastic rounding of delta's operand, or of delta, about as large as the output's roundings "
                     "or larger; the one in the other columns of the table is noise in binary64.")  # fmt: skip
    return lines
