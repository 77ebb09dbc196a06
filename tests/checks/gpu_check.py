"""The bits of this machine's default JAX device against the stored ones: `make gpu-check`.

    python -m tests.checks.gpu_check            # 157 compilations; --jobs N compiles N at a time
    python -m tests.checks.gpu_check --engine pallas    # results of the fused kernels, of every
                                        preset that they run
    python -m tests.checks.gpu_check --write    # digests of the NumPy engine into
                                        tests/golden/engines.json

Compared by SHA-256: out, L, dq, dk, dv, delta and the counts of every site for every preset x
{full, causal} x tiles x input families on the XLA engine; the rounding rule over 2^24 binary32 and
2^22 binary64 inputs, for every format and mode; exp and log on 2^22 arguments. And inputs made by
the same program against those made by another. Needs NumPy, JAX and ml_dtypes: neither numba nor
rich. Exit code 1 on a mismatch.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention import Examined, Plan
from roundscope.emu.formats.format import NAMED
from roundscope.emu.functions import exp64, log64
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding, without_saturation
from roundscope.emu.roundings.random import event_bits
from roundscope.emu.stats.classify import COUNTS
from tests.checks.engines import FAMILIES, RESULTS, SUMMARY, bits, bits31, normal, run
from tests.checks.engines import PRESETS as PLAIN

GOLDEN = Path(__file__).parents[1] / "golden" / "engines.json"
PRESETS = (
    *PLAIN,
    "fa3-fp8-scaled",
    "mxfp8-attention",
    "fa2-bf16@hopper",
    "qiu-yao@hopper",
    "qiu-yao-compiled",
    "fa3-fp8@hopper",
    "all:fp16@hopper",
    "all:tf32@hopper",
)
TILES = ((64, 64), (128, 32))
CELLS = [(preset, causal, tile) for preset in PRESETS for causal in (False, True) for tile in TILES]
CARRIERS = {"float32": (np.float32, 24), "float64": (np.float64, 22)}
SHORT = 18  # log2 of the inputs, the first ones, whose digest `make test` computes too


def sha(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for x in arrays:
        digest.update(np.ascontiguousarray(x))
    return digest.hexdigest()[:32]


# --- attention
# ------------------------------------------------------------------------------------------------


def cell_name(preset: str, causal: bool, tile: tuple[int, int], family: str) -> str:
    return f"{preset} {'causal' if causal else 'full'} {tile[0]}x{tile[1]} {family}"


def digests_of(seen: Examined) -> dict[str, str]:
    """One digest per result, one of all counts."""
    counts = [
        np.asarray(getattr(s, c), np.int64)
        for _, s in sorted(seen.trace.stats.items())
        for c in (*COUNTS, "place")
    ]
    peaks = [bits(np.asarray(s.peak, np.float64)) for _, s in sorted(seen.trace.stats.items())]
    return {name: sha(bits(getattr(seen, name))) for name in RESULTS} | {
        "counts": sha(*counts, *peaks)
    }


def attention_digests(
    engine: str, cell: tuple[str, bool, tuple[int, int]]
) -> dict[str, dict[str, str]]:
    """The families of one cell share compiled code. Fused kernels count nothing."""
    preset, causal, tile = cell
    record = None if engine == "pallas" else SUMMARY
    found = {
        family: digests_of(run(engine, preset, family, causal=causal, tile=tile, record=record))
        for family in FAMILIES
    }
    if engine == "pallas":
        found = {family: {name: own[name] for name in RESULTS} for family, own in found.items()}
    return {cell_name(preset, causal, tile, family): own for family, own in found.items()}


def fits(preset: str) -> bool:
    """Return whether the fused kernels run it."""
    from roundscope.attention.engines.kernels.fit import check_plan

    try:
        check_plan(Plan.preset(preset))
    except ValueError:
        return False
    return True


# --- the rule
# -------------------------------------------------------------------------------------------------


@cache
def rounding_inputs(carrier: str) -> np.ndarray:
    """Bit patterns: the boundaries of every width, numbers of modest exponent, then any pattern at
    all.
    """
    dtype, log2 = CARRIERS[carrier]
    word, fraction = (np.uint32, 23) if dtype is np.float32 else (np.uint64, 52)
    edge = _boundaries(word, fraction)
    low, middle, high = (bits31(seed, 1 << log2).astype(word) for seed in (71, 72, 73))
    x = (
        low
        ^ (middle << word(word(0).itemsize * 4 - 15))
        ^ (high << word(word(0).itemsize * 8 - 31))
    )
    modest = np.arange(1 << log2) % 2 == 1
    width = word(0).itemsize * 8
    bias, sign = (1 << (width - fraction - 2)) - 1, word(1 << (width - 1))
    exponent = (word(bias - 20) + (x >> word(fraction)) % word(40)) << word(fraction)
    x = np.where(modest, (x & sign) | exponent | (x & word((1 << fraction) - 1)), x)
    x[: min(edge.size, x.size // 2)] = edge[: x.size // 2]
    return x.view(dtype)


def _boundaries(word: type, fraction: int) -> np.ndarray:
    """Fractions about every power of two and its complement, by sign and exponent, in an order that
    mixes them.
    """
    ones = (1 << fraction) - 1
    near = {((1 << c) + d) & ones for c in range(fraction) for d in (-1, 0, 1)}
    fractions = np.array(sorted(near | {ones ^ f for f in near}), dtype=word)
    top = (word(0).itemsize * 8) - fraction
    bias = (1 << (top - 2)) - 1
    near_one = range(max(0, bias - 160), min(2 * bias + 2, bias + 160))
    exponents = np.array(sorted({*near_one, 0, 1, 2, 2 * bias, 2 * bias + 1}), dtype=word)
    signed = np.concatenate([exponents, exponents | word(1 << (top - 1))])
    grid = (signed[None, :] << word(fraction)) | fractions[:, None]
    order = np.argsort(bits31(74, grid.size), kind="stable")
    return grid.reshape(-1)[order]


def roundings() -> dict[str, Rounding]:
    """Overflow as IEEE 754 has it, so that infinities and NaN of overflow are met where a format
    has them.
    """
    return {
        f"{name} {mode}": without_saturation(rounding(name, mode, seed=3))
        for name in NAMED
        if name != "fp64"
        for mode in RoundingMode
    }


@cache
def random_words(size: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return event_bits(np, 3, 17, np.zeros(1, np.int64), np.arange(size, dtype=np.int64))


Rounder = Callable[[np.ndarray, Rounding, np.ndarray | None], np.ndarray]


def numpy_rounder() -> Rounder:
    from roundscope.emu.backends.numba.rounding import round_array

    return round_array


def xla_rounder() -> Rounder:
    import jax

    from roundscope.emu.backends.xla import rounding as xla

    compiled = jax.jit(xla.round_array, static_argnums=1)

    def round_(x: np.ndarray, r: Rounding, random: np.ndarray | None) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(compiled(x, r, random))

    return round_


def rounding_digests(
    rounder: Rounder, name: str, *, short: bool = False
) -> dict[str, dict[str, str]]:
    """One rounding: by carrier, over all inputs and over the first 2^SHORT of them; short: these
    alone.
    """
    r, found = roundings()[name], {}
    for carrier, (_, log2) in CARRIERS.items():
        x = rounding_inputs(carrier)[: 1 << (SHORT if short else log2)]
        random = random_words(1 << 24)[: x.size] if r.mode is RoundingMode.STOCHASTIC else None
        y = bits(rounder(x, r, random))
        found[f"{carrier} short"] = sha(y[: 1 << SHORT])
        if not short:
            found[carrier] = sha(y)
    return {f"round {name}": found}


# --- exp and log
# ----------------------------------------------------------------------------------------------


def function_arguments(log2: int = 22) -> dict[str, np.ndarray]:
    """exp: binary32 numbers in +-128 and beyond, and 53-bit ones; log: any positive normal binary64
    number.
    """
    n = 1 << log2
    a, b = bits31(81, n).astype(np.int64), bits31(82, n).astype(np.int64)
    fine = ((a << 22 | b >> 9) - 2**52) * 2.0**-43  # 53 bits in +-512
    coarse = (a - 2**30).astype(np.float32).astype(np.float64) * 2.0**-23
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -400.0, 709.0, 1e-300, -1e-300])
    x = np.where(b % 2 == 1, fine, coarse)
    x[: special.size] = special
    positive = ((a % 2046 + 1) << 52 | (b << 21) ^ a).view(np.float64)
    return {"exp": x, "log": positive}


def function_digests(on: str) -> dict[str, dict[str, str]]:
    functions = {"exp": exp64, "log": log64}
    if on == "numpy":
        from roundscope.emu.backends.numba.ops import numpy_ops

        with np.errstate(all="ignore"):
            results = {
                name: functions[name](numpy_ops(), x) for name, x in function_arguments().items()
            }
    else:
        import jax

        from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops

        with jax.enable_x64(True):
            results = {
                name: np.asarray(
                    jax.jit(lambda x, f=functions[name]: f(xla_ops(opaque_zero(x)), x))(x)
                )
                for name, x in function_arguments().items()
            }
    return {"functions": {name: sha(bits(y)) for name, y in results.items()}}


def one_program_is_two() -> bool:
    """Whether what enters a call is as rounded where the same program made it as where another did:
    results in binary32, a cast to BF16.
    """
    import jax
    import jax.numpy as jnp

    from roundscope.attention import attend

    q, k, v = (jnp.asarray(normal(60 + n, 1, 128, 2, 64)) for n in range(3))

    def once(q: Any) -> Any:
        return attend(q, k, v, plan="exact", block_q=64, block_k=64)

    def cast(q: Any) -> Any:
        return (q / 3.0).astype(jnp.bfloat16)

    with jax.enable_x64(True):
        pairs = [
            (jax.jit(lambda q, f=f: once(f(q)))(q), jax.jit(once)(jax.jit(f)(q)))
            for f in (once, cast)
        ]
        return all(np.array_equal(bits(one), bits(two)) for one, two in pairs)


# --- the command
# ----------------------------------------------------------------------------------------------


def work(on: str) -> list[tuple[str, Callable[[], dict[str, dict[str, str]]]]]:
    """Everything to do, by group; on: "numpy", "xla" or "pallas", which is attention alone."""
    if on == "pallas":
        return [
            (cell[0], lambda cell=cell: attention_digests(on, cell))
            for cell in CELLS
            if fits(cell[0])
        ]  # type: ignore[misc]
    rounder = numpy_rounder() if on == "numpy" else xla_rounder()
    return [
        *((cell[0], lambda cell=cell: attention_digests(on, cell)) for cell in CELLS),
        *(("rounding", lambda name=name: rounding_digests(rounder, name)) for name in roundings()),
        ("exp, log", lambda: function_digests(on)),
    ]  # type: ignore[list-item]


def computed(
    on: str, jobs: int
) -> tuple[dict[str, dict[str, str]], dict[str, list[str]], dict[str, float]]:
    """All digests, their names by group, and the seconds of each group's pieces."""
    began, names, seconds, found = time.perf_counter(), {}, {}, {}
    tasks = work(on)
    if on != "pallas":
        for carrier in CARRIERS:
            rounding_inputs(carrier)  # before the threads want it
        random_words(1 << 24)

    def timed(task: Callable[[], dict]) -> tuple[dict, float]:
        start = time.perf_counter()
        return task(), time.perf_counter() - start

    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(timed, [task for _, task in tasks])
        for done, ((group, _), (digests, took)) in enumerate(zip(tasks, results, strict=True), 1):
            found |= digests
            names.setdefault(group, []).extend(digests)
            seconds[group] = seconds.get(group, 0.0) + took
            _progress(done, len(tasks), time.perf_counter() - began, group)
    print(file=sys.stderr)
    return found, names, seconds


def _progress(done: int, total: int, seconds: float, group: str) -> None:
    """One line that moves on a terminal, some lines in a log."""
    moving = sys.stderr.isatty()
    if moving or done % 16 == 0 or done == total:
        start, end = ("\r", "") if moving else ("", "\n")
        print(
            f"{start}{done}/{total} {seconds:.0f} s {group:<14}",
            end=end,
            file=sys.stderr,
            flush=True,
        )


def differing(found: dict[str, dict[str, str]], golden: dict[str, dict[str, str]]) -> list[str]:
    """Digests that differ, or that only one side has."""
    return [
        f"{name}: {part}"
        for name in sorted(found.keys() | golden.keys())
        for part in sorted(found.get(name, {}).keys() | golden.get(name, {}).keys())
        if found.get(name, {}).get(part) != golden.get(name, {}).get(part)
    ]


def write(jobs: int) -> int:
    found, _, _ = computed("numpy", jobs)
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{sum(map(len, found.values()))} digests of {len(found)} runs in {GOLDEN}")
    return 0


def check(jobs: int, engine: str) -> int:
    import jax
    import jaxlib

    device = jax.devices()[0]
    print(
        f"device    {device.device_kind} ({device.platform}), {jax.device_count()} of them;"
        f" {os.cpu_count()} processors"
    )
    print(
        f"versions  python {platform.python_version()}, numpy {np.__version__}, jax"
        f" {jax.__version__}, jaxlib {jaxlib.__version__}"
    )
    began = time.perf_counter()
    golden = json.loads(GOLDEN.read_text())
    found, names, seconds = computed(engine, jobs)
    if engine == "pallas":
        golden = {
            name: {part: own[part] for part in RESULTS}
            for name, own in golden.items()
            if name in found
        }
    print(f"{'':<16}{'runs':>6}{'digests':>9}{'different':>11}{'seconds':>9}")
    bad = differing(found, golden)
    for group, members in names.items():
        wrong = sum(name.rpartition(":")[0] in set(members) for name in bad)
        digests = sum(len(found[m]) for m in members)
        print(f"{group:<16}{len(members):>6}{digests:>9}{wrong:>11}{seconds[group]:>9.1f}")
    for name in bad[:40]:
        print("DIFFERENT", name)
    is_one = engine == "pallas" or one_program_is_two()
    if not is_one:
        print("DIFFERENT: inputs made by the same program and by another")
    total = sum(map(len, found.values()))
    print(
        f"{total - len(bad)} of {total} digests equal the stored ones;"
        f" {time.perf_counter() - began:.0f} s, {jobs} at a time"
    )
    return 1 if bad or not is_one else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.gpu_check", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="store the NumPy engine's digests")
    parser.add_argument(
        "--jobs",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="compilations at a time",
    )
    parser.add_argument("--engine", choices=("xla", "pallas"), default="xla")
    args = parser.parse_args(arguments)
    return write(args.jobs) if args.write else check(args.jobs, args.engine)


if __name__ == "__main__":
    sys.exit(main())
