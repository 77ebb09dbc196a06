"""The engines against each other in random calls: `make fuzz`.

    python -m tests.checks.fuzz_engines [--hours 0.5] [--seed 7] [--plain]

Each configuration is a plan, a shape and the arguments of a call, drawn and shrunk by Hypothesis
(`tests.checks.fuzz_cases`), and meets every kind of numbers: normal ones, zeros of both signs,
infinities, NaN, huge, tiny and subnormal numbers, in several types. What is compared:

    NumPy and XLA         every bit of every result, and single events; one NaN is like another
                          (README.md: without sign or payload). Counts, peaks and places of every
                          site are equal, sums agree to 1e-12 of the sum of magnitudes or to
                          2^-1000. What one engine refuses, the other refuses in the same words
    attend and examine    the output, without a record and with one
    NumPy and the judge   every bit, in the calls that `tests.attention.judge` covers

Anything else that is raised is a difference too. A difference is shrunk and printed as a literal
that REPRODUCERS of tests/attention/engines/test_fuzz.py takes. XLA compiles as it does for users;
with --plain it compiles as for most of the test suite, where its programs are optimized less. The
two ways need a process each: `make fuzz` runs both.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, seed

from roundscope import Examined, Trace, attend, examine
from roundscope.emu.stats.classify import COUNTS, SUMS
from roundscope.emu.stats.summary import Stats
from tests.attention.judge import ARITHMETICS, FORMATS, judge
from tests.checks.engines import bits
from tests.checks.fuzz_cases import (
    JUDGED_EVENTS,
    KINDS,
    Case,
    arguments,
    cases,
    drawing,
    judged_cases,
    mask_of,
    record_of,
    tensors,
    words,
)

RESULTS = ("out", "lse", "dq", "dk", "dv", "delta", "dsinks")
PLAIN = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)
PATIENCE = 120.0  # seconds for which a difference is shrunk
SLOW = 60.0  # seconds from which on a configuration is printed, since XLA compiled it for long
TOGETHER = 16  # configurations between two clearings of compiled programs, which fill the memory

Counts = dict[str, int]


class Difference(AssertionError):
    """Two results that should be the same are not."""


def checked(case: Case, counts: Counts | None = None, has_xla: bool = True) -> None:
    """Raises Difference with a reproducer if the case's results differ for any kind of numbers.

    has_xla: whether XLA takes part, or NumPy and the judge alone
    """
    counts = {} if counts is None else counts
    for kind in case.get("kinds", KINDS):
        found = differences(case, kind, counts, has_xla)
        if found:
            told = ", ".join(found[:8]) + (" ..." if len(found) > 8 else "")
            raise Difference(f"{told}\n    {case | {'kinds': [kind]}!r},")


def differences(case: Case, kind: str, counts: Counts, has_xla: bool) -> list[str]:
    """Return the names of all differences in a case with one kind of numbers."""
    inputs, given_ = tensors(case, kind), arguments(case)
    count(counts, "data sets")
    do = inputs[3] if case.get("backward", True) else None

    def run(engine: str) -> Examined | str:
        record = record_of(case)
        return outcome(partial(examine, *inputs[:3], do, engine=engine, record=record, **given_))

    ours, theirs = (run(engine) for engine in ("numpy", "xla" if has_xla else "numpy"))
    if isinstance(ours, str) or isinstance(theirs, str):
        count(counts, "refused")
        if isinstance(ours, str) and isinstance(theirs, str) and ours == theirs:
            return []
        told = (x if isinstance(x, str) else "results" for x in (ours, theirs))
        return [f"{name}: {x}" for name, x in zip(("NumPy", "XLA"), told, strict=True)]
    count(counts, "numbers", numbers_of(ours))
    found = [f"{name} of XLA" for name in RESULTS if not same(ours, theirs, name)]
    found += trace_differences(ours.trace, theirs.trace)
    for engine in ("numpy", "xla") if case.get("attend") else ():
        out = outcome(partial(attend, *inputs[:3], engine=engine, **given_))
        if isinstance(out, str) or not same_array(ours.out, out):
            found.append(f"out of attend, {engine}")
    arithmetic = judged_arithmetic(case, kind)
    if arithmetic is None or has_open_rows(case, ours):
        return found
    count(counts, "judged")
    return found + [f"{name} of the judge" for name in judged(case, arithmetic, inputs, ours)]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error in words with which it refuses its arguments."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "q: every number is NaN")  # drawn so
            return call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def count(counts: Counts, name: str, more: int = 1) -> None:
    """Adds to one of the counts of a run."""
    counts[name] = counts.get(name, 0) + more


def numbers_of(found: Examined) -> int:
    """How many numbers of a result and of its trace are compared."""
    results = sum(np.size(getattr(found, name)) for name in RESULTS)
    stats = sum(np.size(getattr(s, f.name)) for s in found.trace.stats.values() for f in fields(s))
    events = sum(np.size(x) for pair in found.trace.events.values() for x in pair)
    ones, rows = (sum(map(np.size, x.values())) for x in (found.trace.ones, found.trace.rows))
    return int(results + stats + events + ones + rows)


def same(a: Examined, b: Examined, name: str) -> bool:
    """Return whether a result is the same in every bit, or absent, in both."""
    x, y = getattr(a, name), getattr(b, name)
    return x is y if x is None or y is None else same_array(x, y)


def same_array(x: Any, y: Any) -> bool:
    """Return whether two arrays have the same type, shape and bits; all NaN count as equal."""
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and np.array_equal(bits(x), bits(y))


def trace_differences(a: Trace, b: Trace) -> list[str]:
    """Return the names of the parts in which two traces differ."""
    for part in ("stats", "rows", "away", "events", "ones"):
        if list(getattr(a, part)) != list(getattr(b, part)):
            return [f"the names of {part}"]
    found = [
        f"{field} of {name}"
        for name in a.stats
        for field in stats_differences(a.stats[name], b.stats[name])
    ]
    for kind in ("rows", "away"):
        for name, row in getattr(a, kind).items():
            size = np.maximum(a.stats[name].abs_ulps, 1.0)[..., None]
            if not are_close(row, getattr(b, kind)[name], size):
                found.append(f"{kind} of {name}")
    found += [
        f"ones of {name}" for name in a.ones if not np.array_equal(a.ones[name], b.ones[name])
    ]
    pairs = (
        (name, x, y)
        for name in a.events
        for x, y in zip(a.events[name], b.events[name], strict=True)
    )
    return found + [f"events of {name}" for name, x, y in pairs if not same_array(x, y)]


def stats_differences(a: Stats, b: Stats) -> list[str]:
    """The fields of a summary that are not the same."""
    exact = (*COUNTS, "peak", "place")
    found = [name for name in exact if not np.array_equal(getattr(a, name), getattr(b, name))]
    size = {"error": a.abs_error, "ulps": a.abs_ulps}
    of_size = {name: size.get(name, getattr(a, name)) for name in SUMS}
    return found + [
        name for name in SUMS if not are_close(getattr(a, name), getattr(b, name), of_size[name])
    ]


def are_close(x: Any, y: Any, size: Any) -> bool:
    """Return whether sums of binary64 numbers of this size agree to 1e-12 of it, or are equal.

    Sums below 2^-1000 count as equal: XLA on a CPU takes squares below 2^-1022, binary64's smallest
    normal number, for 0.
    """
    if np.shape(x) != np.shape(y):
        return False
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= np.maximum(1e-12 * size, 2.0**-1000)
        return bool(np.all((x == y) | (np.isfinite(x - y) & near)))


JUDGED_WORDS = frozenset(
    words("plan shape seed tiles is_causal mask window scale dtypes backward record attend kinds")
)


def judged_arithmetic(case: Case, kind: str) -> Any:
    """The judge's arithmetic of a case with one kind of numbers, None where it covers no such case.

    It knows three presets with other formats at their events, to nearest. Left out are

        float64 tensors: their results leave in binary64, the judge's in binary32
        other kinds of numbers in tiles that do not divide the rows: zeros that fill a tile are
            added, so that a sum of -0 is +0 (docs/notes/decisions.md, 2026-11-24; three strict
            xfails)
        rows that see no key, of other kinds of numbers: the papers do not say what they give
        binary64 at SCALED, EXP, ALPHA, EXP_B and LSE: there the scale is not rounded, and exp and
            log are NumPy's, which differ from ours in the last bits of binary64
        FP8 at LSE: the documents leave open whether the -inf of a row whose scores are all -inf
            is an event, which would saturate (the judge's `forward_rows`)
    """
    if not set(case) <= JUDGED_WORDS or isinstance(case["plan"], list):
        return None
    preset, *changes = case["plan"].split()
    made = dict(change.split("=", 1) for change in changes)
    is_known = preset in ARITHMETICS and set(made) <= set(JUDGED_EVENTS)
    if not is_known or not all(map(is_judged, made.items())) or "float64" in case.get("dtypes", ()):
        return None
    if kind not in ("normal", "few", "large") and not (is_whole(case) and sees_keys(case).all()):
        return None
    return ARITHMETICS[preset].but(**made)


def is_judged(change: tuple[str, str]) -> bool:
    """Return whether the judge covers this format at this event."""
    site, name = change
    if site in ("SCALED", "EXP", "ALPHA", "EXP_B", "LSE") and name == "fp64":
        return False
    return name in FORMATS and not (site == "LSE" and FORMATS[name].saturates)


def has_open_rows(case: Case, ours: Examined) -> bool:
    """Whether the judge leaves open what some row gives: one that sees keys and whose L is -inf.

    All its scores are -inf, or M rounded so far above them that every EXP is 0. The judge's
    backward takes it for a row of no key, of which DP and DPD are no events and P is 0. Of presets
    without a change that shows nowhere.
    """
    if " " not in case["plan"]:
        return False
    rows = np.broadcast_to(sees_keys(case), np.shape(np.swapaxes(ours.lse, 1, 2)))
    return bool((rows & np.isneginf(np.swapaxes(ours.lse, 1, 2))).any())


def is_whole(case: Case) -> bool:
    """Return whether the tiles of a case divide its rows."""
    t, s = case["shape"][1:3]
    block_q, block_k = case.get("tiles", (t, s))
    return t % min(block_q, t) == 0 and s % min(block_k, s) == 0


def seen(case: Case) -> np.ndarray:
    """Which keys each query sees by mask and window, broadcastable to (B, N, T, S)."""
    t, s = case["shape"][1:3]
    mask = mask_of(case)
    away = np.arange(t)[:, None] - np.arange(s)
    window = case.get("window", t + s)
    near = away < window if case.get("is_causal") else np.abs(away) < window
    return near if mask is None else mask & near


def sees_keys(case: Case) -> np.ndarray:
    """Return whether each query sees some key, as booleans that broadcast to (B, N, T)."""
    t, s = case["shape"][1:3]
    causal = np.tri(t, s, dtype=bool) if case.get("is_causal") else True
    of_rows: np.ndarray = (seen(case) & causal).any(axis=-1)
    return of_rows


def judged(case: Case, arithmetic: Any, inputs: list[np.ndarray], ours: Examined) -> list[str]:
    """The results of ours that the judge has otherwise."""
    block_q, block_k = case.get("tiles", (128, 128))
    do = inputs[3] if case.get("backward", True) else np.zeros_like(inputs[3])
    with np.errstate(all="ignore"):
        found = judge(
            *inputs[:3],
            do,
            plan=arithmetic,
            block_q=block_q,
            block_k=block_k,
            scale=case.get("scale"),
            is_causal=case.get("is_causal", False),
            mask=seen(case),
        )
    names = [name for name in found._fields if getattr(ours, name) is not None]
    return [name for name in names if not same_array(getattr(ours, name), getattr(found, name))]


def fuzz(
    first: int,
    examples: int,
    is_over: Callable[[], bool] = lambda: False,
    counts: Counts | None = None,
    has_xla: bool = True,
) -> str | None:
    """The smallest difference found in so many configurations from a seed on, in words, or None.

    is_over: asked before each configuration, whether to try no more of them
    has_xla: whether the engines are compared, or NumPy and the judge
    """
    counts = {} if counts is None else counts
    told: list[str] = []
    since: list[float] = []

    @seed(first)
    @drawing(examples)
    @given(cases() if has_xla else judged_cases())
    def try_one(case: Case) -> None:
        if time.monotonic() - since[0] > PATIENCE if since else is_over():
            return
        count(counts, "configurations" if has_xla else "of the judge")
        if has_xla and counts["configurations"] % TOGETHER == 0:
            import jax

            jax.clear_caches()
        began = time.monotonic()
        try:
            checked(case, counts, has_xla)
            if (passed := time.monotonic() - began) > SLOW:
                print(f"took {passed:.0f} s: {case!r}", flush=True)
        except Exception as error:
            is_ours = isinstance(error, Difference)
            since.append(time.monotonic())
            told.append(str(error) if is_ours else f"{error!r}\n    {case!r},")
            raise

    try:
        try_one()
    except Exception as error:  # Hypothesis's own, too, where its patience was cut short
        return told[-1] if told else f"in drawing: {error!r}"  # the last is the smallest
    return None


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.fuzz_engines", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="programs that XLA optimises less")
    asked = parser.parse_args(argv)
    if asked.plain:
        os.environ["XLA_FLAGS"] = PLAIN  # read when JAX first looks for a device
    return report(*run(asked.hours * 3600.0, asked.seed))


def run(seconds: float, first: int) -> tuple[Counts, list[str], float]:
    """Counts, differences and seconds of a run, with a bar while it goes on."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    names = ("configurations", "of the judge", "data sets", "refused", "judged", "numbers")
    counts: Counts = dict.fromkeys(names, 0)
    found: list[str] = []
    began = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=seconds)

        def is_over() -> bool:
            passed = time.perf_counter() - began
            told = f"{counts['configurations']:,} configurations, {counts['numbers']:,} numbers"
            told += f", {len(found)} differences"
            progress.update(task, completed=min(passed, seconds), description=told)
            return passed > seconds

        turn = 0
        while not is_over():
            for has_xla in (True, False):
                difference = fuzz(first * 1000 + turn, 50, is_over, counts, has_xla)
                if difference is not None:
                    found.append(difference)
                    print(difference, flush=True)
            turn += 1
    return counts, found, time.perf_counter() - began


def report(counts: Counts, found: list[str], seconds: float) -> int:
    """Prints a run's counts and differences. The exit code: 1 if there is a difference."""
    rate = 60.0 * counts["configurations"] / seconds
    print(f"{', '.join(f'{value:,} {name}' for name, value in counts.items())}")
    print(f"{seconds / 60.0:.1f} minutes, {rate:.1f} configurations a minute")
    print(f"{len(found)} differences found")
    for difference in found:
        print(difference)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
