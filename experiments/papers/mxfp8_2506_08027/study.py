"""`roundscope reproduce mxfp8`: the scale's rounding, and the operands that need E4M3."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from roundscope.emu.blocks.names import ScaleRule
from roundscope.experiments.framework.counts import diverged
from roundscope.experiments.framework.estimates import (
    Estimate,
    Values,
    factor,
    mean,
    positive,
    ratio,
)
from roundscope.experiments.framework.figures.series import GRID
from roundscope.experiments.framework.study import Figure, Study, Table
from roundscope.experiments.framework.verdicts import (
    LARGER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
    not_here,
    verdict_on,
)
from roundscope.experiments.papers.mxfp8_2506_08027.measurements import (
    BF16,
    CASES,
    COPIES,
    E5M2,
    ENDS,
    FIRST,
    FLOOR,
    FLOOR_SR,
    FP32,
    FULL,
    LAST,
    PROXY,
    QUICK,
    RCEIL,
    RCEIL_SR,
    WORDS,
    Results,
    Runs,
    Scale,
    gpt_arms,
    losses,
    planned,
    read,
)
from roundscope.experiments.train.gpt.interventions import MATRICES
from roundscope.experiments.train.spikes import RULE
from roundscope.experiments.train.student.run import RULE as PROXY_RULE
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, QUIET, canvas

JUDGING = (
    "Arms of one seed have the same weights and batches; differences are paired by seed and shown"
    " with 95 % t intervals. 'Agrees' if the whole interval is where the claim holds, 'contradicts'"
    " if none of it is, 'undecided' otherwise. Losses: mean of the last 50 steps, of runs that did"
    " not diverge. 'Floor diverges': not testable where no floor run diverged, or where FP32 or"
    " BF16 did too; agrees if no RCEIL run did. Intervals are not widened for the number of claims."
)
WORSE, BELOW, MOST = (0.0, math.inf), (-math.inf, 0.0), (0.0, 0.5)
CLOSE = (-math.inf, 0.5)  # per cent of perplexity: the largest difference that counts as none
AUDITED = "operands of GPT runs in BF16"
TENSORS = {"W": "weights", "X": "activations", "G": "gradients"}
FLOORED, RAISED = str(ScaleRule.FLOOR), str(ScaleRule.RCEIL)


BEYOND = (  # figure, claim, why it is not tested
    ("results, 8 B", "8 B parameters on 15 T tokens train in MXFP8 as in BF16", "their size"),
    ("results, MoE", "the loss of a mixture of 16 B is within 0.1 % of BF16's", "its size"),
    ("results, MMLU", "accuracies of 8 B models are those of BF16", "their size"),
    ("speed", "products in MXFP8 are twice as fast as in BF16 on a GB200", "no Blackwell GPU"),
)


def judged(r: Results) -> list[Verdict]:
    """Return verdicts on every claim."""
    return [*_training(r), *_operands(r), *_gradients(r), *not_here(BEYOND)]


def _at_rates(
    r: Results,
    model: str,
    figure: str,
    claim: str,
    read: Callable[[float], Estimate],
    holds: Range,
    told: str,
    unit: str = "",
) -> Iterator[Verdict]:
    """Yield a verdict for each rate of a model, from the estimate that is read there."""
    for lr in r.rates if model == "GPT" else r.proxy_rates:
        e = read(lr)
        word, measured = judge(e, holds), f"{told} {interval(e, unit)}, n = {e.seeds}"
        yield verdict_on(figure, claim, f"{model}, lr {lr:g}", word, measured)


def _training(r: Results) -> Iterator[Verdict]:
    def gpt(figure: str, claim: str, own: str, base: str, told: str) -> Iterator[Verdict]:
        loss = partial(r.gap, name=own, base=base)
        return _at_rates(r, "GPT", figure, claim, loss, WORSE, told, " nats")

    def close(figure: str, claim: str, own: str, base: str, told: str) -> Iterator[Verdict]:
        perplexity = partial(r.perplexity, name=own, base=base)
        return _at_rates(r, "GPT", figure, claim, perplexity, CLOSE, f"perplexity {told}", " %")

    # the abstract's version 1: rounding of the scale decides about stability
    stable = "with the floor of OCP MX 1.0 training can diverge, with RCEIL not"
    lower = "RCEIL trains to a lower loss than floor"
    for model, rates, runs in (("GPT", r.rates, r.gpt), ("proxy", r.proxy_rates, r.proxy)):
        for lr in rates:
            arms = {name: runs.get((lr, name), ()) for name in (FLOOR, RCEIL, BF16, FP32)}
            lost = {name: diverged(own) for name, own in arms.items()}
            measured = "; ".join(f"{n} {lost[n]} of {len(x)}" for n, x in arms.items())
            fair = lost[FLOOR] and not (lost[FP32] or lost[BF16])
            some = Word.CONTRADICTS if lost[RCEIL] >= lost[FLOOR] else Word.UNDECIDED
            word = Word.NOT_TESTABLE if not fair else some if lost[RCEIL] else Word.AGREES
            yield verdict_on("abstract, v1", stable, f"{model}, lr {lr:g}", word, measured)
    yield from gpt("abstract, v1", lower, FLOOR, RCEIL, "floor's loss above RCEIL's")
    over, told = partial(r.over, name=FLOOR, base=RCEIL), "floor's loss above RCEIL's"
    yield from _at_rates(r, "proxy", "abstract, v1", lower, over, WORSE, told, " %")

    recipe = "E4M3 for all operands with RCEIL is within 0.5 % of BF16's perplexity"
    yield from close("results, 8 B", recipe, RCEIL, BF16, "above BF16's")
    for name in (RCEIL, FLOOR, E5M2["operands"]):
        claim = f"every MX variant is slightly worse than BF16: {name}"
        yield from gpt("results, 843 M", claim, name, BF16, "loss above BF16's")
    for what, name in E5M2.items():
        claim = f"E5M2 for {'all operands' if what == 'operands' else what} is worse than E4M3"
        yield from gpt("results, formats", claim, name, RCEIL, "loss above E4M3's")
    # layers of the keep list; the embedding, the last norm and the output matrix are never
    # quantized here
    for name in (FIRST, LAST, ENDS):
        claim = f"all layers may be MX: less than 0.5 % is gained by {name}"
        yield from close("recipe", claim, RCEIL, name, "gained")


def _operands(r: Results) -> Iterator[Verdict]:
    def e4m3(number: str, rule: ScaleRule) -> Values:
        return r.audited(number, element="E4M3", rule=str(rule))

    def audit(figure: str, claim: str, e: Estimate, holds: Range, measured: str) -> Verdict:
        return verdict_on(figure, claim, AUDITED, judge(e, holds), measured)

    rules = {row["rule"] for row in r.audit}
    saturated = {rule: e4m3("saturated", rule) for rule in ScaleRule if rule in rules}
    shares = {rule: mean(_percent(own)) for rule, own in saturated.items()}
    measured = "; ".join(f"{rule} {interval(e, ' %')}" for rule, e in shares.items())
    word = Word.NOT_TESTABLE
    if shares:
        never = shares[ScaleRule.RCEIL].mean == 0.0 == shares[ScaleRule.CEIL].mean
        always = all(share > 0.0 for share in saturated.get(ScaleRule.FLOOR, {}).values())
        word = Word.AGREES if never and always else Word.CONTRADICTS
    claim = "floor saturates the largest numbers, rounding the scale up never does"
    yield verdict_on("conversion", claim, AUDITED, word, measured)
    shrink = _difference(e4m3("shrink", ScaleRule.FLOOR), e4m3("shrink", ScaleRule.RCEIL))
    measured = f"floor - RCEIL {interval(shrink)} of sum |V|"
    yield audit("ours", "floor shrinks operands more than RCEIL", shrink, BELOW, measured)
    lost = ratio(e4m3("underflow", ScaleRule.CEIL), e4m3("underflow", ScaleRule.RCEIL))
    claim = "ceil of the maximum loses more small numbers than RCEIL"
    yield audit("ours", claim, lost, LARGER, f"underflow, CEIL / RCEIL {interval(lost)}")

    for tensor, name in TENSORS.items():
        where = {"operand": tuple(map(str, COPIES[tensor])), "rule": RAISED}
        wide, narrow = (
            {x: r.audited(x, **where, element=e) for x in ("error", "underflow", "shrink")}
            for e in ("E5M2", "E4M3")
        )
        e = ratio(wide["error"], narrow["error"])
        zeros = [interval(positive(_percent(own["underflow"])), " %") for own in (wide, narrow)]
        measured = f"error, E5M2 / E4M3 {interval(e)}; to zero {zeros[0]} and {zeros[1]}"
        claim = f"32 numbers need E4M3's precision more than E5M2's range: {name}"
        yield audit("formats", claim, e, LARGER, f"{measured}, n = {e.seeds}")
        short = [mean(_percent(own["shrink"])) for own in (wide, narrow)]
        more = _difference(wide["shrink"], narrow["shrink"])
        measured = (
            f"sum |Q| - |V| {interval(short[0], ' %')} in E5M2 and {interval(short[1], ' %')}"
        )
        claim = f"E5M2 shortens more than E4M3 under RCEIL: {name}"
        yield audit("ours", claim, more, BELOW, f"{measured} in E4M3, n = {more.seeds}")

    # the recipe's two copies, each made from the numbers as they were
    for rule in (FLOORED, RAISED):
        for tensor, name in TENSORS.items():
            e = mean(apart(r, operand=str(COPIES[tensor][0]), element="E4M3", rule=rule))
            claim = f"the row's and the column's copy differ by less than either's error: {name}"
            measured = f"|Q_row - Q_col| / |Q - V| {interval(e)}"
            yield audit("recipe", f"{claim}, {rule}", e, (-math.inf, 1.0), measured)


def apart(r: Results, **where: str) -> Values:
    """Return |Q_row - Q_col| in units of the rounding error of the row's operand, by seed."""
    distance, error = r.audited("apart", **where), r.audited("error", **where)
    return {seed: distance[seed] / error[seed] for seed in distance}


def _gradients(r: Results) -> Iterator[Verdict]:
    """Yield verdicts on the proxy's gradients against FP32's at the same weights and rows."""

    def size(lr: float, name: str) -> Values:
        return {seed: abs(v) for seed, v in r.seen(lr, name, "along").items()}

    def zeta(lr: float) -> Estimate:
        return ratio(r.seen(lr, FLOOR, "zeta"), r.seen(lr, RCEIL, "zeta"))

    def left(lr: float, name: str, drawn: str) -> Estimate:
        return ratio(size(lr, drawn), size(lr, name))

    claim = "floor's gradient is farther from FP32's than RCEIL's"
    yield from _at_rates(r, "proxy", "ours", claim, zeta, LARGER, "zeta, floor / RCEIL")
    for lr in r.proxy_rates:
        along = {n: r.seen(lr, n, "along") for n in (FLOOR, RCEIL, FLOOR_SR, RCEIL_SR)}
        bias = _difference(along[FLOOR], along[RCEIL])
        parts = "; ".join(f"{name} {interval(mean(own))}" for name, own in along.items())
        measured = f"along g: {parts}; floor - RCEIL {interval(bias)}"
        claim = "floor shortens the gradient more than RCEIL"
        yield verdict_on("ours", claim, f"proxy, lr {lr:g}", judge(bias, BELOW), measured)
    for name, drawn in ((FLOOR, FLOOR_SR), (RCEIL, RCEIL_SR)):
        claim = f"stochastic elements take most of the bias away: {name}"
        share, told = partial(left, name=name, drawn=drawn), "|along|, stochastic / nearest"
        yield from _at_rates(r, "proxy", "ours", claim, share, MOST, told)
    over, told = partial(r.over, name=FLOOR_SR, base=FLOOR), "loss above nearest's"
    claim = "with floor, stochastic elements train better"
    yield from _at_rates(r, "proxy", "ours", claim, over, BELOW, told, " %")


def _percent(values: Values) -> Values:
    return {seed: 100.0 * v for seed, v in values.items()}


def _difference(a: Values, b: Values) -> Estimate:
    return mean({seed: a[seed] - b[seed] for seed in a if seed in b})


HEADS = {
    "saturated": "saturated, %",
    "underflow": "to zero, %",
    "shrink": "shrink, % of sum |V|",
    "error": "|Q - V| / |V|, %",
}
LEGEND: dict[str, Any] = {
    "loc": "outside upper left",
    "ncols": 4,
    "fontsize": 8.5,
    "frameon": False,
}
ROUNDED = [name for name in PROXY if name != FP32]  # the arms of the proxy that round


def draw_opening(r: Results, scale: Scale) -> Picture:
    """Draw the GPT's final loss above BF16's: a panel a rate, a row an arm, 95 % intervals."""
    names = [name for name in gpt_arms(scale.gpt) if name != BF16]
    figure, axes = canvas(0.9 + 0.3 * len(names), 1, len(r.rates), sharey=True)
    for ax, lr in zip(axes.flat, r.rates, strict=True):
        for row, name in enumerate(names):
            above = {s: 1e3 * gap for s, gap in r.gaps(lr, name, BF16).items()}
            _row(ax, row, above, QUIET if name == FP32 else COLOURS[0])
            _count(ax, row, r.gpt.get((lr, name), []))
        _rows(ax, names, f"lr {lr:g}", "final loss above BF16's, mnats")
        ax.axvline(0.0, color=INK, lw=0.8)
    return figure


def proxy(r: Results) -> Picture:
    """Draw the proxy's final loss over FP32's, as `opening` does."""
    figure, axes = canvas(0.9 + 0.32 * len(ROUNDED), 1, len(r.proxy_rates), sharey=True)
    for ax, lr in zip(axes.flat, r.proxy_rates, strict=True):
        exact = losses(r.proxy.get((lr, FP32), []))
        for row, name in enumerate(ROUNDED):
            own = r.proxy.get((lr, name), [])
            over = {seed: loss / exact[seed] for seed, loss in losses(own).items() if seed in exact}
            _row(ax, row, over, COLOURS[0], geometric=True)
            _count(ax, row, own)
        _rows(ax, ROUNDED, f"lr {lr:g}", "final loss over FP32's")
        ax.axvline(1.0, color=INK, lw=0.8)
    return figure


def epsilon(r: Results) -> Picture:
    """Draw zeta and the signed part of the gradient's error: a row per arm, a color per rate."""
    figure, axes = canvas(1.0 + 0.36 * len(ROUNDED), 1, 2, sharey=True)
    zeta, along = axes[0]
    for i, lr in enumerate(r.proxy_rates):
        shift = 0.22 * (i - (len(r.proxy_rates) - 1) / 2)
        for row, name in enumerate(ROUNDED):
            _row(zeta, row + shift, r.seen(lr, name, "zeta"), COLOURS[i], geometric=True)
            _row(along, row + shift, r.seen(lr, name, "along"), COLOURS[i])
        zeta.plot([], [], "o", color=COLOURS[i], label=f"lr {lr:g}")
    _rows(zeta, ROUNDED, "", "zeta = |epsilon| / |g|")
    _rows(along, ROUNDED, "", "<epsilon, g> / |g|^2: below 0 shortens the step")
    zeta.set_xscale("log")
    along.axvline(0.0, color=INK, lw=0.8)
    figure.legend(**LEGEND)
    return figure


def audit(r: Results) -> Picture:
    """Draw what rules and formats do to operands: means over layers, matrices, steps, seeds."""
    operands = [str(site) for pair in COPIES.values() for site in pair]
    figure, axes = canvas(4.3, 1, 4, sharey=True)
    for i, (element, rule) in enumerate(CASES):
        style = {
            "marker": MARKERS[i % 4],
            "color": COLOURS[0 if element == "E4M3" else 1],
            "mfc": "none" if i % 2 else None,
            "ls": "none",
            "label": f"{element} {rule}",
        }
        rows = [row + 0.08 * (i - 3.5) for row in range(len(operands))]
        for ax, number in zip(axes.flat, HEADS, strict=True):
            x = [
                100.0 * mean(r.audited(number, operand=o, element=element, rule=str(rule))).mean
                for o in operands
            ]
            ax.plot(x, rows, ms=4.5, **style)
    for ax, head in zip(axes.flat, HEADS.values(), strict=True):
        _rows(ax, operands, "", head)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), **LEGEND)
    return figure


def copies(r: Results) -> Picture:
    """Draw |Q_row - Q_col| over |Q - V|: a row per tensor and matrix, a color per rule; E4M3."""
    places = [(tensor, matrix) for tensor in COPIES for matrix in map(str, MATRICES)]
    figure, axes = canvas(0.9 + 0.24 * len(places))
    ax = axes[0, 0]
    for i, rule in enumerate(dict.fromkeys(str(rule) for _, rule in CASES)):
        style = {"color": COLOURS[i], "ms": 5, "mfc": "none" if i % 2 else None}
        for row, (tensor, matrix) in enumerate(places):
            where = {"operand": str(COPIES[tensor][0]), "matrix": matrix, "element": "E4M3"}
            own = mean(apart(r, **where, rule=rule)).mean
            ax.plot(own, row, MARKERS[i], label=None if row else rule, **style)
    _rows(ax, [f"{tensor} of {m}" for tensor, m in places], "", "|Q_row - Q_col| / |Q - V|")
    figure.legend(**LEGEND)
    return figure


def _row(ax: Axes, row: float, values: Values, colour: str, geometric: bool = False) -> None:
    """Draw seeds as faint dots, the mean and its interval."""
    seen = [v for v in values.values() if math.isfinite(v)]
    ax.plot(seen, [row + 0.17] * len(seen), "o", color=colour, ms=3, alpha=0.45, mew=0)
    e = factor(values) if geometric else mean(values)
    if seen and math.isfinite(e.mean):
        ends = [[e.mean - e.low], [e.high - e.mean]] if math.isfinite(e.low) else None
        ax.errorbar([e.mean], [row], xerr=ends, fmt="o", color=colour, ms=4.5, lw=1.4, capsize=2.5)


def _count(ax: Axes, row: int, own: Runs) -> None:
    """Write how many runs diverged, where any did."""
    if diverged(own):
        text = f"{diverged(own)} of {len(own)} diverged"
        style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 8, "color": COLOURS[1]}
        ax.text(0.99, row, text, transform=ax.get_yaxis_transform(), **style)


def _rows(ax: Axes, names: Sequence[str], title: str, label: str) -> None:
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_title(title, fontsize=9.5, loc="left")
    ax.set_xlabel(label)
    ax.grid(axis="y", color=GRID, lw=0.6)
    ax.set_axisbelow(True)


QUESTION = "Does rounding the block scale up save MXFP8 training, and which operands need E4M3?"
LEFT_OUT = (
    "Not shown: the paper's 8 B and 16 B models and its trillions of tokens, native MXFP8 "
    "products, MMLU. The paper's text was not at hand: its claims are those of its abstracts and "
    "of notes that quote it. Tests check the scale rules against public oracles."
)
AUDIT = (
    "Operands of the BF16 runs' steps: X and X_W the activations as operands of x W and of x^T g, "
    "W and W_X the weights, G_X and G_W the gradients, blocked along the axis that the product "
    "sums over. Below 0, numbers shrink."
)
OF_COPIES = (
    "A scale is a power of two, so both copies round alike except where one is clipped or below the"
    " element's normal range."
)
ARMS = f"Arms. {'. '.join(f'{name}: {text}' for name, text in WORDS.items())}."
FIGURES = (
    Figure(
        title="What do they cost the proxy?",
        draw=proxy,
        caption=f"A student that learns a teacher, arXiv 2506.20752. {PROXY_RULE}",
    ),
    Figure(
        title="How wrong is the proxy's gradient at one state?",
        draw=epsilon,
        caption="Against FP32's at the same weights and rows; medians over each run before it"
        " diverged.",
    ),
    Figure(title="What do rules and formats do to the operands?", draw=audit, caption=AUDIT),
    Figure(title="How far are the two copies of a tensor apart?", draw=copies, caption=OF_COPIES),
)


def asked(quick: bool) -> Study[Results]:
    """Return the study at the scale of --quick, or in full."""
    return study(QUICK if quick else FULL)


def study(scale: Scale = FULL) -> Study[Results]:
    """Return the claims of arXiv 2506.08027 on a small GPT and on the student, as a study."""
    opening = Figure(
        title="What do scale, format and layers cost the GPT?",
        draw=partial(draw_opening, scale=scale),
        caption=f"A dot for each seed, the mean and its 95 % interval. {RULE}",
    )
    gpt = {f"gpt.{name}": value for name, value in asdict(scale.gpt).items()}
    return Study(
        name="mxfp8",
        question=QUESTION,
        paper="arXiv 2506.08027, on small models.",
        launches=partial(planned, scale),
        results=partial(read, scale),
        answer=answer,
        claims=judged,
        source="source",
        figures=(opening, *FIGURES),
        tables=(TABLE,),
        rules=(JUDGING, ARMS),
        caveats=LEFT_OUT,
        about=about(scale),
        config=gpt | {f"proxy.{name}": value for name, value in asdict(scale.proxy).items()},
        scale=scale.name,
    )


def answer(r: Results) -> str:
    """Return the divergences, then the losses at the first rate, which is the usual one."""

    def count(model: str, name: str) -> str:
        runs = [x for m, _, n, own in r.arms() if (m, n) == (model, name) for x in own]
        return f"{diverged(runs)} of {len(runs)}"

    counts = "; ".join(
        f"{model}: {count(model, FLOOR)} with floor, {count(model, RCEIL)} with RCEIL"
        for model in ("GPT", "proxy")
    )
    if not r.rates:
        return f"Runs that diverged: {counts}."
    lr = r.rates[0]
    floor, cost = r.gap(lr, FLOOR, RCEIL), r.gap(lr, RCEIL, BF16)
    said = {Word.AGREES: "higher than", Word.CONTRADICTS: "lower than"}
    against = said.get(judge(floor, WORSE), "not clearly different from")
    in_e5m2 = {name: judge(r.gap(lr, name, RCEIL), WORSE) for name in E5M2.values()}
    worse = [name for name, word in in_e5m2.items() if word is Word.AGREES]
    along = ""
    if r.proxy_rates:  # at one state, at the highest rate
        rate = max(r.proxy_rates)
        seen = [r.seen(rate, name, "along") for name in (FLOOR, RCEIL, FLOOR_SR, RCEIL_SR)]
        shown = [interval(mean({s: 100.0 * v for s, v in own.items()}), " %") for own in seen]
        along = (
            f"Along FP32's, the proxy's gradient at lr {rate:g} is off by {shown[0]} with floor and"
            f" {shown[1]} with RCEIL; with stochastic elements by {shown[2]} and {shown[3]}."
        )
    return (
        f"Runs that diverged: {counts}. GPT at lr {lr:g}: floor's final loss is {against} RCEIL's "
        f"({interval(floor, ' nats')}), RCEIL's is {interval(cost, ' nats')} above BF16's; "
        f"worse in E5M2: {'; '.join(worse) or 'none clearly'}. {along}"
    )


def about(scale: Scale) -> dict[str, str]:
    """Return what was run, in words."""
    g, p = scale.gpt, scale.proxy
    model = f"{g.layers} layers, width {g.width}, {g.heads} heads, context {g.context}"
    steps = f"batch {g.batch}, {g.steps} steps, bytes of {g.data}"
    rate = f"cosine to a tenth after {g.warmup} steps of warm-up"
    proxy = f"{p.depth} layers, width {p.width}, batch {p.batch}, {p.steps} steps, {p.phi}"
    audited = " ".join(map(str, scale.audited))
    return {
        "GPT": f"{model}, {steps}, {rate}, {len(scale.seeds)} seeds",
        "proxy": f"{proxy}, {len(scale.proxy_seeds)} seeds",
        "audit": f"steps {audited} of the BF16 runs, all layers and matrices",
    }


def records(r: Results) -> list[dict[str, Any]]:
    """Return a record for each model, rate and arm."""
    return [
        {
            "model": model,
            "lr": lr,
            "arm": name,
            "seeds": [x.seed for x in runs],
            "diverged": [x.diverged for x in runs],
            "losses": [x.loss for x in runs],
        }
        for model, lr, name, runs in r.arms()
    ]


def rows(r: Results) -> Iterator[list[str]]:
    """Yield the same in words: the columns of TABLE."""
    for model, lr, name, runs in r.arms():
        losses = [x.loss for x in runs if math.isfinite(x.loss)]
        loss = f"{np.median(losses):.4g}" if losses else "not finite"
        above = over = zeta = along = ""
        if model == "GPT" and name != BF16:
            above = interval(mean({s: 1e3 * v for s, v in r.gaps(lr, name, BF16).items()}))
        if model == "proxy" and name != FP32:
            over = interval(r.over(lr, name, FP32))
            zeta = interval(positive(r.seen(lr, name, "zeta")))
            along = interval(mean(r.seen(lr, name, "along")))
        count = f"{diverged(runs)} of {len(runs)}"
        yield [model, f"{lr:g}", name, count, loss, above, over, zeta, along]


TABLE = Table(
    name="arms",
    title="Every arm",
    heads=(
        *("model", "lr", "arm", "diverged", "final loss"),
        *("above BF16, mnats", "above FP32, %", "zeta", "along g"),
    ),
    rows=rows,
    records=records,
)
