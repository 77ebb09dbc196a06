"""trace.json: every number of a trace, the request, and digests of the inputs and outputs."""

import hashlib
import platform
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention import Trace
from roundscope.attention.budget.parts import promotion
from roundscope.attention.grammar.injections import injection_words
from roundscope.attention.injection import Injection
from roundscope.emu.whole_files import whole_file
from roundscope.events.plan import base_name, stored_name
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.folder import as_word, free_folder
from roundscope.tools.results.machine import all_versions
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.tensors.overrides import AS_THE_FILE, Overrides
from roundscope.tools.trace.analysis.bias import Bias, Event
from roundscope.tools.trace.analysis.consequences import Gain
from roundscope.tools.trace.analysis.running_error import tied
from roundscope.tools.trace.costs import cost
from roundscope.tools.trace.report.words import plan_changes, sentence
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.results import Result, score
from roundscope.tools.trace.run import blocks
from roundscope.tools.trace.stopping import stop
from roundscope.tools.trace.summary import Summary, share_of_rows
from roundscope.tools.trace.verdict import verdict

SCHEMA = "roundscope-trace-3"


def document(
    summaries: list[Summary], request: Request, file: str, command: list[str]
) -> dict[str, Any]:
    """Return the content of trace.json as plain data; file: the tensors' file, by its name."""
    return {
        "schema": SCHEMA,
        "command": command,
        "file": file,
        "engine": request.engine,
        "seed": request.seed,
        "plan": request.plan.describe(),
        "against": request.against.describe(),
        "causal": all(s.request.causal for s in summaries),
        "block_q": request.block_q,
        "block_k": request.block_k,
        "inject": [_plain(i) for i in request.inject],
        "versions": all_versions(request.engine),
        "platform": platform.platform(),
        "layers": [layer(s) for s in summaries],
    }


def layer(s: Summary) -> dict[str, Any]:
    """Return all findings of one layer as plain data."""
    names, means, z = s.heads
    some, rows = share_of_rows(s)
    d, run = s.drift, s.running
    return {
        "name": s.layer.name,
        "sentence": sentence(s),
        "shape": shape(s.layer),
        "notes": list(s.layer.notes),
        "scale": s.scale,
        "causal": bool(s.request.causal),
        "alignment": s.request.alignment,
        "tile": blocks(s.layer, s.request),
        "not_finite": s.layer.nan_count,
        "infinite_or_nan": s.not_finite and {"sentence": str(s.not_finite)} | plain(s.not_finite),
        "digests": s.digests,
        "threshold": s.limit,
        "events": [event(e, s) for e in s.events],
        "verdict": {**_plain(verdict(s)), "stop": stop(s)},
        "injected": {name: {"hit": hit, "of": n} for name, (hit, n) in s.hits.items()},
        "results": {r.name: result(r) for r in s.results},
        "budget": None if s.budget is None else budget(s),
        "delta": d
        and {
            "z_by_head": d.z.tolist(),
            "threshold": d.limit,
            "worst_head": {"batch": d.worst[0], "head": d.worst[1]},
            "leans": d.leans,
            "overall": _plain(d.overall),
            "largest_gap_to_rowsum_do_error_of_out": d.identity,
            "worst_head_error": d.error[d.worst[0], :, d.worst[1]].tolist(),
        },
        "several_ones": {
            "rows": some,
            "of": rows,
            "by_head": None if s.several is None else s.several.sum(2).tolist(),
            "errors": [_plain(x) | {"share_away_from_zero": x.share} for x in s.shares],
        },
        "running_error": run
        and {
            **dict(zip(("batch", "head", "row", "feature"), run.where, strict=True)),
            "site": run.site,
            "keys_with_p_one": tied(run).tolist(),
            "ulp": run.ulp,
            "p": run.p.tolist(),
            "v": run.v.tolist(),
            "sum": run.total.tolist(),
            "error": run.error.tolist(),
        },
        "heads": {"events": names, "mean_ulps": means.tolist(), "z": z.tolist()},
        "histograms": {
            k: {"counts": f.counts.tolist(), "beyond": f.beyond} for k, f in s.histograms.items()
        },
    }


def result(r: Result) -> dict[str, Any]:
    """Return the errors of one result as plain data."""
    return {
        **r.difference,
        "gain": _gain(r.gain),
        "casts_of_inputs": r.cast,
        "without_casts": r.computed,
        "beside": {"relative_rms": r.beside, "gain": _gain(r.besides)},
        "rounded_once": r.least,
        "relative_rms_by_head": r.heads.tolist(),
    }


def _gain(g: Gain | None) -> dict[str, Any] | None:
    if g is None:
        return None
    return {
        "mean": g.mean,
        "standard_error": g.se,
        "z": score(g),
        "limit": g.limit,
        "biased": g.is_biased,
    }


def budget(s: Summary) -> dict[str, Any]:
    """Return the error budget as plain data, each part with its shares and its cost."""
    b, plan = s.budget, s.request.plan
    assert b is not None
    return {
        "heads": list(b.heads),
        "total": b.total,
        "gain": b.gain,
        "without_rounding": b.functions,
        "interaction": {n: b.interaction(n) for n in b.total},
        "parts": [
            {
                "name": line.part.name,
                "rounds_to": line.part.how,
                "formula": line.part.formula,
                "share": {n: b.share(line, n) for n in b.total},
                "alone": line.alone,
                "gain_alone": line.gain,
                "without": line.without,
                "is_change": line.is_change,
                "promotion": promotion(plan, line.part),
                "cost": cost(plan, line.part, s.layer),
            }
            for line in b.lines
        ],
    }


def shape(layer: Layer) -> dict[str, int]:
    """Return the sizes of batch B, queries T, keys S, heads N, key heads G, features H, V's H_v."""
    (b, t, n, h), (_, s, g, hv) = layer.q.shape, layer.v.shape
    return {"B": b, "T": t, "S": s, "N": n, "G": g, "H": h, "H_v": hv}


def event(e: Event, s: Summary) -> dict[str, Any]:
    """Return one event as plain data: counts and sums over all heads, and its two tests of bias."""
    stats = s.stats[e.name]
    return {
        "name": e.name,
        "format": e.format.name,
        **e.counts,
        **_bias(e.signed),
        "away_from_zero": _bias(e.away),
        "distinct_arguments": e.distinct,
        "mean_abs_ulps": e.mean_abs,
        "worst_head": {"batch": e.worst[0], "head": e.worst[1], "mean_ulps": e.worst_mean},
        "by_head": {
            "n": stats.n.tolist(),
            "inexact": stats.inexact.tolist(),
            "mean_ulps": stats.mean_ulps.tolist(),
        },
    }


def _bias(x: Bias) -> dict[str, Any]:
    """Return one of the two tests of an event as plain data."""
    return {
        "mean_ulps": x.error.mean,
        "standard_error": x.error.se,
        "z": x.error.z,
        "z_by_rows": x.by_rows.z,
        "null_deviation": x.error.null,
        "biased": x.is_biased,
    }


def _plain(record: Any) -> dict[str, Any]:
    data: dict[str, Any] = plain(record)
    if isinstance(record, Injection):
        data |= {k: list(v) for k, v in data.items() if isinstance(v, range)}
        data["what"] = {"kind": type(record.what).__name__} | data["what"]
        if record.share is None:
            del data["share"], data["seed"]
        del data["mask"]
        if record.mask is not None:
            own = record.mask
            data["mask"] = {"name": own.name, "shape": list(own.shape), "sha256": own.digest}
    return data


RECORD, RECORDS = "trace.json", "records.npz"


def digest(
    asked: Request,
    path: Path,
    layer: str | None = None,
    layout: str | None = None,
    overrides: Overrides = AS_THE_FILE,
    heads: tuple[int, ...] | None = None,
) -> str:
    """Return a digest of what decides a trace, but for the program and the contents of the file."""
    plan = replace(asked.plan, name=stored_name(asked.plan.name))  # as older traces have it
    whole = (str(path.resolve()), layer, layout, overrides, replace(asked, plan=plan))
    text = repr(whole if heads is None else (*whole, heads))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder_for(path: Path, asked: Request, request: str) -> Path:
    """Return the folder trace-<file>-<plan>, the plan with its changes of --set and injections.

    It ends in -2, -3 and so on where the name without it holds another request. Records alone are
    what a trace left that was killed. Characters that shells or file systems dislike become -.
    request: as `digest` gives it.
    """
    injected = [f"inject-{injection_words(i)}" for i in asked.inject]
    plan = "-".join([base_name(asked.plan.name), *plan_changes(asked.plan), *injected])
    name = f"trace-{path.stem}-{as_word(plan)[:80]}"
    return free_folder(name, request, RECORD, RECORDS)


Keep = Callable[[str, Trace], None]


@contextmanager
def records(path: Path, asked: Request) -> Iterator[Keep]:
    """Yield a function that writes what was asked for of one layer: its name in files, its trace.

    The entries are <layer>.<SITE>.rows, .before and .after. The file is there when all layers are
    written; there is none if nothing was asked for.
    """
    if not asked.rows and not asked.record.events:
        yield lambda layer, trace: None
        return
    deflated = zipfile.ZIP_DEFLATED
    with whole_file(path) as unfinished, zipfile.ZipFile(unfinished, "w", deflated) as archive:

        def keep(layer: str, trace: Trace) -> None:
            found = {f"{n}.rows": rows for n, rows in trace.rows.items()} if asked.rows else {}
            for site, (before, after) in trace.events.items():
                found |= {f"{site}.before": before, f"{site}.after": after}
            for name, array in found.items():
                with archive.open(f"{layer}.{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)

        yield keep
