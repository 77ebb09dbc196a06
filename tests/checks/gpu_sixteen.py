"""Arithmetic of 16-bit numbers as fused kernels do it on a GPU, against the rule: part of `make
gpu-check`.

    python -m tests.checks.gpu_sixteen

Sums, differences and products of every pair of bfloat16 numbers and of every pair of float16 ones
(`convert.combined16`); products of random binary32 numbers, ones among them, with such numbers
(`scaled16`); every binary32 number rounded to them, as inputs are (`engine.cast`). Prints how many
results differ; exit code 1 if any does.
"""

import sys
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from roundscope.attention.engines.kernels.engine import cast
from roundscope.emu.backends.kernels.convert import NARROW, combined16, scaled16
from roundscope.emu.backends.xla.rounding import round_wide
from roundscope.emu.roundings.modes import BF16, FP16, Rounding

SIDE = 64  # of a program's tile
ROWS = 1 << 8  # codes of the first factor at a time, each with all 2^16 of the second
OPERATIONS = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply}


def main() -> int:
    began = time.perf_counter()
    with jax.enable_x64(True):
        found = {
            f"{operation}, {r}": _pairs(operation, r)
            for operation in OPERATIONS
            for r in (BF16, FP16)
        }
        found |= {f"binary32 times {r}": _scaled(r) for r in (BF16, FP16)}
        found |= {f"binary32 as an input in {r}": _cast(r) for r in (BF16, FP16)}
    for name, wrong in found.items():
        print(f"16-bit numbers in kernels, {name}: {wrong} results differ")
    print(f"{jax.devices()[0].device_kind}, {time.perf_counter() - began:.0f} s")
    return 1 if any(found.values()) else 0


def _pairs(operation: str, r: Rounding) -> int:
    """Return how many of all 2^32 pairs of codes give other bits."""
    return sum(
        int(_wrong_of_pairs(operation, r, jnp.uint32(first))) for first in range(0, 1 << 16, ROWS)
    )


@partial(jax.jit, static_argnums=(0, 1))
def _wrong_of_pairs(operation: str, r: Rounding, first: Any) -> Any:
    n = jnp.arange(ROWS << 16, dtype=jnp.uint32)
    a, b = (_numbers(code.astype(jnp.uint16), r) for code in (first + (n >> 16), n & 0xFFFF))
    return _differing(partial(combined16, operation, r=r), OPERATIONS[operation], a, b, r)


def _scaled(r: Rounding) -> int:
    """Return how many of 2^28 products have other bits.

    In every second row most first factors are 1.
    """
    return sum(int(_wrong_of_scaled(r, jax.random.key(seed))) for seed in range(1 << 4))


@partial(jax.jit, static_argnums=0)
def _wrong_of_scaled(r: Rounding, key: Any) -> Any:
    own, other, where = jax.random.split(key, 3)
    count = 1 << 24
    a = lax.bitcast_convert_type(jax.random.bits(own, (count,), jnp.uint32), jnp.float32)
    is_one = (jnp.arange(count) // SIDE % 2 == 0) & (
        jax.random.bits(where, (count,), jnp.uint16) > 16
    )
    b = _numbers(jax.random.bits(other, (count,), jnp.uint16), r)
    return _differing(
        partial(scaled16, r=r), jnp.multiply, jnp.where(is_one, jnp.float32(1.0), a), b, r
    )


def _cast(r: Rounding) -> int:
    """Return how many of all 2^32 binary32 numbers are rounded to other bits."""
    size = 1 << 24
    return sum(int(_wrong_of_cast(r, jnp.uint32(n))) for n in range(0, 1 << 32, size))


@partial(jax.jit, static_argnums=0)
def _wrong_of_cast(r: Rounding, first: Any) -> Any:
    codes = first + jnp.arange(1 << 24, dtype=jnp.uint32)
    x = lax.optimization_barrier(lax.bitcast_convert_type(codes, jnp.float32))
    ours = cast(r, x)
    assert ours.dtype == NARROW[r], "the engine has no conversion of its own"
    return _wrong(ours.astype(jnp.float64), round_wide(x.astype(jnp.float64), r))


def _numbers(codes: Any, r: Rounding) -> Any:
    return lax.bitcast_convert_type(codes, NARROW[r])


def _differing(by_kernel: Any, operation: Any, a: Any, b: Any, r: Rounding) -> Any:
    """How many results of a kernel are not those of binary64 rounded once. NaN is NaN."""
    a, b = (x.reshape(-1, SIDE) for x in (a, b))
    tile = pl.BlockSpec((SIDE, SIDE), lambda i: (i, 0))

    def kernel(x: Any, y: Any, z: Any) -> None:
        z[...] = by_kernel(x[...], y[...])

    call = pl.pallas_call(
        kernel,
        grid=(a.shape[0] // SIDE,),
        in_specs=[tile, tile],
        out_specs=tile,
        out_shape=jax.ShapeDtypeStruct(a.shape, NARROW[r]),
    )
    theirs = round_wide(operation(a.astype(jnp.float64), b.astype(jnp.float64)), r)
    return _wrong(call(a, b).astype(jnp.float64), theirs)


def _wrong(ours: Any, theirs: Any) -> Any:
    """How many binary64 numbers differ in a bit; NaN equals NaN."""
    x, y = (lax.bitcast_convert_type(v, jnp.int64) for v in (ours, theirs))
    return ((x != y) & ~(jnp.isnan(ours) & jnp.isnan(theirs))).sum()


if __name__ == "__main__":
    sys.exit(main())
