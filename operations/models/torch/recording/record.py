"""`record`: the operations of one run of a PyTorch model, as a tape that can run again.

A module that is an operation is recorded as one entry, attention by
`attention.torch.calls.intercept`, and every other call of a function of PyTorch by a
`TorchFunctionMode`. The model computes what it computes without it, so no bit of it changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily

from roundscope.attention.torch.call import Call
from roundscope.attention.torch.calls import intercept
from roundscope.attention.torch.discovery import attention_layers
from roundscope.attention.torch.fast_path import OFF
from roundscope.emu.shown import shown
from roundscope.operations.models.tape import UNKNOWN, Tape, leaves
from roundscope.operations.models.torch.recording.ended import ended
from roundscope.operations.models.torch.recording.recorder import Pass, Recorder
from roundscope.operations.models.torch.recording.refusals import (
    Refused,
    active_dropout,
    check_rows,
)
from roundscope.operations.models.torch.recording.scopes import (
    GLOBALS,
    claims,
    compiled,
    compiled_function,
    plain_path,
    wrap,
)
from roundscope.operations.models.torch.side import (
    Side,
    called,
    check_logprobs,
    check_loss,
    check_tokens,
    checked_result,
    tokens_of,
)

SETTINGS = ("eps", "variance_epsilon", "attention_scaling", "approximate")
# of norms, of tables of angles, and of gelu
OF_CALLS = ("is_causal", "scale", "dropout", "window", "softcap")


@contextmanager
def _without_modes() -> Iterator[None]:
    """Take our function modes away, so that what was compiled runs as it does without them."""
    ours = (
        "roundscope.operations.models.torch.recording.recorder",
        "roundscope.attention.torch.calls",
    )
    others = [m for m in _get_current_function_mode_stack() if type(m).__module__ not in ours]
    with ExitStack() as stack:
        for _ in _get_current_function_mode_stack():
            stack.enter_context(_pop_mode_temporarily())
        for mode in others:
            stack.enter_context(mode)
        yield


def _alone(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _without_modes():
        return inner(*args, **kwargs)


@contextmanager
def recording(model: nn.Module, name: str = "model", is_served: bool = True) -> Iterator[Recorder]:
    """Record what a model computes in this context.

    Args:
        model: It.
        name: What an error message calls it.
        is_served: Whether the model runs like this elsewhere too, without gradients, so that a
            warning says where PyTorch would have taken its fast path of `nn.MultiheadAttention`.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: It has active dropout, so that no run of it repeats.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name}: {shown(model)}, must be a torch.nn.Module")
    for path, module in model.named_modules():
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise Refused(f"{name}: {active_dropout(path or type(module).__name__, module.p)}")
        if function := compiled_function(module):
            raise Refused(
                f"{name}: the function {f'{path}.{function}'.lstrip('.')!r} is compiled by itself,"
                " and while it is recorded it would run operation by operation, with other bits;"
                " compile its module in its place: torch.compile(module)"
            )
    named: list[tuple[str, Tensor]] = [*model.named_parameters(remove_duplicate=False)]
    named += [*model.named_buffers(remove_duplicate=False)]
    recorder = Recorder({id(x): plain_path(path) for path, x in reversed(named)})
    seen = list(claims(model))

    def claimed(
        path: str,
        operation: str,
        kind: str,
        bare: nn.Module,
        settings: Mapping[str, Any],
        inner: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if recorder.is_silent:
            return inner(*args, **kwargs)
        if (
            operation == "embedding"
            and args
            and (table := getattr(bare, "weight", None)) is not None
        ):
            with recorder.silent():
                check_rows(path, args[0], table)
        note = "" if operation != UNKNOWN else "it is compiled, so its operations are not seen"
        return recorder.kept(
            operation,
            kind,
            partial(_alone, inner),
            args,
            kwargs,
            module=path,
            held=dict(bare.named_parameters(recurse=False)),
            settings=settings,
            note=note,
        )

    def within(path: str, inner: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.path.append(path)
        try:
            return inner(*args, **kwargs)
        finally:
            recorder.path.pop()

    def attended(call: Call) -> Tensor:
        if call.dropout:
            raise active_dropout(call.layer.name, call.dropout)

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return call.run(q, k, v)

        name = plain_path(call.layer.name)
        inputs = (call.q, call.k, call.v)
        settings = {n: getattr(call, n) for n in OF_CALLS}
        held = {n: x for n in ("mask", "sinks") if isinstance(x := getattr(call, n), Tensor)}
        return recorder.kept(  # type: ignore[no-any-return]
            "attention",
            call.implementation,
            run,
            inputs,
            {},
            module=name,
            held=held,
            settings=settings,
            note=OFF if is_served and call.is_fast_path_off else "",
        )

    with ExitStack() as stack:
        # a copy of the model has these hooks too

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module is model:
                first = args[0] if args and isinstance(args[0], Tensor) else None
                recorder.passes.append(Pass(tokens_of(kwargs if first is None else first)))
                recorder.is_within = True
                recorder.begin_with([*leaves((args, kwargs))])

        def end(module: nn.Module, args: Any, out: Any) -> None:
            if module is model:
                recorder.passes[-1].out = out
                recorder.is_within = False

        open_paths = {path for path, _, operation in seen if operation is None}
        for path, module, operation in seen:
            if operation is None:
                stack.callback(wrap(module, partial(within, plain_path(path))))
            else:
                bare, kind = compiled(module) or module, _computed_by(module)
                told = _settings_of(bare)
                around = partial(claimed, plain_path(path), operation, kind, bare, told)
                stack.callback(wrap(module, around))
        stack.callback(model.register_forward_pre_hook(begin, with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(end).remove)
        for name, operation in GLOBALS.items():
            for file in {sys.modules[type(module).__module__] for _, module, _ in seen}:
                if callable(inner := getattr(file, name, None)):
                    stack.callback(setattr, file, name, inner)
                    setattr(file, name, partial(_replaced, recorder, operation, name, inner))
        if attending := [x.name for x in _attending(model) if x.name in open_paths]:
            stack.enter_context(intercept(model, attended, modules=attending, is_told=is_served))
        stack.enter_context(recorder)
        yield recorder


def _settings_of(module: nn.Module) -> dict[str, Any]:
    """Return numbers and words that a module has beside its parameters, by name."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        if isinstance(x := getattr(module, name, None), float | str):
            found[name] = x
    if isinstance(frequencies := getattr(module, "inv_freq", None), Tensor):
        found["frequencies"] = frequencies.tolist()
    return found


def _computed_by(module: nn.Module) -> str:
    """Return the class of a module, with the name of what took the place of its forward."""
    inner = compiled(module)
    name = type(module if inner is None else inner).__name__
    own = module.__dict__.get("forward")
    if inner is not None:
        return f"{name} (compiled)"
    return name if own is None else f"{name} ({getattr(own, '__name__', type(own).__name__)})"


def _replaced(
    recorder: Recorder, operation: str, name: str, inner: Any, *args: Any, **kwargs: Any
) -> Any:
    if recorder.is_silent:
        return inner(*args, **kwargs)
    return recorder.kept(operation, name, inner, args, kwargs)


def _attending(model: nn.Module) -> list[Any]:
    try:
        return list(attention_layers(model))
    except ValueError:
        return []


def record(side: Side, name: str = "run") -> Tape:
    """Run a model as a side says, and return the tape.

    Args:
        side: It.
        name: What the run is called in an error message.

    Raises:
        TypeError: The model or the inputs are of another type.
        ValueError: The model, `run` or `logprobs` raised an error, or returned what cannot be
            compared.
    """
    inputs, model = side.inputs, side.model
    if not isinstance(inputs, Tensor | Mapping):
        raise TypeError(
            f"{name}: inputs {shown(inputs)}: must be a tensor or a dictionary of arguments"
        )
    check_tokens(name, inputs)
    tokens = tokens_of(inputs)
    with (
        torch.no_grad(),
        recording(model, f"{name}: model", is_served=side.loss is None) as recorder,
    ):
        if side.run is not None:
            out = called(name, "run=", side.run, model, inputs)
        elif isinstance(inputs, Tensor):
            out = called(name, "the model", model, inputs)
        else:
            out = called(name, "the model", model, **inputs)
        with _without_modes():
            result = checked_result(name, out, None if side.run is None else tokens)
        logprobs = None
        if side.logprobs is not None:
            if tokens is None:
                raise ValueError(
                    f"{name}: logprobs= needs tokens of whole numbers among the inputs"
                )
            logprobs = called(name, "logprobs=", side.logprobs, result, tokens)
            with _without_modes():
                check_logprobs(name, logprobs, tokens)
        loss = None
        if side.loss is not None:
            loss = called(name, "loss=", side.loss, out, inputs)
            with _without_modes():
                check_loss(name, loss)
    try:
        return ended(recorder, model, result, tokens, logprobs, side.row, loss)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
