"""Judgment of a cast that rounds every number for itself, and the rows that any cast is asked.

The inputs are systematic float32 numbers, and random ones.

Numbers fall into classes, found from the numbers themselves. A quotient is what one rounding is
given: the number itself, or in blocks the number divided by its scale. Whether it is a tie or lies
beyond the largest number depends on the quotient alone, so casts with and without scales share
these classes, and the rows on bias and on a second call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.backends.ops import Array
from roundscope.emu.blocks.format import INTEGERS
from roundscope.emu.explanation.encoding import code_of
from roundscope.emu.formats.codes import decode
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Overflow, Rounding, RoundingMode, rounding
from roundscope.emu.stats.comparison import agree as same
from roundscope.emu.tensors import is_tensor
from roundscope.emu.testing.casts.behaviors import casts, explanations
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
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
from roundscope.emu.testing.casts.returned import call, in_words, numbers_of
from roundscope.emu.testing.foreign import ForeignError

F32 = np.float32
WHOLE = 16  # bits of a format up to which every code is a probe
SAMPLED = 1 << 15  # codes of a wider format
RANDOM = 1 << 16  # random numbers
SLACK = 2.0**-21  # of a quotient that was divided in float32
LARGEST32 = float(np.finfo(F32).max)


def magnitudes(f: Format) -> Numbers:
    """Return the finite magnitudes of a format in ascending order, or a sample of a wide format."""
    from roundscope.emu.backends.numba.ops import numpy_ops

    count = 1 << (f.bits - int(f.signed))
    codes: Array = np.arange(min(count, 1 << WHOLE), dtype=np.int64)
    if f.bits > WHOLE:
        drawn = np.random.default_rng(0).integers(0, count - 1, SAMPLED)
        last = code_of(f.max_finite, f)
        assert last is not None
        ends = [codes[:64], np.arange(last - 64, last + 1)]
        codes = np.unique(np.concatenate([*ends, drawn, drawn + 1]))
    numbers: Numbers = decode(numpy_ops(), codes, f)
    found: Numbers = numbers[np.isfinite(numbers) & (numbers <= f.max_finite)]
    return found


def midpoints(f: Format) -> Numbers:
    """Return the numbers halfway between neighboring magnitudes, the overflow threshold included.

    The threshold is the midpoint of the largest number and the number that would follow it.
    """
    m = magnitudes(f)
    exponent = np.where(m > 0, np.maximum(np.frexp(m)[1] - 1, f.emin), f.emin)
    gap = np.ldexp(1.0, exponent - f.precision)  # half an ulp
    middles: Numbers = m + gap
    return middles


def finite_probes(f: Format) -> np.ndarray:
    """Return finite float32 inputs of both signs: numbers of the format, ties and their neighbors.

    Every number of the format and every midpoint is there, with the float32 numbers on both sides
    of each. There are numbers beyond the overflow threshold up to the largest float32 number, and
    random numbers over the whole range of the format. The array starts with the random numbers.
    """
    systematic = np.concatenate([magnitudes(f), midpoints(f), _large(f)]).astype(F32)
    systematic = systematic[np.isfinite(systematic)]
    with np.errstate(over="ignore"):
        above = np.nextafter(systematic, F32(np.inf))
    around = [systematic, above, np.nextafter(systematic, F32(0))]
    positive = np.unique(np.concatenate(around))
    positive = positive[np.isfinite(positive)]
    return np.concatenate([random_numbers(f, RANDOM), positive, -positive])


def _large(f: Format) -> Numbers:
    """Return magnitudes from the largest number on, up to the largest of float32."""
    powers = f.max_finite * 2.0 ** np.arange(0.0, 128.0, 1.0)
    beyond = f.max_finite * (1 + np.arange(1, 9) * f.epsilon / 4)
    large = np.concatenate([beyond, powers, [LARGEST32]])
    kept: Numbers = large[large <= LARGEST32]
    return kept


def random_numbers(f: Format, n: int) -> np.ndarray:
    """Return random float32 numbers of the normal range of a format, of both signs.

    Within each power of two the numbers are uniform, so that errors of rounding to nearest have the
    mean zero.
    """
    rng = np.random.default_rng(1)
    low, high = max(f.emin, -126), min(f.emax, 127)
    x = np.ldexp(rng.uniform(1, 2, n), rng.integers(low, max(low + 1, high), n))
    signed: np.ndarray = (x * rng.choice([-1.0, 1.0], n)).astype(F32)
    return signed


BESIDE = 2.0**-21  # how far from a tie a number counts as beside it, relative to the number
QUESTIONS: Mapping[str, str] = {
    "round trip": "Does every number of the format map to itself?",
    "ties": "Where does a number halfway between two numbers of the format go?",
    "beside ties": "Is a number that lies just beside a tie rounded to its own side?",
    "subnormals": "Are numbers below the smallest normal number rounded, and not flushed to zero?",
    "overflow": "What becomes of finite numbers above the largest number of the format?",
    "other numbers": "Are all other numbers rounded as asked?",
}


def classes_of(q: Numbers, r: Rounding) -> dict[str, np.ndarray]:
    """Return which quotients belong to each class of `QUESTIONS`, as boolean arrays.

    Only "round trip" overlaps with others: it has every number of the format. Zeros, infinities and
    NaN belong to no class.
    """
    f, a = r.format, np.abs(q)
    finite = np.isfinite(q) & (q != 0)
    low, high = bracket(q, f)
    middle = (low + high) / 2
    exact, over = finite & (low == q), finite & (a > f.max_finite)
    has_subnormals = f not in INTEGERS.values()  # integers are equally spaced
    small = finite & ~exact & (a < f.min_normal) & has_subnormals
    rest = finite & ~exact & ~over & ~small
    tie = rest & (q == middle)
    beside = rest & ~tie & (np.abs(q - middle) <= BESIDE * a)
    found = (exact & ~over, tie, beside, small, over, rest & ~tie & ~beside)
    return dict(zip(QUESTIONS, found, strict=True))


def bracket(q: Numbers, f: Format) -> tuple[Numbers, Numbers]:
    """Return the numbers of the format next to each quotient, toward zero and away from it.

    They are equal for a number of the format. Beyond the largest number both are that number.
    """
    toward = Rounding(format=f, mode=RoundingMode.TOWARD_ZERO, overflow=Overflow.SATURATE)
    away = Rounding(format=f, mode=RoundingMode.AWAY_FROM_ZERO, overflow=Overflow.SATURATE)
    return round_to(q, toward), round_to(q, away)


def allowed(q: Numbers, r: Rounding) -> tuple[Numbers, Numbers]:
    """Return the two results that a rounding may give for each quotient.

    They are equal unless the mode is stochastic.
    """
    if r.mode is not RoundingMode.STOCHASTIC:
        expected: Numbers = round_to(q, r)
        return expected, expected
    return (
        round_to(q, rounding(r, RoundingMode.TOWARD_ZERO)),
        round_to(q, rounding(r, RoundingMode.AWAY_FROM_ZERO)),
    )


def is_allowed(got: Numbers, q: Numbers, r: Rounding) -> tuple[np.ndarray, Numbers]:
    """Return where the results are allowed, and the expected result nearest to what was got."""
    one, other = allowed(q, r)
    with np.errstate(invalid="ignore"):
        expected = np.where(np.abs(got - other) < np.abs(got - one), other, one)
    return same(got, one) | same(got, other), expected


QUESTION = "Do the errors on random numbers have the mean that the asked rounding gives?"
LIMIT = 6.0  # the |z| above which a mean is not chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean of many errors, and its distance from 0 in standard errors (z)."""

    mean: float
    z: float

    @property
    def is_biased(self) -> bool:
        """True if the mean is farther from 0 than chance explains."""
        return abs(self.z) > LIMIT


def mean_of(d: Numbers) -> Mean:
    """Return the mean of errors with its z; z is infinite for equal errors other than 0."""
    mean, error = float(d.mean()), float(d.std()) / math.sqrt(d.size)
    z = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    return Mean(mean=mean, z=z)


def bias_row(q: Numbers, got: Numbers, r: Rounding, of: str = "") -> Row:
    """Return the row on the bias of results for random quotients.

    The mean error is measured in ulps of the format, up or down and also along the number, away
    from zero or toward it. The row fails if either differs from that of the asked rounding on the
    same numbers by more than chance gives. In the stochastic mode the asked mean is 0.

    Args:
        q: random quotients; those outside the finite range of the format are left out.
        got: the results for them.
        r: the asked rounding.
        of: what was random in words, for the note.
    """
    kept = (np.abs(q) <= r.format.max_finite) & (q != 0) & np.isfinite(got)
    q, got = q[kept], got[kept]
    if not q.size:
        return skipped("bias", QUESTION, "no finite result")
    good, expected = is_allowed(got, q, r)
    against = q if r.mode is RoundingMode.STOCHASTIC else expected
    ulps = ulp_of(q, r.format)
    extra = (got - against) / ulps
    parts = [extra, np.sign(q) * extra]
    if r.mode is RoundingMode.STOCHASTIC:
        parts += _halves(q, np.sign(q) * extra, r.format)
    is_biased = any(mean_of(d).is_biased for d in parts)
    note = _in_words(q, got, ulps, r.format)
    asked = [mean_of(x * (expected - q) / ulps) for x in (np.sign(q), np.ones_like(q))]
    if not is_biased and any(m.is_biased for m in asked):
        note += f"; no more than {r} itself has on these numbers"
    row = row_of("bias", QUESTION, good, q, got, expected, f=r.format, note=f"{note}{of}")
    if is_biased:
        return replace(row, status=Status.FAIL)
    return replace(row, status=Status.PASS, examples=())


def _halves(q: Numbers, d: Numbers, f: Format) -> list[Numbers]:
    """Return the errors of quotients nearer to zero's side of their neighbors, and of the others.

    Rounding to nearest has a mean error of 0 over both together, but not over each.
    """
    low, high = (np.abs(side) for side in bracket(q, f))
    near = np.abs(q) < (low + high) / 2
    return [part for part in (d[near], d[~near & (low != high)]) if part.size]


def _in_words(q: Numbers, got: Numbers, ulps: Numbers, f: Format) -> str:
    error = (got - q) / ulps
    updown, along = mean_of(error), mean_of(np.sign(q) * error)
    direction = "toward zero" if along.mean < 0 else "away from zero"
    side = "down" if updown.mean < 0 else "up"
    return (
        f"mean error along the number {along.mean:+.4f} ulps (z {_z(along)})"
        + (f", {direction}" if along.is_biased else "")
        + f"; up or down {updown.mean:+.4f} (z {_z(updown)})"
        + (f", {side}" if updown.is_biased else "")
        + f"; norm {_norm(q, got):+.3%}"
    )


def _z(m: Mean) -> str:
    return f"{m.z:+.1f}" if math.isfinite(m.z) else f"{m.z:+}"


def _norm(q: Numbers, got: Numbers) -> float:
    """Return by how much the norm grows, all numbers brought to the same power of two first."""
    e = np.ldexp(1.0, -np.frexp(q)[1])
    return math.sqrt(float(((got * e) ** 2).sum() / ((q * e) ** 2).sum())) - 1


AGAIN = "Does a second call on the same numbers return the same bits?"
INPUT = "Does the function leave its input as it was?"


def steady_rows(function: Function, x: np.ndarray, r: Rounding) -> list[Row]:
    """Return the rows on a second call and on the input, for random numbers."""
    if r.mode is RoundingMode.STOCHASTIC:
        return [skipped("second call", AGAIN, "the mode is stochastic"), _input_row(function, x)]
    first, second = (_bytes(call(function, x)) for _ in range(2))
    return [counted("second call", AGAIN, int(first == second), 1), _input_row(function, x)]


def _input_row(function: Function, x: np.ndarray) -> Row:
    given, before = x.copy(), x.copy()
    seen = []

    def keeping(y: np.ndarray) -> object:
        seen.append(y)
        return function(y)

    try:
        call(keeping, given)
    except ForeignError as error:
        if not error.is_refusal:
            raise
        return skipped("input kept", INPUT, str(error))
    return counted("input kept", INPUT, int(np.array_equal(seen[0], before)), 1)


def _bytes(returned: object) -> bytes:
    """Return the bytes of an array, or of the arrays of a tuple."""
    if isinstance(returned, (tuple, list)):
        return b"".join(_bytes(part) for part in returned)
    if is_tensor(returned):
        import torch

        assert isinstance(returned, torch.Tensor)
        return returned.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(np.asarray(returned)).tobytes()


SPECIALS = {
    "infinities": ("What becomes of infinities?", np.array([np.inf, -np.inf], np.float32)),
    "NaN": (
        "Does NaN stay NaN, whatever its sign and payload?",
        np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32),
    ),
}


def examine_elements(
    function: Function, asked: Rounding, scale: float = 1.0, *, is_narrow: bool = False
) -> CastReport:
    """Return the judgment of a cast that is meant to round every number as `asked`.

    scale: the number that the function divides by before it rounds, and by which float32 numbers
        that it returns were multiplied again
    is_narrow: whether quotients are meant to be rounded to float32 before they are to elements
    """
    f, x = asked.format, finite_probes(asked.format)
    if scale != 1.0:
        x = (x.astype(np.float64) * scale).astype(F32)
        x = x[np.isfinite(x)]
    raw = call(function, x)
    got, wide = unscaled(raw, scale, f, x.shape), x.astype(np.float64) / scale
    wide = wide.astype(F32).astype(np.float64) if is_narrow else wide
    rows: Sequence[Row] = [
        *class_rows(wide, got, asked, scale, x.astype(np.float64)),
        zero_row(wide, got, asked, asked.format.negative_zero),
        *(_special_row(function, name, asked, scale) for name in SPECIALS),
        bias_row(wide[:RANDOM], got[:RANDOM], asked),
        *steady_rows(function, x[:RANDOM], asked),
    ]
    known, noun = explanations(wide, got, asked, scale != 1.0), "finite numbers"
    agree = int(is_allowed(got, wide, asked)[0].sum())
    whole = Agreement(name=_full(asked), agree=agree, of=wide.size)
    rows = with_whole(rows, noun, whole)
    best = known[0]
    is_random = asked.mode is RoundingMode.STOCHASTIC
    has_failed = any(row.status is Status.FAIL for row in rows)
    is_asked = is_random and agree == wide.size and not has_failed
    other = None
    if scale != 1.0 and not is_random and agree < wide.size and best.agree < best.of:
        other = another_scale(x.astype(np.float64), _counted(got, f), asked)
    return CastReport(
        asked=asked,
        title=str(asked) if scale == 1.0 else f"{asked} of numbers over {scale:g}",
        name=_full(asked),
        whole=whole,
        noun=noun,
        otherwise=other,
        remaining=_remaining(wide, got, best, asked, scale != 1.0),
        is_random=is_random,
        behaves_as=best.name if best.agree == best.of else _full(asked) if is_asked else None,
        rows=rows,
        behaviors=tuple(known),
        returned=in_words(raw, f),
    )


def another_scale(x: Numbers, elements: Numbers, asked: Rounding) -> Otherwise | None:
    """Return the one scale under which rounding gives most elements, if it gives at least half.

    Each element leaves an interval of scales, from the middle of it and its neighbours; what is
    named is the shortest number that lies in all of them.
    """
    f = asked.format
    kept = np.isfinite(elements) & (elements != 0) & (np.abs(elements) < f.max_finite)
    kept &= np.sign(elements) == np.sign(x)
    if not kept.any():
        return None
    e = np.abs(elements[kept])
    half = ulp_of(e, f) / 2
    low = float((np.abs(x[kept]) / (e + half)).max())
    with np.errstate(divide="ignore"):
        high = float(np.where(e > half, np.abs(x[kept]) / (e - half), np.inf).min())
    low, high = low * (1 - SLACK), high * (1 + SLACK)
    if not 0 < low <= high < np.inf:
        return None
    scale = _shortest(low, high)
    agree = int(is_allowed(elements, x / float(F32(scale)), asked)[0].sum())
    if 2 * agree < x.size:
        return None
    return Otherwise("tensor_scale", repr(scale), agree, x.size)


def _counted(elements: Numbers, f: Format) -> Numbers:
    """Return elements of integers, whose products had another scale, by counting their steps."""
    unit = 2.0 ** (f.precision - 1)
    is_grid = f in INTEGERS.values() and (elements != 0).any()
    if not is_grid or np.isin(np.abs(elements) * unit, np.arange(unit + 1)).all():
        return elements
    steps = elements / np.abs(elements[elements != 0]).min()
    return np.rint(steps) / unit if np.allclose(steps, np.rint(steps), atol=1e-3) else elements


def _shortest(low: float, high: float) -> float:
    """Return the power of two, or else the number of fewest digits, between two numbers."""
    power = 2.0 ** math.ceil(math.log2(low))
    tried = (float(f"{(low + high) / 2:.{digits}g}") for digits in range(1, 17))
    return next((s for s in (power, *tried) if low <= s <= high), (low + high) / 2)


def unscaled(returned: Any, scale: float, f: Format, shape: tuple[int, ...]) -> Numbers:
    """Return the elements of what a function returned: codes, or numbers times the scale.

    A product that was rounded to float32 counts as the element that was multiplied.
    """
    y = numbers_of(returned, f, shape, "result")
    wide = ("float32", "float64")
    if scale == 1.0 or str(returned.dtype).removeprefix("torch.") not in wide:
        return y
    p = y / scale
    nearest = round_to(p, Rounding(format=f, overflow=Overflow.SATURATE))
    found: Numbers = np.where(np.abs(p - nearest) <= 2.0**-22 * np.abs(nearest), nearest, p)
    return found


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


def _special_row(function: Function, name: str, r: Rounding, scale: float) -> Row:
    """Return the row on infinities or NaN, each of which is a call of its own."""
    question, x = SPECIALS[name]
    try:
        got = unscaled(call(function, x), scale, r.format, x.shape)
    except ForeignError as error:
        if not error.is_refusal:
            raise
        return skipped(name, question, str(error))
    if name == "NaN" and not r.format.nan:
        became = ", ".join(dict.fromkeys(f"{y:g}" for y in got))
        return skipped(name, question, f"{r.format.name} has no NaN; NaN became {became}")
    wide = x.astype(np.float64)
    good, expected = is_allowed(got, wide, r)
    row = row_of(name, question, good, wide, got, expected, f=r.format)
    wrong = zip(x.view(np.uint32)[~good], got[~good], strict=True)
    return replace(row, note="; ".join(f"0x{bits:08x} became {y:g}" for bits, y in wrong))


def _remaining(
    x: Numbers, got: Numbers, best: Agreement, asked: Rounding, is_quotient: bool
) -> str:
    if best.agree == best.of:
        return ""
    wrong = np.flatnonzero(~same(got, dict(casts(asked, is_quotient))[best.name](x)))
    return f", such as {x[wrong[0]]:.9g}, which becomes {got[wrong[0]]:.9g}"


def _full(r: Rounding) -> str:
    """Return a rounding with its mode and its overflow policy, whatever the defaults are."""
    return f"{r.format.name}:{r.mode}:{r.overflow}"
