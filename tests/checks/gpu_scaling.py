"""How time and memory of the fused kernels grow with tokens, and over GPUs: `python -m
tests.checks.gpu_scaling [--devices]`, on a GPU.

Time: forward of `fa2-bf16@hopper`, 4 heads of 64 features, from 1 K to 128 K tokens; over T^2 it
should be one number. Memory: the most that was in use, over that of q, k, v and the output.
--devices: batch 8, 12 heads, 4,096 tokens on one GPU and on all, and their bits.
"""

import sys
import time
from functools import partial
from typing import Any

import jax
import numpy as np

from roundscope.attention import attend
from roundscope.attention.sharded import attend_sharded
from roundscope.tools.bench.attention import Size, inputs

OPTIONS: dict[str, Any] = {
    "plan": "fa2-bf16@hopper",
    "block_q": 64,
    "block_k": 128,
    "engine": "pallas",
}


def seconds(call: Any, repeat: int = 5, queued: int = 8) -> float:
    """The median of a few measurements, each of some calls in a row: the device's time, not that of
    waiting for it.
    """
    jax.block_until_ready(call())
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready([call() for _ in range(queued)])
        times.append((time.perf_counter() - start) / queued)
    return float(np.median(times))


def over_tokens() -> None:
    print(f"{'tokens':>8}{'ms':>10}{'ns / T^2':>10}{'most bytes':>14}{'over q k v out':>16}")
    for tokens in (1 << n for n in range(10, 18)):
        x = inputs(Size(batch=1, heads=4, tokens=tokens, features=64), "bfloat16")
        run = jax.jit(partial(attend, **OPTIONS)).lower(*x).compile()
        memory = run.memory_analysis()
        most = (
            memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
        )
        own = memory.argument_size_in_bytes + memory.output_size_in_bytes
        t = seconds(partial(run, *x))
        print(
            f"{tokens:>8}{t * 1e3:>10.3f}{t * 1e9 / tokens**2 / 4:>10.5f}"
            f"{most:>14}{most / own:>16.2f}",
            flush=True,
        )


def over_devices() -> None:
    found = {}
    for count in (1, jax.device_count()):
        mesh = jax.make_mesh((count, 1), ("batch", "heads"), devices=jax.devices()[:count])
        sharding = jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec("batch", None, "heads", None)
        )
        x = [
            jax.device_put(a, sharding)
            for a in inputs(Size(batch=8, heads=12, tokens=8192, features=64), "bfloat16")
        ]
        forward = partial(attend_sharded, mesh=mesh, **OPTIONS)
        both = jax.grad(lambda *x, f=forward: f(*x).sum(), argnums=(0, 1, 2))
        runs = [jax.jit(f).lower(*x).compile() for f in (forward, both)]
        found[count] = (
            [seconds(partial(run, *x), 9) for run in runs],
            [np.asarray(y) for y in (runs[0](*x), *runs[1](*x))],
        )
        print(
            f"{count} GPUs: forward {found[count][0][0] * 1e3:.3f} ms, with backward"
            f" {found[count][0][1] * 1e3:.3f} ms",
            flush=True,
        )
    (one, bits_one), (many, bits_many) = found[1], found[jax.device_count()]
    same = all(
        np.array_equal(a.view(np.int32), b.view(np.int32))
        for a, b in zip(bits_one, bits_many, strict=True)
    )
    print(
        "efficiency",
        *(f"{a / b / jax.device_count():.3f}" for a, b in zip(one, many, strict=True)),
        "; equal bits:",
        same,
    )


if __name__ == "__main__":
    print(jax.devices(), jax.__version__)
    over_devices() if "--devices" in sys.argv else over_tokens()
