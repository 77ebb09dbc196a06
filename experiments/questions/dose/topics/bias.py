"""The study `bias`: an error of c x half an ulp of V on rows with several P = 1.

Its sign is that of V, or random.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from roundscope.experiments.framework.counts import time_of
from roundscope.experiments.framework.figures.survival import decades, survival
from roundscope.experiments.framework.verdicts import interval, number
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.scale import FULL, QUICK
from roundscope.experiments.questions.dose.topics.cases import Case, Found, Topic, most_ties, of
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.offset import BIAS, FIXED, NOISE
from roundscope.tools.report.pictures import canvas
from roundscope.tools.results.run import Run

QUESTION = "Does an error biased along V kill where noise of the same size does not?"
KINDS = {  # kind -> name in cases, color and marker
    BIAS: ("leans with V", "#d55e00", "v"),
    NOISE: ("random sign", "#0072b2", "o"),
    FIXED: ("V's sign, turned at random features", "#009e73", "D"),
}
STDLIB = ("sources of Python", ())
REPEAT = ("runs of equal tokens, no positions", ("data=repeat", "position=false"))
CAPTION = (
    "c is the size in half ulps (BF16) of the mean |V| of the keys with P = 1. Dots: seeds; marker:"
    " their median, hollow where it is not reached; bar: smallest to largest; an arrow: runs that"
    " ended without divergence, all of them or as many as its number."
)
NOTES = (
    "Everything is FP32. What delta reads as O is off by c x half an ulp on rows in which the"
    " scores of several keys lie within 1.955e-3 of the largest, so that their P would round to 1"
    " in BF16; the output itself is untouched. The three kinds hit the same rows with the same |e|;"
    " the error of delta, rowsum(dO e), is larger where e and dO go together over the features. c ="
    " 1 is the largest error that one rounding of such a sum can make if the sum has V's exponent."
    " The share of these rows is counted every 100 steps, in one sequence, before the run diverges."
)


def quick() -> Topic:
    """Return the topic for two cores, which take minutes."""
    doses = [(kind, c) for c in (16.0, 64.0, 256.0) for kind in KINDS]
    return _topic([REPEAT], doses, QUICK.config, steps=400, rate=3e-2, seeds=(0, 1, 2))


def full() -> Topic:
    """Return the topic for a GPU."""
    doses = [
        (kind, c)
        for c in (1.0, 4.0, 16.0, 64.0, 256.0)
        for kind in KINDS
        if kind == BIAS or c >= 16.0
    ]
    return _topic(
        [STDLIB, REPEAT], doses, FULL.config, steps=1500, rate=1e-2, seeds=(0, 1, 2, 3, 4)
    )


def _topic(
    data: Sequence[tuple[str, tuple[str, ...]]],
    doses: Sequence[tuple[str, float]],
    config: Config,
    *,
    steps: int,
    rate: float,
    seeds: tuple[int, ...],
) -> Topic:
    cases = [
        Case(
            group=name,
            name=f"c = {c:g}, {KINDS[kind][0]}",
            dose=Dose(rate=rate, steps=steps, words=words, offset=(kind, c)),
        )
        for name, words in data
        for kind, c in doses
    ]
    return Topic(
        question=QUESTION,
        config=config,
        cases=tuple(cases),
        seeds=seeds,
        answer=answer,
        draw=draw,
        caption=CAPTION,
        notes=NOTES,
        about="an error injected into what delta reads as O; the exact arm has none",
        ties=True,
    )


def answer(found: Found) -> str:
    """Return for each kind of data the least c that kills, and what other errors did there."""
    return " ".join(_of_group(found, group, own) for group, own in found.groups().items())


def _of_group(found: Found, group: str, own: dict[Case, list[Run[Dose]]]) -> str:
    by = {case.dose.offset: case for case in own}
    lethal = sorted(
        c for kind, c in (x for x in by if x) if kind == BIAS and found.killed(by[BIAS, c])
    )
    share = 100 * most_ties(r for results in own.values() for r in results)
    where = f"With {group} (up to {number(share)} % of rows have several P = 1)"
    if not lethal:
        most = max(c for kind, c in (x for x in by if x) if kind == BIAS)
        excess = interval(found.results.excess(own[by[BIAS, most]]), " nats")
        return (
            f"{where} no biased error up to c = {most:g} killed most runs; final loss above exact"
            f" at c = {most:g}: {excess}."
        )
    c = lethal[0]
    others = [
        f"{KINDS[kind][0]} {of(found.time(by[kind, c]))}"
        for kind in (NOISE, FIXED)
        if (kind, c) in by
    ]
    against = f"; of the same size there: {', '.join(others)}" if others else ""
    return (
        f"{where} an error biased along V kills from c = {c:g} on"
        f" ({found.time(by[BIAS, c]).words}){against}."
    )


def draw(found: Found) -> Figure:
    """Draw steps to divergence against c, a panel for each kind of data."""
    groups = found.groups()
    figure, axes = canvas(3.7, 1, len(groups), sharey=True)
    for ax, (group, own) in zip(axes.flat, groups.items(), strict=True):
        sizes = sorted({case.dose.offset[1] for case in own if case.dose.offset})
        for i, (kind, (_, colour, marker)) in enumerate(KINDS.items()):
            mine = {
                sizes.index(c.dose.offset[1]) + 0.16 * (i - 1): r
                for c, r in own.items()
                if c.dose.offset and c.dose.offset[0] == kind
            }
            survival(ax, (colour, marker), dict(sorted(mine.items())))
        times = [time_of(results) for results in own.values()]
        ax.set_title(group, fontsize=9.5, loc="left")
        ax.set_xticks(range(len(sizes)), [f"{c:g}" for c in sizes])
        ax.set_xlabel("c, half ulps of V")
        ax.set_yscale("log")
        ax.set_ylim(
            0.7 * min(min(t.low, 0.5 * t.steps) for t in times), 1.7 * max(t.steps for t in times)
        )
        decades(ax)
    axes[0, 0].set_ylabel("steps to divergence")
    return _legend(figure)


def _legend(figure: Figure) -> Figure:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=colour, marker=marker, ms=5, lw=1.3, label=label)
        for label, colour, marker in KINDS.values()
    ]
    figure.legend(handles=lines, loc="outside upper center", ncols=3, fontsize=8.5, frameon=False)
    return figure
