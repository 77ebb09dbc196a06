"""Judgment of a quantizer whose numbers share scales in blocks: its scales, its elements, and what
it does with special blocks: zeros, NaN and infinities, a short last block, blocks moved.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from roundscope.emu.blocks.api import round_blocks
from roundscope.emu.blocks.format import BLOCK_NAMED, E8M0, BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of, to_lines
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import BINARY32, RoundingMode
from roundscope.emu.stats.comparison import agree as same
from roundscope.emu.testing.casts.block_behaviors import (
    equal_blocks,
    explanations,
    name_of,
    quantizer_named,
    rules_of,
    with_narrow,
)
from roundscope.emu.testing.casts.block_probes import edge_blocks, element_blocks, random_blocks
from roundscope.emu.testing.casts.elements import (
    bias_row,
    class_rows,
    is_allowed,
    steady_rows,
    zero_row,
)
from roundscope.emu.testing.casts.hadamard import (
    Fronted,
    Hadamard,
    inputs_of,
    seen_by,
    untold,
    variants,
)
from roundscope.emu.testing.casts.quantized import (
    CARRIED,
    Quantized,
    expected_scales,
    fits,
    quantized,
    under_cast,
    unit_of,
)
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
    Example,
    Function,
    Numbers,
    Otherwise,
    Row,
    Status,
    counted,
    row_of,
    skipped,
    with_whole,
)
from roundscope.emu.testing.casts.shared_scales import Scope
from roundscope.emu.testing.foreign import ForeignError

FINE = 11  # significand bits of scales that tell a factor
LISTED = 20  # blocks that the best rule does not explain
Pair = tuple[np.ndarray, Quantized]  # an input (rows, K), and what the quantizer made of it


class _Scales(NamedTuple):
    """The scales of all blocks: whether they fit, what was got, the maxima, what was asked.

    `fit` says which blocks fit a scale at all.
    """

    good: np.ndarray
    got: Numbers
    top: Numbers
    expected: Numbers
    fit: np.ndarray


def scale_agreements(
    pairs: list[Pair], asked: BlockFormat
) -> tuple[tuple[Agreement, ...], tuple[Example, ...]]:
    """Return on how many blocks each rule agrees, and blocks on which the best one does not.

    The rules are sorted from the best to the worst; the asked one comes first among equals.
    """
    found = [(f.rule, _pooled(pairs, f, asked)) for f in rules_of(asked)]
    found.sort(key=lambda rule: -int(rule[1].good.sum()))
    best = found[0][1]
    wrong = np.flatnonzero(~best.good)
    wrong = wrong[np.unique(np.linspace(0, wrong.size - 1, min(wrong.size, LISTED)).astype(int))]
    return (
        tuple(
            Agreement(name=f"rule {rule}", agree=int(p.good.sum()), of=p.good.size)
            for rule, p in found
        ),
        tuple(
            Example(
                given=float(best.top[i]),
                got=float(best.got[i]),
                expected=float(best.expected[i]),
                where=f"scale of block {i}",
            )
            for i in wrong
        ),
    )


def scale_rows(pairs: list[Pair], asked: BlockFormat) -> list[Row]:
    """Return the rows on scales within the range of the scale format, and at its small end."""
    found = _pooled(pairs, asked, asked)
    smallest = found.expected == asked.scale.min_positive
    return [
        _row(
            "scales",
            f"Do blocks get the scale that rule {asked.rule} gives?",
            ~smallest,
            found,
            asked,
        ),
        _row(
            "smallest blocks",
            f"Do the smallest blocks get the smallest scale, {asked.scale.min_positive:g}?",
            smallest,
            found,
            asked,
        ),
        *([_tensor_row(pairs, asked)] if asked.tensor else []),
    ]


def _row(name: str, question: str, kept: np.ndarray, found: _Scales, f: BlockFormat) -> Row:
    without = int((kept & ~found.fit).sum())
    kept = kept & found.fit
    good, got, top, expected, _ = (a[kept] for a in found)
    places = np.flatnonzero(kept)
    note = f"{without:,} blocks fit no scale that was tried, so theirs are not known" * bool(
        without
    )
    row = row_of(
        name,
        question,
        good,
        top,
        got,
        expected,
        f=f.scale,
        scale=expected,
        where=lambda i: f"scale of block {places[i]}",
        note=note,
    )
    is_unknown = without and row.status is Status.PASS
    return replace(row, status=Status.SKIPPED) if is_unknown else row


def _in_proportion(pairs: list[Pair], asked: BlockFormat) -> str:
    """Return by what factor all returned scales differ from the asked ones, if by one, in words.

    Scales of few significand bits do not tell a factor, and are left out.
    """
    if not all(found.given for _, found in pairs) or asked.scale.precision < FINE:
        return ""
    found = _pooled(pairs, asked, asked)
    usual = (found.top > 0) & (found.expected > 2.0**-100)
    ratio = found.got[usual] / found.expected[usual]
    if not ratio.size or not np.isfinite(ratio).all():
        return ""
    middle, near = float(np.median(ratio)), 2 * asked.scale.epsilon
    if abs(middle - 1) <= near or (np.abs(ratio - middle) > near * abs(middle)).any():
        return ""
    fraction = Fraction(middle).limit_denominator(1024)
    is_fraction = abs(float(fraction) - middle) <= near * abs(middle)
    return f"; all scales are {fraction if is_fraction else f'{middle:.7g}'} of the asked ones"


def _tensor_row(pairs: list[Pair], f: BlockFormat) -> Row:
    got = np.array([found.tensor for _, found in pairs])
    expected = np.array([expected_scales(x, f)[1] for x, _ in pairs])
    top = np.array([np.abs(x).max() for x, _ in pairs], np.float64)
    inferred = "" if all(p.given for _, p in pairs) else "not returned, so taken as asked"
    question = "Is the scale of the whole array its largest magnitude over that of the format?"
    if f.tensor_scale is not None:
        question = "Is the scale of the whole array the one that is given?"
    return row_of(
        "tensor scale",
        question,
        got == expected,
        top,
        got,
        expected,
        f=f.element.format,
        scale=expected,
        note=inferred,
    )


def _pooled(pairs: list[Pair], f: BlockFormat, asked: BlockFormat) -> _Scales:
    """Return the scales of all blocks, compared with those of a block format."""
    expected = [expected_scales(x, f)[0] for x, _ in pairs]
    good = [fits(found, scales, asked) for (_, found), scales in zip(pairs, expected, strict=True)]
    return _Scales(
        good=np.concatenate(good),
        got=np.concatenate([found.scales for _, found in pairs]),
        top=np.concatenate([np.abs(found.x).max(axis=1) for _, found in pairs]),
        expected=np.concatenate(expected),
        fit=np.concatenate([found.fit for _, found in pairs]),
    )


def examine_blocks(
    function: Function, asked: BlockFormat, scope: Scope | None = None, *, is_narrow: bool = False
) -> CastReport:
    """Return the judgment of a quantizer that is meant to implement a block format.

    scope: what a block stands for, if it is a whole token, channel or array
    is_narrow: whether quotients are meant to be rounded to float32 before they are to elements
    """
    arrays = [
        inputs_of(function, probes(asked))
        for probes in (edge_blocks, random_blocks, element_blocks)
    ]
    pairs = [(seen_by(function, x), quantized(function, x, asked)) for x in arrays]
    results = [
        (x, from_lines(np, found.y.astype(np.float32), layout_of(x.shape, asked, -1)))
        for x, found in pairs
    ]
    carried = 0.0 if asked.power_of_two else CARRIED
    known, cast = explanations(results, asked, carried)
    own = name_of(asked, asked)
    if is_narrow:
        known, cast, own = with_narrow(known, results, asked, carried)
    is_random = asked.element.mode is RoundingMode.STOCHASTIC
    pairs = [(x, under_cast(found, x, asked, cast)) for x, found in pairs]
    scales, exceptions = scale_agreements(pairs, asked)
    drawn = pairs[1][1]
    rows: Sequence[Row] = [
        *scale_rows(pairs, asked),
        *_element_rows([found for _, found in pairs], asked, is_narrow),
        *special_rows(function, asked, scope),
        bias_row(
            _quotients(drawn, is_narrow).reshape(-1),
            drawn.elements.reshape(-1),
            asked.element,
            of="; of elements within the largest",
        ),
        *steady_rows(function, arrays[1], asked.element),
    ]
    front = function.front if isinstance(function, Fronted) else None
    whole = _allowed(pairs, asked) if is_random else next(a for a in known if a.name == own)
    best, remaining = known[0], _remaining(results, known[0], asked, carried)
    otherwise: Otherwise | None = None
    if best.agree < (best.of if front else best.of // 2) and asked.rows == 1:
        given = [(x, y) for x, (_, y) in zip(arrays, results, strict=True)]
        others, rest = behind_another(front, given, asked, carried)
        is_half = front is not None or 2 * others[0].agree >= others[0].of
        if is_half and others[0].agree > best.agree:
            best, remaining, known = others[0], rest, [*others, *known]
            own_front = best.name.rpartition("Hadamard ")[2].replace(" in ", ":")
            otherwise = None if front else Otherwise("hadamard", own_front, best.agree, best.of)
        else:
            otherwise = of_other_scales(results, asked, scope, carried)
    rows = with_whole(rows, "blocks", whole)
    is_asked = is_random and all(row.status is not Status.FAIL for row in rows)
    shape = _shape_name(asked) if scope is None else _scope_name(asked, scope)
    shape = shape if front is None else f"{front}, then {shape}"
    return CastReport(
        asked=asked,
        title=f"{shape} with {own}",
        name=own,
        whole=whole,
        noun="blocks",
        done="are equal",
        known="rule",
        prefix=f"{shape} with ",
        otherwise=otherwise,
        factor=_in_proportion(pairs, asked),
        remaining=remaining,
        is_random=is_random,
        behaves_as=best.name if best.agree == best.of else own if is_asked else None,
        rows=rows,
        behaviors=tuple(known),
        scales=scales,
        exceptions=exceptions,
        returned=pairs[0][1].words,
    )


def _quotients(found: Quantized, is_narrow: bool) -> Numbers:
    """Return what elements are rounded from: exact quotients, or those that float32 has."""
    q = found.quotients
    return q.astype(np.float32).astype(np.float64) if is_narrow else q


def _element_rows(found: list[Quantized], f: BlockFormat, is_narrow: bool) -> list[Row]:
    """Return the rows on elements, each judged under the scale that the quantizer used.

    Blocks of the smallest scale have a row of their own, since libraries divide by it in ways of
    their own: it is subnormal in float32 where it is 2^-127.
    """
    flat = [
        np.concatenate(parts)
        for parts in zip(*(_flat(part, f, is_narrow) for part in found), strict=True)
    ]
    given, q, elements, products, smallest = flat
    kept = np.isfinite(q) & np.isfinite(products)
    usual, low, r = kept & (smallest == 0), kept & (smallest != 0), f.element
    good, expected = is_allowed(elements[low], q[low], r)
    smallest_row = row_of(
        "smallest elements",
        "Are the elements of blocks with the smallest scale rounded as asked?",
        good,
        given[low],
        elements[low] * products[low],
        expected * products[low],
        f=r.format,
        scale=products[low],
    )
    return [
        *class_rows(q[usual], elements[usual], r, products[usual], given[usual]),
        smallest_row,
        zero_row(q[usual], elements[usual], r, r.format.negative_zero),
    ]


def _flat(found: Quantized, f: BlockFormat, is_narrow: bool) -> tuple[Numbers, ...]:
    """Return flat arrays: inputs, quotients, elements, scales, and 1 where a scale is smallest."""
    products = np.broadcast_to((found.scales * found.tensor)[:, None], found.x.shape)
    smallest = np.broadcast_to((found.scales == f.scale.min_positive)[:, None], found.x.shape)
    q = _quotients(found, is_narrow)
    arrays = (found.x, q, found.elements, products, smallest.astype(np.float64))
    return tuple(array.reshape(-1) for array in arrays)


def _allowed(pairs: list[Pair], asked: BlockFormat) -> Agreement:
    """Return on how many blocks a random rounding may give the result."""
    good = [
        is_allowed(found.elements, found.quotients, asked.element)[0].all(axis=1)
        & fits(found, expected_scales(x, asked)[0], asked)
        for x, found in pairs
    ]
    agree, of = sum(int(g.sum()) for g in good), sum(g.size for g in good)
    return Agreement(name=name_of(asked, asked), agree=agree, of=of)


def _remaining(
    results: list[tuple[np.ndarray, np.ndarray]],
    best: Agreement,
    asked: BlockFormat,
    carried: float,
) -> str:
    """Return one of the blocks that the nearest known behavior does not explain, in words."""
    if best.agree == best.of:
        return ""
    quantizer = quantizer_named(best.name, asked)
    for x, y in results:
        wrong = np.flatnonzero(~equal_blocks(quantizer(x), y, asked, carried))
        if wrong.size:
            top = np.abs(to_lines(np, x, layout_of(x.shape, asked, -1))[wrong[0]]).max()
            return f", such as block {wrong[0]}, whose largest magnitude is {top:.9g}"
    return ""


def behind_another(
    front: Hadamard | None,
    given: list[tuple[np.ndarray, np.ndarray]],
    asked: BlockFormat,
    carried: float,
) -> tuple[list[Agreement], str]:
    """Return known behaviors behind another transform than was asked, the one that explains most.

    given: pairs of what the function was given and the numbers that it made of it
    The second result is one of the blocks that the nearest does not explain, in words.
    """
    own = quantizer_named(name_of(asked, asked), asked)
    tried = []
    for words, other in untold() if front is None else variants(front):
        if other is None or given[0][0].shape[1] % other.size == 0:
            seen = [(x if other is None else other(x), y) for x, y in given]
            agree = sum(int(equal_blocks(own(x), y, asked, carried).sum()) for x, y in seen)
            tried.append((agree, words, seen))
    _, words, seen = max(tried, key=lambda each: each[0])
    found, _ = explanations(seen, asked, carried)
    rest = _remaining(seen, found[0], asked, carried)
    return [replace(a, name=f"{a.name}, {words}") for a in found[:LISTED]], rest


def of_other_scales(
    results: list[tuple[np.ndarray, np.ndarray]],
    asked: BlockFormat,
    scope: Scope | None,
    carried: float,
) -> Otherwise | None:
    """Return the blocks with scales of another kind that explain most, if at least half.

    Powers of two in place of numbers, and numbers of float32 in place of powers of two.
    """
    if asked.tensor:
        return None
    tried = []
    for scale in (E8M0, BINARY32.format):
        if scale == asked.scale:
            continue
        for rule in (ScaleRule.RCEIL, ScaleRule.FLOOR, ScaleRule.NEAREST):
            try:
                f = replace(asked, scale=scale, rule=rule)
            except ValueError:  # the rule does not fit the formats
                continue
            equal = [equal_blocks(round_blocks(x, f), y, f, carried) for x, y in results]
            tried.append((sum(int(e.sum()) for e in equal), sum(e.size for e in equal), str(f)))
    if not tried:
        return None
    agree, of, words = max(tried)
    if scope is not None:
        words = re.sub(r"\[\d+\]", f"[{scope}]", words)
    return Otherwise("format", words, agree, of) if 2 * agree >= of else None


def _shape_name(f: BlockFormat) -> str:
    """Return the name of a block format, whatever its rule and its elements' rounding are."""

    def shape(f: BlockFormat) -> tuple[object, ...]:
        return f.element.format, f.size, f.rows, f.scale, f.tensor

    name = next((name for name, g in BLOCK_NAMED.items() if shape(g) == shape(f)), str(f))
    return name if f.tensor_scale is None else f"{name} under {f.tensor_scale:.9g}"


def _scope_name(f: BlockFormat, scope: Scope) -> str:
    scale = "" if f.scale == BINARY32.format else f"*{f.scale.name}"
    return f"{f.element.format.name}[{scope}]{scale}"


BLOCKS = 512
RANDOM = "the mode is stochastic: two calls draw other bits"
EVERY = 4  # of so many blocks, the first is special

Question = Callable[[Function, BlockFormat, str, str], Row]


def special_rows(function: Function, f: BlockFormat, scope: Scope | None) -> list[Row]:
    """Return the rows on special blocks. A row is skipped where the function raises an error."""
    return [
        skipped(name, question, f"a {scope} is a whole block")
        if scope and ask is _ragged
        else _asked(ask, function, f, name, question)
        for name, (question, ask) in _ROWS.items()
    ]


def _asked(ask: Question, function: Function, f: BlockFormat, name: str, question: str) -> Row:
    try:
        return ask(function, f, name, question)
    except ForeignError as error:
        if not error.is_refusal:
            raise
        return skipped(name, question, str(error))


def _zeros(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    x = _with(function, f, 0.0, whole=True)
    found = quantized(function, x, f)
    special = (found.x == 0).all(axis=1)
    good = (found.y[special] == 0).all(axis=1)
    scale = np.unique(found.scales[special])
    own = scale / unit_of(f)
    note = f"their scale is {own[0]:g}" if found.given and scale.size == 1 else ""
    row = _block_row(name, question, good)
    alone = quantized(function, x * 0, f)
    if (alone.y == 0).all():
        return _noted(row, note)
    return _noted(row, "an array of zeros alone does not stay zero", Status.FAIL)


def _not_finite(function: Function, f: BlockFormat, name: str, question: str, value: float) -> Row:
    found = quantized(function, _with(function, f, value), f)
    is_special = ~np.isfinite(found.x)
    special = is_special.any(axis=1)
    y, count = found.y[is_special], int(special.sum())
    good = np.isnan(y) if np.isnan(value) else ~np.isfinite(y)
    nan = int((np.isnan(found.y) | is_special)[special].all(axis=1).sum())
    note = (
        "the whole block becomes NaN"
        if nan == count
        else f"all other numbers of the block become NaN in {nan} of {count} blocks"
    )
    if not good.all():
        wanted = "NaN" if np.isnan(value) else "an infinity or NaN"
        note = (
            f"expected {wanted}, but {value:g} becomes {y[~good][0]:g}, a finite number, in"
            f" {int((~good).sum())} of {good.size} results; {note}"
        )
    given = np.full(y.shape, value)
    return row_of(
        name, question, good, given, y, np.full(y.shape, np.nan), f=f.element.format, note=note
    )


def _stays(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    if f.element.mode is RoundingMode.STOCHASTIC:
        return skipped(name, question, RANDOM)
    ordinary = _with(function, f, 0.0)
    before = quantized(function, ordinary, f)
    good = np.ones(len(before.y), bool)
    for value in (np.nan, np.inf):
        after = quantized(function, _with(function, f, value), f)
        special = ~np.isfinite(after.x).all(axis=1)
        good &= special | same(after.y, before.y).all(axis=1)
    row = _block_row(name, question, good[~special])
    return _with_coins(row, function, ordinary, f)


def _moved(function: Function, f: BlockFormat, name: str, question: str) -> Row:
    """Compare the numbers of each block at both places; for a random rounding, its scales alone."""
    x = inputs_of(function, random_blocks(f, BLOCKS))
    unit = _unit(function, f)
    at, within = layout_of(x.shape, unit, -1), unit.size // f.size
    places = np.random.default_rng(5).permutation(len(to_lines(np, x, at)))
    moved = from_lines(np, to_lines(np, x, at)[places], at)
    order = (places[:, None] * within + np.arange(within)).reshape(-1)  # of blocks
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
    x = inputs_of(function, random_blocks(f, BLOCKS))
    k = x.shape[1] - f.size // 2
    if isinstance(function, Fronted) and k % function.front.size:
        return skipped(name, question, "a shorter block is no whole transform")
    short, padded = np.ascontiguousarray(x[:, :k]), x.copy()
    padded[:, k:] = 0
    before, after = (quantized(function, a, f) for a in (padded, short))
    good: np.ndarray = np.all(same(before.y, after.y), axis=1)
    return _with_coins(_block_row(name, question, good), function, x, f)


def _unit(function: Function, f: BlockFormat) -> BlockFormat:
    """Return the blocks that a quantizer treats apart, those of its transform if larger."""
    front = function.front.size if isinstance(function, Fronted) else 1
    return replace(f, size=math.lcm(f.size, front))


def _with(function: Function, f: BlockFormat, value: float, whole: bool = False) -> np.ndarray:
    """Return an array some of whose blocks hold a value, as the function is given it.

    whole: whether all numbers of such a block are the value; otherwise only the first is.
    """
    x = inputs_of(function, random_blocks(f, BLOCKS))
    at = layout_of(x.shape, _unit(function, f), -1)
    lines = to_lines(np, x, at).copy()
    special = np.arange(len(lines)) % EVERY == 1 % len(lines)
    lines[special, slice(None) if whole else slice(0, 1)] = value
    return np.ascontiguousarray(from_lines(np, lines, at))


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
