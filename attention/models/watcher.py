"""What every library's `watch` does with the numbers of a look: shares, alarm, log, a flat dict."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention.models import log as logs
from roundscope.attention.models.alarm import THRESHOLD, Alarm, Gains, Shares
from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.log import LayerLook, Look
from roundscope.attention.models.selection import Layer
from roundscope.emu.shown import shown
from roundscope.emu.whole_files import path_given


class Watcher:
    """Follows the looks at one training.

    Attributes:
        alarm: The `Alarm`, or None so far.
        log: The path of the log, or None.
    """

    def __init__(
        self,
        *,
        threshold: float | None = THRESHOLD,
        log: str | Path | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> None:
        """Begin to follow a training; the arguments are those of `watch`."""
        self._shares, self._on_alarm, self.log = Shares(threshold), on_alarm, log
        self._gains = None if threshold is None else Gains()
        self._is_on = False
        if on_alarm is not None and not callable(on_alarm):
            raise TypeError(f"on_alarm={shown(on_alarm)}: give a function of an Alarm, or None")
        if log is not None:
            # a wrong path is told now, and not at the first look
            file = path_given("log", log, "watch.jsonl")
            if not file.absolute().parent.is_dir():
                raise ValueError(
                    f"log={shown(str(log))}: there is no folder {file.parent}; make it first"
                )
            with open(file, "ab"):
                pass

    @property
    def alarm(self) -> Alarm | None:
        return self._shares.alarm

    def look(
        self, step: int, numbers: Mapping[Layer, tuple[Sequence[int], HeadNumbers]]
    ) -> dict[str, float]:
        """Take a look in, and return its numbers, flat.

        Args:
            step: The step.
            numbers: Layer -> the heads that were looked at, and their numbers, (heads,) each, as
                arrays of NumPy.

        Returns:
            Name -> number, as loggers take it. "attention/not_finite" is how many heads have
            numbers that are not finite at this look. "attention/drift" is the share of the drift
            at this look, over heads and layers. "attention/drift_history" is that over all looks
            so far, a look counting 0.9 times the next one, which the threshold is for.
            "attention/layers.3/drift" and so on are those of a layer. "row_sums", "several_ones"
            and "gain" are means over heads, "bias" is that of the head where it is largest in
            size. "attention/alarm" is 1 from the alarm on, but 0 at a look whose own drift is
            not above the threshold, and 0 before; a look that is not finite leaves it as it was.
            "attention/gain_alarm" is 1 from the alarm of the gain on.
            Numbers that are not finite are NaN.
        """
        plain = {layer: HeadNumbers(*map(_list, own)) for layer, (_, own) in numbers.items()}
        begun = self._shares.update(
            step,
            {layer: own.drift for layer, own in plain.items()},
            {layer: own.gradient for layer, own in plain.items()},
        )
        shares = self._shares.layers()
        look = Look(
            step=step,
            share=self._shares.share(),
            threshold=self._shares.threshold,
            alarm=begun,
            layers=tuple(
                LayerLook(
                    layer=layer,
                    share=shares.get(layer, math.nan),
                    heads=tuple(int(n) for n in numbers[layer][0]),
                    numbers=own,
                )
                for layer, own in plain.items()
            ),
        )
        if self.log is not None:
            logs.append(self.log, look)
        gains = {layer: own.gain for layer, own in plain.items()}
        long = None if self._gains is None else self._gains.update(step, gains)
        for alarm in filter(None, (begun, long)):
            if self._on_alarm is not None:
                self._on_alarm(alarm)
            else:
                print(f"roundscope: {alarm}", file=sys.stderr, flush=True)
        if not look.lost:
            self._is_on = self.alarm is not None and not (begun is None and look.is_quiet)
        is_long = self._gains is not None and self._gains.alarm is not None
        return flat(look) | {
            "attention/alarm": float(self._is_on),
            "attention/gain_alarm": float(is_long),
        }


def flat(look: Look) -> dict[str, float]:
    """Return the numbers of a look, name -> number (see `Watcher.look`)."""
    found = _shares("attention", look) | _means("attention", [x.numbers for x in look.layers])
    for own in look.layers:
        name = f"attention/layers.{own.layer.number}"
        found |= _shares(name, own) | _means(name, [own.numbers])
    return found


def _shares(name: str, look: Look | LayerLook) -> dict[str, float]:
    """Return what is lost of a look, or of one layer of it, its drift and that of all looks."""
    return {
        f"{name}/not_finite": float(len(look.lost)),
        f"{name}/drift": look.now,
        f"{name}/drift_history": look.share,
    }


def _means(name: str, numbers: Sequence[HeadNumbers]) -> dict[str, float]:

    def of(which: str) -> list[float]:
        return [x for own in numbers for x in getattr(own, which)]

    means = {
        f"{name}/{which}": sum(of(which)) / max(len(of(which)), 1)
        for which in ("row_sums", "several_ones", "gain")
    }
    biases = of("bias")
    most = math.nan if any(map(math.isnan, biases)) else max(biases, key=abs, default=math.nan)
    return means | {f"{name}/bias": most}


def _list(x: Any) -> list[float]:
    return [float(y) if math.isfinite(y) else math.nan for y in np.asarray(x, np.float64)]
