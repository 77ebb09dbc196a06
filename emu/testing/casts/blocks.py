"""Judgment of a quantizer whose numbers share scales in blocks."""

import numpy as np

from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat
from roundscope.emu.blocks.layout import from_lines, layout_of
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.testing.casts.behaviors import FaultyCast
from roundscope.emu.testing.casts.bias import bias_row
from roundscope.emu.testing.casts.block_behaviors import explanations, name_of
from roundscope.emu.testing.casts.block_probes import edge_blocks, element_blocks, random_blocks
from roundscope.emu.testing.casts.classes import is_allowed
from roundscope.emu.testing.casts.elements import class_rows, zero_row
from roundscope.emu.testing.casts.quantized import CARRIED, Quantized, quantized, under_cast
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
    Function,
    Numbers,
    Row,
    row_of,
)
from roundscope.emu.testing.casts.scale_rows import Pair, scale_agreements, scale_rows
from roundscope.emu.testing.casts.special_blocks import special_rows
from roundscope.emu.testing.casts.steady import steady_rows


def examine_blocks(function: Function, asked: BlockFormat) -> CastReport:
    """Return the judgment of a quantizer that is meant to implement a block format."""
    arrays = [probes(asked) for probes in (edge_blocks, random_blocks, element_blocks)]
    pairs = [(x, quantized(function, x, asked)) for x in arrays]
    known, cast = _explanations(pairs, asked)
    pairs = [(x, under_cast(found, x, asked, cast)) for x, found in pairs]
    scales, exceptions = scale_agreements(pairs, asked)
    rows = [
        *scale_rows(pairs, asked),
        *_element_rows([found for _, found in pairs], asked),
        *special_rows(function, asked),
        _bias(pairs[1][1], asked),
        *steady_rows(function, arrays[1], asked.element),
    ]
    best = known[0]
    return CastReport(
        asked=asked,
        sentence=_sentence(known, asked),
        behaves_as=best.name if best.agree == best.of else None,
        rows=tuple(rows),
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


def _sentence(known: list[Agreement], asked: BlockFormat) -> str:
    own = name_of(asked, asked)
    base = next(a for a in known if a.name == own)
    best, of = known[0], base.of
    if base.agree == of:
        return f"{_shape_name(asked)} with {own}, as asked: all {of:,} blocks are equal."
    differ = f"{of - base.agree:,} of {of:,} blocks differ from {own}"
    if best.agree == of:
        return f"{_shape_name(asked)} with {best.name}, not {own}: {differ}."
    return (
        f"No known rule explains all blocks: {differ}; the nearest, {best.name}, explains"
        f" {best.agree:,}."
    )


def _shape_name(f: BlockFormat) -> str:
    """Return the name of a block format, whatever its rule and its elements' rounding are."""
    for name, known in BLOCK_NAMED.items():
        if _shape(f) == _shape(known):
            return name
    return str(f)


def _shape(f: BlockFormat) -> tuple[object, ...]:
    return f.element.format, f.size, f.rows, f.scale, f.tensor
