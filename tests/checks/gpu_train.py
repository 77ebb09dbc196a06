"""A training by fused kernels against the same by the XLA engine, on a GPU: after some steps, a
change of the plan among them, every bit of weights and optimiser equal.

`make gpu-check`. Needs what `roundscope train` needs.

python -m tests.checks.gpu_train
"""

import sys

import jax
import numpy as np

from roundscope.experiments.train.gpt import step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.loop import batches_of
from roundscope.experiments.train.settings import settings

# a batch of 7: the XLA engine would spread one that several GPUs divide, and add up in another
# order
STEPS = 12
WORDS = (
    "layers=2",
    "heads=2",
    "width=128",
    "context=200",
    "batch=7",
    "block=64",
    "data=repeat",
    "sums=preset",
    "plan=fa2-bf16@hopper",
    "warmup=2",
    "lr=1e-2",
)


def state(engine: str) -> list[np.ndarray]:
    """What a training ends with."""
    asked = settings([*WORDS, f"engine={engine}"], at=["6: -> plan=qiu-yao@hopper"])
    (batches,), group = batches_of(asked).values(), Group(asked, [0], step.start(asked.config, 1))
    for number in range(STEPS):
        losses, _ = group.advance(number, {0: batches.batch(number)})
    print(f"{engine:<8}loss {float(losses[0]):.6f} after {STEPS} steps", flush=True)
    return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(group.state))]


if __name__ == "__main__":
    print(jax.devices(), jax.__version__)
    pairs = zip(state("pallas"), state("xla"), strict=True)
    wrong = sum(int((a.view(np.uint8) != b.view(np.uint8)).any()) for a, b in pairs)
    print(f"{wrong} arrays of weights and optimiser differ")
    sys.exit(min(wrong, 1))
