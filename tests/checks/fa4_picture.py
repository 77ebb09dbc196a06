"""FlashAttention-4 in FP8: the error of O and how much too short it is, against the deviation of the scores.

python -m tests.checks.fa4_picture [PICTURE]

Prints the table of docs/kernels.md and draws its picture. Published: relative errors on a B300 with offset 8 and with offset 4.
"""

import sys
from pathlib import Path

import numpy as np

from roundscope.attention import examine
from roundscope.attention.plans.blackwell import fa4_fp8, fa4_fp8_offset4, fa4_fp8_threshold0
from roundscope.attention.plans.plan import Plan
from roundscope.emu import round_to
from roundscope.experiments.sweep.report.plots import COLOURS, canvas

DEVIATIONS = (0.25, 0.5, 1.0, 1.5, 2.0)
PUBLISHED = {8: (0.027, 0.031, 0.136, 0.305, 0.361), 4: (0.027, 0.028, 0.027, 0.024, 0.022)}  # flash-attention, issues 2577, 2694, 2713
PLANS = {8: fa4_fp8, 4: fa4_fp8_offset4}
TODAY = fa4_fp8_threshold0  # errors of it were not published
KEYS, QUERIES, WIDTH, TILE = 4096, 256, 128, 128


def inputs(keys: int = KEYS, queries: int = QUERIES) -> tuple[np.ndarray, ...]:
    """q, k, v of one head, normal numbers in E4M3 with a scale each, (1, T, 1, H)."""
    rng = np.random.default_rng(0)
    found = []
    for tokens in (queries, keys, keys):
        x = rng.standard_normal((1, tokens, 1, WIDTH))
        scale = np.abs(x).max() / 448.0
        found.append(np.asarray(round_to(x / scale, "e4m3fn"), np.float64) * scale)
    return tuple(found)


def errors(plan: Plan, deviation: float, x: tuple[np.ndarray, ...]) -> tuple[float, float]:
    """(|O - exact| / |exact|, <O - exact, exact> / |exact|^2) with scores of this standard deviation."""
    sizes = {"block_q": TILE, "block_k": TILE, "scale": deviation / WIDTH**0.5, "engine": "numpy", "record": None}
    ours, exact = (np.asarray(examine(*x, plan=p, **sizes).out, np.float64) for p in (plan, "exact"))
    return float(np.linalg.norm(ours - exact) / np.linalg.norm(exact)), float(((ours - exact) * exact).sum() / np.square(exact).sum())


def main() -> None:
    """The table, and the picture where a path is given."""
    x = inputs()
    found = {offset: [errors(make(), d, x) for d in DEVIATIONS] for offset, make in PLANS.items()}
    print("| deviation of the scores | " + " | ".join(f"{d:g}" for d in DEVIATIONS) + " |")
    print("|---" * (1 + len(DEVIATIONS)) + "|")
    for offset, pairs in found.items():
        print(f"| offset {offset}: published error | " + " | ".join(f"{e:.3f}" for e in PUBLISHED[offset]) + " |")
        print("| ours | " + " | ".join(f"{e:.3f}" for e, _ in pairs) + " |")
        print("| O is too short by | " + " | ".join(f"{-100 * g:.1f} %" for _, g in pairs) + " |")
    if len(sys.argv) > 1:
        draw(found, Path(sys.argv[1]))


def draw(found: dict[int, list[tuple[float, float]]], path: Path) -> None:
    """Errors beside the published ones, and gains."""
    figure, axes = canvas(3.6, 1, 2)
    for (offset, pairs), colour in zip(found.items(), COLOURS, strict=False):
        axes[0, 0].plot(DEVIATIONS, [e for e, _ in pairs], "o-", color=colour, label=f"fa4-fp8, offset {offset}")
        axes[0, 0].plot(DEVIATIONS, PUBLISHED[offset], "x--", color=colour, ms=8, label=f"published, B300, offset {offset}")
        axes[0, 1].plot(DEVIATIONS, [-100 * g for _, g in pairs], "o-", color=colour, label=f"offset {offset}")
    for ax, title in zip(axes[0], ("relative error of O", "O is too short by, %"), strict=True):
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_xlabel("standard deviation of the scores")
        ax.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
