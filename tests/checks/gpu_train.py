"""A training by fused kernels, on a GPU, against the same by the XLA engine: after some steps, two
changes of the plan among them, every bit of weights and optimiser equal. With --devices: on one GPU
and on all, at GPT-2's width with 4 layers, the bits and the time of a step.

`make gpu-check`. Needs what `roundscope train` needs.

python -m tests.checks.gpu_train [--devices]
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from roundscope.experiments.train.devices import parts_here
from roundscope.experiments.train.gpt import step
from roundscope.experiments.train.groups import Group, batches_of
from roundscope.experiments.train.settings import settings
from roundscope.tools.compile_cache import keep_compilations

STEPS, WARM = 12, 3  # WARM: steps that are not timed
KERNELS = "block=64", "data=repeat", "sums=preset", "plan=fa2-bf16@hopper", "warmup=2"
SMALL = "layers=2", "heads=2", "width=128", "context=200", "batch=7", "lr=1e-2", *KERNELS
WIDE = "layers=4", "heads=12", "width=768", "context=1024", "batch=16", "vocab=8192", *KERNELS
CHANGES = ["6: -> plan=qiu-yao@hopper", "9: layer=1 -> plan=fa2-bf16@hopper"]


def trained(name: str, asked: Any, there: Sequence[Any]) -> tuple[list[np.ndarray], float]:
    """Return the arrays of weights and optimiser after a training, and the seconds of a step."""
    (batches,) = batches_of(asked).values()
    group = Group(asked, [0], step.start(asked.config, 1), there=there)
    begin = time.perf_counter()
    for number in range(STEPS):
        if number == WARM:
            jax.block_until_ready(group.state)
            first = time.perf_counter()
        losses, _ = group.advance(number, {0: batches.batch(number)})
    jax.block_until_ready(group.state)
    seconds = (time.perf_counter() - first) / (STEPS - WARM)
    loss, before = float(np.asarray(losses)[0]), first - begin
    print(
        f"{name:<26}loss {loss:.6f} after {STEPS} steps, {seconds * 1e3:.2f} ms a step,"
        f" {before:.1f} s before step {WARM}",
        flush=True,
    )
    return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(group.state))], seconds


def differ(one: list[np.ndarray], other: list[np.ndarray]) -> int:
    """How many arrays differ in some bit."""
    pairs = zip(one, other, strict=True)
    wrong = sum(int((a.view(np.uint8) != b.view(np.uint8)).any()) for a, b in pairs)
    print(f"{wrong} of {len(one)} arrays of weights and optimiser differ", flush=True)
    return wrong


def over_engines() -> int:
    states = [
        trained(name, settings([*SMALL, f"engine={name}"], at=CHANGES), jax.devices()[:1])[0]
        for name in ("pallas", "xla")
    ]
    return differ(*states)


def over_devices() -> int:
    asked = settings([*WIDE, "engine=pallas"])
    parts = parts_here(asked.config, [[0]])
    if parts == 1:
        print("nothing to compare: JAX sees one GPU")
        return 0
    asked = settings([*WIDE, "engine=pallas", f"parts={parts}"])
    (one, alone), (many, shared) = (
        trained(f"{parts} parts on {count} of {parts} GPUs", asked, jax.devices()[:count])
        for count in (1, parts)
    )
    whole = settings([*WIDE, "engine=pallas", "parts=1"])
    _, unsplit = trained("a whole batch on one GPU", whole, jax.devices()[:1])
    print(
        f"efficiency of {parts} GPUs: {alone / shared / parts:.3f} of the same parts on one,"
        f" {unsplit / shared / parts:.3f} of a whole batch on one"
    )
    return differ(one, many)


if __name__ == "__main__":
    print(jax.devices(), jax.__version__)
    keep_compilations()  # of all GPUs of a kind, which then compile once
    sys.exit(min(over_devices() if "--devices" in sys.argv else over_engines(), 1))
