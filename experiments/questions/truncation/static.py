"""What each cast does without training: attention on several inputs, and a stream of RMSNorms.

A cell is a head of one layer of the shipped tensors, or a seed of a family of inputs
(`attention.testing.families`); intervals are over cells.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from matplotlib.figure import Figure as Picture

from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.exact import Exact, exact
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.emu import round_to
from roundscope.experiments.framework.estimates import gain, mean, positive, ratio, relative_error
from roundscope.experiments.framework.study import Progress, Static
from roundscope.experiments.framework.verdicts import Verdict, interval, verdict_on
from roundscope.experiments.questions.truncation.builds import (
    ALL,
    AWAY,
    BASE,
    CASTS,
    CENTRED,
    KEPT,
    MODES,
    NEAREST,
    REMEDIES,
    SUMS,
    TITLES,
    WIDE,
    ZERO,
    alone,
    remedied,
    whole,
)
from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from roundscope.tools.report.pictures import COLOURS, canvas
from roundscope.tools.tensors.layers import read_layers, sample_path

REAL = "real tensors"
FAMILY = {"Gaussian": "gaussian", "V of one sign": "one-signed-v", "a sink": "sink"}
INPUTS = (REAL, *FAMILY)
RESULTS = ("out", "dq", "dk", "dv")
TOKENS, WIDTH, TILE = 256, 64, 128
LAYERS = ("layer1", "layer4")
CALLS, ROWS, FEATURES = 72, 8, 2048  # of the stream of norms
SAME = (-5e-4, 5e-4)  # a gain that counts as none
Key = tuple[str, str, str]  # inputs, cast, mode or remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A build on some inputs; numbers by cell.

    error  result -> |own - exact| / |exact|
    gain   result -> <own - exact, exact> / |exact|^2; below 0 it is too short
    rows   rms of the row sums of dS over the rms of the exact rows' sums of |dS|
    """

    error: dict[str, dict[int, float]] = field(default_factory=lambda: {r: {} for r in RESULTS})
    gain: dict[str, dict[int, float]] = field(default_factory=lambda: {r: {} for r in RESULTS})
    rows: dict[int, float] = field(default_factory=dict)


def builds() -> dict[tuple[str, str], str]:
    """Return the words of every build by its cast and its mode or remedy."""
    return {
        **{(ALL, mode): whole(mode) for mode in MODES},
        **{(cast, mode): alone(cast, mode) for cast in CASTS for mode in (AWAY, ZERO)},
        **{(ALL, name): remedied(name) for name in REMEDIES},
    }


@lru_cache(8)
def calls(name: str, seeds: int) -> Inputs:
    """Return a causal call whose heads are cells: seeds of a family, or heads of either layer."""
    if name == REAL:
        layers = [read_layers(sample_path(), layer=layer)[0] for layer in LAYERS]
        each = [[np.asarray(getattr(x, role)) for role in ROLES] for x in layers]
        parts = [[x[:1, :TOKENS, :seeds] for x in own] for own in each]
    else:
        sizes = {"queries": TOKENS, "keys": TOKENS, "heads": 1, "features": WIDTH}
        sources = [Source(family=FAMILY[name], seed=seed, **sizes) for seed in range(seeds)]
        drawn = [FAMILIES[FAMILY[name]](source) for source in sources]
        parts = [[x[role][None] for role in ROLES] for x in drawn]
    q, k, v, do = (_in_bf16(np.concatenate(own, axis=2)) for own in zip(*parts, strict=True))
    return Inputs(q=q, k=k, v=v, do=do, scale=q.shape[-1] ** -0.5, is_causal=True)


ROLES = ("q", "k", "v", "do")


def _in_bf16(x: np.ndarray) -> np.ndarray:
    return np.asarray(round_to(np.ascontiguousarray(x, np.float32), "bf16"))


@lru_cache(8)
def _exact(name: str, seeds: int) -> Exact:
    return exact(calls(name, seeds))


def point(words: str, name: str, seeds: int) -> Point:
    """Return the numbers of a build of `BASE` on inputs of this name."""
    x, want = calls(name, seeds), _exact(name, seeds)
    own = examine(
        *(x.q, x.k, x.v, x.do),
        plan=Plan.preset(BASE).changed(f"{SUMS} {words}"),
        record=Record(events=(Site.DS,)),
        engine="numpy",
        is_causal=True,
        block_q=TILE,
        block_k=TILE,
    )
    ds = np.asarray(own.trace.events[Site.DS][1], np.float64)
    sums = np.where(np.tri(TOKENS, dtype=bool), ds, 0.0).sum(-1)  # (B, N, T)
    found = Point()
    for n in range(x.q.shape[2]):
        for result in RESULTS:
            got = np.asarray(getattr(own, result), np.float64)[:, :, n]
            right = getattr(want, result)[:, :, n]
            found.error[result][n] = relative_error(got, right)
            found.gain[result][n] = gain(got, right)
        rows = np.square(sums[:, n]).mean() / np.square(want.rows[:, n]).mean()
        found.rows[n] = float(np.sqrt(rows))
    return found


def points(progress: Progress, quick: bool) -> dict[Key, Point]:
    """Return the numbers of every build on all inputs."""
    names, seeds = ((REAL, "a sink"), 1) if quick else (INPUTS, 8)
    found: dict[Key, Point] = {}
    for name in names:
        for (cast, mode), words in builds().items():
            found[name, cast, mode] = point(words, name, seeds)
            progress(len(found))
    return found


NORM = OPERATIONS["rms_norm"]
NORMS = {  # what a norm casts: the sum of its addition, and its result
    "all casts to nearest": "casts=ties-to-even",
    "all casts, ties away": "casts=ties-to-away",
    "the result toward zero": "OUT=bf16:toward-zero",
    "the stream toward zero": "ADD=bf16:toward-zero",
    "all casts toward zero": "casts=toward-zero",
}


def lost(words: str, seed: int) -> float:
    """Return the share of its norm that a stream lost in `CALLS` fused additions and RMSNorms.

    Each call adds what the one before returned, its features permuted and with other signs, so that
    no product rounds, and normalizes the sum; the stream is kept in BF16. Against the same in
    binary64.
    """
    ends = []
    for plan in (plan_of(NORM, "exact"), plan_of(NORM, "torch-cpu").changed(words)):
        rng = np.random.default_rng(seed)
        weight = _in_bf16(1.0 + 0.1 * rng.standard_normal(FEATURES)).astype(np.float64)
        residual, added = (
            _in_bf16(rng.standard_normal((ROWS, FEATURES))).astype(np.float64) for _ in range(2)
        )
        for _ in range(CALLS):
            given = {"x": added, "weight": weight, "residual": residual}
            outputs = run(NORM, plan, given).outputs
            out, residual = (outputs[n].astype(np.float64) for n in ("out", "summed"))
            turned = rng.choice([-1.0, 1.0], FEATURES)
            added = out[:, rng.permutation(FEATURES)] * turned
        ends.append(float(np.linalg.norm(residual)))
    whole_norm, own = ends
    return 1.0 - own / whole_norm


def verdicts(found: Mapping[Key, Point]) -> Iterator[Verdict]:
    """Yield every build on all inputs: is what reads a cast first shortened; is delta repaired?"""
    for (name, cast, mode), p in found.items():
        case = f"error {_of(p.error, positive)}; rows {interval(positive(p.rows))}"
        if mode in REMEDIES:
            over = ratio(p.rows, found[name, ALL, NEAREST].rows)
            claim = f"{TITLES[mode]}: rows of dS sum to zero as well as to nearest"
            told = f"{interval(over)} of their sums to nearest; gain {_of(p.gain, mean)}"
            yield verdict_on(name, claim, case, (0.0, 1.05), told, over)
            continue
        result = READS.get(cast, "out")
        told = f"gain {_of(p.gain, mean)} (n = {len(p.rows)})"
        claim = f"{cast} {MODES[mode]}: no gain of {result}"
        yield verdict_on(name, claim, case, SAME, told, mean(p.gain[result]))


READS = {"P of the backward": "dv", "dS": "dk", "gradients": "dq"}  # what a cast reaches first


def _of(numbers: Mapping[str, Mapping[int, float]], estimate: object) -> str:
    assert callable(estimate)
    return ", ".join(f"{r} {interval(estimate(x))}" for r, x in numbers.items())


def norm_verdicts(seeds: int) -> Iterator[Verdict]:
    """Yield what a stream of norms loses, by cast."""
    for title, words in NORMS.items():
        own = mean({seed: lost(words, seed) for seed in range(seeds)})
        told = f"lost {interval(own)} (n = {own.seeds})"
        yield verdict_on("norms", f"{title}: a stream keeps its norm", "", SAME, told, own)


def parts(quick: bool) -> int:
    """Return the number of parts in which progress is told."""
    return len(builds()) * (2 if quick else len(INPUTS))


def measured(progress: Progress, quick: bool) -> Static:
    """Return the verdicts and the picture of all builds without training."""
    found = points(progress, quick)
    return Static(
        verdicts=[*verdicts(found), *norm_verdicts(2 if quick else 5)],
        title="Without training: what each cast does",
        figures=[("Which cast shortens what?", picture(found), CAPTION)],
    )


CAPTION = (
    "How much too short results are, minus their gain, and the error of dQ: all casts of the plan"
    " aiter-ck to nearest, ties away, toward zero, and toward zero with one of three changes."
    " Means over heads or seeds with 95 % t intervals."
)
SHOWN = (NEAREST, AWAY, ZERO, KEPT, WIDE, CENTRED)


def picture(found: Mapping[Key, Point]) -> Picture:
    """Draw the gains of all results, and the error of dQ, of whole builds on all inputs."""
    names = list(dict.fromkeys(name for name, _, _ in found))
    figure, axes = canvas(0.9 + 1.5 * len(names), len(names), 2)
    for (left, right), name in zip(axes, names, strict=True):
        for y, mode in enumerate(SHOWN):
            p = found[name, ALL, mode]
            for n, (result, colour) in enumerate(zip(RESULTS, COLOURS, strict=False)):
                e = mean(p.gain[result])
                at = y + 0.16 * (n - 1.5)
                bar = np.nan_to_num([[e.mean - e.low], [e.high - e.mean]])
                left.errorbar(
                    *(100 * e.mean, at), xerr=100 * bar, fmt="o", color=colour, ms=3.5, lw=1,
                    label=result if y == 0 else None,
                )  # fmt: skip
            e = positive(p.error["dq"])
            bar = np.nan_to_num([[e.mean - e.low], [e.high - e.mean]])
            right.errorbar(e.mean, y, xerr=bar, fmt="o", color=COLOURS[1], ms=4, lw=1)
        for ax in (left, right):
            ax.set_yticks(range(len(SHOWN)), [TITLES.get(m, MODES.get(m)) for m in SHOWN])
            ax.set_ylim(len(SHOWN) - 0.5, -0.5)
            ax.tick_params(labelsize=8)
        right.set_yticklabels([])
        right.set_xscale("log")
        left.axvline(0.0, color="#888888", lw=0.7)
        left.set_title(name, fontsize=9.5, loc="left")
    axes[-1, 0].set_xlabel("gain, %")
    axes[-1, 1].set_xlabel("error of dQ")
    axes[0, 0].legend(fontsize=7.5, frameon=False, ncols=4)
    return figure
