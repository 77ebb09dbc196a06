"""`roundscope bench attention`: the emulated XLA engine against plain JAX attention, on the device that JAX has."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

FUSED = 64  # rows and keys of a fused kernel's tile
OPERATIONS = 9  # binary64 operations of one step: product, sum, exponent mask and limit, two roundings, sign, overflow

LEGEND = """
GMAC/s: multiply-adds of Q K^T and P V per second, forward.  times JAX: our forward over jax.nn.dot_product_attention.
floor: multiply-adds x 9 binary64 operations of a pinned, rounded step, at the binary64 additions per second that a
dependent chain reached in this run.  native sums round the same events but add in the device's own order (not
reproducible): the gap to fa2-bf16 is the price of pinned sums, the gap to jax.nn that of the other events.  fused: one
kernel (engine pallas), tiles of 64 x 64; others 128 x 128.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A self-attention: batch, heads, tokens, features; square tiles."""

    batch: int
    heads: int
    tokens: int
    features: int
    block: int = 128

    @property
    def multiply_adds(self) -> int:
        """Of the forward: Q K^T and P V."""
        return 2 * self.batch * self.heads * self.tokens**2 * self.features


SIZES = {
    "cpu": (Size(batch=1, heads=12, tokens=512, features=32), Size(batch=1, heads=4, tokens=1024, features=64)),
    "gpu": (
        Size(batch=1, heads=12, tokens=512, features=32),
        Size(batch=4, heads=12, tokens=1024, features=64),
        Size(batch=4, heads=12, tokens=4096, features=64),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement: seconds are medians; floor and ratio None where they have no meaning."""

    size: str
    what: str
    forward: float
    backward: float | None
    per_second: float
    against_jax: float
    floor: float | None


def bench_attention(progress: Callable[[str], None], repeat: int = 5) -> list[Row]:
    """Every row, plain JAX first. `backward` is forward plus backward."""
    import jax

    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    rate = _binary64_rate(platform)
    return [row for size in SIZES[platform] for row in _rows(size, platform, rate, progress, repeat)]


def _rows(size: Size, platform: str, rate: float, progress: Callable[[str], None], repeat: int) -> list[Row]:
    import jax
    import jax.numpy as jnp

    from attention import Plan

    name = f"{size.batch} {size.heads} {size.tokens} {size.features}"
    shape = (size.batch, size.tokens, size.heads, size.features)
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, shape).astype(jnp.bfloat16).astype(jnp.float32) for key in keys)
    rows: list[Row] = []
    contenders = _contenders(size, Plan.preset) | (_on_gpu(size) if platform == "gpu" else {})
    for what, attention in contenders.items():
        progress(f"{name} {what}")
        forward = _seconds(jax.jit(attention), (q, k, v), repeat)
        gradient = jax.jit(jax.grad(lambda *x: attention(*x).sum(), argnums=(0, 1, 2)))  # noqa: B023
        both = _seconds(gradient, (q, k, v), repeat)
        rows.append(
            Row(
                size=name, what=what, forward=forward, backward=both, per_second=size.multiply_adds / forward,
                against_jax=forward / rows[0].forward if rows else 1.0,
                floor=size.multiply_adds * OPERATIONS / rate if rows else None,
            )
        )  # fmt: skip
    return rows


def _contenders(size: Size, preset: Callable[[str], Any]) -> dict[str, Callable[..., Any]]:
    import jax

    from attention import PRODUCTS, attend
    from emu import Accumulator, Order

    def emulated(plan: Any) -> Callable[..., Any]:
        return lambda q, k, v: attend(q, k, v, plan=plan, block_q=size.block, block_k=size.block)

    fa2 = preset("fa2-bf16")
    native = replace(fa2, accumulators=(Accumulator(order=Order.NATIVE),) * len(PRODUCTS))
    return {
        "jax.nn, float32": jax.nn.dot_product_attention,
        "fa2-bf16, native sums": emulated(native),
        "fa2-bf16": emulated(fa2),
        "qiu-yao": emulated(preset("qiu-yao")),
        "all:bf16": emulated(preset("all:bf16")),
    }


def _on_gpu(size: Size) -> dict[str, Callable[..., Any]]:
    """The fused kernels, in their own tiles, and what they are measured against: cuDNN's attention in BF16, which rounds as it likes."""
    import jax
    import jax.numpy as jnp

    from attention import attend

    def fused(preset: str) -> Callable[..., Any]:
        return lambda q, k, v: attend(q, k, v, plan=preset, block_q=FUSED, block_k=FUSED, engine="pallas")

    def cudnn(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(*(x.astype(jnp.bfloat16) for x in (q, k, v)), implementation="cudnn")

    presets = ("fa2-bf16@hopper", "qiu-yao@hopper", "fa2-bf16", "qiu-yao")
    return {
        "fa2-bf16@hopper": lambda q, k, v: attend(q, k, v, plan="fa2-bf16@hopper", block_q=size.block, block_k=size.block),
        **{f"{preset}, fused": fused(preset) for preset in presets},
        "jax.nn, BF16, cuDNN": cudnn,
    }


def _seconds(function: Callable[..., Any], arguments: tuple[Any, ...], repeat: int) -> float:
    import jax

    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _binary64_rate(platform: str) -> float:
    """Binary64 additions per second: chains of 64 dependent additions on many numbers, all cores."""
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        x = jnp.linspace(0.0, 1.0, 1 << (14 if platform == "cpu" else 24))
        rounds = 4000 if platform == "cpu" else 40

        @jax.jit
        def chain(x: Any) -> Any:
            def many(_: int, y: Any) -> Any:
                for _ in range(64):
                    y = y + x
                return y

            return jax.lax.fori_loop(0, rounds, many, x)

        return 64 * rounds * x.size / _seconds(chain, (x,), 3)


def run(as_json: bool) -> None:
    """Print the table, or JSON."""
    from dataclasses import asdict

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from experiments.output import console, print_json

    with console(stderr=True).status("attention") as status:
        rows = bench_attention(lambda text: status.update(text))
    if as_json:
        print_json([asdict(r) for r in rows])
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("B N T H", "", "forward ms", "with backward", "GMAC/s", "times JAX", "floor ms"):
        table.add_column(heading, justify="left" if heading in ("B N T H", "") else "right", no_wrap=True)
    for previous, row in zip([None, *rows], rows, strict=False):
        if previous and previous.size != row.size:
            table.add_section()
        floor = "" if row.floor is None else f"{row.floor * 1e3:.2f}"
        cells = (f"{row.forward * 1e3:.2f}", f"{(row.backward or 0) * 1e3:.2f}", f"{row.per_second / 1e9:.1f}", f"{row.against_jax:.1f}")
        first = previous is None or previous.size != row.size
        table.add_row(row.size if first else "", row.what, *cells, floor)
    out = console()
    out.print(table)
    out.print(" ".join(LEGEND.split()), style="dim")
