"""The answer of a sweep on the terminal: what each axis does, the best and the worst condition, and
which results are too long or too short.

All of it is data first (`Answer`), which `--json` prints too.
"""

from dataclasses import dataclass

import numpy as np

from roundscope.attention.sites import Site
from roundscope.tools.report.model import Part, Table, Text
from roundscope.tools.report.wording import listed
from roundscope.tools.results.tables import columns_of
from roundscope.tools.sweep.report.captions import sentence
from roundscope.tools.sweep.report.effects import Effect, center, scaled, shares, size, size_words
from roundscope.tools.sweep.report.gains import RESULTS, bias_words, gains, where
from roundscope.tools.sweep.report.levels import (
    Level,
    OfResult,
    levels,
    of_results,
    words,
)
from roundscope.tools.sweep.report.words import number, percent
from roundscope.tools.sweep.storage.frames import Axis, Frame, sites_of
from roundscope.tools.sweep.storage.store import reading
from roundscope.tools.trace.biased import LOST

AXES = 6  # the most axes that a terminal shows
CELLS = 64  # of each value, whose numbers that become 0 are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sweep says.

    text          the sentence that opens the report
    results       what the axes do to each of out, dq, dk and dv; [] without gradients
    metric        rel_rms, or rms where a cell lacks that: the error that is meant throughout
    effects       the axes, that which explains most first;  levels: some values of each
    least, most   the conditions of the least and the largest rms, and their rms, in words
    zeros         at which values of the first axis, a format, many of its numbers become 0
    bias          which results are too long or too short beyond chance, in words
    hits          by event, the entries that injections hit, in the cell with most of them
    """

    text: str
    metric: str
    results: list[OfResult]
    effects: tuple[Effect, ...]
    levels: dict[str, list[Level]]
    least: str
    most: str
    zeros: str
    bias: str
    hits: dict[str, int]


def answer(frame: Frame) -> Answer:
    """Return what a sweep says."""
    found = shares(frame)
    effects = found.effects if found.cells else ()
    least, most = _ends(frame) if frame.axes else ("", "")
    return Answer(
        text=sentence(frame, found),
        metric=size(frame),
        results=of_results(frame),
        effects=effects,
        levels={e.axis.label: levels(frame, e.axis) for e in effects[:AXES]},
        least=least,
        most=most,
        zeros=_zeros(frame, effects[0].axis) if effects and effects[0].share else "",
        bias=bias_words(frame, [gains(frame, name) for name in RESULTS]),
        hits=_hits(frame),
    )


def _ends(frame: Frame) -> tuple[str, str]:
    """Return the conditions of the least and of the largest finite rms above 0, in words."""
    metric = size(frame)
    y = scaled(metric, frame.metric(metric))
    usable = np.isfinite(y)
    if not usable.any():
        return "", ""
    with np.errstate(invalid="ignore"):
        means = np.bincount(frame.condition[usable], y[usable]) / np.bincount(
            frame.condition[usable]
        )

    def told(c: int) -> str:
        mine = usable & (frame.condition == c)
        mean, low, high = center(metric, frame.metric(metric)[mine])
        spread = "" if np.isnan(low) else f" [{number(low)}, {number(high)}]"
        return f"{size_words(metric)} {number(mean)}{spread} at {where(frame, c)}"

    return told(int(np.nanargmin(means))), told(int(np.nanargmax(means)))


def hits_words(found: Answer) -> str:
    """Return how many entries injections hit, in a sentence; empty without injections."""
    if not found.hits:
        return ""
    parts = ", ".join(f"{n:,} of {site}" for site, n in found.hits.items())
    return f"Entries that an injection hit, in the cell with most of them: {parts}."


def _zeros(frame: Frame, axis: Axis) -> str:
    """Return the share of an event's numbers that become 0 in each format that loses many."""
    kind, _, site = axis.name.partition(".")
    if kind != "format" or site not in {str(x) for x in Site}:
        return ""
    code, keys, told = frame.code(axis), frame.rows.column("key"), []
    for c in range(len(axis.values)):
        held = sites_of(frame.path, [str(k) for k in keys[code == c][:CELLS]], ("n", "underflow"))
        n, lost = (float(np.nansum(held[x].get(site, np.zeros(0)))) for x in ("n", "underflow"))
        if n and lost / n > LOST:
            told.append(f"{percent(lost / n)} at {axis.word(c)}")
    return f"Numbers of {site} that become 0: {listed(told)}." if told else ""


def _hits(frame: Frame) -> dict[str, int]:
    """Return the most entries of an event that injections hit in a cell of the file, by site."""
    if not len(frame.rows) or (frame.rows.column("injection") == "none").all():
        return {}
    with reading(frame.path) as connection:
        if "hits" not in columns_of(connection, "sites"):
            return {}  # measured by an earlier version
        query = "SELECT site, MAX(hits) AS most FROM sites WHERE hits > 0 GROUP BY site"
        most = {row["site"]: int(row["most"]) for row in connection.execute(query)}
    return {str(site): most[site] for site in Site if site in most}


def parts(found: Answer) -> list[Part]:
    """Return what the terminal prints of an answer: its sentence, a table, and the ends."""
    shown: list[Part] = [Text(found.text), *(Text(x) for x in words(found.results))]
    rows = []
    for effect in found.effects[:AXES]:
        share = percent(effect.share) if effect.share else "0 %"
        if np.isfinite(effect.limit) and not effect.stands_out:
            share += ", may be chance"
        for i, level in enumerate(found.levels[effect.axis.label]):
            first = (effect.axis.label, share) if i == 0 else ("", "")
            rows.append([*first, level.value, number(level.rms), _times(level), _signed(level)])
    if rows:
        heads = (
            "axis",
            "share",
            "value",
            size_words(found.metric),
            "times the least [95 %]",
            "gain of out",
        )
        shown.append(Table(heads, rows))
    if found.least and found.least != found.most:
        shown += [Text(f"least error: {found.least}"), Text(f"most error: {found.most}")]
    return shown + [Text(x) for x in (found.zeros, found.bias, hits_words(found)) if x]


def _times(level: Level) -> str:
    if level.times is None:
        return "1"
    times, low, high = level.times
    return number(times) if np.isnan(low) else f"{number(times)} [{number(low)}, {number(high)}]"


def _signed(level: Level) -> str:
    return "-" if np.isnan(level.gain) else f"{100 * level.gain:+.2g} %"


def as_data(found: Answer) -> dict[str, object]:
    """Return an answer as data of JSON, in which a number that is not known is null."""
    return {
        "metric": found.metric,
        "axes": [
            {
                "axis": e.axis.label,
                "share": e.share,
                "chance": _known(e.limit),
                "levels": [_level(x) for x in found.levels.get(e.axis.label, [])],
            }
            for e in found.effects
        ],
        "results": {
            x.result: {
                "axis": x.axis.label,
                "metric": x.metric,
                "share": x.share,
                "most": x.most.value,
                "least": x.least.value,
                "levels": [_level(level) for level in x.levels],
            }
            for x in found.results
        },
        "least_error": found.least,
        "most_error": found.most,
        "zeros": found.zeros,
        "bias": found.bias,
        "hits": found.hits,
    }


def _level(x: Level) -> dict[str, object]:
    times = None if x.times is None else [_known(t) for t in x.times]
    return {"value": x.value, "rms": _known(x.rms), "times": times, "gain": _known(x.gain)}


def _known(x: float) -> float | None:
    return None if np.isnan(x) else x
