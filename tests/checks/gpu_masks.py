"""Masks in the fused kernels, compiled for a GPU, against the XLA engine, bit for bit.

    python -m tests.checks.gpu_masks [--time]    # about 170 s, most of it XLA's compilation

Output and gradients of five plans, three masks, full and causal. Exit code 1 if a bit differs.
--time: device time of a padded batch, B = 4, N = 12, T = 4096, H = 64, by kernels with the mask,
by those without, and by torch's SDPA with a mask; --only-time leaves the comparison out.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention import attend
from roundscope.tools.bench.attention import Size, inputs
from tests.checks.gpu_hopper import NAMES, differing, of_the_sum, race_all

SIZES = (2, 300, 4, 2, 64)  # B, T, N, key heads, H: a tail, and shared key heads
PLANS = ("fa2-bf16@hopper", "qiu-yao@hopper", "fa2-bf16", "cudnn", "qiu-yao-compiled")
LONG = Size(batch=4, heads=12, tokens=4096, features=64)
LENGTHS = (4096, 3000, 2048, 1000)  # of the sequences of a padded batch


def masks() -> dict[str, np.ndarray]:
    """Return masks by name: (B, N, T, S), or less."""
    batch, rows, heads, _, _ = SIZES
    rng = np.random.default_rng(7)
    padding = np.arange(rows) < np.array([rows, 77])[:, None]
    empty = np.ones((rows, rows), bool)
    empty[3:6], empty[:, 20:23], empty[:128, 128:192] = False, False, False
    return {
        "half": rng.random((batch, heads, rows, rows)) < 0.5,
        "padding": padding[:, None, None, :],
        "empty rows, keys and tiles": empty,
    }


def cases() -> Iterator[tuple[str, str, bool]]:
    """Return (plan, mask, whether it is causal)."""
    for plan in PLANS:
        for name in masks():
            for is_causal in (False, True):
                yield plan, name, is_causal


def compared(plan: str, name: str, is_causal: bool) -> dict[str, int]:
    """Return how many numbers of each result differ."""
    batch, rows, heads, of_keys, width = SIZES
    rng = np.random.default_rng(3)
    shapes = [(batch, rows, n, width) for n in (heads, of_keys, of_keys, heads)]
    x = [jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in shapes]

    def both(engine: str, q: Any, k: Any, v: Any, do: Any, mask: Any) -> Any:
        call = partial(
            attend,
            plan=plan,
            block_q=64,
            block_k=64,
            is_causal=is_causal,
            mask=mask,
            engine=engine,
        )
        out, gradient = jax.vjp(call, q, k, v)
        return out, *gradient(do)

    ours, theirs = (
        jax.jit(partial(both, engine))(*x, masks()[name]) for engine in ("pallas", "xla")
    )
    return {
        n: differing(np.asarray(a), np.asarray(b))
        for n, a, b in zip(NAMES, ours, theirs, strict=True)
    }


def times() -> None:
    """Print device times of a padded batch, with the speed over torch's SDPA with the same mask."""
    arrays = inputs(LONG, "bfloat16")
    mask = (np.arange(LONG.tokens) < np.array(LENGTHS)[:, None])[:, None, None, :]
    jobs = {}
    for plan in ("cudnn", "fa2-bf16@hopper"):
        for told, masked in (("the mask", mask), ("no mask", None)):
            call = partial(attend, plan=plan, block_q=64, block_k=64, engine="pallas", mask=masked)
            jobs[f"{plan}, {told}"] = call
            jobs[f"{plan}, {told}, both"] = of_the_sum(call)
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda f: jax.jit(f).lower(*arrays).compile(), jobs.values())
        field = [
            (name, partial(f, *arrays), jax.block_until_ready)
            for name, f in zip(jobs, made, strict=True)
        ]
    race_all(LONG, _torch_with(mask) + field, rivals=1)


def _torch_with(mask: np.ndarray) -> list[Any]:
    """Return torch's SDPA with a mask, forward and with backward."""
    import torch
    import torch.nn.functional as F

    def made() -> Any:
        x = torch.randn(LONG.batch, LONG.heads, LONG.tokens, LONG.features, device="cuda")
        return x.to(torch.bfloat16).requires_grad_()

    x, own = [made() for _ in range(3)], torch.from_numpy(mask).cuda()

    def forward() -> Any:
        with torch.no_grad():
            return F.scaled_dot_product_attention(*x, attn_mask=own)

    def both() -> Any:
        return torch.autograd.grad(F.scaled_dot_product_attention(*x, attn_mask=own).sum(), x)

    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    return [("torch SDPA with the mask", forward, wait), ("torch SDPA with it, both", both, wait)]


def main() -> None:
    """Print what differs; with --time speeds."""
    wrong = 0
    with ThreadPoolExecutor(8) as pool:
        chosen = [] if "--only-time" in sys.argv else cases()
        for case, numbers in pool.map(lambda case: (case, compared(*case)), chosen):
            plan, name, is_causal = case
            wrong += sum(numbers.values()) > 0
            told = f"{plan}, {name}, {'causal' if is_causal else 'full'}"
            print(f"{told}: differing {numbers}", flush=True)
    if any("time" in x for x in sys.argv[1:]):
        times()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
