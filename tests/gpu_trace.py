"""Traces by the fused kernels against traces by XLA, on a GPU: counts, peaks, places and ones equal, sums to 1e-12; and the time of both.

python -m tests.gpu_trace [--time]
"""

import statistics
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp

from attention import Record, Site, examine
from experiments.bench_attention import Size, inputs
from tests.engines import differences, normal

SIZES = (1, 200, 4, 64), (1, 168, 2, 64), (1, 168, 2, 64), (1, 200, 4, 64)  # tiles that end beyond the rows; shared key heads
PLANS = ("fa2-bf16@hopper", "qiu-yao@hopper", "fa2-bf16")
COUNTED = Site.P, Site.ALPHA, Site.INV, Site.DV


def compare() -> int:
    """The number of plans whose traces differ."""
    x, wrong = [jnp.asarray(2.0 * normal(90 + i, *s)) for i, s in enumerate(SIZES)], 0
    for plan in PLANS:
        for is_causal in (False, True):
            for every in (1, 3):
                record = Record(ones=COUNTED, every=every)
                run = partial(examine, *x, plan=plan, is_causal=is_causal, record=record, block_q=64, block_k=32)
                found = differences(run(engine="pallas"), run(engine="xla"))
                print(f"{plan:<18}{'causal' if is_causal else 'full':<8}every {every}  {', '.join(found) or 'equal'}", flush=True)
                wrong += bool(found)
    return wrong


def times() -> None:
    q, k, v = inputs(Size(batch=4, heads=12, tokens=4096, features=64), "bfloat16")
    for do in (None, q):
        for engine, record in (("pallas", None), ("pallas", Record()), ("pallas", Record(every=32)), ("xla", None), ("xla", Record())):
            first, then = _times(
                partial(examine, q, k, v, do, plan="fa2-bf16@hopper", engine=engine, record=record, block_q=64, block_k=64)
            )
            what = f"{'forward' if do is None else 'both':<9}{f'traced, every {record.every}' if record else 'not traced'}"
            print(f"{engine:<8}{what:<28}{then * 1e3:9.1f} ms, first call {first:5.1f} s", flush=True)


def _times(call) -> tuple[float, float]:
    """Of the first call, and the median of some more, with all that comes back to the host."""
    found = []
    for _ in range(4):
        start = time.perf_counter()
        seen = call()
        jax.block_until_ready([x for x in (seen.out, seen.dq) if x is not None])
        found.append(time.perf_counter() - start)
    return found[0], statistics.median(found[1:])


if __name__ == "__main__":
    print(jax.devices(), jax.__version__, "B 4 N 12 T 4096 H 64" if "--time" in sys.argv else "")
    sys.exit(times() if "--time" in sys.argv else min(compare(), 1))
