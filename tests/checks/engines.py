"""NumPy engine against XLA engine, bit for bit: `make engines`.

    python -m tests.checks.engines [--presets qiu-yao,fa2-bf16] [--tiles 64x64]

Every preset x {full, causal} x tiles x three input families x {without, with injections}: outputs,
L, gradients and delta equal in every bit; counts, peak and place of every site equal; sums to 1e-12
of the sum of magnitudes. A table ends the run; any difference makes the exit code 1. The families
share compiled code (one shape).
"""

import argparse
import json
import sys
import time
from dataclasses import fields
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

from roundscope.attention import (
    AddUlps,
    Bias,
    Exact,
    Examined,
    FlipBit,
    Injection,
    Noise,
    Plan,
    Record,
    SetTo,
    Site,
    Trace,
    examine,
)
from roundscope.emu.roundings.random import random31
from roundscope.emu.stats.classify import COUNTS, SUMS
from roundscope.emu.stats.summary import Stats

PRESETS = (
    "exact",
    "fp32",
    "qiu-yao",
    "fa2-bf16",
    "fa3-fp8",
    "baseline-bf16",
    "all:bf16",
    "all:e4m3fn",
)
TOKENS, HEADS, WIDTH = 136, 2, 32  # 136: no tile of TILES but (16, 8) and the whole divides it
TILES = ((16, 8), (64, 64), (128, 32), (TOKENS, TOKENS))
FAMILIES = ("gaussian", "repeated", "real")
PART = 1 << 15  # numbers that are drawn at a time, which stay in the caches of a processor
SUMMARY = Record()
RESULTS = ("out", "lse", "dq", "dk", "dv", "delta")
SAMPLE = Path(__file__).parents[2] / "experiments" / "data" / "minilm_attention.safetensors"

Inputs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def bits31(seed: int, *shape: int) -> np.ndarray:
    """Uniform integers in [0, 2^31), the same for every version of NumPy."""
    word, found = np.uint32, np.empty(int(np.prod(shape)), np.uint32)
    key = np.full(1, seed, word), np.zeros(1, word)
    with np.errstate(over="ignore"):  # NumPy's scalars warn where its arrays wrap
        for first in range(0, found.size, PART):
            index = np.arange(first, min(first + PART, found.size), dtype=np.uint64)
            found[first : first + PART] = random31(
                key, ((index >> 32).astype(word), index.astype(word))
            )
    return found.reshape(shape)


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounded to BF16, kept in binary32."""
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def normal(seed: int, *shape: int) -> np.ndarray:
    """About N(0, 1) in BF16: twelve 16-bit integers added up, so no library's generator matters."""
    total = (bits31(seed, 12, *shape) & 0xFFFF).sum(axis=0, dtype=np.int64)
    return bf16((total - 6 * 0xFFFF).astype(np.float64) / 65536.0)


def gaussian(seed: int = 1) -> Inputs:
    q, k, v, do = (normal(seed * 16 + i, 1, TOKENS, HEADS, WIDTH) for i in range(4))
    return q, k, v, do


def repeated() -> Inputs:
    """Every fifth key is the same and has the largest score of most rows, within tiles and across;
    V leans negative.
    """
    q, k, v, do = gaussian(2)
    direction = np.where(bits31(3, WIDTH) & 1, 2.0, -2.0).astype(np.float32)
    k[:, ::5] = direction
    return bf16(q / 2 + direction / 4), k, -bf16(np.abs(v) / 4 + 1), do


def shipped(name: str, layer: int = 4) -> np.ndarray:
    """A shipped tensor of a layer, (B, N, T, H).

    The file is read by hand: the GPU machine may not have safetensors.
    """
    blob = SAMPLE.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    entry = json.loads(blob[8 : 8 + size])[f"layer{layer}.{name}"]
    lo, hi = (8 + size + n for n in entry["data_offsets"])
    return np.frombuffer(blob[lo:hi], ml_dtypes.bfloat16).astype(np.float32).reshape(entry["shape"])


@cache
def real() -> Inputs:
    """The shipped tensors, cropped."""
    q, k, v, do = (
        np.ascontiguousarray(shipped(name)[:, :HEADS, :TOKENS].swapaxes(1, 2))
        for name in ("q", "k", "v", "do")
    )
    return q, k, v, do


def tiny() -> Inputs:
    """dO and V among the subnormals of binary32."""
    q, k, v, do = gaussian(4)
    return q, k, np.ldexp(v, -130), np.ldexp(do, -128)


def large() -> Inputs:
    """Scores beyond +-88, where exp leaves binary32's range, and large V."""
    q, k, v, do = gaussian(5)
    return q * 16, k * 8, np.ldexp(v, 90), do


INPUTS = {"gaussian": gaussian, "repeated": repeated, "real": real, "tiny": tiny, "large": large}


def injections(plan: Plan, block_q: int) -> tuple[Injection, ...]:
    """One of each kind, forward and backward."""
    flip = Bias(value=2.0**-6) if plan[Site.P].format.precision > 24 else FlipBit(bit=1)
    return (
        Injection(
            site=Site.O, what=AddUlps(ulps=0.5), heads=1, rows=range(3, 130, 4), features=(0, 7, 31)
        ),
        Injection(site=Site.S, what=Noise(ulps=1.0, seed=9), columns=range(8, 100)),
        Injection(site=Site.P, what=flip, rows=range(20, 60), heads=0),
        Injection(site=Site.DS, what=SetTo(value=0.25), rows=(5, 77), columns=(2, 70)),
        Injection(site=Site.DELTA, what=Exact(), rows=range(0, 64)),
        Injection(site=Site.DV, what=Exact(), tiles=1 if block_q < TOKENS else 0),
        Injection(site=Site.K, what=Bias(value=0.125), rows=4, features=range(0, 32, 5)),
    )


def bits(x: object) -> np.ndarray:
    """The bits of a float array, with every NaN made one."""
    x = np.asarray(x)
    word = np.int64 if x.dtype == np.float64 else np.int32
    return np.where(np.isnan(x), -1, np.ascontiguousarray(x).view(word))


def differences(a: Examined, b: Examined) -> list[str]:
    """Return the names of the results in which two runs differ; empty if none does."""
    found = [name for name in RESULTS if not _same(getattr(a, name), getattr(b, name))]
    return found + trace_differences(a.trace, b.trace)


def _same(x: object, y: object) -> bool:
    if x is None or y is None:
        return x is y
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and np.array_equal(bits(x), bits(y))


def trace_differences(a: Trace, b: Trace) -> list[str]:
    if (
        list(a.stats) != list(b.stats)
        or set(a.rows) != set(b.rows)
        or set(a.away) != set(b.away)
        or set(a.events) != set(b.events)
        or set(a.ones) != set(b.ones)
    ):
        return ["the names of what was seen"]
    found = [
        f"{name}.{field}"
        for name in a.stats
        for field in stats_differences(a.stats[name], b.stats[name])
    ]
    for kind in ("rows", "away"):
        for name, row in getattr(a, kind).items():
            other, size = getattr(b, kind)[name], np.maximum(a.stats[name].abs_ulps, 1.0)[..., None]
            if row.shape != other.shape or np.any(np.abs(row - other) > 1e-12 * size):
                found.append(f"{kind} of {name}")
    found += [
        f"ones of {name}" for name in a.ones if not np.array_equal(a.ones[name], b.ones[name])
    ]
    pairs = (
        (name, x, y)
        for name in a.events
        for x, y in zip(a.events[name], b.events[name], strict=True)
    )
    return found + [f"events of {name}" for name, x, y in pairs if not _same(x, y)]


def stats_differences(a: Stats, b: Stats) -> list[str]:
    exact = [
        name
        for name in (*COUNTS, "peak", "place")
        if not np.array_equal(getattr(a, name), getattr(b, name))
    ]
    size = {"error": a.abs_error, "ulps": a.abs_ulps}
    close = [
        name
        for name in SUMS
        if np.any(
            np.abs(getattr(a, name) - getattr(b, name)) > 1e-12 * size.get(name, getattr(a, name))
        )
    ]
    assert {f.name for f in fields(Stats)} == {*COUNTS, *SUMS, "peak", "place"}
    return exact + close


def run(
    engine: str,
    preset: str,
    family: str,
    *,
    causal: bool,
    tile: tuple[int, int],
    inject: bool = False,
    record: Record | None = SUMMARY,
) -> Examined:
    """One cell of the matrix on one engine."""
    plan = Plan.preset(preset)
    q, k, v, do = INPUTS[family]()
    return examine(
        q,
        k,
        v,
        do,
        plan=plan,
        block_q=tile[0],
        block_k=tile[1],
        is_causal=causal,
        inject=injections(plan, tile[0]) if inject else (),
        record=record,
        engine=engine,
    )


def compared(preset: str, family: str, **options) -> list[str]:
    """The differences of the two engines in one cell."""
    return differences(*(run(engine, preset, family, **options) for engine in ("numpy", "xla")))


def main(arguments: list[str] | None = None) -> int:
    import jax
    from rich import box
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table

    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.engines", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--tiles", default=",".join(f"{q}x{k}" for q, k in TILES))
    args = parser.parse_args(arguments)
    tiles = [tuple(int(n) for n in t.split("x")) for t in args.tiles.split(",")]
    cells = [
        (preset, tile, causal, inject)
        for preset in args.presets.split(",")
        for tile in tiles
        for causal in (False, True)
        for inject in (False, True)
    ]
    table = Table("preset", "cells", "different", "seconds", box=box.SIMPLE)
    bad: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("engines", total=len(cells) * len(FAMILIES))
        for preset in args.presets.split(","):
            began, before, count = time.perf_counter(), len(bad), 0
            for _, tile, causal, inject in (c for c in cells if c[0] == preset):
                for family in FAMILIES:
                    progress.update(task, advance=1, description=f"{preset} {tile[0]}x{tile[1]}")
                    found = compared(preset, family, causal=causal, tile=tile, inject=inject)
                    count += 1
                    if found:
                        where = f"{preset} {tile} causal={causal} inject={inject} {family}"
                        bad.append(
                            f"{where}: {', '.join(found[:6])}{' ...' if len(found) > 6 else ''}"
                        )
                jax.clear_caches()  # 128 programs would fill the memory
            table.add_row(
                preset, str(count), str(len(bad) - before), f"{time.perf_counter() - began:.0f}"
            )
    Console().print(table)
    for line in bad:
        print(line)
    print(
        f"{len(cells) * len(FAMILIES) - len(bad)} of {len(cells) * len(FAMILIES)} cells equal bit"
        f" for bit; jax {jax.__version__}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
