"""`roundscope reproduce fp4-rules`: the bias and the noise of every published rule for FP4 blocks.

The sample is seeds of a small GPT for the operands of linear layers, and heads for the shipped
attention tensors. What rules do to matrices and their products is in `measuring`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from roundscope.experiments.catalogue import FP4_RULES
from roundscope.experiments.framework.estimates import Estimate, Values, factor, mean, ratio
from roundscope.experiments.framework.figures.series import GRID, legend
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Progress, Study, Table
from roundscope.experiments.framework.verdicts import (
    SAME,
    SMALLER,
    Range,
    Verdict,
    interval,
    verdict_on,
)
from roundscope.experiments.questions.fp4_rules import rules as named
from roundscope.experiments.questions.fp4_rules.measuring import (
    OF_PRODUCTS,
    OF_TENSORS,
    measured,
)
from roundscope.experiments.questions.fp4_rules.rules import NAMED, RULES
from roundscope.experiments.questions.fp4_rules.tensors import heads, trained
from roundscope.experiments.train.config import Config
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas
from roundscope.tools.results.run import Run, key_of

TENSORS = {"X": "activations", "W": "weights", "G": "gradients"}
PRODUCTS = {"Y": "Y = X W", "dX": "dX = G W^T", "dW": "dW = X^T G"}
REAL = {"Q, K, V": "real Q, K, V", "dO": "real dO", "S": "real Q K^T"}
GPT, HEADS = "GPT", "all-MiniLM-L6-v2"
BELOW, ABOVE, NONE = (-math.inf, 0.0), (0.0, math.inf), (-1e-3, 1e-3)
PUBLISHED = {"scale": 1.726, "dead_zone": 0.022, "grid": 0.712, "cross": -0.658}  # 2605.20402
MODEL: dict[str, Any] = {"heads": 4, "width": 128, "context": 128, "batch": 8, "plan": "jax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A GPT, the seeds that are trained of it, and how often random rules are drawn."""

    name: str
    config: Config
    seeds: int
    draws: int


QUICK = Scale(name="quick", seeds=2, draws=1, config=Config(layers=1, steps=40, warmup=20, **MODEL))
FULL = Scale(
    name="full", seeds=5, draws=2, config=Config(layers=2, steps=300, warmup=50, lr=3e-3, **MODEL)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Where tensors come from: the GPT of a seed, or heads, by their number, of real tensors."""

    source: str
    seed: int


Results = Mapping[tuple[str, str], Mapping[str, Values]]  # (rule, kind) -> number -> by seed


def asked(quick: bool) -> Study[Results]:
    """Return the study at the small or the full scale."""
    scale = QUICK if quick else FULL
    return Study(
        name=FP4_RULES.name,
        question=FP4_RULES.question,
        scale=scale.name,
        launches=lambda store: launches(scale),
        results=lambda store: results(scale, store),
        answer=answer,
        claims=claims,
        source="paper",
        rules=[JUDGING],
        caveats=CAVEATS,
        figures=[Figure(title="Bias and noise of each rule", draw=picture, caption=CAPTION)],
        tables=[TOGETHER, OF_EACH],
        config=asdict(scale.config),
        about={
            "GPT": f"{scale.seeds} seeds, {scale.config.layers} layers of width 128,"
            f" {scale.config.steps} steps on Python's sources",
            "random rules": f"{scale.draws} draws each",
        },
    )


def launches(scale: Scale) -> list[Launch]:
    """Return a launch for each seed of the GPT, and one for the shipped tensors."""
    return [*(_of_gpt(scale, seed) for seed in range(scale.seeds)), _of_heads(scale)]


def _key(scale: Scale, condition: Condition) -> str:
    settings = asdict(scale.config) if condition.source == GPT else {}
    return key_of(asdict(condition), settings, scale.draws, [asdict(rule) for rule in RULES])


def _kept(condition: Condition, rows: Sequence[Any], loss: float, steps: int) -> Run[Condition]:
    extra = {"rows": tuple(rows)}
    return Run(condition=condition, steps=steps, diverged=None, loss=loss, extra=extra)


def _of_gpt(scale: Scale, seed: int) -> Launch:
    condition, steps = Condition(source=GPT, seed=seed), scale.config.steps

    def run(progress: Progress) -> dict[str, Run[Condition]]:
        loss, cases = trained(scale.config, seed, progress)
        found = _kept(condition, [*measured(cases, seed, scale.draws)], loss, steps)
        return {_key(scale, condition): found}

    keys = (_key(scale, condition),)
    settings = asdict(scale.config)
    return Launch(title=f"{GPT}, seed {seed}", steps=steps, config=settings, keys=keys, run=run)


def _of_heads(scale: Scale) -> Launch:
    all_heads = [Condition(source=HEADS, seed=n) for n in range(24)]

    def run(progress: Progress) -> dict[str, Run[Condition]]:
        found = {}
        for condition, (_, cases) in zip(all_heads, heads(), strict=True):
            rows = [*measured(cases, condition.seed, scale.draws)]
            found[_key(scale, condition)] = _kept(condition, rows, 0.0, 0)
            progress(condition.seed + 1)
        return found

    keys = tuple(_key(scale, condition) for condition in all_heads)
    return Launch(title="heads of real tensors", steps=24, config={}, keys=keys, run=run)


def results(scale: Scale, store: Store) -> Results | None:
    """Return all numbers by rule and kind; None until there are runs of both sources."""
    wanted = [Condition(source=GPT, seed=n) for n in range(scale.seeds)]
    wanted += [Condition(source=HEADS, seed=n) for n in range(24)]
    runs = store.read({condition: _key(scale, condition) for condition in wanted})
    sources = {run.condition.source for run in runs.values()}
    return collected(runs.values()) if sources == {GPT, HEADS} else None


def collected(runs: Any) -> Results:
    """Return all numbers of runs, by rule and kind of tensor or product."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for run in runs:
        for row in run.extra["rows"]:
            own = found.setdefault((row["rule"], row["of"]), {})
            for name in OF_TENSORS if "dead" in row else OF_PRODUCTS:
                own.setdefault(name, {})[run.seed] = row[name]
    return found


JUDGING = (
    "A claim is judged on each kind of tensor by the 95 % t interval over seeds of the GPT."
    " 'Unbiased' means a gain between -0.1 and 0.1 %; 'the same' within 5 %."
)
CAVEATS = (
    "A small GPT after 300 steps and attention tensors of a small encoder, not a large model's"
    " outliers; products are added in binary64. The rules are ours as we read papers and code; of"
    " 4over6 every bit was compared with its authors' code, of the others none."
)
CAPTION = (
    "Left, how much too long or short the rounded tensor is along the exact one; without bias it"
    " stands on the line. Middle, how many numbers become 0. Right, the error over the tensor, and"
    " over the product that gives the gradient of the weights. Means over seeds, 95 % intervals."
)


def told(e: Estimate, percent: bool = True) -> str:
    """Return an estimate in per cent."""
    k = 100.0 if percent else 1.0
    return interval(replace(e, mean=k * e.mean, low=k * e.low, high=k * e.high))


def claims(r: Results) -> Iterator[Verdict]:
    """Yield a verdict on each claim for each kind of tensor."""

    def of(rule: str, kind: str, name: str = "gain") -> Values:
        return r[rule, kind][name]

    def squares(rule: str, kind: str) -> Values:
        return {seed: e * e for seed, e in of(rule, kind, "error").items()}

    def judged(paper: str, claim: str, kind: str, e: Estimate, holds: Range, text: str) -> Verdict:
        return verdict_on(paper, claim, TENSORS[kind], holds, text, e)

    parts = ("scale", "dead_zone", "grid")
    for part in (*parts, "cross"):
        own = _over(of(named.RCEIL, "W", part), of(named.RCEIL, "W", "error"), part)
        near = factor({seed: v / PUBLISHED[part] for seed, v in own.items()})
        what = "cosine of scale and grid" if part == "cross" else f"{part} / error, squared"
        claim = "MXFP4's error on weights has parts of the same size in every model"
        e = mean(own)
        ends = f"{e.mean:.3f} [{e.low:.3f}, {e.high:.3f}]"
        text = f"{what}: {ends}, published {PUBLISHED[part]:g}"
        yield judged("arXiv 2605.20402", claim, "W", near, SAME, text)
    for kind in TENSORS:
        e = mean(of(named.NVFP4, kind))
        yield judged(named.UFP4, "E2M1 shrinks numbers", kind, e, BELOW, f"gain {told(e)} %")
        more = _difference(of(named.RHT, kind), of(named.NVFP4, kind))
        text = f"gain with less without {told(more)} %"
        yield judged(named.UFP4, "a Hadamard matrix makes it worse", kind, more, BELOW, text)
        e = mean(of(named.UNIFORM, kind))
        claim = "uniform elements (E1M2) are unbiased"
        yield judged(named.UFP4, claim, kind, e, NONE, f"gain {told(e)} %")
    for kind in TENSORS:
        e = ratio(squares(named.FOUR, kind), squares(named.NVFP4, kind))
        claim = "4over6 has a smaller squared error than amax / 6"
        yield judged(named.COOK, claim, kind, e, SMALLER, f"ratio {interval(e)}")
    unbiased = (
        (named.TSENG, named.TSENG_SR, "3/4 V rounded stochastically is unbiased"),
        (named.TSENG, named.FLOOR_SR, "V rounded stochastically under floor is too short"),
        (named.NVIDIA, named.SR, "stochastic rounding makes NVFP4 unbiased"),
        (named.TETRAJET, named.SR_ROOM, "with room for 17/16 it is unbiased"),
        (named.QUARTET, named.EDEN, "MS-EDEN is unbiased"),
    )
    for (paper, rule, claim), kind in product(unbiased, TENSORS):
        e = mean(of(rule, kind))
        holds = BELOW if rule == named.FLOOR_SR else NONE
        yield judged(paper, claim, kind, e, holds, f"gain {told(e)} %")
    for kind in TENSORS:
        e = ratio(squares(named.RHT_SR, kind), squares(named.EDEN, kind))
        claim = "MS-EDEN's squared error is less than half of stochastic rounding's"
        text = f"that of SR is {interval(e)} times it"
        yield judged(named.QUARTET, claim, kind, e, (2.0, math.inf), text)
    for rule in (named.FLOOR_SR, named.SR, named.EDEN):
        signal = {seed: 1.0 / e for seed, e in of(rule, "dW", "error").items()}
        e = mean(signal)
        claim = "the gradient of the weights is above sqrt(3) times its noise"
        text = f"{rule}: {interval(e)} times"
        yield judged("arXiv 2505.19115", claim, "G", e, (math.sqrt(3.0), math.inf), text)


def _over(part: Values, error: Values, name: str) -> Values:
    """Return (part / error)^2 by seed; a cosine as it is."""
    if name == "cross":
        return part
    return {seed: (v / error[seed]) ** 2 for seed, v in part.items()}


def _difference(a: Values, b: Values) -> Estimate:
    return mean({seed: a[seed] - b[seed] for seed in a if seed in b})


def answer(r: Results) -> str:
    """Return in sentences which rules are biased on gradients, and what being unbiased costs."""

    def gain(rule: str) -> str:
        return told(mean(r[rule, "G"]["gain"])) + " %"

    def error(rule: str) -> str:
        return f"{100.0 * mean(r[rule, 'G']['error']).mean:.3g} %"

    lost = sum(sum(own["not_finite"].values()) for own in r.values())
    return (
        f"Rounded to nearest, a gradient changes along itself by {gain(named.FLOOR)} under the"
        f" standard's rule and by {gain(named.NVFP4)} in NVFP4. Stochastic rounding leaves"
        f" {gain(named.SR)} in NVFP4, since it clips, and {gain(named.SR_ROOM)} with room for it;"
        f" its error is {error(named.SR_ROOM)} of the gradient, that of MS-EDEN"
        f" ({gain(named.EDEN)}) {error(named.EDEN)}, that of 4over6 ({gain(named.FOUR)})"
        f" {error(named.FOUR)}. {lost:g} numbers became infinite or NaN."
    )


def _means(r: Results) -> list[list[str]]:
    """Return a line for each rule: means in per cent over seeds."""

    def each(rule: str, name: str, kinds: Sequence[str]) -> str:
        found = [100.0 * mean(r[rule, kind][name]).mean for kind in kinds]
        return " ".join(f"{v:.2f}" if name == "gain" else f"{v:.1f}" for v in found)

    lines = []
    for rule in NAMED:
        lost = sum(sum(r[rule, kind]["not_finite"].values()) for kind in (*TENSORS, *PRODUCTS))
        columns = [each(rule, name, [*TENSORS]) for name in ("gain", "dead", "error")]
        columns += [each(rule, name, [*PRODUCTS]) for name in ("gain", "error")]
        lines.append([rule, f"{lost:g}", *columns])
    return lines


def _every(r: Results) -> Iterator[list[str]]:
    """Yield a line for each kind and rule, with intervals."""
    for kind, title in (TENSORS | PRODUCTS | REAL).items():
        for rule in NAMED:
            own = r[rule, kind]
            names = ("gain", "dead", "error", "scale", "dead_zone", "grid")
            cells = [told(mean(own[name])) if name in own else "" for name in names]
            count = str(len(own["gain"]))
            lost = f"{sum(own['not_finite'].values()):g}"
            yield [title, rule, count, lost, *cells]


def _records(r: Results) -> list[dict[str, Any]]:
    return [
        {"rule": rule, "of": kind, "source": NAMED[rule].source, "format": NAMED[rule].format}
        | {name: asdict(mean(values)) for name, values in own.items()}
        for (rule, kind), own in r.items()
    ]


TOGETHER: Table[Results] = Table(
    name="together",
    title="All rules",
    heads=(
        "rule",
        "not\nfinite",
        "gain, %\nX W G",
        "to zero, %\nX W G",
        "error, %\nX W G",
        "gain, %\nY dX dW",
        "error, %\nY dX dW",
    ),
    rows=_means,
    records=lambda r: [{"rule": rule} | asdict(NAMED[rule]) for rule in NAMED],
    note="X: activations, W: weights, G: gradients; Y = X W, dX = G W^T, dW = X^T G. Means.",
    shown=(0, 1, 2, 3, 4, 5, 6),
)
OF_EACH: Table[Results] = Table(
    name="rules",
    title="Every rule on every kind of tensor, in %",
    heads=(
        "tensor",
        "rule",
        "n",
        "not finite",
        "gain",
        "to zero",
        "error",
        "scale",
        "dead zone",
        "grid",
    ),
    rows=_every,
    records=_records,
    note="The last three are lengths of parts of the error over the tensor's, with 95 % intervals"
    " over n seeds of the GPT, or n heads of real tensors.",
    grouped=True,
)


def picture(r: Results) -> Picture:
    """Draw gain, share of zeros and errors of each rule."""
    rules = list(NAMED)
    figure, axes = canvas(0.9 + 0.27 * len(rules), 1, 3, sharey=True)
    panels: tuple[tuple[Axes, str, Mapping[str, str]], ...] = (
        (axes[0, 0], "gain", TENSORS),
        (axes[0, 1], "dead", TENSORS),
        (axes[0, 2], "error", TENSORS | {"dW": "dW = X^T G"}),
    )
    titles = {"gain": "gain, %", "dead": "numbers that become 0, %", "error": "error, %"}
    for ax, name, kinds in panels:
        for i, (kind, label) in enumerate(kinds.items()):
            found = [mean(r[rule, kind][name]) for rule in rules]
            y = [n + 0.16 * (i - 1) for n in range(len(rules))]
            ends = [[e.mean - e.low for e in found], [e.high - e.mean for e in found]]
            ax.errorbar(
                [100.0 * e.mean for e in found],
                y,
                xerr=[[100.0 * (0.0 if math.isnan(v) else v) for v in side] for side in ends],
                fmt=MARKERS[i],
                ms=4,
                lw=1,
                color=COLOURS[i],
                label=label,
            )
        ax.set_yticks(range(len(rules)), rules)
        ax.set_ylim(len(rules) - 0.5, -0.5)
        ax.set_title(titles[name], fontsize=10, loc="left", color=INK)
        ax.grid(axis="y", color=GRID)
        ax.set_axisbelow(True)
    axes[0, 0].axvline(0.0, color=INK, lw=0.8)
    legend(figure, axes[0, 2], 4, loc="outside lower center")
    return figure
