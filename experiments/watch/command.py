"""`roundscope watch LOG`: reads the log of a watched training, prints it and draws it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.attention.models import log
from roundscope.attention.models.log import Look
from roundscope.experiments.report.terminal import console, print_json

WORST = 5  # layers that are listed


def run(path: Path, *, out: Path | None, as_json: bool) -> None:
    """Print what a log holds, and draw it into a PNG file.

    Args:
        path: The log that `watch(log=...)` wrote.
        out: The picture; by default it lies beside the log.
        as_json: Print numbers in the place of text.

    Raises:
        ValueError: The file is no such log.
        OSError: A file cannot be read or written.
    """
    looks = last_course(log.read(path))
    picture = out if out is not None else path.with_suffix(".png")
    if picture.suffix.lower() != ".png":
        raise ValueError(f"--out={picture}: the picture is a PNG file, such as watch.png")
    if picture == path:
        raise ValueError(f"--out={picture}: is the log itself; name another file")
    from roundscope.experiments.report.pictures import png
    from roundscope.experiments.watch.picture import draw

    picture.write_bytes(png(draw(looks)))
    if as_json:
        print_json(numbers(looks) | {"picture": str(picture)})
    else:
        console().print("\n".join([*lines(looks), f"drawn in {picture}"]), markup=False)


def last_course(looks: Sequence[Look]) -> list[Look]:
    """Return the looks of the training as it went on, its steps in order.

    Where the steps of a log go back the training was resumed: earlier looks from there on are left
    out.
    """
    kept: list[Look] = []
    for look in looks:
        while kept and kept[-1].step >= look.step:
            kept.pop()
        kept.append(look)
    return kept


def numbers(looks: Sequence[Look]) -> dict[str, Any]:
    """Return what is printed as JSON: the last look's numbers, and the shares of all."""
    last, alarm = looks[-1], alarm_of(looks)
    return {
        "looks": len(looks),
        "first_step": looks[0].step,
        "last_step": last.step,
        "share": last.share,
        "threshold": last.threshold,
        "alarm": alarm
        and {
            "step": alarm.step,
            "share": alarm.share,
            "layer": alarm.layer.number,
            "name": alarm.layer.name,
            "head": alarm.head,
        },
        "steps": [look.step for look in looks],
        "shares": [look.share for look in looks],
        "layers": [
            {"layer": own.layer.number, "name": own.layer.name, "share": own.share}
            for own in last.layers
        ],
    }


def lines(looks: Sequence[Look]) -> list[str]:
    """Return what is printed as text."""
    first, last, alarm = looks[0], looks[-1], alarm_of(looks)
    few = "look" if len(looks) == 1 else "looks"
    found = [
        f"{len(looks)} {few}, steps {first.step} to {last.step}",
        f"drift: {last.share:.2g} of the queries' gradient is made by rows of dS that do not sum"
        " to 0",
    ]
    if alarm is not None:
        found.append(f"alarm: {alarm}")
    elif last.threshold is None:
        found.append("alarm: there is no threshold")
    else:
        found.append(f"alarm: none (threshold {last.threshold:.2g})")
    by_share = sorted(last.layers, key=lambda own: -own.share if math.isfinite(own.share) else 1.0)
    found += [f"layer {own.layer.number} ({own.layer.name}): {own.share:.2g}"
              for own in by_share[:WORST]]  # fmt: skip
    if len(by_share) > WORST:
        found.append(f"and {len(by_share) - WORST} layers with less")
    return found


def alarm_of(looks: Sequence[Look]) -> Any:
    """Return the first alarm of a training, or None."""
    return next((look.alarm for look in looks if look.alarm is not None), None)
