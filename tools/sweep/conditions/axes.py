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

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundscope.attention.grammar.changes import ALIASES, parted
from roundscope.attention.grammar.edits import KINDS, stabilizer_words
from roundscope.attention.grammar.ranges import is_range, one_range
from roundscope.attention.inputs.alignment import alignment_given
from roundscope.attention.sites import PRODUCTS, Site, site_named
from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.sweep.conditions.cell import DEFAULTS, OF_CALL, OPTIONAL, PER_SITE, Value
from roundscope.tools.sweep.conditions.inputs import layers_of, number_words
from roundscope.tools.toml_file import toml_of

# points that one sweep may have: a stop that is a digit too long should not fill the memory
MOST = 1_000_000
WHOLE = ("T", "S", "N", "H", "block_q", "block_k", "tile", "seed")
RANGES = (*WHOLE, "window", "batch")  # axes that take a:b
ENGINES = ("numpy", "xla")
LARGEST = 2**31 - 1  # of a size
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
        repair = f"{files[0]} is given already; one file, and words for what differs"
        raise bad("AXES", files[1], repair)
    axes, groups = Axes(), list[tuple[str, ...]]()
    if files:
        data = toml_of(Path(files[0]), "AXES")
        try:
            axes, groups = _contents(data)
        except UsageError as error:
            raise UsageError(f"{files[0]}: {error}") from None
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
    both = [name for name in ("block_q", "block_k") if name in axes]
    if "tile" in axes and both:
        raise UsageError(f"tile: sets block_q and block_k, and {both[0]} is given too; choose one")
    _check_zips(groups, axes)
    return Spec(axes=tuple(axes.items()), zips=tuple(groups))


def each_point(spec: Spec) -> Iterator[dict[str, Value]]:
    """Yield every combination of the axes' values one by one, the last axis fastest.

    A group of axes that advance together takes the place of the first of them. Raises UsageError,
    before the first one, for more than MOST.
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
            repair = "write AXIS=VALUE,VALUE, such as T=128,256, or name a file that ends in .toml"
            raise bad("AXES", word, repair)
        values = text.split(",")
        name = _axis(name.strip(), values)
        axes[name] = [*axes.get(name, ()), *_values(name, values)]
    return axes


def _axis(name: str, values: Sequence[Any]) -> str:
    """Return the axis that a word names: S is the keys, or with the name of a format an event."""
    of_event = name == "S" and any(isinstance(v, str) and v[:1].isalpha() for v in values)
    return "format.S" if of_event else axis_named(name)


def _contents(data: dict[str, Any]) -> tuple[Axes, list[tuple[str, ...]]]:
    """Return (axes, groups of zip) of a TOML file."""
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
    """Yield axes by name; in TOML, format.O and PV.sum without quotation marks are tables."""
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
            try:
                numbers = one_range(value)
            except ValueError as error:
                raise UsageError(f"{name} {error}") from None
            result.extend(typed(name, n) for n in numbers)
        else:
            result.append(typed(name, value))
    return result


def _check_zips(groups: Sequence[tuple[str, ...]], axes: Mapping[str, Sequence[Value]]) -> None:
    """Check that a group's axes are given and equally long, and that no axis is in two groups."""
    seen: set[str] = set()
    for group in groups:
        text, first = ",".join(group), len(axes.get(group[0], ()))
        if len(group) < 2:
            raise bad("--zip", text, "name two axes or more, such as block_q,block_k")
        for name in group:
            if name not in axes:
                repair = f"the axis {name} has no values; give {name}=..., or leave it out"
                raise bad("--zip", text, repair)
            if name in seen:
                raise bad("--zip", text, f"the axis {name} is zipped twice; put all in one group")
            seen.add(name)
            if (here := len(axes[name])) != first:
                repair = f"{group[0]} has {first} values and {name} has {here}"
                raise bad("--zip", text, f"{repair}; they advance together")


def axis_named(name: str) -> str:
    """Return an axis' full name, as format.O for O. Raises UsageError with the nearest name."""
    if name in (*DEFAULTS, *OPTIONAL, "tile"):
        return name
    if name in ("plan", *ALIASES):
        return "preset" if ALIASES.get(name, name) == "plan" else ALIASES[name]
    try:
        kind, site = parted(name)
    except ValueError:
        kind, site = "", ""
    if kind not in PER_SITE or ("." not in name and name.upper() not in Site.__members__):
        known = (*DEFAULTS, *OPTIONAL, "tile", *(f"{kind}.SITE" for kind in PER_SITE))
        raise UsageError(unknown("axis", name, known, "and SITE, SITE.sum"))
    try:
        event = site_named(site)
    except ValueError as error:
        raise UsageError(f"axis '{name}': {error}") from None
    if kind == "accumulator" and event not in PRODUCTS:
        raise UsageError(
            f"axis '{name}': {event} is no sum of products; those are {' '.join(PRODUCTS)}"
        )
    return f"{kind}.{event}"


@functools.lru_cache(maxsize=1 << 16, typed=True)
def typed(name: str, value: Value) -> Value:
    """Return a value of an axis in its type and one spelling. Raises UsageError with the repair."""
    kind = name.partition(".")[0]
    try:
        if value == "preset" and kind not in OF_CALL and DEFAULTS.get(kind, "preset") == "preset":
            return "preset"
        return _READERS[kind](value)
    except ValueError as error:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, str):
            shown = f"'{value}'"
        complete = f"unknown {name} {shown}" in str(error)  # the message names both
        raise UsageError(str(error) if complete else f"{name} {shown}: {error}") from None


def _whole(lowest: int, largest: int) -> Callable[[Value], Value]:
    def read(value: Value) -> Value:
        number = value
        if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,20}", value):
            number = int(value)
        if type(number) is not int or not lowest <= number <= largest:
            raise ValueError(f"give a whole number from {lowest} to {largest}")
        return number

    return read


def _truth(value: Value) -> Value:
    if str(value).lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return str(value).lower() == "true"


def _text(read: Callable[[str], object]) -> Callable[[Value], Value]:
    """Return a reader of text: `read` checks it, and returns its one spelling."""

    def checked(value: Value) -> Value:
        if not isinstance(value, str):
            raise ValueError("give text, in TOML between quotation marks")
        return str(read(value.strip()))

    return checked


def _engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(unknown("engine", name, ENGINES))
    return name


def _of_call(
    read: Callable[[str], str] | None = None, none: str = "none"
) -> Callable[[Value], Value]:
    """Return a reader of `default` (as the file says), none, or what `read` returns of others."""

    def checked(value: Value) -> Value:
        text = str(value).strip()
        if text in ("default", none):
            return text
        if read is None:
            raise ValueError(f"give {none}, or default for what the file has")
        return none if text == "0" and none == "none" else read(text)

    return checked


def _real(fits: Callable[[float], bool], repair: str) -> Callable[[str], str]:
    """Return a reader of finite numbers that fit, in their one spelling."""

    def read(text: str) -> str:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("give a finite number, none, or default for what the file says")
        if not fits(number):
            raise ValueError(repair)
        return number_words(number)

    return read


def _or(word: str, read: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: word if value == word else read(value)


_READERS: dict[str, Callable[[Value], Value]] = {
    **{name: _whole(1, LARGEST) for name in WHOLE},
    "seed": _whole(0, 2**32 - 1),
    "causal": _truth,
    "backward": _truth,
    "unfused": _truth,
    "preset": _text(KINDS["plan"].spell),
    "stabiliser": stabilizer_words,
    **{
        kind: _text(KINDS[kind].spell)
        for kind in ("format", "mode", "accumulator", "exp", "key_order", "delta_from")
    },
    "scale": _of_call(
        _real(bool, "give a number other than 0, such as 0.125, or none for 1 / sqrt(H)")
    ),
    "alignment": _of_call(lambda text: str(alignment_given(text)), none="default"),
    "window": _of_call(lambda text: str(_whole(1, LARGEST)(text))),
    "softcap": _of_call(_real(lambda x: x > 0.0, "give a number above 0, or none")),
    "mask": _of_call(),
    "sinks": _of_call(),
    "batch": _of_call(lambda text: str(_whole(1, LARGEST)(text)), none="1"),
    "only": _or("all", _text(KINDS["only"].spell)),
    "but": _or("none", _text(KINDS["but"].spell)),
    "engine": _text(_engine),
    "injection": _text(str),
    "input": _text(str),
}
