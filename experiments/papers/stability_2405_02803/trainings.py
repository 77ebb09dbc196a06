"""Fig. 7 and 8: trainings in pairs, and how far their weights drift apart along the way.

All versions train side by side. No weights are kept: at every look they are compared, by max
|a - b| and by the Wasserstein distance of their distributions as in the paper, and dropped.
A small distance is no proof of stability: neither metric sees the sign or the coherence of a
difference.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from roundscope.experiments.framework.estimates import (
    Values,
    exponent,
    factor,
    grouped,
    mean,
    ratio,
    slope,
)
from roundscope.experiments.framework.figures.series import legend
from roundscope.experiments.framework.verdicts import (
    GROWS,
    LARGER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
    verdict_on,
)
from roundscope.experiments.train.config import WORD, Config, deciding
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group, batches_of
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.report.pictures import COLOURS, QUIET, canvas

OTHER = 2**31  # added to the seed of weights, and to nothing else
# what baseline-bf16 keeps in BF16
OF_FORWARD = "Q,K,V,S,SCALED,P,PV,OUT,S_B,SCALED_B,P_B"
OF_BACKWARD = "DO,DP,DS,DQ_OUT,DK_OUT,DV_OUT"
HALF = (f"site={OF_FORWARD} -> fp16", f"site={OF_BACKWARD} -> fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A way to train: attention's plan and changes, tiles, operands of linear layers, weights."""

    plan: str
    matmul: str
    changes: tuple[str, ...] = ()
    tiled: bool = False
    other_weights: bool = False


UNFUSED = "unfused"
FLASH = "fa2-bf16"
QIU_YAO = "qiu-yao"
OTHERS = "other weights"
HALVES = "fp16"
WHOLE = "fp32"
TILED = "fp32, tiled"
VERSIONS = {
    UNFUSED: Version(plan="baseline-bf16", matmul="bf16"),
    OTHERS: Version(plan="baseline-bf16", matmul="bf16", other_weights=True),
    FLASH: Version(plan="fa2-bf16", matmul="bf16", tiled=True),
    QIU_YAO: Version(plan="qiu-yao", matmul="bf16", tiled=True),
    # its backward is FP32, so that no gradient is lost below FP16's smallest number
    HALVES: Version(plan="baseline-bf16", matmul="fp16", changes=HALF),
    WHOLE: Version(plan="fp32", matmul="fp32"),
    TILED: Version(plan="fp32", matmul="fp32", tiled=True),
}
# the paper's question, its two bands, and ours: BF16 in place of FP16, another FlashAttention,
# nothing but another order of FP32 sums
PAIRS = {
    "flash": (FLASH, UNFUSED),
    "weights": (OTHERS, UNFUSED),
    "precision": (HALVES, WHOLE),
    "bf16": (UNFUSED, WHOLE),
    "qiu-yao": (QIU_YAO, UNFUSED),
    "order": (TILED, WHOLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The trainings of one experiment.

    config  the configuration of each, without its plan and matmul, which are a version's
    tile    rows, and columns, of a tile of attention
    seeds   how many seeds each is trained with
    pairs   names of `PAIRS`, of the versions that are compared
    looks   how many looks follow the first
    """

    config: Config
    tile: int
    seeds: int
    pairs: tuple[str, ...] = tuple(PAIRS)
    looks: int = 20

    @property
    def steps(self) -> list[int]:
        """The numbers of steps done at which the weights are compared, 0 first."""
        return [round(self.config.steps * i / self.looks) for i in range(self.looks + 1)]

    @property
    def versions(self) -> list[str]:
        """The versions that its pairs need."""
        return [name for name in VERSIONS if any(name in PAIRS[pair] for pair in self.pairs)]

    @property
    def key(self) -> str:
        """The key: of all that decides the result but versions and device."""
        told = [
            asdict(self) | {"config": deciding(self.config)},
            {name: asdict(VERSIONS[name]) for name in self.versions},
            {pair: PAIRS[pair] for pair in self.pairs},
        ]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Two trainings of one seed at every look, each (K,).

    max_difference   the largest over all weights
    wasserstein      of the tensors' distributions, the mean over all weights
    loss, gap        mean loss of the first since the last look, nats, and above the second's
    """

    max_difference: np.ndarray
    wasserstein: np.ndarray
    loss: np.ndarray
    gap: np.ndarray


NUMBERS = ("max_difference", "wasserstein", "loss", "gap")  # the fields of Apart
Drifts = Mapping[str, Mapping[int, Apart]]  # by pair and seed
Place = tuple[str, int]  # version, seed
# (pair, seed) -> the columns of Apart
Look = dict[tuple[str, int], tuple[float, float, float, float]]


def executables(t: Training) -> list[tuple[Settings, list[Place], list[int]]]:
    """Return settings, (version, seed) of the arms and their seeds of weights, by executable."""
    versions = [(VERSIONS[name], name) for name in t.versions]
    alike = grouped(((v.plan, v.matmul, v.tiled), name) for v, name in versions)
    found = []
    for (plan, matmul, tiled), names in alike.items():
        config = replace(t.config, plan=plan, matmul=matmul, block=t.tile if tiled else None)
        places = [(name, seed) for name in names for seed in range(t.seeds)]
        arms = [
            Arm(name=f"{name}/{seed}", changes=VERSIONS[name].changes, lr=config.lr, seed=seed)
            for name, seed in places
        ]
        weights = [
            (config.init_seed + seed + OTHER * VERSIONS[name].other_weights) % WORD
            for name, seed in places
        ]
        found.append((Settings(config=config, arms=tuple(arms)), places, weights))
    return found


class Side:
    """The arms of one executable."""

    def __init__(self, settings: Settings, arms: Sequence[Place], seeds: Sequence[int]) -> None:
        state = one_step.start(settings.config, len(arms), seeds)
        self.arms, self.losses = arms, list[Any]()
        self.group = Group(settings, list(range(len(arms))), state)

    def advance(self, number: int, batches: dict[int, np.ndarray]) -> None:
        """Do one step of all arms."""
        self.losses.append(self.group.advance(number, batches)[0])

    def taken(self) -> tuple[Sequence[Place], Any, list[Any]]:
        """Return the arms, their weights now, and the losses since the last time, on the device."""
        losses, self.losses = self.losses, []
        return self.arms, self.group.state.params, losses


def run(t: Training, progress: Callable[[int], None]) -> Drifts:
    """Return how far all pairs are apart at `t.steps`; seeds share batches. Raises UsageError."""
    found = executables(t)
    sides, batches = [Side(*each) for each in found], batches_of(found[0][0])
    looks, waiting = list[Look](), [side.taken() for side in sides]
    for first, last in pairwise(t.steps):
        for number in range(first, last):
            drawn = {seed: b.batch(number) for seed, b in batches.items()}
            with ThreadPoolExecutor() if number == 0 else nullcontext() as pool:
                list(
                    (pool.map if pool else map)(
                        partial(Side.advance, number=number, batches=drawn), sides
                    )
                )
        looks.append(_look(waiting, t))  # meanwhile the device works on the steps sent since
        waiting = [side.taken() for side in sides]
        progress(last)
    looks.append(_look(waiting, t))
    columns = {place: np.array([look[place] for look in looks]).T for place in looks[0]}
    return {
        pair: {
            seed: Apart(**dict(zip(NUMBERS, columns[pair, seed], strict=True)))
            for seed in range(t.seeds)
        }
        for pair in t.pairs
    }


def _look(taken: Sequence[tuple[Sequence[Place], Any, list[Any]]], t: Training) -> Look:
    """Compare every pair of every seed; the mean Wasserstein distance is over all weights."""
    trees: dict[Place, Any] = {}
    losses: dict[Place, float] = {}
    for arms, params, seen in taken:
        params, seen = jax.device_get((params, seen))
        for i, arm in enumerate(arms):
            trees[arm] = jax.tree.map(lambda leaf, i=i: leaf[i], params)
            losses[arm] = float(np.mean([x[i] for x in seen])) if seen else np.nan

    def compared(place: Place) -> tuple[float, float, float, float]:
        pair, seed = place
        a, b = ((version, seed) for version in PAIRS[pair])
        tensors = distances(trees[a], trees[b])
        size = np.array([d.size for d in tensors])
        apart = float(size @ np.array([d.wasserstein for d in tensors]) / size.sum())
        largest = max(d.max_difference for d in tensors)
        return largest, apart, losses[a], losses[a] - losses[b]

    places = [(pair, seed) for pair in t.pairs for seed in range(t.seeds)]
    with ThreadPoolExecutor() as pool:  # sorting leaves Python to others
        return dict(zip(places, pool.map(compared, places), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far one tensor of two trees lies apart, NaN where an entry is not finite."""

    name: str
    size: int
    max_difference: float
    wasserstein: float


def distances(a: Any, b: Any) -> list[Distance]:
    """Return the distances of tensors of two trees, named by path. Raises ValueError."""
    left, right = _leaves(a), _leaves(b)
    if left.keys() != right.keys():
        raise ValueError(
            f"weights: only one run has {' '.join(sorted(left.keys() ^ right.keys())[:4])}; compare"
            " runs of one model"
        )
    for name, x in left.items():
        if np.shape(x) != np.shape(right[name]):
            raise ValueError(
                f"tensor {name}: shapes {np.shape(x)} and {np.shape(right[name])}, must be equal"
            )
    return [
        Distance(
            name=name,
            size=int(np.size(x)),
            max_difference=max_difference(x, right[name]),
            wasserstein=wasserstein(x, right[name]),
        )
        for name, x in left.items()
    ]


def _leaves(tree: Any) -> dict[str, Any]:
    """Return arrays by dotted path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    return {name or "weights": x for name, (_, x) in zip(names, leaves, strict=True)}


def max_difference(a: Any, b: Any) -> float:
    """Return max |a - b| of two tensors, in binary64; NaN if an entry of either is not finite."""
    a, b = _pair(a, b)
    return float(np.abs(a - b).max())


def wasserstein(a: Any, b: Any) -> float:
    """Return the Wasserstein-1 distance of two tensors' entries, as scipy's; NaN if not finite."""
    a, b = _pair(a, b)
    return float(np.abs(np.sort(a) - np.sort(b)).mean())


def _pair(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two tensors' entries in binary64, all NaN if one of them is not finite."""
    if np.shape(a) != np.shape(b) or np.size(a) == 0:
        raise ValueError(
            f"tensors: shapes {np.shape(a)} and {np.shape(b)}, must be equal and not empty"
        )
    left, right = (np.asarray(x).astype(np.float64).reshape(-1) for x in (a, b))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return np.full_like(left, math.nan), np.full_like(right, math.nan)
    return left, right


METRICS = {"wasserstein": "Wasserstein", "max_difference": "largest difference"}
FEWER: Range = (2.0, 5.0)
AT_MOST: Range = (0.0, 1.0)
GROWING = {  # pair -> the claim of Fig. 7 on it
    "flash": "weights drift apart and keep growing",
    "order": "ours: so they do by nothing but the order of FP32 sums",
    "qiu-yao": "ours: and with the FlashAttention of arXiv 2510.04212",
}
Compared = Callable[[Sequence[int], np.ndarray], float]  # of the steps and a column of `Apart`


def end(steps: Sequence[int], y: np.ndarray) -> float:
    """Return the distance at the end."""
    return float(y[-1])


def stray(steps: Sequence[int], y: np.ndarray) -> float:
    """Return the root mean square of y about its least-squares line, over n - 2 points."""
    x = np.array(steps) - np.mean(steps)
    left = y - y.mean() - slope(steps, y) * x
    return math.sqrt(float(left @ left) / (len(x) - 2))


def relative_stray(steps: Sequence[int], y: np.ndarray) -> float:
    """Return the same over the mean of y."""
    return float(stray(steps, y) / y.mean())


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of Fig. 8 on two pairs' ratio; the first of `compared` is judged, all are shown."""

    text: str
    pairs: tuple[str, str]
    compared: tuple[Compared, ...]
    holds: Range
    measured: str


WEIGHTS, LESS = "other first weights", "FlashAttention drifts 2 to 5 times less than low precision"
SLOPE = f"FlashAttention's slope is at most that of {WEIGHTS}"
FP16, BF16 = "FP16 against FP32", "BF16 against FP32"
SCATTER = "{} the scatter about its line; relative to its own size {}"
END = "{} FlashAttention's at the end"
LOW = ("precision", "weights")
FIGURE_8 = (
    Claim(SLOPE, ("flash", "weights"), (slope,), AT_MOST, "{} as steep"),
    Claim(f"{FP16} lies above {WEIGHTS}", LOW, (end,), LARGER, "{} as far at the end"),
    Claim(f"{FP16} varies more than {WEIGHTS}", LOW, (stray, relative_stray), LARGER, SCATTER),
    Claim(LESS, ("precision", "flash"), (end,), FEWER, f"{FP16} is {END}"),
    Claim(LESS, ("bf16", "flash"), (end,), FEWER, f"{BF16} is {END}"),
)


def judged(drifts: Drifts, t: Training) -> Iterator[Verdict]:
    """Yield the verdicts on both figures, and ours."""
    for metric in METRICS:
        yield grows(drifts, t, "flash", metric)
    for claim in FIGURE_8:
        for metric in METRICS:
            columns = [drifts.get(pair, {}) for pair in claim.pairs]
            found = [
                ratio(
                    *({s: of(t.steps, getattr(a, metric)) for s, a in c.items()} for c in columns)
                )
                for of in claim.compared
            ]
            yield verdict_on(
                "8",
                claim.text,
                METRICS[metric],
                claim.holds,
                claim.measured.format(*(interval(e, "x") for e in found)),
                found[0],
                sizes=_sizes(t),
                queries=tuple(drift_query(t, pair, metric, t.steps[-1]) for pair in claim.pairs),
            )
    for pair in ("order", "qiu-yao"):
        if pair in t.pairs:
            for metric in METRICS:
                yield grows(drifts, t, pair, metric)


def grows(drifts: Drifts, t: Training, pair: str, metric: str) -> Verdict:
    """Return the verdict on Fig. 7: does the distance grow, and still in the second half?"""
    middle, end = t.steps[t.looks // 2], t.steps[-1]
    power = exponent(t.steps[1:], [_at(drifts, t, pair, metric, step) for step in t.steps[1:]])
    late = ratio(_at(drifts, t, pair, metric, end), _at(drifts, t, pair, metric, middle))
    words = judge(power, GROWS), judge(late, LARGER)  # the claim fails with either
    last, gap = factor(_at(drifts, t, pair, metric, end)), mean(_at(drifts, t, pair, "gap", end))
    return verdict_on(
        "7",
        GROWING[pair],
        f"{METRICS[metric]}, {' against '.join(PAIRS[pair])}",
        next((w for w in (Word.CONTRADICTS, Word.UNDECIDED) if w in words), Word.AGREES),
        f"steps^{interval(power)} to {interval(last)}; {interval(late, 'x')} from step"
        f" {middle} to {end}",
        late,
        f"the loss differs by {interval(gap)} nats at the end",
        sizes=_sizes(t),
        queries=tuple(
            drift_query(t, pair, name, step)
            for name, step in ((metric, end), (metric, middle), ("gap", end))
        ),
    )


def _sizes(t: Training) -> str:
    c = t.config
    return (
        f"GPT of {c.layers} layers, width {c.width}, {c.steps} steps, lr {c.lr:g}, {t.seeds} seeds"
    )


def _at(drifts: Drifts, t: Training, pair: str, metric: str, step: int) -> Values:
    """Return a column of `Apart` at a look, by seed; empty where nothing was trained."""
    place = t.steps.index(step)
    return {seed: float(getattr(a, metric)[place]) for seed, a in drifts.get(pair, {}).items()}


LINES = {  # pair -> (color, line, label)
    "weights": (QUIET, "-", "band: other first weights"),
    "precision": (COLOURS[3], "-", "band: FP16 against FP32"),
    "bf16": (COLOURS[4], "-", "BF16 against FP32"),
    "flash": (COLOURS[0], "-", "fa2-bf16 against unfused BF16"),
    "qiu-yao": (COLOURS[1], "--", "qiu-yao against unfused BF16"),
    "order": (COLOURS[2], ":", "FP32 in tiles against FP32"),
}


def draw(drifts: Drifts, t: Training) -> Figure:
    """Draw both metrics over steps: a thin line per seed, geometric means, intervals as bands."""
    figure, (axes,) = canvas(4.4, 1, 2)
    steps = np.array(t.steps)
    pairs = {pair: look for pair, look in LINES.items() if pair in drifts}
    for ax, (metric, name) in zip(axes, METRICS.items(), strict=True):
        for pair, (colour, line, label) in pairs.items():
            seeds = [getattr(a, metric) for a in drifts[pair].values()]
            for own in seeds:
                shown = own > 0
                ax.plot(steps[shown], own[shown], line, color=colour, lw=0.6, alpha=0.35)
            found = [factor(dict(enumerate(map(float, look)))) for look in zip(*seeds, strict=True)]
            low, high = [e.low for e in found], [e.high for e in found]
            ax.fill_between(steps, low, high, color=colour, alpha=0.1, lw=0)
            ax.plot(steps, [e.mean for e in found], line, color=colour, lw=1.8, label=label)
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("steps")
        ax.set_xlim(0, steps[-1])
        ax.set_title(
            f"{name} of weights{' (mean over all)' if metric == 'wasserstein' else ''}",
            fontsize=9.5,
            loc="left",
        )
    legend(figure, axes[0], 3 if len(pairs) > 4 else 2, loc="outside upper center", fontsize=8.5)
    return figure


def drift_query(t: Training, pair: str, metric: str, step: int) -> str:
    """Return SQL over golden.sqlite that gives a column at a look, by seed."""
    return (
        f"SELECT seed, {metric} FROM drift WHERE key = '{t.key}' AND pair = '{pair}' AND step ="
        f" {step}"
    )
