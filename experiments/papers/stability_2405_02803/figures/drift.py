"""Fig. 7 and 8: the distance of paired trainings' weights along the run, with both bands."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import NullFormatter

from roundscope.experiments.framework.estimates import factor
from roundscope.experiments.framework.figures.series import COLOURS, QUIET, canvas
from roundscope.experiments.framework.study import Figure
from roundscope.experiments.papers.stability_2405_02803.claims.drift import METRICS
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import Scale

LINES = {  # pair -> (color, line, label)
    "weights": (QUIET, "-", "band: other first weights"),
    "precision": (COLOURS[3], "-", "band: FP16 against FP32"),
    "bf16": (COLOURS[4], "-", "BF16 against FP32"),
    "flash": (COLOURS[0], "-", "fa2-bf16 against unfused BF16"),
    "qiu-yao": (COLOURS[1], "--", "qiu-yao against unfused BF16"),
    "order": (COLOURS[2], ":", "FP32 in tiles against FP32"),
}


def drift(scale: Scale) -> Figure[Results]:
    """Return both metrics over steps: a thin line per seed, geometric means, intervals as bands."""
    c = scale.training.config
    return Figure(
        title="Fig. 7 and 8: do weights drift apart?",
        draw=partial(_drift, scale=scale),
        caption=(
            f"A byte-level GPT of {c.layers} layers and width {c.width}, trained twice from the "
            "same weights on the same batches; 'other first weights': on the same batches. Thin "
            "lines: seeds; thick: geometric mean; shaded: its 95 % t interval. FP16 rounds what "
            "the forward reads and writes, in linear layers and in unfused attention; gradients "
            "stay FP32, so that none is too small for FP16."
        ),
    )


def _drift(r: Results, scale: Scale) -> Picture:
    figure, (axes,) = canvas(4.4, 1, 2)
    steps = np.array(scale.training.steps)
    for ax, (metric, name) in zip(axes, METRICS.items(), strict=True):
        for pair, look in LINES.items():
            if pair in r.drifts:
                _pair(ax, r, pair, metric, steps, look)
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("steps")
        ax.set_xlim(0, steps[-1])
        ax.set_title(
            f"{name} of weights{' (mean over all)' if metric == 'wasserstein' else ''}",
            fontsize=9.5,
            loc="left",
        )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=3 if len(labels) > 4 else 2,
        fontsize=8.5,
        frameon=False,
    )
    return figure


def _pair(
    ax: Axes, r: Results, pair: str, metric: str, steps: np.ndarray, look: tuple[str, str, str]
) -> None:
    colour, line, label = look
    y = {seed: getattr(a, metric) for seed, a in r.drifts[pair].items()}
    for own in y.values():
        shown = own > 0
        ax.plot(steps[shown], own[shown], line, color=colour, lw=0.6, alpha=0.35)
    found = [factor({seed: float(own[k]) for seed, own in y.items()}) for k in range(len(steps))]
    ax.fill_between(
        steps, [e.low for e in found], [e.high for e in found], color=colour, alpha=0.1, lw=0
    )
    ax.plot(steps, [e.mean for e in found], line, color=colour, lw=1.8, label=label)
