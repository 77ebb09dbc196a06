"""`record`: the operations of one run of a PyTorch model, as a tape that can run again.

A module that is an operation is recorded as one entry, attention by
`attention.torch.calls.intercept`, and every other call of a function of PyTorch by a
`TorchFunctionMode`. The model computes what it computes without it, so no bit of it changes.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode_temporarily,
    resolve_name,
)

from roundscope.attention.models.capture_file import file_given
from roundscope.attention.torch.call import Call
from roundscope.attention.torch.calls import intercept
from roundscope.attention.torch.discovery import attention_layers
from roundscope.emu.shown import shown
from roundscope.emu.testing.foreign import raised
from roundscope.operations.models.tape import (
    EXACT,
    INPUT,
    PARAMETER,
    UNKNOWN,
    Entry,
    Ref,
    Runner,
    Tape,
    Value,
    leaves,
    mapped,
    refs,
)
from roundscope.operations.models.tape_file import LIMIT, save_tape
from roundscope.operations.models.torch.arrays import TensorArrays, dtype_named
from roundscope.operations.models.torch.memory import (
    SHARED,
    casts,
    put_places,
    run_again,
    shared_places,
    writes,
)
from roundscope.operations.models.torch.refusals import (
    Refused,
    active_dropout,
    check_call,
    check_rows,
)
from roundscope.operations.models.torch.scopes import (
    GLOBALS,
    claims,
    compiled,
    compiled_function,
    operation_named,
    plain_path,
    wrap,
)

RUN = "run= a function that returns the model's logits"
LOGPROBS = "logprobs= a function that computes them from the logits by functions of PyTorch"
LOSS = "loss= a function that computes it by functions of PyTorch"
SETTINGS = ("eps", "variance_epsilon", "attention_scaling", "approximate")
# of norms, of tables of angles, and of gelu
OF_CALLS = ("is_causal", "scale", "dropout", "window", "softcap")


@dataclass(frozen=True, slots=True)
class Side:
    """A run of a model, which `compare` repeats and records.

    Attributes:
        model: The model.
        inputs: Its tokens (B, T) as a tensor of whole numbers, or a dictionary of its arguments.
        run: A function of (model, inputs) that runs the model and returns what it returns, or
            logits; by default the model is called once.
        logprobs: A function of (logits, tokens) that computes the log-probabilities as this side
            does; by default they are computed from the logits in binary64.
        row: Which entry of the batch is compared, if the other side has a smaller batch.
        loss: A function of (what the model returned, inputs) that returns its loss, of which
            `error_budget` says how exact it and its gradients are.
    """

    model: nn.Module
    inputs: Any
    run: Callable[[nn.Module, Any], Any] | None = None
    logprobs: Callable[[Tensor, Tensor], Tensor] | None = None
    row: int = 0
    loss: Callable[[Any, Any], Tensor] | None = None


@dataclass(slots=True)
class Pass:
    """A forward pass: the tokens that it read, None if it read none, and what it returned."""

    tokens: Tensor | None
    out: Any = None


class Recorder(TorchFunctionMode):
    """The tape of what runs while it is entered."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names  # the paths of parameters and buffers by their identity
        self.entries: list[Entry] = []
        self.values: list[Value] = []
        self.runners: dict[int, Runner] = {}
        self.known: dict[tuple[int, int, int], int] = {}
        self.held: list[Tensor] = []  # so that no other tensor gets the identity of one
        self.writes: Counter[int] = Counter()  # into tensors that do not count them themselves
        self.latest: dict[int, int] = {}  # the last value of a tensor by its identity
        self.sharing: defaultdict[int, dict[int, Tensor]] = defaultdict(dict)  # by their memory
        self.path: list[str] = [""]
        self.passes: list[Pass] = []
        self.outside: set[int] = set()  # entries that no forward pass of the model made
        self.inputs, self.is_silent, self.is_within = 0, False, False

    @property
    def step(self) -> int:
        """The number of the forward pass that runs, or ran last."""
        return max(len(self.passes) - 1, 0)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_silent:
            return func(*args, **kwargs)
        name = resolve_name(func) or getattr(func, "__name__", str(func))
        if self.is_within:
            with self.silent():
                check_call(name.rpartition(".")[2], self.path[-1], args, kwargs)
        return self.kept(operation_named(name), name, func, args, kwargs)

    def kept(
        self,
        operation: str,
        function: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: str | None = None,
        held: Mapping[str, Tensor] | None = None,
        settings: Mapping[str, Any] | None = None,
        note: str = "",
    ) -> Any:
        """Run a function, and keep it as an entry if it returned a tensor."""
        with self.silent():
            given = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor)]
            before = [self._key(x) for x in given]
            arguments = mapped(self._ref, (args, kwargs))
            own = {name: self._ref(x) for name, x in (held or {}).items()}
            out = func(*args, **kwargs)
            if writes(function, kwargs):
                self.writes[id(args[0])] += 1
            now = [self._key(x) for x in given]
            written = [i for i, key in enumerate(before) if now[i] != key]
            outputs = [x for x in leaves(out) if isinstance(x, Tensor)]
            outputs += [given[i] for i in written if all(given[i] is not x for x in outputs)]
            if all(self._key(x) in self.known for x in outputs):
                return out
            if not any(x.is_floating_point() for x in outputs):
                operation = EXACT
            number = len(self.entries)
            entry = Entry(
                number=number,
                operation=operation,
                function=function,
                module=self.path[-1] if module is None else module,
                step=self.step,
                arguments=arguments,
                outputs=tuple(self._made(x) for x in outputs),
                held=own,
                settings=settings or {},
                note=note,
            )
            self._append(entry, partial(run_again, func, tuple(written), casts()))
            for i in written:
                self._state(given[i])
                self._write_through(given[i])
            return out

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let functions run unseen."""
        self.is_silent, was_silent = True, self.is_silent
        try:
            yield
        finally:
            self.is_silent = was_silent

    def _append(self, entry: Entry, runner: Runner) -> None:
        self.entries.append(entry)
        if not self.is_within:
            self.outside.add(entry.number)
        self.runners[entry.number] = runner

    def _state(self, x: Tensor) -> None:
        """Let a buffer that is written be an input, which may differ, and no weight."""
        if (path := self.names.pop(id(x), None)) is None:
            return
        for number, value in enumerate(self.values):
            if value.name == f"{PARAMETER}{path}":
                self.values[number] = replace(value, name=f"{INPUT}{path}")

    def _write_through(self, x: Tensor) -> None:
        """Keep what a write into a tensor changed in others that share its memory: views of it,
        what it is a view of, and other views of that.
        """
        for other in list(self.sharing[_memory(x)].values()):
            if other is x or (self._key(other) in self.known and not other.is_inference()):
                continue
            places = shared_places(other, x)
            if not len(places[0]):
                continue
            before = self.latest[id(other)]
            self._state(other)
            self.writes[id(other)] += 1
            number = len(self.entries)
            entry = Entry(
                number=number,
                operation=EXACT,
                function=SHARED,
                module=self.path[-1],
                step=self.step,
                arguments=([Ref(before), Ref(self.known[self._key(x)]), *places], {}),
                outputs=(self._made(other),),
            )
            self._append(entry, put_places)

    def _key(self, x: Tensor) -> tuple[int, int, int]:
        return id(x), 0 if x.is_inference() else x._version, self.writes[id(x)]

    def _ref(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        key = self._key(x)
        if key not in self.known:
            path = self.names.get(id(x))
            self.inputs += path is None
            name = f"{INPUT}{self.inputs}" if path is None else f"{PARAMETER}{path}"
            kept = x.detach()  # a parameter is not written by a forward pass, but a buffer may be
            self._add(x, name, kept if isinstance(x, nn.Parameter) else kept.clone())
        return Ref(self.known[key])

    def begin_with(self, given: Sequence[Any]) -> None:
        """Let whole numbers that the model is given be inputs, whatever has made them.

        A token that was sampled from logits is one.
        """
        with self.silent():
            for x in given:
                if isinstance(x, Tensor) and not x.is_floating_point() and id(x) not in self.names:
                    self.inputs += 1
                    self._add(x, f"{INPUT}{self.inputs}", x.detach().clone())

    def _made(self, x: Tensor) -> int:
        return self._add(x, "", x.detach().clone())

    def _add(self, x: Tensor, name: str, array: Tensor) -> int:
        self.held.append(x)
        number = self.known[self._key(x)] = self.latest[id(x)] = len(self.values)
        self.sharing[_memory(x)][id(x)] = x
        value = Value(name=name, dtype=dtype_named(x), shape=tuple(x.shape), array=array)
        self.values.append(value)
        return number

    def value_of(self, x: Tensor, what: str = "the result", repair: str = RUN) -> int:
        """Return the value that a tensor is; what, repair: for the message if it is none.

        Raises:
            ValueError: No entry of the tape has made it.
        """
        with self.silent():
            key = self._key(x)
        if key not in self.known:
            raise ValueError(
                f"{what}: no function of PyTorch that was seen has made it; give {repair}"
            )
        return self.known[key]


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


@contextmanager
def _without_modes() -> Iterator[None]:
    """Take our function modes away, so that what was compiled runs as it does without them."""
    ours = ("roundscope.operations.models.torch.recording", "roundscope.attention.torch.calls")
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
def recording(model: nn.Module, name: str = "model") -> Iterator[Recorder]:
    """Record what a model computes in this context; name: what an error message calls it.

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
        )

    with ExitStack() as stack:
        # a copy of the model has these hooks too

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if module is model:
                first = args[0] if args and isinstance(args[0], Tensor) else None
                recorder.passes.append(Pass(_tokens(kwargs if first is None else first)))
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
            stack.enter_context(intercept(model, attended, modules=attending))
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
    _check_tokens(name, inputs)
    tokens = _tokens(inputs)
    with torch.no_grad(), recording(model, f"{name}: model") as recorder:
        if side.run is not None:
            out = _called(name, "run=", side.run, model, inputs)
        elif isinstance(inputs, Tensor):
            out = _called(name, "the model", model, inputs)
        else:
            out = _called(name, "the model", model, **inputs)
        with _without_modes():
            result = _checked_result(name, out, None if side.run is None else tokens)
        logprobs = None
        if side.logprobs is not None:
            if tokens is None:
                raise ValueError(
                    f"{name}: logprobs= needs tokens of whole numbers among the inputs"
                )
            logprobs = _called(name, "logprobs=", side.logprobs, result, tokens)
            with _without_modes():
                _check_logprobs(name, logprobs, tokens)
        loss = None
        if side.loss is not None:
            loss = _called(name, "loss=", side.loss, out, inputs)
            with _without_modes():
                _check_loss(name, loss)
    try:
        return _tape(recorder, model, result, tokens, logprobs, side.row, loss)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _called(name: str, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a user's function returns.

    Raises:
        ValueError: It raised an error, which is the cause.
    """
    try:
        return function(*args, **kwargs)
    except Refused as error:
        raise Refused(f"{name}: {error}") from None
    except Exception as error:  # whatever it raises
        raise ValueError(f"{name}: {what} raised {raised(error)}") from error


def _check_tokens(name: str, inputs: Any) -> None:
    """Refuse tokens that are not whole numbers (B, T).

    Raises:
        ValueError: The tensor, or the argument `input_ids`, is something else.
    """
    is_bare = isinstance(inputs, Tensor)
    x = inputs if is_bare else inputs.get("input_ids")
    if not isinstance(x, Tensor):
        return
    is_whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    if is_whole and x.dim() == 2 and x.numel():
        return
    argument = "inputs" if is_bare else "inputs['input_ids']"
    repair = "give x[None] for one sequence" if is_whole and x.dim() == 1 else ""
    if not is_whole:
        repair = "give x.long()"
    if is_bare:
        repair += f"{', or ' if repair else 'give '}a dictionary for arguments that are no tokens"
    raise ValueError(
        f"{name}: {argument} {_kind(x)}: tokens must be whole numbers of shape (B, T)"
        + (f"; {repair}" if repair else "")
    )


def _checked_result(name: str, out: Any, tokens: Tensor | None) -> Tensor:
    """Return the logits, or the first tensor, of what a run returned.

    Args:
        name: What the run is called.
        out: What it returned.
        tokens: Of a function `run=` the tokens, each of which must have logits.

    Raises:
        ValueError: There are none.
    """
    wanted = ""
    if tokens is not None:
        b, t = tokens.shape
        wanted = f", must return logits ({b}, {t}, vocabulary), of every token"
    what = "the model" if tokens is None else "run="
    try:
        result = _result(out)
    except ValueError:
        raise ValueError(f"{name}: {what} returned {_kind(out)}{wanted or ', no tensor'}") from None
    if tokens is not None and (result.dim() != 3 or result.shape[:2] != tokens.shape):
        raise ValueError(f"{name}: run= returned {_kind(result)}{wanted}")
    return result


def _check_logprobs(name: str, logprobs: Any, tokens: Tensor) -> None:
    """Refuse what a function `logprobs=` returned if it has not a number of each token but one.

    Raises:
        ValueError: It has another type or shape.
    """
    wanted = (tokens.shape[0], tokens.shape[1] - 1)
    if not isinstance(logprobs, Tensor) or tuple(logprobs.shape) != wanted:
        raise ValueError(
            f"{name}: logprobs= returned {_kind(logprobs)}, must return a tensor {wanted}, of each"
            " token but the first its log-probability"
        )


def _check_loss(name: str, loss: Any) -> None:
    """Refuse what a function `loss=` returned if it is not one number.

    Raises:
        ValueError: It has another type or shape.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise ValueError(
            f"{name}: loss= returned {_kind(loss)}, must return a tensor of one number, the loss"
        )


def _kind(x: Any) -> str:
    """Return a tensor's type and shape in words, or another value as errors show it."""
    return f"{dtype_named(x)} {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)


def _tape(
    recorder: Recorder,
    model: nn.Module,
    result: Tensor,
    tokens: Tensor | None,
    logprobs: Tensor | None = None,
    row: int = 0,
    loss: Tensor | None = None,
) -> Tape:
    """Return what was recorded, with what it ended with."""
    value, own = recorder.value_of(result), None
    if logprobs is not None:
        own = recorder.value_of(logprobs, "the log-probabilities", LOGPROBS)
    lost = None if loss is None else recorder.value_of(loss, "the loss", LOSS)
    lengths = _lengths(recorder, tokens)
    # each token a row of the vocabulary, or each of the last ones
    has_logits = tokens is not None and result.dim() == 3 and len(result) == len(tokens)
    first = tokens.shape[1] - result.shape[1] if tokens is not None and has_logits else 0
    ends = [v for v in (value, own, lost) if v is not None]
    entries, runners = _without_unused(recorder, ends)
    return Tape(
        entries=entries,
        values=recorder.values,
        tokens=None if tokens is None else tokens.detach().cpu().numpy(),
        logits=value if has_logits and first >= 0 else None,
        logprobs=own,
        output=value,
        about=about(model, result.device),
        runners=runners,
        arrays=TensorArrays(),
        row=row,
        lengths=lengths,
        first=max(first, 0),
        loss=lost,
    )


def _lengths(recorder: Recorder, tokens: Tensor | None) -> tuple[int, ...]:
    """Return how many tokens each pass read; () if that is not known."""
    if tokens is None:
        return ()
    read = [p.tokens for p in recorder.passes if p.tokens is not None]
    if len(read) == len(recorder.passes) and sum(x.shape[1] for x in read) == tokens.shape[1]:
        return tuple(x.shape[1] for x in read)
    return (tokens.shape[1],) if len(recorder.passes) < 2 else ()


def _without_unused(
    recorder: Recorder, ends: Sequence[int]
) -> tuple[list[Entry], dict[int, Runner]]:
    """Return the entries, without those beside the model on which nothing depends.

    Such are the sampling of a token in `generate()`, and another model that runs meanwhile.
    """
    needed = {*ends}
    kept: list[Entry] = []
    for entry in reversed(recorder.entries):
        if entry.number in recorder.outside and needed.isdisjoint(entry.outputs):
            continue
        needed |= {*refs([entry.arguments, [*entry.held.values()]])}
        kept.append(entry)
    kept.reverse()
    runners = {n: recorder.runners[entry.number] for n, entry in enumerate(kept)}
    return [replace(entry, number=n) for n, entry in enumerate(kept)], runners


@contextmanager
def capture_operations(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    weights: bool = True,
    limit: int = LIMIT,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Recorder]:
    """Capture the operations of a model while it runs, and write them to a file at the end.

    The file has the inputs and results of every operation: RMSNorm, linear layers, rotary
    embeddings, attention, activations, sums, and whatever else runs. `roundscope compare` reads it.
    No bit of the model's outputs changes. All results are kept in memory until the end.

    Args:
        model: Any `nn.Module`.
        path: The safetensors file. Its folder must exist; a file of that name is replaced.
        weights: Whether the parameters are written too, without which linear layers cannot run
            again from the file.
        limit: The largest number of bytes that is written.
        tell: Told the size of the file in words before it is written.

    Yields:
        What has been recorded so far, as `entries`.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: A path that cannot be written, a file that would be too large, or a model whose
            dropout is active.
        RuntimeError: The model did not run.
    """
    file = file_given(path)
    with recording(model) as recorder:
        yield recorder
        if not recorder.passes:
            raise RuntimeError(
                "nothing was captured, and no file was written: the model did not run"
            )
        result = _whole(recorder.passes)
        with recorder.silent():
            read = _read(recorder.passes)
    save_tape(_tape(recorder, model, result, read), file, weights=weights, limit=limit, tell=tell)


def _whole(passes: Sequence[Pass]) -> Tensor:
    """Return what forward passes returned as one result.

    Where passes have logits of their last tokens only, as those of `generate()` have, the result is
    of all tokens from which on none is missing.

    Raises:
        ValueError: They are no parts of one run.
    """
    results = [_result(p.out) for p in passes]
    tokens = [p.tokens for p in passes if p.tokens is not None]
    if len(passes) > 1 and len({len(x) for x in tokens}) > 1:
        sizes = " and ".join(map(str, dict.fromkeys(len(x) for x in tokens)))
        raise ValueError(
            f"no file was written: the forward passes have batches of {sizes} rows, so they are not"
            " parts of one run; capture one of them, and generate with num_beams=1"
        )
    first = 0
    if len(tokens) == len(passes) and all(x.dim() == 3 for x in results):
        first = len(passes) - 1
        while first and results[first].shape[1] == tokens[first].shape[1]:
            first -= 1
    kept = results[first:]
    return kept[0] if len(kept) == 1 else torch.cat(kept, 1)


def _read(passes: Sequence[Pass]) -> Tensor | None:
    """Return the tokens that forward passes read, one behind the other; None if one read none."""
    tokens = [p.tokens for p in passes if p.tokens is not None]
    return torch.cat(tokens, 1) if len(tokens) == len(passes) else None


def _result(out: Any) -> Tensor:
    """Return the logits of what a model returned, or its first tensor."""
    logits = getattr(out, "logits", None)
    return logits if isinstance(logits, Tensor) else _first(out)


def _first(out: Any) -> Tensor:
    for x in leaves(out):
        if isinstance(x, Tensor):
            return x
    raise ValueError(f"the run returned {shown(type(out).__name__)}, which has no tensor")


def _tokens(inputs: Any) -> Tensor | None:
    named = {"input_ids": inputs} if isinstance(inputs, Tensor) else inputs
    x = named.get("input_ids")
    return x if isinstance(x, Tensor) and not x.is_floating_point() and x.dim() == 2 else None


def about(model: nn.Module, device: torch.device) -> dict[str, str]:
    """Return what a run's bits depend on beside its numbers: versions, device, threads."""
    found = {
        "model": type(getattr(model, "_orig_mod", model)).__name__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "device": str(device),
        "threads": str(torch.get_num_threads()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if "transformers" in sys.modules:
        found["transformers"] = sys.modules["transformers"].__version__
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
    return found
