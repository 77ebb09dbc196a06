"""Assertions on two arrays: equal bits, and distances in numbers of a format."""

from __future__ import annotations

import numpy as np

from roundscope.emu.api import round_to, ulp_of
from roundscope.emu.arrays import ArrayLike
from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.numbers import as_float
from roundscope.emu.roundings.modes import Rounding, without_saturation
from roundscope.emu.shown import shown
from roundscope.emu.testing import differences
from roundscope.emu.testing.differences import distance, is_number
from roundscope.emu.testing.given import FORMATS, floats_of, format_of, numpy_of, wide

NAN = ("any", "bits")
ZEROS = ("signed", "any")


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
