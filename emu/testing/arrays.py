"""Assertions on two arrays: equal bits, distances in numbers of a format, no sign of their errors.

`assert_unbiased` has a bound that holds for any number of errors. For independent errors d_i whose
distributions are symmetric about 0, the signs are fair coins once the magnitudes are known. So
S = sum d_i is a sum of independent terms +-|d_i|, and Hoeffding's inequality gives, with
V = sum d_i^2 and for every number of terms::

    P(S / sqrt(V) >= z) <= exp(-z^2 / 2)

The sum is tested upward and downward, and along the exact numbers (away from and toward zero), so
four such events share the probability of a false alarm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.arrays import ArrayLike
from roundscope.emu.blocks.layout import axis_of
from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.numbers import as_float, check_real, is_whole
from roundscope.emu.roundings.modes import Rounding, rounding, without_saturation
from roundscope.emu.shown import shown
from roundscope.emu.testing import differences
from roundscope.emu.testing.differences import distance, is_number
from roundscope.emu.testing.given import FORMATS, floats_of, format_of, numpy_of, wide

NAN = ("any", "bits")
ZEROS = ("signed", "any")


@known_arguments
def assert_bit_equal(
    actual: ArrayLike,
    expected: ArrayLike,
    *,
    nan: str = "any",
    zeros: str = "signed",
    what: str = "",
) -> None:
    """Assert that two arrays have the same dtype, the same shape and the same bits.

    The arrays may belong to different libraries: a bfloat16 tensor of PyTorch has the dtype of a
    bfloat16 array of JAX.

    Args:
        actual: an array of floats or whole numbers of NumPy (ml_dtypes included) or JAX, or a
            tensor of PyTorch.
        expected: the array that `actual` has to equal.
        nan: "any" if every NaN equals every other, "bits" if their signs and payloads count.
        zeros: "signed" if +0 and -0 differ, "any" if they are equal.
        what: a name for the arrays, which begins the message.

    Raises:
        AssertionError: if the arrays differ. The message says how many numbers differ, and shows
            the two that are farthest apart in decimal, in hexadecimal and in bits.
        ValueError: for another word in `nan` or `zeros`.
        TypeError: for an argument that does not make an array of real numbers.

    Example:
        >>> import numpy as np
        >>> from roundscope.emu.testing import assert_bit_equal
        >>> x = np.array([1.0, -0.0, np.nan], np.float16)
        >>> assert_bit_equal(x, x.copy())
        >>> try:
        ...     assert_bit_equal(x, np.array([1.0, 0.0, np.nan], np.float16), what="out")
        ... except AssertionError as error:
        ...     print(error)
        out: 1 of 3 numbers differ (33.3 %), the first at index 1 is the farthest
          actual    -0.0                     -0x0p+0                  1|00000|0000000000
          expected  0.0                      0x0p+0                   0|00000|0000000000
          distance  0 ulps of fp16 (numbers from one to the other)
    """
    __tracebackhide__ = True
    _check_word("nan", nan, NAN)
    _check_word("zeros", zeros, ZEROS)
    a, b = numpy_of(actual, "actual"), numpy_of(expected, "expected")
    if a.dtype != b.dtype:
        raise AssertionError(
            differences.titled(what, f"actual has dtype {a.dtype}, expected {b.dtype}")
        )
    _assert_shapes(a, b, what)
    wrong = _words(a) != _words(b)
    if a.dtype.name in FORMATS:
        x, y = wide(a), wide(b)
        wrong &= ~(np.isnan(x) & np.isnan(y)) if nan == "any" else True
        wrong &= ~((x == 0) & (y == 0)) if zeros == "any" else True
    if wrong.any():
        raise AssertionError(_bits_message(a, b, wrong, what))


@known_arguments
def assert_max_ulp(
    actual: ArrayLike,
    expected: ArrayLike,
    ulps: float,
    format: str | Format | None = None,
    *,
    what: str = "",
) -> None:
    """Assert that no number is more than some ulps of a format away from the expected one.

    The expected numbers may be a reference in FP32 or FP64, as exact as you have it. A result that
    was rounded once to nearest is within 0.5 ulp of it, for every number:

        assert_max_ulp(kernel(x), reference(x.astype("float64")), 0.5, "bf16")

    Then the distance is `|actual - expected|` in ulps of the format at the expected number (at its
    largest number for one beyond it). If all expected numbers are numbers of the format and `ulps`
    is whole, the distance is the number of steps from one number of the format to its neighbor, so
    it is also right at powers of two, where the spacing changes, and across zero.

    Infinity is the number after the largest finite one, +0 and -0 are the same number, and NaN
    equals NaN alone. An infinity where the expected number rounds to that infinity has distance 0;
    any other number that is not finite where the expected one is has no distance, and fails first.

    Args:
        actual: an array of floats of NumPy (ml_dtypes included) or JAX, or a tensor of PyTorch.
        expected: an array of actual's shape; its dtype may be another, and wider.
        ulps: the largest distance that is allowed, such as 0.5 for results rounded once.
        format: the name of a format or a `Format`, for arrays of a wider dtype that hold its
            numbers; by default the format of actual's dtype.
        what: a name for the arrays, which begins the message.

    Raises:
        AssertionError: for a larger distance, for arrays of different shapes, or if `actual` has a
            number that the format does not have.
        ValueError: for an unknown format, or an `ulps` that is negative or not finite.
        TypeError: for an argument that does not make an array of floats, or for an `ulps` that is
            not a number.

    Example:
        >>> import numpy as np
        >>> from roundscope.emu.testing import assert_max_ulp
        >>> x = np.array([1.0, 2.0], np.float32)
        >>> assert_max_ulp(x, np.array([1.0078125, 2.0], np.float32), 1, "bf16")
        >>> assert_max_ulp(x, np.array([1.003, 1.998]), 0.5, "bf16")  # of exact numbers
        >>> try:
        ...     assert_max_ulp(x, np.array([1.0, 1.984375], np.float32), 1, "bf16")
        ... except AssertionError as error:
        ...     print(error)
        1 of 2 numbers differ (50 %) by more than 1 ulp of bf16, the worst at index 1
          actual    2.0                      0x1p+1                   0|10000000|0000000
          expected  1.984375                 0x1.fcp+0                0|01111111|1111110
          distance  2 ulps of bf16 (numbers from one to the other)
    """
    __tracebackhide__ = True
    if isinstance(ulps, bool) or not isinstance(ulps, (int, float, np.integer, np.floating)):
        raise TypeError(f"ulps={shown(ulps)}: must be a number, such as 1, or 0.5 of exact numbers")
    if not 0 <= as_float(ulps) < 2.0**63:
        raise ValueError(
            f"ulps={shown(ulps)}: must be finite and not negative; give 0 for equal numbers"
        )
    a, b = floats_of(actual, "actual"), floats_of(expected, "expected")
    f = format_of(a.dtype, format)
    _assert_shapes(a, b, what)
    x, y = wide(a), wide(b)
    if ulps == int(ulps) and is_number(y, f).all():
        steps = np.ravel(distance(x, y, f))
        wrong, is_counted = steps > np.uint64(int(ulps)), True
    else:
        steps = np.ravel(_ulps(x, y, f))
        wrong, is_counted = steps > ulps, False
    if wrong.any():
        is_lost = wrong & np.ravel(~np.isfinite(x) & np.isfinite(y))
        at = int(np.argmax(is_lost) if is_lost.any() else np.argmax(steps))
        plural = "s" * (ulps == 0 or ulps > 1)
        head = differences.counted(int(wrong.sum()), x.size, "numbers")
        head += f" by more than {ulps:g} ulp{plural} of {f.name}, the worst at"
        if is_lost.any():
            lost = f"{int(is_lost.sum()):,} of {x.size:,} numbers are infinite or NaN where the"
            head = f"{lost} expected ones are finite, the first at"
        raise AssertionError(
            differences.joined(
                differences.titled(what, f"{head} {differences.place(at, x.shape)}"),
                differences.written("actual", float(x.flat[at]), f),
                differences.written("expected", float(y.flat[at]), f),
                differences.apart(int(steps[at]), f)
                if is_counted
                else differences.ulps_apart(float(steps[at]), f),
            )
        )


def _ulps(x: np.ndarray, y: np.ndarray, f: Format) -> np.ndarray:
    """Return |x - y| in ulps of a format at y, float64; infinite where there is no distance.

    The difference of x and a y that is at most twice as large, or half, is exact in float64.
    """
    finite = np.isfinite(x) & np.isfinite(y) & is_number(x, f)
    at = np.clip(np.where(finite, y, 1.0), -f.max_finite, f.max_finite)
    with np.errstate(over="ignore"):
        ulps = np.abs(np.where(finite, x, 0.0) - np.where(finite, y, 0.0)) / ulp_of(at, f)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    same |= np.isinf(x) & (x == round_to(y, without_saturation(Rounding(format=f))))
    return np.where(same, 0.0, np.where(finite, ulps, np.inf))


def _assert_shapes(a: np.ndarray, b: np.ndarray, what: str) -> None:
    __tracebackhide__ = True
    if a.shape != b.shape:
        raise AssertionError(
            differences.titled(what, f"actual has shape {a.shape}, expected {b.shape}")
        )


def _check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{name}={shown(word)}: {unknown('word', word, known)}")


def _words(x: np.ndarray) -> np.ndarray:
    """Return the stored bits of an array as unsigned whole numbers."""
    return np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")


def _bits_message(a: np.ndarray, b: np.ndarray, wrong: np.ndarray, what: str) -> str:
    f = format_named(FORMATS[a.dtype.name]) if a.dtype.name in FORMATS else None
    among = np.flatnonzero(wrong)
    steps = np.ravel(distance(wide(a), wide(b), f)) if f else np.zeros(a.size, int)
    at = int(among[np.argmax(steps[among])])
    first = int(among[0]) == at
    where = differences.place(at, a.shape)
    words = f"the first at {where} is the farthest" if first else f"the farthest at {where}"
    lines = [
        differences.raw(label, int(_words(x).flat[at]), f, 8 * x.dtype.itemsize, x.flat[at].item())
        for label, x in (("actual", a), ("expected", b))
    ]
    head = differences.counted(int(wrong.sum()), wrong.size, "numbers")
    return differences.joined(
        differences.titled(what, f"{head}, {words}"),
        *lines,
        differences.apart(int(steps[at]), f) if f else "",
    )


TAILS = 4  # upward, downward, away from zero, toward zero
MOST = 1e300  # ulps that an error counts as at most, so that no sum of errors is infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """The sum of errors in one direction, and how far it is from what chance gives.

    Attributes:
        mean: the mean error in ulps, positive in the direction.
        z: S / sqrt(V) of the sums of the units; 0 if all are 0.
        units: the number of independent units.
    """

    mean: float
    z: float
    units: int


@known_arguments
def assert_unbiased(
    actual: ArrayLike,
    exact: ArrayLike,
    format: str | Format,
    *,
    groups: Any = None,
    false_alarm: float = 1e-6,
    what: str = "",
) -> None:
    """Assert that the errors actual - exact have mean zero, up to what chance gives.

    The errors are counted in ulps of the format at the exact numbers. They are tested twice: with
    their signs (up or down), and with the signs that they have along the exact numbers (away from
    zero or toward it).

    The test assumes that the units are independent and that the error of each is as likely to have
    one sign as the other, at every magnitude; it assumes nothing else of their distribution and
    holds for any number of them. Under this assumption it fails a call with at most the probability
    `false_alarm`.

    Rounding to nearest satisfies the assumption only nearly. Where numbers become rarer as their
    magnitude grows, more of them lie in the lower half of the gap between two numbers of the
    format, and the errors are biased toward zero. For numbers with a normal distribution the mean
    error is -0.0003 ulp in BF16, -0.004 ulp in E4M3 and -0.007 ulp in E5M2. With the default
    `false_alarm` the test finds this from about 30 million, 200,000 and 40,000 numbers on. For more
    numbers than these, or for inputs on few numbers, test a cast with `assert_rounds_as`.

    Args:
        actual: the numbers that were computed, an array of floats of NumPy (ml_dtypes included) or
            JAX, or a tensor of PyTorch.
        exact: the same numbers without the error to test, an array of actual's shape, best in
            float64. Entries in which it is infinite or NaN are left out.
        format: the name of the format of `actual` or a `Format`; it defines the ulp.
        groups: the units whose errors are independent. By default every number is one. An axis, a
            whole number, makes a unit of everything that has the same index along it, such as
            groups=0 for the entries of a batch. An array of whole numbers of actual's shape gives
            the unit of every number. The errors of a unit are summed first.
        false_alarm: the largest probability with which unbiased errors may fail, in (0, 1).
        what: a name for the arrays, which begins the message.

    Raises:
        AssertionError: if the errors are biased, if `actual` is not finite where `exact` is, or
            for arrays of different shapes. The message has the mean in ulps, z and its limit, the
            share of the errors that point toward zero, and the largest error.
        ValueError: for an unknown format, an axis that is not there, groups of another shape, or a
            probability outside (0, 1).
        TypeError: for an argument that does not make an array of floats, or groups that are not
            whole numbers.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> from roundscope.emu.testing import assert_unbiased
        >>> x = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
        >>> assert_unbiased(emu.round_to(x, "bf16"), x, "bf16")
        >>> try:
        ...     assert_unbiased(emu.round_to(x, "bf16", "toward-zero"), x, "bf16", what="out")
        ... except AssertionError as error:
        ...     print(*str(error).splitlines()[:3], sep="\\n")
        out: the errors are biased toward zero: z = -54.3, beyond the limit of 5.51
          up        mean +0.00954 ulp of bf16, z = +1.06
          away      mean -0.489 ulp of bf16 away from zero, z = -54.3
    """
    __tracebackhide__ = True
    f = rounding(format).format
    check_real("false_alarm", false_alarm, 0.0, 1.0, "a probability in (0, 1), such as 1e-6")
    # all tails together exceed this z with at most that probability
    limit = math.sqrt(2.0 * math.log(TAILS / false_alarm))
    x, y = wide(floats_of(actual, "actual")), wide(floats_of(exact, "exact"))
    if x.shape != y.shape:
        raise AssertionError(
            differences.titled(what, f"actual has shape {x.shape}, exact {y.shape}")
        )
    units = _units(groups, x.shape)
    counts = np.isfinite(y)
    lost = counts & ~np.isfinite(x)
    if lost.any():
        raise AssertionError(_lost_message(x, y, lost, f, what))
    d = np.zeros(y.shape)
    with np.errstate(over="ignore"):
        d[counts] = (x[counts] - y[counts]) / np.asarray(ulp_of(y[counts], f))
    d = np.clip(d, -MOST, MOST)
    up, away = _bias(d, counts, units), _bias(d * np.sign(y), counts, units)
    if max(abs(up.z), abs(away.z)) > limit:
        raise AssertionError(_message(x, y, d, up, away, limit, f, what))


def _units(groups: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the unit of every number as whole numbers from 0, or None if each number is one."""
    if groups is None:
        return None
    if is_whole(groups):
        at = axis_of(shape, int(groups))
        along = np.arange(shape[at]).reshape([-1 if n == at else 1 for n in range(len(shape))])
        return np.broadcast_to(along, shape).ravel()
    given = numpy_of(groups, "groups")
    if given.dtype.kind not in "iu":
        raise TypeError(
            f"groups: dtype {given.dtype}, must be whole numbers that name the unit of each number,"
            " or an axis"
        )
    if given.shape != shape:
        raise ValueError(f"groups: shape {given.shape}, must be that of actual, {shape}")
    return np.unique(given, return_inverse=True)[1].ravel()


def _bias(d: np.ndarray, counts: np.ndarray, units: np.ndarray | None) -> Bias:
    """Return how far the errors d are biased in the direction in which they are positive."""
    n = int(counts.sum())
    flat = d.ravel()
    sums = flat[counts.ravel()] if units is None else np.bincount(units, weights=flat)
    scale = float(np.max(np.abs(sums), initial=0.0))
    if scale == 0.0:
        return Bias(mean=0.0, z=0.0, units=sums.size)
    ratios = sums / scale  # so that no square overflows
    z = math.fsum(ratios) / math.sqrt(float(ratios @ ratios))
    return Bias(mean=math.fsum(flat) / n, z=z, units=sums.size)


def _message(
    x: np.ndarray,
    y: np.ndarray,
    d: np.ndarray,
    up: Bias,
    away: Bias,
    limit: float,
    f: Format,
    what: str,
) -> str:
    along = np.sign(d) * np.sign(y)
    inexact = int((d != 0).sum())
    toward, outward = int((along < 0).sum()), int((along > 0).sum())
    at = int(np.argmax(np.abs(d)))
    larger = max((up, away), key=lambda side: abs(side.z))
    words = ("down", "up") if larger is up else ("toward zero", "away from zero")
    head = f"the errors are biased {words[larger.z > 0]}: z = {larger.z:+.3g}, beyond the limit of"
    share = 100 * toward / max(1, toward + outward)
    return differences.joined(
        differences.titled(what, f"{head} {limit:.3g}"),
        f"  {'up':<{differences.LABEL}}mean {up.mean:+.3g} ulp of {f.name}, z = {up.z:+.3g}",
        f"  {'away':<{differences.LABEL}}mean {away.mean:+.3g} ulp of {f.name} away from zero,"
        f" z = {away.z:+.3g}",
        f"  {'signs':<{differences.LABEL}}{inexact:,} of {d.size:,} numbers have an error, of which"
        f" {share:.3g} % point toward zero",
        f"  {'units':<{differences.LABEL}}{up.units:,} that are independent",
        f"the largest error is at {differences.place(at, x.shape)}:",
        *_entry(x, y, at, f),
        differences.in_ulps(float(d.flat[at]), f),
        "rounded to nearest, this number would be:",
        differences.drawing(float(y.flat[at]), Rounding(format=f)),
    )


def _lost_message(x: np.ndarray, y: np.ndarray, lost: np.ndarray, f: Format, what: str) -> str:
    at = int(np.flatnonzero(lost)[0])
    head = f"{int(lost.sum()):,} of {x.size:,} numbers are not finite where the exact ones are,"
    return differences.joined(
        differences.titled(what, f"{head} the first at {differences.place(at, x.shape)}"),
        *_entry(x, y, at, f),
    )


def _entry(x: np.ndarray, y: np.ndarray, at: int, f: Format) -> list[str]:
    return [
        differences.written("actual", float(x.flat[at]), f),
        differences.written("exact", float(y.flat[at]), f),
    ]
