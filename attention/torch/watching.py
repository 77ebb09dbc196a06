"""`watch`: the drift of a model's own attention, measured now and then in its training."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from roundscope.attention.models.alarm import THRESHOLD, Alarm
from roundscope.attention.models.drift import (
    HeadNumbers,
    HeadSums,
    HeadTensors,
    head_sums,
    numbers_of_sums,
)
from roundscope.attention.models.selection import Layer, Removable, chosen, heads_given, heads_of
from roundscope.attention.models.watcher import Watcher
from roundscope.attention.torch.call import Call
from roundscope.attention.torch.calls import (
    Interception,
    before_forward,
    intercept,
    kernel_chosen,
)
from roundscope.attention.torch.correction import (
    check_layers,
    check_row_sums,
    extended,
    extended_width,
    kernels_allowed,
    products_in_binary32,
    same_kernels,
)
from roundscope.attention.torch.declared import WRITTEN_OUT
from roundscope.attention.torch.discovery import attention_layers, tell_unseen
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import check_count
from roundscope.emu.told import warn_outside

ELEMENTS = 1 << 24  # scores of the exact attention that are held at a time
ELEMENTS_OF_CPU = 1 << 17  # the same, which caches hold
ROWS = 16  # rows of each head that are held at a time, at least, if layers are held together
STACKED = 1 << 22  # elements of each tensor of the layers that are measured at a time


@known_arguments
def watch(
    model: nn.Module,
    every: int = 100,
    *,
    layers: str | int | Sequence[int] = "*",
    heads: int | Sequence[int] | None = None,
    log: str | Path | None = None,
    threshold: float | None = THRESHOLD,
    on_alarm: Callable[[Alarm], object] | None = None,
    forwards: int = 1,
    start: int = 0,
    modules: Iterable[str] | None = None,
) -> Watch:
    """Watch a training for an arithmetic of attention that leaks, on the model's own kernels.

    In exact arithmetic the rows of dS sum to zero. On the first of every `every` steps, attention
    is called a second time, after the backward, for one batch entry of each layer, with a feature
    of ones behind K (`attention.torch.correction`), and its own backward then returns what
    those sums are. The part that they make in the gradient of the queries' weights is the drift;
    its share, over heads, layers and looks, is what the threshold is for
    (`attention.models.alarm`). A second alarm tells outputs that are more than 1 % too long or too
    short in three looks. It tells arithmetics that leak from those that do not. It does not
    tell which of several seeds will diverge.

    Nothing else of the step changes: the model's outputs and gradients have the bits that they had.
    On other steps the model runs without anything of this, but for a counter.

    * A step is a forward of `model` in training mode with gradients enabled. A warning says so if
      the first one with gradients is in eval mode. With gradient accumulation say how many make a
      step: `forwards=4`; the first of them is looked at.
    * Call `numbers()` once in each step, after its last backward. It returns {} on steps without a
      look. A look is kept until then; one that the next look replaces is told once, as a warning.
    * A model compiled by torch.compile runs eagerly on watched steps, from the forward to
      `numbers()` or the next forward: its bits are those of eager mode there. Give
      `watch` the compiled model, the one that is called; nothing is compiled again.
    * Activation checkpointing, autocast and loss scaling need nothing: shares do not depend on the
      scale of the loss. A look that is not finite, as loss scaling makes them, is counted and
      logged, and has no part in the share.
    * With several processes each watches its own part of the batch; one may be enough.
    * H + 1 features, rounded up to a multiple of 8, can be served by another template of the same
      kernel than H, with other tile sizes, and beyond 128 or 256 features by another kernel:
      `note` says so if SDPA's choice changes. More than 256 are refused.
    * With rotary positions the drift is that of a weight behind the rotation, and where the keys
      are not the tokens of the queries that of a bias of queries (`attention.models.drift`).

    Args:
        model: The model that is trained, as it is called.
        every: How many steps there are from one look to the next; step `start` is the first.
        layers: Which layers, "*" for all; see `attention.models.selection.chosen`.
        heads: Which query heads, or how many (the first ones); None for all. All heads run, these
            are compared with exact attention.
        log: A file to which every look is appended, for `roundscope watch`.
        threshold: The share of the drift above which there is an alarm, below 1; None for no alarm.
        on_alarm: Called once for each kind, with the `Alarm`, whose `kind` is "drift" or "gain"; by
            default it is printed to stderr.
        forwards: How many forwards make a step.
        start: The number of the first step, for a training that is resumed.
        modules: The paths of the modules that call attention, where they are not found.

    Returns:
        A `Watch`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A wrong value; a layer of the transformers library with sinks or a softcap; or,
            at the first look, a layer whose rows of dS cannot be measured: those of another model,
            heads that are too wide.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Attention(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.qkv = nn.Linear(32, 96)
        ...
        ...     def forward(self, x):
        ...         q, k, v = self.qkv(x).view(-1, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        ...         return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> model = nn.Sequential(Attention())
        >>> w = watch(model, every=10)
        >>> for step in range(20):
        ...     model(torch.randn(2, 16, 32)).square().sum().backward()
        ...     numbers = w.numbers()  # for a logger, {} but on steps 0 and 10
        ...     if numbers:
        ...         print(step, sorted(numbers)[:2], numbers["attention/drift"] < 1e-5)
        0 ['attention/alarm', 'attention/bias'] True
        10 ['attention/alarm', 'attention/bias'] True
        >>> w.remove()
    """
    for name, n, least in (("every", every, 1), ("forwards", forwards, 1), ("start", start, 0)):
        check_count(name, n, least, "it counts steps or calls")
    known = attention_layers(model, modules)
    if any(module is model for module in known.values()):
        raise ValueError(
            f"model: {type(model).__name__} is itself the module that calls attention; watch the"
            " model that it is part of, or torch.nn.Sequential(model)"
        )
    own = chosen(layers, list(known))
    check_layers({layer: known[layer] for layer in own}, "watched")
    if modules is None:
        tell_unseen(model, known.values())
    if _watches.get(model):
        warn_outside(
            "watch: the model is watched already, and now twice: each watch takes its own looks,"
            " and one log has both; call remove() of the first"
        )
    watcher = Watcher(threshold=threshold, log=log, on_alarm=on_alarm)
    return Watch(
        model,
        every=every,
        layers=own,
        heads=heads_given(heads),
        watcher=watcher,
        forwards=forwards,
        start=start,
        modules=[layer.name for layer in known],
    )


_watches: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # how many models have


def _forget(model: nn.Module) -> None:
    _watches[model] = _watches.get(model, 1) - 1


@dataclass(slots=True)
class _Seen:
    """One batch entry of a layer's call, detached: (1, N, T, H) each."""

    call: Call  # with q, k and v of that entry
    entry: int
    batch: int
    out: Tensor
    allowed: list[SDPBackend]
    kernel: str | None
    do: Tensor | None = None


class Watch(Removable):
    """A model that is watched, until `remove` is called; a context manager that does so at its end.

    Attributes:
        layers: The layers that are looked at.
        note: Why the last call of `numbers` returned {} on a step that was to be looked at, or what
            is to be known of its numbers; "" for nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int,
        layers: Sequence[Layer],
        heads: int | tuple[int, ...] | None,
        watcher: Watcher,
        forwards: int,
        start: int,
        modules: Sequence[str],
    ) -> None:
        _watches[model] = _watches.get(model, 0) + 1
        super().__init__(layers, [before_forward(model, self._begin), partial(_forget, model)])
        self.note = ""
        self._model, self._every, self._heads, self._watcher = model, every, heads, watcher
        self._forwards, self._start, self._modules = forwards, start, modules
        self._at = start  # the step of the look that is kept
        self._count, self._looks, self._is_told, self._is_eval_told = 0, 0, False, False
        self._seen: dict[Layer, _Seen] = {}
        self._again: dict[Layer, int] = {}  # how often layers called that did so again
        self._interception: Interception | None = None
        self._eager: Any = None  # what restores torch.compile

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, every {self._every} steps, {self.alarm or 'no alarm'}>"

    @property
    def alarm(self) -> Alarm | None:
        """The alarm, or None so far."""
        return self._watcher.alarm

    @property
    def step(self) -> int:
        """The number of the step of the last forward; that of the first before it."""
        return self._start + max(self._count - 1, 0) // self._forwards

    def numbers(self) -> dict[str, float]:
        """Return what this step's look found, for a logger, or {} if it was none.

        Call it after the step's last backward. It measures, and takes most of the time of a look.

        Returns:
            Name -> number; `attention.models.watcher.Watcher.look` says what they are.
        """
        if self._interception is None and not self._seen:
            self.note = "" if self._count else (
                "no forward of the model in training mode was seen: give watch the module that is"
                " called, the compiled one if it is compiled"
            )  # fmt: skip
            return {}
        seen, again, step = self._seen, self._again, self._at
        self._end()
        with_backward = {layer: x for layer, x in seen.items() if x.do is not None}
        if not with_backward:
            self.note = "no gradient came to the output of any layer: call numbers after backward"
            return {}
        missing = [str(layer.number) for layer in self.layers if layer not in with_backward]
        notes = [f"no gradient came to layers {', '.join(missing)}"] if missing else []
        notes += [
            f"{layer.place} called attention {n} times; the first is measured"
            for layer, n in again.items()
        ]
        stacks = _stacks(with_backward)
        measured = [_measured(stack, self._heads) for stack in stacks]
        self.note = "; ".join([*notes, *(note for own in measured for note in own.notes)])
        self._looks += 1
        # the device is waited for once, not for each layer
        table = torch.cat([own.sums.flatten(1) for own in measured], dim=1).cpu().numpy()
        found: dict[Layer, tuple[Sequence[int], HeadNumbers]] = {}
        for stack, own in zip(stacks, measured, strict=True):
            sums, table = np.split(table, [len(stack) * len(own.heads)], axis=1)
            numbers = _finished(stack[0].call, sums)
            for x, part in zip(stack, np.split(numbers, len(stack), axis=1), strict=True):
                found[x.call.layer] = own.heads, HeadNumbers(*part)
        return self._watcher.look(step, {layer: found[layer] for layer in with_backward})

    def remove(self) -> None:
        """Stop watching. A second call does nothing."""
        self._drop()
        super().remove()

    def _begin(self) -> None:
        """Count a forward that begins, and look at it if its turn has come."""
        if not torch.is_grad_enabled():
            return
        if not self._model.training:
            if not (self._count or self._is_eval_told):
                self._is_eval_told = True
                warn_outside(
                    "watch: the model is in eval mode, so this forward counts as no step and is not"
                    " looked at; call model.train() before the training"
                )
            return
        self._let_run()
        is_watched = self._count % (self._every * self._forwards) == 0
        self._count += 1
        if not is_watched:
            return
        self._drop()
        self._at = self.step
        self._interception = intercept(
            self._model,
            self._handler,
            layers=[layer.number for layer in self.layers],
            modules=self._modules,
        )
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            self._eager = torch.compiler.set_stance("force_eager")

    def _drop(self) -> None:
        """End a look of which nobody asked the numbers, and warn the first time."""
        is_lost, step = any(x.do is not None for x in self._seen.values()), self._at
        self._end()
        if is_lost and not self._is_told:
            self._is_told = True
            warnings.warn(
                f"watch: numbers() was not called after the backward of step {step}, before"
                " the next look: it is lost, and not in the log; call numbers() once in each step",
                stacklevel=2,
            )

    def _end(self) -> None:
        self._let_run()
        self._seen, self._again = {}, {}

    def _let_run(self) -> None:
        """Let the model run as it is; gradients still come to what was seen."""
        if self._interception is not None:
            self._interception.remove()
        if self._eager is not None:
            self._eager.__exit__(None, None, None)
        self._interception, self._eager = None, None

    def _handler(self, call: Call) -> Tensor:
        """Run the model's own attention, and keep one batch entry of it.

        A call that checkpointing repeats does what its first one did, since selective checkpointing
        counts operations.
        """
        out = call.run(call.q, call.k, call.v)
        if not out.requires_grad:
            return out
        check_row_sums(call, "watched")
        entry = self._looks % call.q.shape[0]
        with torch.no_grad():
            q, k, v, kept = (x[entry : entry + 1].clone() for x in (call.q, call.k, call.v, out))
        kernel = kernel_chosen(call, call.q, call.k, call.v)
        if call.layer in self._seen:
            if torch._C._current_graph_task_id() == -1:  # not repeated by a backward
                self._again[call.layer] = self._again.get(call.layer, 1) + 1
            return out
        seen = _Seen(
            call=replace(call, q=q, k=k, v=v),
            entry=entry,
            batch=call.q.shape[0],
            out=kept,
            allowed=kernels_allowed(),
            kernel=kernel,
        )
        self._seen[call.layer] = seen

        def keep(do: Tensor) -> None:
            if seen.do is None:
                seen.do = do.detach()[entry : entry + 1].clone()

        out.register_hook(keep)
        return out


@dataclass(frozen=True, slots=True)
class _Measured:
    """The sums that were measured of a stack of layers whose calls are alike, and notes on them."""

    heads: Sequence[int]
    sums: Tensor  # of `HeadSums`, (fields, layers, heads), on the device
    notes: Sequence[str]


def _stacks(seen: Mapping[Layer, _Seen]) -> list[list[_Seen]]:
    """Return the layers whose calls are alike but for their numbers, as many as fit together."""
    alike: dict[Any, list[_Seen]] = {}
    for x in seen.values():
        call, do = x.call, x.do
        assert do is not None
        tensors = tuple((y.shape, y.dtype, y.device) for y in (call.q, call.k, call.v, x.out, do))
        served = (call.is_causal, call.alignment, call.window)
        told = (*served, call.scale, call.dropout, id(call.mask))
        whose = call.layer if call.implementation == WRITTEN_OUT else call.implementation
        kind = (tensors, told, whose, x.entry, x.batch, tuple(x.allowed), x.kernel)
        alike.setdefault(kind, []).append(x)
    stacks = []
    for own in alike.values():
        q, v = own[0].call.q, own[0].call.v
        widest = max(q.shape[3], v.shape[3]) * max(q.shape[2], v.shape[1] * v.shape[3])
        most = STACKED // widest, _elements(q) // (ROWS * own[0].call.k.shape[2])
        n = max(1, min(most) // q.shape[1])
        stacks += [own[start : start + n] for start in range(0, len(own), n)]
    return stacks


def _elements(like: Tensor) -> int:
    return ELEMENTS_OF_CPU if like.device.type == "cpu" else ELEMENTS


def _measured(stack: Sequence[_Seen], heads: int | tuple[int, ...] | None) -> _Measured:
    """Return what is found of layers that are alike, whose gradients have come."""
    call = stack[0].call
    count, group = call.q.shape[1], call.q.shape[1] // call.k.shape[1]
    own = heads_of(heads, count)
    with torch.no_grad(), products_in_binary32(), torch.autocast(call.q.device.type, enabled=False):
        q, k, v = (torch.cat([getattr(x.call, name) for x in stack]) for name in "qkv")
        do = torch.cat([x.do for x in stack if x.do is not None])
        out = torch.cat([x.out for x in stack])
        dq, r, kernel = _row_sums(stack, q, k, v, do)
        inputs, of_q = None, None
        if own != tuple(range(count)):
            of_q = torch.tensor(own, device=q.device)
            inputs = v.transpose(1, 2).flatten(2) if q.shape[2] == k.shape[2] else None
            q, do, out, dq, r = (x[:, of_q] for x in (q, do, out, dq, r))
            k, v = (x[:, of_q // group] for x in (k, v))
        given = HeadTensors(
            q=q,
            k=k,
            v=v,
            do=do,
            r=r,
            dq=dq,
            out=out,
            scale=call.scale,
            is_causal=call.is_causal,
            alignment=call.alignment,
            window=call.window,
            mask=_mask(call.mask, stack[0].entry, of_q),
            inputs=inputs,
        )
        sums = head_sums(given, _elements(call.q))
        table = torch.stack(list(sums)).double()
    width = extended_width(call.q.shape[-1], call.v.shape[-1])
    notes = [
        f"layer {x.call.layer.number}: SDPA takes {x.kernel} for {call.q.shape[-1]} features and"
        f" {kernel} for {width}, whose row sums these are"
        for x in stack
        if x.kernel != kernel
    ]
    return _Measured(own, table, notes)


def _finished(call: Call, sums: Any) -> Any:
    """Return numbers (fields, heads) of sums (fields, heads), arrays of NumPy."""
    with np.errstate(all="ignore"):  # a look that is not finite is left out
        found = numbers_of_sums(HeadSums(*sums), call.q.shape[2])
    if call.dropout:  # the exact output drops nothing
        found = found._replace(gain=found.gain + float("nan"))
    return np.stack(found)


def _row_sums(
    stack: Sequence[_Seen], q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> tuple[Tensor, Tensor, str | None]:
    """Return dQ and the row sums of dS of layers, by the kernel itself, and its name.

    A mask of the whole batch is part of a call, which is then made for as many copies.
    """
    first, call = stack[0], stack[0].call
    features = q.shape[-1]
    is_whole = call.mask is not None and call.mask.ndim == 4 and call.mask.shape[0] > 1
    copies, at = (first.batch, first.entry) if is_whole else (1, 0)
    wide = extended(q, k, v, do)
    kernel, gradients = None, []
    devices = [q.device] if q.is_cuda else []
    with torch.enable_grad(), same_kernels(first.allowed, q), \
            torch.random.fork_rng(devices, enabled=call.dropout > 0.0):  # fmt: skip
        for n, x in enumerate(stack):
            q, k, v, do = (y[n : n + 1].expand(copies, -1, -1, -1) for y in wide)
            q.requires_grad_()
            kernel = kernel_chosen(call, q, k, v) if n == 0 else kernel
            (dq,) = torch.autograd.grad(x.call.run(q, k, v), q, do)
            gradients.append(dq[at : at + 1])
    dq = torch.cat(gradients)
    r = dq[..., features].to(torch.promote_types(dq.dtype, torch.float32)) / call.scale
    return dq[..., :features], r, kernel


def _mask(mask: Tensor | None, entry: int, heads: Tensor | None) -> Tensor | None:
    """Return what a mask says of heads of a batch entry; it broadcasts to (N, T, S)."""
    if mask is not None and mask.ndim == 4:
        mask = mask[entry if mask.shape[0] > 1 else 0]
    if mask is not None and heads is not None and mask.ndim == 3 and mask.shape[0] > 1:
        mask = mask[heads]
    return mask
