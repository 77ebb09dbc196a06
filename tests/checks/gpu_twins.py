"""Twins in fused kernels on a GPU: against the XLA engine and against the real kernels on the same
inputs, bit for bit; and their speed.

    python -m tests.checks.gpu_twins [--time]

Exit code 1 where a fused kernel and the XLA engine differ in a bit. --time: ratios to torch's SDPA
in the same run, with B = 4, N = 12, T = 4096.
"""

import sys
from collections.abc import Iterator

import numpy as np

from roundscope.attention import examine
from roundscope.attention.plans.twins import TWINS
from roundscope.tools.bench.attention import SIZES, Row, _rows, emulated, of_jax, torch_kernels
from roundscope.tools.bench.attention import inputs as numbers
from roundscope.tools.identify.adapters import kernel
from tests.checks.kernel_outputs import inputs

FUSED = {"fa2": "sdpa-flash", "cudnn": "sdpa-cudnn"}
CASES = ("layer4", "gaussian64", "gaussian128")
PARTS = ("out", "dq", "dk", "dv")


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """How many numbers differ in a bit."""
    x, y = (np.ascontiguousarray(z, np.float32).view(np.int32) for z in (a, b))
    return int((x != y).sum())


def compared() -> Iterator[tuple[str, dict[str, int], dict[str, int], int]]:
    """(case, numbers in which the fused kernel differs from the XLA engine, from the real kernel,
    of how many in each).
    """
    for name, real in FUSED.items():
        for family in CASES:
            for causal in (False, True):
                x = inputs(family, causal)
                block_q, block_k = TWINS[name].tiles(x.q.shape[-1], causal)
                options = {
                    "plan": TWINS[name].plan,
                    "block_q": block_q,
                    "block_k": block_k,
                    "scale": x.scale,
                    "is_causal": causal,
                }
                fused, xla = (
                    examine(x.q, x.k, x.v, x.do, engine=e, record=None, **options)
                    for e in ("pallas", "xla")
                )
                outputs = dict(kernel(real)(x).named())
                own = {part: np.asarray(getattr(fused, part)) for part in PARTS}
                of_xla = {
                    part: differing(own[part], np.asarray(getattr(xla, part))) for part in PARTS
                }
                of_real = {part: differing(own[part], outputs[part]) for part in PARTS}
                yield f"{name} {family} {'causal' if causal else 'full'}", of_xla, of_real, x.q.size


def times() -> Iterator[Row]:
    """Torch's SDPA and our twins, size by size."""
    for size in SIZES["gpu"]:
        arrays, field = numbers(size, "bfloat16"), torch_kernels(size)
        for name in FUSED:
            tile = TWINS[name].tiles(size.features, size.is_causal)
            field.append(
                of_jax(
                    f"{name}, fused {tile[0]} x {tile[1]}",
                    emulated(name, size, "pallas", tile),
                    arrays,
                    is_ours=True,
                )
            )
        yield from _rows(size, field, print, 5)


def main() -> None:
    """Print what differs, then speeds."""
    wrong = 0
    for case, of_xla, of_real, size in compared():
        wrong += sum(of_xla.values())
        print(
            f"{case}: from XLA {of_xla}, from the real kernel {of_real}, of {size} each", flush=True
        )
    if "--time" in sys.argv:
        for row in times():
            told = f"forward {row.forward * 1e3:.3f} ms, both {row.both * 1e3:.3f} ms"
            print(
                f"{row.size} {row.what}: {told}, speed over cuDNN's {1 / row.times:.3f}, both"
                f" {1 / row.times_both:.3f}",
                flush=True,
            )
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
