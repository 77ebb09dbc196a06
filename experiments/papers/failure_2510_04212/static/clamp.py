"""The released repair of arXiv 2510.04212 as a plain function, and what its clamp does.

The function is attention.py of the paper's repository at 30ef021 with STABLE=1 (36957f9 has beta =
7), in binary64, so that what deviates from softmax here is due to the algorithm alone. Letters are
as there: r_m, r_s of a tile, m, l, O of a row.

The cases are those of PAPERS 1.7-A, with the clamp, with a smaller one, without any, and with our
stabilizer. A tied row's maximum moves by shift = (beta - 1) r_m (by -r_m where r_m < 0), so its row
sum is about 2 e^-shift. Where that is below 1e-10, from a shift of 23.03 on, the clamp is the row
sum: the row's output, and P in its backward, are scaled toward 0.

Behind it is how far the repair would move tied rows in real tensors and in trainings: past the
clamp, or not at all? Scores are in BF16, as the released code has them; a row is tied if several of
them are at least r_m - 1e-3. A shift below the tie window of BF16, 1.96e-3, rounds P back to 1 and
repairs nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from roundscope.attention import Plan, Stabilizer, attend
from roundscope.emu.api import round_to
from roundscope.emu.formats.format import format_named
from roundscope.experiments.framework.verdicts import Verdict, Word, verdict_on
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.groups import Group, batches_of
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, QUIET, UP, canvas
from roundscope.tools.tensors.layers import read_layers, sample_path

CLAMP = 1e-10  # EPSILON of the code: the least that a tile adds to the row sum
BUCKET = 512  # queries and keys of a tile, as released
GAP = 1e-3  # scores closer to the maximum than this count as equal to it
# what a masked score is set to, minus the largest BF16 number: it takes part in maxima and ties
MASKED = -3.3895313892515355e38


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The output (T, H), L = m + ln l (T,), and the rows (T,) with ties that are not masked."""

    out: np.ndarray
    lse: np.ndarray
    tied: np.ndarray


def released(
    s: np.ndarray,
    v: np.ndarray,
    *,
    beta: float,
    clamp: float = CLAMP,
    skip_masked: bool = False,
    bucket: int = BUCKET,
) -> Released:
    """Return the forward on causal scores s (T, T) with v (T, H), float64.

    skip_masked   whether to leave out tiles in which no query sees a key, as kernels do; the
                  released code computes them
    """
    t = s.shape[0]
    tiles = [slice(lo, min(lo + bucket, t)) for lo in range(0, t, bucket)]
    seen = np.tri(t, dtype=bool)
    s = np.where(seen, s, MASKED)
    m, l, o = np.full(t, MASKED), np.zeros(t), np.zeros_like(v)
    tied = np.zeros(t, dtype=bool)
    for rows in tiles:
        for keys in tiles:
            if skip_masked and not seen[rows, keys].any():
                continue
            tile, m_old = s[rows, keys], m[rows].copy()
            r_m = tile.max(1)
            several = (tile >= r_m[:, None] - GAP).sum(1) > 1  # r_s > 1
            r_m = np.where(several & (r_m > 0.0), beta * r_m, r_m)
            r_m = np.where(several & (r_m < 0.0), 0.0, r_m)
            m[rows] = np.maximum(r_m, m_old)
            p, alpha = np.exp(tile - m[rows][:, None]), np.exp(m_old - m[rows])
            l[rows] = alpha * l[rows] + np.maximum(p.sum(1), clamp)
            o[rows] = alpha[:, None] * o[rows] + p @ v[keys]
            tied[rows] |= several & seen[rows, keys].any(1)
    return Released(out=o / l[:, None], lse=m + np.log(l), tied=tied)


def softmax(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return causal softmax(s) v, (T, H)."""
    s = np.where(np.tri(s.shape[0], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    out: np.ndarray = p @ v / p.sum(1, keepdims=True)
    return out


FIGURE = "Alg. 1, code"
T, FEATURES, VALUES = 1024, 64, 32
WRONG = 1e-3  # the |error| of an output entry from which its row counts as wrong
LIMIT = -math.log(CLAMP)  # 23.03
CLAMPS = (CLAMP, 1e-30, 0.0)
TIED = {  # (r_m, beta) -> how many rows are wrong, PAPERS 1.7-A
    (5.0, 2.0): 0,
    (5.0, 7.0): 1023,
    (12.0, 7.0): 1023,
    (20.0, 2.0): 1023,
    (30.0, 2.0): 1023,
}
LOW = -30.0  # the mean of all scores where nothing is planted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case.

    wrong    wrong rows by (clamp, whether masked tiles are skipped)
    ours     wrong rows with our stabilizer
    left     median over tied rows of |out| / |softmax|, clamped: 1 is untouched, 0 gated out
    to_gate  rms distance of the clamped output to that without tied rows, over that to softmax
    """

    top: float
    beta: float
    wrong: dict[tuple[float, bool], int]
    ours: int
    left: float
    to_gate: float


def inputs(top: float, *, planted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k (T, FEATURES), v; keys 0 and 1 have the score `top` if planted, else all."""
    rng = np.random.Generator(np.random.Philox(key=17))
    q, k = 0.9 * rng.standard_normal((2, T, FEATURES))
    v = rng.standard_normal((T, VALUES))
    q[:, 0], k[:, 0] = 8.0 * top, 0.0 if planted else 1.0
    if planted:
        k[:2] = np.eye(1, FEATURES)
    return q, k, v


def outcome(top: float, beta: float, *, planted: bool = True) -> Outcome:
    """Return everything that is measured of one case."""
    q, k, v = inputs(top, planted=planted)
    s = q @ k.T / 8.0
    exact = softmax(s, v)
    runs = {
        (c, skip): released(s, v, beta=beta, clamp=c, skip_masked=skip)
        for c in CLAMPS
        for skip in (False, True)
    }
    wrong = {at: int((np.abs(run.out - exact).max(1) > WRONG).sum()) for at, run in runs.items()}
    plan = replace(Plan.preset("exact"), stabiliser=Stabilizer(beta=beta, window=GAP))
    own = attend(
        *(x[None, :, None] for x in (q, k, v)), plan=plan, block_q=512, block_k=512, is_causal=True
    )[0, :, 0]
    clamped = runs[CLAMP, False]
    sham = np.where(clamped.tied[:, None], 0.0, exact)

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sqrt(((a - b) ** 2).mean()))

    size = np.linalg.norm(clamped.out, axis=1) / np.linalg.norm(exact, axis=1)
    return Outcome(
        top=top,
        beta=beta,
        wrong=wrong,
        ours=int((np.abs(own - exact).max(1) > WRONG).sum()),
        left=float(np.median(size[clamped.tied])),
        to_gate=distance(clamped.out, sham)
        / max(distance(clamped.out, exact), np.finfo(float).tiny),
    )


def outcomes() -> list[Outcome]:
    """Return the table of 1.7-A: tied rows, then scores near -30 with both values of beta."""
    return [
        *(outcome(top, beta) for top, beta in TIED),
        *(outcome(LOW, beta, planted=False) for beta in (2.0, 7.0)),
    ]


def left_of(shift: np.ndarray, clamp: float = CLAMP) -> np.ndarray:
    """Return what the first of two tiles leaves of two tied scores: 2 e^-shift over the row sum."""
    row: np.ndarray = 2.0 * np.exp(-shift)
    left: np.ndarray = row / (np.maximum(row, clamp) + clamp)
    return left


def judged(found: list[Outcome]) -> Iterator[Verdict]:
    """Yield verdicts on the table, on its cause, and on what it amounts to."""
    planted, low = found[: len(TIED)], found[len(TIED) :]
    verdict = partial(verdict_on, FIGURE, sizes=f"T {T}, tiles of 512, binary64")

    yield verdict(
        claim="ours: past (beta - 1) r_m = 23.03 the clamp of 1e-10 switches tied rows off",
        case="tied in keys 0 and 1",
        holds=all(o.wrong[CLAMP, False] == TIED[o.top, o.beta] for o in planted),
        measured="; ".join(
            f"r_m {o.top:g}, beta {o.beta:g}: {o.wrong[CLAMP, False]} wrong, {o.left:.2g} of |out|"
            " left"
            for o in planted
        ),
    )
    skipped = max(o.wrong[CLAMP, True] for o in low)
    wrong = [o.wrong[CLAMP, False] for o in low]
    yield verdict(
        claim="ours: a fully masked tile does so to all of the first 512 rows, tied or not",
        case="all scores near -30",
        holds=all(512 <= w <= 520 for w in wrong) and skipped < 10,
        measured=f"{wrong[0]} rows wrong at beta 2 and {wrong[1]} at 7, {skipped} if masked tiles"
        " are skipped",
        note="masked scores are numbers to the code: they tie, below 0, and set the maximum to 0",
    )
    none, small = (
        sum(o.wrong[c, skip] for o in found for skip in (False, True)) for c in (0.0, 1e-30)
    )
    which = "; ".join(
        f"r_m {o.top:g}, beta {o.beta:g}: shift above 69" for o in found if o.wrong[1e-30, False]
    )
    yield verdict(
        claim="ours: the clamp alone is to blame: without it no row is wrong",
        case="clamp 0 and 1e-30, all cases",
        holds=none == 0,
        measured=f"rows wrong: clamp 0: {none}; 1e-30: {small}" + (f" ({which})" if which else ""),
    )
    ours = sum(o.ours for o in found)
    yield verdict(
        claim="ours: the stabilizer without a clamp is softmax",
        case="plan exact, all cases",
        holds=ours == 0,
        measured=f"{ours} rows wrong",
    )
    past = [o.to_gate for o in planted if (o.beta - 1.0) * o.top > LIMIT]
    yield verdict(
        claim="ours: past it, the repaired run is a run with the tied rows' P set to 0",
        case="gate-out sham",
        holds=all(x < 0.01 for x in past),
        measured="distance to the sham over that to softmax:"
        f" {', '.join(f'{x:.2g}' for x in past)}; at r_m 20, beta 2 {planted[3].to_gate:.2g}",
    )


WINDOW = format_named("bf16").tie_window
BETAS = (2.0, 7.0)
SMALL = Config(
    layers=2,
    heads=2,
    width=32,
    context=32,
    batch=8,
    warmup=50,
    steps=400,
    plan="jax",
    lr=1.0,
    min_lr=1.0,
    position=False,
)
DATA = ("repeat", "stdlib")  # runs of equal tokens, Python's sources
RATES = (3e-3, 1e-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tied:
    """The number of rows, and r_m of the tied ones among them."""

    name: str
    rows: int
    r_m: np.ndarray

    @property
    def share(self) -> float:
        """The share of rows that are tied."""
        return self.r_m.size / self.rows

    def shift(self, beta: float) -> np.ndarray:
        """Return m* - r_m of each tied row."""
        return np.where(self.r_m > 0.0, (beta - 1.0) * self.r_m, -self.r_m)

    def clamped(self, beta: float) -> float:
        """Return the share of tied rows that the clamp of 1e-10 reaches."""
        return float((self.shift(beta) > LIMIT).mean()) if self.r_m.size else 0.0

    def unmoved(self, beta: float) -> float:
        """Return the share of tied rows whose P round back to 1."""
        return float((self.shift(beta) <= WINDOW).mean()) if self.r_m.size else 0.0


def tied_rows(name: str, q: np.ndarray, k: np.ndarray, *, scale: float, causal: bool) -> Tied:
    """Return the tied rows of q (..., T, N, H) and k (..., S, N, H), with one key tile."""
    q, k = (np.asarray(round_to(np.asarray(x, np.float64), "bf16")) for x in (q, k))
    s = round_to(round_to(np.einsum("...tnh,...snh->...nts", q, k), "bf16") * scale, "bf16")
    if causal:
        s = np.where(np.tri(s.shape[-2], dtype=bool), s, -np.inf)
    r_m = s.max(-1)
    several = (s >= round_to(r_m - GAP, "bf16")[..., None]).sum(-1) > 1
    return Tied(name=name, rows=r_m.size, r_m=r_m[several])


def sample() -> Tied:
    """Return those of both layers of the shipped tensors."""
    layers = [
        tied_rows("", x.q, x.k, scale=x.scale or x.q.shape[3] ** -0.5, causal=False)
        for x in read_layers(sample_path())
    ]
    rows, r_m = sum(x.rows for x in layers), np.concatenate([x.r_m for x in layers])
    return Tied(name="MiniLM", rows=rows, r_m=r_m)


def trained(data: str) -> list[Tied]:
    """Return the tied rows of small GPTs without positions, at each rate, in JAX's attention."""
    config = replace(SMALL, data=data)
    settings = Settings(config=config, arms=tuple(Arm(name=f"{rate:g}", lr=rate) for rate in RATES))
    state = one_step.start(config, len(RATES), [0] * len(RATES))
    group = Group(settings, list(range(len(RATES))), state)
    batches = batches_of(settings)[0]
    for number in range(config.steps):
        group.advance(number, {0: batches.batch(number)})

    def of_arm(params: Any, tokens: Any) -> Any:
        return model.attention_inputs(params, tokens, None, config)[:2]

    read = jax.jit(jax.vmap(of_arm, in_axes=(0, None)))
    qs, ks = read(group.state.params, batches.batch(config.steps))  # (A, L, B, T, N, H)
    return [
        tied_rows(f"{data}, lr {rate:g}", q, k, scale=config.head_width**-0.5, causal=True)
        for rate, q, k in zip(RATES, np.asarray(qs), np.asarray(ks), strict=True)
    ]


def tied() -> list[Tied]:
    """Measure the sample and both trainings."""
    return [sample(), *(x for data in DATA for x in trained(data))]


def judged_shifts(found: list[Tied]) -> Iterator[Verdict]:
    """Yield verdicts on the clamp for each beta, and on what a stable run with it can show."""
    sizes = (
        f"MiniLM; GPT of {SMALL.layers} layers, width {SMALL.width}, {SMALL.steps} steps, no"
        " positions"
    )
    verdict = partial(verdict_on, FIGURE, case="scores in BF16", sizes=sizes)
    for beta in BETAS:
        reached = any(x.clamped(beta) for x in found)
        each = (
            f"{x.name}: {x.share:.0%} of rows, r_m up to {x.r_m.max(initial=0.0):.3g},"
            f" {x.clamped(beta):.0%} clamped"
            for x in found
        )
        least = LIMIT / (beta - 1.0)
        yield verdict(
            claim=f"ours: the clamp gates tied rows out (beta = {beta:g}, r_m > {least:.3g})",
            holds=Word.DEPENDS if reached else Word.CONTRADICTS,
            measured=f"tied rows: {'; '.join(each)}",
            note="" if reached else "no tied row here has so large a score; larger models may",
        )
    unmoved = "; ".join(f"{x.name} {x.unmoved(2.0):.0%}, {x.unmoved(7.0):.0%}" for x in found)
    yield verdict(
        claim="ours: every tied row is moved far enough that no P rounds to 1 (beta = 2, 7)",
        holds=Word.DEPENDS if any(x.unmoved(2.0) for x in found) else Word.AGREES,
        measured=f"those that are not: {unmoved}",
        note="where r_m is near 0: (beta - 1) r_m is below the tie window of 1.96e-3",
    )
    at_2, at_7 = (max(x.clamped(beta) for x in found) for beta in BETAS)
    yield verdict(
        claim="a stable run with the released repair shows that removing the bias is enough",
        holds=Word.DEPENDS if at_7 and not at_2 else Word.AGREES if not at_7 else Word.CONTRADICTS,
        measured=f"clamped tied rows: up to {at_7:.0%} at beta = 7 (first release), {at_2:.0%} at"
        " beta = 2",
        note="with beta = 2 and r_m below 23 the repair only shifts, and stability speaks for the"
        " bias; with beta = 7 it may come from tied rows switched off; r_m of the paper's"
        " failing run is not published",
    )


ROWS, SIDE = 32, 16
SHIFTS = np.arange(2.0, 41.0, 2.0)
LEAST = 1e-4  # the lower end of the right axis, at which smaller shifts are drawn


def left_over(shift: float, beta: float) -> float:
    """Return |out| / |softmax| of tied rows that the repair moves by `shift`, in two tiles."""
    rng = np.random.Generator(np.random.Philox(key=3))
    s, v = np.full((ROWS, ROWS), -60.0), rng.standard_normal((ROWS, 4))
    s[:, :2] = shift / (beta - 1.0)
    run, exact = released(s, v, beta=beta, bucket=SIDE), softmax(s, v)
    return float(np.median(np.linalg.norm(run.out[2:], axis=1) / np.linalg.norm(exact[2:], axis=1)))


def picture(found: list[Tied]) -> Figure:
    """Draw a tied row's output against its shift, and the shifts in real tensors and trainings."""
    figure, ((left, right),) = canvas(3.5, 1, 2)
    line = np.linspace(0.0, 42.0, 400)
    left.plot(line, left_of(line), color=QUIET, lw=1.4, label="formula")
    for beta, colour, marker in zip(BETAS, COLOURS, MARKERS, strict=False):
        # the markers of one beta are drawn within those of the other
        look = {"ms": 8.0, "mfc": "white"} if beta == BETAS[0] else {"ms": 4.0}
        label, part = f"released, beta = {beta:g}", [left_over(x, beta) for x in SHIFTS]
        left.plot(SHIFTS, part, marker, color=colour, label=label, **look)
    left.axvline(LIMIT, color=UP, lw=1.0, ls=":")
    left.text(LIMIT + 0.7, 0.9, "ln 1e10", color=UP, fontsize=9)
    left.set_xlabel("shift of the maximum, (beta - 1) r_m")
    left.set_ylabel("part of the row's output that is left")
    left.legend(fontsize=8.5, frameon=False, loc="center left")
    found = [x for x in found if x.r_m.size]
    for i, x in enumerate(found):
        for n, (beta, colour, marker) in enumerate(zip(BETAS, COLOURS, MARKERS, strict=False)):
            low, middle, high = np.maximum(np.quantile(x.shift(beta), (0.05, 0.5, 0.95)), LEAST)
            ends, look = [[middle - low], [high - middle]], {"color": colour, "ms": 4.5}
            right.errorbar(middle, i + 0.24 * n - 0.12, xerr=ends, fmt=marker, capsize=2.5, **look)
    for at, words in ((WINDOW, "P rounds to 1"), (LIMIT, "clamp")):
        right.axvline(at, color=UP, lw=1.0, ls=":")
        place = right.get_xaxis_transform()
        right.text(at, 1.02, words, color=UP, fontsize=8.5, ha="center", transform=place)
    right.set_xscale("log")
    right.set_xlim(LEAST, 300.0)
    right.set_yticks(
        range(len(found)), [f"{x.name}\n{x.share:.0%} tied" for x in found], fontsize=8, color=INK
    )
    right.invert_yaxis()
    right.set_xlabel("shift of tied rows: median, 5 % to 95 %; colours as left")
    return figure
