"""`roundscope bench attention`: emulated attention against attention that emulates nothing.

It runs on the device that JAX has. One run measures all contestants: each round times every one of
them once, in turn, and a ratio is the median over the rounds of the ratios within one round. On a
GPU a call returns before it is done, so several calls are queued; thus what is timed is the device,
not the launching of its work.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roundscope.attention.plans.twins import TWINS
from roundscope.tools.bench.deliver import Bench, Line, deliver, show
from roundscope.tools.bench.drawing import Drawing, span
from roundscope.tools.bench.round import race
from roundscope.tools.report.progress import SELDOM, bar

QUEUED = 0.05  # how many seconds of calls are queued
CALLS = ("forward", "both")
MOST = 20  # the largest number of calls that are queued

LEGEND = """
both: forward with backward. TFLOP/s: 4 B N T T H operations of the forward (half of them where
causal) per second. times: our time over that of {first}. fused: engine pallas, tile sizes behind
its name; @hopper: sums by the tensor core, else pinned in ascending order. xla: the engine that
runs everywhere. numpy: the NumPy engine, in jit: as a part of a JAX program; traced: with the
statistics of every event; without programs: each operation of a tile by itself. native sums round
the same events, but add in the device's own order (not reproducible). compile: seconds in which JAX
traces and compiles both.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The sizes of a self-attention: batch, heads, tokens, features of a head."""

    batch: int
    heads: int
    tokens: int
    features: int
    is_causal: bool = False

    @property
    def operations(self) -> float:
        """The number of operations of the forward's products, Q K^T and P V."""
        total = 4.0 * self.batch * self.heads * self.tokens**2 * self.features
        return total / 2 if self.is_causal else total

    def __str__(self) -> str:
        causal = " causal" if self.is_causal else ""
        return f"{self.batch} {self.heads} {self.tokens} {self.features}{causal}"


class Contestant(NamedTuple):
    """The two calls of one contestant; they return at once what `wait` waits for."""

    name: str
    forward: Callable[[], Any]
    both: Callable[[], Any]
    wait: Callable[[Any], Any]
    is_ours: bool = False
    compiled: float = 0.0  # seconds that it took to compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Seconds are medians. `times` and `times_both` are times over those of the first contestant.
    `compiled`: seconds in which JAX traced and compiled both calls; 0 where it did not.
    """

    size: str
    what: str
    is_ours: bool
    forward: float
    both: float
    tflops: float
    times: float
    times_both: float
    compiled: float = 0.0


SIZES = {
    "cpu": (
        Size(batch=1, heads=12, tokens=512, features=32),
        Size(batch=1, heads=4, tokens=1024, features=64),
    ),
    "gpu": tuple(
        Size(batch=4, heads=12, tokens=4096, features=h, is_causal=causal)
        for h in (64, 128)
        for causal in (False, True)
    ),
}


QUICK = (Size(batch=1, heads=2, tokens=256, features=32),)
"""The sizes of --quick."""
REPEAT, QUICK_REPEAT = 5, 2


def sizes_here() -> tuple[Size, ...]:
    """Return the sizes of the device that JAX has."""
    import jax

    return SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]


def steps_of(sizes: Sequence[Size], repeat: int) -> int:
    """Return how often `bench_attention` calls its progress: compiled, tried, and each round."""
    return len(sizes) * (2 + repeat + 1)


def bench_attention(
    progress: Callable[[int], None], repeat: int = REPEAT, sizes: Sequence[Size] = ()
) -> list[Row]:
    """Return every row, size by size; the contestant that others are compared with comes first.

    progress: called with the number of steps that are done, of `steps_of`.
    """
    import jax

    on_cpu, rows, steps = jax.default_backend() == "cpu", list[Row](), count(1)
    for size in sizes or sizes_here():
        field = _on_cpu(size) if on_cpu else contestants(size)
        progress(next(steps))
        rows += _rows(size, field, lambda: progress(next(steps)), repeat)
    return rows


def _on_cpu(size: Size) -> list[Contestant]:
    import jax

    from roundscope.attention import PRODUCTS, Plan
    from roundscope.emu import Accumulator, Order

    fa2 = Plan.preset("fa2-bf16")
    native = replace(fa2, accumulators=(Accumulator(order=Order.NATIVE),) * len(PRODUCTS))
    plans = {"fa2-bf16, native sums": native, "fa2-bf16": fa2} | {
        name: Plan.preset(name) for name in ("qiu-yao", "all:bf16")
    }
    arrays = inputs(size, "float32")
    plain = partial(jax.nn.dot_product_attention, is_causal=size.is_causal)
    rival = of_jax("jax.nn, FP32", plain, arrays, is_ours=False)
    named = {
        **{f"xla: {name}": (plan, "xla") for name, plan in plans.items()},
        **{f"numpy in jit: {name}": (Plan.preset(name), "numpy") for name in ("fa2-bf16", "fa2")},
    }
    ours = [
        of_jax(name, emulated(plan, size, engine, (128, 128)), arrays, is_ours=True)
        for name, (plan, engine) in named.items()
    ]
    return [rival, *ours, *_of_numpy(size)]


def _of_numpy(size: Size) -> list[Contestant]:
    from roundscope.attention import Record, attend, examine
    from roundscope.attention.engines.fused import from_scores

    q, k, v = (np.asarray(x) for x in inputs(size, "float32"))
    do = np.ones_like(v)
    run: dict[str, Any] = {"is_causal": size.is_causal, "engine": "numpy"}

    def contestant(name: str, plan: str, record: Record | None, *, programs: bool) -> Contestant:
        def within(call: Callable[[], Any]) -> Callable[[], Any]:
            def timed() -> Any:
                with from_scores(0 if programs else math.inf):
                    return call()

            return timed

        if record is None:
            forward = partial(attend, q, k, v, plan=plan, **run)
        else:
            forward = partial(examine, q, k, v, plan=plan, record=record, **run)
        both = partial(examine, q, k, v, do, plan=plan, record=record, **run)
        return Contestant(name, within(forward), within(both), lambda x: x, True)

    return [
        contestant("numpy: fa2-bf16", "fa2-bf16", None, programs=True),
        contestant("numpy: fa2-bf16, traced", "fa2-bf16", Record(), programs=True),
        contestant("numpy: fa2, Hopper's sums", "fa2", None, programs=True),
        contestant("numpy: fa2, traced", "fa2", Record(), programs=True),
        contestant("without programs: fa2-bf16", "fa2-bf16", None, programs=False),
        contestant("without programs: fa2", "fa2", None, programs=False),
        contestant("without programs: fa2, traced", "fa2", Record(), programs=False),
    ]


def inputs(size: Size, dtype: str) -> list[Any]:
    """Return q, k, v (B, T, N, H): normally distributed BF16 numbers in arrays of this type."""
    import jax
    import jax.numpy as jnp

    shape = (size.batch, size.tokens, size.heads, size.features)
    return [
        jax.random.normal(key, shape).astype(jnp.bfloat16).astype(dtype)
        for key in jax.random.split(jax.random.key(0), 3)
    ]


def emulated(plan: Any, size: Size, engine: Any, tile: tuple[int, int]) -> Callable[..., Any]:
    """Return attention by a plan, as a function of q, k, v."""
    from roundscope.attention import attend

    return partial(
        attend, plan=plan, block_q=tile[0], block_k=tile[1], is_causal=size.is_causal, engine=engine
    )


def of_jax(
    name: str, attention: Callable[..., Any], arrays: list[Any], *, is_ours: bool
) -> Contestant:
    """Return a contestant from a JAX function: its forward and the gradients of its sum."""
    import jax
    import jax.numpy as jnp

    gradients = jax.grad(lambda *x: attention(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2))
    began = time.perf_counter()
    forward, both = (jax.jit(f).lower(*arrays).compile() for f in (attention, gradients))
    compiled = time.perf_counter() - began
    return Contestant(
        name,
        partial(forward, *arrays),
        partial(both, *arrays),
        jax.block_until_ready,
        is_ours,
        compiled,
    )


def _rows(size: Size, field: list[Contestant], step: Callable[[], None], repeat: int) -> list[Row]:
    runs = {(c.name, call): in_a_row(getattr(c, call), c.wait) for c in field for call in CALLS}
    step()
    times = race(runs, repeat, lambda share: step())
    rows = []
    for c in field:
        own, first = ({call: times[x.name, call] for call in CALLS} for x in (c, field[0]))
        forward, both = (float(np.median(own[call])) for call in CALLS)
        rows.append(
            Row(
                size=str(size),
                what=c.name,
                is_ours=c.is_ours,
                forward=forward,
                both=both,
                tflops=size.operations / forward * 1e-12,
                times=float(np.median(own["forward"] / first["forward"])),
                times_both=float(np.median(own["both"] / first["both"])),
                compiled=c.compiled,
            )
        )
    return rows


def in_a_row(call: Callable[[], Any], wait: Callable[[Any], Any]) -> tuple[Callable[[], Any], int]:
    """Return a function that makes n calls in a row, and n: about QUEUED seconds of calls."""
    wait(call())
    start = time.perf_counter()
    wait(call())
    n = int(np.clip(QUEUED / (time.perf_counter() - start), 1, MOST))
    return lambda: [wait(x) for x in [call() for _ in range(n)][-1:]], n


def run(as_json: bool, out: Path | None = None, *, quick: bool = False) -> None:
    """Print the table, or JSON; with `out`, also write both and a picture to that folder."""
    sizes, repeat = (QUICK, QUICK_REPEAT) if quick else (sizes_here(), REPEAT)
    with bar("attention", steps_of(sizes, repeat), seconds=SELDOM) as progress:
        rows = bench_attention(progress, repeat, sizes)
    deliver(Bench("attention", None, _print, _drawing), rows, as_json, out)


def _drawing(rows: list[Row]) -> Drawing:
    bars = [(f"B N T H = {r.size}", r.what, 1.0 / r.times, r.is_ours) for r in rows]
    best = [
        min(r.times for r in rows if r.is_ours and r.size == size)
        for size in dict.fromkeys(r.size for r in rows)
    ]
    title = (
        f"Attention with every rounding emulated takes {span(best)} times as long as"
        f" {rows[0].what}, which rounds as it likes"
    )
    return Drawing(bars, title, f"speed of the forward / speed of {rows[0].what}")


def _print(rows: list[Row]) -> None:
    heads, lines = ("forward ms", "both ms", "TFLOP/s", "times", "times both", "compile s"), []
    for r in rows:
        numbers = r.forward * 1e3, r.both * 1e3, r.tflops, r.times, r.times_both
        cells = [f"{x:.3g}" if x < 999.5 else f"{x:,.0f}" for x in numbers]
        cells.append(f"{r.compiled:.1f}" if r.compiled else "-")
        lines.append(Line(f"B N T H = {r.size}", r.what, cells))
    show(heads, lines, LEGEND.format(first=rows[0].what))


# tiles by the features of a head; each was the fastest of some plan
TILES = {64: ((128, 128), (64, 64)), 128: ((128, 64), (128, 128), (64, 64))}
SLOW_TILE = (64, 64)


def contestants(size: Size) -> list[Contestant]:
    """Return the contestants of a size, rivals first.

    PyTorch takes part if it is installed and sees the GPU; what takes seconds is timed at one size
    only.
    """
    import jax

    arrays = inputs(size, "bfloat16")
    fused = {
        f"{name}, fused {q} x {k}": emulated(name, size, "pallas", (q, k))
        for name in OURS
        for q, k in TILES[size.features]
    }
    for name in REAL:
        q, k = TWINS[name].tiles(size.features, size.is_causal)
        fused[f"{name}, fused {q} x {k}"] = emulated(name, size, "pallas", (q, k))
    # a kernel has no room for its own tiles, 512 x 512
    released = emulated("qiu-yao-compiled", size, "pallas", SLOW_TILE)
    fused["qiu-yao-compiled, fused 64 x 64"] = released
    slow = {
        "fa2-bf16, fused 64 x 64": emulated("fa2-bf16", size, "pallas", SLOW_TILE),
        "qiu-yao, fused 64 x 64": emulated("qiu-yao", size, "pallas", SLOW_TILE),
        "fa2-bf16@hopper, xla": emulated("fa2-bf16@hopper", size, "xla", (128, 128)),
    }
    is_first = size.features == 64 and not size.is_causal
    rivals: dict[str, Callable[..., Any]] = {
        "jax.nn, BF16, cuDNN": partial(
            jax.nn.dot_product_attention, is_causal=size.is_causal, implementation="cudnn"
        ),
        "jax.nn, FP32, XLA": partial(_wide, size.is_causal),
    }
    ours = fused | (slow if is_first else {})
    with ThreadPoolExecutor(8) as pool:
        makers = (rivals | ours).items()
        compiled = list(
            pool.map(lambda item: of_jax(item[0], item[1], arrays, is_ours=item[0] in ours), makers)
        )
    return [*torch_kernels(size), *compiled]


OURS = ("fa2-bf16@hopper", "qiu-yao@hopper")
REAL = ("fa2", "cudnn")  # plans that are PyTorch's kernels, with the tiles of these


def _wide(is_causal: bool, q: Any, k: Any, v: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.nn.dot_product_attention(
        *(x.astype(jnp.float32) for x in (q, k, v)), is_causal=is_causal
    )


def torch_kernels(size: Size) -> list[Contestant]:
    """Return scaled_dot_product_attention by both of the fast kernels that PyTorch may choose."""
    try:
        import torch
        from torch.nn.attention import SDPBackend
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    shape = (size.batch, size.heads, size.tokens, size.features)
    x = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    backends = {
        "torch SDPA, BF16, cuDNN": SDPBackend.CUDNN_ATTENTION,
        "torch SDPA, BF16, FlashAttention-2": SDPBackend.FLASH_ATTENTION,
    }
    return [_of_torch(name, backend, x, size.is_causal) for name, backend in backends.items()]


def _of_torch(name: str, backend: Any, x: list[Any], is_causal: bool) -> Contestant:
    import torch
    from torch.nn.attention import sdpa_kernel

    q, k, v = x

    def forward() -> Any:
        with sdpa_kernel(backend), torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def both() -> Any:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return torch.autograd.grad(out, x, torch.ones_like(out))

    return Contestant(name, forward, both, lambda _: torch.cuda.synchronize())
