"""Every one of the 2^32 arguments of ex2, lg2, rcp, expf, logf and log2f on this GPU, against emu.instructions.

python -m tests.checks.gpu_instructions [NAME ...]
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.backends.xla.widths import narrow, widen
from roundscope.emu.instructions import approximate, logarithms
from tests.checks.gpu_kernels import FUNCTIONS
from tests.checks.gpu_kernels import approximate as measured

PART = 1 << 25
NAN = 0x7FFFFFFF


def bits_of(name: str):
    """The compiled model: words in, words out, every NaN the same."""
    function = getattr(approximate, name, None) or getattr(logarithms, name)

    @jax.jit
    def run(words):
        x = widen(jax.lax.bitcast_convert_type(words, jnp.float32))
        y = function(xla_ops(opaque_zero(x)), x)
        found = jax.lax.bitcast_convert_type(narrow(y), jnp.uint32)
        return jnp.where(jnp.isnan(y), jnp.uint32(NAN), found)

    return run


def main() -> None:
    """One line for each instruction."""
    with jax.enable_x64(True):
        for name in sys.argv[1:] or FUNCTIONS:
            begun, wrong, first = time.perf_counter(), 0, None
            model = bits_of(name)
            for start in range(0, 1 << 32, PART):
                words = np.arange(start, start + PART, dtype=np.uint64).astype(np.uint32)
                want = measured(name, words)
                want[(want & 0x7FFFFFFF) > 0x7F800000] = NAN
                got = np.asarray(model(jnp.asarray(words)))
                bad = np.flatnonzero(got != want)
                wrong += bad.size
                if bad.size and first is None:
                    first = f"; {words[bad[0]]:#010x} gives {want[bad[0]]:#010x}, ours {got[bad[0]]:#010x}"
            took = time.perf_counter() - begun
            print(f"{name}: {wrong} of {1 << 32} arguments differ{first or ''}; {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
