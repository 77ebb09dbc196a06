"""The speed of quantizing blocks and back (float32 -> MX -> float32).

It is compared with a copy and with other libraries, and measured as in bench/round.py: each round
times everyone once, in turn, and a ratio is the median over the rounds of the ratios within one.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.tools.bench.rivals import ML_DTYPES, Rival, Round, on_cpu, on_torch
from roundscope.tools.bench.round import (
    NEW,
    THREADS,
    Progress,
    Row,
    _rows,
    _slice,
    differing,
    finish,
    numba_threads,
    parallel_copy,
    race,
    sample,
)

FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxint8", "nvfp4", "fp8_1x128")
CHECKED = 1 << 22  # how many of the GPU's numbers are compared with the processor's


def run(as_json: bool = False, out: Path | None = None, size: int = 1 << 26) -> None:
    """Print how fast block formats are.

    Raises ValueError for a size that is no multiple of 65,536.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from roundscope.tools.bench.command import deliver_rows
    from roundscope.tools.report.terminal import console

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("block formats", total=1.0)
        rows = bench_mx(size, progress=lambda share: bar.advance(task, share))
        task = bar.add_task("on the GPU", total=1.0)
        rows += bench_device(4 * size, progress=lambda share: bar.advance(task, share))
    deliver_rows("mx", "Quantizing blocks", rows, as_json, out)


def bench_mx(
    size: int = 1 << 26,
    threads: int = THREADS,
    repeat: int = 7,
    formats: Iterable[str] = FORMATS,
    progress: Progress = lambda share: None,
) -> list[Row]:
    """Return rows for the copy, ours and every rival, format by format; see `bench_round`."""
    from roundscope.emu import round_blocks

    if size < 1 << 16 or size % (1 << 16):
        raise ValueError(f"size={size}: give a multiple of 65536, which whole blocks fill")
    x, names, rows = sample(size), list(formats), []
    x[~np.isfinite(x)] = 1.0  # otherwise one in 512 blocks would be NaN throughout
    y = np.zeros_like(x)
    with numba_threads(threads), np.errstate(all="ignore"):
        for name in names:
            round_blocks(x, name, out=y)
            field: dict[str, Any] = {
                "copy": (parallel_copy(x, y.copy(), threads), size),
                "ours": (partial(round_blocks, x, name, out=y), size),
                NEW: (partial(round_blocks, x, name), size),
            }
            entered = [Row(format=name, name=who) for who in field]
            entered += [row for rival in RIVALS if (row := _enter(field, rival, name, x, y))]
            times = race(field, repeat, lambda share: progress(share / len(names)))
            rows += _rows(entered, times, field)
    return rows


def _enter(field: dict[str, Any], rival: Rival, name: str, x: np.ndarray, y: np.ndarray) -> Row:
    """Return a rival's row, with its differences from y; it joins the field if it can run."""
    row = Row(format=name, name=rival.name)
    try:
        function = rival.make(name)
    except ImportError:
        return replace(row, note="not installed")
    if function is None:
        return replace(row, note="has no such format")
    go, n = _slice(rival, function, x)
    wrong = _differing(np.asarray(go(), np.float32), x[:n], y[:n], name)
    field[rival.name] = (go, n)
    return replace(row, differing=wrong, note=rival.note if wrong else "")


def _differing(theirs: np.ndarray, x: np.ndarray, y: np.ndarray, name: str) -> int:
    """Return how many results differ from ours.

    Ours are computed again for a format with a scale of the whole tensor, which a part of x
    changes.
    """
    from roundscope.emu import BLOCK_NAMED, round_blocks

    return differing(theirs, round_blocks(x, name) if BLOCK_NAMED[name].tensor else y)


def bench_device(
    size: int = 1 << 28, repeat: int = 20, progress: Progress = lambda share: None
) -> list[Row]:
    """Return rows for the copy and for ours per format, on JAX's first GPU; none if it has no GPU.

    The copy is that of bench/device.py.
    """
    import jax
    import jax.numpy as jnp

    from roundscope.emu import round_blocks

    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        return []
    head = sample(min(size, CHECKED))
    head[~np.isfinite(head)] = 1.0
    x, zero = jnp.resize(jax.device_put(head, device), (size,)), jax.device_put(np.int32(0), device)
    flip = jax.jit(
        lambda x, z: jax.lax.bitcast_convert_type(
            jax.lax.bitcast_convert_type(x, jnp.int32) ^ z, jnp.float32
        )
    )
    field: dict[str, Any] = {"copy": (lambda: finish(flip(x, zero)), size)}
    wrong = {}
    for name in FORMATS:
        function = ours_on_xla(name)
        wrong[name] = differing(
            np.asarray(function(np.asarray(x[: head.size]))), round_blocks(head, name)
        )
        field[name] = (partial(_finished, function, x), size)
    times = race(field, repeat, progress)
    return [
        _device_row(name, t, times["copy"], size, wrong.get(name), device.device_kind)
        for name, t in times.items()
    ]


def _finished(function: Any, x: Any) -> Any:
    return finish(function(x))


def _device_row(
    name: str, t: np.ndarray, copy: np.ndarray, size: int, wrong: int | None, kind: str
) -> Row:
    who = "copy" if name == "copy" else "ours, XLA"
    return Row(
        format="" if name == "copy" else name,
        name=f"{who} on {kind}",
        gbps=float(8e-9 / np.median(t)),
        of_copy=float(np.median(copy / t)),
        values=size,
        differing=wrong,
    )


def ml_dtypes_and_numpy(name: str) -> Round | None:
    """Return the format written with NumPy and ml_dtypes.

    frexp gives the shared exponent, ldexp scales, and a cast to an ml_dtypes type rounds the
    elements.
    """
    import ml_dtypes

    from roundscope.emu import BLOCK_NAMED

    f = BLOCK_NAMED[name]
    element = f.element.format
    if not f.power_of_two or element.name not in ML_DTYPES:
        return None
    dtype = getattr(ml_dtypes, ML_DTYPES[element.name])
    k = f.size
    largest = np.float32(element.max_finite)

    def there_and_back(x: np.ndarray) -> np.ndarray:
        blocks = x.reshape(-1, k)
        top = np.abs(blocks).max(axis=1, keepdims=True)
        shared = np.clip(np.frexp(top)[1] - 1 - element.emax, -127, 127)
        elements = np.clip(np.ldexp(blocks, -shared), -largest, largest).astype(dtype)
        back = np.ldexp(elements.astype(np.float32), shared)
        return np.where(np.isfinite(top), back, np.float32(np.nan)).reshape(-1)

    return there_and_back


def ours_on_xla(name: str) -> Round:
    """Return emu.round_blocks under jit."""
    import jax

    from roundscope.emu import round_blocks

    return jax.jit(lambda x: round_blocks(x, name))


def microxcaling(name: str) -> Round | None:
    """Return mx.mx_ops._quantize_mx on the CPU with round="even"; it needs PyTorch."""
    from mx.formats import ElemFormat
    from mx.mx_ops import _quantize_mx

    known = {
        "mxfp8_e4m3": "fp8_e4m3",
        "mxfp8_e5m2": "fp8_e5m2",
        "mxfp6_e3m2": "fp6_e3m2",
        "mxfp6_e2m3": "fp6_e2m3",
        "mxfp4": "fp4_e2m1",
        "mxint8": "int8",
    }
    if name not in known:
        return None
    form = ElemFormat.from_str(known[name])
    return lambda x: (
        _quantize_mx(x.reshape(-1, 32), 8, form, axes=[-1], block_size=32, round="even")
        .reshape(-1)
        .numpy()
    )


def torchao(name: str) -> Round | None:
    """Return torchao's MXTensor.to_mx and dequantize on the CPU, with scaling mode FLOOR."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    known = {"mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}
    if name not in known:
        return None
    dtype = known[name]
    return lambda x: (
        MXTensor.to_mx(x.reshape(-1, 32), dtype, 32).dequantize(torch.float32).reshape(-1).numpy()
    )


RIVALS = (
    Rival("ours, XLA on CPU", ours_on_xla, on_cpu),
    Rival("ml_dtypes + NumPy", ml_dtypes_and_numpy),
    Rival("microxcaling", microxcaling, on_torch, "log2 in float32; no -0"),
    Rival("torchao", torchao, on_torch),
)
