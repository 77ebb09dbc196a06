"""The pictures of the page, in their order; the first opens it."""

from roundscope.experiments.framework.study import Figure
from roundscope.experiments.papers.failure_2510_04212.figures import norms, rest, shares
from roundscope.experiments.train.spikes import RULE

FIGURES = (
    Figure(
        title="Which runs diverged?",
        draw=shares.opening,
        caption=f"Runs that diverged of how many, and their median step. {RULE}",
    ),
    Figure(
        title="Do rows of dS that do not sum to zero foretell the divergence?",
        draw=rest.drifts,
        caption=(
            "Each dot is a run, looked at in the steps after the warm-up, before anything has"
            " diverged. R = alpha sum_t r[t] X[t]^T (PK)[t] is what the sums r of the rows of dS"
            " put into the gradient of W_Q; in exact arithmetic it is 0."
        ),
    ),
    Figure(
        title="What grows first?",
        draw=norms.norms,
        caption="The largest spectral norm of a head's query matrix, a line for each seed.",
    ),
    Figure(
        title="Which rounding of O, and does the rest matter?",
        draw=shares.factorial,
        caption=(
            "O is rounded before its normalization (PV, AO, O), after (OUT), or both; S, "
            "SCALED, X (scores) and M, DM, L in BF16 or FP32."
        ),
    ),
    Figure(
        title="Does one head decide?",
        draw=shares.places,
        caption=(
            "Case A. Left: the O path is low in one head and FP32 in all others. Right: the"
            " reverse."
        ),
    ),
)
