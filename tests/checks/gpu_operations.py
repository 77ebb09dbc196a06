"""Outputs of operations beside attention on a GPU: torch's own kernels, transformers' eager
modules, Liger's Triton kernels, Inductor's programs, their parts, and a small Llama.

    python -m tests.checks.gpu_operations --out FOLDER [--only GROUP ...] [--device cpu]
                                        records every group, each in a process of its own
    python -m tests.checks.gpu_operations --read FOLDER
                                        lists what was recorded, and what failed

Inputs are made from seeds, so a file holds outputs, and for each case what it was given, a
checksum of each input and the kernels that ran. `cases` reads a folder back. The program needs
NumPy, ml_dtypes, safetensors, torch, and for some cases transformers, triton and liger-kernel; a
case that cannot run is recorded with its traceback.
"""

import gc
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zlib
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

PACKAGES = ("torch", "transformers", "triton", "liger-kernel", "numpy", "nvidia-cublas")
WIDTHS = (64, 1000, 2048, 4096, 8192)
TOKENS = 64  # rows of a norm, over which the weight's gradient adds up
KEPT = 4  # rows whose outputs are stored
CORNER = (64, 128)  # what is stored of a matrix product
MASK = 2.0**60  # absorbs a sum of ones in binary32
TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
}
SECONDS = 250  # after which a group's process writes what it has

arrays: dict[str, np.ndarray] = {}  # of the group that this process records
notes: dict[str, dict[str, Any]] = {}
texts: dict[str, str] = {}
device = "cuda"


class Case(NamedTuple):
    """One recorded case.

    note     what was given: "inputs" has the arguments of `made` by name; "kernels" those that ran
    outputs  arrays by name
    """

    note: dict[str, Any]
    outputs: dict[str, np.ndarray]


def made(
    seed: int, shape: Iterable[int], kind: str, scale: float = 1.0, shift: float = 0.0
) -> np.ndarray:
    """Return about scale N(0, 1) + shift, rounded to binary32 and then to a type of `TYPES`: four
    16-bit integers of a PCG64 added up, so no library's distribution matters.
    """
    shape = tuple(shape)
    words: np.ndarray = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    total: np.ndarray = np.zeros(len(words))
    for part in range(4):
        total += (words >> np.uint64(16 * part)) & np.uint64(0xFFFF)
    unit = (total - 2 * 65535) / (65536.0 * np.sqrt(4 / 12))
    return (unit * scale + shift).astype(np.float32).astype(TYPES[kind]).reshape(shape)


def whole(seed: int, shape: Iterable[int], below: int) -> np.ndarray:
    """Return whole numbers from 0 to below - 1."""
    shape = tuple(shape)
    found: np.ndarray = np.random.PCG64(seed).random_raw(int(np.prod(shape))) % np.uint64(below)
    return found.astype(np.int64).reshape(shape)


def magnitudes(seed: int, count: int) -> np.ndarray:
    """Return positive binary32 numbers, subnormal ones among them, with exponents about alike."""
    words = np.random.PCG64(seed).random_raw(count).astype(np.uint32) & np.uint32(0x7FFFFFFF)
    words[words >= 0x7F800000] &= np.uint32(0x3FFFFFFF)
    return words.view(np.float32)


def every(kind: str) -> np.ndarray:
    """Return all numbers of a type of 16 bits, NaNs included."""
    return np.arange(2**16, dtype=np.uint16).view(TYPES[kind])


def checksum(x: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(x).view(np.uint8).reshape(-1))


def inputs(note: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the inputs of a case by name, made anew.

    Raises:
        ValueError: One has another checksum than when it was recorded.
    """
    makers: dict[str, Callable[..., np.ndarray]] = {
        "made": made, "whole": whole, "magnitudes": magnitudes, "every": every,
    }  # fmt: skip
    found = {}
    for name, (maker, arguments, crc) in note["inputs"].items():
        found[name] = makers[maker](*arguments)
        if checksum(found[name]) != crc:
            raise ValueError(f"input {name} of {note} is not what was recorded")
    return found


def cases(folder: Path) -> dict[str, Case]:
    """Return what a folder holds, by names such as "rms_norm/torch/bf16/4096"; a case that failed
    has its traceback as "failed" in its note.
    """
    found: dict[str, Case] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["notes"])
            for name, note in about.items():
                found[name] = Case(note, {})
            for key in file.keys():  # noqa: SIM118 - safe_open is no dictionary
                name, _, output = key.rpartition("/")
                found[name].outputs[output] = file.get_tensor(key)
    return found


# What runs on the GPU; torch is imported there, so that reading needs NumPy alone.


def tensor(x: np.ndarray) -> Any:
    """Return an array on the device."""
    import torch

    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
    if x.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn).to(device)
    return torch.from_numpy(x).to(device)


def array(x: Any) -> np.ndarray:
    """Return a tensor as an array."""
    import torch

    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x)
    x = x.detach().contiguous().cpu()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.ascontiguousarray(x.numpy())


class Given:
    """Makes the inputs of a case on the device and notes them; what `keep` gets is stored."""

    def __init__(self, name: str, note: dict[str, Any]) -> None:
        self.name, self.note = name, {**note, "inputs": {}}
        self.kept: dict[str, np.ndarray] = {}

    def _noted(self, name: str, maker: Callable[..., np.ndarray], *arguments: Any) -> Any:
        x = maker(*arguments)
        self.note["inputs"][name] = (maker.__name__, arguments, checksum(x))
        return tensor(x)

    def normal(self, name: str, seed: int, shape: Iterable[int], kind: str,
               scale: float = 1.0, shift: float = 0.0) -> Any:  # fmt: skip
        return self._noted(name, made, seed, tuple(shape), kind, scale, shift)

    def whole(self, name: str, seed: int, shape: Iterable[int], below: int) -> Any:
        return self._noted(name, whole, seed, tuple(shape), below)

    def magnitudes(self, name: str, seed: int, count: int) -> Any:
        return self._noted(name, magnitudes, seed, count)

    def every(self, name: str, kind: str) -> Any:
        return self._noted(name, every, kind)

    def keep(self, **outputs: Any) -> None:
        self.kept.update({name: array(x) for name, x in outputs.items()})

    def kernels(self, f: Callable[[], Any]) -> None:
        self.note["kernels"] = kernels(f)


@contextmanager
def case(name: str, **note: Any) -> Iterator[Given]:
    """Record one case, or why it failed."""
    given = Given(name, note)
    try:
        yield given
    except TimeoutError:  # of the whole group
        raise
    except Exception:
        given.note["failed"] = traceback.format_exc()
        print("FAILED", name, given.note["failed"].splitlines()[-1], flush=True)
    notes[name] = given.note
    arrays.update({f"{name}/{key}": x for key, x in given.kept.items()})


def kernels(f: Callable[[], Any]) -> Any:
    """Return the kernels that a call runs, in order: (name, grid, block)."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if device == "cpu":
        return []
    try:
        f()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            f()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            seen.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
    except TimeoutError:
        raise
    except Exception as error:
        return repr(error)
    ran = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    return [(e["name"], e["args"].get("grid"), e["args"].get("block")) for e in ran]


def gradients(f: Callable[..., Any], leaves: Iterable[Any], out_gradient: Any) -> tuple[Any, ...]:
    """Return the output of a function of leaves, and their gradients."""
    import torch

    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    out = f(*leaves)
    return (out, *torch.autograd.grad(out, leaves, out_gradient))


def eager_norm(kind: str, width: int, eps: float) -> Callable[..., Any]:
    """Return transformers' module of a norm as a function of x and its weight."""
    import torch
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = {"llama": LlamaRMSNorm, "gemma": GemmaRMSNorm}[kind](width, eps).to(device)
    return lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,))


def liger_norm(mode: str, eps: float) -> Callable[..., Any]:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    offset = 1.0 if mode == "gemma" else 0.0
    return lambda x, w: LigerRMSNormFunction.apply(x, w, eps, offset, mode, False, None)


def rms_norm() -> None:
    """RMSNorm of torch, transformers and Liger, and the mean of squares alone."""
    import torch
    from torch.nn import functional as F

    eps = 1e-6
    implementations = {
        "torch": lambda width: lambda x, w: F.rms_norm(x, (width,), w, eps),
        "llama": lambda width: eager_norm("llama", width, eps),
        "gemma": lambda width: eager_norm("gemma", width, eps),
        "liger-llama": lambda width: liger_norm("llama", eps),
        "liger-gemma": lambda width: liger_norm("gemma", eps),
        "liger-none": lambda width: liger_norm("none", eps),
    }
    for kind in ("bf16", "fp16", "fp32"):
        for width in WIDTHS:
            for name, maker in implementations.items():
                shift = 0.0 if "gemma" in name else 1.0
                with case(f"rms_norm/{name}/{kind}/{width}", eps=eps, kept=KEPT) as given:
                    x = given.normal("x", 1, (TOKENS, width), kind, 1.5)
                    w = given.normal("weight", 2, (width,), kind, 0.2, shift)
                    g = given.normal("gradient", 3, (TOKENS, width), kind)
                    f = maker(width)
                    out, dx, dw = gradients(f, (x, w), g)
                    given.keep(out=out[:KEPT], dx=dx[:KEPT], dw=dw)
                    if name == "torch":
                        given.keep(rstd=torch.ops.aten._fused_rms_norm(x, [width], w, eps)[1])
                    given.kernels(partial(gradients, f, (x, w), g))
    for width in WIDTHS:
        for rows in (1, 2, 4, 16, 64):
            with case(f"mean/torch/fp32/{width}/{rows}", eps=eps) as given:
                x = given.normal("x", 1, (rows, width), "bf16", 1.5).float()
                squares = x.pow(2)
                mean = squares.mean(-1)
                given.keep(squares=squares[:1], mean=mean, sum=squares.sum(-1),
                           rsqrt=torch.rsqrt(mean + eps))  # fmt: skip
                given.kernels(partial(torch.mean, squares, -1))
        for kind in ("bf16", "fp32"):
            with case(f"sum-of-rows/torch/{kind}/{width}") as given:
                x = given.normal("x", 3, (TOKENS, width), kind)
                given.keep(sum=x.sum(0))
                given.kernels(partial(torch.sum, x, 0))


def layer_norm() -> None:
    """LayerNorm of torch and Liger."""
    import torch

    eps = 1e-5
    for kind in ("bf16", "fp16", "fp32"):
        for width in WIDTHS:
            for name in ("torch", "liger"):
                with case(f"layer_norm/{name}/{kind}/{width}", eps=eps, kept=KEPT) as given:
                    x = given.normal("x", 1, (TOKENS, width), kind, 1.5, 0.3)
                    w = given.normal("weight", 2, (width,), kind, 0.2, 1.0)
                    b = given.normal("bias", 4, (width,), kind, 0.2)
                    g = given.normal("gradient", 3, (TOKENS, width), kind)
                    if name == "torch":
                        aten = torch.ops.aten
                        out, mean, rstd = torch.native_layer_norm(x, (width,), w, b, eps)
                        given.keep(mean=mean, rstd=rstd)
                        dx, dw, db = aten.native_layer_norm_backward(
                            g, x, [width], mean, rstd, w, b, [True] * 3
                        )
                        given.kernels(partial(torch.native_layer_norm, x, (width,), w, b, eps))
                    else:
                        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

                        f = partial(_applied, LigerLayerNormFunction, (eps,))
                        out, dx, dw, db = gradients(f, (x, w, b), g)
                    given.keep(out=out[:KEPT], dx=dx[:KEPT], dw=dw, db=db)


def _applied(function: Any, more: tuple[Any, ...], *tensors: Any) -> Any:
    return function.apply(*tensors, *more)


def orders() -> None:
    """Which elements torch's sums add up first: a 1 that is added to 2^60 is lost, so the result of
    ones with 2^60 at i and -2^60 at j counts the elements that join after i has met j.
    """
    import torch

    sums = {"sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(-1) * x.shape[-1]}
    for width in (64, 256, 1000, 1024, 4096):
        for rows in (1, 4, 16, 64):
            for name, f in sums.items():
                if name == "sum" or width != 1000:  # whose mean divides inexactly
                    with case(f"order/{name}/fp32/{width}/{rows}") as given:
                        given.keep(**_counted(f, width, rows))
    for m, k, n in ((64, 64, 64), (128, 1024, 256), (1, 1024, 1024), (8, 1024, 1024),
                    (64, 4096, 512)):  # fmt: skip
        with case(f"order/linear/fp32/{m}x{k}x{n}") as given:
            torch.backends.cuda.matmul.allow_tf32 = False
            ones = torch.ones(n, k, device=device)
            given.keep(**_counted(partial(_first_column, ones), k, m))


def _first_column(weight: Any, x: Any) -> Any:
    return (x @ weight.t())[:, 0]


def _counted(f: Callable[[Any], Any], width: int, rows: int) -> dict[str, np.ndarray]:
    """Return for some i and every j how many ones are lost."""
    import torch

    first = [i for i in (0, 1, 2, 3, 4, 8, 16, 31, 32, 64, 128, 512, 1024) if i < width]
    counts: np.ndarray = np.zeros((len(first), width), np.int16)
    for at, i in enumerate(first):
        x = torch.ones(width, width, device=device)
        x[:, i] = MASK
        j = torch.arange(width, device=device)
        x[j, j] = -MASK
        x[i] = 1.0
        found = torch.zeros(width, device=device)
        for start in range(0, width, rows):
            end = min(start + rows, width)
            part = x[start:end]
            if end - start < rows:  # a call of as many rows as the others
                part = torch.cat([part, part[:1].expand(rows - len(part), -1)])
            found[start:end] = f(part)[: end - start]
        counts[at] = (width - 2 - found.round()).cpu().numpy()
    return {"first": np.array(first, np.int32), "lost": counts}


SHAPES = (
    (64, 64, 64), (128, 1024, 256), (128, 4096, 512), (16, 4096, 4096), (1, 4096, 1024),
    (512, 2048, 2048), (1, 1024, 1024), (8, 1024, 1024), (128, 1024, 1024), (1, 2816, 1024),
    (128, 2816, 1024), (8, 2816, 1024),
)  # fmt: skip


def corner(x: Any) -> Any:
    return x[: CORNER[0], : CORNER[1]] if x.shape[0] > 1 else x


def linear() -> None:
    """Matrix products of torch in BF16, FP16, FP32, TF32 and FP8."""
    import torch
    from torch.nn import functional as F

    flags = torch.backends.cuda.matmul
    for m, k, n in SHAPES:
        for kind, how in (
            *(("bf16", "plain"), ("bf16", "bias"), ("bf16", "wide-reduction")),
            *(("fp16", "plain"), ("fp16", "bias"), ("fp16", "wide-reduction")),
            *(("fp32", "plain"), ("fp32", "bias"), ("fp32", "tf32")),
        ):
            with case(f"linear/torch/{kind}/{how}/{m}x{k}x{n}", corner=CORNER) as given:
                flags.allow_tf32 = how == "tf32"
                flags.allow_bf16_reduced_precision_reduction = how != "wide-reduction"
                flags.allow_fp16_reduced_precision_reduction = how != "wide-reduction"
                x = given.normal("x", 11, (m, k), kind)
                w = given.normal("weight", 12, (n, k), kind, k**-0.5)
                b = given.normal("bias", 13, (n,), kind) if how == "bias" else None
                given.keep(out=corner(F.linear(x, w, b)))
                given.kernels(partial(F.linear, x, w, b))
                if how == "plain" and k <= 2048:
                    g = given.normal("gradient", 14, (m, n), kind)
                    _, dx, dw = gradients(F.linear, (x, w), g)
                    given.keep(dx=corner(dx), dw=dw[: CORNER[0], : CORNER[1]])
    flags.allow_tf32 = False
    flags.allow_bf16_reduced_precision_reduction = True
    flags.allow_fp16_reduced_precision_reduction = True
    for m, k, n in SHAPES:
        for scales in ("tensor", "rows", "blocks"):
            for is_fast in (True, False):
                for out in ("bf16", "fp32"):
                    _scaled(m, k, n, scales, is_fast, out)


def _scaled(m: int, k: int, n: int, scales: str, is_fast: bool, out: str) -> None:
    """One product of FP8 operands."""
    import torch

    if out == "fp32" and scales != "tensor":
        return
    if scales == "blocks" and (is_fast or k % 128 or n % 128):
        return
    name = f"linear/scaled_mm/e4m3-{out}/{scales}-{'fast' if is_fast else 'slow'}/{m}x{k}x{n}"
    with case(name, corner=CORNER) as given:
        x = given.normal("x", 15, (m, k), "e4m3", 2.0)
        w = given.normal("weight", 16, (n, k), "e4m3", 2.0)
        if scales == "tensor":
            sx = given.normal("x_scale", 17, (), "fp32", 0.01, 0.37)
            sw = given.normal("weight_scale", 18, (), "fp32", 0.001, 0.021)
        elif scales == "rows":
            sx = given.normal("x_scale", 17, (m, 1), "fp32", 0.02, 0.37)
            sw = given.normal("weight_scale", 18, (1, n), "fp32", 0.001, 0.021)
        else:
            sx = given.normal("x_scale", 17, (m, k // 128), "fp32", 0.02, 0.37)
            sx = sx.t().contiguous().t()
            sw = given.normal("weight_scale", 18, (n // 128, k // 128), "fp32", 0.001, 0.021).t()
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[out]
        f = partial(torch._scaled_mm, x, w.t(), scale_a=sx, scale_b=sw, out_dtype=kind,
                    use_fast_accum=is_fast)  # fmt: skip
        given.keep(out=corner(f()))
        given.kernels(f)


def losses() -> None:
    """Softmax, log-softmax and cross entropy of torch and Liger."""
    import torch
    from torch.nn import functional as F

    functions = {
        "softmax": lambda x: F.softmax(x, -1),
        "log_softmax": lambda x: F.log_softmax(x, -1),
        "log_softmax-fp32": lambda x: F.log_softmax(x, -1, dtype=torch.float32),
    }
    for vocabulary, rows, kept in ((256, 16, 16), (1000, 16, 4), (32000, 8, 2), (128256, 4, 1)):
        for kind in ("bf16", "fp32"):
            where = f"{kind}/{vocabulary}"
            logits = ("x", 21, (rows, vocabulary), kind, 3.0)
            for name, f in functions.items():
                if name == "log_softmax-fp32" and kind == "fp32":
                    continue
                with case(f"{name}/torch/{where}", kept=kept) as given:
                    x = given.normal(*logits)
                    own = "fp32" if name.endswith("fp32") else kind
                    g = given.normal("gradient", 22, (rows, vocabulary), own)
                    out, dx = gradients(f, (x,), g)
                    given.keep(out=out[:kept], dx=dx[:kept])
                    given.kernels(partial(gradients, f, (x,), g))
            for name in ("torch", "torch-fp32", "liger"):
                for reduction in ("none", "mean"):
                    with case(f"cross_entropy/{name}/{where}/{reduction}", kept=kept) as given:
                        x = given.normal(*logits)
                        target = given.whole("target", 23, (rows,), vocabulary)
                        leaf = x.detach().clone().requires_grad_()
                        if name == "liger":
                            from liger_kernel.transformers.functional import liger_cross_entropy

                            loss = liger_cross_entropy(leaf, target, reduction=reduction)
                        else:
                            wide = leaf.float() if name == "torch-fp32" else leaf
                            loss = F.cross_entropy(wide, target, reduction=reduction)
                        given.keep(loss=loss)
                        dx = torch.autograd.grad(loss.sum(), leaf)[0]
                        if reduction == "mean":
                            given.keep(dx=dx[:kept])
            with case(f"logsumexp/torch/{where}", kept=kept) as given:
                x = given.normal(*logits)
                wide = x.float()
                top = wide.amax(-1, keepdim=True)
                powers = (wide - top).exp()
                given.keep(out=torch.logsumexp(x, -1), wide=torch.logsumexp(wide, -1), top=top,
                           sum=powers.sum(-1), log=powers.sum(-1).log())  # fmt: skip
                given.kernels(partial(torch.logsumexp, x, -1))
    with case("fused_linear_cross_entropy/liger/bf16") as given:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        x = given.normal("x", 24, (64, 256), "bf16").requires_grad_()
        w = given.normal("weight", 25, (1000, 256), "bf16", 0.2).requires_grad_()
        target = given.whole("target", 26, (64,), 1000)
        loss = LigerFusedLinearCrossEntropyFunction.apply(x, w, target)
        loss = loss[0] if isinstance(loss, tuple) else loss
        dx, dw = torch.autograd.grad(loss, (x, w))
        given.keep(loss=loss, dx=dx, dw=dw)


TRITON = """
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def functions(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    v = tl.load(x + at, mask=mask, other=1.0)
    tl.store(out + 0 * count + at, tl.exp(v), mask=mask)
    tl.store(out + 1 * count + at, tl.exp2(v), mask=mask)
    tl.store(out + 2 * count + at, tl.log(v), mask=mask)
    tl.store(out + 3 * count + at, tl.rsqrt(v), mask=mask)
    tl.store(out + 4 * count + at, tl.sqrt(v), mask=mask)
    tl.store(out + 5 * count + at, 1.0 / v, mask=mask)
    tl.store(out + 6 * count + at, tl.sigmoid(v), mask=mask)
    tl.store(out + 7 * count + at, libdevice.rsqrt(v), mask=mask)
    tl.store(out + 8 * count + at, libdevice.exp(v), mask=mask)
    tl.store(out + 9 * count + at, libdevice.tanh(v), mask=mask)
"""
TRITON_NAMES = (
    *("exp", "exp2", "log", "rsqrt", "sqrt", "reciprocal", "sigmoid"),
    *("libdevice-rsqrt", "libdevice-exp", "libdevice-tanh"),
)


def functions() -> None:
    """Functions of one number, in binary32 on many arguments, in 16 bits on all of them."""
    import torch
    from torch.nn import functional as F

    count = 100_000
    near = {"exp": 25.0, "exp2": 40.0, "tanh": 3.0, "erf": 2.0, "sigmoid": 10.0, "sin": 100.0,
            "cos": 100.0, "expm1": 5.0}  # fmt: skip
    for name in (*near, "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal"):
        with case(f"function/torch/{name}") as given:
            x = (
                given.normal("x", 31, (count,), "fp32", near[name])
                if name in near
                else given.magnitudes("x", 32, count)
            )
            given.keep(out=getattr(torch, name)(x))
    with case("function/torch/divided") as given:
        x = given.normal("x", 33, (count,), "fp32")
        y = given.normal("y", 34, (count,), "fp32")
        given.keep(out=x / y)
    for name in ("sin", "cos"):  # angles of rotary tables
        with case(f"function/torch/{name}-large") as given:
            x = given.whole("x", 35, (20_000,), 131_072).float()
            given.keep(out=getattr(torch, name)(x))
    gates = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu-tanh": partial(F.gelu, approximate="tanh"),
        "sigmoid": torch.sigmoid,
    }
    for name, f in gates.items():
        for kind in ("bf16", "fp16", "fp32"):
            with case(f"{name}/torch/{kind}") as given:
                x = (
                    given.normal("x", 36, (16, 1024), kind, 4.0)
                    if kind == "fp32"
                    else given.every("x", kind)
                )
                out, dx = gradients(f, (x,), torch.ones_like(x))
                given.keep(out=out, dx=dx)
    if device == "cpu":
        return
    triton_functions(count)


def triton_functions(count: int) -> None:
    """Functions as Triton's language has them."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "triton_functions.py"
        path.write_text(TRITON)
        for source in ("normal", "magnitudes"):
            with case(f"functions/triton/{source}", names=TRITON_NAMES) as given:
                spec = importlib.util.spec_from_file_location("triton_functions", path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[spec.name] = module
                spec.loader.exec_module(module)
                few = count // 4
                x = (
                    given.normal("x", 31, (few,), "fp32", 25.0)
                    if source == "normal"
                    else given.magnitudes("x", 32, few)
                )
                out = torch.zeros(len(TRITON_NAMES), few, device=device)
                ran = module.functions[(-(-few // 1024),)](x, out, few, BLOCK=1024)
                given.keep(out=out)
                texts[f"triton-functions-{source}.ptx"] = ran.asm["ptx"]


def gated() -> None:
    """Gated activations and rotary embeddings."""
    from torch.nn import functional as F

    for kind in ("bf16", "fp16", "fp32"):
        for name in ("torch", "liger"):
            with case(f"silu_mul/{name}/{kind}", kept=KEPT) as given:
                a = given.normal("gate", 41, (16, 2816), kind, 3.0)
                b = given.normal("up", 42, (16, 2816), kind)
                g = given.normal("gradient", 43, (16, 2816), kind)
                if name == "torch":
                    found = gradients(lambda a, b: F.silu(a) * b, (a, b), g)
                else:
                    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

                    found = gradients(partial(_applied, LigerSiLUMulFunction, ()), (a, b), g)
                given.keep(**{k: x[:KEPT] for k, x in zip(("out", "da", "db"), found, strict=True)})
    for theta in (10_000.0, 500_000.0):
        for kind in ("bf16", "fp32"):
            _rotated(theta, kind)


def _rotated(theta: float, kind: str) -> None:
    """Rotary tables and rotated q and k, of transformers and Liger."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    for start in (0, 100_000):
        with case(f"rope/transformers/{kind}/{theta:.0f}/{start}", theta=theta,
                  start=start, width=64) as given:  # fmt: skip
            config = LlamaConfig(
                hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                rope_parameters={"rope_type": "default", "rope_theta": theta},
            )  # fmt: skip
            table = LlamaRotaryEmbedding(config).to(device)
            q = given.normal("q", 51, (1, 4, 128, 64), kind)
            k = given.normal("k", 52, (1, 2, 128, 64), kind)
            positions = torch.arange(start, start + 128, device=device)[None]
            cos, sin = table(q, positions)
            rotated = apply_rotary_pos_emb(q, k, cos, sin)
            given.keep(frequencies=table.inv_freq, cos=cos, sin=sin, q=rotated[0], k=rotated[1])
            wide = table(q.float(), positions)
            given.keep(cos32=wide[0], sin32=wide[1])
            if start == 0 and device != "cpu":
                from liger_kernel.ops.rope import LigerRopeFunction

                found = LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin)
                given.keep(liger_q=found[0], liger_k=found[1])


def adamw() -> None:
    """Steps of AdamW."""
    import torch

    for kind in ("bf16", "fp16", "fp32"):
        for name in ("fused", "foreach", "plain"):
            for settings in ("", "/slow"):
                told = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
                if settings:
                    told = {"lr": 3e-4, "betas": (0.8, 0.999), "eps": 1e-6, "weight_decay": 0.0}
                with case(
                    f"adamw/{name}/{kind}{settings}", settings=told, steps=(1, 2, 5)
                ) as given:
                    p = given.normal("parameter", 44, (4099,), kind)
                    how = {"fused": name == "fused", "foreach": name == "foreach"}
                    own = torch.optim.AdamW([p.requires_grad_()], **told, **how)
                    for step in range(1, 6):
                        p.grad = given.normal(f"gradient{step}", 44 + step, (4099,), kind, 0.01)
                        own.step()
                        if step in (1, 2, 5):
                            state = own.state[p]
                            given.keep(**{f"parameter{step}": p, f"first{step}": state["exp_avg"],
                                          f"second{step}": state["exp_avg_sq"]})  # fmt: skip
                    given.kernels(own.step)


def embedding() -> None:
    """Gradients of an embedding, whose tokens repeat."""
    import torch
    from torch.nn import functional as F

    for kind in ("bf16", "fp16", "fp32"):
        for rows, table in ((64, 16), (1000, 16), (1000, 300), (4096, 16), (4096, 300)):
            with case(f"embedding/torch/{kind}/{rows}/{table}") as given:
                w = given.normal("weight", 71, (table, 64), kind)
                tokens = given.whole("tokens", 72, (rows,), table)
                g = given.normal("gradient", 73, (rows, 64), kind)
                f = partial(_applied_to, F.embedding, tokens)
                _, dw = gradients(f, (w,), g)
                given.keep(dw=dw)
                given.kernels(partial(gradients, f, (w,), g))
    del torch


def _applied_to(function: Any, first: Any, second: Any) -> Any:
    return function(first, second)


def many_rows() -> None:
    """The mean of a loss over many rows, and what many rows add to gradients."""
    import torch
    from torch.nn import functional as F

    for rows in (50, 999, 5000):
        for kind in ("bf16", "fp16", "fp32"):
            for reduction in ("mean", "sum"):
                name = f"cross_entropy/torch/{kind}/64/{reduction}/{rows}"
                with case(name, kept=KEPT) as given:
                    x = given.normal("x", 21, (rows, 64), kind, 3.0).requires_grad_()
                    target = given.whole("target", 23, (rows,), 64)
                    loss = F.cross_entropy(x, target, reduction=reduction)
                    given.keep(loss=loss, dx=torch.autograd.grad(loss, x)[0][:KEPT])
                    given.kernels(partial(F.cross_entropy, x, target, reduction=reduction))
    for m, k, n in (*SHAPES[:2], *SHAPES[5:9], (2048, 512, 256), (4096, 256, 128)):
        for kind in ("bf16", "fp16"):
            with case(f"linear_gradients/torch/{kind}/{m}x{k}x{n}", corner=CORNER) as given:
                x = given.normal("x", 11, (m, k), kind)
                w = given.normal("weight", 12, (n, k), kind, k**-0.5)
                g = given.normal("gradient", 14, (m, n), kind)
                _, dx, dw = gradients(F.linear, (x, w), g)
                given.keep(dx=corner(dx), dw=dw[: CORNER[0], : CORNER[1]])
                given.note["forward"] = kernels(partial(F.linear, x, w))
                given.kernels(partial(gradients, F.linear, (x, w), g))
    for kind in ("bf16", "fp32"):
        for width in (64, 200, 2048):
            for rows in (16, 64, 200, 1024):
                with case(f"sum-of-rows/torch/{kind}/{width}/{rows}") as given:
                    x = given.normal("x", 3, (rows, width), kind)
                    given.keep(sum=x.sum(0))
                    given.kernels(partial(torch.sum, x, 0))


def compiled() -> None:
    """What Inductor makes of operations, with its programs."""
    import torch
    from torch._inductor.utils import run_and_get_code
    from torch.nn import functional as F

    eps = 1e-6

    def recorded(given: Given, f: Callable[..., Any], leaves: tuple[Any, ...], g: Any) -> Any:
        torch._dynamo.reset()
        program = torch.compile(f, dynamic=False)
        found, codes = run_and_get_code(lambda: gradients(program, leaves, g))
        texts[given.name.replace("/", "-") + ".py"] = "\n".join(map(str, codes))
        given.kernels(lambda: gradients(program, leaves, g))
        return found

    norms = [("llama", "bf16", width) for width in WIDTHS]
    norms += [("llama", "fp32", 1000), ("llama", "fp32", 4096), ("torch", "bf16", 4096),
              ("gemma", "bf16", 4096)]  # fmt: skip
    for name, kind, width in norms:
        with case(f"rms_norm/compiled-{name}/{kind}/{width}", eps=eps, kept=KEPT) as given:
            shift = 0.0 if name == "gemma" else 1.0
            x = given.normal("x", 1, (TOKENS, width), kind, 1.5)
            w = given.normal("weight", 2, (width,), kind, 0.2, shift)
            g = given.normal("gradient", 3, (TOKENS, width), kind)
            f = (
                (lambda x, w, n=width: F.rms_norm(x, (n,), w, eps))
                if name == "torch"
                else eager_norm(name, width, eps)
            )
            out, dx, dw = recorded(given, f, (x, w), g)
            given.keep(out=out[:KEPT], dx=dx[:KEPT], dw=dw)
    with case("layer_norm/compiled/bf16/4096", eps=1e-5, kept=KEPT) as given:
        x = given.normal("x", 1, (TOKENS, 4096), "bf16", 1.5, 0.3)
        w = given.normal("weight", 2, (4096,), "bf16", 0.2, 1.0)
        b = given.normal("bias", 4, (4096,), "bf16", 0.2)
        g = given.normal("gradient", 3, (TOKENS, 4096), "bf16")
        out, dx, dw, db = recorded(
            given, lambda x, w, b: F.layer_norm(x, (4096,), w, b), (x, w, b), g
        )
        given.keep(out=out[:KEPT], dx=dx[:KEPT], dw=dw, db=db)
    for vocabulary, rows, kept in ((256, 16, 16), (32000, 8, 2)):
        with case(f"log_softmax/compiled/bf16/{vocabulary}", kept=kept) as given:
            x = given.normal("x", 21, (rows, vocabulary), "bf16", 3.0)
            g = given.normal("gradient", 22, (rows, vocabulary), "bf16")
            out, dx = recorded(given, lambda x: F.log_softmax(x, -1), (x,), g)
            given.keep(out=out[:kept], dx=dx[:kept])
        with case(f"cross_entropy/compiled-fp32/bf16/{vocabulary}/mean", kept=kept) as given:
            x = given.normal("x", 21, (rows, vocabulary), "bf16", 3.0)
            target = given.whole("target", 23, (rows,), vocabulary)
            loss, dx = recorded(given, lambda x, t=target: F.cross_entropy(x.float(), t), (x,),
                                torch.ones((), device=device))  # fmt: skip
            given.keep(loss=loss, dx=dx[:kept])
    with case("silu_mul/compiled/bf16", kept=KEPT) as given:
        a = given.normal("gate", 41, (16, 2816), "bf16", 3.0)
        b = given.normal("up", 42, (16, 2816), "bf16")
        g = given.normal("gradient", 43, (16, 2816), "bf16")
        found = recorded(given, lambda a, b: F.silu(a) * b, (a, b), g)
        given.keep(**{k: x[:KEPT] for k, x in zip(("out", "da", "db"), found, strict=True)})
    with case("rms_norm/compiled-added/bf16/4096", eps=eps, kept=KEPT) as given:
        x = given.normal("x", 1, (TOKENS, 4096), "bf16", 1.5)
        r = given.normal("residual", 5, (TOKENS, 4096), "bf16", 4.0)
        w = given.normal("weight", 2, (4096,), "bf16", 0.2, 1.0)
        torch._dynamo.reset()
        norm = eager_norm("llama", 4096, eps)
        program = torch.compile(lambda x, r, w: (x + r, norm(x + r, w)), dynamic=False)
        (total, out), codes = run_and_get_code(program, x, r, w)
        texts["rms_norm-compiled-added.py"] = "\n".join(map(str, codes))
        given.keep(total=total[:KEPT], out=out[:KEPT])


def llama() -> Any:
    """Return a Llama in BF16 whose weights are made from seeds in the order of its parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    is_small = device == "cpu"
    config = LlamaConfig(
        hidden_size=256 if is_small else 1024,
        intermediate_size=704 if is_small else 2816,
        num_hidden_layers=2 if is_small else 12,
        num_attention_heads=4 if is_small else 16,
        num_key_value_heads=2 if is_small else 4,
        vocab_size=32000,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(device, torch.bfloat16).eval()
    model.model.rotary_emb.inv_freq = frequencies.to(device)  # as a loaded model has them
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            scale, shift = (0.1, 1.0) if "norm" in name else (0.02, 0.0)
            scale = 0.06 if "lm_head" in name else 0.5 if "embed" in name else scale
            p.copy_(tensor(made(9000 + i, p.shape, "bf16", scale, shift)))
    return model


def model() -> None:
    """Log-probabilities of tokens by a Llama, run in ways that should agree."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    from transformers.models.llama import modeling_llama

    own = llama()
    names = [n for n, _ in own.named_parameters()]
    length = 128

    def record(name: str, run: Callable[[Any], Any], **note: Any) -> None:
        gc.collect()
        with case(f"model/{name}", parameters=names, config=own.config.to_dict(), **note) as given:
            tokens = given.whole("tokens", 61, (8, length), 32000)
            with torch.no_grad():
                found = run(tokens)
            logits, states = found if isinstance(found, tuple) else (found, ())
            logits = logits[0, :-1]
            wide = logits.double() if logits.dtype == torch.float64 else logits.float()
            own_next = tokens[0, 1:, None]
            given.keep(log_probs=F.log_softmax(wide, -1).gather(-1, own_next)[:, 0],
                       best=logits.argmax(-1), logits=logits[-1])  # fmt: skip
            if logits.dtype == torch.bfloat16:
                given.keep(narrow=F.log_softmax(logits, -1).gather(-1, own_next)[:, 0])
            given.note["checksums"] = [checksum(array(x[:1])) for x in states]

    def whole_prompt(tokens: Any, rows: int = 1) -> Any:
        found = own(tokens[:rows], output_hidden_states=True, use_cache=False)
        return found.logits, found.hidden_states

    def by_token(tokens: Any) -> Any:
        cache, logits = None, []
        for i in range(length):
            found = own(tokens[:1, i : i + 1], past_key_values=cache, use_cache=True)
            cache = found.past_key_values
            logits.append(found.logits)
        return torch.cat(logits, 1)

    @contextmanager
    def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
        for owner, name, value in changes:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    def cast_after(norm: Any, x: Any) -> Any:
        wide = x.float()
        rs = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        return (norm.weight.float() * (wide * rs)).to(x.dtype)

    def fused_norm(norm: Any, x: Any) -> Any:
        return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)

    rotate = modeling_llama.apply_rotary_pos_emb

    def wide_rotation(q: Any, k: Any, cos: Any, sin: Any, *a: Any, **kw: Any) -> Any:
        q32, k32 = rotate(q.float(), k.float(), cos, sin, *a, **kw)
        return q32.to(q.dtype), k32.to(k.dtype)

    def wide_table(x: Any, *a: Any, **kw: Any) -> Any:
        return table(x.float(), *a, **kw)

    table = own.model.rotary_emb.forward
    plain = nn.Linear.forward

    def split(layer: Any, x: Any) -> Any:
        if layer.in_features != own.config.intermediate_size:
            return plain(layer, x)
        half = layer.in_features // 2
        return F.linear(x[..., :half], layer.weight[:, :half]) + F.linear(
            x[..., half:], layer.weight[:, half:]
        )

    def quantized(layer: Any, x: Any) -> Any:
        if layer.out_features == own.config.vocab_size:
            return plain(layer, x)
        flat = x.reshape(-1, x.shape[-1])
        sx, sw = (y.float().abs().max() / 448 for y in (flat, layer.weight))
        a = (flat.float() / sx).to(torch.float8_e4m3fn)
        b = (layer.weight.float() / sw).to(torch.float8_e4m3fn)
        out = torch._scaled_mm(a, b.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)
        return out.reshape(*x.shape[:-1], -1)

    Norm, Linear = modeling_llama.LlamaRMSNorm, nn.Linear
    record("base", whole_prompt, attention=own.config._attn_implementation)
    record("again", whole_prompt)
    record("batch-8", partial(whole_prompt, rows=8))
    record("token-by-token", by_token)
    changes: dict[str, tuple[tuple[Any, str, Any], ...]] = {
        "norm-cast-after": ((Norm, "forward", cast_after),),
        "norm-fused": ((Norm, "forward", fused_norm),),
        "rope-fp32": (
            (modeling_llama, "apply_rotary_pos_emb", wide_rotation),
            (own.model.rotary_emb, "forward", wide_table),
        ),
        "rope-bf16": (
            (own.model.rotary_emb, "inv_freq", own.model.rotary_emb.inv_freq.bfloat16()),
        ),
        "split-k-down": ((Linear, "forward", split),),
        "fp8-linear": ((Linear, "forward", quantized),),
        "norm-cast-after-and-split-k": (
            (Norm, "forward", cast_after),
            (Linear, "forward", split),
        ),
        "wide-reduction": (
            (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        ),
    }
    for name, change in changes.items():
        with patched(*change):
            record(name, whole_prompt)
    hooks = [own.model.embed_tokens.register_forward_hook(lambda m, a, out: out.float())]
    hooks += [
        layer.register_forward_pre_hook(lambda m, a: (a[0].to(m.weight.dtype), *a[1:]))
        for layer in own.modules()
        if isinstance(layer, nn.Linear)
    ]
    hooks.append(
        own.model.rotary_emb.register_forward_hook(
            lambda m, a, out: tuple(x.to(torch.bfloat16) for x in out)
        )
    )
    record("residual-fp32", whole_prompt)
    for hook in hooks:
        hook.remove()
    with case("model/kernels") as given:
        tokens = given.whole("tokens", 61, (8, length), 32000)
        with torch.no_grad():
            for name, f in (("base", whole_prompt), ("batch-8", partial(whole_prompt, rows=8))):
                ran = kernels(partial(f, tokens))
                given.note[name] = ran if isinstance(ran, str) else Counter(
                    f"{n} {grid}" for n, grid, _ in ran
                )  # fmt: skip
            found = own(tokens[:1, :-1], use_cache=True)
            ran = kernels(
                lambda: own(tokens[:1, -1:], past_key_values=found.past_key_values, use_cache=True)
            )
            given.note["one-token"] = ran if isinstance(ran, str) else Counter(
                f"{n} {grid}" for n, grid, _ in ran
            )  # fmt: skip
    own.set_attn_implementation("eager")
    record("eager", whole_prompt)
    own.set_attn_implementation("sdpa")
    if device != "cpu":
        with case("model/sources") as given:
            from torch._inductor.utils import run_and_get_code

            program = torch.compile(lambda x: own(x, use_cache=False).logits, dynamic=False)

            def inductor(tokens: Any) -> Any:
                out, codes = run_and_get_code(program, tokens[:1].clone())
                texts["model-compiled.py"] = "\n".join(map(str, codes))
                return out

            record("compiled", inductor)
    own.float()
    record("fp32", whole_prompt)
    own.double()
    own.set_attn_implementation("eager")
    record("binary64-but-norms", whole_prompt)


LIBDEVICE = """
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def functions(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    v = tl.load(x + at, mask=mask, other=1.0)
    tl.store(out + 0 * count + at, libdevice.erf(v), mask=mask)
    tl.store(out + 1 * count + at, libdevice.normcdf(v), mask=mask)
    tl.store(out + 2 * count + at, libdevice.erfc(v), mask=mask)
"""


def layer_norm_shapes() -> None:
    """LayerNorm of torch for other widths and numbers of rows, with and without parameters."""
    import torch

    shapes = ((64, 100), (64, 768), (64, 1001), (2, 4096), (16, 768), (300, 768), (2048, 128))
    for kind in ("bf16", "fp16", "fp32"):
        for rows, width in shapes:
            with case(f"layer_norm/torch/{kind}/{width}x{rows}", eps=1e-5, kept=KEPT) as given:
                x = given.normal("x", 1, (rows, width), kind, 1.5, 0.3)
                w = given.normal("weight", 2, (width,), kind, 0.2, 1.0)
                b = given.normal("bias", 4, (width,), kind, 0.2)
                g = given.normal("gradient", 3, (rows, width), kind)
                out, mean, rstd = torch.native_layer_norm(x, (width,), w, b, 1e-5)
                back = partial(torch.ops.aten.native_layer_norm_backward,
                               g, x, [width], mean, rstd, w, b, [True] * 3)  # fmt: skip
                dx, dw, db = back()
                given.keep(out=out[:KEPT], dx=dx[:KEPT], dw=dw, db=db, mean=mean, rstd=rstd)
                given.kernels(back)
        with case(f"layer_norm/torch-plain/{kind}/768x64", eps=1e-5, kept=KEPT) as given:
            x = given.normal("x", 1, (64, 768), kind, 1.5, 0.3)
            g = given.normal("gradient", 3, (64, 768), kind)
            out, dx = gradients(partial(_plain_layer_norm, 768), (x,), g)
            given.keep(out=out[:KEPT], dx=dx[:KEPT])


def _plain_layer_norm(width: int, x: Any) -> Any:
    from torch.nn import functional as F

    return F.layer_norm(x, (width,))


def softmax_shapes() -> None:
    """Softmax of torch for widths on both sides of 1024."""
    from torch.nn import functional as F

    for kind in ("bf16", "fp16", "fp32"):
        for width in (64, 100, 768, 1024, 1025, 4096):
            with case(f"softmax/torch/{kind}/{width}", kept=KEPT) as given:
                x = given.normal("x", 21, (16, width), kind, 3.0)
                g = given.normal("gradient", 22, (16, width), kind)
                out, dx = gradients(lambda x: F.softmax(x, -1), (x,), g)
                given.keep(out=out[:KEPT], dx=dx[:KEPT])
                given.kernels(partial(gradients, lambda x: F.softmax(x, -1), (x,), g))


def gelus() -> None:
    """gelu with gradients that are no ones, and the functions of which it is made."""
    import torch
    from torch.nn import functional as F

    for name, f in {"gelu": F.gelu, "gelu-tanh": partial(F.gelu, approximate="tanh")}.items():
        for kind in ("bf16", "fp16", "fp32"):
            with case(f"{name}/torch-random/{kind}") as given:
                x = (
                    given.normal("x", 37, (32, 1024), kind, 2.0)
                    if kind == "fp32"
                    else given.every("x", kind)
                )
                g = given.normal("gradient", 38, x.shape, kind)
                out, dx = gradients(f, (x,), g)
                given.keep(dx=dx) if kind != "fp32" else given.keep(out=out, dx=dx)
    for name, scale in (("near", 0.3), ("far", 3.0)):
        with case(f"function/torch/erf-{name}") as given:
            given.keep(out=torch.erf(given.normal("x", 39, (2**16,), "fp32", scale)))
    for name in ("erf", "tanh"):
        with case(f"function/torch/{name}-many") as given:
            out = array(getattr(torch, name)(given.normal("x", 40, (2**20,), "fp32", 2.0)))
            given.note["sha256"] = hashlib.sha256(out.tobytes()).hexdigest()
    if device == "cpu":
        return
    with tempfile.TemporaryDirectory() as folder, case("functions/libdevice") as given:
        path = Path(folder) / "libdevice_functions.py"
        path.write_text(LIBDEVICE)
        spec = importlib.util.spec_from_file_location("libdevice_functions", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        x = given.normal("x", 41, (2**16,), "fp32", 3.0)
        out = torch.zeros(3, len(x), device=device)
        ran = module.functions[(64,)](x, out, len(x), BLOCK=1024)
        given.keep(erf=out[0], normcdf=out[1], erfc=out[2])
        texts["libdevice-functions.ptx"] = ran.asm["ptx"]


GROUPS: dict[str, tuple[Callable[[], None], ...]] = {
    "norms": (rms_norm, layer_norm),
    "orders": (orders,),
    "linear": (linear,),
    "losses": (losses,),
    "functions": (functions, gated),
    "training": (adamw, embedding, many_rows),
    "compiled": (compiled,),
    "model": (model,),
    "shapes": (layer_norm_shapes, softmax_shapes, gelus),
}


def record_group(group: str, out: Path) -> None:
    """Record one group in this process."""
    import torch

    begun = time.time()

    def ended(*_: Any) -> None:
        raise TimeoutError(f"ended after {time.time() - begun:.0f} s")

    signal.signal(signal.SIGTERM, ended)
    for f in GROUPS[group]:
        try:
            f()
        except Exception:
            notes[f"{group}/{f.__name__}"] = {"inputs": {}, "failed": traceback.format_exc()}
            traceback.print_exc()
        print(f"{time.time() - begun:6.1f} s  {f.__name__}", flush=True)
        if time.time() - begun > SECONDS - 10:
            break
    about = {"torch": torch.__version__, "device": device, "cuda": str(torch.version.cuda)}
    for name in PACKAGES:
        try:
            about.setdefault(name, version(name))
        except PackageNotFoundError:
            about[name] = "none"
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about |= {"name": properties.name, "processors": str(properties.multi_processor_count)}
    save_file(arrays, out / f"{group}.safetensors", about | {"notes": json.dumps(notes)})
    for name, text in texts.items():
        (out / "texts").mkdir(exist_ok=True)
        (out / "texts" / name).write_text(text)
    size = sum(x.nbytes for x in arrays.values()) / 2**20
    failed = sum("failed" in note for note in notes.values())
    print(f"{group}: {len(notes)} cases, {failed} failed, {size:.1f} MiB", flush=True)


def record(groups: Iterable[str], out: Path) -> None:
    """Record groups at once, and put their logs and texts into one archive."""
    (out / "texts").mkdir(parents=True, exist_ok=True)
    running = {}
    for group in groups:
        command = [sys.executable, "-m", "tests.checks.gpu_operations", "--out", str(out),
                   "--device", device, "--group", group]  # fmt: skip
        if __spec__ is None or __spec__.name != "tests.checks.gpu_operations":
            command[1:3] = [str(Path(__file__).resolve())]
        log = (out / "texts" / f"{group}.log").open("w")
        running[group] = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
    end = time.time() + SECONDS
    for group, process in running.items():
        try:
            code = process.wait(max(end - time.time(), 1))
            print(f"{group}: exit code {code}", flush=True)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            print(f"{group}: ended after {SECONDS} s", flush=True)
        lines = (out / "texts" / f"{group}.log").read_text(errors="replace").splitlines()
        print("\n".join(f"    {line}" for line in lines[-8:]), flush=True)
    with tarfile.open(out / "texts.tar.gz", "w:gz") as archive:
        archive.add(out / "texts", "texts")
    for path in (out / "texts").iterdir():
        path.unlink()
    (out / "texts").rmdir()


def listed(folder: Path) -> None:
    """Print what was recorded; raise if an input cannot be made anew."""
    for name, (note, outputs) in cases(folder).items():
        inputs(note)
        what = ", ".join(f"{key} {x.dtype} {x.shape}" for key, x in outputs.items())
        ran = note.get("kernels") or []
        ran = ran if isinstance(ran, str) else " + ".join(str(k[0])[:60] for k in ran[:3])
        failed = note.get("failed", "").strip().splitlines()
        print(f"{name}: {what} {ran}", *(("FAILED", failed[-1]) if failed else ()))


def main() -> None:
    """Record groups, or list what was recorded."""
    global device
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--out", type=Path, default=Path("gpu-operations"))
    ask.add_argument("--only", nargs="*", choices=GROUPS, help="groups, all by default")
    ask.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    ask.add_argument("--group", choices=GROUPS, help="record one group in this process")
    ask.add_argument("--read", type=Path, help="list what a folder holds")
    asked = ask.parse_args()
    device = asked.device
    if asked.read:
        listed(asked.read)
    elif asked.group:
        asked.out.mkdir(parents=True, exist_ok=True)
        record_group(asked.group, asked.out)
    else:
        record(asked.only or GROUPS, asked.out)


if __name__ == "__main__":
    main()
