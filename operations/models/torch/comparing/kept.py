"""`Kept`: the results of another program at their places in a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from roundscope.operations.models.comparing.named import targets
from roundscope.operations.models.comparing.tokens import Incomparable
from roundscope.operations.models.tape import Tape
from roundscope.operations.models.torch.comparing.alternatives import Alternative
from roundscope.operations.models.torch.comparing.dumps import Result, Results

FEW = 6  # names in a note


@dataclass(slots=True)
class Kept:
    """A result of the other program, at its place in the run.

    Attributes:
        name: Its name in the other program.
        values: The values of the run that it has side by side.
        whole: These values of the other program, with the run's own where it kept none.
        rows: The tokens of which it kept them.
        made: What became of it.
        overrides: Alternatives by which its bits are given; {} if none are known.
        segment: The operations of the run between the results before and this one.
    """

    name: str
    values: list[int]
    whole: list[Tensor]
    rows: np.ndarray
    made: str = "equal"
    overrides: dict[int, Alternative] = field(default_factory=dict)
    segment: list[int] = field(default_factory=list)
    differ: float = 0.0
    ulps: float = 0.0


def matched(tape: Tape, given: Results) -> tuple[list[Kept], list[str]]:
    """Return the results at their places, in the order of the run, and the names of the others."""
    if tape.tokens is None or len(tape.tokens) != 1 or tape.steps != 1:
        what = "no tokens" if tape.tokens is None else f"{len(tape.tokens)} sequences"
        what = f"{tape.steps} forward passes" if tape.steps > 1 else what
        raise Incomparable(
            f"A has {what}: results of another program are compared with one sequence that is read"
            " in one forward pass; run A on tokens (1, T)"
        )
    found: list[Kept] = []
    unknown: list[str] = []
    taken: set[int] = set()
    for name, result in given.results.items():
        places = targets(tape, name, len(result.tensors))
        if not places:
            unknown.append(name)
        for place, x in zip(places, result.tensors, strict=False):
            if taken & set(place):
                continue
            whole = _placed(tape, place, x, result)
            if whole is None:
                unknown.append(f"{name} {tuple(x.shape)}")
                continue
            taken |= set(place)
            found.append(Kept(name, place, whole, result.positions))
    if not found:
        raise Incomparable(
            "no result of a module of A, or none of its shape"
            f" ({', '.join(unknown[:FEW]) or 'it is empty'}); give paths of A's modules, such as"
            " 'model.norm', with tensors (tokens, features), or a file that"
            ' capture(model, path, what="operations") wrote'
        )
    order = {v: n for n, v in enumerate(sorted({v for own in found for v in own.values}))}
    return sorted(found, key=lambda own: max(order[v] for v in own.values)), unknown


def _token_axis(shape: Sequence[int], count: int) -> int | None:
    """Return the axis of the tokens: (B, T, features), (B, T, heads, H) or (B, heads, T, H)."""
    axes = (1,) if len(shape) == 3 else (2, 1) if len(shape) == 4 else ()
    return next((axis for axis in axes if shape[axis] == count), None)


def _flat(x: Tensor, axis: int) -> Tensor:
    """Return an array of one sequence as (tokens, features)."""
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


def _placed(tape: Tape, place: Sequence[int], x: Tensor, result: Result) -> list[Tensor] | None:
    """Return a tensor of the other program in the shapes of values of the run; None if it is of
    another shape.
    """
    assert tape.tokens is not None
    count, shapes = tape.tokens.shape[1], [tape.values[v].shape for v in place]
    axes = [_token_axis(shape, count) for shape in shapes]
    rows = len(result.positions)
    if any(axis is None for axis in axes) or not rows or x.numel() % rows:
        return None
    if result.positions.max() >= count:
        return None
    widths = [prod(shape) // count for shape in shapes]
    if x.numel() != rows * sum(widths):
        return None
    found = []
    parts = x.reshape(rows, -1).split(widths, 1)
    for v, part, axis in zip(place, parts, axes, strict=True):
        own = tape.values[v].array
        assert axis is not None
        moved = own.movedim(axis, 0)
        flat = moved.reshape(count, -1).to(part.dtype).clone()
        flat[torch.as_tensor(result.positions)] = part
        found.append(flat.reshape(moved.shape).movedim(0, axis).contiguous())
    return found


def compared_of(tape: Tape, own: Kept, values: Sequence[Tensor]) -> list[np.ndarray]:
    """Return the numbers of values that the other program kept."""
    assert tape.tokens is not None
    found = []
    for x in values:
        axis = _token_axis(x.shape, tape.tokens.shape[1])
        assert axis is not None
        found.append(tape.arrays.numpy(_flat(x, axis)[torch.as_tensor(own.rows)]))
    return found
