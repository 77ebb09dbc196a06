"""The picture: the bias of every model against K."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from roundscope.experiments.questions.tensor_cores.sums import MODELS, POSITIVE, SIGNED, Point
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas


def picture(points: Sequence[Point]) -> Figure:
    """Draw a panel for each kind of input; dots have 95 % intervals over seeds."""
    figure, axes = canvas(4.3, 1, 2, sharey=True)
    for ax, inputs in zip(axes[0], (POSITIVE, SIGNED), strict=True):
        for model, colour, marker in zip(MODELS, COLOURS, MARKERS, strict=False):
            own = [p for p in points if p.inputs == inputs and p.model == model.name]
            y, half = [p.lean.mean for p in own], [p.lean.high - p.lean.mean for p in own]
            ax.errorbar(
                [p.k for p in own],
                y,
                half,
                color=colour,
                marker=marker,
                ms=5,
                lw=1.3,
                capsize=2,
                label=model.name,
            )
        ax.axhline(0.0, color=INK, lw=0.8)
        ax.set_xscale("log", base=2)
        ax.set_yscale("symlog", linthresh=1.0, linscale=0.6)
        ax.set_xlabel("K, products in a sum")
        ax.set_title(inputs, fontsize=10, loc="left", color=INK)
    axes[0, 0].set_ylabel("mean error in u = 2^-24; below 0: toward zero")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    return figure
