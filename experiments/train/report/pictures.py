"""The pictures of a run: losses and gradient norms of all arms, drift and ||W_Q|| of every head.

Pictures of heads have the arms side by side.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from roundscope.experiments.train.report.data import Arm, Training
from roundscope.tools.report.pictures import COLOURS, INK, QUIET, UP, canvas

MARKS = {"spike": "^", "rise": "D", "stay": "D", "growth": "s", "not finite": "X", "drift": "o"}
COLUMNS, MOST = 3, 12  # panels in a row, and of one picture
LEAST = 1e-9  # drift below this is drawn there


def losses(t: Training) -> Figure:
    """Draw every arm's loss, and its alarms."""
    return _series(t, "loss", "loss, nats", lambda arm: arm.loss, log=None)


def norms(t: Training) -> Figure:
    """Draw every arm's gradient norm before clipping, and its alarms."""
    return _series(
        t, "gradient norm", "gradient norm, before clipping", lambda arm: arm.norm, log=True
    )


def drifts(t: Training) -> Figure | None:
    """Draw the drift of every head, with a panel for each arm; None if none was measured."""
    if not any(np.isfinite(arm.drift).any() for arm in t.arms):
        return None
    limit = t.config.get("drift_alarm")

    def one(ax: Axes) -> None:
        ax.set_yscale("log")
        if limit is not None:
            ax.axhline(
                limit,
                color=UP,
                lw=0.9,
                ls="--",
                label=f"threshold of all heads together, {limit:g}",
            )

    return _heads(t, "drift", lambda arm: np.maximum(arm.drift, LEAST), one)


def query_norms(t: Training) -> Figure | None:
    """Draw ||W_Q|| of every head, with a panel for each arm; None if none was measured."""
    if not any(arm.looks.size for arm in t.arms):
        return None
    return _heads(t, "||W_Q||", lambda arm: arm.w_q, lambda ax: None)


def _series(
    t: Training, series: str, label: str, of: Callable[[Arm], np.ndarray], log: bool | None
) -> Figure:
    figure, axes = canvas(3.5)
    ax, drawn = axes[0, 0], set[str]()
    for arm in t.arms:
        colour, y = COLOURS[t.groups.index(arm.group) % len(COLOURS)], of(arm)
        ax.plot(
            arm.step,
            y,
            color=colour,
            lw=0.9,
            alpha=0.85,
            label=None if arm.group in drawn else arm.group,
        )
        drawn.add(arm.group)
        _alarms(ax, arm, y, series, colour)
    finite = np.concatenate([of(arm)[np.isfinite(of(arm)) & (of(arm) > 0.0)] for arm in t.arms])
    if log or (log is None and finite.size and finite.max() > 8.0 * finite.min()):
        _logarithmic(ax)
    ax.set_xlabel("step")
    ax.set_ylabel(label)
    _legend(figure, ax, _marks(t, series))
    return figure


def _alarms(ax: Axes, arm: Arm, y: np.ndarray, series: str, colour: str) -> None:
    """Draw a mark at every alarm of the series, at the last finite value where there is none."""
    for alarm in arm.alarms:
        if alarm["series"] == series:
            before = np.flatnonzero(np.isfinite(y) & (arm.step <= alarm["step"]))
            if before.size:
                place = alarm["step"], y[before[-1]]
                ax.plot(
                    *place, MARKS[alarm["kind"]], color=colour, mec=INK, mew=0.8, ms=7, zorder=5
                )


def _marks(t: Training, series: str) -> list[str]:
    """Return the kinds of alarms that are drawn."""
    there = {a["kind"] for arm in t.arms for a in arm.alarms if a["series"] == series}
    return [kind for kind in MARKS if kind in there]


def _heads(
    t: Training, label: str, of: Callable[[Arm], np.ndarray], prepare: Callable[[Axes], None]
) -> Figure:
    arms = t.arms[:MOST]
    columns = min(COLUMNS, len(arms))
    rows = -(-len(arms) // columns)
    figure, axes = canvas(0.8 + 2.3 * rows, rows, columns, sharex=True, sharey=True)
    for i, ax in enumerate(axes.flat):
        if i >= len(arms):
            ax.set_visible(False)
            continue
        prepare(ax)
        _of_heads(ax, arms[i], of(arms[i]))
        ax.set_title(arms[i].name, fontsize=9.5, loc="left", color=INK)
        if i % columns == 0:
            ax.set_ylabel(label)
        if i + columns >= len(arms):
            ax.set_xlabel("step")
            ax.tick_params(labelbottom=True)
    _legend(figure, axes.flat[0], [])
    return figure


def _of_heads(ax: Axes, arm: Arm, y: np.ndarray) -> None:
    """Draw a line for each head, in one color for each layer."""
    for layer, head in np.ndindex(y.shape[1:]):
        name = f"layer {layer}" if head == 0 else None
        ax.plot(
            arm.looks,
            y[:, layer, head],
            ".-",
            ms=3,
            lw=0.9,
            color=COLOURS[layer % len(COLOURS)],
            alpha=0.85,
            label=name,
        )


def _logarithmic(ax: Axes) -> None:
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if high < 100.0 * low else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, ax: Axes, marks: list[str]) -> None:
    handles, labels = ax.get_legend_handles_labels()
    for kind in marks:
        handles += ax.plot([], [], MARKS[kind], color=QUIET, mec=INK, mew=0.8, ms=7)
        labels.append(f"alarm: {kind}")
    options: dict[str, Any] = {
        "loc": "outside upper left",
        "ncols": 5,
        "fontsize": 8.5,
        "frameon": False,
    }
    figure.legend(handles, labels, **options)
