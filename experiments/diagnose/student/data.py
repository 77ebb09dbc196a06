"""diagnosis.json of a proxy's run: the verdict and every number behind it."""

from collections.abc import Iterable
from typing import Any

from roundscope.experiments.diagnose.search.ddmin import Outcome
from roundscope.experiments.diagnose.search.guilty import Guilty
from roundscope.experiments.diagnose.student import words
from roundscope.experiments.diagnose.student.run import Found
from roundscope.experiments.diagnose.student.search import Replayed
from roundscope.experiments.diagnose.student.units import Unit, change, name, ordered
from roundscope.experiments.diagnose.student.verdict import links
from roundscope.experiments.report.terminal import plain
from roundscope.experiments.results.machine import device, versions
from roundscope.experiments.trace.data import command_line

SCHEMA = "roundscope-proxy-diagnosis-1"


def document(found: Found) -> Any:
    """The whole of diagnosis.json, as plain data."""
    r, case = found.replayed, found.case
    verdict = {"kind": words.kind(found), "sentence": words.headline(found), "links": links(found), "not_shown": words.not_shown(found)}
    return plain({
        "schema": SCHEMA, "verdict": verdict, "arm": case.own, "config": case.config, "diverged": case.failed, "until": case.until,
        "steps": {
            "1 replay": _replay(r),
            "2 search": None if r.guilty is None else _search(r, r.guilty),
            "3 error": {
                n: {"zeta": e.zeta.tolist(), "cosine": e.cosine.tolist(), "along": e.along.tolist(), "a": e.a, "p": e.p, "null": e.null}
                for n, e in found.errors.items()
            },
            "4 origin": [
                {"units": [name(u) for u in b.units], "format": str(b.format), "in_the_set": b.marked, "shares": b.shares,
                 "normal": b.normal_shares, "max_over_min": b.spread, "stats": b.stats.as_dict()} for b in found.origin
            ],
            "5 repair": [
                {"name": t.name, "change": t.text, "verdict": t.word, "p": t.p, "zeta": float(t.error.zeta.mean()),
                 "along": t.error.bias, "a": t.error.a} | _outcome(t.outcome) for t in found.tried
            ],
        },
        "run": {"command": " ".join(command_line()), "seconds": round(found.seconds, 1), "device": device("xla"),
                "versions": " ".join(f"{k} {v}" for k, v in versions("xla").items())},
    })  # fmt: skip


def _replay(r: Replayed) -> dict[str, Any]:
    sanity = [{"from": s.first, "as_it_was": _outcome(s.low), "everything_exact": _outcome(s.exact)} for s in r.sanity]
    return {
        "cause": r.cause, "from": r.replayer.begin.step, "failed": r.failed, "twice_the_same_bits": r.own.again,
        "curve_points": r.compared, "curve_points_equal": r.equal, "sanity": sanity, "shams": _outcome(r.shams),
    }  # fmt: skip


def _search(r: Replayed, g: Guilty) -> dict[str, Any]:
    assert g.confirmed is not None
    return {
        "found": _units(g.found), "change": change(g.found), "holds_up": r.holds, "p": r.p, "levels": g.levels, "minimal": g.is_minimal,
        "repeats": g.repeats, "confirmed": _outcome(g.confirmed), "controls": [_set(o) for o in g.controls],
        "without": {part: _outcome(o) for part, o in g.without}, "low_alone": _outcome(g.only), "ties": [_set(o) for o in g.ties],
        "sets": [_set(o) for o in g.outcomes],
    }  # fmt: skip


def _outcome(o: Outcome) -> dict[str, Any]:
    return {"survives": o.survives, "failed": [f.failed for f in o.fates]}


def _set(o: Outcome) -> dict[str, Any]:
    return {"exact": _units(o.units)} | _outcome(o)


def _units(units: Iterable[Unit]) -> list[list[Any]]:
    return [[u.layer, u.matrix, str(u.site)] for u in ordered(frozenset(units))]
