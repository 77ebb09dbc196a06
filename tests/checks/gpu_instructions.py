"""Every one of the 2^32 arguments of ex2, lg2, rcp, rsqrt, tanh, expf, logf, log2f and tanhf on
this GPU, against emu.instructions.

python -m tests.checks.gpu_instructions [NAME ...]
"""

import sys
import time

import cupy
import jax
import jax.numpy as jnp

from roundscope.emu.backends.xla.ops import opaque_zero, xla_ops
from roundscope.emu.backends.xla.rounding import narrow, widen
from roundscope.emu.instructions import approximate, polynomials
from tests.checks.gpu_kernels import FUNCTIONS, launched

PART = 1 << 26


def comparison(name: str):
    """The compiled comparison: (words in, words that the GPU gave) -> (how many differ, the first
    that does).

    NaNs are all the same.
    """
    function = next(
        found for module in (approximate, polynomials) if (found := getattr(module, name, None))
    )

    @jax.jit
    def run(words, want):
        x = widen(jax.lax.bitcast_convert_type(words, jnp.float32))
        y = function(xla_ops(opaque_zero(x)), x)
        own = jax.lax.bitcast_convert_type(narrow(y), jnp.uint32)
        differ = (own != want) & ~(jnp.isnan(y) & ((want & 0x7FFFFFFF) > 0x7F800000))
        first = jnp.argmax(differ)
        return differ.sum(), jnp.stack([words[first], want[first], own[first]])

    return run


def main() -> None:
    """One line for each instruction."""
    with jax.enable_x64(True):
        for name in sys.argv[1:] or FUNCTIONS:
            begun, wrong, first = time.perf_counter(), 0, ""
            run = comparison(name)
            for start in range(0, 1 << 32, PART):
                words = jnp.arange(start, start + PART, dtype=jnp.uint32).block_until_ready()
                want = launched(name, cupy.from_dlpack(words))
                cupy.cuda.Device().synchronize()
                count, example = run(words, jnp.from_dlpack(want))
                wrong += int(count)
                if int(count) and not first:
                    first = "; {:#010x} gives {:#010x}, ours {:#010x}".format(
                        *(int(n) for n in example)
                    )
            took = time.perf_counter() - begun
            print(f"{name}: {wrong} of {1 << 32} arguments differ{first}; {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
