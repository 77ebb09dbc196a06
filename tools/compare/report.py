"""The report of `roundscope compare`: the page, the terminal, and JSON."""

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from roundscope.operations.models.comparing.comparison import Comparison, Group, Row
from roundscope.operations.models.comparing.differences import TOP
from roundscope.tools.compare.options import CompareOptions
from roundscope.tools.report import pictures
from roundscope.tools.report.model import (
    Cell,
    Folded,
    Mood,
    Opening,
    Part,
    Picture,
    Points,
    Report,
    Section,
    Table,
    Text,
    notes,
)
from roundscope.tools.report.terminal import plain
from roundscope.tools.results.machine import all_versions, command_line

RECORD = "compare.json"
SCHEMA = "roundscope-compare-1"
FEW = 12  # how many decisions are shown, and how many rows on the terminal
MOODS: dict[str, Mood] = {"here": "bad", "inherited": "note", "equal": "good", "undecided": "warn"}
MADE = {"here": "made here"}  # where the word of a column is another one
READ = (
    (
        "made",
        "Both runs are run again, operation by operation. A difference is made here if the"
        " arithmetic of A gives other results on the inputs that the operation had in B; it is"
        " inherited if that arithmetic gives the results of B, so that only the inputs differ;"
        " it is undecided if the arithmetic of A cannot run on other inputs.",
    ),
    (
        "differ, ulps",
        "The part of an operation's numbers that differ, and the largest difference in units"
        " in the last place (ulps), the steps between neighbouring numbers of the coarser of"
        " both types.",
    ),
    (
        "gap",
        "The log-probabilities of B minus those of A, by token; of a model without tokens,"
        " its outputs.",
    ),
    (
        "share",
        "The contribution of a group of operations to the gap. A is run again with the"
        " arithmetic of B in the group; how far the log-probabilities move is projected on the"
        " gap and divided by its length. The share is the mean of this over the orders in"
        " which the groups can be put in (Shapley's value; of more than four groups, over two"
        " orders). With all groups put in, A is B, so the shares add up to the gap but for"
        " what is not attributed. A share is negative if its group makes the gap smaller.",
    ),
    (
        "alone, without",
        "The part of the gap with this group alone put in, and what is missing from it where"
        " all others are put in. These need not add up.",
    ),
    (
        "noise of alone",
        "How far alone moves if last bits of the group's results are others. It is measured"
        " of alone, and is no error of the share; a share below it is not told apart.",
    ),
    (
        f"argmax, top-{TOP}, margin",
        f"The most probable token, and the set of the {TOP} most probable ones, where they differ."
        " The margin is the difference of A's logits by which that was decided; a small one can"
        " turn by rounding alone.",
    ),
)


def report(asked: CompareOptions, found: Comparison, seconds: float) -> Report:
    """Return the report on two runs."""
    mood: Mood = "good" if found.equal else "bad"
    opening = Opening(found.sentence, _number(found), mood=mood)
    differing = [row for row in found.rows if row.made != "equal"]
    parts: list[Part] = [Folded("How to read this page", [Points(READ)])]
    if found.groups:
        parts.append(Section("What makes the difference", [_groups(found)]))
    if differing:
        parts.append(_picture(found))
    if found.flips:
        more = len(found.flips) > FEW
        rest = f"The first {FEW} of {len(found.flips):,}; compare.json has all." if more else ""
        parts.append(Section("Decisions that differ", [_flips(found, FEW), *notes(rest)]))
    if differing:
        parts.append(Section("Operations", [_rows(found.rows)]))
    parts += notes(*found.notes)
    brief: list[Part] = [Text(found.sentence, mood), Text(_number(found))]
    if found.groups:
        brief.append(_groups(found))
    here = [row for row in found.rows if row.made in ("here", "undecided")]
    if here:
        brief.append(_rows(here[:FEW], "operations that make it, in their order"))
    if len(here) > FEW:
        brief.append(Text(f"and {len(here) - FEW} more"))
    if found.flips:
        brief.append(_flips(found, FEW))
    brief += notes(*found.notes)
    return Report(
        title=f"compare {asked.a} {asked.b}",
        heading=f"{asked.a} against {asked.b}",
        about=f"{len(found.rows):,} operations, {found.unknown:,} unknown. {seconds:.1f} s.",
        opening=opening,
        parts=parts,
        brief=brief,
        data=_data(asked, found, seconds),
    )


def _number(found: Comparison) -> str:
    """Return the size of the gap in words."""
    if found.equal:
        return f"{found.unknown:,} of the operations are unknown"
    what = "log-probability" if found.is_logprobs else "output"
    words = f"{what} gap: mean {found.mean:.2e}, largest {found.largest:.2e}"
    words += "" if found.kl is None else f"; KL {found.kl:.2e} nats"
    if found.groups and not isnan(found.groups[0].share):
        words += f"; not attributed {found.left:.1%}"
    return f"{words}; {found.unknown:,} of {len(found.rows):,} operations unknown"


def _share(value: float) -> str:
    return "" if isnan(value) else f"{value:.0%}"


def _part(value: float) -> str:
    """Return a part of some numbers in words, and none as nothing."""
    if not value:
        return ""
    return "<0.1%" if value < 5e-4 else f"{value:.1%}"


def _groups(found: Comparison) -> Table:
    def row(group: Group) -> tuple[str | Cell, ...]:
        told: Mood = "strong" if group.is_told_apart else "note"
        return (
            group.name,
            group.a,
            group.b,
            str(len(group.rows)),
            Cell(_share(group.share), told),
            _share(group.alone),
            f"± {group.noise:.0%}" if not isnan(group.share) else "",
            _share(group.without),
        )

    heads = ("operation", "A", "B", "times", "share", "alone", "noise\nof alone", "without")
    rows = [row(group) for group in found.groups]
    return Table(heads, rows, title="what makes the difference", is_prose=True)


def _rows(rows: Sequence[Row], title: str = "") -> Table:
    cells = [
        (
            str(row.number),
            row.title,
            Cell(MADE.get(row.made, row.made), MOODS[row.made]),
            _part(row.differ),
            f"{row.ulps:.3g}" if row.ulps else "",
        )
        for row in rows
    ]
    heads = ("", "operation", "made", "differ", "ulps")
    return Table(heads, cells, [row.made == "here" for row in rows], title=title)


def _flips(found: Comparison, count: int) -> Table:
    cells = [
        (
            str(flip.position),
            flip.what,
            ", ".join(map(str, flip.a)),
            ", ".join(map(str, flip.b)),
            f"{flip.margin:.3g}",
        )
        for flip in found.flips[:count]
    ]
    total = len(found.flips)
    title = f"decisions that differ: {f'{count} of ' if count < total else ''}{total:,}"
    return Table(("token", "decision", "only A", "only B", "margin"), cells, title=title)


def _picture(found: Comparison) -> Picture:
    """Return the strip of operations above the gap by token."""
    caption = (
        "Above, the largest difference of each operation's results, red where it is made, grey"
        " where it is inherited, yellow where that is not decided. Below, the gap by token."
    )
    whole, narrow = _strips(found, pictures.WIDTH), _strips(found, pictures.NARROW)
    return Picture("Where the runs differ", whole, caption, narrow)


def _strips(found: Comparison, width: float) -> Figure:
    figure, axes = pictures.canvas(4.6, rows=2, width=width)
    above, below = axes[0][0], axes[1][0]
    colours = {"here": pictures.UP, "undecided": pictures.COLOURS[4]}
    numbers = np.array([row.number for row in found.rows], float)
    heights = np.minimum([np.log2(1 + row.ulps) for row in found.rows], 64.0)
    pictures.bars(
        above,
        numbers,
        np.maximum(heights, 0.05),
        0.9,
        facecolors=[colours.get(row.made, pictures.QUIET) for row in found.rows],
    )
    above.set_xlabel("operation, in the order of A")
    above.set_ylabel("log2(1 + ulps)")
    gap = np.nan_to_num(np.abs(found.gap), nan=0.0, posinf=0.0)  # told in the sentence
    pictures.bars(below, np.arange(len(gap), dtype=float), gap, 0.9, facecolors=pictures.DOWN)
    below.set_xlabel("token" if found.is_logprobs else "number of the output")
    below.set_ylabel("|gap|")
    for axes in (above, below):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _data(asked: CompareOptions, found: Comparison, seconds: float) -> dict[str, Any]:
    """Return the report as JSON."""
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "versions": all_versions("numpy"),
        "a": asked.a,
        "b": asked.b,
        "seconds": round(seconds, 3),
        "sentence": found.sentence,
        "equal": found.equal,
        "first": None if found.first is None else found.first.title,
        "groups": [
            {name: _finite(x) for name, x in group._asdict().items()}
            | {"told_apart": group.is_told_apart}
            for group in found.groups
        ],
        "left": found.left,
        "interaction": found.interaction,
        "unknown": found.unknown,
        "kl": found.kl,
        "mean": found.mean,
        "largest": found.largest,
        "gap": plain(found.gap.tolist()),
        "rows": [row._asdict() for row in found.rows],
        "flips": [flip._asdict() for flip in found.flips],
        "notes": list(found.notes),
    }


def _finite(x: Any) -> Any:
    return None if isinstance(x, float) and isnan(x) else x
