"""`connected`: how results of two runs correspond, number by number.

A result that both runs have is a slot. A value of a run is the whole slot or, of a forward pass, a
part of it; and the slot may be a part of the value, which has more rows, padding or other tokens
besides.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from roundscope.operations.models.comparing.tokens import Tokens
from roundscope.operations.models.tape import Span, Tape

Name = Literal["a", "b"]
Slot = tuple[int, int]  # the number of a pair, and of its output
NAMES: tuple[Name, Name] = ("a", "b")


def _are_constants(
    sides: Sequence[tuple[Tape, list[int]]], shapes: Sequence[list[tuple[int, ...]]]
) -> bool:
    """Return whether each run has one array, which it makes again in every forward pass."""
    if len({shape for each in shapes for shape in each}) > 1:
        return False
    for tape, values in sides:
        arrays = [tape.values[v].array for v in values]
        if any(x is None for x in arrays):
            return False
        first = tape.numpy(values[0]).tobytes() if len(values) > 1 else b""
        if any(tape.numpy(v).tobytes() != first for v in values[1:]):
            return False
    return True


class Unconnected(ValueError):
    """Results that do not correspond."""


class Port(NamedTuple):
    """How a value of a run corresponds to a slot.

    Attributes:
        slot: The slot.
        view: The shape in which a value is looked at, (rows, tokens, ...) of one whose first axis
            has both; () for its own.
        inside: The part of the value that both runs have; () for all of it.
        part: The part of the slot that this is; None for all of it.
    """

    slot: Slot
    view: tuple[int, ...] = ()
    inside: tuple[Span, ...] = ()
    part: Span | None = None


def connected(
    slot: Slot,
    sides: Sequence[tuple[Tape, list[int]]],
    tokens: tuple[Tokens, Tokens] | None,
) -> dict[Name, dict[int, Port]]:
    """Return the ports of the values of two runs, by forward pass; values without one have no part.

    Args:
        slot: The slot.
        sides: Of each run its tape and its values.
        tokens: Of each run where the compared tokens are.

    Raises:
        Unconnected: Their shapes do not correspond.
    """
    shapes = [[tape.values[v].shape for v in values] for tape, values in sides]
    if all(len(each) == 1 for each in shapes) and shapes[0] == shapes[1]:
        return {name: {sides[n][1][0]: Port(slot)} for n, name in enumerate(NAMES)}
    told = f"shapes {_told(shapes[0])} and {_told(shapes[1])}"
    refused = Unconnected(told)
    if tokens is None:
        raise refused
    steps = [[tape.entries[tape.made_by[v]].step for v in values] for tape, values in sides]
    if any(steps[n][-1] >= len(tokens[n].lengths) for n in range(2)):
        raise refused
    if _are_constants(sides, shapes):
        return {n: {v: Port(slot) for v in own} for n, (_, own) in zip(NAMES, sides, strict=True)}
    lengths = [[tokens[n].lengths[s] for s in steps[n]] for n in range(2)]
    views: list[list[tuple[int, ...]]] = [[()] * len(each) for each in shapes]
    if not _fit(shapes, tokens, lengths):
        opened = _opened(shapes, tokens, lengths)
        if opened is None or not _fit(opened, tokens, lengths):
            has_one = [any(s[:1] == (1,) for s in each) for each in shapes]
            if tokens[0].batch == tokens[1].batch > 1 and has_one[0] != has_one[1]:
                told += ", one for all rows; give both the same attention_mask and position_ids"
            raise Unconnected(told)
        shapes = views = opened
    axis = _token_axis(shapes, tokens, lengths)
    if axis is None and any(len(each) > 1 for each in shapes):
        raise refused
    spans = [list(_spans(shapes[n], axis, tokens[n], steps[n], lengths[n])) for n in range(2)]
    first = max(0, *map(_tail, spans))
    end = min(tokens[0].size, *(max(hi for _, hi in each) for each in spans))
    if first >= end:
        raise refused
    found: dict[Name, dict[int, Port]] = {}
    for n, name in enumerate(NAMES):
        own, ports = tokens[n], {}
        for value, shape, view, (lo, hi) in zip(
            sides[n][1], shapes[n], views[n], spans[n], strict=True
        ):
            start, stop = max(lo, first), min(hi, end)
            if start >= stop:
                continue
            inside = []
            if shape[0] == own.batch != own.rows and _has_rows(shapes, tokens):
                inside.append(Span(0, own.row, own.rows))
            part = None
            if axis is not None:
                if (start, stop) != (lo, hi):
                    inside.append(Span(axis, start - lo, stop - start))
                if (start, stop) != (first, end):
                    part = Span(axis, start - first, stop - start)
            ports[value] = Port(slot, view, tuple(inside), part)
        found[name] = ports
    return found


def _tail(spans: Sequence[tuple[int, int]]) -> int:
    """Return from where on the spans leave no gap."""
    first = spans[-1][0]
    for lo, hi in reversed(spans[:-1]):
        if hi != first:
            break
        first = lo
    return first


def _told(shapes: Sequence[tuple[int, ...]]) -> str:
    each = list(dict.fromkeys(shapes))
    return " and ".join(map(str, each[:2])) + (" ..." if len(each) > 2 else "")


def _columns(shapes: Sequence[Sequence[tuple[int, ...]]]) -> list[list[int]]:
    """Return the sizes of each axis, of all values of both runs."""
    return [[*sizes] for sizes in zip(*(s for each in shapes for s in each), strict=True)]


def _has_rows(shapes: Sequence[Sequence[tuple[int, ...]]], tokens: tuple[Tokens, Tokens]) -> bool:
    """Return whether the first axis is the rows of the batch, which are not as many."""
    if tokens[0].batch == tokens[1].batch:
        return False
    return all(s[:1] == (tokens[n].batch,) for n in range(2) for s in shapes[n])


def _token_axis(
    shapes: Sequence[Sequence[tuple[int, ...]]],
    tokens: tuple[Tokens, Tokens],
    lengths: Sequence[Sequence[int]],
) -> int | None:
    """Return the axis of the tokens; None if no axis but that of the rows has other sizes."""
    read = [t for each in lengths for t in each]
    for axis, sizes in enumerate(_columns(shapes)):
        if len(set(sizes)) == 1 or (axis == 0 and _has_rows(shapes, tokens)):
            continue
        if all(size in (t, 1) for size, t in zip(sizes, read, strict=True)):
            return axis
    return None


def _fit(
    shapes: Sequence[Sequence[tuple[int, ...]]],
    tokens: tuple[Tokens, Tokens],
    lengths: Sequence[Sequence[int]],
) -> bool:
    """Return whether only the axes of rows and of tokens have other sizes."""
    if len({len(s) for each in shapes for s in each}) > 1:
        return False
    axis = _token_axis(shapes, tokens, lengths)
    has_rows = _has_rows(shapes, tokens)
    return all(
        len(set(sizes)) == 1 or n == axis or (n == 0 and has_rows)
        for n, sizes in enumerate(_columns(shapes))
    )


def _opened(
    shapes: Sequence[Sequence[tuple[int, ...]]],
    tokens: tuple[Tokens, Tokens],
    lengths: Sequence[Sequence[int]],
) -> list[list[tuple[int, ...]]] | None:
    """Return the shapes with a first axis of (rows * tokens) as two; None if it is none."""
    found = []
    for n in range(2):
        b = tokens[n].batch
        if not all(s[:1] == (b * t,) for s, t in zip(shapes[n], lengths[n], strict=True)):
            return None
        found.append([(b, t, *s[1:]) for s, t in zip(shapes[n], lengths[n], strict=True)])
    return found


def _spans(
    shapes: Sequence[tuple[int, ...]],
    axis: int | None,
    tokens: Tokens,
    steps: Sequence[int],
    lengths: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Yield which of the compared tokens a value is of, (first, end); the last of a pass if it has
    one of more.
    """
    for shape, step, t in zip(shapes, steps, lengths, strict=True):
        first, end = tokens.span(step)
        yield (end - 1, end) if axis is not None and shape[axis] == 1 < t else (first, end)
