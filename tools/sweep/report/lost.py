"""Cells whose results are NaN or infinite: how many, where among the axes, and from which event.

A report begins with them. Their errors are infinite, and no mean over the other cells stands for
them.
"""

from dataclasses import dataclass

import numpy as np

from roundscope.attention.grammar.roundings import event_of
from roundscope.attention.sites import Site
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import Overflow, Rounding
from roundscope.tools.report.wording import listed, many
from roundscope.tools.results.tables import json_of
from roundscope.tools.sweep.measuring.metrics import NOT_FINITE
from roundscope.tools.sweep.report.words import number
from roundscope.tools.sweep.storage.frames import Frame, Row, sites_of
from roundscope.tools.sweep.storage.store import reading

NAMES = {"not_finite": "out", "lse_not_finite": "L"}
# errors that are infinite without a lost entry, where squares overflow
RMS = ("rms", *(f"{g}_rms" for g in ("dq", "dk", "dv")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The cells of a sweep with results that are NaN or infinite.

    cells    (cells,) of bool;  results: result -> (the number of its cells, the most entries)
    first    the parameters that vary of the first of them, in words
    place    the batch entry, query and head of its first such entry, in words; may be empty
    event    the first event of that cell that made such a number, in words; empty if none did
    """

    cells: np.ndarray
    results: dict[str, tuple[int, int]]
    first: str = ""
    place: str = ""
    event: str = ""


def counts(frame: Frame) -> dict[str, np.ndarray]:
    """Return the lost entries of every cell, by result; 0 where they were not counted."""
    return {
        NAMES.get(name, name.removesuffix("_not_finite")): np.nan_to_num(frame.metric(name))
        for name in NOT_FINITE
    }


def lost(frame: Frame) -> Lost:
    """Return the cells with results that are NaN or infinite, and where they begin."""
    found = counts(frame)
    cells = np.any([x > 0 for x in found.values()], axis=0)
    for name in RMS:
        cells = cells | np.isinf(frame.metric(name))
    results = {
        name: (int((x > 0).sum()), int(x.max())) for name, x in found.items() if (x > 0).any()
    }
    if not cells.any():
        return Lost(cells=cells, results=results)
    number = int(np.flatnonzero(cells)[0])
    row = frame.rows[number]
    words, place = " ".join(f"{name}={row[name]}" for name in frame.names), ""
    for name, result in (("dq_not_finite_row", "dq"), ("not_finite_row", "out")):
        if (at := frame.metric(name)[number]) >= 0.0:  # out's comes before that of dq
            query, head = divmod(int(at), int(row["N"]))
            entry, query = divmod(query, int(row["T"]))
            place = f" {result} has one first at batch entry {entry}, token {query}, head {head}"
    return Lost(
        cells=cells,
        results=results,
        first=words,
        place=place,
        event=_event(frame, row),
    )


def sentence(frame: Frame, found: Lost) -> str:
    """Return what is NaN or infinite, in sentences; empty if nothing is."""
    if not (n := int(found.cells.sum())):
        return ""
    parts = [
        f"{name} in {cells} (up to {most:,} entries)"
        for name, (cells, most) in found.results.items()
    ]
    held = []  # the values of axes that all of these cells have and not all others
    for axis in frame.axes:
        codes = np.unique(frame.code(axis)[found.cells])
        if codes.size == 1 and not (frame.code(axis) == codes[0]).all():
            held.append(f"{axis.label} = {axis.word(int(codes[0]))}")
    where = f", all at {listed(held)}" if held else ""
    has = f"{n} of {many(len(frame.rows), 'cell')} {'has' if n == 1 else 'have'}"
    text = f"{has} NaN or infinite results{where}, and their errors are infinite"
    text += f": {listed(parts)}." if parts else ", as squares of errors overflow."
    first = f" In the first ({found.first})" if found.first else " There"
    first += f"{found.place}, and" if found.place else ""
    if not found.event:
        return f"{text}{first} no event overflows, so a sum does: `roundscope trace` shows where."
    return f"{text}{first} the first event that counts some is {found.event}."


def _event(frame: Frame, row: Row) -> str:
    """Return in words the first event of a cell whose results are NaN or infinite."""
    with reading(frame.path) as connection:
        query = "SELECT plan FROM cells WHERE key = ?"
        plan = connection.execute(query, (row["key"],)).fetchone()["plan"]
    shape = {"roundings": {str: str}}
    roundings = json_of(frame.path, "plan", plan, shape)["roundings"] if plan else {}
    numbers = sites_of(frame.path, [row["key"]], ("nan", "overflow"))
    for site in Site:
        nan, over = (float(numbers[name].get(site, np.zeros(1))[0]) for name in ("nan", "overflow"))
        text = roundings.get(str(site), "fp64")
        event = event_of(text)
        if nan > 0.0:
            return f"{site} ({text}), with {number(nan, 6)} NaN"
        # whether what is too large becomes the largest number
        saturates = isinstance(event, BlockFormat) or (
            event.format.saturates
            if event.overflow is None
            else event.overflow is Overflow.SATURATE
        )
        if over > 0.0 and not saturates:
            is_wide = isinstance(event, Rounding) and event.format.emax >= format_named("fp32").emax
            wider = "" if is_wide else f"; {site}=fp32 has room for them"
            return f"{site} ({text}), with {number(over, 6)} beyond its largest number{wider}"
    return ""
