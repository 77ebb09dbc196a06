"""diagnosis.json: the verdict, every number behind it, and digests of what went in."""

import platform
from typing import Any

from roundscope.experiments.diagnose.report import words
from roundscope.experiments.diagnose.report.data_run import first_steps, survives
from roundscope.experiments.diagnose.tensors.classes import CLASSES
from roundscope.experiments.diagnose.tensors.findings import Findings
from roundscope.experiments.diagnose.tensors.repairs import Outcome
from roundscope.experiments.report.terminal import plain
from roundscope.experiments.trace.data import command_line, digest, versions

SCHEMA = "roundscope-diagnosis-1"


def document(found: Findings, seconds: float) -> dict[str, Any]:
    """The whole of diagnosis.json, as plain data."""
    request = found.layer.request
    return {
        "schema": SCHEMA, "command": command_line(), "file": found.file, "plan": request.plan.describe(), "causal": request.causal,
        "block_q": request.block_q, "block_k": request.block_k, "versions": versions(request.engine), "platform": platform.platform(),
        "seconds": seconds, "digests": {m.layer.name: _digests(m.layer) for m in found.measured},
        "verdict": {
            "kind": words.kind(found), "first_line": words.first_line(found), "sentence": words.headline(found),
            "links": [plain(x) for x in words.links(found)], "not_shown": words.not_shown(found),
        },
        "head": {"layer": found.layer.layer.name, "head": found.layer.heads[found.head]},
        "steps": (first_steps(found.run) if found.run else {}) | _steps(found),
    }  # fmt: skip


def _digests(layer: Any) -> dict[str, str]:
    return {role: digest(getattr(layer, role)) for role in ("q", "k", "v", "do")}


def _steps(found: Findings) -> dict[str, Any]:
    o, names = found.origin, [m.layer.name for m in found.measured]
    arrays = lambda x, fields: {f: getattr(x, f).tolist() for f in fields}  # noqa: E731
    carried = ("pk", "q", "atoms", "flipped_atoms", "share", "permuted", "flipped", "growth")
    summed = ("total", "rms", "a", "p", "smallest")
    rows = {n: None if x is None else x.tolist() for n, x in zip(names, found.rows, strict=True)}
    exact = [] if found.run is None else [x.tolist() for x in found.run.rows]
    return {
        "3 carrier": {n: arrays(c, carried) for n, c in zip(names, found.carriers, strict=True)},
        "4 coherence": {n: arrays(c, summed) | {"level": c.level} for n, c in zip(names, found.coherences, strict=True)},
        "4 rows of dS": plain({"share_of_the_gradient_of_w_q": rows, "with_the_set_exact": exact}),
        "5 origin": {
            "total": plain(o.total), "accounts": {k: plain(b) | {"share": o.share(k)} for k, b in o.accounts.items()}, "origins": o.origins,
            "by_feature": o.features.mean(0).tolist(), "rows_with_several_ones": int(o.several.sum()), "rows": int(o.several.size),
            "classes": {c.site: {name: _class(c, i) for i, name in enumerate(CLASSES)} for c in o.classes},
        },
        "6 repair": [_outcome(found, x) for x in (found.base, *found.outcomes)],
    }  # fmt: skip


def _class(c: Any, i: int) -> dict[str, float]:
    return {"events": int(c.events[i]), "bias": float(c.bias[i]), "ones_events": int(c.ones_events[i]), "ones_bias": float(c.ones_bias[i])}


def _outcome(found: Findings, o: Outcome) -> dict[str, Any]:
    return {
        "arm": o.arm.name, "effect": None if o is found.base else str(found.effect(o)), "bias": plain(o.after), "moved": list(o.moved),
        "change_of_output_rms": o.change, "heads_that_lean": o.leaning, "invariance": o.invariance, "time_ratio": o.time,
        "replay_survives": survives(found.run, o.arm.name, o is found.base),
    }  # fmt: skip
