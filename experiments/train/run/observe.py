"""The observations of a run as rows of its log."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.experiments.train.gpt.monitor import MEASURED, coherence
from roundscope.experiments.train.spikes import Alarm

Row = dict[str, Any]
Running = dict[tuple[str, int, int], tuple[float, float]]


def steps(
    names: Sequence[str], step: int, losses: np.ndarray, norms: np.ndarray, rates: np.ndarray
) -> list[Row]:
    """Return rows of `steps`, one per arm."""
    columns = zip(names, losses.tolist(), norms.tolist(), rates.tolist(), strict=True)
    return [
        {"arm": name, "step": step, "loss": loss, "gradient_norm": norm, "lr": lr}
        for name, loss, norm, lr in columns
    ]


def alarms(names: Sequence[str], found: Sequence[Alarm]) -> list[Row]:
    """Return rows of `alarms`."""
    return [
        {
            "arm": names[a.arm],
            "step": a.step,
            "series": a.series,
            "kind": a.kind,
            "value": a.value,
            "bound": a.limit,
        }
        for a in found
    ]


def heads(
    names: Sequence[str], step: int, found: dict[str, np.ndarray], running: Running
) -> list[Row]:
    """Return rows of `heads`, one per arm, layer and head; the sums in `running` are updated."""
    rows = []
    for arm, layer, head in np.ndindex(found["w_q_norm"].shape):
        at = (arm, layer, head)
        row: Row = {"arm": names[arm], "step": step, "layer": layer, "head": head, "gaps": None}
        row |= {name: float(found[name][at]) if name in found else None for name in MEASURED}
        total = square = None
        if "gaps" in found:
            before = running.get((names[arm], layer, head), (0.0, 0.0))
            total, square = before[0] + row["delta_sum"], before[1] + row["delta_square"]
            running[names[arm], layer, head] = total, square
            row["gaps"] = str(found["gaps"][at].tolist())
        row |= {"coherence": _coherence(row["delta_sum"], row["delta_square"])}
        rows.append(row | {"running_sum": total, "running_coherence": _coherence(total, square)})
    return rows


def sites(
    names: Sequence[str], step: int, found: Sequence[dict[str, tuple[float, float]]]
) -> list[Row]:
    """Return rows of `sites`, one per arm and event."""
    return [
        {"arm": name, "step": step, "site": site, "mean_ulps": mean, "mean_abs_ulps": absolute}
        for name, events in zip(names, found, strict=True)
        for site, (mean, absolute) in events.items()
    ]


def _coherence(total: float | None, square: float | None) -> float | None:
    return None if total is None or square is None else float(coherence(total, square))
