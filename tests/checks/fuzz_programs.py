"""The NumPy engine with and without compiled programs, in random calls: `make fuzz`.

    python -m tests.checks.fuzz_programs [--minutes 5] [--seed 7]

The calls are those of `tests.checks.fuzz_engines`, without injections, which no program covers.
Every result, statistic and single event must have the same bits.
"""

import argparse
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, seed

from roundscope import Examined, examine
from roundscope.attention.engines.fused import from_scores
from tests.checks.engines import RESULTS
from tests.checks.fuzz_cases import KINDS, Case, arguments, cases, drawing, record_of, tensors
from tests.checks.fuzz_engines import outcome, same, same_array


def differences(case: Case, kind: str) -> list[str]:
    """Return the names of what differs in a case with one kind of numbers."""
    inputs, given_ = tensors(case, kind), arguments(case)
    do, record = inputs[3] if case.get("backward", True) else None, record_of(case)
    found = []
    for least in (0, math.inf):
        with from_scores(least):
            call = partial(examine, *inputs[:3], do, engine="numpy", record=record, **given_)
            found.append(outcome(call))
    plain, programs = found[1], found[0]
    if isinstance(plain, str) or isinstance(programs, str):
        equal = isinstance(plain, str) and isinstance(programs, str) and plain == programs
        return [] if equal else [f"plain: {plain}", f"programs: {programs}"]
    return [name for name in RESULTS if not same(plain, programs, name)] + traced(plain, programs)


def traced(a: Examined, b: Examined) -> list[str]:
    """Return the names of what differs in two traces."""
    found = []
    for part in ("stats", "rows", "events", "ones"):
        x, y = getattr(a.trace, part), getattr(b.trace, part)
        if list(x) != list(y):
            found.append(f"the names of {part}")
            continue
        found += [f"{part} of {name}" for name in x if not alike(x[name], y[name])]
    return found


def alike(x: Any, y: Any) -> bool:
    """Return whether two parts of traces have the same bits."""
    if isinstance(x, tuple):
        return all(map(alike, x, y))
    if hasattr(x, "__dataclass_fields__"):
        return all(alike(getattr(x, f.name), getattr(y, f.name)) for f in fields(x))
    if np.asarray(x).dtype.kind != "f":
        return np.asarray(x).dtype == np.asarray(y).dtype and np.array_equal(x, y)
    return same_array(x, y)


def fuzz(first: int, examples: int, is_over: Callable[[], bool] = lambda: False) -> str | None:
    """Return the smallest difference of so many calls from a seed on, in words, or None."""
    told: list[str] = []

    @seed(first)
    @drawing(examples)
    @given(cases())
    def try_one(case: Case) -> None:
        if is_over():
            return
        case = {name: x for name, x in case.items() if name != "inject"}
        for kind in case.get("kinds", KINDS):
            found = differences(case, kind)
            if found:
                told.append(f"{', '.join(found[:8])}\n    {case | {'kinds': [kind]}!r},")
            assert not found

    try:
        try_one()
    except Exception as error:
        if not told:
            traceback.print_exc()
        return told[-1] if told else repr(error)
    return None


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.fuzz_programs", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    end, calls, found = time.monotonic() + 60.0 * asked.minutes, 0, []
    while time.monotonic() < end:
        difference = fuzz(asked.seed * 1000 + calls, 20, lambda: time.monotonic() > end)
        calls += 20
        if difference is not None:
            found.append(difference)
            print(difference, flush=True)
    print(f"about {calls} calls, each with {np.size(KINDS)} kinds of numbers: {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
