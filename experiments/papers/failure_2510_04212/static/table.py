"""The claims of arXiv 2510.04212 that need no failing run.

They concern bits, the closed form, ties, the clamp, the order of production kernels, and the sums
of P.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from roundscope.experiments.framework.study import Progress, Static
from roundscope.experiments.framework.verdicts import Verdict
from roundscope.experiments.papers.failure_2510_04212.static import bits as static_bits
from roundscope.experiments.papers.failure_2510_04212.static import clamp as static_clamp
from roundscope.experiments.papers.failure_2510_04212.static import (
    clamp_picture as static_clamp_picture,
)
from roundscope.experiments.papers.failure_2510_04212.static import closed as static_closed
from roundscope.experiments.papers.failure_2510_04212.static import (
    closed_claims as static_closed_claims,
)
from roundscope.experiments.papers.failure_2510_04212.static import order as static_order
from roundscope.experiments.papers.failure_2510_04212.static import shifts as static_shifts
from roundscope.experiments.papers.failure_2510_04212.static import sums as static_sums
from roundscope.experiments.papers.failure_2510_04212.static import ties as static_ties
from roundscope.experiments.papers.failure_2510_04212.static import (
    ties_claims as static_ties_claims,
)

PARTS = 6  # closed form, ties, production order, rows of dS, clamp, tied rows of trainings
WORDS = (
    (
        "Is half an ulp of V the bias, for any number of terms and any format?",
        (
            "One rounding of k products with weight 1 and a small residual. Marks: means over"
            " random V in [1, 2) with 95 % intervals; lines: formula. Weights of 1/2 bias the sum"
            " as weights of 1 do; random weights do not, except with the short significands of FP8."
        ),
    ),
    (
        "How often are several P of a row 1, and what follows?",
        (
            "Left: real tensors; with FP32 scores every format stands on the line, so the window"
            " decides; BF16 scores tie by themselves. Right: P V is biased in tied rows where V has"
            " one sign and a small residual survives (E4M3 loses it), and not in the real tensors."
        ),
    ),
    (
        "Does the error of the output follow the sign of V in production kernels too?",
        (
            "V < 0 throughout. Rounded before normalization, the output errs below zero whatever"
            " the small term is, as the paper says. Normalised and rounded once, the sign is that"
            " of the small term's V minus the others'. Dotted: a quarter of an ulp."
        ),
    ),
    (
        "What does the clamp of the released repair do to tied rows?",
        (
            "Left: past a shift of 23 the row sum is the clamp, and the row fades out. Right: at"
            " beta = 7 tied rows of real tensors are past it, at beta = 2 none; where scores are"
            " near 0 the shift is too small to move P off 1."
        ),
    ),
    (
        "Does a row of P sum to 1 in the backward, and a row of dS to 0?",
        (
            "MiniLM. Scores that are BF16 in the forward and not the same in the backward leave P"
            " with another sum. Right, by the operand of delta: P dP repairs dS only where P sums"
            " to 1; P dP / rowsum P (CENTRED) does in any case."
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything that is measured, part by part."""

    closed: list[static_closed.Line]
    inputs: list[static_ties.Input]
    ties: static_ties_claims.Found
    order: static_order.Order
    sums: static_sums.Sums
    clamp: list[static_clamp.Outcome]
    shifts: list[static_shifts.Tied]


def static(progress: Progress = lambda done: None) -> Static:
    """Return every verdict in the order of the paper, and a picture of each part.

    `progress` is told how many of PARTS are done.
    """
    m = _measured(progress)
    return Static(
        verdicts=_judged(m), title="Without training: bits, ties, the clamp", figures=_pictures(m)
    )


def _judged(m: Measured) -> list[Verdict]:
    return [
        *static_bits.judged(),
        *static_closed_claims.judged(m.closed),
        *static_ties_claims.judged(m.ties),
        *static_order.judged(m.order),
        *static_clamp.judged(m.clamp),
        *static_shifts.judged(m.shifts),
        *static_sums.judged(m.sums),
    ]


def _pictures(m: Measured) -> list[tuple[str, Figure, str]]:
    figures = (
        static_closed_claims.picture(m.closed),
        static_ties_claims.picture(m.inputs, m.ties),
        static_order.picture(m.order),
        static_clamp_picture.picture(m.shifts),
        static_sums.picture(m.sums),
    )
    return [
        (question, figure, caption)
        for (question, caption), figure in zip(WORDS, figures, strict=True)
    ]


def _measured(progress: Progress) -> Measured:
    done = itertools.count()

    def go(work: Callable[..., Any], *given: Any) -> Any:
        progress(next(done))
        return work(*given)

    inputs = static_ties.inputs()
    return Measured(
        closed=go(static_closed.lines),
        inputs=inputs,
        ties=go(static_ties.measure, inputs),
        order=go(static_order.measure),
        sums=go(static_sums.measure),
        clamp=go(static_clamp.outcomes),
        shifts=go(static_shifts.measure),
    )
