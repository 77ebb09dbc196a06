"""The clamp of the released repair as a picture: what it leaves of a tied row.

It also shows where tied rows are.
"""

import numpy as np
from matplotlib.figure import Figure

from roundscope.experiments.papers.failure_2510_04212.static.clamp import LIMIT, left_of
from roundscope.experiments.papers.failure_2510_04212.static.released import released, softmax
from roundscope.experiments.papers.failure_2510_04212.static.shifts import BETAS, WINDOW, Tied
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, QUIET, UP, canvas

ROWS, BUCKET = 32, 16
SHIFTS = np.arange(2.0, 41.0, 2.0)
LEAST = 1e-4  # the lower end of the right axis, at which smaller shifts are drawn


def left_over(shift: float, beta: float) -> float:
    """Return |out| / |softmax| of tied rows that the released repair moves by `shift`.

    It is computed with a small call in two tiles.
    """
    rng = np.random.Generator(np.random.Philox(key=3))
    s, v = np.full((ROWS, ROWS), -60.0), rng.standard_normal((ROWS, 4))
    s[:, :2] = shift / (beta - 1.0)
    run, exact = released(s, v, beta=beta, bucket=BUCKET), softmax(s, v)
    return float(np.median(np.linalg.norm(run.out[2:], axis=1) / np.linalg.norm(exact[2:], axis=1)))


def picture(found: list[Tied]) -> Figure:
    """Draw the output of a tied row against its shift, and the shifts of tied rows.

    The latter are those of real tensors and of trainings.
    """
    figure, ((left, right),) = canvas(3.5, 1, 2)
    line = np.linspace(0.0, 42.0, 400)
    left.plot(line, left_of(line), color=QUIET, lw=1.4, label="formula")
    for beta, colour, marker in zip(BETAS, COLOURS, MARKERS, strict=False):
        # the markers of one beta are drawn within those of the other
        look = {"ms": 8.0, "mfc": "white"} if beta == BETAS[0] else {"ms": 4.0}
        left.plot(
            SHIFTS,
            [left_over(x, beta) for x in SHIFTS],
            marker,
            color=colour,
            label=f"released, beta = {beta:g}",
            **look,
        )
    left.axvline(LIMIT, color=UP, lw=1.0, ls=":")
    left.text(LIMIT + 0.7, 0.9, "ln 1e10", color=UP, fontsize=9)
    left.set_xlabel("shift of the maximum, (beta - 1) r_m")
    left.set_ylabel("part of the row's output that is left")
    left.legend(fontsize=8.5, frameon=False, loc="center left")
    found = [x for x in found if x.r_m.size]
    for i, x in enumerate(found):
        for n, (beta, colour, marker) in enumerate(zip(BETAS, COLOURS, MARKERS, strict=False)):
            low, middle, high = np.maximum(np.quantile(x.shift(beta), (0.05, 0.5, 0.95)), LEAST)
            right.errorbar(
                middle,
                i + 0.24 * n - 0.12,
                xerr=[[middle - low], [high - middle]],
                fmt=marker,
                color=colour,
                ms=4.5,
                capsize=2.5,
            )
    for at, words in ((WINDOW, "P rounds to 1"), (LIMIT, "clamp")):
        right.axvline(at, color=UP, lw=1.0, ls=":")
        right.text(
            at,
            1.02,
            words,
            color=UP,
            fontsize=8.5,
            ha="center",
            transform=right.get_xaxis_transform(),
        )
    right.set_xscale("log")
    right.set_xlim(LEAST, 300.0)
    right.set_yticks(
        range(len(found)), [f"{x.name}\n{x.share:.0%} tied" for x in found], fontsize=8, color=INK
    )
    right.invert_yaxis()
    right.set_xlabel("shift of tied rows: median, 5 % to 95 %; colours as left")
    return figure
