"""The report on a proxy's run: its verdict link by link, steps, tables, sentences, and its JSON."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.experiments.diagnose.student import pictures as measured
from roundscope.experiments.diagnose.student.blocks import Blocks
from roundscope.experiments.diagnose.student.errors import GRADIENT, Error
from roundscope.experiments.diagnose.student.run import (
    ALL,
    BASE,
    FOUND,
    RANDOM,
    REST,
    SET,
    Found,
    Tried,
)
from roundscope.experiments.diagnose.student.units import name, words
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.run import RULE
from roundscope.tools.diagnose.replay.start import LEVEL, Cause
from roundscope.tools.diagnose.report import data, pictures, words_run
from roundscope.tools.diagnose.report.diagnosis import Diagnosis, step
from roundscope.tools.diagnose.report.steps import replay_step, search_step
from roundscope.tools.diagnose.tensors.verdict import Link
from roundscope.tools.report.model import Picture, Section, Table, notes
from roundscope.tools.report.pictures import DOWN, UP
from roundscope.tools.results.machine import command_line, device, versions


def links(found: Found) -> list[Link]:
    """Return the links in the order of the steps; a step that was not reached has none."""
    chain = words_run.links(found.replayed)
    if found.guilty and SET in found.errors:
        chain.append(_share(found))
    if found.errors:
        chain.append(_adds_up(found))
    if found.origin:
        chain.append(_blocks_link(found))
    if found.tried:
        chain.append(_repair(found))
    return chain


def subject(found: Found) -> Error:
    """Return the error whose bias is at issue: of the set of step 2, else of all events."""
    return found.errors.get(SET, found.errors[ALL])


def _share(found: Found) -> Link:
    own, rest, every = (float(found.errors[n].zeta.mean()) for n in (SET, REST, ALL))
    evidence = (
        f"zeta {own:.3g} with the set alone rounded, {rest:.3g} with all but it, {every:.3g} with"
        " all events"
    )
    return Link(name="error", holds=own > rest, evidence=evidence)


def _adds_up(found: Found) -> Link:
    e, g = subject(found), found.errors[GRADIENT]
    whose = "the set's error" if SET in found.errors else "the error of all events"
    mean, half = e.bias
    evidence = (
        f"over {e.zeta.size} steps {whose} is {e.a:.2f} times what random directions give (flips:"
        f" below {e.null:.2f}, p = {e.p:.1g}; the gradient itself: {g.a:.2f}); along the gradient"
        f" {100 * mean:+.2g} % of it, +- {100 * half:.2g}"
    )
    return Link(name="coherence", holds=e.p < LEVEL, evidence=evidence)


def looked(found: Found) -> list[Blocks]:
    """Return the blocks of the set of step 2, or of all events without one."""
    return [b for b in found.origin if b.marked] or list(found.origin)


def _blocks_link(found: Found) -> Link:
    worst = max(looked(found), key=lambda b: -b.shares["shrink"])
    s, normal = worst.shares, worst.normal_shares
    name = f"{worst.units[0].site} ({worst.format})"
    evidence = (
        f"the largest loss of magnitude: {name}, {100 * -s['shrink']:.2g} % (normal numbers:"
        f" {100 * -normal['shrink']:.2g} %); {100 * s['clipped']:.2g} % clipped"
        f" ({100 * normal['clipped']:.2g} %), {100 * s['underflow']:.2g} % become 0"
        f" ({100 * normal['underflow']:.2g} %), {100 * s['excess']:.0f} % of the error would not be"
        f" there under RCEIL ({100 * normal['excess']:.0f} %), {s['distinct']:.1f} different"
        f" elements in a block ({normal['distinct']:.1f})"
    )
    holds = -s["shrink"] > 2.0 * -normal["shrink"] > 0.0
    return Link(name="blocks unlike normal numbers", holds=holds, evidence=evidence)


def _repair(found: Found) -> Link:
    def said(word: str) -> str:
        own = [f"{t.name} ({t.outcome.count})" for t in real(found) if t.word == word]
        return ", ".join(own) or "none"

    good, shams = said("averts it"), found.tried[0].outcome.count
    evidence = f"averted by: {good}; undecided: {said('undecided')}; shams: {shams}"
    return Link(name="repair", holds=good != "none", evidence=evidence)


HOW = (
    f"{words_run.SHAM} Epsilon is measured at the same weights and rows, so it contains no"
    " difference between two trainings."
)


def steps(found: Found) -> list[Section]:
    """Return what the report shows, in order."""
    r = found.replayed
    rounds = "The events of a row round, all others are FP32."
    dots = "Dots: the run's blocks, red those of the set; bars: normal numbers in the same format."
    green = "Green: survives more often than shams do; red: none survives."
    errors = (
        Picture("Error and coherence", measured.errors(found), rounds) if found.errors else None
    )
    blocks = Picture("Blocks", measured.origin(found), dots) if found.origin else None
    repairs = Picture("Repairs", measured.repairs(found), green) if found.tried else None
    return [
        replay_step(words_run.replayed(r), losses(found), RULE),
        search_step(r, words_run.searched(r)),
        step(3, "The gradient's error", error(found), errors, _errors(found)),
        step(4, "Origin", origin(found), blocks, _origin(found)),
        step(5, "Repair", repaired(found), repairs, _repairs(found)),
    ]


def losses(found: Found) -> Figure:
    """Draw the file's curve (the largest loss of 25 steps), the replay, and the sanity arms."""
    case, r = found.case, found.replayed
    curve = [(step, loss) for step, loss, _ in case.row.curve if loss > 0.0]
    marks = [(case.failed, UP, "diverged"), (r.replayer.first, DOWN, "replays begin")]
    return pictures.losses(curve, r, marks)


def _errors(found: Found) -> Table:
    rows = []
    for who, e in found.errors.items():
        mean, half = (100 * x for x in e.bias)
        numbers = f"{e.zeta.mean():.3g}", f"{e.cosine.mean():.4f}", f"{mean:+.3g}", f"{half:.2g}"
        rows.append([who, *numbers, f"{e.a:.2f}", f"{e.null:.2f}", f"{e.p:.1g}"])
    heads = ["rounded", "zeta", "cosine", "along g, %", "+-", "A", "flips, 95 %", "p"]
    return Table(heads, rows, [row[0] == SET for row in rows])


def _origin(found: Found) -> Table:
    shares = {"clipped": "clipped\n%", "last": "largest\n%", "underflow": "to 0\n%"}
    shares |= {"shrink": "shrink\n%", "rms": "rms\nerror %", "excess": "over\nRCEIL %"}
    rows: list[list[str]] = []
    for b in found.origin:
        own = str(b.units[0].site), str(b.format), str(len(b.units)), b.shares, f"{b.spread:.3g}"
        for *where, s, spread in (own, ("  normal numbers", "", "", b.normal_shares, "")):
            percent = [f"{100 * s[name]:.2f}" for name in shares]
            rows.append([*where, *percent, f"{s['distinct']:.1f}", spread])
    heads = ["event", "format", "places", *shares.values(), "distinct", "max / min"]
    return Table(heads, rows, [b.marked and not i for b in found.origin for i in (0, 1)])


def _repairs(found: Found) -> Table:
    rows = []
    for t in found.tried:
        mean, half = (100 * x for x in t.error.bias)
        error = f"{t.error.zeta.mean():.3g}", f"{mean:+.3g} +- {half:.2g}", f"{t.error.a:.2f}"
        steps = [f.failed for f in t.outcome.fates if f.failed is not None]
        fates = t.outcome.count, f"{np.median(steps):.0f}" if steps else "", f"{t.p:.1g}"
        rows.append([t.name, *error, *fates, "" if t is found.tried[0] else t.word])
    heads = ["repair", "zeta", "along g, %", "A", "survive", "others\nfail at", "p", "verdict"]
    return Table(heads, rows)


def diagnosis(found: Found) -> Diagnosis:
    """Return what is said of a student's run."""
    data, r = document(found), found.replayed
    return Diagnosis(
        name=who(found),
        title="Why did this run diverge, and is it rounding?",
        about=who(found),
        first_line=words_run.first_line(r),
        kind=kind(found),
        headline=headline(found),
        steps=steps(found),
        links=links(found),
        unseen=not_shown(found),
        said=[_repairs(found)] if found.tried else [],
        how=notes(HOW),
        machine=[f"{k:<10} {v}" for k, v in data["run"].items()],
        data=data,
        seconds=found.seconds,
    )


def kind(found: Found) -> str:
    """Return the verdict in a few words."""
    r = found.replayed
    if r.cause is not Cause.ROUNDING:
        return r.verdict
    fault = "a set of events is" if r.holds else "no set of events is shown to be"
    return f"{r.verdict}; {fault} at fault"


def who(found: Found) -> str:
    """Return the run in words."""
    own = found.case.own
    return f"{own.name}, seed {own.seed}, lr {own.lr:g}"


def headline(found: Found) -> str:
    """Return the verdict in a few sentences."""
    r, twin = found.replayed, found.case.twin
    beside = ""
    if twin is not None:
        too = " not" if twin.diverged is None else f" too, at {twin.diverged}"
        beside = f" FP32 on the same rows does{too}."
    start = f"{who(found)}: diverges at step {found.case.failed}.{beside} {words_run.ending(r)}"
    if not r.holds:
        return start
    good = [t.name for t in real(found) if t.word == "averts it"]
    if not good:
        return f"{start} None of the repairs tried is shown to avert it."
    return f"{start} Repairs that avert it: {', '.join(good)}."


def real(found: Found) -> list[Tried]:
    """Return the known repairs that were tried."""
    return [t for t in found.tried if t.name not in (BASE, FOUND, RANDOM)]


def error(found: Found) -> str:
    """Return the sentence of step 3."""
    if not found.errors:
        return "Which event makes the gradient's error? No event rounds."
    single = {n: e for n, e in found.errors.items() if n in list(Site)}
    most = sorted(single, key=lambda n: -float(single[n].zeta.mean()))[:3]
    own = ", ".join(f"{n} {single[n].zeta.mean():.3g}" for n in most)
    e, by_name = found.errors[ALL], {x.name: x.evidence for x in links(found)}
    share = f" {by_name['error'][0].upper()}{by_name['error'][1:]}." if "error" in by_name else ""
    return (
        "Which event makes the gradient's error, and does it add up? |epsilon| / |g| is"
        f" {e.zeta.mean():.3g}, cosine {e.cosine.mean():.4f}, with all events; alone, most have"
        f" {own}.{share} {_coherent(found)}"
    )


def _coherent(found: Found) -> str:
    less = subject(found).a < found.errors[GRADIENT].a
    text = next(x.evidence for x in links(found) if x.name == "coherence")
    more = " It adds up less than the gradient itself does." if less else ""
    return f"{text[0].upper()}{text[1:]}.{more}"


def origin(found: Found) -> str:
    """Return the sentence of step 4."""
    if not found.origin:
        return "What do the blocks look like? No operand rounds in blocks."
    text = next(x.evidence for x in links(found) if x.name.startswith("blocks"))
    whose = "the set of step 2" if any(b.marked for b in found.origin) else "all operands"
    return (
        f"What do the blocks of {whose} look like? In brackets: normal numbers in the same format."
        f" {text[0].upper()}{text[1:]}."
    )


def repaired(found: Found) -> str:
    """Return the sentence of step 5."""
    if not found.tried:
        return f"Which repair averts it? Not tried: {found.replayed.verdict}."
    text = next(x.evidence for x in links(found) if x.name == "repair")
    return f"Which repair averts it? {text[0].upper()}{text[1:]}."


def not_shown(found: Found) -> list[str]:
    """Return what this diagnosis leaves open."""
    start, (first, last) = found.replayed.replayer.first, found.steps
    until = found.replayed.replayer.until
    later = (
        f"What comes after step {until} (--until): 'survives' means up to there, from step {start}"
        " (--from)."
    )
    seeds = (
        "Other seeds and rows: one run was examined. No part of the set can be left out; a smaller"
        " set of other events may exist."
    )
    steps = (
        f"Other steps: steps 3 and 4 examine steps {first} to {last} of the run as it was;"
        " gradients under a repair are at those weights too."
    )
    repairs = (
        "Repairs from the start: a replay begins with a repair in the middle of the run; trained"
        " with it from the start, the run may differ."
    )
    lines = [later, seeds, steps, repairs]
    blocked = frozenset(u for b in found.origin for u in b.units)
    if rest := found.guilty - blocked:
        lines.append(
            f"What {words(rest, found.replayed.units)} look like: they do not round in blocks, or"
            " are no operands; step 4 shows operands in blocks."
        )
    return lines


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
            "1 replay": data.replay(r),
            "2 search": None if r.guilty is None else data.search(r, r.guilty),
            "3 error": {
                n: {k: getattr(e, k).tolist() for k in ("zeta", "cosine", "along")}
                | {"a": e.a, "p": e.p, "null": e.null}
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
                | data.outcome(t.outcome)
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
