"""The speed of rounding a float32 array to a format and back, beside a copy and other libraries.

One run measures all of them: each round times the copy, ours and every rival once, in turn, and a
ratio is the median over the rounds of the ratios within a round. So a machine whose speed drifts
does so for all of them alike.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from roundscope.emu.roundings.modes import rounding, without_saturation
from roundscope.tools.bench.deliver import Bench, Line, deliver, show
from roundscope.tools.bench.drawing import Drawing, span
from roundscope.tools.bench.rivals import RIVALS, Rival, Round, ours_on_xla
from roundscope.tools.report.progress import shares

THREADS = 2
SIZE = 1 << 26  # values; on a GPU four times as many
QUICK, QUICK_REPEAT = 1 << 20, 3  # values and rounds of --quick
CHECKED = 1 << 22  # how many of a GPU's numbers are compared with the processor's
SECONDS = 0.2  # a rival that would take longer than this gets a shorter slice of the array
PROBE = 1 << 16  # how many values a rival is first timed on
NEW = "ours, new array"
COUNTED = "ours, with Stats"
OURS = ("ours", NEW, COUNTED)
LEGEND = (
    "GB/s: bytes read and written.  of copy: speed / speed of a copy on as many threads. ours: our"
    " speed / this one's, into a new array for the libraries, which return one. differ: results"
    " that are not ours in every bit (two NaN count as equal), among the values it ran on."
)
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
    """Return normal numbers times 2^-24 to 2^17, so in every range, with some random bits."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is measured: rounding of single numbers, or of blocks.

    name      as the command line has it
    title     its words in the picture's sentence;  doing: those beside the bar
    formats   their names;  repeat: rounds of measurement
    numbers   makes the array of a size
    ours      returns our function of an array and of `out`, an array for its results or None
    on_xla    returns ours under jit;  on_host: of (format, x) returns what it must give on a GPU
    rivals    who else takes part
    counted   returns ours with statistics, of x into y; None where there is none
    expected  of (format, x, y) returns what results on x must be; y: ours on a longer array, cut
    """

    name: str
    title: str
    doing: str
    formats: Sequence[str]
    repeat: int
    numbers: Callable[[int], np.ndarray]
    ours: Callable[[str], Callable[[np.ndarray, np.ndarray | None], Any]]
    on_xla: Callable[[str], Round]
    on_host: Callable[[str, np.ndarray], np.ndarray]
    rivals: Sequence[Rival]
    counted: Callable[[str, np.ndarray, np.ndarray], Callable[[], Any]] | None = None
    expected: Callable[[str, np.ndarray, np.ndarray], np.ndarray] = lambda name, x, y: y


def bench(
    contest: Contest,
    size: int = SIZE,
    repeat: int | None = None,
    formats: Iterable[str] | None = None,
    progress: Progress = lambda share: None,
) -> list[Row]:
    """Return rows for the copy, ours and every rival, format by format.

    size      how many float32 values are rounded
    repeat    rounds of measurement
    progress  called with the share of the work just done

    The copy and ours have `THREADS` threads; the rivals run as their libraries run them.
    """
    x, names = contest.numbers(size), list(formats or contest.formats)
    often = contest.repeat if repeat is None else repeat
    y = np.zeros_like(x)
    rows = []
    with numba_threads(THREADS), np.errstate(all="ignore"):
        for name in names:
            ours = contest.ours(name)
            ours(x, y)
            field: dict[str, Any] = {
                "copy": (parallel_copy(x, y.copy(), THREADS), size),
                "ours": (partial(ours, x, y), size),
                NEW: (partial(ours, x, None), size),
            }
            if contest.counted is not None:
                field[COUNTED] = contest.counted(name, x, y), size
            entered = [Row(format=name, name=who) for who in field]
            entered += [_enter(contest, field, rival, name, x, y) for rival in contest.rivals]
            times = race(field, often, lambda share: progress(share / len(names)))
            rows += [_timed(row, times, field) if row.name in times else row for row in entered]
    return rows


def _enter(
    contest: Contest, field: dict[str, Any], rival: Rival, name: str, x: np.ndarray, y: np.ndarray
) -> Row:
    """Return a rival's row, with its differences from ours; it joins the field if it can run."""
    row = Row(format=name, name=rival.name)
    try:
        function = rival.make(name)
    except ImportError:
        return replace(row, note="not installed")
    if function is None:
        return replace(row, note="has no such format")
    run, n = _slice(rival, function, x)
    wrong = differing(np.asarray(run(), np.float32), contest.expected(name, x[:n], y[:n]))
    field[rival.name] = (run, n)
    return replace(row, differing=wrong, note=rival.note if wrong else "")


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
    """Return np.copyto on so many threads: nothing that moves as many bytes takes less time."""
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


def on_gpu(
    contest: Contest,
    size: int = 4 * SIZE,
    repeat: int = 20,
    progress: Progress = lambda share: None,
) -> list[Row]:
    """Return rows for the copy and for ours per format, on JAX's first GPU; none if it has no GPU.

    The copy is the bits XOR a zero that XLA learns only at run time: an elementwise pass that XLA
    cannot remove.
    """
    import jax
    import jax.numpy as jnp

    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        return []
    head = contest.numbers(min(size, CHECKED))
    x = jnp.resize(jax.device_put(head, device), (size,))
    zero = jax.device_put(np.int32(0), device)
    flip = jax.jit(
        lambda x, z: jax.lax.bitcast_convert_type(
            jax.lax.bitcast_convert_type(x, jnp.int32) ^ z, jnp.float32
        )
    )
    field: dict[str, Any] = {"copy": (lambda: finish(flip(x, zero)), size)}
    checks = {}
    for name in contest.formats:
        f = contest.on_xla(name)
        checks[name] = differing(
            np.asarray(f(np.asarray(x[: head.size]))), contest.on_host(name, head)
        )
        field[name] = (lambda f=f: finish(f(x)), size)
    times = race(field, repeat, progress)
    return [
        Row(
            format="" if name == "copy" else name,
            name=f"{'copy' if name == 'copy' else 'ours, XLA'} on {device.device_kind}",
            gbps=float(8e-9 / np.median(t)),
            of_copy=float(np.median(times["copy"] / t)),
            values=size,
            differing=checks.get(name),
        )
        for name, t in times.items()
    ]


def measured(contest: Contest, quick: bool = False) -> list[Row]:
    """Return the rows of the processor, then those of a GPU, with a bar for each."""
    size, repeat = (QUICK, QUICK_REPEAT) if quick else (SIZE, contest.repeat)
    with shares(f"bench {contest.name}") as part:
        return [
            *bench(contest, size, repeat, progress=part(contest.doing)),
            *on_gpu(contest, 4 * size, progress=part("on the GPU")),
        ]


def run(
    contest: Contest, as_json: bool = False, out: Path | None = None, *, quick: bool = False
) -> None:
    """Print how fast float32 -> format -> float32 is; `out`: a folder for rows and picture."""
    axis = (
        f"speed / speed of a copy of the same bytes (dashed), on {THREADS} threads or on the"
        " same GPU"
    )

    def drawing(rows: list[Row]) -> Drawing:
        return Drawing(_bars(rows), answer(contest.title, rows), axis)

    deliver(Bench(contest.name, THREADS, _print, drawing), measured(contest, quick), as_json, out)


def answer(doing: str, rows: list[Row]) -> str:
    """Return a sentence on our speed against the fastest library and against a copy.

    The libraries of each format are compared with ours where it returns a new array, as they do;
    the copy is compared with ours in place.
    """
    rivals = [r for r in rows if r.ours is not None and not _is_ours(r) and r.name != "copy"]
    best = [
        min(float(r.ours or 0.0) for r in rivals if r.format == name)
        for name in dict.fromkeys(r.format for r in rivals)
    ]
    in_place = [float(r.of_copy or 0.0) for r in rows if r.name == "ours"]
    return (
        f"{doing} into a new array is {span(best)} times as fast as the fastest library that has"
        f" the format; in place it runs at {span(in_place)} of a copy's speed"
    )


def _is_ours(row: Row) -> bool:
    return row.name.startswith("ours")


def _bars(rows: list[Row]) -> list[tuple[str, str, float, bool]]:
    """Return a bar for everything that ran except the copy, which is 1 by definition."""
    return [
        (r.format, r.name, r.of_copy, _is_ours(r))
        for r in rows
        if r.of_copy is not None and not r.name.startswith("copy")
    ]


def _print(rows: list[Row]) -> None:
    heads, lines = ("GB/s", "of copy", "ours", "differ", "of values"), []
    for r in rows:
        pairs = (
            (r.gbps, ".3g", ""),
            (r.of_copy, ".2g", ""),
            (r.ours, ".3g", "x"),
            (r.differing, "", ""),
        )
        cells = ["-" if x is None else f"{x:{form}}{unit}" for x, form, unit in pairs]
        lines.append(Line(r.format, r.name, [*cells, f"{r.values or '-'}"], r.note))
    show(heads, lines, LEGEND)


def _rounding(name: str) -> Callable[[np.ndarray, np.ndarray | None], Any]:
    from roundscope.emu.backends.numba.rounding import round_array

    r = without_saturation(rounding(name))
    return lambda x, out: round_array(x, r, out=out)


def _on_host(name: str, x: np.ndarray) -> np.ndarray:
    from roundscope.emu.backends.numba.rounding import round_array

    return round_array(x, rounding(name))


def _counting(name: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    from roundscope.emu.backends.numba.stats import rounded_with_stats

    return partial(rounded_with_stats, x, without_saturation(rounding(name)), None, y)


ROUNDING = Contest(
    name="round",
    title="Rounding",
    doing="rounding",
    formats=("bf16", "fp16", "e4m3fn", "e5m2", "e2m3fn"),
    repeat=9,
    numbers=sample,
    ours=_rounding,
    on_xla=ours_on_xla,
    on_host=_on_host,
    rivals=RIVALS,
    counted=_counting,
)
