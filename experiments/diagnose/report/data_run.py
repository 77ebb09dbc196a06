"""What only a run's diagnosis.json has: the case, steps 1 and 2, and the replays of step 6."""

from typing import Any

from roundscope.experiments.diagnose.gpt.states import RunPart
from roundscope.experiments.diagnose.gpt.units import Units
from roundscope.experiments.diagnose.replay.start import Replayed
from roundscope.experiments.diagnose.report import words_search
from roundscope.experiments.diagnose.search.ddmin import Outcome
from roundscope.experiments.diagnose.search.guilty import Guilty
from roundscope.experiments.report.terminal import plain


def first_steps(part: RunPart) -> dict[str, Any]:
    """Steps 1 and 2."""
    case, r = part.case, part.replayed
    about = {"arm": case.own.name, "failure": plain(case.failure), "until": case.until, "looked_at_step": part.step}
    found: dict[str, Any] = {"1 replay": about | (_replay(r) if r else {})}
    return found | {"2 search": _search(r.guilty) if r and r.guilty else None}


def _replay(r: Replayed) -> dict[str, Any]:
    sanity = [{"from": s.first, "as_it_was": outcome(s.low), "everything_exact": outcome(s.exact)} for s in r.sanity]
    return {
        "cause": str(r.cause), "from": r.window.first, "checkpoint": r.own.first, "failed": r.failed, "twice_the_same_bits": r.again,
        "steps_compared_with_log": r.compared, "steps_equal_to_log": r.equal, "same_device_as_log": r.same_device, "sanity": sanity,
        "arm_steps": r.arm_steps, "seconds": r.seconds,
    }  # fmt: skip


def _search(g: Guilty) -> dict[str, Any]:
    return {
        "found": _units(g.found), "change": words_search.change(g), "size": g.size, "of": g.of, "events_in_all": len(g.all_units),
        "levels": [plain(x) for x in g.levels], "minimal": g.is_minimal, "low_alone": outcome(g.only),
        "confirmed": None if g.confirmed is None else outcome(g.confirmed), "holds_up": g.holds, "repeats": g.repeats,
        "without": {name: outcome(o) for name, o in g.without}, "controls": [_set(o) for o in g.controls],
        "ties": [_set(o) for o in g.ties],
        "turns": [{"survives": _units(a.units), "fails": _units(b.units)} for a, b in g.turns], "sets": [_set(o) for o in g.outcomes],
    }  # fmt: skip


def _set(o: Outcome) -> dict[str, Any]:
    return {"exact": _units(o.units)} | outcome(o)


def outcome(o: Outcome) -> dict[str, Any]:
    """Whether a set survives, and when its repeats failed (None: not)."""
    return {"survives": o.survives, "failed": [f.failed for f in o.fates]}


def _units(units: Units) -> list[list[Any]]:
    return [[u.layer, u.head, str(u.site)] for u in sorted(units)]


def survives(part: RunPart | None, name: str, is_base: bool) -> bool | None:
    """Of an arm of step 6; None where it was not replayed."""
    if part is None or part.replayed is None:
        return None
    if is_base:
        return part.replayed.failed is None
    return part.survivals[name].survives if name in part.survivals else None
