"""Every argument of the exp of fused kernels (`emu.backends.kernels.exp`): `make exhaustive` on a
processor, `make gpu-check` on a GPU.

    python -m tests.checks.gpu_exp

With a GPU: the kernel's own instructions on all 2^32 binary32 arguments, and on the 2^16 bfloat16
ones by their own series and from a program's table, against exp64 rounded once, which
tests.checks.exhaustive_exp settles. Without one: the operations of the series by Numba, fused
multiply-adds included. Prints how many results differ; exit code 1 if any does.
"""

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from roundscope.emu.backends.kernels.exp import BFLOAT16, BINARY32, LN2, LOG2_E, MAGIC
from roundscope.emu.backends.numba.sums import fused
from tests.checks.exhaustive_exp import scalar_exp64

LARGEST, WARPS = 1 << 24, 4  # arguments at a time on a GPU; of a program
L, LN, M = (float.fromhex(x) for x in (LOG2_E, LN2, MAGIC))


@intrinsic  # type: ignore[untyped-decorator]
def scaled(_: Any, x: Any, k: Any) -> Any:
    """x 2^k by its exponent's bits."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(64)
        bits = builder.add(builder.bitcast(args[0], word), builder.shl(args[1], word(52)))
        return builder.bitcast(bits, ir.DoubleType())

    return numba.float64(x, k), code


def constants(f: Sequence[str]) -> np.ndarray:
    """Return the coefficients of e^r in the kernel's text, the highest power first."""
    return np.array([float.fromhex(x) for x in (*f, "1")])


@numba.njit
def mirrored(x, terms):  # type: ignore[no-untyped-def]
    """The operations of the kernel on one number, in their order."""
    if x != x:
        return np.float32(x)
    x = np.float64(min(max(x, np.float32(-110.0)), np.float32(100.0)))
    k = fused(x, L, M) - M
    x = fused(k, -LN, x)
    p = terms[0]
    for c in terms[1:]:
        p = fused(p, x, c)
    return np.float32(scaled(p, np.int64(k)))


@numba.njit(parallel=True)
def differing(start, step, count, terms):  # type: ignore[no-untyped-def]
    """How many arguments of these bits, start + n step, the mirror and exp64 do not agree on."""
    wrong = 0
    for n in numba.prange(count):
        x = np.empty(1, np.uint32)
        x[0] = start + n * step
        v = x.view(np.float32)[0]
        ours, theirs = mirrored(v, terms), np.float32(scalar_exp64(np.float64(v)))
        wrong += int(ours != theirs and v == v)
    return wrong


def on_processor() -> dict[str, int]:
    """How many results differ, by series."""
    return {
        "binary32": differing(0, 1, 1 << 32, constants(BINARY32)),
        "bfloat16": differing(0, 1 << 16, 1 << 16, constants(BFLOAT16)),
    }


def on_gpu() -> dict[str, int]:
    """The same, of the kernel itself."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    from roundscope.emu.backends.kernels.exp import AT_ONCE, exp32, exp32_by_table, table
    from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
    from roundscope.emu.backends.xla.rounding import narrow, round_wide, widen
    from roundscope.emu.functions import exp64
    from roundscope.emu.roundings.modes import BINARY32 as ROUNDED

    def kernel(name: str, x: Any, zero: Any, y: Any) -> None:
        y[...] = exp32(x[...], name, zero[0], at_once=AT_ONCE)

    def from_table(x: Any, zero: Any, y: Any) -> None:
        y[...] = exp32_by_table(x[...].astype(jnp.bfloat16), table(zero[0], 32 * WARPS))

    @partial(jax.jit, static_argnums=(2, 3))
    def wrong(start: Any, step: Any, count: int, kernel: Any) -> Any:
        x = lax.bitcast_convert_type(
            start + step * jnp.arange(count, dtype=jnp.uint32), jnp.float32
        ).reshape(-1, 64)
        tile, none = pl.BlockSpec((64, 64), lambda i: (i, 0)), pl.BlockSpec((1,), lambda i: (0,))
        like = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        call = pl.pallas_call(
            kernel,
            grid=(x.shape[0] // 64,),
            in_specs=[tile, none],
            out_specs=tile,
            out_shape=like,
            compiler_params=triton.CompilerParams(num_warps=WARPS),
        )
        ours, wide = call(x, jnp.zeros(1, jnp.int64)), widen(x)
        theirs = narrow(round_wide(exp64(xla_ops(opaque_zero(wide)), wide), ROUNDED))
        a, b = (lax.bitcast_convert_type(y, jnp.int32) for y in (ours, theirs))
        return ((a != b) & ~(jnp.isnan(ours) & jnp.isnan(theirs))).sum()

    with jax.enable_x64(True):
        by_series = partial(kernel, "fp32")
        found = sum(
            int(wrong(jnp.uint32(n), jnp.uint32(1), LARGEST, by_series))
            for n in range(0, 1 << 32, LARGEST)
        )
        short = {"bfloat16": partial(kernel, "bf16"), "bfloat16, by table": from_table}
        return {"binary32": found} | {
            name: int(wrong(jnp.uint32(0), jnp.uint32(1 << 16), 1 << 16, own))
            for name, own in short.items()
        }


def main() -> int:
    import jax

    began = time.perf_counter()
    gpu = jax.default_backend() == "gpu"
    found = on_gpu() if gpu else on_processor()
    where = jax.devices()[0].device_kind if gpu else "the operations on a processor"
    for name, wrong in found.items():
        print(
            f"exp of fused kernels, {where}, {name}: {wrong} of"
            f" 2^{32 if name == 'binary32' else 16} arguments differ"
        )
    print(f"{time.perf_counter() - began:.0f} s")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
