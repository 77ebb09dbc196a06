"""`capture`: what attention is given and returns in a PyTorch model, kept and written to a file.

No bit of the model's outputs or gradients changes. A call that is kept runs on views of q, k and v,
whose hooks are given dq, dk and dv; a hook of the output is given do. Where two of q, k and v are
one tensor, views would add its gradients up in another order: there, the gradients come from a
second run of the same call.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from roundscope.attention.models.capture_file import (
    ENDED,
    Captured,
    Choice,
    choice_given,
    file_given,
    finished,
    numbers_given,
    write_captures,
)
from roundscope.attention.models.selection import Layer
from roundscope.attention.torch.arrays import numpy_of
from roundscope.attention.torch.call import CHAIN, Call
from roundscope.attention.torch.calls import intercept, kernel_chosen
from roundscope.attention.torch.discovery import attention_layers
from roundscope.attention.torch.fast_path import OFF
from roundscope.emu.errors import known_arguments

GRADIENTS = ("dq", "dk", "dv")
COVERED = (
    "`use` or another handler, installed after capture, answered the calls before capture saw them:"
    " install capture after it, as in `with use(...), capture(...):`"
)
SHOWN = 8  # how many layers that did not run are named


@dataclass(slots=True, kw_only=True)
class Record:
    """A call that is being captured.

    fields      those of `Captured`, as they come
    has_graph   whether its gradients will come, so that a repeated forward adds nothing
    calls       how often the layer was called in this pass, where the first call alone is kept
    """

    layer: Layer
    fields: dict[str, Any]
    notes: list[str]
    has_graph: bool = False
    calls: int = 1

    def keep(self, name: str, array: np.ndarray) -> None:
        """Keep a gradient, the first one if there are several backwards."""
        if name not in self.fields:
            self.fields[name] = array
        elif name == "do":
            self.notes.append("there were several backwards; the first is kept")

    def captured(self) -> Captured:
        """Return the call as data."""
        notes = list(self.notes)
        if self.calls > 1:
            notes.append(f"called {self.calls} times in this pass; the first call is kept")
        return Captured(**self.fields, notes=tuple(dict.fromkeys(notes)))


class Recorder:
    """Answers the calls of a model, keeps those that are wanted, and counts the forward passes."""

    def __init__(
        self, choice: Choice, steps: tuple[int, ...] | None, wanted: tuple[int, ...] | None
    ) -> None:
        self.choice, self.steps, self.wanted = choice, steps, wanted
        self.records: dict[tuple[int, int, int], Record] = {}  # by step, layer and call
        self.most: dict[Layer, int] = {}  # how often a layer was called in a pass that was kept
        self.without_heads: dict[Layer, int] = {}  # how many entries calls without heads have
        self.step, self.depth = -1, 0
        self.calls: Counter[Layer] = Counter()  # of this pass
        self.device = torch.device("cpu")
        self.is_nested = False
        self.modules: Sequence[nn.Module] = ()
        self.is_covered = False  # whether handlers that came later may have answered the calls

    def begin(self, *_: Any) -> None:
        """Count a forward pass as it begins: the hook before a model's forward."""
        if not _in_backward():
            if not self.depth:
                self._next()
                self.is_covered |= any(self._is_under(module) for module in self.modules)
            self.depth += 1

    def end(self, *_: Any) -> None:
        """Note that a forward pass is over: the hook after a model's forward."""
        if not _in_backward():
            self.depth -= 1

    def _is_under(self, module: nn.Module) -> bool:
        """Return whether another handler of a module was installed after this one."""
        chain = module.__dict__.get(CHAIN)
        handlers = [] if chain is None else [handler for _, handler in chain.handlers]
        return self.answer in handlers and handlers[-1] != self.answer

    def _next(self) -> None:
        self.step += 1
        self.calls.clear()

    def answer(self, call: Call) -> Tensor:
        """Return the output of the model's own attention, and keep the call if it is wanted."""
        if _in_backward():
            return self._repeated(call)
        if not self.depth and (self.step < 0 or self.calls[call.layer]):
            self._next()
        self.calls[call.layer] += 1
        if self.steps is not None and self.step not in self.steps:
            return call.run(call.q, call.k, call.v)
        number = self.calls[call.layer] - 1
        if not call.has_heads and call.q.shape[0] > 1:
            self.without_heads[call.layer] = call.q.shape[0]
        self.most[call.layer] = max(self.most.get(call.layer, 0), number + 1)
        if self.wanted is not None and number not in self.wanted:
            if self.wanted == (0,):
                self.records[self.step, call.layer.number, 0].calls += 1
            return call.run(call.q, call.k, call.v)
        fields = self._arrays(call) | {
            "number": call.layer.number,
            "name": call.layer.name,
            "step": self.step,
            "call": number,
            "scale": float(call.scale),
            "is_causal": bool(call.is_causal),
            "dropout": float(call.dropout),
            "implementation": _implementation(call),
        }
        fields |= {n: getattr(call, n) for n in ("alignment", "window", "softcap")}
        record = Record(layer=call.layer, fields=fields, notes=_notes(call, self.is_nested))
        self.device = call.q.device
        self.records[self.step, call.layer.number, number] = record
        return self._run(call, record)

    def _repeated(self, call: Call) -> Tensor:
        """Return the output of a call that is repeated in a backward.

        Where the first call had no graph, as under reentrant checkpointing, the gradients come
        through this one.
        """
        waiting = [r for r in self.records.values() if r.layer == call.layer and not r.has_graph]
        if waiting:
            arrays = self._arrays(call)
            for record in reversed(waiting):
                if all(_same(arrays[name], record.fields[name]) for name in ("q", "k", "v")):
                    return self._run(call, record)
        return call.run(call.q, call.k, call.v)

    def _run(self, call: Call, record: Record) -> Tensor:
        """Run a call, keep its output, and let hooks keep its gradients."""
        inputs = (call.q, call.k, call.v)
        key_heads = call.k.shape[1]

        def keep(name: str) -> Callable[[Tensor], None]:
            return lambda gradient: record.keep(name, self._array(gradient, key_heads))

        needed = [x for x in inputs if x.requires_grad] if torch.is_grad_enabled() else []
        are_apart = not any(_are_one(a, b) for a, b in combinations(needed, 2))
        if needed and are_apart:
            inputs = (call.q.view_as(call.q), call.k.view_as(call.k), call.v.view_as(call.v))
            for name, x in zip(GRADIENTS, inputs, strict=True):
                if x.requires_grad:
                    x.register_hook(keep(name))
        out = call.run(*inputs)
        if "out" not in record.fields:
            record.fields["out"] = self._array(out, key_heads)
        if out.requires_grad:
            record.has_graph = True
            out.register_hook(keep("do"))
            if not are_apart:
                out.register_hook(lambda do: self._again(call, do, record))
        return out

    def _again(self, call: Call, do: Tensor, record: Record) -> None:
        """Keep the gradients of a call of which two of q, k and v are one tensor: run it again."""
        if call.dropout or "dq" in record.fields:
            record.notes.append("no dq, dk, dv: two of q, k and v are one tensor, with dropout")
            return
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (call.q, call.k, call.v))
            gradients = torch.autograd.grad(call.run(q, k, v), (q, k, v), do.detach())
        for name, gradient in zip(GRADIENTS, gradients, strict=True):
            record.keep(name, self._array(gradient, call.k.shape[1]))
        record.notes.append(
            "dq, dk and dv are of a second run of the call, since two of q, k and v are one tensor"
        )

    def _arrays(self, call: Call) -> dict[str, Any]:
        """Return the chosen parts of what a call is given."""
        key_heads = call.k.shape[1]
        try:
            arrays = {n: self._array(getattr(call, n), key_heads) for n in ("q", "k", "v")}
            if call.mask is not None:
                shape = (*call.q.shape[:3], call.k.shape[2])
                arrays["mask"] = _copy(self.choice.of_mask(call.mask.detach(), shape, key_heads))
            if call.sinks is not None:
                arrays["sinks"] = _copy(self.choice.of_sinks(call.sinks.detach(), key_heads))
        except ValueError as error:
            raise ValueError(f"{call.layer.place}: {error}") from None
        return arrays

    def _array(self, x: Tensor, key_heads: int) -> np.ndarray:
        return _copy(self.choice.entries(x.detach(), key_heads))

    def captured(self) -> list[Captured]:
        """Return the calls, by step and layer."""
        return [finished(self.records[key].captured(), self.choice) for key in sorted(self.records)]

    def missing(self, layers: Sequence[Layer]) -> str:
        """Return what was asked for and did not run, in words; empty if all of it did."""
        ran, kept = range(self.step + 1), {key[:2] for key in self.records}
        late = [] if self.steps is None else [n for n in self.steps if n not in ran]
        words = [self.passed()] if late else []
        steps = ran if self.steps is None else [n for n in self.steps if n in ran]
        idle = [(x, n) for x in layers for n in steps if (n, x.number) not in kept]
        words += [f"{x.place} did not run in forward pass {n}" for x, n in idle]
        if self.steps == (0,) and self.step >= 1:
            kept_passes = len({step for step, *_ in self.records})
            words.append(
                f"{kept_passes} of {self.step + 1} forward passes kept (steps=None keeps all)"
            )
        words += self._not_kept()
        if idle and self.is_covered:
            words.insert(0, COVERED)
        return "; ".join(words[:SHOWN]) + (f"; {n} more" if (n := len(words) - SHOWN) > 0 else "")

    def _not_kept(self) -> list[str]:
        """Return which calls of layers are not in the file, in words."""
        most = {x: n for x, n in self.most.items() if self.wanted is not None and n > 1}
        words = []
        if most:
            layer, n = next(iter(most.items()))
            others = f" and {len(most) - 1} more layers" if len(most) > 1 else ""
            asked = "the first" if self.wanted == (0,) else f"calls={list(self.wanted or ())}"
            words.append(
                f"{layer.place}{others} called attention {n} times in a"
                f" forward pass, and {asked} is kept; calls=None keeps all"
            )
        if self.without_heads and self.choice.batch is not None:
            layer, n = next(iter(self.without_heads.items()))
            count = len(self.without_heads) - 1
            words.append(
                f"{layer.place}{f' and {count} more layers' if count else ''}"
                f" calls attention without an axis of heads, {n} entries of one head, of which"
                f" batch={list(self.choice.batch)} is kept; batch=None keeps all, and tensors"
                " (batch, heads, tokens, features) in the model tell which are heads"
            )
        return words

    def passed(self) -> str:
        """Return which forward passes ran and which were asked for, in words."""
        asked = "all" if self.steps is None else f"steps={list(self.steps)}"
        return f"{self.step + 1} forward passes ran, and {asked} were asked for"


def _in_backward() -> bool:
    """Return whether a backward runs in this thread, as when checkpointing repeats a forward."""
    return bool(torch._C._current_graph_task_id() != -1)


def _copy(x: Tensor) -> np.ndarray:
    """Return a copy of a tensor, which the model may change later."""
    return numpy_of(x.to("cpu", copy=True).contiguous())


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _are_one(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are one to autograd, which adds up their gradients."""
    if a.grad_fn is None or b.grad_fn is None:
        return a is b
    return a.grad_fn is b.grad_fn and a.output_nr == b.output_nr


def _implementation(call: Call) -> str:
    """Return the name of what computes a call, for SDPA with the kernel that it takes, if told."""
    try:
        kernel = kernel_chosen(call, call.q, call.k, call.v)
    except (AttributeError, TypeError, RuntimeError, ValueError):
        kernel = None
    if kernel is None or kernel == SDPBackend.ERROR.name:
        return call.implementation
    return f"sdpa {kernel.removesuffix('_ATTENTION').lower()}"


def _notes(call: Call, is_nested: bool) -> list[str]:
    notes = []
    kind = call.q.device.type
    if torch.is_autocast_enabled(kind) and call.q.dtype != torch.get_autocast_dtype(kind):
        notes.append(
            f"autocast to {torch.get_autocast_dtype(kind)} was on, which changes types inside"
        )
    if call.is_fast_path_off:
        notes.append(OFF)
    if is_nested:
        notes.append("another interception of Roundscope was in place, which may have answered")
    return notes


@known_arguments
@contextmanager
def capture(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    layers: str | int | Sequence[int] = "*",
    heads: Iterable[int] | int | None = None,
    tokens: int | None = None,
    batch: Iterable[int] | int | None = 0,
    steps: Iterable[int] | int | None = 0,
    calls: Iterable[int] | int | None = 0,
    modules: Iterable[str] | None = None,
) -> Iterator[list[Captured]]:
    """Capture the attention of a model while it runs, and write it to a file at the end.

    The file has q, k, v, the mask, scale, causality and output of each call, and do, dq, dk and dv
    if there was a backward; see `attention.models.capture_file`. `roundscope trace`, `identify` and
    `diagnose` read it. The model's outputs and gradients keep every bit, but where PyTorch takes
    the fast path of `nn.MultiheadAttention` or `nn.TransformerEncoderLayer` (eval mode without
    gradients): that is off meanwhile, and a warning and a note in the file say so.

    A forward pass is a call of the model. Where its parts are called without it, a pass begins with
    a layer that was called already. A forward that activation checkpointing repeats in the backward
    is no further pass. If a layer calls attention several times in a pass, its first call is kept,
    and a warning says so; calls=None keeps all. A compiled model runs uncompiled meanwhile, as
    after `torch.compiler.set_stance("force_eager")`: the file has the numbers of the eager model.

    An exception, Ctrl-C included, ends the capture, and what was captured until then is written.

    Args:
        model: Any `nn.Module` whose layers call `F.scaled_dot_product_attention` or an
            implementation of the transformers library.
        path: The safetensors file. Its folder must exist; a file of that name is replaced.
        layers: Which layers: "*" for all, numbers such as "0-3" or [0, 2], or a pattern of the
            paths of modules.
        heads: Numbers of key heads, each with the query heads that share it; None for all.
        tokens: How many of the first tokens. Of a causal call the first queries and keys are kept,
            of another one the first queries with all keys; dk and dv, which sum over all queries,
            are then left out. None for all.
        batch: Numbers of entries of the batch, by default the first; None for all.
        steps: Numbers of forward passes, counted from 0 within the context; by default the first;
            None for all, which are kept in memory until the end.
        calls: Numbers of the calls of a layer within a forward pass, counted from 0; by default the
            first; None for all.
        modules: Paths of the modules that call attention, where they are not found by their code.

    Yields:
        A list that has the `Captured` calls at the end of the context, by step, layer and call.

    Raises:
        TypeError: An argument is of another type.
        ValueError: No such layers, heads or batch entries, no tokens, or a path that cannot be
            written.
        RuntimeError: No attention ran.

    Example:
        >>> import tempfile, torch
        >>> from torch import nn
        >>> from roundscope.attention.torch import capture
        >>> class Attention(nn.Module):
        ...     def forward(self, q, k, v):
        ...         return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> model = Attention()
        >>> q, k, v = torch.ones(3, 1, 2, 4, 8, requires_grad=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with capture(model, f"{folder}/qkv.safetensors") as calls:
        ...         model(q, k, v).sum().backward()
        >>> calls[0].is_causal, calls[0].q.shape, calls[0].dq.shape
        (True, (1, 2, 4, 8), (1, 2, 4, 8))
    """
    file = file_given(path)
    choice = choice_given(heads, tokens, batch)
    recorder = Recorder(choice, numbers_given("steps", steps), numbers_given("calls", calls))
    bare = getattr(model, "_orig_mod", model)
    kept: list[Captured] = []

    def write(remark: str) -> None:
        kept.extend(recorder.captured())
        if kept:
            about = _about(model, recorder.device) | ({"remark": remark} if remark else {})
            write_captures(file, kept, about)

    recorder.modules = list(attention_layers(model, modules).values())
    recorder.is_nested = any(module.__dict__.get(CHAIN) is not None for module in recorder.modules)
    with ExitStack() as stack:
        own = stack.enter_context(intercept(model, recorder.answer, layers=layers, modules=modules))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        before = bare.register_forward_pre_hook(recorder.begin)
        stack.callback(before.remove)
        stack.callback(bare.register_forward_hook(recorder.end, always_call=True).remove)
        try:
            yield kept
        except BaseException as error:
            write(f"{ENDED} {type(error).__name__}")
            raise
    if not recorder.records:
        why = COVERED if recorder.is_covered else recorder.passed()
        raise RuntimeError(f"nothing was captured, and no file was written: {why}")
    remark = recorder.missing(own.layers)
    write(remark)
    if remark:
        warnings.warn(f"{file}: {remark}", stacklevel=3)


def _about(model: nn.Module, device: torch.device) -> dict[str, str]:
    """Return the metadata of a file: the model's class, the versions and the device."""
    from roundscope import __version__

    bare = getattr(model, "_orig_mod", model)
    about = {
        "source": type(bare).__name__,
        "roundscope": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch.compile": "off while capturing",
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "device": platform.machine() if device.type == "cpu" else str(device),
    }
    if "transformers" in sys.modules:
        about["transformers"] = sys.modules["transformers"].__version__
    if device.type == "cuda":
        about["device"] = torch.cuda.get_device_name(device)
        about["cuda"] = str(torch.version.cuda)
        cudnn: Any = torch.backends.cudnn
        about["cudnn"] = str(cudnn.version())
    return about
