"""How often several P of a row are 1, by the format of P, and what that does to P V.

It is measured on real and on constructed tensors. P = exp(S - m) rounds to 1 up to a gap of -ln(1 -
2^-(p+1)) below the maximum (PAPERS 1.5, edge case 4), which is 16 times as wide in E4M3 as in BF16.
The plans are qiu-yao with P in the format and one key tile, and the same with FP32 scores, as
production kernels have them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roundscope import emu
from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.testing.families import FAMILIES, Source
from roundscope.emu.api import ulp_of
from roundscope.emu.formats.format import format_named
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.papers.failure_2510_04212.static.closed import FORMATS
from roundscope.tools.tensors.layers import read_layers, sample_path

SAMPLE, CONSTRUCTED = "MiniLM", ("sink", "repeated-maximum")
SCORES = {"BF16": (), "FP32": (Site.S, Site.SCALED, Site.M, Site.X)}
DRAWS, TOKENS, HEADS, FEATURES = 2, 64, 16, 64  # 64 keys: one repeated pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """q, k, v (1, T, N, H) and the scale; attention is causal if the source's is."""

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """Rows with several P = 1, of one kind of input, format of P and format of scores.

    share           the share of such rows, over heads
    rows            how many of them there are
    tied, others    mean error of P V away from zero in ulps of BF16, PV's format, over heads: in
                    such rows, and in the rest
    """

    share: Estimate
    rows: int
    tied: Estimate
    others: Estimate


def window(f: str) -> float:
    """Return the largest gap whose exp rounds to 1, by bisection through emu.exp."""
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if float(emu.exp(-middle, f)) == 1.0 else (low, middle)
    return low


def inputs() -> list[Input]:
    """Return both layers of the shipped sample, then draws of the constructed families."""
    found = [
        Input(name=SAMPLE, q=x.q, k=x.k, v=x.v, scale=x.scale or x.q.shape[3] ** -0.5)
        for x in read_layers(sample_path())
    ]
    for family in CONSTRUCTED:
        for seed in range(DRAWS):
            x = FAMILIES[family](
                Source(
                    family=family,
                    seed=seed,
                    queries=TOKENS,
                    keys=TOKENS,
                    heads=HEADS,
                    features=FEATURES,
                )
            )
            q, k, v = (np.asarray(emu.round_to(x[role], "bf16"))[None] for role in "qkv")
            found.append(Input(name=family, q=q, k=k, v=v, scale=FEATURES**-0.5))
    return found


def plan(f: str, scores: str) -> Plan:
    """Return qiu-yao with P in the format, and its scores in BF16 or FP32.

    P saturates where the format has no infinity.
    """
    plan = Plan.preset("qiu-yao").at(Site.P, f, overflow="saturate")
    for site in SCORES[scores]:
        plan = plan.at(site, "fp32")
    return plan


def measure(found: list[Input]) -> dict[tuple[str, str, str], Ties]:
    """Return the ties by (kind of input, format of P, format of scores)."""
    names = list(dict.fromkeys(x.name for x in found))
    return {
        (name, f, scores): _ties([x for x in found if x.name == name], plan(f, scores))
        for name in names
        for f in FORMATS
        for scores in SCORES
    }


def _ties(own: list[Input], plan: Plan) -> Ties:
    heads = [head for x in own for head in _heads(x, plan)]

    def by_head(part: Callable[[np.ndarray, np.ndarray], float]) -> Estimate:
        return mean({i: part(*head) for i, head in enumerate(heads)})

    return Ties(
        share=by_head(lambda several, away: float(several.mean())),
        rows=int(sum(several.sum() for several, _ in heads)),
        tied=by_head(lambda several, away: _mean(away[several])),
        others=by_head(lambda several, away: _mean(away[~several])),
    )


def _heads(x: Input, plan: Plan) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return per head its rows with several P = 1, and the error of P V away from zero in ulps."""
    s = x.k.shape[1]
    record = Record(ones=(Site.P,), events=(Site.PV,))
    trace = examine(
        x.q, x.k, x.v, plan=plan, block_q=s, block_k=s, scale=x.scale, record=record
    ).trace
    before, after = (np.asarray(y)[0, :, 0] for y in trace.events["PV"])
    away = np.sign(before) * (after - before) / np.asarray(ulp_of(before, "bf16"))
    return list(zip(trace.ones["P"][0, :, 0] > 1, away, strict=True))


def _mean(x: np.ndarray) -> float:
    return float(x.mean()) if x.size else float("nan")


def gaps(own: list[Input]) -> np.ndarray:
    """Return the sorted distances of the two largest scores of every row, in binary64."""
    distances = []
    for x in own:
        s = x.scale * np.einsum("btnh,bsnh->bnts", x.q.astype(float), x.k.astype(float))
        s = np.sort(s, axis=-1)
        distances.append((s[..., -1] - s[..., -2]).ravel())
    return np.sort(np.concatenate(distances))


def formula(f: str) -> float:
    """Return the width of the window: -ln(1 - 2^-(p+1))."""
    return float(-np.log1p(-(2.0 ** -(format_named(f).precision + 1))))
