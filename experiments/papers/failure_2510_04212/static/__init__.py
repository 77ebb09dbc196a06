"""The claims of arXiv 2510.04212 that need no failing run.

They concern bits, the closed form, ties, the clamp, the order of production kernels, and the sums
of P.
"""

import itertools
from collections.abc import Callable
from typing import TypeVar

from roundscope.experiments.framework.study import Progress, Static
from roundscope.experiments.papers.failure_2510_04212.static import bias, clamp, gate, ties

T = TypeVar("T")
PARTS = 7  # closed form, ties, production order, rows of dS, clamp, tied rows, the gate
WORDS = (
    (
        "Is half an ulp of V the bias, for any number of terms and any format?",
        "One rounding of k products with weight 1 and a small residual. Marks: means over"
        " random V in [1, 2) with 95 % intervals; lines: formula. Weights of 1/2 bias the sum"
        " as weights of 1 do; random weights do not, except with the short significands of FP8.",
    ),
    (
        "How often are several P of a row 1, and what follows?",
        "Left: real tensors; with FP32 scores every format stands on the line, so the window"
        " decides; BF16 scores tie by themselves. Right: P V is biased in tied rows where V has"
        " one sign and a small residual survives (E4M3 loses it), and not in the real tensors.",
    ),
    (
        "Does the error of the output follow the sign of V in production kernels too?",
        "V < 0 throughout. Rounded before normalization, the output errs below zero whatever"
        " the small term is, as the paper says. Normalised and rounded once, the sign is that"
        " of the small term's V minus the others'. Dotted: a quarter of an ulp.",
    ),
    (
        "What does the clamp of the released repair do to tied rows?",
        "Left: past a shift of 23 the row sum is the clamp, and the row fades out. Right: at"
        " beta = 7 tied rows of real tensors are past it, at beta = 2 none; where scores are"
        " near 0 the shift is too small to move P off 1.",
    ),
    (
        "Does a row of P sum to 1 in the backward, and a row of dS to 0?",
        "MiniLM. Scores that are BF16 in the forward and not the same in the backward leave P"
        " with another sum. Right, by the operand of delta: P dP repairs dS only where P sums"
        " to 1; P dP / rowsum P (CENTRED) does in any case.",
    ),
)


def static(progress: Progress = lambda done: None) -> Static:
    """Return every verdict and a picture of each part; `progress` is told how many are done."""
    done = itertools.count()

    def part(measure: Callable[[], T]) -> T:
        progress(next(done))
        return measure()

    inputs = ties.inputs()
    closed, tied = part(bias.measure), part(lambda: ties.measure(inputs))
    ordered, summed = part(bias.measure_order), part(ties.measure_sums)
    clamped, shifted, gated = part(clamp.outcomes), part(clamp.tied), part(gate.measure)
    figures = (
        bias.picture(closed),
        ties.picture(inputs, tied),
        bias.picture_order(ordered),
        clamp.picture(shifted),
        ties.picture_sums(summed),
    )
    return Static(
        verdicts=[
            *bias.example(),
            *bias.judged(closed),
            *ties.judged(tied),
            *bias.judged_order(ordered),
            *clamp.judged(clamped),
            *clamp.judged_shifts(shifted),
            *gate.judged(gated),
            *ties.judged_sums(summed),
        ],
        title="Without training: bits, ties, the clamp",
        figures=[
            (question, figure, caption)
            for (question, caption), figure in zip(WORDS, figures, strict=True)
        ],
    )
