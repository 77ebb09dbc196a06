"""What a step of a small PyTorch model costs under `use`, on one thread of a CPU.

    python -m tests.checks.watching.small_cost

It prints the processor's time of a step: without `use`, in the first steps and in later ones.
"""

import time

import torch
import torch.nn.functional as F
from torch import nn

from roundscope.torch import use
from tests.attention.torch.models import GPT, VOCABULARY

STEPS = 20
FIRST = 3  # steps before calls are repeated often enough for programs


def milliseconds(model: nn.Module, tokens: torch.Tensor, steps: int) -> float:
    """Return the processor's time of a step in milliseconds, the mean over some steps."""
    began = time.process_time()
    for _ in range(steps):
        model.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
    return (time.process_time() - began) / steps * 1e3


def main() -> None:
    """Print the times."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(layers=2, width=64, heads=4).bfloat16()
    tokens = torch.randint(VOCABULARY, (4, 64))
    milliseconds(model, tokens, 3)  # caches are filled
    print(f"without use: {milliseconds(model, tokens, STEPS):.0f} ms a step")
    with use(model, "fa2-bf16"):
        milliseconds(model, tokens, 1)  # kernels are compiled
        print(f"the first steps: {milliseconds(model, tokens, FIRST):.0f} ms")
        milliseconds(model, tokens, 8)  # programs are compiled
        print(f"later steps: {milliseconds(model, tokens, STEPS):.0f} ms")


if __name__ == "__main__":
    main()
