"""Judgment of a cast that rounds every number for itself, without scales."""

from collections.abc import Sequence

import numpy as np

from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.testing.casts.behaviors import casts, explanations
from roundscope.emu.testing.casts.bias import bias_row
from roundscope.emu.testing.casts.classes import QUESTIONS, allowed, classes_of, is_allowed
from roundscope.emu.testing.casts.probes import RANDOM, finite_probes
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
    Function,
    Numbers,
    Row,
    Status,
    row_of,
    same,
    skipped,
    with_whole,
)
from roundscope.emu.testing.casts.returned import call, in_words, numbers_of
from roundscope.emu.testing.casts.steady import steady_rows
from roundscope.emu.testing.foreign import ForeignError

SPECIALS = {
    "infinities": ("What becomes of infinities?", np.array([np.inf, -np.inf], np.float32)),
    "NaN": (
        "Does NaN stay NaN, whatever its sign and payload?",
        np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32),
    ),
}


def examine_elements(function: Function, asked: Rounding) -> CastReport:
    """Return the judgment of a cast that is meant to round every number as `asked`."""
    f, x = asked.format, finite_probes(asked.format)
    raw = call(function, x)
    got, wide = numbers_of(raw, f, x.shape, "result"), x.astype(np.float64)
    rows: Sequence[Row] = [
        *class_rows(wide, got, asked),
        zero_row(wide, got, asked, asked.format.negative_zero),
        *(_special_row(function, name, asked) for name in SPECIALS),
        bias_row(wide[:RANDOM], got[:RANDOM], asked),
        *steady_rows(function, x[:RANDOM], asked),
    ]
    known, noun = explanations(wide, got, asked), "finite numbers"
    agree = int(is_allowed(got, wide, asked)[0].sum())
    whole = Agreement(name=_full(asked), agree=agree, of=wide.size)
    rows = with_whole(rows, noun, whole)
    best = known[0]
    is_random = asked.mode is RoundingMode.STOCHASTIC
    has_failed = any(row.status is Status.FAIL for row in rows)
    is_asked = is_random and agree == wide.size and not has_failed
    return CastReport(
        asked=asked,
        title=str(asked),
        name=_full(asked),
        whole=whole,
        noun=noun,
        remaining=_remaining(wide, got, best, asked),
        is_random=is_random,
        behaves_as=best.name if best.agree == best.of else _full(asked) if is_asked else None,
        rows=rows,
        behaviors=tuple(known),
        returned=in_words(raw, f),
    )


def class_rows(
    q: Numbers,
    got: Numbers,
    r: Rounding,
    scale: Numbers | float = 1.0,
    given: Numbers | None = None,
) -> list[Row]:
    """Return a row for each class of quotients.

    Args:
        q: the quotients, which are the inputs of the rounding.
        got: the results, divided by the scale.
        r: the asked rounding.
        scale: the scale of each quotient, or 1.
        given: the numbers before they were divided by the scale; the quotients by default.
    """
    good, expected = is_allowed(got, q, r)
    scales = np.broadcast_to(np.asarray(scale, np.float64), q.shape)
    inputs = q if given is None else given
    return [
        row_of(
            name,
            QUESTIONS[name],
            good[mask],
            inputs[mask],
            (got * scales)[mask],
            (expected * scales)[mask],
            f=r.format,
            scale=scales[mask],
        )
        for name, mask in classes_of(q, r).items()
    ]


def zero_row(q: Numbers, got: Numbers, r: Rounding, signed: bool) -> Row:
    """Return the row on zeros, and on small numbers that round to zero: is the sign kept?

    signed: whether the results can hold a negative zero.
    """
    one, other = allowed(q, r)
    mask = (one == 0) & (other == 0) & (got == 0)
    q, got, expected = q[mask], got[mask], one[mask]
    name, question = "signed zeros", "Do zeros, and numbers that round to zero, keep their sign?"
    if not signed:
        return skipped(name, question, f"{r.format.name} has no negative zero")
    good = np.signbit(got) == np.signbit(expected)
    return row_of(name, question, good, q, got, expected, f=r.format)


def _special_row(function: Function, name: str, r: Rounding) -> Row:
    """Return the row on infinities or NaN, each of which is a call of its own."""
    question, x = SPECIALS[name]
    try:
        got = numbers_of(call(function, x), r.format, x.shape, "result")
    except ForeignError as error:
        if not error.is_refusal:
            raise
        return skipped(name, question, str(error))
    if name == "NaN" and not r.format.nan:
        became = ", ".join(dict.fromkeys(f"{y:g}" for y in got))
        return skipped(name, question, f"{r.format.name} has no NaN; NaN became {became}")
    wide = x.astype(np.float64)
    good, expected = is_allowed(got, wide, r)
    return row_of(name, question, good, wide, got, expected, f=r.format)


def _remaining(x: Numbers, got: Numbers, best: Agreement, asked: Rounding) -> str:
    """Return one of the numbers that the nearest known rounding does not explain, in words."""
    if best.agree == best.of:
        return ""
    wrong = np.flatnonzero(~same(got, dict(casts(asked))[best.name](x)))
    return f", such as {x[wrong[0]]:.9g}, which becomes {got[wrong[0]]:.9g}"


def _full(r: Rounding) -> str:
    """Return a rounding with its mode and its overflow policy, whatever the defaults are."""
    return f"{r.format.name}:{r.mode}:{r.overflow}"
