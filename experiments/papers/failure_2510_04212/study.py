"""`roundscope reproduce qiu-yao`: arXiv 2510.04212, its ablation table in small trainings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from roundscope.experiments.framework.counts import diverged, times
from roundscope.experiments.framework.figures.series import CALM, LETHAL, SHARE, decades
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Study, Table
from roundscope.experiments.framework.verdicts import interval, number
from roundscope.experiments.framework.words import in_words, unnamed
from roundscope.experiments.papers.failure_2510_04212 import claims, static, trials
from roundscope.experiments.papers.failure_2510_04212.trials import share
from roundscope.experiments.train.spikes import RULE
from roundscope.tools.report.pictures import INK, QUIET, canvas
from roundscope.tools.report.wording import listed

QUESTION = "What kills low-precision attention in training, and what cures it?"
REPAIRS = {
    "7": "O in FP32",
    "5": "delta = rowsum(P dP)",
    "10 beta 2": "The stabilized softmax",
    "centred": (
        "delta = rowsum(P dP) / rowsum(P), with which rows of dS sum to zero whatever was rounded,"
    ),
}
LEFT_OUT = (
    "Not shown: a failure of the published algorithm at the paper's own size (12 layers, width 768,"
    " context 1024, OpenWebText, thousands of steps). The cases fail because O, or everything, has"
    " fewer bits, because delta is taken elsewhere or because the rate is high; only C and D are at"
    " full BF16. The released code computes something else where it trains: `reproduce released`."
    " Row 8 picks heads over all layers, the paper in one. Rows 6 and 9 have AO in FP32 too; with"
    " one tile it is 0. Sums are native: numbers repeat on one kind of device only. 95 % intervals"
    " are Student's, over seeds, and not widened for the number of rows."
)
PARTIAL = (
    "Of results that are not complete, a case is shown once its rows 0 and 0' are there, and a row "
    "once all of its seeds are; layers, heads and the factorial each once all of their rows are."
)


def asked(quick: bool) -> Study[trials.Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(trials.QUICK if quick else trials.FULL)


def study(scale: trials.Scale) -> Study[trials.Results]:
    """Return the ablation table, its controls, and what needs no training, as a study."""
    c = scale.config
    return Study(
        name="qiu-yao",
        question=QUESTION,
        paper="arXiv 2510.04212, its ablation table in small trainings",
        launches=partial(launches, scale),
        results=partial(results, scale),
        answer=answer,
        claims=claims.judged,
        figures=FIGURES,
        tables=(TABLE,),
        rules=(claims.RULES, claims.CONTROL_RULES, PARTIAL),
        caveats=LEFT_OUT,
        about={
            "model": in_words(c),
            "training": (
                f"rate {scale.rate:g} after {c.warmup} steps of warm-up, {scale.steps} steps, "
                f"seeds {len(scale.seeds)}; layers, heads and factorial {scale.short} steps, "
                f"seeds {len(scale.few)}"
            ),
        },
        config=unnamed(c),
        scale=scale.name,
        static=static.static,
        parts=static.PARTS,
    )


def launches(scale: trials.Scale, store: Store) -> list[Launch]:
    """Return launches of trials that are stored, then of missing ones; sets of heads come last."""
    there, found = store.keys(), []
    for part in (trials.entries(scale), sets(scale, store)):
        for kept in (True, False):
            wanted = [e.trial for e in part if (trials.key(scale, e.trial) in there) == kept]
            found += [_launch(scale, group) for group in trials.executables(scale, wanted)]
    return found


def _launch(scale: trials.Scale, wanted: Sequence[trials.Trial]) -> Launch:
    names = {trial: trials.key(scale, trial) for trial in wanted}
    return Launch(
        title=f"{len(wanted)} trainings",
        steps=wanted[0].steps,
        config=asdict(scale.config) | {"rate": scale.rate},
        keys=tuple(names.values()),
        run=lambda progress: {
            names[run.condition]: run for run in trials.launch(scale, wanted, progress)
        },
    )


def sets(scale: trials.Scale, store: Store) -> list[trials.Entry]:
    """Return what is chosen from a case's failing runs; nothing until all of these are stored.

    In case A that is row 8, sets of heads; in A', B and C rows 3 and 4 at the layer that grew.
    """
    found: list[trials.Entry] = []
    for case in () if scale.core else scale.cases:
        if case.name not in (*trials.SEARCHED, trials.AMPLIFIED):
            continue
        row = trials.rows(case, scale.config)[0]
        wanted = {e.trial: trials.key(scale, e.trial) for e in trials.of_row(scale, case, row)}
        runs = store.read(wanted)
        if len(runs) < len(wanted):
            continue
        if case.name == trials.AMPLIFIED:
            failing = [run for run in runs.values() if run.diverged is not None]
            found += trials.chosen(scale, case, failing)
        elif scale.config.layers > 1:
            layer, _ = trials.grown(list(runs.values()))
            for own in trials.of_layer(scale.config, layer):
                found += trials.of_row(scale, case, own)
    return found


def results(scale: trials.Scale, store: Store) -> trials.Results | None:
    """Return the stored runs in whole rows; None without a case whose first two rows are stored."""
    wanted = [*trials.entries(scale), *sets(scale, store)]
    names = {e.trial: trials.key(scale, e.trial) for e in wanted}
    first = {name: trial for trial, name in reversed(names.items())}  # rows may share a run
    runs = store.read({trial: name for name, trial in first.items()})
    found = {t: runs[first[name]] for t, name in names.items() if first[name] in runs}
    told = trials.whole(wanted, found)
    return trials.Results(scale, told, found) if told else None


def answer(r: trials.Results) -> str:
    """Return the answer: what kills in a sentence, then the cases and each repair in one."""
    failing = [case.name for case in r.scale.cases if r.fails(case.name)]
    if not failing:
        return (
            "No case diverged in every run while FP32 did not: the question is not answered at this"
            " scale."
        )
    words = {case.name: case.words for case in r.scale.cases}
    own = r.of(trials.PUBLISHED, trials.FAILS)
    killed = "; ".join(f"{name}: {words[name]}" for name in failing)
    published = f" qiu-yao as it is diverged in {diverged(own)} of {len(own)}." if own else ""
    # a repair is tried where it could work: P_DP not where it is the failure itself, the stabilizer
    # not where ties cannot be the cause
    biased = [case.name for case in r.scale.cases if case.mode != "ties-to-even"]
    unfair = {"5": [trials.OTHER_DELTA], "10 beta 2": biased}
    parts = [
        f"Training diverged in every run of case{'s' if len(failing) > 1 else ''}"
        f" {listed(failing)}, in FP32 never.{published} The cases: {killed}"
    ]
    for row, name in REPAIRS.items():
        parts.append(_repair(r, [c for c in failing if c not in unfair.get(row, [])], row, name))
    worse = []  # cases that did not always fail, and do more often with the centred delta
    for name in (name for name in words if name not in failing):
        before, own = diverged(r.of(name, trials.FAILS)), r.of(name, "centred")
        if diverged(own) > before:
            worse.append(f"{name} ({diverged(own)} of {len(own)} diverged, {before} without it)")
    if worse:
        parts.append(f"That does not help {listed(worse)}, which not every run diverged in")
    left = [name for name in failing if diverged(r.of(name, "centred"))]
    also = f", and in {listed(left)} something else" if left else ""
    told = ". ".join(filter(None, parts))
    return f"What kills are rows of dS that do not sum to zero{also}. {told}."


def _repair(r: trials.Results, failing: Sequence[str], row: str, name: str) -> str:
    tried = [case for case in failing if r.of(case, row)]
    cured = [case for case in tried if not diverged(r.of(case, row))]
    not_cured = [
        f"{case} ({diverged(r.of(case, row))} of {len(r.of(case, row))} diverged)"
        for case in tried
        if case not in cured
    ]
    if not tried:
        return ""
    parts = [f"cures {listed(cured)}"] if cured else []
    parts += [f"does not cure {listed(not_cured)}"] if not_cured else []
    return f"{name} {' and '.join(parts)}"


def _words(r: trials.Results) -> dict[tuple[str, str], str]:
    """Return what is different in every row; that of `chosen` is listed by no scale."""
    cases = r.scale.cases
    words = {(c.name, row.name): row.words for c in cases for row in trials.chosen_rows(r.scale, c)}
    layers = range(r.scale.config.layers)
    own = [row for layer in layers for row in trials.of_layer(r.scale.config, layer)]
    words |= {(c.name, row.name): row.words for c in cases for row in own}
    return {place: words.get(place, trials.PICKED) for place in r.by}


def records(r: trials.Results) -> list[dict[str, Any]]:
    """Return a record per case and row."""
    words = _words(r)
    return [
        {
            "case": case,
            "row": row,
            "words": words[case, row],
            "changes": list(r.changes[case, row]),
            "tiles": own[0].condition.tiles,
            "steps": own[0].condition.steps,
            "runs": len(own),
            "diverged": diverged(own),
            "times": [run.diverged for run in own],
            "seeds": [run.seed for run in own],
            "losses": [run.loss for run in own],
            "norms": [run.extra["norm"] for run in own],
            "shares": [share(run) for run in own],
            "steadies": [trials.steady(run) for run in own],
        }
        for (case, row), own in r.by.items()
    ]


def rows(r: trials.Results) -> list[list[str]]:
    """Return a line per case and row, in words."""
    words = _words(r)
    return [
        [
            case,
            row,
            words[case, row],
            times(own),
            interval(excess) if (excess := r.excess(case, own)).seeds else "-",
            number(trials.middle([run.extra["norm"] for run in own])),
            number(trials.middle([share(run) for run in own])),
            number(trials.middle([trials.steady(run) for run in own])),
        ]
        for (case, row), own in r.by.items()
    ]


TABLE = Table(
    name="rows",
    title="Every row",
    heads=(
        "case",
        "row",
        "what is different",
        "diverged",
        "loss above FP32, nats",
        "largest\n||W_Q||",
        "rest of dS:\nshare",
        "steady",
    ),
    rows=rows,
    records=records,
    note="Medians over seeds; loss: mean [95 %] of runs that did not diverge, against FP32 of the "
    "same seed and length.",
)


LINES = {  # row or mode -> words, in the picture's order
    "0": "0   the case itself",
    "0'": "0'  FP32",
    "1": "1   4 key tiles in place of one",
    "5": "5   delta = rowsum(P dP)",
    "6": "6   delta from O in FP32",
    "7": "7   O path in FP32",
    "9": "9   PV in FP32, output rounded",
    "10 beta 2": "10  stabilized, beta 2",
    "10 beta 7": "10  stabilized, beta 7",
    "centred": "delta = rowsum(P dP) / rowsum(P)",
    "scores": "scores, m, l in FP32",
    "same scores": "backward's scores as forward's",
    "stochastic": "O path stochastic",
    "toward-zero": "O path toward zero",
    "ties-to-away": "O path ties away",
    "ties-to-even": "O path nearest-even",
    "ties-to-even less": "O path nearest-even, p - 1",
    "stochastic less": "O path stochastic, p - 1",
    "stochastic more": "O path stochastic, p + 1",
    "toward zero": "O toward zero, BF16",
    "fa2-bf16": "preset fa2-bf16",
    trials.UNFUSED: "preset baseline-bf16",
    trials.ONCE: "same, backward's scores rounded once",
}


def opening(r: trials.Results) -> Picture:
    """Draw rows x cases: the share of runs that diverged, k/n and the median step."""
    cases = r.scale.cases
    table = {
        (line(row, c.bits), c.name): r.of(c.name, row) for c in cases for row in r.rows(c.name)
    }
    lines = [name for name in LINES if any((name, c.name) in table for c in cases)]
    figure, axes = canvas(0.9 + 0.27 * len(lines))
    ax = axes[0, 0]
    cells(ax, [[table.get((name, c.name), []) for c in cases] for name in lines])
    ax.set_yticks(range(len(lines)), [LINES[name] for name in lines], fontsize=9)
    heads = [f"{c.name}\n{_broken(c.words, len(cases))}" for c in cases]
    ax.set_xticks(range(len(cases)), heads, fontsize=8.5)
    ax.xaxis.tick_top()
    papers = sum(name[0].isdecimal() for name in lines)  # the paper's rows stand above the line
    ax.axhline(papers - 0.5, color=INK, lw=0.8)
    return figure


def line(row: str, bits: int) -> str:
    """Return the line of LINES that a row is drawn in."""
    name, _, own = row.rpartition(" ")
    if not own.isdecimal() or name not in LINES:
        return row
    return name + {-1: " less", 0: "", 1: " more"}[int(own) - bits]


def _broken(words: str, columns: int) -> str:
    """Return words broken into lines that fit above one of so many columns."""
    letters = 90 // max(columns, 5)
    if max(map(len, words.split(" "))) > letters:
        words = words.replace("=\xa0", "= ")
    return fill(words, letters, break_long_words=False, break_on_hyphens=False)


def cells(ax: Axes, own: Sequence[Sequence[trials.Own]]) -> None:
    """Draw a heat map of the share that diverged; a cell is empty where nothing was run."""
    share = np.array(
        [[diverged(runs) / len(runs) if runs else math.nan for runs in row] for row in own]
    )
    ax.imshow(np.ma.masked_invalid(share), cmap=SHARE, vmin=0, vmax=1, aspect="auto")
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
    for (i, j), x in np.ndenumerate(share):
        if not math.isnan(x):
            steps = [run.diverged for run in own[i][j] if run.diverged is not None]
            text = f"{len(steps)}/{len(own[i][j])}"
            text += f"  at {np.median(steps):.0f}" if steps else ""
            ax.text(j, i, text, color="white" if x > 0.8 else INK, **place)
    ax.set_xticks(np.arange(-0.5, share.shape[1]), minor=True)
    ax.set_yticks(np.arange(-0.5, share.shape[0]), minor=True)
    ax.grid(which="minor", color="white", lw=2)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)


def places(r: trials.Results) -> Picture | None:
    """Draw layers x heads of case A, O low or FP32 in one head only; None where it was not run."""
    c = r.scale.config
    grids = {
        start: [
            [r.of(trials.AMPLIFIED, f"8 {start} head {i}.{h}") for h in range(c.heads)]
            for i in range(c.layers)
        ]
        for start in (trials.ALONE, trials.EXACT)
    }
    if not grids[trials.ALONE][0][0]:
        return None
    figure, axes = canvas(0.7 + 0.42 * c.layers, 1, 2)
    titles = ("O path low in this head only", "O path FP32 in this head only")
    for ax, own, title in zip(axes[0], grids.values(), titles, strict=True):
        cells(ax, own)
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.set_xticks(range(c.heads), [f"head {h}" for h in range(c.heads)], fontsize=9)
        ax.set_yticks(range(c.layers), [f"layer {i}" for i in range(c.layers)], fontsize=9)
    return figure


def factorial(r: trials.Results) -> Picture | None:
    """Draw where O is rounded x scores x statistics, and tiles, a panel a case; None if not run."""
    cases = [
        case for case in r.scale.cases if r.of(case.name, trials.cell("both", "FP32", "FP32", 1))
    ]
    if not cases:
        return None
    lines = list(product(trials.HALVES, ("BF16", "FP32"), ("BF16", "FP32")))
    figure, axes = canvas(1.0 + 0.27 * len(lines), 1, len(cases), sharey=True)
    for ax, case in zip(axes[0], cases, strict=True):
        runs = [
            [r.of(case.name, trials.cell(half, scores, stats, tiles)) for tiles in (1, 4)]
            for half, scores, stats in lines
        ]
        cells(ax, runs)
        title = f"{case.name}: O {case.path.partition(':')[2]}, p = {case.bits}"
        ax.set_title(title, fontsize=9.5, loc="left")
        ax.set_xticks((0, 1), ("one key tile", "4 key tiles"), fontsize=9)
    axes[0, 0].set_yticks(
        range(len(lines)),
        [f"O {half}, scores {scores}, m l {stats}" for half, scores, stats in lines],
        fontsize=8.5,
    )
    return figure


def norms(r: trials.Results) -> Picture:
    """Draw the largest ||W_Q|| along the runs of each case: itself, its repair, and FP32."""
    failing = [case for case in r.scale.cases if r.of(case.name, trials.FAILS)]
    figure, axes = canvas(2.6, 1, len(failing), sharey=True)
    styles = {trials.FAILS: LETHAL, "centred": CALM, trials.FP32: QUIET}
    for ax, case in zip(axes[0], failing, strict=True):
        for row, colour in reversed(styles.items()):
            for run in r.of(case.name, row):
                last = run.steps if run.diverged is None else run.diverged + 25
                curve = [(step, norm) for step, _, norm in run.curve if 0 < step <= last]
                seen = np.array([point for point in curve if math.isfinite(point[1])])
                ax.plot(seen[:, 0], seen[:, 1], color=colour, lw=1.0, alpha=0.8)
                if run.diverged is not None:
                    norm = np.interp(run.diverged, seen[:, 0], seen[:, 1])
                    ax.plot(run.diverged, norm, "x", color=colour, ms=5)
        ax.set_title(case.name, fontsize=10, loc="left")
        decades(ax)
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("largest ||W_Q|| of a head")
    words = zip(("the case", "centred delta", "FP32"), styles.values(), strict=True)
    lines = [Line2D([], [], color=colour, lw=1.5, label=label) for label, colour in words]
    _legend(figure, [*lines, Line2D([], [], color=INK, marker="x", lw=0, ms=5, label="diverged")])
    return figure


NONE = 1e-9  # the place at which a drift of 0 is drawn
DOTS: dict[str, Any] = {"ms": 3.5, "alpha": 0.6, "mew": 0}


def drifts(r: trials.Results) -> Picture | None:
    """Draw every run's drift by case, and its size against steadiness; None without looks."""
    if not any(trials.split(r)):
        return None
    figure, ((left, right),) = canvas(3.6, 1, 2)
    names = [case.name for case in r.scale.cases]
    for i, name in enumerate(names):
        runs = [run for row in r.rows(name) for run in r.of(name, row)]
        own = {run.condition: trials.drift(run) for run in runs if math.isfinite(trials.drift(run))}
        gone = {run.condition for run in runs if run.diverged is not None}
        for up, dead in ((-0.18, True), (0.18, False)):
            x = [max(value, NONE) for trial, value in own.items() if (trial in gone) == dead]
            aside = 0.12 * np.sin(2.4 * np.arange(len(x)))  # so that dots do not hide each other
            left.plot(x, i + up + aside, "o", color=LETHAL if dead else CALM, **DOTS)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xscale("log")
    left.set_xlabel("drift: |sum R| / sum |dW_Q|")
    left.set_ylabel("case")
    colours = {"diverged later": LETHAL, "did not diverge": CALM}
    for found, colour in zip(trials.split(r), colours.values(), strict=True):
        x = [max(share(run), NONE) for run in found]
        right.plot(x, [trials.steady(run) for run in found], "o", color=colour, **DOTS)
    right.set_xscale("log")
    right.set_ylim(0, 1.03)
    right.set_xlabel("share: sum |R| / sum |dW_Q|")
    right.set_ylabel("steady: |sum R| / sum |R|")
    look: dict[str, Any] = {"marker": "o", "lw": 0, "ms": 5}
    lines = (Line2D([], [], color=colour, label=w, **look) for w, colour in colours.items())
    _legend(figure, lines)
    return figure


def _legend(figure: Picture, lines: Iterable[Line2D]) -> None:
    look: dict[str, Any] = {"fontsize": 9, "frameon": False, "labelcolor": INK}
    handles = list(lines)
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), **look)


FIGURES = (
    Figure(
        title="Which runs diverged?",
        draw=opening,
        caption=f"Runs that diverged of how many, and their median step. {RULE}",
    ),
    Figure(
        title="Do rows of dS that do not sum to zero foretell the divergence?",
        draw=drifts,
        caption="Each dot is a run, looked at in the steps after the warm-up, before anything has"
        " diverged. R = alpha sum_t r[t] X[t]^T (PK)[t] is what the sums r of the rows of dS"
        " put into the gradient of W_Q; in exact arithmetic it is 0.",
    ),
    Figure(
        title="What grows first?",
        draw=norms,
        caption="The largest spectral norm of a head's query matrix, a line for each seed.",
    ),
    Figure(
        title="Which rounding of O, and does the rest matter?",
        draw=factorial,
        caption="O is rounded before its normalization (PV, AO, O), after (OUT), or both; S, "
        "SCALED, X (scores) and M, DM, L in BF16 or FP32.",
    ),
    Figure(
        title="Does one head decide?",
        draw=places,
        caption="Case A. Left: the O path is low in one head and FP32 in all others. Right: the"
        " reverse.",
    ),
)
