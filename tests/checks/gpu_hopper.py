"""The kernels for Hopper against those that Triton compiles, on the same inputs, bit for bit.

    python -m tests.checks.gpu_hopper [--time]

A case is a plan, a size, tiles, and three kinds of numbers: normal ones, large ones, and a few
that are infinite, NaN or zero. Exit code 1 where a number differs in a bit, or where a case has no
kernel for Hopper although it should. --time: device time of both and of torch's SDPA, B = 4,
N = 12, T = 4096; --only-time leaves the comparison out, and --no-triton the times of Triton's.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention import attend
from roundscope.attention.engines.kernels.hopper import fit
from roundscope.tools.bench.attention import SIZES, Size, in_a_row, inputs, torch_kernels
from roundscope.tools.bench.round import race

Contestant: TypeAlias = tuple[str, Callable[[], Any], Any]  # name, call, how to wait
NAMES = ("out", "dq", "dk", "dv")


class Case(NamedTuple):
    """A call: its plan, its sizes (B, T, N, key heads, H) and its tiles."""

    plan: str
    sizes: tuple[int, int, int, int, int]
    tiles: tuple[int, int]
    is_causal: bool


def cases() -> Iterator[Case]:
    """Return every case."""
    tiles = {
        ("fa2", 64): (128, 128),
        ("fa2", 128): (64, 64),
        ("cudnn", 64): (128, 128),
        ("cudnn", 128): (128, 128),
        ("fa2-bf16@hopper", 64): (64, 128),
        ("fa2-bf16@hopper", 128): (64, 64),
        ("qiu-yao-compiled", 64): (64, 128),
        ("qiu-yao-compiled", 128): (64, 64),
    }
    for (plan, width), own in tiles.items():
        for causal in (False, True):
            yield Case(plan, (2, 640, 2, 2, width), own, causal)
        yield Case(plan, (1, 600, 4, 2, width), own, True)  # a tail, and shared key heads


def drawn(case: Case, kind: str) -> tuple[Any, ...]:
    """Return q, k, v and dO in BF16."""
    batch, rows, heads, keys, width = case.sizes
    rng = np.random.default_rng(sum(map(ord, kind)))
    shapes = [(batch, rows, n, width) for n in (heads, keys, keys, heads)]
    x = [rng.standard_normal(shape) * (8.0 if kind == "large" else 1.0) for shape in shapes]
    if kind == "special":
        for array in x[2:]:
            at = rng.integers(0, array.size, 5)
            array.flat[at] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    return tuple(jnp.asarray(y, jnp.bfloat16) for y in x)


def compiled(case: Case, x: tuple[Any, ...], *, by_triton: bool) -> tuple[Any, int]:
    """Return a function of q, k, v, dO that gives output and gradients, and how many kernels for
    Hopper it has.
    """
    block_q, block_k = case.tiles
    call = partial(
        attend,
        plan=case.plan,
        block_q=block_q,
        block_k=block_k,
        is_causal=case.is_causal,
        engine="pallas",
    )

    def both(q: Any, k: Any, v: Any, do: Any) -> Any:
        out, gradient = jax.vjp(call, q, k, v)
        return out, *gradient(do)

    jax.clear_caches()
    with fit.only_triton() if by_triton else nullcontext():
        lowered = jax.jit(both).lower(*x)
    return lowered.compile(), lowered.as_text().count("@mosaic_gpu")


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many numbers differ in a bit; NaN equals NaN."""
    a, b = (np.asarray(x, np.float32) for x in (a, b))
    same = (a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))
    return int((~same).sum())


def compared() -> int:
    """Print each case, and return how many failed."""
    wrong = 0
    for case in cases():
        like = drawn(case, "normal")
        (own, count), (theirs, none) = (compiled(case, like, by_triton=b) for b in (False, True))
        wrong += count == 0 or none > 0
        for kind in ("normal", "large", "special"):
            x = drawn(case, kind)
            pairs = zip(NAMES, own(*x), theirs(*x), strict=True)
            found = {n: differing(np.asarray(a), np.asarray(b)) for n, a, b in pairs}
            wrong += sum(found.values()) > 0
            print(f"{case} {kind}: {count} kernels for Hopper, differing {found}", flush=True)
    return wrong


def times() -> None:
    """Print device times, and speeds over torch's."""
    kinds = (False,) if "--no-triton" in sys.argv else (False, True)
    ours = {by: _all_compiled(by_triton=by) for by in kinds}
    for size in SIZES["gpu"]:
        field: list[Contestant] = []
        for c in torch_kernels(size):
            field += [(c.name, c.forward, c.wait), (f"{c.name}, both", c.both, c.wait)]
        arrays = inputs(size, "bfloat16")
        for by_triton, made in ours.items():
            for (of, name), call in made.items():
                if of == size:
                    told = f"{name}, {'Triton' if by_triton else 'Hopper'}"
                    told = told.replace(", both", "") + (", both" if "both" in name else "")
                    field.append((told, partial(call, *arrays), jax.block_until_ready))
        race_all(size, field)


def _all_compiled(*, by_triton: bool) -> dict[tuple[Size, str], Any]:
    """Return what is timed, compiled, by size and name."""
    jax.clear_caches()
    jobs = [(size, *of) for size in SIZES["gpu"] for of in _plans(size.features)]
    with fit.only_triton() if by_triton else nullcontext(), ThreadPoolExecutor(12) as pool:
        each = [copy_context() for _ in jobs]  # threads have contexts of their own
        made = pool.map(lambda context, job: context.run(_compiled, *job), each, jobs)
        return {key: call for found in made for key, call in found.items()}


def _plans(features: int) -> list[tuple[str, tuple[int, int]]]:
    """Return the plans that are timed, with their tiles."""
    square = (128, 128) if features == 64 else (64, 64)
    return [
        ("fa2", square),
        ("cudnn", (128, 128)),
        ("fa2-bf16@hopper", (64, 64)),
        ("qiu-yao-compiled", (64, 64)),
    ]


def _compiled(size: Size, name: str, tile: tuple[int, int]) -> dict[tuple[Size, str], Any]:
    """Return the forward, and the gradients of the sum of the output."""
    arrays = inputs(size, "bfloat16")
    call = partial(
        attend,
        plan=name,
        block_q=tile[0],
        block_k=tile[1],
        is_causal=size.is_causal,
        engine="pallas",
    )
    gradients = of_the_sum(call)
    told = f"{name} {tile[0]} x {tile[1]}"
    named = ((told, call), (f"{told}, both", gradients))
    return {(size, name): jax.jit(f).lower(*arrays).compile() for name, f in named}


def of_the_sum(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of q, k and v that gives the gradients of the sum of the output."""
    return jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2))


def race_all(size: Size, field: list[Contestant], rivals: int = 2) -> None:
    """Print the median times of all in turn, and their speeds over the first ones, the rivals.

    field: forward and with backward of each in turn.
    """
    runs = {name: in_a_row(call, wait) for name, call, wait in field}
    taken = race(runs, 5, lambda share: None)
    for name, own in taken.items():
        theirs = list(taken)[name.endswith("both") : 2 * rivals : 2]
        speeds = [float(np.median(taken[r] / own)) for r in theirs]
        told = ", ".join(f"{s:.2f}" for s in speeds)
        print(f"{size} | {name} | {np.median(own) * 1e3:.3f} ms | {told}", flush=True)


def main() -> None:
    """Print what differs; with --time speeds."""
    wrong = compared() if "--only-time" not in sys.argv else 0
    if any("time" in x for x in sys.argv[1:]):
        times()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
