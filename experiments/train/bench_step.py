"""`roundscope bench step`: the training step with emulated attention beside plain JAX attention.

It also checks that two equal runs have the same bits.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from roundscope.tools.bench.deliver import Line, show
from roundscope.tools.report.progress import Counted, telling

STEPS = 20  # the number of steps of a run
LOOKS = 3  # how often monitors are timed
LONG = 1024  # the context from which attention takes most of a step

LEGEND = """
step: mean of 20 steps, the second time.  watched: with the monitors of every 10 steps, the log's
writing left out.  times JAX: over the step with jax.nn.dot_product_attention, not watched.
compiling: the first step.  native sums are added in the device's order, ascending ones key by
key, those of fused kernels as the tensor core does.  same bits: two runs of 20 steps from the
same weights end in equal states, every bit of weights and optimizer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to train a model of one size; all times are in seconds."""

    size: str
    what: str
    compiling: float
    step: float
    monitored: float
    against_jax: float
    monitored_against_jax: float
    same_bits: bool


def bench_step(progress: Callable[[str], None], *, quick: bool = False) -> list[Row]:
    """Return every row; plain JAX comes first for each size; quick: a smaller model alone."""
    sizes = _small() if quick else _sizes()
    counted = Counted(sum(len(_contenders(arms, c.context)) for c, arms in sizes))

    def tell(text: str) -> None:
        progress(counted(text))

    return [row for size in sizes for row in _rows(*size, tell, counted.next)]


def run(as_json: bool, *, quick: bool = False) -> None:
    """Print the table, or JSON. Raises ArithmeticError where two equal runs have different bits."""
    from dataclasses import asdict

    from roundscope.tools.report.terminal import print_json

    with telling("bench step") as tell:
        rows = bench_step(tell, quick=quick)
    if as_json:
        print_json([asdict(r) for r in rows])
    else:
        _print(rows)
    if differ := [f"{r.what} ({r.size})" for r in rows if not r.same_bits]:
        raise ArithmeticError(f"two equal runs differ in bits: {', '.join(differ)}")


def _small() -> list[tuple[Any, int]]:
    from roundscope.experiments.train.config import Config

    return [(Config(data="repeat", layers=2, width=64, heads=2, context=64, batch=2), 1)]


def _sizes() -> list[tuple[Any, int]]:
    import jax

    from roundscope.experiments.train.config import Config

    small = Config(data="repeat")
    if jax.default_backend() == "cpu":
        return [(replace(small, batch=4), 1)]
    gpt2 = replace(small, layers=12, heads=12, width=768, context=LONG, batch=8, block=64)
    usual = [(small, 1), (replace(small, width=256, context=256, batch=32), 1), (small, 40)]
    # fused kernels need the tensor cores of a Hopper, and rows without them would use more GPUs
    one = len(jax.devices()) == 1
    is_hopper = getattr(jax.devices()[0], "compute_capability", "") == "9.0"
    return [*usual, (gpt2, 1)] if one and is_hopper else usual


def _rows(
    config: Any, arms: int, progress: Callable[[str], None], done: Callable[[], None]
) -> list[Row]:
    c, rows = config, list[Row]()
    model = f"{c.layers} layers, width {c.width}, context {c.context}, batch {c.batch}"
    size = f"{model}, {arms} arm{'s' if arms > 1 else ''}"
    for what, changes in _contenders(arms, c.context):
        progress(f"{what}, {size}")
        compiling, step, watching, same = _measured(replace(config, **changes), arms)
        plain, monitored = (rows[0].step if rows else step), step + watching
        row = Row(
            size=size,
            what=what,
            compiling=compiling,
            step=step,
            monitored=monitored,
            against_jax=step / plain,
            monitored_against_jax=monitored / plain,
            same_bits=same,
        )
        rows.append(row)
        done()
    return rows


def _contenders(arms: int, context: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the ways to train, with fused kernels where attention is long enough to matter."""
    plain, ordered = ("jax.nn", {"plan": "jax"}), {"sums": "preset"}
    if context >= LONG:
        tiles = {"fa2-bf16@hopper": 64, "qiu-yao@hopper": 64, "cudnn": 128}
        fused: list[tuple[str, dict[str, Any]]] = [
            (f"{p}, fused", {"plan": p, "engine": "pallas", "block": n} | ordered)
            for p, n in tiles.items()
        ]
        return [plain, ("jax.nn, BF16 by cuDNN", {"plan": "jax", "engine": "cudnn"}), *fused]
    native = [plain, *((f"{p}, native sums", {"plan": p}) for p in ("fp32", "fa2-bf16", "qiu-yao"))]
    if arms > 1:
        return native
    return [*native, ("qiu-yao, ascending sums", {"plan": "qiu-yao"} | ordered)]


def _measured(config: Any, arms: int) -> tuple[float, float, float, bool]:
    """Return seconds of compiling, a step, monitoring a step; and whether final bits agree."""
    import jax
    import numpy as np

    states, times = [], []
    for _ in range(2):
        group, batch = _group(config, arms)
        times.append([_timed(group, batch, 0, 1), _timed(group, batch, 1, STEPS)])
        states.append(jax.device_get(jax.tree.leaves(group.state)))
    same = all(
        np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(*states, strict=True)
    )
    return times[0][0], (times[1][0] + times[1][1]) / STEPS, _watching(config, group, batch), same


def _group(config: Any, arms: int) -> tuple[Any, Callable[[int], Any]]:
    from roundscope.experiments.train.gpt import step
    from roundscope.experiments.train.groups import Group, drawing
    from roundscope.experiments.train.settings import Arm, Settings

    own = tuple(Arm(name=str(i), lr=config.lr) for i in range(arms))
    settings = Settings(config=config, arms=own)
    return Group(settings, list(range(arms)), step.start(config, arms)), drawing(settings)


def _timed(group: Any, batch: Callable[[int], Any], first: int, last: int) -> float:
    import jax

    jax.block_until_ready(group.state)
    began = time.perf_counter()
    for number in range(first, last):
        group.advance(number, batch(number))
    jax.block_until_ready(group.state)
    return time.perf_counter() - began


def _watching(config: Any, group: Any, batch: Callable[[int], Any]) -> float:
    """Return the seconds per step that monitors take, without compiling."""
    from roundscope.experiments.train.gpt import monitor

    tables, plans = group.plans(STEPS)
    tokens = group.own(batch(STEPS))[..., :1, :]
    looks, sites = [], []
    for turn in range(LOOKS + 1):
        began, params = time.perf_counter(), group.state.params
        _, seen = monitor.look(config, params, tokens, tables, STEPS, sole=group.sole(STEPS))
        looks.append(time.perf_counter() - began)
        if seen is not None:
            began = time.perf_counter()
            monitor.sites(config, seen, plans, turn, group.fused(STEPS))
            sites.append(time.perf_counter() - began)
    rest = statistics.median(sites[1:]) / monitor.SITES_EVERY if sites else 0.0
    return (statistics.median(looks[1:]) + rest) / int(config.monitor_every)


def _print(rows: list[Row]) -> None:
    heads = ("compiling s", "step ms", "times JAX", "watched ms", "times JAX", "same bits")
    lines = []
    for row in rows:
        own = f"{row.compiling:.1f}", f"{row.step * 1e3:.2f}", f"{row.against_jax:.2f}"
        watched = f"{row.monitored * 1e3:.2f}", f"{row.monitored_against_jax:.2f}"
        same = "yes" if row.same_bits else "NO"
        lines.append(Line(row.size, row.what, [*own, *watched, same]))
    show(heads, lines, LEGEND)
