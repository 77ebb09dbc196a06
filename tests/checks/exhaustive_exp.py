"""Every binary32 argument of exp: `make exhaustive`.

    python -m tests.checks.exhaustive_exp

`exp64` rounds correctly to every format of up to 24 bits, in every mode, if its binary64 result and
e^x lie on the same side of every *boundary*: a number of 24 bits, or the midpoint of two; in the
bits of a binary64 number, a multiple of 2^28. (A narrower format, or one at its subnormal numbers,
has some of these boundaries and no others.) The error of exp64 is below 0.7 ulp, so only results
within WINDOW ulps of a boundary can be on the wrong side: all 2^32 arguments are searched for
those, by a scalar copy of exp64, and each is settled with 60 digits. Three classes need no search:

    tiny       0 < |x| < 2^-48:  1 < e^x < 1 + 2 x, or 1 + 2 x < e^x < 1, where no boundary lies: so
               must the result
    saturated  finite, outside [-400, 709]: e^-400 and e^709 lie beyond the numbers of every
               binary32 exponent
    special    0, the infinities, NaN

The scalar copy, exp64 on NumPy and exp64 on XLA must agree in every bit on 2^24 arguments. The
wrong arguments are printed, and make the exit code 1.
"""

import sys
import time
from collections.abc import Iterator

import mpmath
import numba
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.numba.rounding import parallel
from roundscope.emu.functions import (
    BOUNDARY,
    EXP_TERMS,
    LARGEST_ARGUMENT,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    SMALLEST_ARGUMENT,
    exp64,
)

WINDOW = 4  # ulps
TINY = 2.0**-48
LOWEST, HIGHEST = (
    float(exp64(numpy_ops(), np.array([v]))[0]) for v in (SMALLEST_ARGUMENT, LARGEST_ARGUMENT)
)
MAX_ERROR = 0.7  # ulps, checked on a sample
CHUNK = 1 << 22
CLASSES = ("far from a boundary", "near a boundary", "tiny", "saturated", "special")
FAR, NEAR, SMALL, SATURATED, SPECIAL = range(5)


@numba.njit
def scalar_exp64(x):
    """`emu.functions.exp64` of one number, operation for operation."""
    z = min(max(x, SMALLEST_ARGUMENT), LARGEST_ARGUMENT)
    k = np.floor(z * LOG2_E + 0.5)
    high, low = z - k * LN2_HIGH, k * LN2_LOW
    r = high - low
    tail = EXP_TERMS[0]
    for n in range(1, len(EXP_TERMS)):
        tail = r * tail + EXP_TERMS[n]
    tail = (r * r) * tail - low
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    y = (1.0 + high) + tail
    b = np.float64(y).view(np.int64)
    if b & (BOUNDARY - 1) == 0:
        b += np.int64(np.sign(((1.0 - y) + high) + tail))
    y = np.int64(b).view(np.float64) * power
    if abs(x) == np.inf:
        y = np.inf if x > 0.0 else 0.0
    return x if x != x else y


@numba.njit(nogil=True)
def evaluate(x, y):
    """y = exp of the binary32 numbers x, in binary64."""
    for i in range(x.size):
        y[i] = scalar_exp64(np.float64(x[i]))


@numba.njit(nogil=True)
def search(x, y, counts):
    """Counts arguments by class, and in counts[:, 1] those proved wrong; returns the places of
    those near a boundary.
    """
    bits = y.view(np.int64)
    found = np.empty(64, np.int64)
    n = 0
    for i in range(x.size):
        v = np.float64(x[i])
        if not (0.0 < abs(v) < np.inf):
            kind = SPECIAL
            right = (y[i] == (1.0 if v == 0.0 else max(v, 0.0))) or (v != v and y[i] != y[i])
        elif v < SMALLEST_ARGUMENT or v > LARGEST_ARGUMENT:
            kind, right = SATURATED, y[i] == (LOWEST if v < 0.0 else HIGHEST)
        elif abs(v) < TINY:
            kind = SMALL
            right = 1.0 < y[i] <= 1.0 + 2.0 * TINY if v > 0.0 else 1.0 - 2.0 * TINY <= y[i] < 1.0
        elif (bits[i] + WINDOW) & (BOUNDARY - 1) <= 2 * WINDOW:
            kind, right = NEAR, True
            found[n] = i
            n += 1
        else:
            kind, right = FAR, True
        counts[kind, 0] += 1
        counts[kind, 1] += not right
    return found[:n]


def scan(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(counts, arguments near a boundary) of one piece."""
    counts = np.zeros((len(CLASSES), 2), np.int64)
    evaluate(x, y)
    return counts, x[search(x, y, counts)]


def chunks() -> Iterator[np.ndarray]:
    """All binary32 numbers in the order of their bits."""
    offsets = np.arange(CHUNK, dtype=np.uint32)
    for i in range((1 << 32) // CHUNK):
        yield (offsets + np.uint32(i * CHUNK)).view(np.float32)


def settled(x: float, y: float) -> tuple[float, bool]:
    """How far e^x lies above the boundary next to y, in ulps, and whether y is strictly on the same
    side.
    """
    boundary = float(((np.float64(y).view(np.int64) + BOUNDARY // 2) & -BOUNDARY).view(np.float64))
    with mpmath.workdps(60):
        above = (mpmath.exp(mpmath.mpf(x)) - boundary) / np.spacing(boundary)
        assert abs(above) > 1e-30, f"exp({x!r}) is too close to {boundary!r} for 60 digits"
    return float(above), y != boundary and (y > boundary) == (above > 0)


def largest_error(count: int = 200_000) -> tuple[float, float]:
    """The largest error of exp64 in ulps over a sample, and its argument; half of it where k
    changes, half anywhere.
    """
    rng = np.random.default_rng(1)
    edge = (rng.integers(-150, 129, count // 2) + 0.5) * np.log(2.0)
    x = np.concatenate(
        [edge * (1 + rng.normal(0, 3e-7, edge.size)), rng.uniform(-104, 89, count // 4)]
    )
    x = np.concatenate(
        [x, rng.choice([-1, 1], count // 4) * 2.0 ** rng.uniform(-30, 6, count // 4)]
    ).astype(np.float32)
    worst, at = 0.0, 0.0
    with mpmath.workprec(120):
        for v, y in zip(x.tolist(), exp64(numpy_ops(), x.astype(np.float64)).tolist(), strict=True):
            exact = mpmath.exp(mpmath.mpf(v))
            error = abs(y - exact) * mpmath.mpf(2) ** (53 - mpmath.frexp(exact)[1])
            if error > worst:
                worst, at = float(error), v
    return worst, at


def engines_differ(count: int = 1 << 24) -> tuple[int, int]:
    """On how many arguments NumPy's exp64 and XLA's differ from the scalar copy in a bit."""
    import jax

    from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

    rng = np.random.default_rng(2)
    wrong = [0, 0]
    with jax.enable_x64(True):
        compiled = jax.jit(lambda x: exp64(xla_ops(opaque_zero(x)), x))
        for _ in range(0, count, CHUNK):
            x = rng.integers(0, 1 << 32, CHUNK // 2, dtype=np.uint32).view(np.float32)
            x = np.concatenate(
                [np.where(np.isnan(x), 0, x), rng.uniform(-104, 89, CHUNK // 2).astype(np.float32)]
            )
            wide, y = x.astype(np.float64), np.empty(CHUNK)
            parallel(evaluate, CHUNK, x, y)
            for engine, got in enumerate((exp64(numpy_ops(), wide), np.asarray(compiled(wide)))):
                wrong[engine] += int((got.view(np.int64) != y.view(np.int64)).sum())
    return wrong[0], wrong[1]


def main() -> int:
    console = Console(stderr=True)
    start = time.perf_counter()
    counts, near = np.zeros((len(CLASSES), 2), np.int64), []
    buffer = np.empty(CHUNK)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for x in progress.track(chunks(), total=(1 << 32) // CHUNK, description="exp"):
            for part, found in parallel(scan, CHUNK, x, buffer):
                counts += part
                near += found.tolist()
    results = exp64(numpy_ops(), np.array(near))
    verdicts = [(v, y, *settled(v, y)) for v, y in zip(near, results.tolist(), strict=True)]
    wrong = [v for v in verdicts if not v[3]]
    counts[NEAR, 1] = len(wrong)
    error, at = largest_error()
    differ = engines_differ()

    table = Table("arguments of exp", "count", "wrong", box=box.SIMPLE_HEAD)
    for name, (count, bad) in zip(CLASSES, counts.tolist(), strict=True):
        table.add_row(name, str(count), str(bad))
    table.add_row("all", str(counts[:, 0].sum()), str(counts[:, 1].sum()))
    Console().print(table)
    closest = min(verdicts, key=lambda v: abs(v[2]))
    print(f"closest to a boundary: exp({closest[0].hex()}), {closest[2]:+.3g} ulp")
    for v, _, above, _ in wrong:
        print(f"wrong: exp({v.hex()}) lies {above:+.3g} ulp from a boundary")
    print(f"largest error of a sample: {error:.3f} ulp at {at.hex()}, allowed {MAX_ERROR}")
    print(
        f"scalar copy on 2^24 arguments: differs from NumPy in {differ[0]}, from XLA in {differ[1]}"
    )
    print(f"{time.perf_counter() - start:.0f} s")
    failed = counts[:, 1].any() or counts[:, 0].sum() != 1 << 32 or error > MAX_ERROR or any(differ)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
