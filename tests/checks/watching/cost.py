"""What `watch` costs: the step time of a PyTorch GPT of GPT-2's size, watched and not, in one run.

    python -m tests.checks.watching.cost

Blocks of 100 steps alternate between a model that is watched every 100 steps and the same model
that is not; each watched block has one look. Medians over blocks, after one of each.
"""

import statistics
import time
from argparse import ArgumentParser
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from roundscope.experiments.train.config import Config
from roundscope.torch import correct, watch
from tests.checks.watching.in_torch import GPT

BLOCK = 100
KINDS = ("not watched", "watched", "watched, 4 heads", "corrected")


def block(model: GPT, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, kind: str) -> float:
    """Return the seconds of 100 steps, watched once, not at all, or corrected throughout."""
    contexts: dict[str, Any] = {
        "watched": watch,
        "watched, 4 heads": partial(watch, heads=4),
        "corrected": correct,
    }
    with contexts[kind](model) if kind in contexts else nullcontext() as w:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BLOCK):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens)
            loss.backward()
            optimizer.step()
            if kind.startswith("watched"):
                w.numbers()
        torch.cuda.synchronize()
        return time.perf_counter() - start


def profiled(model: GPT, tokens: torch.Tensor) -> None:
    """Print where the time of looks goes, on the device and on the host."""
    from torch.profiler import ProfilerActivity, profile

    with watch(model, 1) as w:
        for n in range(3):
            with torch.autocast("cuda", torch.bfloat16):
                model(tokens).backward()
            torch.cuda.synchronize()
            start = time.perf_counter()
            if n < 2:
                w.numbers()
                print(f"numbers() alone: {1e3 * (time.perf_counter() - start):.1f} ms")
                continue
            with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
                w.numbers()
            print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=8))


def main() -> None:
    """Print the times and their ratio."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--batch", type=int, default=8)
    ask.add_argument("--rounds", type=int, default=4)
    ask.add_argument("--kinds", nargs="*", default=list(KINDS))
    asked = ask.parse_args()
    config = Config(
        layers=12, heads=12, width=768, context=1024, batch=asked.batch, vocab=50304, warmup=1
    )
    torch.manual_seed(0)
    model = GPT(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 50257, (asked.batch, 1025), device="cuda")
    kinds = asked.kinds
    for kind in kinds:
        block(model, optimizer, tokens, kind)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(asked.rounds):
        for kind in kinds:
            times[kind].append(block(model, optimizer, tokens, kind))
    plain = statistics.median(times["not watched"])
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, GPT-2's size, BF16, batch"
          f" {asked.batch} of 1,024 tokens")  # fmt: skip
    for kind in kinds:
        own = statistics.median(times[kind])
        low, high = (1e3 * x / BLOCK for x in (min(times[kind]), max(times[kind])))
        ratio = own / plain - 1.0
        print(f"{kind:16s} {1e3 * own / BLOCK:8.3f} ms a step [{low:.3f}, {high:.3f}] {ratio:+.2%}")
    for kind in (kind for kind in kinds if kind.startswith("watched")):
        look = statistics.median(times[kind]) - plain
        print(f"one look, {kind}: {1e3 * look:.1f} ms, {look / (plain / BLOCK):.2f} steps")
    profiled(model, tokens)


if __name__ == "__main__":
    main()
