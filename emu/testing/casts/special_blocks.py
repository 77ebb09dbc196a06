"""The rows on special blocks: zeros, NaN and infinities, a short last block, blocks moved."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.emu.stats.comparison import agree as same
from roundscope.emu.testing.casts.block_probes import random_blocks
from roundscope.emu.testing.casts.quantized import quantized
from roundscope.emu.testing.casts.records import (
    Example,
    Function,
    Row,
    Status,
    counted,
    row_of,
    skipped,
)
from roundscope.emu.testing.foreign import ForeignError

BLOCKS = 512
RANDOM = "the mode is stochastic: two calls draw other bits"
EVERY = 4  # of so many blocks, the first is special

Question = Callable[[Function, BlockFormat, str, str], Row]


def special_rows(function: Function, f: BlockFormat) -> list[Row]:
    """Return the rows on special blocks. A row is skipped where the function raises an error."""
    return [_asked(ask, function, f, name, question) for name, (question, ask) in _ROWS.items()]


def _asked(ask: Question, function: Function, f: BlockFormat, name: str, question: str) -> Row:
    try:
        return ask(function, f, name, question)
    except ForeignError as error:
        if not error.is_refusal:
            raise
        return skipped(name, question, str(error))


def _zeros(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    x, special = _with(f, 0.0, whole=True)
    found = quantized(function, x, f)
    good = (found.y[special] == 0).all(axis=1)
    scale = np.unique(found.scales[special])
    note = f"their scale is {scale[0]:g}" if found.given and scale.size == 1 else ""
    row = _block_row(name, question, good)
    alone = quantized(function, x * 0, f)
    if (alone.y == 0).all():
        return _noted(row, note)
    return _noted(row, "an array of zeros alone does not stay zero", Status.FAIL)


def _not_finite(function: Function, f: BlockFormat, name: str, question: str, value: float) -> Row:
    x, special = _with(f, value)
    blocks = quantized(function, x, f).y[special]
    y, rest = blocks[:, 0], blocks[:, 1:]
    good = np.isnan(y) if np.isnan(value) else ~np.isfinite(y)
    nan = int(np.isnan(rest).all(axis=1).sum())
    note = (
        "the whole block becomes NaN"
        if nan == len(rest)
        else f"all other numbers of the block become NaN in {nan} of {len(rest)} blocks"
    )
    if not good.all():
        wanted = "NaN" if np.isnan(value) else "an infinity or NaN"
        note = (
            f"expected {wanted}, but {value:g} becomes {y[~good][0]:g}, a finite number, in"
            f" {int((~good).sum())} of {good.size} blocks; {note}"
        )
    given = np.full(y.shape, value)
    return row_of(
        name, question, good, given, y, np.full(y.shape, np.nan), f=f.element.format, note=note
    )


def _stays(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    if f.element.mode is RoundingMode.STOCHASTIC:
        return skipped(name, question, RANDOM)
    ordinary, _ = _with(f, 0.0)
    before = quantized(function, ordinary, f)
    good = np.ones(len(before.y), bool)
    for value in (np.nan, np.inf):
        x, special = _with(f, value)
        after = quantized(function, x, f)
        good &= special | same(after.y, before.y).all(axis=1)
    row = _block_row(name, question, good[~special])
    return _with_coins(row, function, ordinary, f)


def _moved(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    """Compare the numbers of each block at both places; for a random rounding, its scales alone."""
    x = random_blocks(f, BLOCKS)
    at = layout_of(x.shape, f, -1)
    order = np.random.default_rng(5).permutation(len(to_lines(np, x, at)))
    moved = from_lines(np, to_lines(np, x, at)[order], at)
    before, after = (quantized(function, a, f) for a in (x, np.ascontiguousarray(moved)))
    if f.element.mode is RoundingMode.STOCHASTIC:
        if not before.given:
            return skipped(name, question, RANDOM)
        good = same(before.scales[order], after.scales)
        return _noted(_block_row(name, question, good), "of the scales alone: numbers are random")
    equal = same(before.y[order], after.y)
    row = _block_row(name, question, np.asarray(equal.all(axis=1)))
    if equal.all():
        return row
    block = int(np.flatnonzero(~equal.all(axis=1))[0])
    at_number = int(np.flatnonzero(~equal[block])[0])
    example = Example(
        given=float(after.x[block, at_number]),
        got=float(after.y[block, at_number]),
        expected=float(before.y[order][block, at_number]),
        scale=float(before.scales[order][block]),
        where=f"block {order[block]}, moved to the place of block {block}: number {at_number}",
    )
    return _with_coins(replace(row, examples=(example,)), function, x, f)


def _with_coins(row: Row, function: Function, x: np.ndarray, f: BlockFormat) -> Row:
    """Return a failed row with a note if the function is random: two calls differ already."""
    if row.status is not Status.FAIL:
        return row
    one, other = (quantized(function, x, f).y for _ in range(2))
    is_random = not same(one, other).all()
    note = "a second call on the same numbers differs too, so that the function is random"
    return _noted(row, note) if is_random else row


def _ragged(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    if f.element.mode is RoundingMode.STOCHASTIC:
        return skipped(name, question, RANDOM)
    x = random_blocks(f, BLOCKS)
    k = x.shape[1] - f.size // 2
    short, padded = np.ascontiguousarray(x[:, :k]), x.copy()
    padded[:, k:] = 0
    before, after = (quantized(function, a, f) for a in (padded, short))
    good: np.ndarray = np.all(same(before.y, after.y), axis=1)
    return _with_coins(_block_row(name, question, good), function, x, f)


def _with(f: BlockFormat, value: float, whole: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return an array, and which of its blocks hold the value.

    whole: whether all numbers of such a block are the value; otherwise only the first is.
    """
    x = random_blocks(f, BLOCKS)
    at = layout_of(x.shape, f, -1)
    lines = to_lines(np, x, at).copy()
    special = np.arange(len(lines)) % EVERY == 1 % len(lines)
    lines[special, slice(None) if whole else slice(0, 1)] = value
    return np.ascontiguousarray(from_lines(np, lines, at)), special


def _block_row(name: str, question: str, good: np.ndarray) -> Row:
    agree, of = int(good.sum()), int(good.size)
    if not of:
        return skipped(name, question, "no such block")
    return counted(name, question, agree, of)


def _noted(row: Row, note: str, status: Status | None = None) -> Row:
    return replace(row, note=note, status=status or row.status)


_ROWS: dict[str, tuple[str, Question]] = {
    "blocks of zeros": ("Do blocks of zeros stay zero?", _zeros),
    "NaN": ("Does a NaN stay NaN?", partial(_not_finite, value=np.nan)),
    "infinities": (
        "Is the result for an infinity infinite or NaN, and not finite?",
        partial(_not_finite, value=np.inf),
    ),
    "NaN stays": ("Do NaN and infinities leave the other blocks as they are?", _stays),
    "blocks moved": ("Is a block quantized in the same way at another place?", _moved),
    "short last block": ("Is a shorter last block treated as if padded with zeros?", _ragged),
}
