"""Traces by the fused kernels against traces by XLA, on a GPU: events, counts, peaks, places and
ones equal, sums to 1e-12; and times.

python -m tests.checks.gpu_trace [--time]
"""

import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from roundscope.attention import Record, Site, examine
from roundscope.tools.bench.attention import Size, inputs
from tests.checks.engines import differences, normal

SIZES = (
    (1, 200, 4, 64),
    (1, 168, 2, 64),
    (1, 168, 2, 64),
    (1, 200, 4, 64),
)  # tiles that end beyond the rows; shared key heads
HOPPER = tuple(
    (plan, is_causal, every)
    for plan in ("fa2-bf16@hopper", "qiu-yao@hopper")
    for is_causal in (False, True)
    for every in (1, 3)
)
CELLS = (
    *HOPPER,
    ("fa2-bf16", True, 1),
    ("fa2-bf16", False, 3),
)  # ascending sums take Triton a minute each
CALLS = 3
COUNTED = Site.P, Site.ALPHA, Site.INV, Site.DV


def compare(cells) -> int:
    """The number of cells whose traces differ."""
    x, wrong = [jnp.asarray(2.0 * normal(90 + i, *s)) for i, s in enumerate(SIZES)], 0
    for plan, is_causal, every in cells:
        record = Record(ones=COUNTED, every=every, events=tuple(Site) if every == 1 else ())
        run = partial(
            examine, *x, plan=plan, is_causal=is_causal, record=record, block_q=64, block_k=32
        )
        found = differences(run(engine="pallas"), run(engine="xla"))
        print(
            f"{plan:<18}{'causal' if is_causal else 'full':<8}every {every} "
            f" {', '.join(found) or 'equal'}",
            flush=True,
        )
        wrong += bool(found)
    return wrong


def times() -> None:
    """By the clock, with all that comes back to the host, and of the device alone, copies left
    out.
    """
    q, k, v = inputs(Size(batch=4, heads=12, tokens=4096, features=64), "bfloat16")
    fused = [
        ("pallas", record)
        for record in (None, Record(every=64), Record(every=32), Record(every=16), Record())
    ]
    for plan, block_q, engines in (
        ("fa2-bf16@hopper", 64, [*fused, ("xla", None), ("xla", Record())]),
        ("qiu-yao@hopper", 128, fused),
    ):
        for do in (None, q):
            alone = None
            for engine, record in engines:
                run = partial(
                    examine,
                    q,
                    k,
                    v,
                    do,
                    plan=plan,
                    engine=engine,
                    record=record,
                    block_q=block_q,
                    block_k=64,
                )
                first, then, device = _times(run)
                alone = alone or device
                traced = f"traced, every {record.every}" if record else "not traced"
                what = f"{'both' if do is not None else 'forward':<9}{traced}"
                told = (
                    f"{then * 1e3:9.1f} ms, device {device * 1e3:9.2f} ms, {alone / device:.2f} of"
                    f" the speed, first call {first:5.1f} s"
                )
                print(f"{plan:<18}{engine:<8}{what:<28}{told}", flush=True)


def _times(run) -> tuple[float, float, float]:
    """Return seconds: of the first call, the median of later ones, and of the device in those."""

    def call() -> float:
        start = time.perf_counter()
        seen = run()
        jax.block_until_ready([x for x in (seen.out, seen.dq) if x is not None])
        return time.perf_counter() - start

    first, found = call(), [call() for _ in range(CALLS)]
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(CALLS):
                call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        return (
            first,
            statistics.median(found),
            _on_device(jax.profiler.ProfileData.from_file(str(file))) / CALLS,
        )


def _on_device(seen) -> float:
    """Seconds that a GPU's streams were busy with anything but copies."""
    lines = [
        line
        for plane in seen.planes
        if "GPU" in plane.name
        for line in plane.lines
        if "Stream" in line.name
    ]
    return (
        sum(
            e.duration_ns
            for line in lines
            for e in line.events
            if not e.name.lower().startswith("memcpy")
        )
        * 1e-9
    )


if __name__ == "__main__":
    print(jax.devices(), jax.__version__, "B 4 N 12 T 4096 H 64" if "--time" in sys.argv else "")
    sys.exit(times() if "--time" in sys.argv else min(compare(CELLS), 1))
