"""Does the sign of the output's bias follow the common sign of V, or residual V minus main V?

That depends on whether the output is rounded before or after it is normalized. Two keys share the
maximum, so both P are 1; a third has P = e^-8 to e^-10, and its V is c x the mean of the first two.
All V are negative.

    qiu-yao     rounds  V1 + V2 + P3 V3: the residual has V's sign, each tie goes away from zero,
                and O is too low
    fa2-bf16    rounds (V1 + V2 + P3 V3) / (2 + P3): beside (V1 + V2) / 2 it lies by
                P3 (V3 - mean) / 2, so the sign of c - 1 decides
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.attention import Plan, attend
from roundscope.emu.api import round_to, ulp_of
from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.verdicts import Verdict, Word, interval
from roundscope.experiments.papers.failure_2510_04212.static.bias import FIGURE, bars
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas

PLANS = {"qiu-yao": "rounded, then divided", "fa2-bf16": "divided, then rounded"}
TIMES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0)  # values of c
HEADS, ROWS, FEATURES = 32, 16, 64  # heads are the repeats; V is drawn for each
NEAREST, FARTHEST = 8.0, 10.0  # gaps of the third key below the other two
QUARTER = 0.25  # ulps: half of the sums are ties, and each of those moves by half an ulp


# the mean of OUT - exact output in ulps of BF16, by plan and c; all V are negative, so below 0 is
# away from zero
Order = dict[tuple[str, float], Estimate]


def inputs(times: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k, v (1, T, N, H) of BF16 numbers, with scores of 0, 0 and -gap (scale 1)."""
    rng = np.random.Generator(np.random.Philox(key=5))
    q = np.zeros((1, ROWS, HEADS, FEATURES))
    q[..., 0] = -round_to(rng.uniform(NEAREST, FARTHEST, (1, ROWS, HEADS)), "bf16")
    k = np.zeros((1, 3, HEADS, FEATURES))
    k[:, 2, :, 0] = 1.0
    v = np.empty((1, 3, HEADS, FEATURES))
    v[:, :2] = -1.0 - rng.integers(0, 128, (1, 2, HEADS, FEATURES)) / 128.0
    v[:, 2] = round_to(times * v[:, :2].mean(1), "bf16")
    return q, k, v


def measure() -> Order:
    """Measure every plan and c; the exact output is computed from the same numbers."""
    found: Order = {}
    for times in TIMES:
        qkv = inputs(times)
        exact = attend(*qkv, plan="exact", scale=1.0)
        for name in PLANS:
            error = (attend(*qkv, plan=Plan.preset(name), scale=1.0) - exact) / np.asarray(
                ulp_of(exact, "bf16")
            )
            found[name, times] = mean(dict(enumerate(error.mean((0, 1, 3)).tolist())))
    return found


def judged(o: Order) -> list[Verdict]:
    """Return verdicts on the paper's argument under both orders, and on what replaces it."""
    sizes = f"{HEADS} heads x {FEATURES} features x {ROWS} rows"
    signs = {at: 1 if e.low > 0.0 else -1 if e.high < 0.0 else 0 for at, e in o.items()}
    shown = {
        plan: "ulp: "
        + ", ".join(f"c = {t:g}: {interval(o[plan, t])}" for t in TIMES if t in (0.25, 1.0, 2.0))
        for plan in PLANS
    }
    verdicts = []
    for plan, words in PLANS.items():
        found = {signs[plan, t] for t in TIMES if t > 0.0}  # a residual of 0 is none
        agrees = found == {-1}
        note = "on residual V against main V: the argument holds for round-before-normalize only"
        verdicts.append(
            Verdict(
                figure=FIGURE,
                claim="V < 0 makes the output's error negative",
                case=f"{plan}: {words}",
                sizes=sizes,
                word=Word.AGREES if agrees else Word.DEPENDS if -1 in found else Word.CONTRADICTS,
                measured=shown[plan],
                estimate=o[plan, 2.0],
                note="" if agrees else note,
            )
        )
    wanted = all(signs["fa2-bf16", t] == -np.sign(t - 1.0) for t in TIMES)
    ours = Verdict(
        figure=FIGURE,
        claim="ours: in production order the sign is that of residual V minus main V",
        case="fa2-bf16",
        sizes=sizes,
        word=Word.AGREES if wanted else Word.CONTRADICTS,
        measured=shown["fa2-bf16"],
        estimate=o["fa2-bf16", 0.25],
        note=(
            "its size, a quarter of an ulp where half of the sums are ties, is the same: production"
            " kernels are not safe by their order"
        ),
    )
    return [*verdicts, ours]


def picture(o: Order) -> Figure:
    """Draw the bias against c, for both orders."""
    figure, ((ax,),) = canvas(3.2)
    for (name, words), colour, marker in zip(PLANS.items(), COLOURS, MARKERS, strict=False):
        own = [o[name, t] for t in TIMES]
        x, label = range(len(TIMES)), f"{name}: {words}"
        look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "capsize": 2.5}
        ax.errorbar(x, [e.mean for e in own], bars(own), lw=1.4, label=label, **look)
    for y in (-QUARTER, QUARTER):
        ax.axhline(y, color=INK, lw=0.7, ls=":")
    ax.axhline(0.0, color=INK, lw=0.7)
    ax.set_xticks(range(len(TIMES)), [f"{t:g}" for t in TIMES])
    ax.set_xlabel("V of the small term over the mean V of the two terms with P = 1 (all V < 0)")
    ax.set_ylabel("mean error of the output, ulps")
    ax.set_ylim(-0.32, 0.44)
    ax.legend(fontsize=9, frameon=False, loc="upper right")
    return figure
