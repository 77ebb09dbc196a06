"""The changes `offset=C:KIND[:all]` of a run: the error of the output that delta reads.

The error itself is in `experiments.train.gpt.offset`; here are the offsets per layer and head. They
are no edits of a plan: a format or a preset leaves them as they are. Where delta reads no output
(P_DP, CENTRED), there is nothing to offset.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundscope.emu.errors import unknown
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import OFFSET, Change, changes_of, places
from roundscope.experiments.train.gpt.offset import KINDS, Wrong, Wrongs, readable
from roundscope.experiments.train.gpt.plans import Plans
from roundscope.tools.errors import UsageError, bad

ALL = "all"
LARGEST = float(np.finfo(np.float32).max)


def wrongs_of(config: Config, texts: Sequence[str] = ()) -> Wrongs | None:
    """Return the offset of every layer and head, by config.changes, then texts.

    None if there is none. Raises UsageError naming the change and the repair. c = 0 is an offset
    too: it shares the executable of another c.
    """
    found: list[list[Wrong | None]] = [[None] * config.heads for _ in range(config.layers)]
    for text in (*config.changes, *texts):
        for change in changes_of(text):
            for value in change.offsets:
                wrong = _read(change, value)
                for layer, head in places(change, config):
                    found[layer][head] = wrong
    return tuple(map(tuple, found)) if any(wrong for row in found for wrong in row) else None


def check(plans: Plans | None, wrongs: Wrongs | None, texts: Sequence[str]) -> None:
    """Raise UsageError for a layer with an offset whose delta reads no output.

    delta_from is the same in all heads of a layer.
    """
    for row, own in zip(plans or (), wrongs or (), strict=False):
        if any(own) and not readable(row[0]):
            repair = (
                f"delta_from={row[0].delta_from} reads no output that could be off; use"
                " delta_from=OUT or O, or offset=none"
            )
            raise bad("changes", "; ".join(texts), repair)


def described(wrongs: Wrongs | None) -> list[dict[str, Any]]:
    """Return the different offsets in words, and where each holds, as plain data."""
    where: dict[Wrong, list[list[int]]] = {}
    for layer, row in enumerate(wrongs or ()):
        for head, wrong in enumerate(row):
            if wrong is not None:
                where.setdefault(wrong, []).append([layer, head])
    return [{OFFSET: words(wrong), "layers_heads": at} for wrong, at in where.items()]


def words(wrong: Wrong) -> str:
    """Return an offset as the grammar writes it, such as 16:bias."""
    return f"{wrong.c:.9g}:{wrong.kind}" + (f":{ALL}" if wrong.everywhere else "")


def _read(change: Change, text: str) -> Wrong | None:
    try:
        return None if text == "none" else _wrong(text)
    except ValueError as error:
        raise UsageError(f"change '{change.text}': {error}") from None


def _wrong(text: str) -> Wrong:
    c, _, rest = text.partition(":")
    kind, more, rows = rest.partition(":")
    try:
        size = float(c)
    except ValueError:
        size = np.inf
    if not abs(size) <= LARGEST or not kind or (more and rows != ALL):
        raise ValueError(
            f"offset={text}: write none, or C:KIND or C:KIND:{ALL} with a number C, as in "
            " offset=16:bias"
        )
    if kind not in KINDS:
        raise ValueError(f"offset={text}: {unknown('kind', kind, KINDS)}")
    return Wrong(c=size, kind=kind, everywhere=bool(more))
