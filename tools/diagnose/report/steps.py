"""The steps of the report in order: title, sentence, pictures with captions, table.

Steps 1 and 2 are a run's (steps_run).
"""

import numpy as np

from roundscope.tools.diagnose.report import pictures, pictures_origin, words
from roundscope.tools.diagnose.report.diagnosis import step
from roundscope.tools.diagnose.report.steps_run import first_steps, survival
from roundscope.tools.diagnose.tensors.classes import CLASSES
from roundscope.tools.diagnose.tensors.findings import Findings
from roundscope.tools.diagnose.tensors.repairs import Outcome
from roundscope.tools.report.model import Picture, Section, Table
from roundscope.tools.trace.analysis.running_error import Running, tied
from roundscope.tools.trace.report import plots


def steps(found: Findings) -> list[Section]:
    """Return steps 3 to 6, after those that only a run has."""
    return [
        *first_steps(found.run),
        _direction(found),
        _coherence(found),
        _origin(found),
        _repairs(found),
    ]


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
    return step(
        3,
        "Carrier",
        words.direction(found),
        Picture("Directions", pictures.directions(found), caption),
    )


def _coherence(found: Findings) -> Section:
    caption = (
        "Above: delta(plan) - delta(exact), summed up over tokens, each head divided by the"
        " standard deviation that random signs give its whole sum; red: the head of steps 5 and 6."
        " The band holds for a head that is chosen blindly. Below: A = |sum| / sqrt(sum of"
        " squares); red: biased."
    )
    return step(
        4,
        "Coherence",
        words.coherence(found),
        Picture("Running sums", pictures.coherences(found), caption),
    )


def _origin(found: Findings) -> Section:
    plan = found.layer.request.plan
    accounts = (
        "Which roundings make the error of delta? Shown are parts of its mean, which add up. Red:"
        " biased by itself, with the sign of the whole and a tenth of it or more. Scores: S to exp;"
        " row sum: l; P: the operand of P V; OD: the rounding of OUT as delta's operand."
    )
    if plan.delta_from != "OUT":
        accounts += (
            f" Here delta comes from {plan.delta_from}, so `rest` is the difference to rowsum dO O."
        )
    features = (
        "Which features and rows carry it? delta's error is the sum of dO (O as delta reads it - O"
        " exact)."
    )
    shown = [
        Picture("Accounts", pictures_origin.accounts(found), accounts),
        Picture("Features and rows", pictures_origin.features(found), features),
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
    if (figure := pictures_origin.classes(found)) is not None:
        caption = (
            "Where do the arguments lie between two numbers of the format? Left: how many; right:"
            " what each class contributes to delta's error. A tie broken by sticky: of P V, the sum"
            " of V over keys with P = 1 ties and the others' small sum does not; elsewhere, within"
            " 1/32 ulp of a tie (1 in 16 of evenly spread arguments); red where the event rounds to"
            " nearest. Below and above half cancel where nothing is biased."
        )
        shown.append(Picture("Rounding classes", figure, caption))
    return step(
        5,
        "Origin",
        words.origin(found),
        *shown,
        _class_table(found),
    )


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
    return step(
        6,
        "Repair",
        words.repairs(found),
        Picture("Repairs", pictures.repairs(found), caption),
        Table(heads, rows),
    )


def _row(found: Findings, o: Outcome) -> list[str]:
    b = o.after
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
        str(o.leaning),
        invariance,
        f"{o.time:.2f}",
        survival(found.run, o.arm.name, o is found.base),
    ]
