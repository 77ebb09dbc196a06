"""Sentences of step 1, of the replays of step 6, and of what a run's diagnosis says and does not show."""

from roundscope.experiments.diagnose.gpt.case import Case
from roundscope.experiments.diagnose.gpt.states import RunPart
from roundscope.experiments.diagnose.replay.start import Cause, Replayed
from roundscope.experiments.diagnose.report import words_search
from roundscope.experiments.diagnose.search.guilty import REPEATS

KINDS = {
    "not finite": "its loss is not finite", "rise": "its loss rises for good", "stay": "its loss jumps up and stays",
    "spike": "its loss spikes",
}  # fmt: skip


def cause(part: RunPart) -> str:
    """What the replays say, in a few words."""
    return words_search.NEVER if part.replayed is None else str(part.replayed.cause)


def headline(part: RunPart) -> str:
    """What the replays say."""
    r = part.replayed
    if r is None:
        return f"{_whom(part.case)} never failed in {part.case.last} steps, so nothing is replayed; its last state was looked at."
    ends = {
        Cause.ROUNDING: lambda: words_search.found(r), Cause.OTHER: lambda: _other(r),
        Cause.LUCK: lambda: "With other last bits the same replay survives as often as not: the failure is a matter of luck.",
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
        low, exact = (f"{o.failures} of {len(o.fates)} times{words_search.at(o)}" for o in (s.low, s.exact))
        said.append(f"from step {s.first}, with other last bits, it fails as it was {low}, and with every event of attention exact {exact}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


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
