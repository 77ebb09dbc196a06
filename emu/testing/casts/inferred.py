"""Scales of blocks, inferred from the numbers that a quantizer returned.

In E4M3 and other formats with many exponents a number is often an element under several scales.
Only numbers that are subnormal under a scale, and those beyond the largest element, tell scales
apart, so blocks whose numbers fit several scales equally well get the asked one.
"""

from typing import NamedTuple

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode
from roundscope.emu.testing.casts.behaviors import FaultyCast
from roundscope.emu.testing.casts.classes import is_allowed
from roundscope.emu.testing.casts.records import Numbers, same

POWERS = range(-3, 4)  # inferred scales of power-of-two rules, in powers of two about FLOOR's
STEPS = range(-2, 3)  # other inferred scales, in numbers of the scale format about the asked one


class Scales(NamedTuple):
    """Inferred scales, the elements under them, how well each block fits, and if it fits at all.

    A block fits if each of its numbers is an element, times the scale, next to its quotient.
    """

    scales: Numbers
    elements: Numbers
    score: Numbers
    fit: np.ndarray


def inferred(
    x: Numbers,
    y: Numbers,
    asked: Numbers,
    f: BlockFormat,
    carried: float,
    cast: FaultyCast | None = None,
) -> Scales:
    """Return the scales that explain best what a quantizer returned.

    Args:
        x: blocks of inputs, divided by the scale of the whole array.
        y: what the quantizer made of them, divided by it too.
        asked: the scales that the asked rule gives, which are preferred among equals.
        f: the asked block format.
        carried: the relative error that y may have.
        cast: how elements are supposed to be rounded; by default as asked.
    """
    first, *others = _candidates(asked, x, f)
    elements, each = fitting(x, y, first, f, carried, cast)
    best, score, is_asked = first, each.sum(axis=1), each.all(axis=1)
    fit: np.ndarray = np.asarray(is_asked)
    for scales in others:
        under, each = fitting(x, y, scales, f, carried, cast)
        found, is_perfect = each.sum(axis=1), (each == 2).all(axis=1)
        # numbers that the asked scale explains are not said to have another one, but for blocks
        # that another power of two explains better in every number
        better = (found > score) & (~is_asked | (is_perfect & f.power_of_two))
        best, score = np.where(better, scales, best), np.where(better, found, score)
        fit = np.where(better, each.all(axis=1), fit)
        elements = np.where(better[:, None], under, elements)
    return Scales(best, elements, score, fit)


def fitting(
    x: Numbers,
    y: Numbers,
    scales: Numbers,
    f: BlockFormat,
    carried: float,
    cast: FaultyCast | None = None,
) -> tuple[Numbers, Numbers]:
    """Return what the elements would be under these scales, and how well each number fits."""
    product = scales[:, None]
    elements = _on_grid(y / product, f.element.format, carried)
    elements, score = _scored(x / product, elements, f.element, y, product, cast)
    return elements, score


def _candidates(asked: Numbers, x: Numbers, f: BlockFormat) -> list[Numbers]:
    """Return scales that a block may have, those of the asked rule first."""
    if f.power_of_two:
        top = np.abs(x).max(axis=1)
        top = np.where(np.isfinite(top) & (top > 0), top, 1.0)
        floor = np.ldexp(1.0, np.frexp(top)[1] - 1 - f.element.format.emax)
        return [asked, *(np.minimum(np.ldexp(floor, k), f.scale.max_finite) for k in POWERS)]
    steps = [asked * (1 + k * f.scale.epsilon) for k in STEPS if k]
    near = [np.maximum(round_to(s, Rounding(format=f.scale)), f.scale.min_positive) for s in steps]
    return [asked, *near]


def _on_grid(p: Numbers, f: Format, carried: float) -> Numbers:
    """Return results divided by a scale, moved to the element that they miss by a last bit."""
    if not carried:
        return p
    nearest = round_to(p, Rounding(format=f, overflow=Overflow.SATURATE))
    return np.where(np.abs(p - nearest) <= carried * np.abs(nearest), nearest, p)


def _scored(
    q: Numbers, p: Numbers, r: Rounding, y: Numbers, product: Numbers, cast: FaultyCast | None
) -> tuple[Numbers, Numbers]:
    """Return elements and their scores: 2 for that of the cast, 1 for one next to the quotient.

    Where an element is beyond float32 once it is multiplied, the result cannot say which element it
    was, and it counts as that of the cast.
    """
    f = r.format
    low = Rounding(format=f, mode=RoundingMode.TOWARD_ZERO, overflow=Overflow.SATURATE)
    clipped = (np.abs(p) == f.max_finite) & (np.abs(q) > f.max_finite)
    near = (p == round_to(p, low)) & ((np.abs(p - q) < ulp_of(q, f)) | clipped)
    good, expected = is_allowed(p, q, r)
    if cast is not None:
        expected = cast(q, r)
        good = same(p, expected)
    beyond = ~good & np.isinf(y) & (y == (expected * product).astype(np.float32))
    return np.where(beyond, expected, p), np.where(good | beyond, 2, near.astype(int))
