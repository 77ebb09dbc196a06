"""Judgment of a cast that rounds every number for itself, without scales."""

import numpy as np

from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.testing.casts.behaviors import explanations
from roundscope.emu.testing.casts.bias import bias_row
from roundscope.emu.testing.casts.classes import QUESTIONS, allowed, classes_of, is_allowed
from roundscope.emu.testing.casts.probes import RANDOM, finite_probes
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
    Function,
    Numbers,
    Row,
    row_of,
    skipped,
)
from roundscope.emu.testing.casts.returned import CallError, call, in_words, numbers_of
from roundscope.emu.testing.casts.steady import steady_rows

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
    rows = [
        *class_rows(wide, got, asked),
        zero_row(wide, got, asked, asked.format.negative_zero),
        *(_special_row(function, name, asked) for name in SPECIALS),
        bias_row(wide[:RANDOM], got[:RANDOM], asked),
        *steady_rows(function, x[:RANDOM], asked),
    ]
    known = explanations(wide, got, asked)
    return CastReport(
        asked=asked,
        sentence=_sentence(wide, got, asked, known),
        behaves_as=_behaves_as(wide, got, asked, known),
        rows=tuple(rows),
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
    except CallError as error:
        return skipped(name, question, str(error))
    if name == "NaN" and not r.format.nan:
        became = ", ".join(dict.fromkeys(f"{y:g}" for y in got))
        return skipped(name, question, f"{r.format.name} has no NaN; NaN became {became}")
    wide = x.astype(np.float64)
    good, expected = is_allowed(got, wide, r)
    return row_of(name, question, good, wide, got, expected, f=r.format)


def _sentence(x: Numbers, got: Numbers, asked: Rounding, known: list[Agreement]) -> str:
    good, _ = is_allowed(got, x, asked)
    wrong, of = int((~good).sum()), x.size
    best = known[0]
    if not wrong and best.agree == of and _is_stochastic(asked):
        return f"{best.name}, not {_full(asked)}: nothing is drawn."
    if not wrong:
        return f"{asked} as asked: all {of:,} finite numbers are rounded so."
    differ = f"{wrong:,} of {of:,} numbers differ from {_full(asked)}"
    if best.agree == of:
        return f"{best.name}, not {_full(asked)}: {differ}."
    nearest = f"the nearest is {best.name}, which explains {best.agree:,}"
    return f"No known rounding explains the results: {differ}; {nearest}."


def _behaves_as(x: Numbers, got: Numbers, asked: Rounding, known: list[Agreement]) -> str | None:
    """Return the name of the rounding that explains all results, or None."""
    if known[0].agree == x.size:
        return known[0].name
    is_asked = _is_stochastic(asked) and bool(is_allowed(got, x, asked)[0].all())
    return _full(asked) if is_asked else None


def _is_stochastic(r: Rounding) -> bool:
    return r.mode is RoundingMode.STOCHASTIC


def _full(r: Rounding) -> str:
    """Return a rounding with its mode and its overflow policy, whatever the defaults are."""
    return f"{r.format.name}:{r.mode}:{r.overflow}"
