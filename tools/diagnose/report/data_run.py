"""What diagnosis.json of a run has: steps 1 and 2, and for a GPT the case."""

from collections.abc import Collection
from typing import Any

from roundscope.tools.diagnose.replay.fate import Outcome
from roundscope.tools.diagnose.replay.run_part import RunPart
from roundscope.tools.diagnose.replay.start import Replayed
from roundscope.tools.diagnose.search.guilty import Guilty
from roundscope.tools.report.terminal import plain


def first_steps(part: RunPart) -> dict[str, Any]:
    """Return steps 1 and 2 of a GPT's run."""
    r = part.replayed
    about = {
        "arm": part.arm,
        "failure": plain(part.failure),
        "grown": part.grown,
        "looked_at_step": part.step,
    }
    return {
        "1 replay": about | (replay(r) if r else {}),
        "2 search": search(r, r.guilty) if r and r.guilty else None,
    }


def replay(r: Replayed) -> dict[str, Any]:
    """Return step 1."""
    sanity = [
        {
            "from": s.first,
            "until": s.until,
            "as_it_was": outcome(s.low),
            "everything_exact": outcome(s.exact),
        }
        for s in r.sanity
    ]
    return {
        "cause": r.verdict,
        "from": r.replayer.first,
        "until": r.replayer.until,
        "checkpoint": r.own.first,
        "failed": r.failed,
        "rule": r.model.rule,
        "twice_the_same_bits": r.own.again,
        "numbers_compared_with_log": r.compared,
        "numbers_equal_to_log": r.equal,
        "same_device_as_log": r.model.same_device,
        "sanity": sanity,
        "shams": outcome(r.shams),
        "arm_steps": r.arm_steps,
        "seconds": r.seconds,
    }


def search(r: Replayed, g: Guilty) -> dict[str, Any]:
    """Return step 2."""
    return {
        "found": _units(g.found),
        "change": g.family.change(g.found),
        "repair": r.model.repair(g.found, r.replayer.first),
        "size": g.size,
        "of": g.of,
        "events_in_all": len(g.all_units),
        "levels": [plain(x) for x in g.levels],
        "minimal": g.is_minimal,
        "low_alone": outcome(g.only),
        "confirmed": None if g.confirmed is None else outcome(g.confirmed),
        "holds_up": r.holds,
        "p": r.p,
        "repeats": g.repeats,
        "without": {name: outcome(o) for name, o in g.without},
        "controls": [_set(o) for o in g.controls],
        "ties": [_set(o) for o in g.ties],
        "turns": [{"survives": _units(a.units), "fails": _units(b.units)} for a, b in g.turns],
        "sets": [_set(o) for o in g.outcomes],
    }


def _set(o: Outcome) -> dict[str, Any]:
    return {"exact": _units(o.units)} | outcome(o)


def outcome(o: Outcome) -> dict[str, Any]:
    """Return whether a set survives, and when its repeats failed (None: not)."""
    return {"survives": o.survives, "failed": [f.failed for f in o.fates]}


def _units(units: Collection[Any]) -> list[list[Any]]:
    return [[u[0], u[1], str(u.site)] for u in sorted(units)]


def survives(part: RunPart | None, name: str, is_base: bool) -> bool | None:
    """Return whether an arm of step 6 survives its replay; None where it was not replayed."""
    if part is None or part.replayed is None:
        return None
    if is_base:
        return part.replayed.failed is None
    return part.survivals[name].survives if name in part.survivals else None
