"""The traps of XLA's arithmetic, each of them probed with a few numbers.

A probe compares with NumPy what the obvious code gives on JAX's device, and also what Roundscope's
way of computing the same gives there.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from roundscope.emu.backends.numba import rounding as kernels
from roundscope.emu.backends.ops import Ops
from roundscope.emu.backends.xla import rounding as xla
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.backends.xla.rounding import narrow, widen
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import BF16, BINARY32, rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One trap.

    name      what goes wrong
    seen      what was measured here, in words
    present   whether it happens on this machine
    immune    whether Roundscope's results are right all the same, as measured
    how       how Roundscope avoids it
    """

    name: str
    seen: str
    present: bool
    immune: bool
    how: str


Seen = tuple[str, bool, bool]  # what a probe measured: seen, present and immune
PROBES: list[Callable[[], Probe]] = []
SHAPE = (64, 1000)


def probe(name: str, how: str) -> Callable[[Callable[[], Seen]], None]:
    """Add a function that measures a trap to PROBES; name, how: as in `Probe`."""

    def add(measure: Callable[[], Seen]) -> None:
        @wraps(measure)
        def probed() -> Probe:
            seen, present, immune = measure()
            return Probe(name=name, seen=seen, present=bool(present), immune=bool(immune), how=how)

        PROBES.append(probed)

    return add


def _sample(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _differs(got: Any, expected: np.ndarray) -> float:
    """Return the share of bit patterns that differ."""
    word = np.int32 if expected.dtype == np.float32 else np.int64
    return float((np.asarray(got).view(word) != expected.view(word)).mean())


def _wide(f: Callable[..., Any], *args: np.ndarray) -> np.ndarray:
    """Return f(ops, *args) computed by XLA in the binary64 carrier, as the algorithm runs it."""

    def run(*xs: Any) -> Any:
        return f(xla_ops(opaque_zero(xs[0])), *xs)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(run)(*(np.asarray(a, np.float64) for a in args)))


@probe("astype round trip removed", "integer rule on bits")
def astype_round_trip() -> Seen:
    """Probe astype(bf16).astype(f32), fused with a row maximum: XLA may remove both casts."""
    x = _sample(0)
    expected = (x - x.max(-1, keepdims=True)).astype(ml_dtypes.bfloat16).astype(np.float32)

    def shifted(x: Any) -> Any:
        return x - x.max(-1, keepdims=True)

    lost = _differs(
        jax.jit(lambda x: shifted(x).astype(jnp.bfloat16).astype(jnp.float32))(x), expected
    )
    ours = _differs(jax.jit(lambda x: xla.round_array(shifted(x), BF16))(x), expected)
    return f"{lost:.1%} of values left unrounded", lost > 0, ours == 0


@probe("x*y + z fused (FMA)", "product XOR a run-time zero")
def fma_contraction() -> Seen:
    """Probe x * y + z, which XLA may compute with one rounding instead of two."""
    x, y, z = (_sample(i) for i in range(3))
    fused = _differs(jax.jit(lambda x, y, z: x * y + z)(x, y, z), x * y + z)
    wide = [a.astype(np.float64) * (1 + 2.0**-40) for a in (x, y, z)]
    ours = _differs(
        _wide(lambda ops, x, y, z: ops.multiply(x, y) + z, *wide), wide[0] * wide[1] + wide[2]
    )
    return f"{fused:.1%} of results differ", fused > 0, ours == 0


@probe("(x + C) - C folded", "never used: floor and integers")
def constant_folding() -> Seen:
    """Probe (x + C) - C, which rounds to an integer unless XLA folds it to x."""
    x, c = _sample(3) * 100, np.float32(1.5 * 2**23)
    folded = _differs(jax.jit(lambda x: (x + c) - c)(x), (x + c) - c)
    floor = _differs(
        _wide(lambda ops, x: ops.xp.floor(x + 0.5), x), np.floor(x.astype(np.float64) + 0.5)
    )
    return f"{folded:.1%} of results differ", folded > 0, floor == 0


@probe("subnormals flushed", "binary64 carrier, widened by bits")
def subnormal_flush() -> Seen:
    """Probe 1e-39 + 1e-39 in binary32, which is 0 where subnormals are flushed."""
    tiny = np.float32(1e-39)
    total = float(jax.jit(lambda a: a + a)(tiny))
    with jax.enable_x64(True):
        ours = np.asarray(jax.jit(lambda a: narrow(widen(a) + widen(a)))(tiny))
    return f"1e-39 + 1e-39 = {total:.3g}", total == 0, bool(ours == tiny + tiny)


@probe("o / l by a reciprocal", "1 / l is an event of its own")
def reciprocal_division() -> Seen:
    """Probe o / l[:, None], which XLA may turn into a multiplication by 1 / l."""
    o, total = _sample(4), np.abs(_sample(5)).sum(-1, dtype=np.float32)
    differ = _differs(jax.jit(lambda o, t: o / t[:, None])(o, total), o / total[:, None])

    def ours(ops: Ops, o: Any, total: Any) -> Any:
        return ops.round(
            ops.multiply(o, ops.round(1.0 / total, BINARY32, None)[:, None]), BINARY32, None
        )

    expected = (o * (np.float32(1) / total)[:, None]).astype(np.float64)
    return (
        f"{differ:.1%} of results differ",
        differ > 0,
        _differs(_wide(ours, o, total), expected) == 0,
    )


@probe("reduce_precision(4, 3) is not E4M3", "never used")
def reduce_precision() -> Seen:
    """Probe reduce_precision(4, 3), which is easily taken for E4M3 and is another format."""
    x = np.array([300.0, 2.0**-9], np.float32)
    got = np.asarray(lax.reduce_precision(jnp.asarray(x), 4, 3))
    ours = np.asarray(xla.round_array(jnp.asarray(x), rounding("e4m3fn", overflow="nan")))
    expected = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return (
        f"300 -> {got[0]:g}, 2^-9 -> {got[1]:g}",
        _differs(got, expected) > 0,
        _differs(ours, expected) == 0,
    )


@probe("exp inexact", "binary64 evaluation, one rounding")
def exp_accuracy() -> Seen:
    """Probe the largest error of exp and exp2 in ulps of binary32."""
    x = -np.abs(_sample(6, (100_000,))) * 10
    wide = x.astype(np.float64)
    worst = [_ulps(jax.jit(f)(x), g(wide)) for f, g in ((jnp.exp, np.exp), (jnp.exp2, np.exp2))]
    ours = _ulps(_wide(lambda ops, x: ops.round(exp64(ops, x), BINARY32, None), x), np.exp(wide))
    return (
        f"exp off by {worst[0]:.2f} ulp, exp2 by {worst[1]:.2f}",
        max(worst) > 0.5001,
        ours <= 0.5001,
    )


def _ulps(got: Any, exact: np.ndarray) -> float:
    ulp = np.spacing(exact.astype(np.float32), dtype=np.float32)
    return float(np.max(np.abs(np.asarray(got) - exact) / ulp))


@probe("ml_dtypes rounds float64 twice", "one rounding from binary64")
def double_rounding() -> Seen:
    """Probe the cast float64 -> bf16 of ml_dtypes, which goes through binary32: two roundings."""
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    got = float(x.astype(ml_dtypes.bfloat16)[0])
    ours = float(kernels.round_array(x, BF16)[0])
    return f"1 + 2^-8 + 2^-40 -> {got:g}, not 1.0078125", got == 1.0, ours == 1.0078125


@probe("NaN lost in a format without NaN", "a policy of the rounding; kept by default")
def nan_lost() -> Seen:
    """Probe the cast of NaN to a format that has no NaN."""
    nan = np.array([np.nan], np.float32)
    got = nan.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)[0]
    ours = kernels.round_array(nan, rounding("e2m1fn"))[0]
    return f"ml_dtypes: NaN to e2m1fn gives {got:g}", not np.isnan(got), bool(np.isnan(ours))


_LOAD = "import sys; from safetensors.numpy import load_file; load_file(sys.argv[1])"


@probe("safetensors BF16 needs ml_dtypes", "imported first")
def safetensors_bf16() -> Seen:
    """Probe reading BF16 from safetensors to NumPy in a process that has not imported ml_dtypes."""
    from roundscope.tools.tensors.layers import read_layers, sample_path

    bare = subprocess.run(
        [sys.executable, "-c", _LOAD, str(sample_path())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    fails = bare.returncode != 0
    seen = bare.stderr.strip().splitlines()[-1] if fails else "works"
    return seen, fails, bool(np.isfinite(read_layers(sample_path(), layer="layer1")[0].q).all())
