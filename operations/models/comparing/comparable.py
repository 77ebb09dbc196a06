"""`check_comparable`: runs of other tokens, weights, layers or architectures are refused."""

import re
from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import TypeAlias

import numpy as np

from roundscope.operations.models.comparing.tokens import Incomparable, common_tokens
from roundscope.operations.models.comparing.words import FEW
from roundscope.operations.models.replay import wide
from roundscope.operations.models.tape import PARAMETER, Tape
from roundscope.operations.models.tape_file import digested

LAYER = re.compile(r"((?:\w+\.)*?\d+)\.")  # the path of the first module in a list
Digests: TypeAlias = Mapping[str, tuple[str, tuple[int, ...], str]]  # type, shape and digest


def check_comparable(a: Tape, b: Tape) -> None:
    """Refuse runs of other tokens, or of other weights."""
    weights = digested(a), digested(b)
    _check_architectures(*weights)
    other = [
        name
        for name, one in weights[0].items()
        if one[:2] == (two := weights[1].get(name, one))[:2] and one[2] != two[2]
    ]
    if other:
        largest, name = max((_apart(a, b, name), name) for name in other)
        name = name.removeprefix(PARAMETER)
        which = f"such as {name}" if largest < 0 else f"{name} most, by up to {largest:.3g}"
        raise Incomparable(
            f"weights: the runs are of other ones: {len(other)} of {len(weights[0])} parameters"
            f" differ, {which}; give both the same"
        )
    common_tokens(a, b)


def _apart(a: Tape, b: Tape, name: str) -> float:
    """Return the largest difference of a parameter; -1 if a file has no weights, and inf of NaN."""
    found = []
    for tape in (a, b):
        value = next(i for i, value in enumerate(tape.values) if value.name == name)
        if tape.values[value].array is None:
            return -1.0
        found.append(wide(tape.numpy(value)))
    largest = float(np.abs(found[0] - found[1]).max(initial=0.0))
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
