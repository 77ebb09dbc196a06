"""`alternatives`: arithmetic that an operation of a run may have elsewhere, by which it runs again.

Besides the candidates of an operation alone these are what engines for serving fuse: a norm with
the sum before it, linear layers of the same input as one product, and an activation with the
product after it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from roundscope.operations.models.tape import Entry, Tape, refs
from roundscope.operations.models.torch.comparing.candidates import CANDIDATES, Held
from roundscope.operations.models.torch.memory import run_again

Get = Callable[[int], Any]  # the numbers of a value of the tape


class Alternative(NamedTuple):
    """Arithmetic in words, and a function that runs an entry by it, given how to get values."""

    words: str
    run: Callable[[Get], list[Any]]


def alternatives(tape: Tape, entry: Entry) -> Iterator[Alternative]:
    """Yield what an entry may be computed by."""
    held = {name: tape.values[ref.value].array for name, ref in entry.held.items()}
    if any(x is None for x in held.values()):
        return
    if entry.operation == "rms_norm":
        yield from _norm_of_sum(tape, entry, held)
    if entry.operation == "mul":
        yield from _gated(tape, entry)
    own = CANDIDATES.get(entry.operation)
    if own is not None and (entry.held or entry.operation not in ("linear", "embedding")):
        for words, function in own(held, entry.settings):
            yield Alternative(words, partial(_plain, function, entry))
    if entry.operation == "linear" and "weight" in held:
        yield from _linear(tape, entry, held)
    if entry.operation == "rope":
        yield Alternative("halves in FP32, rounded once", partial(_plain, _rope, entry))
    if entry.operation == "attention":
        yield from _by_token(entry, held)


def _plain(function: Callable[..., Any], entry: Entry, get: Get) -> list[Any]:
    return run_again(function, (), {}, *entry.filled(get))


def _maker(tape: Tape, value: int, operation: str) -> Entry | None:
    """Return the entry that made a value, if it is an operation of that name."""
    number = tape.made_by.get(value)
    if number is None or tape.entries[number].operation != operation:
        return None
    return tape.entries[number]


def _norm_of_sum(tape: Tape, entry: Entry, held: Held) -> Iterator[Alternative]:
    eps, w = next(iter(entry.settings.values()), None), held.get("weight")
    added = _maker(tape, refs(entry.arguments)[0], "add") if refs(entry.arguments) else None
    if added is None or eps is None or w is None or len(refs(added.arguments)) != 2:
        return
    one, two = refs(added.arguments)

    def normed(is_late: bool, get: Get) -> list[Any]:
        x, y = get(one), get(two)
        total = x.float() + y.float()
        total = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
        return [(total * w.float()).to(x.dtype) if is_late else total.to(x.dtype) * w]

    fused = "of the sum with the residual in FP32, before that is rounded; cast"
    yield Alternative(f"{fused} after the weight", partial(normed, True))
    yield Alternative(f"{fused} before the weight", partial(normed, False))


def _gated(tape: Tape, entry: Entry) -> Iterator[Alternative]:
    given = refs(entry.arguments)
    if len(given) != 2:
        return
    for gate, up in (given, given[::-1]):
        if (silu := _maker(tape, gate, "silu")) is not None:
            read = refs(silu.arguments)[0]

            def run(get: Get, read: int = read, up: int = up) -> list[Any]:
                x, y = get(read), get(up)
                return [(F.silu(x.float()) * y.float()).to(x.dtype)]

            yield Alternative("silu times its factor in FP32, rounded once", run)


def _linear(tape: Tape, entry: Entry, held: Held) -> Iterator[Alternative]:
    read = refs(entry.arguments)[0]
    w, b = held["weight"], held.get("bias")
    wide = None if b is None else b.float()

    def in_fp32(get: Get) -> list[Any]:
        x = get(read)
        return [F.linear(x.float(), w.float(), wide).to(x.dtype)]

    def kept_in_fp32(get: Get) -> list[Any]:
        return [F.linear(get(read).float(), w.float(), wide)]

    def by_token(get: Get) -> list[Any]:
        rows = get(read).reshape(-1, w.shape[1])
        out = torch.cat([F.linear(row[None], w, b) for row in rows])
        return [out.reshape(*get(read).shape[:-1], -1)]

    yield Alternative("products of FP32 operands, rounded at the end", in_fp32)
    yield Alternative("products of FP32 operands, kept in FP32", kept_in_fp32)
    yield Alternative("each token in a product of its own", by_token)
    linear = [e for e in tape.counted if e.operation == "linear"]
    others = [e for e in linear if refs(e.arguments)[:1] == [read]]
    weights = [tape.values[e.held["weight"].value].array for e in others if "weight" in e.held]
    if len(others) < 2 or len(weights) < len(others) or any(x is None for x in weights):
        return
    start = sum(len(x) for x in weights[: others.index(entry)])

    def fused(get: Get) -> list[Any]:
        out = F.linear(get(read), torch.cat(weights))[..., start : start + len(w)]
        return [out if b is None else out + b]

    names = ", ".join(e.module.rpartition(".")[2] for e in others)
    yield Alternative(f"one product for {names}", fused)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Any:
    cos, sin = cos.unsqueeze(1).float(), sin.unsqueeze(1).float()

    def turned(x: Tensor) -> Tensor:
        one, two = x.float().chunk(2, -1)
        return (x.float() * cos + torch.cat((-two, one), -1) * sin).to(x.dtype)

    return turned(q), turned(k)


def _by_token(entry: Entry, held: Held) -> Iterator[Alternative]:
    settings = entry.settings
    if "sinks" in held or any(settings.get(n) for n in ("dropout", "window", "softcap")):
        return
    mask = held.get("mask")
    if mask is None and not settings.get("is_causal"):
        return

    def run(get: Get) -> list[Any]:
        q, k, v = (get(n) for n in refs(entry.arguments)[:3])
        n = q.shape[1] // k.shape[1]
        out = []
        for t in range(q.shape[2]):
            end = t + 1 + k.shape[2] - q.shape[2]
            own = None if mask is None else mask[..., t : t + 1, :end]
            out.append(
                F.scaled_dot_product_attention(
                    q[:, :, t : t + 1],
                    k[:, :, :end],
                    v[:, :, :end],
                    own,
                    scale=settings["scale"],
                    enable_gqa=n > 1,
                )
            )
        return [torch.cat(out, 2)]

    yield Alternative("torch's scaled_dot_product_attention, a token at a time", run)
