"""A training step of GPT-2's size on one GPU: emulated attention beside attention that is not.

    python -m tests.checks.gpu_gpt2 [--rows N]

The first row is the floor: a GPT of the same sizes in PyTorch, eager, under autocast, on SDPA's own
BF16 kernel. Then `roundscope train` with JAX's attention and with emulated ones, linear layers as
autocast has them and as matmul=bf16 does. A row is the mean of 20 steps, after 3; batch 8 of 1,024
bytes. --rows: only the first so many.
"""

import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import step
from roundscope.experiments.train.groups import Group, drawing
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.compile_cache import keep_compilations

WARM, STEPS = 3, 20
FUSED: dict[str, Any] = {"engine": "pallas", "sums": "preset", "block": 64}
GPT2 = Config(
    layers=12, heads=12, width=768, context=1024, batch=8, warmup=1, data="repeat", plan="jax"
)
COMPILED = "qiu-yao-compiled"
ROWS: dict[str, dict[str, Any]] = {
    "JAX's BF16 by cuDNN": {"engine": "cudnn"},
    COMPILED: {"plan": COMPILED, **FUSED},
    "its m and l in FP32": {"plan": COMPILED, "changes": ("site=MS,LANES -> fp32",), **FUSED},
    "FP32, emulated": {"plan": "fp32", **FUSED},
    "JAX's FP32": {},
    "twin of cuDNN": {"plan": "cudnn", **FUSED, "block": 128},
    "delta centered": {"plan": COMPILED, "changes": ("-> delta_from=CENTRED",), **FUSED},
    "O path in FP32": {"plan": COMPILED, "changes": ("site=PV,AO,O,OUT -> fp32",), **FUSED},
    f"{COMPILED}, matmul=bf16": {"plan": COMPILED, "matmul": "bf16", **FUSED},
}


def timed(one: Callable[[int], Any]) -> tuple[float, float]:
    """Return the seconds until WARM steps were done, and those of a later step."""
    times = [time.perf_counter()]
    for first, last in ((0, WARM), (WARM, WARM + STEPS)):
        for number in range(first, last):
            done = one(number)
        float(done)  # waits for it
        times.append(time.perf_counter())
    return times[1] - times[0], (times[2] - times[1]) / STEPS


def in_torch() -> tuple[float, float]:
    """Return the times of PyTorch."""
    import torch

    from tests.checks.watching.in_torch import GPT

    torch.manual_seed(0)
    model = GPT(GPT2).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    drawn = drawing(Settings(config=GPT2, arms=(Arm(name="", lr=1e-4),)))

    def one(number: int) -> Any:
        tokens = torch.from_numpy(drawn(number)[0]).cuda().long()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return timed(one)


def in_jax(changed: dict[str, Any]) -> tuple[float, float]:
    """Return the times of a step of `roundscope train`."""
    config = replace(GPT2, **{"matmul": "autocast"} | changed)
    settings = Settings(config=config, arms=(Arm(name="", lr=1e-4),))
    group, drawn = Group(settings, [0], step.start(config, 1)), drawing(settings)
    return timed(lambda number: group.advance(number, drawn(number))[0][0])


def rows() -> Iterator[tuple[str, Callable[[], tuple[float, float]]]]:
    """Yield every row and what measures it."""
    yield "PyTorch, its own kernel", in_torch
    for name, changed in ROWS.items():
        yield name, partial(in_jax, changed)


def main() -> None:
    """Print a line for each row as it is measured."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--rows", type=int, default=None)
    asked = ask.parse_args()
    keep_compilations()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    print(f"{'attention':34}{'first 3, s':>11}{'step, ms':>10}{'tokens / s':>12}{'of floor':>10}")
    floor = None
    for name, measure in list(rows())[: asked.rows]:
        try:
            first, one = measure()
        except Exception as error:  # one row that does not run is no reason to lose the others
            print(f"{name:34}{type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        floor = floor or one
        rate = GPT2.batch * GPT2.context / one
        print(
            f"{name:34}{first:11.1f}{one * 1e3:10.2f}{rate:12,.0f}{one / floor:10.2f}", flush=True
        )


if __name__ == "__main__":
    main()
