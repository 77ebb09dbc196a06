"""The traps of NumPy's companions: ml_dtypes and safetensors."""

import subprocess
import sys
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from roundscope.emu.backends.numba import rounding as kernels
from roundscope.emu.roundings.modes import BF16, rounding


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


def double_rounding() -> Probe:
    """Probe the cast float64 -> bf16 of ml_dtypes, which goes through binary32: two roundings."""
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    got = float(x.astype(ml_dtypes.bfloat16)[0])
    ours = float(kernels.round_array(x, BF16)[0])
    return Probe(
        name="ml_dtypes rounds float64 twice",
        seen=f"1 + 2^-8 + 2^-40 -> {got:g}, not 1.0078125",
        present=got == 1.0,
        immune=ours == 1.0078125,
        how="one rounding from binary64",
    )


def nan_lost() -> Probe:
    """Probe the cast of NaN to a format that has no NaN."""
    nan = np.array([np.nan], np.float32)
    got = nan.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)[0]
    ours = kernels.round_array(nan, rounding("e2m1fn"))[0]
    return Probe(
        name="NaN lost in a format without NaN",
        seen=f"ml_dtypes: NaN to e2m1fn gives {got:g}",
        present=not np.isnan(got),
        immune=bool(np.isnan(ours)),
        how="a policy of the rounding; kept by default",
    )


_LOAD = "import sys; from safetensors.numpy import load_file; load_file(sys.argv[1])"


def safetensors_bf16() -> Probe:
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
    return Probe(
        name="safetensors BF16 needs ml_dtypes",
        seen=seen,
        present=fails,
        immune=bool(np.isfinite(read_layers(sample_path(), layer="layer1")[0].q).all()),
        how="imported first",
    )
