"""The axes of a sweep: words and TOML files make a `Spec`, and a `Spec` makes points.

A point is a dict of parameters with their values.

words     preset=qiu-yao,fa2-bf16  T=128:512:128  format.O=bf16,fp32; the values of an axis given
          twice are joined. O=bf16,fp32 is format.O and PV.sum=exact is accumulator.PV: the words of
          every command (docs/reference/grammar.md). input=FILE stands for every layer of a file
a file    axes.toml with `backward`, `zip` and the table `axes`; words replace the file's axes of
          the same name
ranges    a:b and a:b:step, as Python's range, so the stop is left out; also 0-9, with both ends.
          Whole numbers only
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundscope.attention.grammar.ranges import is_range, one_range
from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.sweep.conditions.cell import PER_SITE, Value
from roundscope.tools.sweep.conditions.sources import layers_of
from roundscope.tools.sweep.conditions.values import RANGES, axis_named, typed
from roundscope.tools.toml_file import toml_of

# points that one sweep may have: a stop that is a digit too long should not fill the memory
MOST = 1_000_000
Axes = dict[str, Sequence[Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is swept: every axis with its values, and the groups of axes that advance together."""

    axes: tuple[tuple[str, Sequence[Value]], ...]
    zips: tuple[tuple[str, ...], ...] = ()


def spec_of(words: Sequence[str], zips: Sequence[str] = (), backward: bool = False) -> Spec:
    """Return the sweep that the words, --zip and --backward ask for.

    words   AXIS=VALUE,VALUE and at most one file that ends in .toml
    zips    each "AXIS,AXIS": these advance together instead of crossing

    Raises UsageError naming argument, value and repair.
    """
    files = [w for w in words if w.endswith(".toml") and "=" not in w]
    if len(files) > 1:
        raise bad(
            "AXES", files[1], f"{files[0]} is given already; one file, and words for what differs"
        )
    axes, groups = _file(Path(files[0])) if files else ({}, [])
    given = _words([w for w in words if w not in files])
    if backward and list(given.setdefault("backward", [True])) != [True]:
        raise UsageError("--backward: the axis backward is given too; choose one")
    axes |= given
    if "input" in axes:
        axes["input"] = [each for name in axes["input"] for each in layers_of(str(name))]
    if not axes:
        raise UsageError(
            "AXES is missing: give at least one, such as preset=qiu-yao,fa2-bf16 or a .toml file"
        )
    groups += [tuple(axis_named(name.strip()) for name in text.split(",")) for text in zips]
    _check_tile(axes)
    _check_zips(groups, axes)
    return Spec(axes=tuple(axes.items()), zips=tuple(groups))


def points(spec: Spec) -> list[dict[str, Value]]:
    """Return every combination of the axes' values, the last axis fastest.

    A group of axes that advance together takes the place of the first of them.
    """
    return list(each_point(spec))


def each_point(spec: Spec) -> Iterator[dict[str, Value]]:
    """Yield the same combinations one by one, which keeps none of them in memory.

    Raises UsageError, before the first one, for more than MOST.
    """
    axes, zipped = dict(spec.axes), {name: group for group in spec.zips for name in group}
    groups = list(dict.fromkeys(zipped.get(name, (name,)) for name in axes))
    count = math.prod(len(axes[group[0]]) for group in groups)
    if count > MOST:
        raise UsageError(
            f"AXES: {count} points, a sweep has up to {MOST}; split it, the parts may share a file"
        )
    rows = [
        [dict(zip(group, row, strict=True)) for row in zip(*(axes[n] for n in group), strict=True)]
        for group in groups
    ]
    return (
        {name: row[name] for name in axes for row in chosen if name in row}
        for chosen in itertools.product(*rows)
    )


def _words(words: Sequence[str]) -> Axes:
    axes: Axes = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise bad(
                "AXES",
                word,
                "write AXIS=VALUE,VALUE, such as T=128,256, or name a file that ends in .toml",
            )
        values = text.split(",")
        name = _axis(name.strip(), values)
        axes[name] = [*axes.get(name, ()), *_values(name, values)]
    return axes


def _axis(name: str, values: Sequence[Any]) -> str:
    """Return the axis that a word names.

    S is the number of keys; with the name of a format as its value it is the event S.
    """
    of_event = name == "S" and any(isinstance(v, str) and v[:1].isalpha() for v in values)
    return "format.S" if of_event else axis_named(name)


def _file(path: Path) -> tuple[Axes, list[tuple[str, ...]]]:
    """Return (axes, groups of zip) of a TOML file."""
    data = toml_of(path, "AXES")
    try:
        return _contents(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _contents(data: dict[str, Any]) -> tuple[Axes, list[tuple[str, ...]]]:
    for name in data:
        if name not in ("axes", "zip", "backward"):
            raise UsageError(
                unknown("entry", name, ("axes", "zip", "backward"), "; axes belong under [axes]")
            )
    table, groups = data.get("axes", {}), data.get("zip", [])
    if not isinstance(table, dict):
        raise bad("axes", table, "write a table: [axes], and below it T = [128, 256]")
    if not isinstance(groups, list) or not all(
        isinstance(g, list) and all(isinstance(n, str) for n in g) for g in groups
    ):
        raise bad("zip", groups, 'write a list of lists, such as [["block_q", "block_k"]]')
    if "backward" in data and "backward" in table:
        raise UsageError("backward: given both above and under [axes]; choose one")
    given = dict(_flat(table)) | {name: data[name] for name in ("backward",) if name in data}
    axes: Axes = {}
    for name, values in given.items():
        values = values if isinstance(values, list) else [values]
        name = _axis(name, values)
        axes[name] = [*axes.get(name, ()), *_values(name, values)]
    return axes, [tuple(axis_named(n) for n in g) for g in groups]


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield axes by name.

    In TOML, format.O = ... and PV.sum = ... without quotation marks are tables.
    """
    for name, value in table.items():
        inner = isinstance(value, dict) and (name in PER_SITE or set(value) <= {"sum", *PER_SITE})
        if inner:
            yield from ((f"{name}.{site}", v) for site, v in value.items())
        else:
            yield name, value


def _values(name: str, values: Sequence[Any]) -> Sequence[Value]:
    """Return the values of one axis in the parameter's type, with ranges written out."""
    if not values or list(values) == [""]:
        raise UsageError(f"{name}: no value; give at least one, or leave the axis out")
    result: list[Value] = []
    for value in values:
        if not isinstance(value, str | int | float | bool):
            raise bad(name, value, "a value is text, a number, true or false")
        if name in RANGES and isinstance(value, str) and is_range(value):
            result.extend(typed(name, n) for n in _range(name, value))
        else:
            result.append(typed(name, value))
    return result


def _range(name: str, text: str) -> range:
    try:
        return one_range(text)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from None


def _check_tile(axes: Mapping[str, Any]) -> None:
    both = [name for name in ("block_q", "block_k") if name in axes]
    if "tile" in axes and both:
        raise UsageError(f"tile: sets block_q and block_k, and {both[0]} is given too; choose one")


def _check_zips(groups: Sequence[tuple[str, ...]], axes: Mapping[str, Sequence[Value]]) -> None:
    """Check that a group's axes are given and equally long, and that no axis is in two groups."""
    seen: set[str] = set()
    for group in groups:
        text = ",".join(group)
        if len(group) < 2:
            raise bad("--zip", text, "name two axes or more, such as block_q,block_k")
        for name in group:
            if name not in axes:
                raise bad(
                    "--zip",
                    text,
                    f"the axis {name} has no values; give {name}=..., or leave it out",
                )
            if name in seen:
                raise bad("--zip", text, f"the axis {name} is zipped twice; put all in one group")
            seen.add(name)
            first, here = len(axes[group[0]]), len(axes[name])
            if here != first:
                raise bad(
                    "--zip",
                    text,
                    f"{group[0]} has {first} values and {name} has {here}; they advance together",
                )
