"""The log of a watched training: one line of JSON for each look.

Lines are appended, each by one write, so that a run that crashes loses none that were written. A
line that a crash cut in two is cut off before the next one is written, and not read.

    {"watch": 1, "step": 300, "share": 0.021, "threshold": 0.01, "alarm": {...} or null, "layers":
     [{"name": "blocks.0", "number": 0, "share": 0.02, "heads": [0, 3], "drift": [...], ...}, ...]}

Numbers that are not finite are null.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundscope.attention.models.alarm import Alarm, share_of
from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.selection import Layer
from roundscope.emu.plain_data import COUNT, misfit, parsed

VERSION = 1
_NUMBER = (float, None)
SHAPE = {  # of a line's data
    "watch": int,
    "step": int,
    "share": _NUMBER,
    "threshold": _NUMBER,
    "alarm": (None, {"share": float, "layer": COUNT, "name": str, "head": COUNT}),
    "layers": [
        {"name": str, "number": COUNT, "share": _NUMBER, "heads": [COUNT]}
        | {name: [_NUMBER] for name in HeadNumbers._fields}
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLook:
    """The numbers of one layer at one look.

    Attributes:
        layer: The layer.
        share: The share of its drift over all looks so far, this one included.
        heads: The heads that were looked at.
        numbers: Their numbers, lists with one number for each of these heads.
    """

    layer: Layer
    share: float
    heads: tuple[int, ...]
    numbers: HeadNumbers

    @property
    def now(self) -> float:
        """The share of its drift at this look alone; NaN where a number of it is not finite."""
        return share_of(self.numbers.drift, self.numbers.gradient)

    @property
    def lost(self) -> tuple[int, ...]:
        """The heads whose drift, gradient or row sums are not finite."""
        own = zip(self.heads, *self.numbers[:3], strict=True)  # drift, gradient, row_sums
        return tuple(head for head, *x in own if not all(map(math.isfinite, x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a training.

    Attributes:
        step: The step, as whoever looked counts steps.
        share: The share of the drift over all looks so far, this one included.
        threshold: The share above which there is an alarm; None for none.
        alarm: The alarm, if it began at this look.
        layers: The layers that were looked at.
    """

    step: int
    share: float
    threshold: float | None
    alarm: Alarm | None
    layers: tuple[LayerLook, ...]

    @property
    def now(self) -> float:
        """The share of the drift at this look alone; NaN where a number of it is not finite."""
        drift, gradient = (
            [x for own in self.layers for x in getattr(own.numbers, name)]
            for name in ("drift", "gradient")
        )
        return share_of(drift, gradient)

    @property
    def lost(self) -> tuple[tuple[Layer, int], ...]:
        """The layers and heads whose drift, gradient or row sums are not finite."""
        return tuple((own.layer, head) for own in self.layers for head in own.lost)

    @property
    def is_quiet(self) -> bool:
        """Whether the drift of this look alone is finite, and not above the threshold."""
        return not self.lost and (self.threshold is None or not self.now > self.threshold)


def over_since(looks: Sequence[Look]) -> int | None:
    """Return the step from which on an alarm is over: every look from there is quiet.

    A look that is not finite says nothing: it neither ends an alarm nor makes it go on.

    Args:
        looks: The looks of one training, in their order.

    Returns:
        The step of the first of these looks; None if there was no alarm, or it is not over.
    """
    began = next((i for i, look in enumerate(looks) if look.alarm is not None), len(looks))
    told = [i for i, look in enumerate(looks) if i >= began and not look.lost]
    last = max((i for i in told if i == began or not looks[i].is_quiet), default=began)
    return next((looks[i].step for i in told if i > last), None)


def append(path: str | Path, look: Look) -> None:
    """Write a look behind those of a log, which is created if there is none.

    Raises:
        OSError: The file cannot be written.
    """
    line = json.dumps(_plain(look), allow_nan=False, separators=(",", ":")) + "\n"
    with open(path, "ab+") as file:
        _cut_torn_line(file)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read(path: str | Path) -> list[Look]:
    """Return the looks of a log, in the order of the file.

    Raises:
        ValueError: The file is no such log, or has no look yet; the message names the line.
        OSError: The file cannot be read.
    """
    if Path(path).exists() and not Path(path).is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{path}: no ordinary file; give the log that `watch(log=...)` wrote")
    try:
        text = Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: no text; give the log that `watch(log=...)` wrote") from None
    whole = text[: text.rfind("\n") + 1] or text
    looks = [_look(path, n, line) for n, line in enumerate(whole.splitlines(), 1)]
    if not looks:
        raise ValueError(f"{path}: empty; `watch` writes a line at its first look")
    return looks


def _cut_torn_line(file: Any) -> None:
    """Cut off what stands behind the last newline of a file."""
    size = file.seek(0, os.SEEK_END)
    tail, at = b"", size
    while at and b"\n" not in tail:
        at = max(0, at - 65536)
        file.seek(at)
        tail = file.read(size - at)
    end = at + tail.rfind(b"\n") + 1
    if end < size:
        file.truncate(end)


def _plain(look: Look) -> dict[str, Any]:
    alarm = look.alarm
    return {
        "watch": VERSION,
        "step": look.step,
        "share": _finite(look.share),
        "threshold": look.threshold,
        "alarm": alarm
        and {
            "share": alarm.share,
            "layer": alarm.layer.number,
            "name": alarm.layer.name,
            "head": alarm.head,
        },
        "layers": [
            {
                "name": own.layer.name,
                "number": own.layer.number,
                "share": _finite(own.share),
                "heads": list(own.heads),
            }
            | {n: [_finite(x) for x in xs] for n, xs in own.numbers._asdict().items()}
            for own in look.layers
        ],
    }


def _look(path: str | Path, number: int, line: str) -> Look:
    try:
        found = parsed(line)
        version = found["watch"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path}: line {number} is no look; give the log that `watch(log=...)` wrote"
        ) from None
    if version != VERSION:
        raise ValueError(
            f"{path}: line {number} has version {version!r}, this is version {VERSION}; read it"
            " with the Roundscope that wrote it"
        )
    amiss = misfit(found, SHAPE)
    for own in found["layers"] if amiss is None else ():
        if any(len(own[n]) != len(own["heads"]) for n in HeadNumbers._fields):
            amiss = f"layer {own['number']} has not a number for each head"
    if amiss:
        raise ValueError(
            f"{path}: line {number} is spoiled: {amiss}; delete the line, or restore the log"
        )
    alarm, threshold = found["alarm"], found["threshold"]
    return Look(
        step=int(found["step"]),
        share=_number(found["share"]),
        threshold=threshold,
        alarm=alarm
        and Alarm(
            step=int(found["step"]),
            share=_number(alarm["share"]),
            threshold=threshold,
            layer=Layer(name=alarm["name"], number=alarm["layer"]),
            head=alarm["head"],
        ),
        layers=tuple(
            LayerLook(
                layer=Layer(name=own["name"], number=own["number"]),
                share=_number(own["share"]),
                heads=tuple(own["heads"]),
                numbers=HeadNumbers(*([_number(x) for x in own[n]] for n in HeadNumbers._fields)),
            )
            for own in found["layers"]
        ),
    )


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _number(x: float | None) -> float:
    return math.nan if x is None else float(x)
