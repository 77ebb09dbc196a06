"""Sentences that only a GPT's run has: its failure, its repairs, what is not shown."""

from roundscope.tools.diagnose.replay.run_part import GREW, RunPart
from roundscope.tools.diagnose.report import words_run
from roundscope.tools.diagnose.search.guilty import REPEATS

NEVER = "the run never failed"
KINDS = {
    "not finite": "its loss is not finite",
    "rise": "its loss rises for good",
    "stay": "its loss jumps up and stays",
    "spike": "its loss spikes",
    GREW: "its gradient norm has grown to more than ten times its lowest",
}


def cause(part: RunPart) -> str:
    """Return what the replays say, in a few words."""
    return NEVER if part.replayed is None else part.replayed.verdict


def headline(part: RunPart) -> str:
    """Return what the replays say."""
    failure, r = part.failure, part.replayed
    whom = "The run" if part.arms == 1 else f"Arm {part.arm}"
    if r is None or failure is None:
        return (
            f"{whom} never failed in {part.last} steps, so nothing is replayed; its last state was"
            " examined."
        )
    grew = ""
    if part.grown is not None and failure.kind != GREW:
        grew = f"; its gradient norm has grown tenfold by step {part.grown}"
    return (
        f"{whom} fails at step {failure.step}: {KINDS[failure.kind]}{grew}. {words_run.ending(r)}"
    )


def replayed(part: RunPart) -> str:
    """Return the sentence of step 1."""
    if part.replayed is None:
        return (
            "Does the failure come again? There is none: no loss rose, jumped up or was not finite"
            f" in {part.last} steps, and no gradient norm grew."
        )
    return words_run.replayed(part.replayed)


def survivors(part: RunPart | None) -> str:
    """Return the outcomes of the replays of step 6."""
    if part is None or not part.survivals:
        return ""
    kept = [f"{name} ({o.count})" for name, o in part.survivals.items() if o.survives]
    lost = [f"{name} ({o.count} survive)" for name, o in part.survivals.items() if not o.survives]
    return (
        f"Replays survive with: {', '.join(kept) or 'none'}. They fail with:"
        f" {', '.join(lost) or 'none'}."
    )


def not_shown(part: RunPart) -> list[str]:
    """Return what replays and the state leave open."""
    r = part.replayed
    state = (
        f"Other states: steps 3 to 6 examine one state, before step {part.step}, on its batch and,"
        " if that is small, on those after it."
    )
    lines = [state, part.rest]
    if r is None:
        return [*lines, "Whether the run would have failed later, or with another seed."]
    lines.append(
        f"What comes after step {r.replayer.until} (--until): 'survives' means up to there, from"
        f" step {r.replayer.first}, on these batches."
    )
    if part.grown is not None:
        lines.append(
            "What the loss does later: a replay counts as failed once its gradient norm has grown."
        )
    if r.guilty is not None:
        lines.append(
            "Other seeds: the set is that of this failure. No element can be left out; a smaller"
            " set of other elements may exist."
        )
    if part.survivals:
        lines.append(
            f"How often: stochastic repairs are replayed {REPEATS} times, others as often as the"
            " sets of step 2; all must survive."
        )
        lines.append(
            "The replay's sham is stochastic rounding of delta's operand, or of delta, about as"
            " large as the output's roundings or larger; the one in the other columns of the table"
            " is noise in binary64."
        )
    return lines
