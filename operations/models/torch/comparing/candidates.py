"""The arithmetic of operations that are recorded as a module, as functions of PyTorch, and that of
other machines, as plans of `roundscope.operations`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roundscope.attention.torch.arrays import numpy_of, tensor_of
from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.definitions.softmax import torch_cuda as softmax_on_a_gpu
from roundscope.operations.run import plan_of, run

Held = Mapping[str, Any]
Candidate = tuple[str, Callable[..., Any]]  # words, and a function of the arguments
PLANS_OF = {torch.bfloat16: "", torch.float16: "-fp16", torch.float32: "-fp32"}


def _plans(operation: str) -> list[str]:
    """Return the names of an operation's published plans, without those of one type alone."""
    names = OPERATIONS[operation].published
    return [n for n in names if n not in ("exact", "fp32") and not n.endswith(("-fp16", "-fp32"))]


def _words(operation: str, plan: str) -> str:
    return f"the plan {plan} of {operation}"


def is_plan(words: str) -> bool:
    """Return whether a candidate's words name a plan, which is emulated and takes longer."""
    return words.startswith("the plan ")


def _planned(operation: str, held: Held, settings: Held) -> Iterator[Candidate]:
    """Yield the published plans of an operation, as functions of x."""
    for name in _plans(operation):
        yield _words(operation, name), partial(_emulated, operation, name, held, settings)


def _emulated(
    operation: str, name: str, held: Held, settings: Held, x: Tensor, *_: Any, **__: Any
) -> Tensor:
    if x.dtype not in PLANS_OF or any(v.dtype != x.dtype for v in held.values()):
        raise TypeError(f"{name}: there is no plan for {x.dtype}")
    inputs = {key: numpy_of(v.detach().cpu()) for key, v in {"x": x, **held}.items()}
    plan = plan_of(OPERATIONS[operation], name + PLANS_OF[x.dtype])
    if operation == "softmax" and name == "torch-cuda":
        own = softmax_on_a_gpu(x.shape[-1], 8 * x.element_size())
        plan = plan.adding("S", own.accumulator("S"))
    found = run(operation, plan, inputs, settings=settings).outputs["out"]
    return tensor_of(found).to(x.device)


def _normed(x: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def _rms_norm(held: Held, settings: Held) -> Iterator[Candidate]:
    eps, w = next(iter(settings.values()), None), held.get("weight")
    if eps is None or w is None:
        return
    yield "cast before the weight", lambda x: w * _normed(x, eps).to(x.dtype)
    yield "cast after the weight", lambda x: (w.float() * _normed(x, eps)).to(x.dtype)
    yield (
        "cast after the weight, which is 1 + w",
        lambda x: ((1.0 + w.float()) * _normed(x, eps)).to(x.dtype),
    )
    yield "torch's rms_norm", lambda x: F.rms_norm(x, w.shape, w, eps)
    yield from _planned("rms_norm", {"weight": w}, {"eps": eps})


def _layer_norm(held: Held, settings: Held) -> Iterator[Candidate]:
    """The candidates take the arguments of a module, x, or those of F.layer_norm."""
    own = held.get("weight"), held.get("bias"), settings.get("eps", 1e-5)

    def by_torch(x: Tensor, shape: Any = None, *more: Any, **given: Any) -> Tensor:
        if own[0] is not None:
            return F.layer_norm(x, own[0].shape, *own)
        return F.layer_norm(x, shape, *more, **given)

    def by_plan(
        name: str, x: Tensor, shape: Any = None, weight: Any = own[0], bias: Any = own[1],
        eps: float = own[2],
    ) -> Tensor:  # fmt: skip
        given = {"weight": weight, "bias": bias}
        given = {key: v for key, v in given.items() if v is not None}
        return _emulated("layer_norm", name, given, {"eps": eps}, x)

    yield "torch's layer_norm", by_torch
    for name in _plans("layer_norm"):
        yield _words("layer_norm", name), partial(by_plan, name)


def _linear(held: Held, settings: Held) -> Iterator[Candidate]:
    w, b = held.get("weight"), held.get("bias")
    if w is None:
        return
    yield "torch's linear", lambda x: F.linear(x, w, b)
    if w.dtype.itemsize == 2:  # the result has another type, which is told beside the words
        wide = w.float(), None if b is None else b.float()
        yield "torch's linear", lambda x: F.linear(x.float(), *wide)

    def split(n: int, x: Tensor) -> Tensor:
        parts = [
            F.linear(u.contiguous(), v.contiguous())
            for u, v in zip(x.chunk(n, -1), w.chunk(n, -1), strict=True)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total if b is None else total + b

    for n in (2, 4):
        yield f"K in {n} parts, each sum rounded", partial(split, n)


def _embedding(held: Held, settings: Held) -> Iterator[Candidate]:
    if (w := held.get("weight")) is not None:
        yield "rows of the table", lambda tokens: F.embedding(tokens, w)


def _rope(held: Held, settings: Held) -> Iterator[Candidate]:
    def halves(x: Tensor) -> Tensor:
        return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)

    def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Any:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + halves(q) * sin, k * cos + halves(k) * sin

    def of_halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Any:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

        def turned(x: Tensor) -> Tensor:
            one, two = x.chunk(2, -1)
            return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

        return turned(q), turned(k)

    yield "halves, each product and the sum rounded", rotated
    yield "halves with half a table, each product and the sum rounded", of_halves


def _rope_table(held: Held, settings: Held) -> Iterator[Candidate]:
    if "frequencies" not in settings:
        return
    frequencies = torch.tensor(settings["frequencies"])
    scaling = settings.get("attention_scaling", 1.0)

    def table(kind: torch.dtype | None, x: Tensor, position_ids: Tensor) -> Any:
        kind = kind or x.dtype
        half = position_ids[..., None].to(kind) * frequencies.to(position_ids.device, kind)
        angle = torch.cat((half, half), -1)
        return tuple((f(angle) * scaling).to(x.dtype) for f in (torch.cos, torch.sin))

    is_narrow = torch.equal(frequencies, frequencies.bfloat16().float())
    kept = "frequencies in BF16, " if is_narrow else ""
    yield f"{kept}angles in FP32, cast at the end", partial(table, torch.float32)
    yield "angles in the type of the model", partial(table, None)


def _attention(held: Held, settings: Held) -> Iterator[Candidate]:
    plain = not any(settings.get(n) for n in ("dropout", "window", "softcap"))
    scale, mask, is_causal = settings["scale"], held.get("mask"), settings["is_causal"]

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(n, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(n, 1) for x in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * scale
        scores = scores if mask is None else scores + mask
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights, v)

    def with_sinks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(n, 1) for x in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * scale
        scores = scores if mask is None else scores + mask
        sinks = held["sinks"].reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
        scores = torch.cat((scores, sinks), -1)
        scores = scores - scores.max(-1, keepdim=True).values
        weights = torch.softmax(scores, dim=-1, dtype=scores.dtype)[..., :-1]
        return torch.matmul(weights, v)

    if "sinks" in held:
        yield "eager with sinks: scores, softmax and their product, each rounded", with_sinks
    if not plain or "sinks" in held:
        return
    yield "torch's scaled_dot_product_attention", sdpa
    yield "torch's scaled_dot_product_attention of repeated keys", repeated
    yield "eager: scores, softmax and their product, each rounded", eager


def _silu(held: Held, settings: Held) -> Iterator[Candidate]:
    yield "torch's silu", F.silu
    yield from _planned("silu", {}, {})


def _gelu(held: Held, settings: Held) -> Iterator[Candidate]:
    yield "torch's gelu", F.gelu
    yield "torch's gelu by tanh", partial(F.gelu, approximate="tanh")

    def spelled(x: Tensor) -> Tensor:
        inner = x + 0.044715 * torch.pow(x, 3.0)
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * inner))

    yield "gelu by tanh, each step rounded", spelled
    for operation in ("gelu", "gelu_tanh"):
        yield from _planned(operation, {}, {})


def _softmax(held: Held, settings: Held) -> Iterator[Candidate]:
    def over_the_last(function: Any, x: Tensor, dim: int = -1, *_: Any, **more: Any) -> Any:
        if dim not in (-1, x.ndim - 1):
            raise ValueError(f"dim={dim}: a plan of softmax is of the last axis")
        return function(x if more.get("dtype") is None else x.to(more["dtype"]))

    for words, function in _planned("softmax", {}, {}):
        yield words, partial(over_the_last, function)


CANDIDATES: dict[str, Callable[[Held, Held], Iterator[Candidate]]] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "embedding": _embedding,
    "rope": _rope,
    "rope_table": _rope_table,
    "attention": _attention,
    "silu": _silu,
    "gelu": _gelu,
    "softmax": _softmax,
}
