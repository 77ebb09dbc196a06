"""`Recorder`: the tape of what runs while it is entered; each call of a function is an entry.

The functions compute what they compute without it, so no bit of a model changes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from roundscope.operations.models.tape import (
    EXACT,
    INPUT,
    PARAMETER,
    Entry,
    Ref,
    Runner,
    Value,
    leaves,
    mapped,
)
from roundscope.operations.models.torch.arrays import dtype_named
from roundscope.operations.models.torch.memory import (
    SHARED,
    casts,
    put_places,
    run_again,
    shared_places,
    writes,
)
from roundscope.operations.models.torch.recording.refusals import check_call
from roundscope.operations.models.torch.recording.scopes import operation_named

RUN = "run= a function that returns the model's logits"


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
            if writes(function, kwargs) and given:  # the first tensor, also where it has a name
                self.writes[id(given[0])] += 1
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
