"""The speed of sums of products on the CPU, accumulator by accumulator.

They are compared with a float32 matrix product and with MMA-Sim. One run measures all of them in
turn, as `bench round` does; a ratio is the median over rounds of the ratios within a round.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.emu import Accumulator, Order, dot, round_to
from roundscope.emu.roundings.modes import rounding
from roundscope.tools.bench.deliver import Bench, Line, deliver, show
from roundscope.tools.bench.drawing import Drawing, number, span
from roundscope.tools.bench.round import THREADS, numba_threads, race
from roundscope.tools.report.progress import SELDOM, bar

SIZE = 512
REPEAT = 5
QUICK, QUICK_REPEAT = 128, 3  # of --quick
CORES = ("bf16", "fp16", "tf32", "e4m3fn")
MATMUL = "float32 matmul"
RIVAL = "MMA-Sim"
LEGEND = (
    "M/s: million multiply-adds per second.  of matmul: speed / speed of NumPy's float32 product,"
    " which emulates nothing.\nours: our speed / MMA-Sim's.  differ: its sums that are not ours in"
    " every bit."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contestant.

    operand    the format of the factors
    rate       10^6 multiply-adds per second
    of_matmul  its speed over that of the float32 product
    ours       our speed over its speed, for MMA-Sim
    differing  how many of its sums differ from ours in some bit
    values     how many sums it computed
    """

    operand: str
    name: str
    rate: float | None = None
    of_matmul: float | None = None
    ours: float | None = None
    differing: int | None = None
    values: int = 0
    note: str = ""


def run(as_json: bool = False, out: Path | None = None, *, quick: bool = False) -> None:
    """Print how fast each accumulator adds; `out` is a folder for the numbers and their picture."""
    size, repeat = (QUICK, QUICK_REPEAT) if quick else (SIZE, REPEAT)
    with bar("sums", repeat + 1, seconds=SELDOM) as done:
        rows = bench_dot(size, repeat, done)
    deliver(Bench("dot", THREADS, _print, _drawing), rows, as_json, out)


def _drawing(rows: list[Row]) -> Drawing:
    bars = [
        (r.operand, r.name, r.of_matmul, r.name != RIVAL)
        for r in rows
        if r.of_matmul is not None and r.name != MATMUL
    ]
    return Drawing(
        bars,
        answer(rows),
        "of matmul: speed / speed of NumPy's float32 product (dashed), which emulates nothing",
    )


def answer(rows: list[Row]) -> str:
    """Return how fast a tensor core's sums are, against a float32 product and against MMA-Sim."""
    cores = span([r.of_matmul for r in rows if r.name == "Hopper" and r.of_matmul is not None])
    ratio = next((r.ours for r in rows if r.ours is not None), None)
    theirs = (
        f"{RIVAL}, the rival, is not installed"
        if ratio is None
        else f"{number(ratio)} times as fast as {RIVAL}"
    )
    return (
        f"Sums as Hopper's tensor cores add them run at {cores} of the speed of a float32 product;"
        f" {theirs}"
    )


def matrices(operand: str, rows: int, k: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two matrices of normally distributed numbers of a format, as float32."""
    rng = np.random.default_rng(512)
    a, b = (
        round_to(rng.standard_normal(shape, dtype=np.float32), operand)
        for shape in ((rows, k), (k, columns))
    )
    return a, b


def bench_dot(
    size: int = SIZE, repeat: int = REPEAT, progress: Callable[[int], None] = lambda done: None
) -> list[Row]:
    """Return the rows of the float32 product, ours and MMA-Sim; size: the side of the matrices."""
    field, rows = _ours(size)
    theirs, their_rows = _mma_sim(size)
    rounds = count(1)
    with numba_threads(THREADS), np.errstate(all="ignore"):
        times = race(field | theirs, repeat, lambda share: progress(next(rounds)))
    return [_timed(row, times) for row in (*rows, *their_rows)]


def _key(operand: str, name: str) -> str:
    return f"{operand} {name}"


def _timed(row: Row, times: dict[str, np.ndarray]) -> Row:
    t = times.get(_key(row.operand, row.name))
    if t is None:
        return row
    ours = float(np.median(t / times[_key(row.operand, "Hopper")])) if row.name == RIVAL else None
    of_matmul = float(np.median(times[_key("fp32", MATMUL)] / t))
    return replace(row, rate=float(1e-6 / np.median(t)), of_matmul=of_matmul, ours=ours)


def _ours(size: int) -> tuple[dict[str, Any], list[Row]]:
    steps = {
        "ascending, FP32 steps": (Accumulator(), size),
        "ascending, BF16 steps": (Accumulator(step=rounding("bf16")), size // 2),
        "pairwise, FP32 steps": (Accumulator(order=Order.PAIRWISE), size // 4),
        "exact": (Accumulator(order=Order.EXACT), size // 8),
    }
    plans = [("bf16", name, accumulator, n) for name, (accumulator, n) in steps.items()]
    plans += [
        (operand, "Hopper", Accumulator.tensor_core("hopper", operand), size) for operand in CORES
    ]
    whole = matrices("fp32", size, size, size)
    field: dict[str, Any] = {_key("fp32", MATMUL): (partial(np.matmul, *whole), size**3)}
    rows = [Row(operand="fp32", name=MATMUL, values=size * size)]
    for operand, name, accumulator, n in plans:
        arrays = matrices(operand, n, n, n)
        dot(*arrays, accumulator)
        field[_key(operand, name)] = (partial(dot, *arrays, accumulator), n**3)
        rows.append(Row(operand=operand, name=name, values=n * n))
    return field, rows


def _mma_sim(size: int) -> tuple[dict[str, Any], list[Row]]:
    """Return MMA-Sim's model of wgmma on 64 x 8 sums, if it is installed, and its row."""
    try:
        import torch
        from mmasim.nv_ptx.sim import WGMMA
    except ImportError:
        return {}, [Row(operand="bf16", name=RIVAL, note="not installed")]
    a, b = matrices("bf16", 64, size, 8)
    model = WGMMA("Hopper", "m64n8k16.f32.bf16.bf16").arithmetic_op
    x, y, c = torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16(), torch.zeros(64, 8)
    sums = model(x, y, c).double().numpy()
    wrong = int((sums != dot(a, b, Accumulator.tensor_core("hopper", "bf16"))).sum())
    row = Row(operand="bf16", name=RIVAL, differing=wrong, values=sums.size)
    return {_key("bf16", RIVAL): (partial(model, x, y, c), sums.size * size)}, [row]


def _print(rows: list[Row]) -> None:
    lines = []
    for r in rows:
        pairs = ((r.rate, ""), (r.of_matmul, ""), (r.ours, "x"))
        numbers = ["-" if x is None else f"{x:.3g}{unit}" for x, unit in pairs]
        numbers += ["-" if r.differing is None else str(r.differing), f"{r.values or '-'}"]
        lines.append(Line(f"{r.operand} factors", r.name, numbers, r.note))
    show(("M/s", "of matmul", "ours", "differ", "of sums"), lines, LEGEND)
