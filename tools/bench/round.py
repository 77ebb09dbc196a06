"""The speed of rounding a float32 array to a format and back, beside a copy and other libraries.

One run measures all of them: each round times the copy, ours and every rival once, in turn, and a
ratio is the median over the rounds of the ratios within a round. So a machine whose speed drifts
does so for all of them alike.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from roundscope.emu.roundings.modes import rounding, without_saturation
from roundscope.tools.bench.rivals import RIVALS, Rival

FORMATS = ("bf16", "fp16", "e4m3fn", "e5m2", "e2m3fn")
THREADS = 2
SECONDS = 0.2  # a rival that would take longer than this gets a shorter slice of the array
PROBE = 1 << 16  # how many values a rival is first timed on
NEW = "ours, new array"
COUNTED = "ours, with Stats"
OURS = ("ours", NEW, COUNTED)
Progress = Callable[[float], None]
K = TypeVar("K", bound=Hashable)  # what names a contestant


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contestant at one format. Ratios are of speeds per value: 2 is twice as fast.

    gbps      10^9 bytes read and written per second
    of_copy   its speed / that of the copy
    ours      our speed / its speed; a library, which returns a new array, is compared with ours
              that does too
    values    how many values it was timed on
    differing how many of its results differ from ours in bits (two NaN count as equal)
    """

    format: str
    name: str
    gbps: float | None = None
    of_copy: float | None = None
    ours: float | None = None
    values: int = 0
    differing: int | None = None
    note: str = ""


def sample(size: int) -> np.ndarray:
    """Return normally distributed numbers times 2^-24 to 2^17, and random bits in every 64th place.

    So every range of a format occurs.
    """
    rng = np.random.default_rng(20)
    x = rng.standard_normal(size, dtype=np.float32)
    x *= np.exp2(rng.integers(-24, 18, size, dtype=np.int8), dtype=np.float32)
    x[::64] = rng.integers(0, 2**32, x[::64].size, dtype=np.uint32).view(np.float32)
    return x


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many float32 values differ in bits, where two NaN count as equal."""
    return int(
        np.count_nonzero((a.view(np.int32) != b.view(np.int32)) & ~(np.isnan(a) & np.isnan(b)))
    )


def bench_round(
    size: int = 1 << 26,
    threads: int = THREADS,
    repeat: int = 9,
    formats: Iterable[str] = FORMATS,
    progress: Progress = lambda share: None,
) -> list[Row]:
    """Return rows for the copy, ours and every rival, format by format.

    size      how many float32 values are rounded
    repeat    rounds of measurement
    threads   threads of the copy and of ours; the rivals run as their libraries run them
    progress  called with the share of the work just done
    """
    from roundscope.emu.backends.numba.rounding import round_array
    from roundscope.emu.backends.numba.stats import rounded_with_stats

    x, names = sample(size), list(formats)
    y = np.zeros_like(x)
    rows = []
    with numba_threads(threads), np.errstate(all="ignore"):
        for name in names:
            r = without_saturation(rounding(name))
            round_array(x, r, out=y)
            field: dict[str, Any] = {
                "copy": (parallel_copy(x, y.copy(), threads), size),
                "ours": (partial(round_array, x, r, out=y), size),
                NEW: (partial(round_array, x, r), size),
                COUNTED: (partial(rounded_with_stats, x, r, None, y), size),
            }
            field, entered = _enter(field, name, x, y)
            times = race(field, repeat, lambda share: progress(share / len(names)))
            rows += _rows(entered, times, field)
    return rows


def _enter(
    field: dict[str, Any], name: str, x: np.ndarray, y: np.ndarray
) -> tuple[dict[str, Any], list[Row]]:
    """Return the field with all rivals that can run, and a row for everyone.

    The rows of rivals have their differences from y.
    """
    rows = [Row(format=name, name=who) for who in ("copy", *OURS)]
    for rival in RIVALS:
        row = Row(format=name, name=rival.name)
        try:
            function = rival.make(name)
        except ImportError:
            rows.append(replace(row, note="not installed"))
            continue
        if function is None:
            rows.append(replace(row, note="has no such format"))
            continue
        run, n = _slice(rival, function, x)
        wrong = differing(np.asarray(run(), np.float32), y[:n])
        rows.append(replace(row, differing=wrong, note=rival.note if wrong else ""))
        field[rival.name] = (run, n)
    return field, rows


def _slice(rival: Rival, function: Any, x: np.ndarray) -> tuple[Callable[[], Any], int]:
    """Return the rival's run over as many values as SECONDS allow, and how many those are."""
    small = rival.enter(x[:PROBE])
    finish(function(small))
    seconds = _clock(lambda: finish(function(small)))
    n = x.size
    if seconds * x.size / PROBE >= SECONDS:
        n = min(n, max(PROBE, int(PROBE * SECONDS / seconds) // PROBE * PROBE))
    entered = rival.enter(x[:n])
    return lambda: finish(function(entered)), n


def race(
    field: Mapping[K, tuple[Callable[[], Any], int]], repeat: int, progress: Progress
) -> dict[K, np.ndarray]:
    """Return seconds per value by name, one per round; the first round warms up and is dropped."""
    times: dict[K, list[float]] = {name: [] for name in field}
    for _ in range(repeat + 1):
        for name, (run, n) in field.items():
            times[name].append(_clock(run) / n)
        progress(1 / (repeat + 1))
    return {name: np.array(t[1:]) for name, t in times.items()}


def _rows(entered: list[Row], times: dict[str, np.ndarray], field: dict[str, Any]) -> list[Row]:
    """Return the rows with their speeds; those that did not run are left as they are."""
    return [_timed(row, times, field) if row.name in times else row for row in entered]


def _timed(row: Row, times: dict[str, np.ndarray], field: dict[str, Any]) -> Row:
    t = times[row.name]
    ours = None
    if row.name not in OURS:
        ours = float(np.median(t / times["ours" if row.name == "copy" else NEW]))
    return replace(
        row,
        gbps=float(8e-9 / np.median(t)),
        of_copy=float(np.median(times["copy"] / t)),
        ours=ours,
        values=field[row.name][1],
    )


def parallel_copy(x: np.ndarray, y: np.ndarray, threads: int) -> Callable[[], Any]:
    """Return np.copyto in `threads` pieces on as many threads.

    Its time is a lower bound for any operation that reads and writes as much.
    """
    from roundscope.emu.backends.threads import pool

    cuts = [slice(lo, hi) for lo, hi in pairwise(x.size * w // threads for w in range(threads + 1))]
    return lambda: list(pool().map(lambda cut: np.copyto(y[cut], x[cut]), cuts))


@contextmanager
def numba_threads(threads: int) -> Iterator[None]:
    """Let our kernels cut their arrays into this many pieces while the context is open."""
    from numba import config

    before, config.NUMBA_NUM_THREADS = config.NUMBA_NUM_THREADS, threads
    try:
        yield
    finally:
        config.NUMBA_NUM_THREADS = before


def finish(result: Any) -> Any:
    """Wait for a result of JAX, and return it; other results are there already."""
    return result.block_until_ready() if hasattr(result, "block_until_ready") else result


def _clock(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
