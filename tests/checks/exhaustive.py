"""Every binary32 number through every format that ml_dtypes has: `make exhaustive`.

    python -m tests.checks.exhaustive [--engine numpy|xla|both] [--formats bf16,e4m3fn]

All 2^32 inputs, rounded to nearest even on both executors and compared with ml_dtypes (NumPy's own
float16 for fp16) bit for bit, the sign of zero included; any NaN equals any NaN. Differences that
have a name in `documented` are counted by name; any other makes the exit code 1. A table ends the
run.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from roundscope.emu.errors import unknown
from roundscope.emu.formats.format import format_named
from roundscope.emu.roundings.modes import rounding, without_saturation

REFERENCES: dict[str, type] = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
}
ENGINES = ("numpy", "xla")
CHUNK = 1 << 22  # inputs at a time: 16 MiB
CHUNKS = (1 << 32) // CHUNK

Rounder = Callable[[np.ndarray], np.ndarray]


def reference(name: str) -> Rounder:
    """float32 -> the format -> float32 by ml_dtypes or NumPy; the second step is exact."""
    dtype = REFERENCES[name]

    def round_trip(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):  # NumPy warns of overflow and of signalling NaN
            return x.astype(dtype).astype(np.float32)

    return round_trip


def rounder(name: str, engine: str) -> Rounder:
    """float32 -> float32, to nearest even, by one executor."""
    r = without_saturation(rounding(name))
    if engine == "numpy":
        from roundscope.emu.backends.numba.rounding import round_array

        return lambda x: round_array(x, r)
    import jax

    from roundscope.emu.backends.xla import rounding as xla

    compiled = jax.jit(lambda x: xla.round_array(x, r))
    return lambda x: np.asarray(compiled(x))


def different(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Indices where two float32 arrays differ in bits and are not both NaN."""
    where = np.flatnonzero(got.view(np.int32) != want.view(np.int32))
    return where[~(np.isnan(got[where]) & np.isnan(want[where]))]


def documented(
    name: str, x: np.ndarray, got: np.ndarray, want: np.ndarray
) -> dict[str, np.ndarray]:
    """Masks of the known differences from ml_dtypes; in each of them ours is the right one.

    NaN kept          a format without NaN: we keep the carrier's NaN, ml_dtypes returns -0
    above 2^-127      e8m0fnu: ml_dtypes rounds every x in (2^-127, 2^-126), subnormal in binary32,
                      up to 2^-126; those below the midpoint 1.5 2^-127 are nearer to 2^-127
    """
    low = np.float32(2.0**-127)
    kept = np.isnan(x) & np.isnan(got) & (want == 0) & (not format_named(name).nan)
    above = (
        (x > low)
        & (x < low * np.float32(1.5))
        & (got == low)
        & (want == 2 * low)
        & (name == "e8m0fnu")
    )
    return {"NaN kept": kept, "above 2^-127": above}


@dataclass(slots=True)
class Row:
    """What one format on one executor came to."""

    name: str
    engine: str
    inputs: int = 0
    known: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    example: str = ""
    seconds: float = 0.0

    def compare(self, x: np.ndarray, got: np.ndarray, want: np.ndarray) -> None:
        """Count one chunk."""
        self.inputs += x.size
        at = different(got, want)
        x, got, want = x[at], got[at], want[at]
        masks = documented(self.name, x, got, want)
        self.known.update({label: int(mask.sum()) for label, mask in masks.items()})
        new = np.flatnonzero(~np.logical_or.reduce(list(masks.values())))
        self.unknown += new.size
        if new.size and not self.example:
            i = new[0]
            self.example = (
                f"{float(x[i]).hex()} gives {float(got[i]).hex()}, reference {float(want[i]).hex()}"
            )


def chunks() -> Iterator[np.ndarray]:
    """All binary32 numbers in the order of their bits."""
    offsets = np.arange(CHUNK, dtype=np.uint32)
    for i in range(CHUNKS):
        yield (offsets + np.uint32(i * CHUNK)).view(np.float32)


def run(names: Sequence[str], engines: Sequence[str], progress: Progress) -> list[Row]:
    """One row per format and executor; the reference is computed once for both."""
    rows = []
    for name in names:
        mine = [(Row(name, engine), rounder(name, engine)) for engine in engines]
        expected = reference(name)
        for x in progress.track(chunks(), total=CHUNKS, description=name):
            want = expected(x)
            for row, own in mine:
                start = time.perf_counter()
                got = own(x)
                row.seconds += time.perf_counter() - start
                row.compare(x, got, want)
        rows += [row for row, _ in mine]
    return rows


def table(rows: Sequence[Row]) -> Table:
    """The result; seconds are those of our executor alone."""
    t = Table(
        "format", "executor", "inputs", "documented", "undocumented", "seconds", box=box.SIMPLE_HEAD
    )
    for row in rows:
        known = "\n".join(f"{label}: {count}" for label, count in row.known.items() if count)
        t.add_row(
            row.name,
            row.engine,
            str(row.inputs),
            known or "0",
            str(row.unknown),
            f"{row.seconds:.1f}",
        )
    return t


def names_of(text: str) -> list[str]:
    """The formats of a comma-separated list; a name without a reference is an error naming the
    nearest.
    """
    names = text.split(",")
    for name in names:
        if name not in REFERENCES:
            raise argparse.ArgumentTypeError(unknown("format", name, REFERENCES))
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every input was compared and every difference is documented, else 1; bad usage exits
    with 2.
    """
    parser = argparse.ArgumentParser(
        prog="tests.checks.exhaustive", description="All 2^32 binary32 inputs against ml_dtypes."
    )
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument(
        "--formats",
        type=names_of,
        default=list(REFERENCES),
        metavar="NAME,...",
        help=" ".join(REFERENCES),
    )
    given = parser.parse_args(arguments)
    engines = ENGINES if given.engine == "both" else (given.engine,)
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        rows = run(given.formats, engines, progress)
    Console().print(table(rows))
    for row in rows:
        if row.example:
            print(f"{row.name} on {row.engine}: {row.example}", file=sys.stderr)
    return int(any(row.unknown or row.inputs != 1 << 32 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
