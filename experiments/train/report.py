"""The report of a run: a summary, the pictures, the arms, the alarms, and how all is measured."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roundscope.attention.models.alarm import LOOKS
from roundscope.experiments.train import record
from roundscope.experiments.train.config import JAX
from roundscope.experiments.train.record import Arm, Training, training
from roundscope.experiments.train.spikes import GROWTH, RECENT, RULE
from roundscope.experiments.train.spikes import IN_A_ROW as SPIKE
from roundscope.tools.report.html import page
from roundscope.tools.report.model import (
    Code,
    Folded,
    Mood,
    Opening,
    Part,
    Picture,
    Report,
    Section,
    Table,
    Text,
    notes,
)
from roundscope.tools.report.pictures import COLOURS, INK, QUIET, UP, canvas, logarithmic
from roundscope.tools.report.wording import listed
from roundscope.tools.results.folder import write_page

LISTED = 200  # alarms in the table
SAID = 4  # arms that a sentence names


def folder_of(path: Path) -> Path | None:
    """Return the folder of a run, given the folder itself or its log; None for anything else."""
    folder = path if path.is_dir() else path.parent
    is_named = path.is_dir() or path.name == record.NAME
    return folder if is_named and record.is_log(folder / record.NAME) else None


def write(folder: Path, out: Path | None = None) -> Path:
    """Write RUN/report.html, or `out`, and return its path. Raises UsageError, StorageError."""
    out = folder / "report.html" if out is None else out
    write_page(out, page(report(training(folder))), "Roundscope: Training run")
    return out


def report(t: Training) -> Report:
    """Return the report of a run."""
    last = max(int(arm.step[-1]) for arm in t.arms) + 1
    config = "  ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in t.config.items()
    )
    began = f"begun {t.about['began']}, {t.about['device']}"
    return Report(
        title=f"Training run {t.folder.resolve().name}",
        about=f"{last} of {t.config['steps']} steps; {began}",
        opening=_opening(t, last),
        parts=[
            Folded("How to read this page: divergence, growth and drift", _how(t)),
            *_pictures(t),
            Section("Arms", [_arms(t)]),
            Section("Alarms", _alarms(t)),
            Section("Config", [Code(config)]),
        ],
    )


def sentence(t: Training) -> str:
    """Return which arms diverged, and which of the others have an alarm."""
    if len(t.arms) == 1:
        return _of_one(t.arms[0])
    diverged = [f"{arm.name} at step {arm.diverged}" for arm in t.arms if arm.diverged is not None]
    warned = [arm.name for arm in t.arms if arm.diverged is None and arm.alarms]
    calm = [arm.name for arm in t.arms if not arm.alarms]
    parts = [f"Diverged: {_some(diverged)}." if diverged else "No arm has diverged."]
    if warned:
        parts.append(f"With alarms, and not diverged: {_some(warned)}.")
    if calm:
        parts.append(f"Without any alarm: {_some(calm)}.")
    return " ".join(parts)


def _of_one(arm: Arm) -> str:
    if arm.diverged is not None:
        return f"The run diverged at step {arm.diverged}."
    if not arm.alarms:
        return "The run has not diverged, and had no alarm."
    said = [f"{a['kind']} of {a['series']} at step {a['step']}" for a in arm.alarms]
    return f"The run has not diverged, but had alarms: {_some(said)}."


def _opening(t: Training, last: int) -> Opening:
    bad, several = any(arm.diverged is not None for arm in t.arms), len(t.arms) > 1
    losses = [f"{f'{arm.name} ' if several else ''}{_number(arm.loss[-1])}" for arm in t.arms]
    numbers = f"Last loss: {_some(losses)}."
    worst = max(t.arms, key=lambda arm: -1.0 if math.isnan(arm.worst[2]) else arm.worst[2])
    layer, head, drift = worst.worst
    if not math.isnan(drift):
        numbers += (
            " Largest drift, the share of the gradient of W_Q that rounding alone makes:"
            f" {drift:.2g} ({f'{worst.name}, ' if several else ''}layer {layer}, head {head})"
            f"{'' if worst.looks.size > 1 else f', measured once, at step {worst.looks[0]}'}."
        )
    calm = not any(arm.alarms for arm in t.arms)
    mood: Mood = "bad" if bad else "good" if calm else ""
    why, command = "Next, the rest of the run", f"roundscope train --resume {t.folder}"
    if not calm and t.config["plan"] != JAX:
        why, command = "Next, the roundings behind it", f"roundscope diagnose {t.folder}"
    elif last >= t.config["steps"]:
        command = ""
    return Opening(sentence(t), numbers, command, why, mood)


def _some(names: Sequence[str]) -> str:
    """Return "a, b and 3 more"; the table of arms lists all."""
    return listed([*names[:SAID], f"{len(names) - SAID} more"] if len(names) > SAID + 1 else names)


def _pictures(t: Training) -> list[Picture]:
    many = f" The first {MOST} of {len(t.arms)} arms are shown." if len(t.arms) > MOST else ""
    seeds = " Seeds of an arm share its color." if len(t.groups) < len(t.arms) else ""
    drift = (
        "A line for each head, colored by layer: the share of the gradient of W_Q that comes from"
        " rows of dS that do not sum to zero. In exact arithmetic it is 0; values below"
        f" {LEAST:g} are drawn there.{many}"
    )
    loss = f"Every step's loss on its own batch.{seeds}"
    norm = f"The norm of all gradients at every step, before clipping.{seeds}"
    query = f"Spectral norm of every head's W_Q, colored by layer.{many}"
    found = [
        Picture("Does the loss fall?", losses(t), loss),
        Picture("Does the gradient keep its size?", norms(t), norm),
        Picture("Does rounding alone push W_Q?", drifts(t), drift),
        Picture("Does W_Q grow?", query_norms(t), query),
    ]
    return [picture for picture in found if picture.figure is not None]


def _arms(t: Training) -> Table:
    rows = []
    for arm in t.arms:
        layer, head, drift = arm.worst
        row = {
            "arm": arm.name,
            "changes": "?" if arm.changes is None else "; ".join(arm.changes) or "none",
            "peak\nlr": f"{arm.lr:g}",
            "last\nloss": _number(arm.loss[-1]),
            "last gradient\nnorm": _number(arm.norm[-1]),
            "diverged\nat step": "" if arm.diverged is None else str(arm.diverged),
            "largest\ndrift": "" if math.isnan(drift) else f"{drift:.2g}",
            "in layer,\nhead": "" if math.isnan(drift) else f"{layer}, {head}",
        }
        rows.append(row)
    cells = [list(row.values()) for row in rows]
    return Table(list(rows[0]), cells, [arm.diverged is not None for arm in t.arms])


def _number(x: float) -> str:
    return f"{x:.4g}" if math.isfinite(x) else "not finite"


def _alarms(t: Training) -> list[Part]:
    found = sorted(
        ((a, arm.name) for arm in t.arms for a in arm.alarms), key=lambda pair: pair[0]["step"]
    )
    if not found:
        return [Text("None.")]
    rows = []
    for a, name in found[:LISTED]:
        numbers = (_number(math.nan if a[k] is None else a[k]) for k in ("value", "bound"))
        rows.append([name, f"{a['kind']} of {a['series']}", str(a["step"]), *numbers])
    more = f"and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return [Table(("arm", "alarm", "step", "value", "limit"), rows), *notes(more)]


def _how(t: Training) -> list[Part]:
    limit = t.config.get("drift_alarm")
    above = "no threshold" if limit is None else f"{limit:g}"
    growth = (
        f"The median of the last {RECENT} norms is more than {GROWTH:g} times the lowest such"
        " median so far. It often comes long before the loss rises."
    )
    drift = (
        "This is a heuristic: of the gradient of W_Q, summed over heads and"
        f" monitored steps, more than {above} (drift_alarm) comes from rows of dS that do not"
        f" sum to zero, after at least {LOOKS} monitored steps. It is measured on one sequence"
        " of the batch. It says that rounding pushes W_Q in a direction that the loss did not"
        " ask for, not that the run will diverge. A head alone may be above the threshold"
        " without an alarm, where its gradient is small."
    )
    spike = f"{RULE} A spike is {SPIKE} losses in a row above that limit."
    return [
        Text(spike, "note", lead="Divergence."),
        Text(growth, "note", lead="Growth of the gradient norm."),
        Text(drift, "note", lead="Drift."),
    ]


MARKS = {"spike": "^", "rise": "D", "stay": "D", "growth": "s", "not finite": "X", "drift": "o"}
COLUMNS, MOST = 3, 12  # panels in a row, and of one picture
LEAST = 1e-9  # drift below this is drawn there


def losses(t: Training) -> Figure:
    """Draw every arm's loss, and its alarms."""
    return _series(t, "loss", "loss, nats", lambda arm: arm.loss, log=None)


def norms(t: Training) -> Figure:
    """Draw every arm's gradient norm before clipping, and its alarms."""
    label = "gradient norm, before clipping"
    return _series(t, "gradient norm", label, lambda arm: arm.norm, log=True)


def drifts(t: Training) -> Figure | None:
    """Draw the drift of every head, with a panel for each arm; None if it was measured once."""
    if not any(np.isfinite(arm.drift).any() and arm.looks.size > 1 for arm in t.arms):
        return None
    limit = t.config.get("drift_alarm")

    def one(ax: Axes) -> None:
        ax.set_yscale("log")
        if limit is not None:
            label = f"threshold of all heads together, {limit:g}"
            ax.axhline(limit, color=UP, lw=0.9, ls="--", label=label)

    return _heads(t, "drift", lambda arm: np.maximum(arm.drift, LEAST), one)


def query_norms(t: Training) -> Figure | None:
    """Draw ||W_Q|| of every head, with a panel for each arm; None if it was measured once."""
    if not any(arm.looks.size > 1 for arm in t.arms):
        return None
    return _heads(t, "||W_Q||", lambda arm: arm.w_q, lambda ax: None)


def _series(
    t: Training, series: str, label: str, of: Callable[[Arm], np.ndarray], log: bool | None
) -> Figure:
    figure, axes = canvas(3.5)
    ax, drawn = axes[0, 0], set[str]()
    for arm in t.arms:
        colour, y = COLOURS[t.groups.index(arm.group) % len(COLOURS)], of(arm)
        name = None if arm.group in drawn else arm.group
        ax.plot(arm.step, y, color=colour, lw=0.9, alpha=0.85, label=name)
        drawn.add(arm.group)
        for alarm in arm.alarms:  # at the last finite value, where there is none
            before = np.flatnonzero(np.isfinite(y) & (arm.step <= alarm["step"]))
            if alarm["series"] == series and before.size:
                place, mark = (alarm["step"], y[before[-1]]), MARKS[alarm["kind"]]
                ax.plot(*place, mark, color=colour, mec=INK, mew=0.8, ms=7, zorder=5)
    finite = np.concatenate([of(arm)[np.isfinite(of(arm)) & (of(arm) > 0.0)] for arm in t.arms])
    if log or (log is None and finite.size and finite.max() > 8.0 * finite.min()):
        logarithmic(ax.yaxis)
    ax.set_xlabel("step")
    ax.set_ylabel(label)
    there = {a["kind"] for arm in t.arms for a in arm.alarms if a["series"] == series}
    _legend(figure, ax, [kind for kind in MARKS if kind in there])
    return figure


def _heads(
    t: Training, label: str, of: Callable[[Arm], np.ndarray], prepare: Callable[[Axes], None]
) -> Figure:
    arms = t.arms[:MOST]
    columns = min(COLUMNS, len(arms))
    rows = -(-len(arms) // columns)
    figure, axes = canvas(0.8 + 2.3 * rows, rows, columns, sharex=True, sharey=True)
    for ax in axes.flat[len(arms) :]:
        ax.set_visible(False)
    for i, (ax, arm) in enumerate(zip(axes.flat, arms, strict=False)):
        prepare(ax)
        y = of(arm)
        for layer, head in np.ndindex(y.shape[1:]):
            style = {"color": COLOURS[layer % len(COLOURS)], "ms": 3, "lw": 0.9, "alpha": 0.85}
            name = f"layer {layer}" if head == 0 else None
            ax.plot(arm.looks, y[:, layer, head], ".-", label=name, **style)
        ax.set_title(arm.name, fontsize=9.5, loc="left", color=INK)
        if i % columns == 0:
            ax.set_ylabel(label)
        if i + columns >= len(arms):
            ax.set_xlabel("step")
            ax.tick_params(labelbottom=True)
    _legend(figure, axes.flat[0], [])
    return figure


def _legend(figure: Figure, ax: Axes, marks: list[str]) -> None:
    handles, labels = ax.get_legend_handles_labels()
    for kind in marks:
        handles += ax.plot([], [], MARKS[kind], color=QUIET, mec=INK, mew=0.8, ms=7)
        labels.append(f"alarm: {kind}")
    figure.legend(handles, labels, loc="outside upper left", ncols=5, fontsize=8.5, frameon=False)
