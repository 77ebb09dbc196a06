"""diagnosis.json of a proxy's run: the verdict and every number behind it."""

from typing import Any

from roundscope.experiments.diagnose.student.run import Found
from roundscope.experiments.diagnose.student.units import name
from roundscope.tools.diagnose.report import data_run
from roundscope.tools.results.machine import device, versions
from roundscope.tools.results.provenance import command_line

SCHEMA = "roundscope-proxy-diagnosis-1"


def document(found: Found) -> dict[str, Any]:
    """Return diagnosis.json without the verdict."""
    r, case = found.replayed, found.case
    return {
        "schema": SCHEMA,
        "arm": case.own,
        "config": case.config,
        "diverged": case.failed,
        "until": case.until,
        "steps": {
            "1 replay": data_run.replay(r),
            "2 search": None if r.guilty is None else data_run.search(r, r.guilty),
            "3 error": {
                n: {
                    "zeta": e.zeta.tolist(),
                    "cosine": e.cosine.tolist(),
                    "along": e.along.tolist(),
                    "a": e.a,
                    "p": e.p,
                    "null": e.null,
                }
                for n, e in found.errors.items()
            },
            "4 origin": [
                {
                    "units": [name(u) for u in b.units],
                    "format": str(b.format),
                    "in_the_set": b.marked,
                    "shares": b.shares,
                    "normal": b.normal_shares,
                    "max_over_min": b.spread,
                    "stats": b.stats.as_dict(),
                }
                for b in found.origin
            ],
            "5 repair": [
                {
                    "name": t.name,
                    "change": t.text,
                    "verdict": t.word,
                    "p": t.p,
                    "zeta": float(t.error.zeta.mean()),
                    "along": t.error.bias,
                    "a": t.error.a,
                }
                | data_run.outcome(t.outcome)
                for t in found.tried
            ],
        },
        "run": {
            "command": " ".join(command_line()),
            "seconds": round(found.seconds, 1),
            "device": device("xla"),
            "versions": " ".join(f"{k} {v}" for k, v in versions("xla").items()),
        },
    }
