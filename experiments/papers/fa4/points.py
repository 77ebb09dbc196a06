"""The errors of FlashAttention-4's plans in the published experiment.

Its inputs are exact in E4M3, it has 8,192 keys, and its logits have a given standard deviation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from roundscope.attention.api import attend
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import E4M3
from roundscope.experiments.framework.errors import gain, relative_error

DEVIATIONS = (0.25, 0.5, 1.0, 1.5, 2.0)
# relative errors on a B300, against its BF16 kernel (Dao-AILab/flash-attention, pull request 2694)
PUBLISHED = {
    "fa4-fp8": (0.027, 0.031, 0.136, 0.305, 0.361),
    "fa4-fp8-offset4": (0.027, 0.028, 0.027, 0.024, 0.022),
}
PLANS = (*PUBLISHED, "fa4-fp8-threshold0", "cudnn-mxfp8")
KEYS, QUERIES, WIDTH, TILE = 8192, 128, 128, 128
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan at one standard deviation of the logits; numbers by seed.

    root  |O - exact| / |exact| of root mean squares
    mean  the same of mean magnitudes
    gain  <O - exact, exact> / |exact|^2; below 0, O is too short
    """

    plan: str
    deviation: float
    root: dict[int, float] = field(default_factory=dict)
    mean: dict[int, float] = field(default_factory=dict)
    gain: dict[int, float] = field(default_factory=dict)


def inputs(seed: int, keys: int = KEYS, queries: int = QUERIES) -> Arrays:
    """Return q, k, v of one head, (1, T, 1, 128).

    They are normal numbers clipped to [-3, 3] and rounded to E4M3, so that the kernel reads them
    exactly.
    """
    rng = np.random.default_rng(seed)

    def clipped(tokens: int) -> np.ndarray:
        return np.clip(rng.standard_normal((1, tokens, 1, WIDTH)), -3.0, 3.0)

    q, k, v = (
        np.asarray(round_to(clipped(tokens), E4M3), np.float64) for tokens in (queries, keys, keys)
    )
    return q, k, v


def errors(plan: Plan | str, deviation: float, x: Arrays) -> tuple[float, float, float]:
    """Return (root, mean, gain) of a `Point`, against binary64 on the same inputs."""
    plan = Plan.preset(plan) if isinstance(plan, str) else plan
    plan = plan.rounded(dict.fromkeys((Site.Q, Site.K, Site.V), E4M3))  # descale = 1
    ours, exact = (_out(p, deviation, x) for p in (plan, "exact"))
    return (
        relative_error(ours, exact),
        float(np.abs(ours - exact).sum() / np.abs(exact).sum()),
        gain(ours, exact),
    )


def _out(plan: Plan | str, deviation: float, x: Arrays) -> np.ndarray:
    return np.asarray(
        attend(
            *x, plan=plan, engine="numpy", block_q=TILE, block_k=TILE, scale=deviation / WIDTH**0.5
        ),
        np.float64,
    )


def measured(seeds: Sequence[int]) -> Iterator[Point]:
    """Yield a point for each plan and standard deviation."""
    given = {seed: inputs(seed) for seed in seeds}
    for plan in PLANS:
        for deviation in DEVIATIONS:
            point = Point(plan=plan, deviation=deviation)
            for seed, x in given.items():
                point.root[seed], point.mean[seed], point.gain[seed] = errors(plan, deviation, x)
            yield point
