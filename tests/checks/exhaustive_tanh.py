"""Every binary32 argument of tanh.approx, against all results of an H100: `make exhaustive`.

    python -m tests.checks.exhaustive_tanh [--engine numpy|xla]

`tests/golden/tanh_approx.json` has a digest of the results of each sign and exponent. Those that
differ are printed, and make the exit code 1.
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from rich.progress import track

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.instructions.approximate import tanh_approx

DIGESTS = json.loads(
    (Path(__file__).parents[1] / "golden" / "tanh_approx.json").read_text(encoding="utf-8")
)["digests"]
PART = 1 << 18


def digest(run, n: int) -> str:
    """The SHA-256 of the results for all arguments of one sign and exponent, n of 0 to 511."""
    found = hashlib.sha256()
    for start in range(n << 23, (n + 1) << 23, PART):
        words = np.arange(start, start + PART, dtype=np.uint32)
        with np.errstate(all="ignore"):  # signalling NaN
            y = np.asarray(run(words.view(np.float32).astype(np.float64)))
            narrow = y.astype(np.float32)
        nan = np.isnan(y)
        assert np.array_equal(narrow[~nan], y[~nan]), "a result is no binary32 number"
        found.update(np.where(nan, np.uint32(0x7FFFFFFF), narrow.view(np.uint32)).astype("<u4"))
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("numpy", "xla"), default="xla")
    begun, run = time.perf_counter(), lambda x: tanh_approx(numpy_ops(), x)
    if parser.parse_args().engine == "xla":
        run = jax.jit(lambda x: tanh_approx(xla_ops(opaque_zero(x)), x))
    with jax.enable_x64(True):
        wrong = [n for n in track(range(512), "tanh.approx") if digest(run, n) != DIGESTS[n]]
    for n in wrong:
        print(f"wrong: an argument of {n << 23:#010x} to {((n + 1) << 23) - 1:#010x}")
    print(f"{512 - len(wrong)} of 512 digests are equal; {time.perf_counter() - begun:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
