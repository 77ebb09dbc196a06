"""`check_comparable`: runs of other tokens, weights, layers or architectures are refused."""

import re
from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import TypeAlias

import numpy as np

from roundscope.operations.models.comparing.tokens import Incomparable, common_tokens
from roundscope.operations.models.comparing.words import FEW
from roundscope.operations.models.replay import same, wide
from roundscope.operations.models.tape import PARAMETER, Tape
from roundscope.operations.models.tape_file import digested

LAYER = re.compile(r"((?:\w+\.)*?\d+)\.")  # the path of the first module in a list
ROUNDED = ("bfloat16", "float16", "float32", "float64")  # types that need no scales
Digests: TypeAlias = Mapping[str, tuple[str, tuple[int, ...], str]]  # type, shape and digest


def check_comparable(a: Tape, b: Tape) -> list[str]:
    """Refuse runs of other tokens, or of other weights; return what is to be known of the weights.

    Weights in two types are the same ones if each of their numbers may be one number that was
    rounded to either: BF16 weights are those of an FP32 model that was cast.
    """
    weights = digested(a), digested(b)
    _check_architectures(*weights)
    common = {
        name: (one, two)
        for name, one in weights[0].items()
        if (two := weights[1].get(name)) is not None and one[1] == two[1]
    }
    other = [name for name, (one, two) in common.items() if one[0] == two[0] and one[2] != two[2]]
    notes: list[str] = []
    cast: list[str] = []
    unchecked: list[str] = []
    for name, (one, two) in common.items():
        if one[0] == two[0]:
            continue
        values = _values(a, b, name)
        if values is None or not all(x.dtype.name in ROUNDED for x in values):
            unchecked.append(name)
        elif not _may_be_one(*values):
            other.append(name)
        elif not same(*map(wide, values)):
            cast.append(name)
    if other:
        largest, name = max((_apart(a, b, name), name) for name in other)
        name = name.removeprefix(PARAMETER)
        which = f"such as {name}" if largest < 0 else f"{name} most, by up to {largest:.3g}"
        alone = [[n for n in own if n not in common] for own in weights]
        told = "; ".join(
            f"{len(own)} that {side} alone has, such as {own[0].removeprefix(PARAMETER)}"
            for side, own in zip("AB", alone, strict=True)
            if own
        )
        of = f"the {len(common)} parameters that both have" if told else f"{len(common)} parameters"
        raise Incomparable(
            f"weights: the runs are of other ones: {len(other)} of {of} differ, {which}"
            + (f"; and there are {told}: perhaps two architectures" if told else "")
            + "; give both the same"
        )
    common_tokens(a, b)
    if cast:
        kinds = " and ".join(dict.fromkeys(x[0] for n in cast for x in common[n]))
        notes.append(
            f"weights: {len(cast)} of {len(weights[0])} parameters are equal after rounding alone"
            f" ({kinds}); the rounding of weights is part of the gap"
        )
    if unchecked:
        kinds = " and ".join(dict.fromkeys(x[0] for n in unchecked for x in common[n]))
        notes.append(
            f"weights: not compared: {len(unchecked)} of {len(weights[0])} parameters, such as"
            f" {unchecked[0].removeprefix(PARAMETER)} ({kinds}): they are in two types, and a file"
            " has no weights or the types have scales of their own"
        )
    return notes


def _values(a: Tape, b: Tape, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers of a parameter in both runs; None if a file has no weights."""
    found = []
    for tape in (a, b):
        value = next(i for i, value in enumerate(tape.values) if value.name == name)
        if tape.values[value].array is None:
            return None
        found.append(tape.numpy(value))
    return found[0], found[1]


def _may_be_one(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether both may be the same numbers, rounded to nearest to two types."""
    with np.errstate(all="ignore"):  # a number may be too large for a type
        x, y = wide(a), wide(b)
        is_one = (x == y) | (np.isnan(x) & np.isnan(y))
        is_one |= (wide(a.astype(b.dtype)) == y) | (wide(b.astype(a.dtype)) == x)
        is_one |= np.abs(x - y) <= (wide(np.spacing(np.abs(a))) + wide(np.spacing(np.abs(b)))) / 2
    return bool(is_one.all())


def _apart(a: Tape, b: Tape, name: str) -> float:
    """Return the largest difference of a parameter; -1 if a file has no weights, and inf of NaN."""
    values = _values(a, b, name)
    if values is None:
        return -1.0
    largest = float(np.abs(wide(values[0]) - wide(values[1])).max(initial=0.0))
    return inf if isnan(largest) else largest


def _check_architectures(a: Digests, b: Digests) -> None:
    """Refuse runs that have fewer than half of their parameters in common, by name or by shape.

    A run may have names that the other one has not, as where layers are fused, or none, as where
    the model is compiled as a whole.
    """
    names = [{name.removeprefix(PARAMETER) for name in each} for each in (a, b)]
    alone = [sorted(own - other) for own, other in (names, names[::-1])]
    _check_layers(names)
    if all(alone) and 2 * len(names[0] & names[1]) < min(map(len, names)):
        told = "; ".join(
            f"{side} alone has {len(own)}, such as {own[0]!r}"
            for side, own in zip("AB", alone, strict=True)
        )
        raise Incomparable(
            f"parameter names differ: two architectures, or one inside another module ({told});"
            " compare runs of the same model class"
        )
    common = [name for name in a if name in b]
    other = [name for name in common if a[name][1] != b[name][1]]
    if 2 * len(other) > len(common):
        one, two = a[other[0]][1], b[other[0]][1]
        raise Incomparable(
            f"parameter shapes differ: two architectures ({len(other)} of {len(common)}, such as"
            f" {other[0].removeprefix(PARAMETER)!r}, {one} and {two}); compare runs of the same"
            " model"
        )


def _check_layers(names: Sequence[set[str]]) -> None:
    """Refuse models of which one has layers, modules in a list, that the other one has not."""
    layers = [{m.group(1) for name in own if (m := LAYER.match(name)) is not None} for own in names]
    lists = [{path.rpartition(".")[0] for path in own} for own in layers]
    told = []
    for side, n in (("A", 0), ("B", 1)):
        missing = sorted(
            (path for path in layers[1 - n] - layers[n] if path.rpartition(".")[0] in lists[n]),
            key=lambda path: (path.rpartition(".")[0], int(path.rpartition(".")[2])),
        )
        if missing:
            which = ", ".join(missing[:FEW]) + (", ..." if len(missing) > FEW else "")
            told.append(f"{side} has no {which}")
    if told:
        raise Incomparable(f"layers differ: {'; '.join(told)}; compare models of as many layers")
