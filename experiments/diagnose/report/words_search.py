"""Sentences of step 2: the set that must be exact and what holds it up."""

import numpy as np

from roundscope.experiments.diagnose.gpt.states import RunPart
from roundscope.experiments.diagnose.gpt.units import change_words, unit_words
from roundscope.experiments.diagnose.replay.start import Cause, Replayed
from roundscope.experiments.diagnose.search.ddmin import Outcome
from roundscope.experiments.diagnose.search.guilty import Guilty

NEVER = "the run never failed"


def found(r: Replayed) -> str:
    """What was found, for the verdict."""
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


def at(outcome: Outcome) -> str:
    """When an arm failed, for a sentence; nothing if it did not."""
    steps = [f.failed for f in outcome.fates if f.failed is not None]
    if not steps:
        return ""
    return f" (step {int(np.median(steps))})"
