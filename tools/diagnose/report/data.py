"""The report of tensors, or of a GPT's run: its words, every number behind them, and digests."""

import platform
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from roundscope.tools.diagnose.replay.replayer import Outcome as Fates
from roundscope.tools.diagnose.replay.start import Replayed, RunPart
from roundscope.tools.diagnose.report import words, words_run
from roundscope.tools.diagnose.report.diagnosis import Diagnosis
from roundscope.tools.diagnose.report.steps import steps
from roundscope.tools.diagnose.search import Guilty
from roundscope.tools.diagnose.tensors.findings import Findings, Stopped
from roundscope.tools.diagnose.tensors.measured import Measured
from roundscope.tools.diagnose.tensors.origin import CLASSES
from roundscope.tools.diagnose.tensors.repairs import Outcome
from roundscope.tools.report.model import Points, Section, Text, notes
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.machine import all_versions, command_line, digest
from roundscope.tools.tensors.layers import sample_path

SCHEMA = "roundscope-diagnosis-1"


HOW = """What is exact: every rounding event of plan and repairs, and delta's error up to binary64
sums. The accounts of step 5 replace exact numbers by the plan's from the front to the back, so they
add up; a part depends on that order where several errors meet. p, intervals and A are statistics
over tokens. A head is biased if p is below 0.01 divided by the number of heads; the other rules
are in the table's evidence and in tools/diagnose/tensors/verdict.py."""
GLOSSARY = {
    "delta": (
        "rowsum dO O, which the backward of attention subtracts from dP; its error reaches dQ"
        " times P K"
    ),
    "atom": "X[T] (P K)[T], the matrix by which token T's error of delta moves the gradient of W_Q",
    "carrier": (
        "a direction that the atoms of many tokens share, along which their errors can add up"
    ),
    "coherence, A": (
        "|sum| / sqrt(sum of squares) of delta's error over tokens: about 1 for random signs"
    ),
    "rows of dS": (
        "they sum to 0 in exact arithmetic; what rounding leaves of that sum is measured relative"
        " to the gradient of W_Q"
    ),
    "several P = 1": (
        "a key tile in which a row has its largest score more than once: sums of V then meet ties"
    ),
    "sticky": "a small remainder beside a sum that ties, which decides to which side it rounds",
    "production order": (
        "FlashAttention-2's roundings (fa2-bf16) with this plan's formats of inputs and P"
    ),
    "sham": (
        "a change as large as a repair's, but at random: if it helps as well, the repair shows"
        " nothing"
    ),
    "low alone": "the events found round as in the run while all others are exact",
}


def diagnosis(found: Findings | Stopped, seconds: float, source: str = "") -> Diagnosis:
    """Return what is said of tensors, or of a GPT's run.

    source: the file of the tensors, and what was said of it, as words of a command; by default its
    name alone.
    """
    source = source or ("--sample" if found.file == sample_path().name else found.file)
    if isinstance(found, Stopped):
        return _stopped(found, seconds, source)
    run, request = found.run, found.layer.request
    about = (
        f"{found.file}, plan {request.plan.name}{', causal' if request.causal else ''}, against"
        " exact arithmetic"
    )
    if run is None:
        about += "; steps 1 and 2 replay a training run, so tensors do not have them"
    sentences, title = [words.rows(found)], "Does rounding add up here, and why?"
    if run is not None:
        title = "Why did this run fail, and is it rounding?"
        sentences += [words.replayed(run), words_run.searched(run.replayed, words.NEVER)]
        sentences.append(words.survivors(run))
    data = document(found, seconds)
    glossary = Points([(f"{name}:", f"{text}.") for name, text in GLOSSARY.items()])
    return Diagnosis(
        name=found.file,
        title=title,
        about=about,
        first_line=words.first_line(found),
        kind=words.kind(found),
        headline=words.headline(found),
        steps=steps(found),
        links=words.links(found),
        unseen=words.not_shown(found),
        said=[Text(x) for x in sentences if x],
        how=[*notes(HOW), Section("Terms", [glossary])],
        machine=_machine(data),
        data=data,
        seconds=seconds,
        **(_of_tensors(found, source) if run is None else {}),
    )


def _stopped(found: Stopped, seconds: float, source: str) -> Diagnosis:
    """Return what is said where the results of every layer are infinite or NaN."""
    first = found.lost[0]
    data = _begin(found.file, first, found.lost, seconds) | _lost(found.lost)
    changes = () if first.not_finite is None else first.not_finite.avoided_by
    sets = "".join(f" --set {shlex.quote(w)}" for w in changes)
    return Diagnosis(
        name=found.file,
        title="Does rounding add up here, and why?",
        about=f"{found.file}, plan {first.request.plan.name}, against exact arithmetic",
        first_line=words.not_finite(found.lost),
        kind="infinite or NaN results",
        headline=(
            "The error of delta is infinite, so nothing can be said of how it adds up over tokens;"
            " steps 3 to 6 were not run."
        ),
        steps=(),
        links=(),
        unseen=("whether rounding adds up where the results are finite",),
        said=(),
        how=notes(HOW),
        machine=_machine(data),
        data=data,
        seconds=seconds,
        why="Next, every event of the same call",
        command=_trace(source, first.request.plan.name) + sets,
    )


def _trace(source: str, plan: str) -> str:
    name, *changes = plan.split("; ")
    sets = "".join(f" --set {shlex.quote(words)}" for words in changes)
    return f"roundscope trace {source} --plan {name}{sets}"


def _lost(lost: Sequence[Measured]) -> dict[str, Any]:
    each = {m.layer.name: m.not_finite for m in lost}
    return {"infinite_or_nan": {n: {"sentence": str(x)} | plain(x) for n, x in each.items()}}


def _of_tensors(found: Findings, source: str) -> dict[str, str]:
    """Return the opening of the page on tensors, which have no replays to speak of."""
    next_one = "Next, the error of every result, and which event makes it"
    command = _trace(source, found.layer.request.plan.name)
    opening, number = words.opening(found), words.most_extreme(found)
    return {"opening": opening, "number": number, "why": next_one, "command": command}


def document(found: Findings, seconds: float) -> dict[str, Any]:
    """Return diagnosis.json without the verdict."""
    about = _begin(found.file, found.layer, found.measured, seconds) | _lost(found.lost)
    return about | {
        "head": {"layer": found.layer.layer.name, "head": found.layer.heads[found.head]},
        "steps": (first_steps(found.run) if found.run else {}) | _steps(found),
    }


def _begin(file: str, m: Measured, measured: Sequence[Measured], seconds: float) -> dict[str, Any]:
    """Return what was run: the file, the plan of a layer, versions, digests of all layers."""
    request, layers = m.request, [x.layer for x in measured]
    roles = ("q", "k", "v", "do")
    digests = {x.name: {role: digest(getattr(x, role)) for role in roles} for x in layers}
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "file": file,
        "plan": request.plan.describe(),
        **{name: getattr(request, name) for name in ("causal", "block_q", "block_k")},
        "versions": all_versions(request.engine),
        "platform": platform.platform(),
        "seconds": seconds,
        "digests": digests,
    }


def _machine(data: dict[str, Any]) -> list[str]:
    lines = [
        f"command    {' '.join(data['command'])}",
        f"versions   {' '.join(f'{k} {v}' for k, v in data['versions'].items())}",
        f"platform   {data['platform']}",
        f"seconds    {data['seconds']:.1f}",
    ]
    return lines + [
        f"sha256     {name} {role} {digest}"
        for name, roles in data["digests"].items()
        for role, digest in roles.items()
    ]


def _steps(found: Findings) -> dict[str, Any]:
    o, names = found.origin, [m.layer.name for m in found.measured]

    def arrays(x: Any, fields: tuple[str, ...]) -> dict[str, Any]:
        return {f: getattr(x, f).tolist() for f in fields}

    counted = ("events", "bias", "ones_events", "ones_bias")
    carried = ("pk", "q", "atoms", "flipped_atoms", "share", "permuted", "flipped", "growth")
    summed = ("total", "rms", "a", "p", "smallest")
    rows = {n: None if x is None else x.tolist() for n, x in zip(names, found.rows, strict=True)}
    exact = [] if found.run is None else [x.tolist() for x in found.run.rows]
    return {
        "3 carrier": {n: arrays(c, carried) for n, c in zip(names, found.carriers, strict=True)},
        "4 coherence": {
            n: arrays(c, summed) | {"level": c.level}
            for n, c in zip(names, found.coherences, strict=True)
        },
        "4 rows of dS": plain({"share_of_the_gradient_of_w_q": rows, "with_the_set_exact": exact}),
        "5 origin": {
            "total": plain(o.total),
            "accounts": {k: plain(b) | {"share": o.share(k)} for k, b in o.accounts.items()},
            "origins": o.origins,
            "by_feature": o.features.mean(0).tolist(),
            "rows_with_several_ones": int(o.several.sum()),
            "rows": int(o.several.size),
            "classes": {
                c.site: {
                    name: {k: getattr(c, k)[i].item() for k in counted}
                    for i, name in enumerate(CLASSES)
                }
                for c in o.classes
            },
        },
        "6 repair": [_outcome(found, x) for x in (found.base, *found.outcomes)],
    }


def _outcome(found: Findings, o: Outcome) -> dict[str, Any]:
    survival = None if found.run is None else found.run.survival(o.arm.name, o is found.base)
    return {
        "arm": o.arm.name,
        "effect": None if o is found.base else str(found.effect(o)),
        "bias": plain(o.after),
        "moved": list(o.moved),
        "change_of_output_rms": o.change,
        "heads_that_lean": o.biased,
        "invariance": o.invariance,
        "time_ratio": o.time,
        "replay_survives": None if survival is None else survival.survives,
    }


def first_steps(part: RunPart) -> dict[str, Any]:
    """Return steps 1 and 2 of a GPT's run."""
    r, about = part.replayed, {"arm": part.arm, "failure": plain(part.failure)}
    about |= {"grown": part.grown, "looked_at_step": part.step}
    return {
        "1 replay": about | (replay(r) if r else {}),
        "2 search": search(r, r.guilty) if r and r.guilty else None,
    }


def replay(r: Replayed) -> dict[str, Any]:
    """Return step 1."""
    sanity = [
        {"from": s.first, "until": s.until}
        | {"as_it_was": outcome(s.low), "everything_exact": outcome(s.exact)}
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


def _set(o: Fates) -> dict[str, Any]:
    return {"exact": _units(o.units)} | outcome(o)


def outcome(o: Fates) -> dict[str, Any]:
    """Return whether a set survives, and when its repeats failed (None: not)."""
    return {"survives": o.survives, "failed": [f.failed for f in o.fates]}


def _units(units: Collection[Any]) -> list[list[Any]]:
    return [[u[0], u[1], str(u.site)] for u in sorted(units)]
