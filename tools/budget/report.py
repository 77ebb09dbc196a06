"""The report of `roundscope budget`: the page, the terminal, and JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from roundscope.operations.models.budget import Errors, ModelBudget, ModelLine, percent
from roundscope.tools.budget.options import BudgetOptions
from roundscope.tools.report import pictures
from roundscope.tools.report.model import (
    Cell,
    Folded,
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

RECORD = "budget.json"
SCHEMA = "roundscope-budget-1"
FEW = 12  # lines that the picture and the terminal show
SEEN = 0.0005  # the share below which a line is not on the terminal
READ = (
    (
        "the judge",
        "The same step with the same weights and inputs, every operation and every cast in"
        " binary64. What rounding the weights themselves to their type costs is not counted.",
    ),
    (
        "error, %",
        "The squared error of the result with only this group in its own arithmetic and all else in"
        " binary64, over the squared error of the model. An operation's arithmetic is its"
        " function, forward and backward, with the roundings of its results; the rounding of an"
        " input belongs to the operation that made it.",
    ),
    (
        "without it",
        "The relative error of the result with this group alone in binary64, and the model's own"
        " arithmetic elsewhere; - where the error alone is below 0.01 %, of an event 0.1 %.",
    ),
    (
        "interaction",
        "What the shares do not add up to. Above 0, errors of several groups point the same way;"
        " below 0, they cancel, and a share may be above 100 %. Beyond 50 % shares are no parts of"
        " a whole: read the columns without it. Decisions that differ from those in binary64, such"
        " as the experts of a token, do that: the notes count them.",
    ),
    (
        "backward",
        "The share of the group's backward, with its forward in binary64. The backward of an"
        " operation is the derivative that autograd computes of its function, in the types of the"
        " model, from the gradient of its result, which is rounded to the type of the result.",
    ),
    (
        "sums of gradients",
        "Where a value is read more than once, autograd adds its gradients in the value's type.",
    ),
    (
        "cast",
        "A cast to a wider type is exact, but its backward rounds the gradient to the narrower one,"
        " as that of the logits where a loss is computed in FP32 or FP64.",
    ),
    (
        "gain",
        "By which part of its length a gradient is too long (above 0) or too short along the exact"
        " one.",
    ),
    (
        "events",
        "Roundings of the plan that gives the bits of a group's forward, each measured like a"
        " group: docs/reference/operations.md has their formulas. Those of FP32 stand together"
        " where they make less than 1 %.",
    ),
)


def report(asked: BudgetOptions, found: ModelBudget, seconds: float) -> Report:
    """Return the report on the error budget of a model."""
    number = f"error of the model: {found.words(found.total)}"
    opening = Opening(found.sentence, number, mood="bad" if found.broken else "")
    parts: list[Part] = [Folded("How to read this page", [Points(READ)])]
    if found.lines and not found.broken and any(map(found.adds_up, found.results)):
        parts.append(_picture(found))
    if found.lines:
        parts.append(Section("Operations", [_groups(found, found.lines)]))
    if found.events:
        parts.append(Section("Rounding events", [_events(found, found.events)]))
    if found.tried:
        parts.append(Section("What was tried", [_tried(found)]))
    if found.total.weights:
        parts.append(Section("Gradients of the weights", [_weights(found)]))
    parts += notes(*found.notes)
    brief: list[Part] = [Text(found.sentence, opening.mood), Text(number)]
    for title, lines, table in (
        ("operations", found.lines, _groups),
        ("rounding events", found.events, _events),
    ):
        seen = [x for x in lines if not x.weight(found.total, found.results) < SEEN][:FEW]
        if seen:
            brief.append(table(found, seen, title))
        if len(lines) > len(seen):
            brief.append(Text(f"{len(lines) - len(seen)} more are smaller", "note"))
    if found.tried:
        brief.append(_tried(found))
    brief += notes(*found.notes)
    return Report(
        title=f"budget {asked.run}",
        heading=f"Error budget of {asked.run}",
        about=f"{found.operations:,} operations. {seconds:.1f} s.",
        opening=opening,
        parts=parts,
        brief=brief,
        data=_data(asked, found, seconds),
    )


def _error(errors: Errors | None, result: str) -> str:
    return "-" if errors is None else f"{errors.of(result):.1e}"


def _heads(found: ModelBudget, *before: str) -> tuple[str, ...]:
    names = [found.called(r) for r in found.results]
    shares, left = ([f"{what}\n{n}" for n in names] for what in ("error, %", "without it"))
    backward = ["backward, %"] if "gradients" in found.results else []
    return (*before, *shares[:1], *backward, *shares[1:], *left)


def _cells(found: ModelBudget, line: ModelLine) -> list[str | Cell]:
    """Return the shares of a line, and the errors without it."""
    shares: list[str | Cell] = [
        Cell(percent(x), "strong" if x >= 0.1 else "")
        for x in (found.told_share(line, r) for r in found.results)
    ]
    if "gradients" in found.results:
        own, total = line.backward, found.total.of("gradients")
        is_told = own is not None and total and found.adds_up("gradients")
        part = (own.of("gradients") / total) ** 2 if own is not None and is_told else math.nan
        shares.insert(1, percent(part))
    return [*shares, *(_error(line.without, r) for r in found.results)]


def _groups(found: ModelBudget, lines: Sequence[ModelLine], title: str = "") -> Table:
    rows: list[list[str | Cell]] = [
        [Cell(x.group, note=x.how), str(x.count), *_cells(found, x)] for x in lines
    ]
    blank = len(found.results) + ("gradients" in found.results)
    rest = [percent(found.interaction(r), "+") for r in found.results]
    whole = ["100.0" if math.isfinite(found.total.of(r)) else "-" for r in found.results]
    for each in (rest, whole):
        if "gradients" in found.results:
            each.insert(1, "")
    if not found.broken:
        rows.append(["interaction", "", *rest, *[""] * (blank - len(rest) + len(found.results))])
    errors = [_error(found.total, r) for r in found.results]
    rows.append(["all", str(found.operations), *whole, *errors])
    return Table(_heads(found, "operation", "times"), rows, title=title)


def _events(found: ModelBudget, lines: Sequence[ModelLine], title: str = "") -> Table:
    skip = 1 if "gradients" in found.results else None
    heads = list(_heads(found, "operation", "event", "rounds to"))
    rows = []
    for line in lines:
        cells = _cells(found, line)
        if skip is not None:
            cells.pop(skip)
        rows.append([line.group, Cell(line.event, "strong"), line.how, *cells])
    if skip is not None:
        heads.remove("backward, %")
    return Table(heads, rows, title=title)


def _tried(found: ModelBudget) -> Table:
    def cells(errors: Errors) -> list[str]:
        row = ["" if errors.loss is None else f"{errors.loss:+.1e}"]
        row += [_error(errors, r) for r in found.results]
        gain = errors.gradients and f"{errors.gradients.gain:+.1e}"
        return row + ([gain] if gain else [])

    names = [f"error\n{found.called(r)}" for r in found.results]
    heads = ["arithmetic", "loss", *names, *(["gain"] if "gradients" in found.results else [])]
    rows = [["as it is", *cells(found.total)]]
    rows += [[tried.words, *cells(tried.errors)] for tried in found.tried]
    return Table(heads, rows, title="what was tried")


def _weights(found: ModelBudget) -> Table:
    """Return the table of the gradients by weight, with what makes most of each error."""
    rows = []
    for name, own in found.total.weights.items():
        shares = [(found.told_share(line, name), line.group) for line in found.lines]
        most = [x for x in sorted(shares, reverse=True)[:2] if x[0] > 0.05]
        words = ", ".join(f"{group} {share:.0%}" for share, group in most)
        rows.append([name, f"{own.error:.1e}", f"{own.gain:+.1e}", words])
    return Table(("weight", "relative error", "gain", "mostly made by"), rows)


def _picture(found: ModelBudget) -> Picture:
    """Return the shares of the groups, a panel for a result whose shares are told."""
    caption = (
        "The squared error that each group of operations makes alone, with all else in binary64,"
        f" over that of the model; what they do not add up to is {_rest(found)}."
    )
    whole, narrow = _shares(found, is_narrow=False), _shares(found, is_narrow=True)
    return Picture("Which operations make the error", whole, caption, narrow)


def _shares(found: ModelBudget, *, is_narrow: bool) -> Figure:
    """Draw them side by side, or below each other for a narrow screen."""
    told = [r for r in found.results if found.adds_up(r)]
    lines, count = found.lines[:FEW][::-1], len(told)
    height, shared = 0.26 * len(lines), {"sharey": True, "sharex": True}
    if is_narrow:
        figure, axes = pictures.canvas(
            1.1 + count * (height + 0.3), count, width=pictures.NARROW, **shared
        )
    else:
        figure, axes = pictures.canvas(1.1 + height, 1, count, **shared)
    for ax, result in zip(axes.flat, told, strict=True):
        shares = [100 * line.share(result, found.total) for line in lines]
        bars = ax.barh(np.arange(len(lines)), shares, height=0.7, color=pictures.DOWN)
        for bar, line, share in zip(bars, lines, shares, strict=True):
            pictures.hover(bar, f"{line.group}: {share:.1f} % of {found.called(result)}")
            if share >= 0.5:
                at = (share, bar.get_y() + bar.get_height() / 2)
                how: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
                ax.annotate(f"{share:.0f}", at, xytext=(3, 0), fontsize=8, **how)
        ax.set_title(found.called(result), fontsize=9.5)
        ax.xaxis.set_major_locator(MaxNLocator(4))
    axes[0][0].set_yticks(range(len(lines)), [line.group for line in lines], fontsize=9)
    figure.supxlabel("share of the squared error, %", fontsize=9.5)
    return figure


def _rest(found: ModelBudget) -> str:
    return " and ".join(
        f"{percent(found.interaction(r), '+')} % of the {found.called(r)}" for r in found.results
    )


def _data(asked: BudgetOptions, found: ModelBudget, seconds: float) -> dict[str, Any]:
    """Return the report as JSON."""

    def errors(x: Errors | None) -> dict[str, Any] | None:
        if x is None:
            return None
        weights = {name: own._asdict() for name, own in x.weights.items()}
        together = None if x.gradients is None else x.gradients._asdict()
        return asdict(x) | {"gradients": together, "weights": weights}

    def line(x: ModelLine) -> dict[str, Any]:
        measured = {n: errors(getattr(x, n)) for n in ("alone", "without", "backward")}
        return {
            "group": x.group,
            "event": x.event,
            "how": x.how,
            "count": x.count,
            "shares": {r: x.share(r, found.total) for r in found.results},
            "flips": [flip._asdict() for flip in x.flips],
            **measured,
        }

    data = {
        "schema": SCHEMA,
        "command": command_line(),
        "versions": all_versions("numpy"),
        "run": asked.run,
        "by": asked.by.value,
        "seconds": round(seconds, 3),
        "sentence": found.sentence,
        "operations": found.operations,
        "total": errors(found.total),
        "interaction": {r: found.interaction(r) for r in found.results},
        "unequal": found.unequal,
        "apart": found.apart,
        "flips": [flip._asdict() for flip in found.flips],
        "lines": [line(x) for x in found.lines],
        "events": [line(x) for x in found.events],
        "tried": [{"words": x.words, "errors": errors(x.errors)} for x in found.tried],
        "broken": None
        if found.broken is None
        else {"title": found.broken.title, "words": found.broken.lost.words(found.broken.what)},
        "notes": list(found.notes),
    }
    return {name: plain(x) for name, x in data.items()}
