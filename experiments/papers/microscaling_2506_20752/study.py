"""`roundscope reproduce su`: does block scaling make training diverge, and what averts it?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from roundscope.experiments.framework.counts import counted, diverged, share, signs
from roundscope.experiments.framework.estimates import grouped, ratio
from roundscope.experiments.framework.figures.series import CALM, GRID, LETHAL, SHARE, decades
from roundscope.experiments.framework.study import Figure, Progress, Static, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, not_here
from roundscope.experiments.papers.microscaling_2506_20752 import claims, code
from roundscope.experiments.papers.microscaling_2506_20752.claims import (
    Effect,
    before,
    outcomes,
    runs_of,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import (
    FROZEN,
    FULL,
    QUICK,
    SHAM,
    Found,
    Runs,
    Scale,
    planned,
    read,
)
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT, UNCHANGED
from roundscope.experiments.train.student.run import RULE, measures, over, paired
from roundscope.tools.report.pictures import COLOURS, INK, QUIET, canvas
from roundscope.tools.report.wording import listed

COLOUR = {
    Effect.AVERTED: CALM,
    Effect.DELAYED: COLOURS[2],
    Effect.HASTENED: LETHAL,
    Effect.NONE: QUIET,
}
DIED: dict[str, Any] = {"color": LETHAL, "mew": 0}
LIVED: dict[str, Any] = {"color": CALM, "mfc": "white", "mew": 0.9}
SHAMS = f"{SHAM}s: half an ulp in one step"
LINES = (
    ("zeta", "same state", COLOURS[0]),
    ("zeta_rceil", "same state, RCEIL", COLOURS[2]),
    ("zeta_apart", "two trainings", COLOURS[1]),
)


def opening(found: Found) -> Picture | None:
    """Draw arms x seeds by lead: steps from parting to divergence; None without interventions."""
    leads = found.leads
    if not leads:
        return None
    names = dict.fromkeys(n for runs in found.parted.values() for n in runs)
    lines = [UNCHANGED, SHAMS, *[n for n in names if n != UNCHANGED and not n.startswith(SHAM)]]
    figure, axes = canvas(0.9 + 0.27 * len(lines), 1, len(leads), sharey=True)
    for ax, lead in zip(axes[0], leads, strict=True):
        words = {o.name: o.effect for o in outcomes(found.parted, lead)}
        by_seed = {seed: arms_of for (seed, at), arms_of in found.parted.items() if at == lead}
        widest = 0.0
        for row, line in enumerate(lines):
            ax.axhline(row, color=GRID, lw=0.8, zorder=0)
            if line in words:
                alpha = 0.0 if words[line] is Effect.NONE else 0.13
                ax.axhspan(row - 0.45, row + 0.45, color=COLOUR[words[line]], alpha=alpha, lw=0)
            for i, arms_of in enumerate(by_seed.values()):
                parting = min(
                    first for r in arms_of.values() for first, _ in r.condition.changes if first
                )
                y = row + 0.5 * ((i + 0.5) / len(by_seed) - 0.5)
                for name, r in arms_of.items():
                    if name == line or (line == SHAMS and name.startswith(SHAM)):
                        x = float(min(r.time, r.steps) - parting)
                        ax.plot(
                            x, y, "o", ms=4.2, alpha=0.85, **(DIED if r.time < math.inf else LIVED)
                        )
                        widest = max(widest, x)
        ax.set_xlim(-0.02 * widest, 1.06 * widest)
        ax.axvline(lead, color=INK, lw=0.7, ls=":")
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"changed {lead} steps before", fontsize=9.5, loc="left", color=INK)
    figure.supxlabel("steps from the change to divergence (hollow: none)", fontsize=9.5)
    _names(axes[0, 0], lines, size=9, top=-0.6)
    return figure


def _names(ax: Axes, names: Sequence[str], size: float, top: float = -0.5) -> None:
    """Name the rows of a picture, from the top."""
    ax.set_yticks(range(len(names)), names, fontsize=size)
    ax.set_ylim(len(names) - 0.5, top)


def formats(found: Found) -> Picture | None:
    """Draw formats x rates of all settings: the share of runs that diverged."""
    names = {s: [f for name, f in found.trained if name == s.name] for s in found.scale.settings}
    names = {setting: own for setting, own in names.items() if own}
    if not names:
        return None
    deep = [len(own) for own in names.values()]
    height, ratios = 0.5 + 0.26 * sum(deep) + 0.52 * len(names), {"height_ratios": deep}
    figure, axes = canvas(height, len(names), 1, gridspec_kw=ratios)
    for ax, (setting, own) in zip(axes.flat, names.items(), strict=True):
        for row, name in enumerate(own):
            for column, rate in enumerate(setting.rates):
                if runs := found.of(setting.name, name, rate):
                    k = diverged(runs)
                    corner, colour = (column - 0.49, row - 0.46), SHARE(k / len(runs))
                    ax.add_patch(Rectangle(corner, 0.98, 0.92, color=colour, lw=0))
                    steps = [r.diverged for r in runs if r.diverged is not None]
                    text = f"{k}/{len(runs)}" + (f" at {np.median(steps):.0f}" if steps else "")
                    ink = "white" if k == len(runs) else INK
                    ax.text(column, row, text, ha="center", va="center", fontsize=8, color=ink)
        rates = [f"{rate:g}" for rate in setting.rates]
        ax.set_xticks(range(len(rates)), rates, fontsize=8.5)
        _names(ax, own, size=8.5)
        ax.set_xlim(-0.5, max(3, *(len(s.rates) for s in names)) - 0.5)
        ax.set_title(setting.name, fontsize=9.5, loc="left", color=INK)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes.flat[-1].set_xlabel("learning rate")
    return figure


def growth(found: Found) -> Picture | None:
    """Draw zeta by steps before divergence, a line per seed, and the share of every event alone."""
    own = runs_of(found)
    if not own:
        return None
    figure, axes = canvas(3.6, 1, 2)
    left, right = axes[0]
    for name, label, colour in LINES:
        for i, r in enumerate(own):
            looks, end = before(r), min(r.time, r.steps)
            x, y = [step - end for step, _ in looks], [m[name] for _, m in looks]
            left.plot(x, y, color=colour, lw=1.1, alpha=0.75, label=None if i else label)
    decades(left)
    left.set_xlabel("steps to divergence")
    left.set_ylabel("zeta = |epsilon| / |g|")
    left.legend(fontsize=8.5, frameon=False)
    _events(right, own)
    return figure


def _events(ax: Axes, own: Runs) -> None:
    looks = [[m for _, m in found] for r in own if (found := before(r))]
    there = [site for site in Site if f"zeta_{site}" in measures(own[0])[0][1]]
    value = {
        site: [float(np.median([m[f"zeta_{site}"] / m["zeta"] for m in each])) for each in looks]
        for site in there
    }
    order = sorted(
        (site for site in there if any(v > 0 for v in value[site])),
        key=lambda site: -float(np.median(value[site])),
    )
    for row, site in enumerate(order):
        x = value[site]
        ax.plot(x, [row] * len(x), "o", color=COLOURS[0], ms=4, alpha=0.7, mew=0)
    _names(ax, order, size=8.5)
    ax.set_xscale("log")
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_xlabel("zeta of one event alone / zeta of all")


def losses(found: Found) -> Picture | None:
    """Draw the loss of the base's formats at the base's rate, a line per seed; FP32 is grey."""
    formats = [f for f in found.scale.formats if f != EXACT]
    exact, drawn = found.base(EXACT), {f: own for f in formats if (own := found.base(f))}
    if not drawn:
        return None
    columns = min(4, len(drawn))
    deep = math.ceil(len(drawn) / columns)
    figure, axes = canvas(0.4 + 1.7 * deep, deep, columns, sharex=True, sharey=True)
    for ax, (name, own) in zip(axes.flat, drawn.items(), strict=False):
        for r in [*exact, *own]:
            curve = np.array([(step, loss) for step, loss, _ in r.curve if math.isfinite(loss)])
            colour = QUIET if r.condition.name == EXACT else COLOURS[0]
            ax.plot(curve[:, 0], curve[:, 1], color=colour, lw=0.9, alpha=0.8)
        ax.set_title(name, fontsize=9, loc="left")
        ax.set_yscale("log")
    for ax in list(axes.flat)[len(drawn) :]:
        ax.axis("off")
    for ax in axes[-1]:
        ax.set_xlabel("steps")
    axes[0, 0].set_ylabel("loss")
    return figure


LIKELY = {
    "agrees": "more than chance",
    "contradicts": "FP32 earlier, more than chance",
    "undecided": "not more than chance allows",
}
QUESTION = "Does block scaling make training diverge, and what averts it?"
LEFT_OUT = (
    "Not shown: the paper's language models, and its own instability unless the table says so: "
    "the rates here are those at which FP32 is about to fail too, hundreds of times the published "
    "one. The released code has no MX in LN, freezes its shift and rounds ties away from zero; "
    "base runs here train the shift and round to even, and arms tell the differences. Adam at a "
    "constant rate after the warm-up. Sums are FP32 in the device's order: numbers repeat on one "
    "kind of device only."
)
FIGURES = (
    Figure(
        title="What averts the divergence?",
        draw=opening,
        caption="A dot per run and seed, from states that are the same to the bit. Blue rows"
        " outlive their shams and never diverged, green rows outlive them, red rows diverged before"
        " them; the others cannot be told from the shams. Dotted: where the run diverged at first.",
    ),
    Figure(
        title="At which rates does training fail?",
        draw=formats,
        caption=f"Runs that diverged of how many, and their median step. {RULE}",
    ),
    Figure(
        title="How large is the gradient's error, and where does it come from?",
        draw=growth,
        caption="Left: every look before the divergence, a line per seed. Two trainings: the"
        " released"
        " code's epsilon, which has the distance of the two in it. Right: one event rounded and"
        " all others FP32, at the same states; a dot per seed, the median of its looks.",
    ),
    Figure(
        title="How does the loss run?",
        draw=losses,
        caption="The largest loss of every 25 steps, a line per seed; grey: FP32 on the same rows.",
    ),
)


def asked(quick: bool) -> Study[Found]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale = FULL) -> Study[Found]:
    """Return the claims of arXiv 2506.20752, and ours, at a scale, as a study."""
    c = scale.base.config
    rates = [f"{s.name}: lr {' '.join(format(x, 'g') for x in s.rates)}" for s in scale.settings]
    size = f"{c.depth} layers, width {c.width}, {c.phi}, batch {c.batch}, {c.steps} steps"
    return Study(
        name="su",
        question=QUESTION,
        paper="arXiv 2506.20752, in its student and teacher.",
        launches=partial(planned, scale),
        results=partial(read, scale),
        answer=answer,
        claims=judged,
        figures=FIGURES,
        tables=(TABLE,),
        rules=(claims.RULES, claims.OF_ARMS, *code.RULES),
        caveats=LEFT_OUT,
        about={"student": f"{size}, {len(scale.seeds)} seeds", "settings": "; ".join(rates)},
        config=asdict(c),
        scale=scale.name,
        static=arithmetic,
    )


def arithmetic(progress: Progress) -> Static:
    """Return what is computed from drawn numbers."""
    return Static(verdicts=code.arithmetic())


def judged(found: Found) -> list[Verdict]:
    """Return verdicts on every claim of arXiv 2506.20752, and of ours, that runs can test."""
    return [
        *claims.training(found),
        *claims.arms(found),
        *claims.epsilon(found),
        *code.discrepancies(found),
        *not_here(claims.BEYOND),
    ]


def answer(found: Found) -> str:
    """Return who diverged, in how many steps, at which rates, and what the interventions did."""
    mx = found.scale.mx
    own, exact, frozen = map(found.base, (mx, EXACT, f"{mx}, {FROZEN}"))
    if not own or not exact:
        return "The base runs are not there yet."
    sure = LIKELY[signs(paired(own, exact)).word.value]
    counts = f"{mx} diverged in {_of(own)} runs and FP32 on the same rows in {_of(exact)} ({sure})."
    longer = limit = shift = ""
    for setting in found.scale.settings[1:]:  # FP32 in more steps: is it caused, or hastened?
        alone, steps = found.of(setting.name, EXACT, found.scale.rate), setting.config.steps
        if alone and setting.config == replace(found.scale.base.config, steps=steps):
            beside = found.of(setting.name, mx, found.scale.rate)
            also = f", {mx} in {_of(beside)}" if beside else ""
            longer = longer or f" Within {steps} steps FP32 diverged in {_of(alone)}{also}."
    if frozen:
        start = "With LayerNorm's shift frozen from the first step"
        shift = f" {start} {mx} diverged in {_of(frozen)}."
    of_all = (claims.limits(found.of(found.scale.base.name, f)) for f in (mx, EXACT))
    if (e := ratio(*of_all)).seeds >= 2:
        ends = f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}]"
        limit = f" {mx} fails at {ends} of the rate at which FP32 does."
    return f"{counts}{longer}{limit}{shift} {_interventions(found)}"


def _of(runs: Runs) -> str:
    low, high = share(diverged(runs), len(runs))
    return f"{diverged(runs)} of {len(runs)} [{low:.0%}, {high:.0%}]"


def _interventions(found: Found) -> str:
    parts = []
    for lead in found.leads:
        if own := [o for o in outcomes(found.parted, lead) if o.runs]:
            names = {effect: [o.name for o in own if o.effect is effect] for effect in Effect}
            none = f"{len(names.pop(Effect.NONE))} of {len(own)}"
            told = [f"{listed(those)} {effect}; " for effect, those in names.items() if those]
            told.append(f"{none} arms had no effect beyond the shams")
            parts.append(f"{lead} steps before: {''.join(told)}")
    why = "no base run diverged where FP32 did not, or they are not there yet"
    return f"Changed {'. '.join(parts)}." if parts else f"No interventions: {why}."


def conditions(found: Found) -> list[tuple[str, str, float, Runs]]:
    """Return (setting or parting, arm, rate, the runs of its seeds)."""
    trained = [(setting, f, runs) for (setting, f), runs in found.trained.items()]
    published = [("published", f, runs) for f, runs in found.paper.items()]
    leads = sorted(found.parted.items(), key=lambda item: -item[0][1])
    parted = [(f"{lead} steps before", f, [r]) for (_, lead), own in leads for f, r in own.items()]
    every = [*trained, *published, *parted]
    lines = grouped(((place, name, r.condition.lr), r) for place, name, own in every for r in own)
    return [(*line, runs) for line, runs in lines.items()]


def records(found: Found) -> list[dict[str, Any]]:
    """Return a record for each setting, arm and rate."""
    return [
        {
            "setting": place,
            "arm": name,
            "lr": lr,
            "seeds": [r.seed for r in runs],
            "diverged": [r.diverged for r in runs],
            "losses": [r.loss for r in runs],
            "changes": [r.condition.changes for r in runs],
            "steps": runs[0].steps,
        }
        for place, name, lr, runs in conditions(found)
    ]


def rows(found: Found) -> Iterator[list[str]]:
    """Yield the same in words: the columns of TABLE."""
    for place, name, lr, runs in conditions(found):
        exact = found.paper.get(EXACT, ()) if (place == "published") else found.of(place, EXACT)
        loss = "" if not exact or diverged(runs) else f"{over(runs, exact):.3g}"
        yield [place, name, f"{lr:g}", counted(runs), "" if loss == "inf" else loss]


TABLE = Table(
    name="arms",
    title="Every arm",
    heads=("setting", "arm", "lr", "diverged [95 %], step", "final loss\nover FP32"),
    rows=rows,
    records=records,
)
