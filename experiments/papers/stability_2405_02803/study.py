"""`roundscope reproduce golden`: the claims of arXiv 2405.02803 as a `Study`, answer and tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from roundscope.experiments.catalogue import GOLDEN
from roundscope.experiments.framework.estimates import Estimate, Values, factor, ratio
from roundscope.experiments.framework.figures.series import legend, numbers, series, upwards
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import (
    TENFOLD,
    Verdict,
    Word,
    interval,
    judge,
    not_here,
    number,
)
from roundscope.experiments.papers.stability_2405_02803 import claims, trainings
from roundscope.experiments.papers.stability_2405_02803.claims import (
    OWN,
    candidates,
    excess,
    unfused,
)
from roundscope.experiments.papers.stability_2405_02803.measuring import (
    BASELINE,
    CONTROLS,
    EMULATIONS,
    EVENTS,
    EXACT,
    FAMILIES,
    FILE,
    FORMATS,
    FULL,
    GROUPS,
    INPUTS,
    QUICK,
    REAL,
    Results,
    Scale,
    at,
    biased,
    cells,
    measured,
    narrow,
    shapes,
)
from roundscope.tools.errors import bad
from roundscope.tools.report.pictures import BAND, COLOURS, INK, MARKERS, canvas
from roundscope.tools.sweep.conditions.axes import ENGINES
from roundscope.tools.sweep.conditions.cell import Cell

CAUTION = (
    "The paper's implementation, sizes, tiles and draws are unpublished: 'contradicts' says that"
    " the claim fails in our emulation at these sizes, not that the paper measured wrongly."
)
RULES = (
    "A verdict compares a 95 % t interval over seeds with what the claim says: 'agrees' if the"
    " whole interval is there, 'contradicts' if none of it is, 'undecided' otherwise, 'depends' if"
    " the claim holds under some conditions that the paper does not state and fails under others."
    " 'About 10 times' is 5 to 20; 'larger' and 'smaller' are by 5 % or more; 'grows' and 'falls'"
    " are exponents beyond 0.05. Ratios pair seeds, and their means are geometric. Intervals are"
    " not widened for the number of claims."
)


def asked(quick: bool, engine: str, jobs: int | None) -> Study[Results]:
    """Return the study at the scale of --quick, or in full. Raises UsageError."""
    if engine not in ENGINES:
        raise bad("--engine", engine, f"use {' or '.join(ENGINES)}")
    if jobs is not None and jobs < 1:
        raise bad("--jobs", jobs, "give 1 or more")
    return study(QUICK if quick else FULL, engine, jobs)


def study(scale: Scale, engine: str, jobs: int | None = None) -> Study[Results]:
    """Return the study at a scale; jobs: worker processes, None for as many as cores."""
    parts, t = cells(scale, engine), scale.training
    unique = {cell.key: cell for own in parts.values() for cell in own}
    emulations = "; ".join(f"{name}: {words}" for name, words in EMULATIONS.items())
    return Study(
        name="verdicts",
        file=FILE,
        question=GOLDEN.question,
        paper=GOLDEN.paper,
        measure=partial(measured, cells=list(unique.values()), training=t, jobs=jobs),
        unit="cells and trainings",
        answer=partial(answer, scale=scale),
        claims=partial(judged, scale=scale),
        source="figure",
        figures=figures(scale),
        tables=tables(scale, parts),
        caution=CAUTION,
        rules=(RULES, f"Emulations: {emulations}."),
        about={
            "deviations": "from unfused attention in binary64, the golden value",
            "trainings": f"{'; '.join(t.versions)}: each with {t.seeds} seeds",
        },
        config={"engine": engine},
        scale=scale.name,
    )


BEYOND = (  # figure, claim, why it is not tested
    (
        "3-6",
        "the values on the axes",
        "N, d, draws and tiles are not published: only directions and factors are compared",
    ),
    ("7, 8", "the drift in a text-to-image model", "neither model nor data are published"),
    ("text", "FlashAttention makes its training 14 % faster", "no such model; not about numbers"),
)


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return verdicts on every claim, by figure; some are on arXiv 2510.04212, which disagrees."""
    return [
        *claims.figures_3_and_4(r, scale),
        *claims.figure_5(r, scale),
        *claims.figure_6(r, scale),
        *claims.cause(r, scale),
        *(trainings.judged(r.drifts, scale.training) if r.drifts else ()),
        *not_here(BEYOND),
        *claims.bias(r, scale),
    ]


def answer(r: Results, scale: Scale) -> str:
    """Return the answer to the paper's question."""
    t, tile = scale.bench[0], scale.tile
    found = {
        name: number(excess(r, at(name, scale.bench, tile)).mean)
        for name in ("ops:bf16", "sums:bf16", "fa2-bf16")
    }
    return (
        f"In BF16 the largest deviation of tiled attention is {found['ops:bf16']} times that of"
        " unfused attention where every operation rounds and sums are FP32. It is"
        f" {found['sums:bf16']} times where sums round too and {found['fa2-bf16']} times in"
        f" production kernels (from binary64, T {t}, tiles of {tile}, Gaussian);"
        f" {tenfold(r, scale)}."
    )


def tenfold(r: Results, scale: Scale) -> str:
    """Return where a factor of about 10 appears."""
    found = [label for label, e, _ in candidates(r, scale) if judge(e, TENFOLD) is Word.AGREES]
    if not found:
        return "about 10 times appear in no condition that was run"
    own = [label for label in found if label.endswith("to its own unfused")]
    sums = [label for label in found if label.startswith("sums") and label not in own]
    where = []
    if own:
        fewest = min(int(label.split(" key tiles")[0].split()[-1]) for label in own)
        inputs = list(dict.fromkeys(label.split(" key tiles, ")[1].split(",")[0] for label in own))
        where.append(
            f"with running sums kept in BF16 over {fewest} key tiles or more"
            f" ({', '.join(INPUTS[i] for i in inputs)})"
        )
    if sums:
        where.append("with BF16 sums measured against PyTorch's FP32 sums")
    return f"about 10 times appear {' and '.join(where) or 'against PyTorch alone'}"


Cells = Mapping[str, Sequence[Cell]]  # study -> its cells


def tables(scale: Scale, cells: Cells) -> tuple[Table[Results], ...]:
    """Return all tables; `cells`: what is run, as `conditions.cells` gives it."""
    events = partial(_events, scale=scale)
    return (
        Table(
            name="events",
            title="Every event alone, and left out",
            heads=(
                "event",
                "input",
                "alone: tiled,\nrms / rms of output",
                "alone:\ntiled / unfused",
                "left out:\nrms / rms with all",
            ),
            rows=lambda r: [_line(**event) for event in events(r)],
            records=events,
        ),
        Table(
            name="conditions",
            title="Conditions",
            heads=("conditions", "cells", "T", "N", "keys per tile", "seeds"),
            rows=lambda r: [[str(value) for value in row.values()] for row in _conditions(cells)],
            records=lambda r: _conditions(cells),
        ),
        Table(
            name="machines",
            title="Machines",
            heads=("what", "how many", "device", "versions"),
            rows=lambda r: [[str(value) for value in row.values()] for row in _machines(r)],
            records=_machines,
        ),
    )


def _events(r: Results, scale: Scale) -> list[dict[str, Any]]:
    """Return what every event alone costs in BF16, and what its being exact saves."""
    found = []
    for family in ("gaussian", "sink"):
        base = r.values(narrow(scale, family), "rms")
        for site in (*EVENTS, *GROUPS):
            only, but = narrow(scale, family, only=site), narrow(scale, family, but=site)
            event = {
                "event": site,
                "input": family,
                "alone": factor(r.values(only, "rel_rms")),
                "tiled_over_unfused": ratio(r.values(only, "rms"), r.values(only, "unfused_rms")),
                "left_out": ratio(r.values(but, "rms"), base),
            }
            found.append(event)
    return found


def _line(
    event: str, input: str, alone: Estimate, tiled_over_unfused: Estimate, left_out: Estimate
) -> list[str]:
    is_exact = not alone.mean > EXACT
    costs = "tiled only" if tiled_over_unfused.mean > 1e6 else interval(tiled_over_unfused, "x")
    first = ["exact", "-"] if is_exact else [f"{alone.mean:.2e}", costs]
    return [event, input, *first, interval(left_out)]


def _conditions(cells: Cells) -> list[dict[str, Any]]:
    def span(own: Sequence[Cell], axis: str) -> str:
        values = sorted({int(cell[axis]) for cell in own})
        return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"

    return [
        {
            "conditions": name,
            "cells": len(own),
            **{axis: span(own, axis) for axis in ("T", "N", "block_k")},
            "seeds": len({cell["seed"] for cell in own}),
        }
        for name, own in cells.items()
    ]


def _machines(r: Results) -> list[dict[str, Any]]:
    """Return where cells were measured, with which packages, and where models were trained."""
    places = Counter(
        (row["device"], " ".join(f"{name} {v}" for name, v in row["versions"].items()))
        for row in [row for by_seed in r.cells.values() for row in by_seed.values()]
    )
    pairs = sum(len(by_seed) for by_seed in r.drifts.values())
    found = [("cells", count, *place) for place, count in sorted(places.items())]
    found += [("pairs of trainings", pairs, device, "") for device in r.trained_on]
    heads = ("what", "how many", "device", "versions")
    return [dict(zip(heads, each, strict=True)) for each in found]


SEEDS = "Faint dots: seeds; markers and bars: mean and 95 % t interval over seeds."
STYLED = ("ops:bf16", "sums:bf16", "fa2-bf16", "qiu-yao", "one-signed-v", "sink", "sample:layer4")
OPENING = (
    ("ops:bf16", "gaussian"),
    ("ops:bf16", "one-signed-v"),
    ("ops:bf16", "sink"),
    ("sums:bf16", "gaussian"),
    ("qiu-yao", "gaussian"),
    ("fa2-bf16", "gaussian"),
)
LENGTHS = (  # emulation, input, whether it is tiled
    ("ops:bf16", "gaussian", True),
    ("ops:bf16", "gaussian", False),
    ("sums:bf16", "gaussian", True),
    ("fa2-bf16", "gaussian", True),
    ("ops:bf16", "one-signed-v", True),
    ("ops:bf16", "sink", True),
    ("ops:bf16", REAL, True),
)


def style(name: str) -> dict[str, Any]:
    """Return the color and marker of an emulation or input, the same in every picture."""
    place = STYLED.index(name)
    return {"color": COLOURS[place], "marker": MARKERS[place]}


def look_of(name: str, family: str) -> tuple[str, dict[str, Any]]:
    """Return the label and the style of an emulation on an input."""
    if family == "gaussian":
        return EMULATIONS[name], style(name)
    return f"{name}, {INPUTS[family]}", style(family)


def opening(r: Results, scale: Scale) -> Picture:
    """Draw tiled over unfused against the number of key tiles, for both baselines."""
    figure, axes = canvas(4.3, 1, 2, sharey=True)
    length = scale.many[0]
    for ax, baseline in zip(axes[0], (OWN, BASELINE), strict=True):
        ax.axhspan(*TENFOLD, color=BAND, lw=0)
        ax.axhline(1.0, color=INK, lw=0.7)
        for name, family in OPENING:
            every = {k: at(name, scale.many, k, family) for k in scale.tiles}
            points = {k: point for k, point in every.items() if r.rows(point)}
            label, look = look_of(name, family)
            values = [
                r.ratios((p, "max_abs"), unfused(p, "max_abs", baseline)) for p in points.values()
            ]
            series(ax, [length // k for k in points], values, label=label, **look)
        numbers(ax, [length // k for k in scale.tiles])
        ax.set_xlabel(f"key tiles (T = {length})")
        title = OWN if baseline == OWN else f"{BASELINE}, PyTorch’s unfused"
        ax.set_title(f"to {title}", fontsize=9.5, loc="left")
    axes[0, 0].set_ylabel("largest |deviation|, tiled / unfused")
    words, place = "the paper: about 10 times", axes[0, 0].get_yaxis_transform()
    axes[0, 0].text(0.02, 10, words, fontsize=8.5, transform=place, va="center")
    legend(figure, axes[0, 0], 3, fontsize=8, columnspacing=1.2)
    return figure


def formats(r: Results, scale: Scale) -> Picture:
    """Draw Fig. 3 and 4."""
    figure, (axes,) = canvas(3.6, 1, 2)
    left, right = axes
    kinds = {"ops": "every operation rounds, sums in FP32", "sums": "steps of sums too"}
    for k, (kind, label) in enumerate(kinds.items()):
        points = [at(f"{kind}:{form}", scale.bench, scale.tile) for form in FORMATS]
        look = style(f"{kind}:bf16") | {"x": range(len(FORMATS)), "line": "none"}
        for ax, metric, words, aside in (
            (left, "vs_unfused_max", label, -0.08),
            (right, "max_abs", f"tiled, {label}", -0.08),
            (right, "unfused_max_abs", f"unfused, {label}", -0.02),
        ):
            hollow, values = metric == "unfused_max_abs", [r.values(p, metric) for p in points]
            aside += 0.16 * k
            series(ax, values=values, label=words, hollow=hollow, aside=aside, **look)
    for ax in axes:
        upwards(ax)
        ax.set_xticks(range(len(FORMATS)), [form.upper() for form in FORMATS])
        ax.legend(fontsize=8, frameon=False, loc="lower left")
    left.set_ylabel("largest |tiled − unfused|")
    right.set_ylabel("largest |deviation from binary64|")
    return figure


def lengths(r: Results, scale: Scale) -> Picture:
    """Draw Fig. 5, absolute above, relative to the output below."""
    figure, axes = canvas(6.4, 2, 2, sharex=True)
    for row, relative in enumerate(("", "rel_")):
        for name, family, tiled in LENGTHS:
            across = scale.real if family == REAL else scale.lengths
            points = [
                at(name, (t, scale.heads(t)), scale.tile if tiled else t, family) for t in across
            ]
            label, look = look_of(name, family)
            look |= {"label": label if tiled else f"{label}, one key tile", "hollow": not tiled}
            look["line"] = "-" if tiled else ":"
            largest, middle, spread = (
                [r.values(p, relative + m) for p in points]
                for m in (("max" if relative else "max_abs"), "mean_abs", "std_abs")
            )
            series(axes[row, 0], across, largest, **look)
            series(axes[row, 1], across, middle, **look)
            upper = [
                {s: x + b[s] for s, x in a.items()} for a, b in zip(middle, spread, strict=True)
            ]
            means = [sum(u.values()) / len(u) if u else float("nan") for u in upper]
            axes[row, 1].plot(across, means, "_", color=look["color"], ms=9)
        what = "deviation" if not relative else "deviation / rms of the output"
        axes[row, 0].set_ylabel(f"largest {what}")
        axes[row, 1].set_ylabel(f"mean {what}")
    for ax in axes.flat:
        numbers(ax, scale.lengths)
    for ax in axes[-1]:
        ax.set_xlabel(f"T (tile {scale.tile}, N T = {scale.entries})")
    legend(figure, axes[0, 0], 3, fontsize=8, columnspacing=1.2)
    return figure


def shape(r: Results, scale: Scale) -> Picture:
    """Draw Fig. 6."""
    figure, (axes,) = canvas(3.7, 1, 3, width_ratios=[1, 1, 1.5])
    cut = 2 * len(scale.swaps)
    panels = {"swapped": shapes(scale)[:cut], "square": shapes(scale)[cut:]}
    for ax, (title, sides) in zip(axes, panels.items(), strict=False):
        points = [at("ops:bf16", scale.many, keys, block_q=queries) for queries, keys in sides]
        values = [r.values(p, "max_abs") for p in points]
        series(ax, range(len(sides)), values, label="", line="none", **style("ops:bf16"))
        ax.set_xticks(range(len(sides)), [f"{q}x{k}" for q, k in sides], fontsize=8, rotation=30)
        ax.set_xlim(-0.5, len(sides) - 0.5)
        ax.set_title(f"{title}: queries x keys", fontsize=9.5, loc="left")
        upwards(ax)
    for name in ("ops:bf16", "qiu-yao", "sums:bf16", "fa2-bf16"):
        widths = [k for k in scale.tiles if r.rows(at(name, scale.many, k))]
        values = [r.values(at(name, scale.many, k), "max_abs") for k in widths]
        series(axes[2], widths, values, label=name, **style(name))
    numbers(axes[2], scale.tiles)
    axes[2].set_xlabel("keys per tile")
    axes[2].set_title("larger", fontsize=9.5, loc="left")
    axes[2].legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("largest |deviation from binary64|")
    low, high = zip(*(ax.get_ylim() for ax in axes[:2]), strict=True)
    for ax in axes[:2]:
        ax.set_ylim(min(low), max(high))
    return figure


def draw_controls(r: Results, scale: Scale) -> Picture:
    """Draw the running quantities from which the excess may come."""
    figure, ((ax,),) = canvas(3.8, 1, 1)
    families = (*FAMILIES, REAL)
    for k, (what, change) in enumerate(CONTROLS.items()):
        changed = [(narrow(scale, family, **change), "rms") for family in families]
        under = [(narrow(scale, family), "unfused_rms") for family in families]
        series(
            ax,
            range(len(families)),
            [r.ratios(*columns) for columns in zip(changed, under, strict=True)],
            label=what,
            color=COLOURS[k],
            marker="osD^vPX"[k],
            line="none",
            aside=0.11 * (k - 3),
        )
    ax.axhline(1.0, color=INK, lw=0.7)
    upwards(ax)
    ax.set_xticks(range(len(families)), [INPUTS[f] for f in families])
    ax.set_ylabel("rms deviation / that of unfused")
    legend(figure, ax, 2, fontsize=8)
    return figure


def attribution(r: Results, scale: Scale) -> Picture:
    """Draw each event alone, and each left out."""
    figure, axes = canvas(7.2, 2, 2, sharex="col", sharey=True)
    names = (*EVENTS, *GROUPS)
    y = np.arange(len(names))[::-1]
    for (left, right), family in zip(axes, ("gaussian", "sink"), strict=True):
        base = narrow(scale, family), "rms"
        for i, site in zip(y, names, strict=True):
            only, but = narrow(scale, family, only=site), narrow(scale, family, but=site)
            rms, unfused, rel = (r.values(only, m) for m in ("rms", "unfused_rms", "rel_rms"))
            apart = {s: unfused[s] * (rel[s] / rms[s]) for s in rms if rms[s]}
            _dot(left, i + 0.12, rel, "tiled", "ops:bf16", False)
            _dot(left, i - 0.12, apart, "unfused", "ops:bf16", True)
            _dot(right, i, r.ratios((but, "rms"), base), "", "sums:bf16", False)
        if np.isfinite(left.dataLim.minposx):
            left.set_xscale("log")
        left.set_title(f"{INPUTS[family]}: this event alone in BF16", fontsize=9.5, loc="left")
        right.set_title(f"{INPUTS[family]}: this event alone in binary64", fontsize=9.5, loc="left")
        right.axvline(1.0, color=INK, lw=0.7)
        for ax in (left, right):
            ax.set_yticks(y, names, fontfamily="monospace", fontsize=8)
            ax.grid(axis="y", color=BAND, lw=0.6)
    axes[1, 0].set_xlabel("rms deviation / rms of the output")
    axes[1, 1].set_xlabel("rms deviation / that of all events in BF16")
    legend(figure, axes[0, 0], 2)
    return figure


def _dot(ax: Axes, y: float, values: Values, label: str, look: str, hollow: bool) -> None:
    """Draw one event: its seeds, and their geometric mean."""
    seen = [v for v in values.values() if np.isfinite(v) and v > EXACT]
    if seen:
        colour, marker = style(look)["color"], style(look)["marker"]
        ax.plot(seen, [y] * len(seen), ".", color=colour, ms=4, alpha=0.3, mew=0)
        middle, face = np.exp(np.mean(np.log(seen))), "white" if hollow else colour
        ax.plot(middle, y, marker, color=colour, mfc=face, ms=5, ls="none", label=label)


def bias(r: Results, scale: Scale) -> Picture:
    """Draw magnitude and sign against the number of key tiles."""
    figure, (axes,) = canvas(4.0, 1, 2)
    left, right = axes
    for k, family in enumerate(("gaussian", "repeated-maximum", REAL)):
        for stabiliser in ("none", "2"):
            counts = [c for c in scale.counts if r.rows(biased(scale, family, c, stabiliser))]
            points = [biased(scale, family, c, stabiliser) for c in counts]
            repeated, wide = family == "repeated-maximum", stabiliser != "none"
            look: Any = {"color": COLOURS[k], "line": ":" if wide else "-", "hollow": wide}
            label = INPUTS[family] + (", stabilizer" if wide else "")
            cost = [r.ratios((p, "rms"), unfused(p, "rms")) for p in points]
            series(left, counts, cost, label=label, marker="o", **look)
            look["geometric"] = False
            if repeated or not wide:
                values = [r.values(p, "mean_ulps") for p in points]
                series(right, counts, values, label=f"{label}: out", marker="o", **look)
            if repeated:
                values = [r.values(p, "PV.mean_ulps") for p in points]
                look["color"] = COLOURS[3]
                series(right, counts, values, label=f"{label}: PV", marker="s", **look)
    left.axhline(1.0, color=INK, lw=0.7)
    right.axhline(0.0, color=INK, lw=0.7)
    for ax in axes:
        numbers(ax, scale.counts, log=False)
        ax.set_xlabel("key tiles")
        ax.legend(fontsize=7.5, frameon=False)
    left.set_ylabel("rms deviation, tiled / unfused")
    right.set_ylabel("mean signed error, ulps")
    return figure


def figures(scale: Scale) -> list[Figure[Results]]:
    """Return all figures with their captions, in the order of the page."""
    bench, tiles = scale.bench[0], scale.bench[0] // scale.narrow
    captions = {
        opening: (
            "Is it 10 times in BF16?",
            "Ratio of the largest deviations from binary64, by emulation (Gaussian inputs unless "
            "said otherwise). The band is a factor of 2 about 10. Left: what tiling costs; right: "
            f"what it costs against a baseline with FP32 sums and softmax. {SEEDS}",
        ),
        formats: (
            "Fig. 3 and 4: formats",
            f"T = {bench}, tiles of {scale.tile}, Gaussian inputs. In FP32 and FP64 both "
            "emulations are one. The golden value divides by the row sum after P V and unfused "
            f"attention before, hence its 1e-15 in FP64. {SEEDS}",
        ),
        lengths: LENGTH,
        shape: (
            "Fig. 6: shape and size of tiles",
            f"T = {scale.many[0]}, Gaussian inputs; left and middle ops:bf16. Only keys per tile "
            f"count: queries per tile change no bit. {SEEDS}",
        ),
        draw_controls: (
            "Is it the rescales?",
            f"ops:bf16, T = {bench}, {tiles} key tiles (real "
            f"tensors: T = {scale.real[-1]}, 16 key tiles, one draw), over unfused attention "
            f"wholly in BF16. Rescale events: DM, ALPHA, AL, AO. {SEEDS}",
        ),
        attribution: (
            "Which event makes the difference?",
            f"ops:bf16, T = {bench}, {tiles} key tiles. An event "
            "that unfused attention does not have, or that rounds nothing, has no marker. Right: "
            "below 1 the event makes the deviation larger. Faint dots: seeds.",
        ),
        bias: (
            "Sign beside magnitude (arXiv 2510.04212)",
            f"qiu-yao, T = {bench} (real tensors: {scale.real[-1]}, one draw). Left: what "
            "tiling costs. Right: the bias of the output and, for repeated maxima (pairs of equal "
            f"keys, 64 apart), of the event PV. {SEEDS}",
        ),
    }
    own = [
        Figure(title=title, draw=partial(draw, scale=scale), caption=caption)
        for draw, (title, caption) in captions.items()
    ]
    return [*own, drift_figure(scale.training)]


LENGTH = (
    "Fig. 5: sequence length",
    "Largest and mean |deviation| from binary64; dashes without a line: mean + standard "
    "deviation. N falls as T grows, so that every maximum is over equally many entries "
    "(real tensors: all 12 heads, one draw). Gaussian outputs shrink as 1 / √T, so the "
    f"absolute deviation falls where the relative one grows. {SEEDS}",
)


def length_figure(scale: Scale) -> Figure[Results]:
    """Return the figure of the deviation along T."""
    title, caption = LENGTH
    return Figure(title=title, draw=partial(lengths, scale=scale), caption=caption)


def drift_figure(t: trainings.Training) -> Figure[Results]:
    """Return the figure of the trainings: how far their weights are apart."""
    return Figure(
        title="Fig. 7 and 8: do weights drift apart?",
        draw=lambda r: trainings.draw(r.drifts, t) if r.drifts else None,
        caption=f"A byte-level GPT of {t.config.layers} layers and width {t.config.width}, trained"
        " twice from the same weights on the same batches; 'other first weights': on the same"
        " batches. Thin lines: seeds; thick: geometric mean; shaded: its 95 % t interval. FP16"
        " rounds what the forward reads and writes, in linear layers and in unfused attention;"
        " gradients stay FP32, so that none is too small for FP16.",
    )
