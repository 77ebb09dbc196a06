"""Judgment of a quantizer whose numbers share scales in blocks."""

from collections.abc import Sequence

import numpy as np

from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.testing.casts.behaviors import FaultyCast
from roundscope.emu.testing.casts.bias import bias_row
from roundscope.emu.testing.casts.block_behaviors import (
    equal_blocks,
    explanations,
    name_of,
    quantizer_named,
)
from roundscope.emu.testing.casts.block_probes import edge_blocks, element_blocks, random_blocks
from roundscope.emu.testing.casts.classes import is_allowed
from roundscope.emu.testing.casts.elements import class_rows, zero_row
from roundscope.emu.testing.casts.quantized import (
    CARRIED,
    Quantized,
    expected_scales,
    fits,
    quantized,
    under_cast,
)
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
    Function,
    Numbers,
    Row,
    Status,
    row_of,
    with_whole,
)
from roundscope.emu.testing.casts.scale_rows import Pair, scale_agreements, scale_rows
from roundscope.emu.testing.casts.special_blocks import special_rows
from roundscope.emu.testing.casts.steady import steady_rows


def examine_blocks(function: Function, asked: BlockFormat) -> CastReport:
    """Return the judgment of a quantizer that is meant to implement a block format."""
    arrays = [probes(asked) for probes in (edge_blocks, random_blocks, element_blocks)]
    pairs = [(x, quantized(function, x, asked)) for x in arrays]
    known, cast = _explanations(pairs, asked)
    is_random = asked.element.mode is RoundingMode.STOCHASTIC
    pairs = [(x, under_cast(found, x, asked, cast)) for x, found in pairs]
    scales, exceptions = scale_agreements(pairs, asked)
    rows: Sequence[Row] = [
        *scale_rows(pairs, asked),
        *_element_rows([found for _, found in pairs], asked),
        *special_rows(function, asked),
        _bias(pairs[1][1], asked),
        *steady_rows(function, arrays[1], asked.element),
    ]
    own, best = name_of(asked, asked), known[0]
    whole = _allowed(pairs, asked) if is_random else next(a for a in known if a.name == own)
    rows = with_whole(rows, "blocks", whole)
    is_asked = is_random and all(row.status is not Status.FAIL for row in rows)
    shape = _shape_name(asked)
    return CastReport(
        asked=asked,
        title=f"{shape} with {own}",
        name=own,
        whole=whole,
        noun="blocks",
        done="are equal",
        known="rule",
        prefix=f"{shape} with ",
        remaining=_remaining(arrays, pairs, best, asked),
        is_random=is_random,
        behaves_as=best.name if best.agree == best.of else own if is_asked else None,
        rows=rows,
        behaviors=tuple(known),
        scales=scales,
        exceptions=exceptions,
        returned=pairs[0][1].words,
    )


def _element_rows(found: list[Quantized], f: BlockFormat) -> list[Row]:
    """Return the rows on elements, each judged under the scale that the quantizer used.

    Blocks of the smallest scale have a row of their own, since libraries divide by it in ways of
    their own: it is subnormal in float32 where it is 2^-127.
    """
    flat = [
        np.concatenate(parts) for parts in zip(*(_flat(part, f) for part in found), strict=True)
    ]
    given, q, elements, products, smallest = flat
    kept = np.isfinite(q) & np.isfinite(products)
    usual, low, r = kept & (smallest == 0), kept & (smallest != 0), f.element
    return [
        *class_rows(q[usual], elements[usual], r, products[usual], given[usual]),
        _smallest_row(given[low], q[low], elements[low], products[low], r),
        zero_row(q[usual], elements[usual], r, r.format.negative_zero),
    ]


def _smallest_row(
    given: Numbers, q: Numbers, elements: Numbers, products: Numbers, r: Rounding
) -> Row:
    good, expected = is_allowed(elements, q, r)
    return row_of(
        "smallest elements",
        "Are the elements of blocks with the smallest scale rounded as asked?",
        good,
        given,
        elements * products,
        expected * products,
        f=r.format,
        scale=products,
    )


def _flat(found: Quantized, f: BlockFormat) -> tuple[Numbers, ...]:
    """Return flat arrays: inputs, quotients, elements, scales, and 1 where a scale is smallest."""
    products = np.broadcast_to((found.scales * found.tensor)[:, None], found.x.shape)
    smallest = np.broadcast_to((found.scales == f.scale.min_positive)[:, None], found.x.shape)
    arrays = (found.x, found.quotients, found.elements, products, smallest.astype(np.float64))
    return tuple(array.reshape(-1) for array in arrays)


def _bias(found: Quantized, f: BlockFormat) -> Row:
    q, elements = found.quotients.reshape(-1), found.elements.reshape(-1)
    return bias_row(q, elements, f.element, of="; of elements within the largest")


def _explanations(pairs: list[Pair], asked: BlockFormat) -> tuple[list[Agreement], FaultyCast]:
    """Return every known behavior with its number of blocks, and the best one's cast."""
    arrays = []
    for x, found in pairs:
        at = layout_of(x.shape, asked, -1)
        arrays.append((x, from_lines(np, found.y.astype(np.float32), at)))
    return explanations(arrays, asked, 0.0 if asked.power_of_two else CARRIED)


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
    arrays: list[np.ndarray], pairs: list[Pair], best: Agreement, asked: BlockFormat
) -> str:
    """Return one of the blocks that the nearest known behavior does not explain, in words."""
    if best.agree == best.of:
        return ""
    quantizer, carried = quantizer_named(best.name, asked), 0.0 if asked.power_of_two else CARRIED
    for x, (_, found) in zip(arrays, pairs, strict=True):
        y = from_lines(np, found.y.astype(np.float32), layout_of(x.shape, asked, -1))
        wrong = np.flatnonzero(~equal_blocks(quantizer(x), y, asked, carried))
        if wrong.size:
            top = np.abs(found.x[wrong[0]]).max()
            return f", such as block {wrong[0]}, whose largest magnitude is {top:.9g}"
    return ""


def _shape_name(f: BlockFormat) -> str:
    """Return the name of a block format, whatever its rule and its elements' rounding are."""
    for name, known in BLOCK_NAMED.items():
        if _shape(f) == _shape(known):
            return name
    return str(f)


def _shape(f: BlockFormat) -> tuple[object, ...]:
    return f.element.format, f.size, f.rows, f.scale, f.tensor
