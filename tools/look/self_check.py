"""A self-check: our rounding on both executors against ml_dtypes (against NumPy for float16).

The inputs are random bit patterns and the boundaries between the numbers of each format.
"""

from contextlib import suppress
from dataclasses import dataclass

import jax
import ml_dtypes
import numpy as np

from roundscope.emu.backends.numba import rounding as kernels
from roundscope.emu.backends.xla import rounding as xla
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import rounding, without_saturation

JUDGES: dict[str, type] = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How many numbers of one format each executor rounds otherwise than the reference does.

    That of XLA is None where JAX cannot start.
    """

    format: str
    numbers: int
    numba_wrong: int
    xla_wrong: int | None

    @property
    def passed(self) -> bool:
        """Return whether both executors agree with the reference in every number."""
        return self.numba_wrong == self.xla_wrong == 0


def sample(f: Format, size: int = 1 << 15) -> np.ndarray:
    """Return float32 numbers on which rounding to the format f is checked.

    They are random bit patterns, random multiples of half the format's spacing in and around its
    range, the next float32 above each of those, and special values; no NaN.
    """
    g = np.random.default_rng(20251004)
    patterns = g.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    exponents = g.integers(max(f.emin - f.precision - 1, -148), min(f.emax + 1, 127) + 1, size)
    halves = g.integers(1 << f.precision, 2 << f.precision, size) * 2.0**-f.precision
    near = np.nextafter(np.float32(0), np.float32(g.choice([-1, 1])), dtype=np.float32)
    grid = np.ldexp(halves * g.choice([-1, 1], size), exponents).astype(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, f.max_finite, -f.max_finite, near], np.float32)
    x = np.concatenate([patterns, grid, np.nextafter(grid, np.float32(np.inf)), edges])
    return np.asarray(x[~np.isnan(x)])


def check(name: str) -> Check:
    """Check one format, without operands that are NaN, which a policy decides (emu.roundings)."""
    r = without_saturation(rounding(name))
    x = sample(r.format)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(JUDGES[name]).astype(np.float32)
    by_numba, by_xla = _wrong(kernels.round_array(x, r), expected), None
    with suppress(RuntimeError, AssertionError):  # where JAX cannot start
        jax.devices()
        by_xla = _wrong(np.asarray(jax.jit(lambda x: xla.round_array(x, r))(x)), expected)
    return Check(format=name, numbers=x.size, numba_wrong=by_numba, xla_wrong=by_xla)


def _wrong(got: np.ndarray, expected: np.ndarray) -> int:
    same = (got.view(np.int32) == expected.view(np.int32)) | (np.isnan(got) & np.isnan(expected))
    return int((~same).sum())
