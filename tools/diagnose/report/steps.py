"""The steps of a report in order: title, sentence, pictures with captions, tables.

Steps 1 and 2 are a run's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.tools.diagnose.replay.start import Replayed, RunPart
from roundscope.tools.diagnose.report import pictures, words, words_run
from roundscope.tools.diagnose.report.diagnosis import step
from roundscope.tools.diagnose.search import Guilty
from roundscope.tools.diagnose.tensors.findings import Findings
from roundscope.tools.diagnose.tensors.origin import CLASSES
from roundscope.tools.diagnose.tensors.repairs import Outcome
from roundscope.tools.report.model import Picture, Section, Table
from roundscope.tools.report.pictures import DOWN, UP
from roundscope.tools.trace.analysis.running_error import Running, tied
from roundscope.tools.trace.report import plots


def steps(found: Findings) -> list[Section]:
    """Return steps 3 to 6, after those that only a run has."""
    own = (_direction, _coherence, _origin, _repairs)
    return [*first_steps(found.run), *(of(found) for of in own)]


def _restacked(title: str, draw: Callable[..., Figure], found: Findings, caption: str) -> Picture:
    """Return a picture that a narrow screen shows with its panels below each other."""
    return Picture(title, draw(found), caption, partial(draw, found, narrow=True))


def _direction(found: Findings) -> Section:
    x = words.read_by(found)
    last = "M is the error of dW_Q that delta's error makes (arXiv 2510.04212, eq. 2), up to alpha."
    if x != "X":
        last = (
            "q stands in for X, which a file of tensors lacks: M is W_Q^T times the error of dW_Q,"
            " if there is nothing between W_Q and q."
        )
    caption = (
        f"Above: mean cosine between tokens of the rows of P K (exact P), of {x}, and of their"
        f" atoms. Below: the share of the leading singular direction in M = sum_T c_T {x}[T]^T (P"
        " K)[T], c = delta's error, against c permuted over tokens and c with flipped signs."
        f" {last}"
    )
    picture = _restacked("Directions", pictures.directions, found, caption)
    return step(3, "Carrier", words.direction(found), picture)


def _coherence(found: Findings) -> Section:
    caption = (
        "Above: delta(plan) - delta(exact), summed up over tokens, each head divided by the"
        " standard deviation that random signs give its whole sum; red: the head of steps 5 and 6."
        " The band holds for a head that is chosen blindly. Below: A = |sum| / sqrt(sum of"
        " squares); red: biased."
    )
    picture = _restacked("Running sums", pictures.coherences, found, caption)
    return step(4, "Coherence", words.coherence(found), picture)


def _origin(found: Findings) -> Section:
    plan = found.layer.request.plan
    accounts = (
        "Which roundings make the error of delta? Shown are parts of its mean, which add up. Red:"
        " biased by itself, with the sign of the whole and a tenth of it or more. Scores: S to exp;"
        " row sum: l; P: the operand of P V; OD: the rounding of OUT as delta's operand."
    )
    if plan.delta_from != "OUT":
        source = f" Here delta comes from {plan.delta_from}"
        accounts += f"{source}, so `rest` is the difference to rowsum dO O."
    features = (
        "Which features and rows carry it? delta's error is the sum of dO (O as delta reads it - O"
        " exact)."
    )
    shown = [
        Picture("Accounts", pictures.accounts(found), accounts),
        _restacked("Features and rows", pictures.features, found, features),
    ]
    if (run := found.origin.running) is not None:
        rows = "among rows with several P = 1" if run.several else "of all"
        caption = (
            "Err(t) of arXiv 2510.04212, eq. 5, at the row and feature of this head with the"
            f" largest error of the output's roundings {rows}, its keys as one tile;"
            f" {tied(run).size} of {run.p.size} P are 1 (red), where {100 * _jumps(run):.0f} % of"
            " the summed |changes| of Err happen. It ends at"
            f" {run.error[-1] / run.ulp:+.2f} ulp of the sum."
        )
        shown.append(Picture("Error of P V along the keys", plots.along_keys(run), caption))
    if (figure := pictures.classes(found)) is not None:
        caption = (
            "Where do the arguments lie between two numbers of the format? Left: how many; right:"
            " what each class contributes to delta's error. A tie broken by sticky: of P V, the sum"
            " of V over keys with P = 1 ties and the others' small sum does not; elsewhere, within"
            " 1/32 ulp of a tie (1 in 16 of evenly spread arguments); red where the event rounds to"
            " nearest. Below and above half cancel where nothing is biased."
        )
        shown.append(Picture("Rounding classes", figure, caption))
    return step(5, "Origin", words.origin(found), *shown, _class_table(found))


def _jumps(run: Running) -> float:
    """Return the share of the summed |changes| of Err(t) at keys with P = 1."""
    changes = np.abs(np.diff(run.error, prepend=0.0))
    return float(changes[tied(run)].sum() / (changes.sum() or np.inf))


def _class_table(found: Findings) -> Table:
    rows = []
    for c in found.origin.classes:
        for i, name in enumerate(CLASSES):
            if c.events[i]:
                events, ones = str(int(c.events[i])), str(int(c.ones_events[i]))
                bias, of_ones = f"{c.bias[i]:+.2e}", f"{c.ones_bias[i]:+.2e}"
                rows.append([c.site, name, events, bias, ones, of_ones])
    heads = [
        "site",
        "class",
        "events",
        "contribution to\ndelta, per token",
        "of these with\nseveral P = 1",
        "their\ncontribution",
    ]
    return Table(heads, rows)


def _repairs(found: Findings) -> Section:
    caption = (
        "Mean error of delta per token under each arm, for the same tokens. Gray: the interval"
        " before. The sham adds noise of fair sign to the output, of the root mean square by which"
        " `O in FP32` changes it. An interval that leaves the picture means that much noise."
    )
    rows = [_row(found, o) for o in (found.base, *found.outcomes)]
    heads = [
        "arm",
        "effect",
        "mean error of delta\nper token",
        "95 % interval",
        "A",
        "p",
        "rms error",
        "rms change\nof the output",
        "heads\nbiased",
        "change if exact\n(binary64)",
        "time,\nemulated",
        "replay\nsurvives",
    ]
    picture = Picture("Repairs", pictures.repairs(found), caption)
    return step(6, "Repair", words.repairs(found), picture, Table(heads, rows))


def _row(found: Findings, o: Outcome) -> list[str]:
    b, survival, seen = o.after, "not shown", None
    if found.run is not None:
        seen = found.run.survival(o.arm.name, o is found.base)
    if seen is not None:
        survival = words_run.outcome_words(seen)
        survival = "yes" if o is found.base and seen.survives else survival
    invariance = "-" if o.invariance is None else f"{o.invariance:.0e}" if o.invariance else "0"
    return [
        o.arm.name,
        "-" if o is found.base else str(found.effect(o)),
        f"{b.mean:+.2e}",
        f"{b.low:+.1e} to {b.high:+.1e}",
        f"{b.a:.1f}",
        f"{b.p:.1g}",
        f"{b.rms:.1e}",
        f"{o.change:.1e}",
        str(o.biased),
        invariance,
        f"{o.time:.2f}",
        survival,
    ]


def first_steps(part: RunPart | None) -> list[Section]:
    """Return steps 1 and 2 of a GPT's run; none for tensors."""
    if part is None:
        return []
    caption = "The loss of the run, as its log has it."
    if part.replayed is not None:
        caption = (
            "Gray: the log. Black: the replay. Green and red: replays from the same state. Dotted:"
            f" the alarm with its limit, and the state of steps 3 to 6. {part.rule} The rule"
            " continues with the losses before the checkpoint."
        )
    return [
        replay_step(words.replayed(part), _losses(part), caption),
        search_step(part.replayed, words_run.searched(part.replayed, words.NEVER)),
    ]


def _losses(part: RunPart) -> Any:
    curve, failure = list(part.losses.items()), part.failure
    if failure is None:
        return pictures.losses(curve, part.replayed)
    marks = [(failure.step, UP, failure.kind), (part.step, DOWN, "steps 3 to 6")]
    return pictures.losses(curve, part.replayed, marks, failure.limit)


def replay_step(sentence: str, figure: Any, caption: str) -> Section:
    """Return step 1."""
    return step(1, "Replay", sentence, Picture("Losses", figure, caption))


def search_step(r: Replayed | None, sentence: str) -> Section:
    """Return step 2."""
    if r is None or r.guilty is None:
        return step(2, "What must be exact", sentence)
    g = r.guilty
    red = "those that must be exact" if r.holds else "the best set, which does not hold up"
    exact = (
        f"Colored: events that round; red: {red}. As a change of the plan:"
        f" {g.family.change(g.found)}"
    )
    survivors = (
        "Each point is a replay with a set of events exact, the others as in the run. The sets are"
        " chosen by ddmin (Zeller and Hildebrandt, 2002), level by level; where a level has few"
        " sets, all are replayed, size by size. Outcomes are kept, none is replayed twice."
        f" {words_run.SHAM}"
    )
    levels = [
        [x.name, str(len(x.blocks)), str(len(x.needed)), "; ".join(x.needed)] for x in g.levels
    ]
    title, table = "What must be exact", Table(("level", "of", "needed", "which"), levels)
    shown = Picture(title, pictures.exact_map(g), exact)
    outcomes = Picture("Survivors", pictures.survivors(r, g), survivors)
    return step(2, title, sentence, shown, outcomes, table, _checks(r, g))


def _checks(r: Replayed, g: Guilty) -> Table:
    words = words_run.outcome_words
    confirmed = "survives" if g.confirmed is None else words(g.confirmed)
    rows = [["the set exact", g.words(g.found), confirmed]]
    rows += [["sham", "none exact, other last bits", words(r.shams)]]
    rows += [["put back alone", name, words(o)] for name, o in g.without]
    rows += [["random set", g.words(o.units), words(o)] for o in g.controls]
    rows += [["no larger, survives", g.words(o.units), words(o)] for o in g.ties[:8]]
    rows += [["the set low alone", g.words(g.found), words(g.only)]]
    return Table(("check", "events", "replay"), rows)
