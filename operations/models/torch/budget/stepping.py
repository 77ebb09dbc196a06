"""`Step`: a recorded step of a model again, forward and backward, operation by operation, each in
an arithmetic that is chosen.

All values between operations are in binary64. An operation is computed

exact       in binary64, its casts too (`widened.Widened`).
"own"       as the model does. On inputs that its types hold, that is the model's function itself.
            On others it is the exact result plus the error that the function makes on the nearest
            inputs that they hold: y = f(x) + (own(r(x)) - f(r(x))), r rounding to the types of the
            inputs. So an operation's error is that of its own roundings, its result's among them,
            and the rounding of an input belongs to the operation that made it.
"fp32"      as "own", by the model's function in binary32 with all its casts.
a plan      as one of our plans of the operation has it (`emulating`), by the same rule.

The backward of an operation is the derivative that autograd gives of its function: in binary64 of
the exact one, and of the model's by the same rule, with the gradients of its results rounded to
their types. Where a value is read more than once, its gradients are added in the order of autograd,
the last reader's first; that sum is an operation of its own, `SUMS`. With all in "own" the step is
the model's.
"""

from collections.abc import Mapping
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from roundscope.events.plan import BasePlan
from roundscope.operations.models.tape import PARAMETER, Tape, refs
from roundscope.operations.models.torch.comparing.emulating import emulated, emulated_gradients
from roundscope.operations.models.torch.comparing.widened import Widened
from roundscope.operations.models.torch.recording.scopes import plain_path

Way: TypeAlias = Literal["own", "fp32"] | BasePlan
SUMS = -1  # the number of the sums of gradients among entries
Known: TypeAlias = Mapping[int, Tensor]


class NotRepeatable(ValueError):
    """An operation that cannot run in binary64."""


class Ran(NamedTuple):
    """A function that ran with autograd: its inputs by value, and its outputs."""

    inputs: dict[int, Tensor]
    outputs: list[Tensor]


class Outcome(NamedTuple):
    """What a step ended with, in binary64.

    values      every value of the tape
    gradients   those of the parameters by value
    passed      those of the values between operations
    """

    values: dict[int, Tensor]
    gradients: dict[int, Tensor]
    passed: dict[int, Tensor]


class Step:
    """A recorded step of a model, which runs again."""

    def __init__(self, tape: Tape, model: nn.Module) -> None:
        self.tape = tape
        by_name = {
            f"{PARAMETER}{plain_path(path)}": x
            for path, x in model.named_parameters(remove_duplicate=False)
        }
        self.parameters = {
            v: by_name[value.name] for v, value in enumerate(tape.values) if value.name in by_name
        }
        self.used: dict[int, tuple[int, ...]] = {}  # parameters that an entry reads by itself
        self.read: dict[int, set[int]] = {}  # all values that it reads, once these are known
        self.start = {
            v: x.array.double() if x.array.is_floating_point() else x.array
            for v, x in enumerate(tape.values)
            if v not in tape.made_by and x.array is not None
        }
        self.narrow = {v: _cast(x, self.dtype(v)) for v, x in self.start.items()}
        self.flows = {v for v, x in self.parameters.items() if x.requires_grad}
        self.kept: dict[int, list[_Node]] = {}  # entries that ran, of runs that are often repeated
        self._find_flows()

    def _find_flows(self) -> None:
        """Run in binary64, and find out which parameters an entry reads and what has gradients."""
        known = dict(self.start)
        for entry in self.tape.entries:
            node = _Node(self, entry.number, known, None)
            known |= zip(entry.outputs, node.results, strict=True)
            node.known = {v: known[v] for v in self.reads(entry.number)}
            self.kept[entry.number] = [node]
            if self.flows & node.known.keys():
                self.flows |= {v for v in entry.outputs if known[v].is_floating_point()}

    def reads(self, number: int) -> set[int]:
        """Return the values that an entry reads, the parameters of its module among them."""
        found = self.read.get(number)
        if found is None:
            own = self.used.get(number, tuple(self.parameters))
            found = {*refs(self.tape.entries[number].arguments), *own}
            if number in self.used:
                self.read[number] = found
        return found

    def run(
        self,
        ways: Mapping[int, Way],
        back: Mapping[int, Way] | None = None,
        *,
        end: int | None = None,
        keep: bool = False,
    ) -> Outcome:
        """Return the step with some entries in another arithmetic than binary64.

        Args:
            ways: That of the forward by the number of the entry.
            back: That of the backward, `SUMS` for the sums of gradients; by default that of the
                forward.
            end: The value whose gradients are computed; None for no backward.
            keep: Whether other runs take from this one what is the same in them.
        """
        back = ways if back is None else back
        known, nodes = dict(self.start), []
        for entry in self.tape.entries:
            number = entry.number
            node = _Node(self, number, known, ways.get(number), back.get(number))
            node = next((x for x in self.kept[number] if x.is_like(node)), node)
            nodes.append(node)
            known |= zip(entry.outputs, node.results, strict=True)
        if keep:
            for node in nodes:
                self.kept[node.number].append(node)
        if end is None:
            return Outcome(known, {}, {})
        return Outcome(known, *self._backward(nodes, end, known[end], back.get(SUMS)))

    def _backward(
        self, nodes: "list[_Node]", end: int, loss: Tensor, sums: Way | None
    ) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        waiting: dict[int, list[Tensor]] = {end: [torch.ones_like(loss)]}
        passed: dict[int, Tensor] = {}
        for node in reversed(nodes):
            outputs = self.tape.entries[node.number].outputs
            given = [
                self._summed(v, waiting.pop(v), sums) if v in waiting else None for v in outputs
            ]
            if all(x is None for x in given):
                continue
            passed |= {v: x for v, x in zip(outputs, given, strict=True) if x is not None}
            for v, x in node.backward(given).items():
                waiting.setdefault(v, []).append(x)
        found = {v: self._summed(v, x, sums) for v, x in waiting.items()}
        return {v: found[v] for v in self.parameters if v in found}, passed

    def _summed(self, value: int, parts: list[Tensor], way: Way | None) -> Tensor:
        """Return the sum of gradients of a value, in its type, in binary32 or in binary64."""
        if way is None or len(parts) == 1:
            return reduce(torch.add, parts)
        dtype = torch.float32 if way == "fp32" else self.dtype(value)
        narrow = [x.to(dtype) for x in parts]
        near = reduce(torch.add, [x.double() for x in narrow])
        return _moved(reduce(torch.add, parts), reduce(torch.add, narrow).double(), near)

    def dtype(self, value: int) -> torch.dtype:
        """Return the type that a value has in the model."""
        found: torch.dtype = getattr(torch, self.tape.values[value].dtype)
        return found

    def ran(self, number: int, known: Known, dtype: torch.dtype | None) -> Ran:
        """Run an entry with autograd.

        Args:
            number: It.
            known: The values that it reads, in the types in which it gets them.
            dtype: The type in which everything is computed; None for the model's own code.

        Raises:
            NotRepeatable: The function cannot run so.
        """
        entry, runner = self.tape.entries[number], self.tape.runners[number]
        inputs: dict[int, Tensor] = {}

        def leaf(v: int) -> Tensor:
            if v not in inputs:
                x = known[v].detach()
                inputs[v] = x.requires_grad_(v in self.flows and x.is_floating_point())
            return inputs[v]

        given = entry.filled(leaf)
        try:
            if dtype is None:
                inputs |= {v: self.parameters[v] for v in self.used[number] if v not in inputs}
                return Ran(inputs, runner(*given, grad=True))
            reads = self.used.get(number, tuple(self.parameters))
            by_id = {id(self.parameters[v]): v for v in reads}
            for v in by_id.values():
                leaf(v)
            stands_for = {i: inputs[v] for i, v in by_id.items()}
            with Widened(dtype, stands_for) as mode, torch.compiler.set_stance("force_eager"):
                outputs = runner(*given, grad=True, is_plain=True)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            what = "again with gradients" if dtype is None else f"in {dtype}"
            raise NotRepeatable(
                f"{entry.title} ({entry.function}) cannot run {what}: {error}"
            ) from error
        self.used.setdefault(number, tuple(by_id[i] for i in by_id if i in mode.used))
        return Ran(inputs, outputs)


class _Node:
    """An entry of a step that ran, and whose gradients can be computed."""

    def __init__(
        self, step: Step, number: int, known: Known, way: Way | None, back: Way | None = None
    ) -> None:
        self.step, self.number, self.way, self.back = step, number, way, back
        self.known = {v: known[v] for v in step.reads(number)}

    def is_like(self, other: "_Node") -> bool:
        """Return whether another entry computes the same of the same tensors."""
        return (
            self.way == other.way
            and self.back == other.back
            and all(x is other.known[v] for v, x in self.known.items())
        )

    @cached_property
    def results(self) -> list[Tensor]:
        return self.forward()

    @cached_property
    def wide(self) -> Ran:
        return self.step.ran(self.number, self.known, torch.float64)

    @cached_property
    def rounded(self) -> dict[int, Tensor]:
        """What it reads in the types in which the model has it."""
        return {
            v: self.step.narrow[v] if self.is_given(v) else _cast(x, self.step.dtype(v))
            for v, x in self.known.items()
        }

    @cached_property
    def widened(self) -> dict[int, Tensor]:
        """The same in binary64."""
        return {
            v: self.known[v] if self.is_given(v) else _cast(x, torch.float64)
            for v, x in self.rounded.items()
        }

    def is_given(self, value: int) -> bool:
        """Return whether a value is one with which the step starts, in the type of the model."""
        return self.known[value] is self.step.start.get(value)

    @cached_property
    def own(self) -> Ran:
        return self.step.ran(self.number, self.rounded, None)

    @cached_property
    def single(self) -> Ran:
        known = {v: _cast(x, torch.float32) for v, x in self.known.items()}
        return self.step.ran(self.number, known, torch.float32)

    def is_held(self, way: Way) -> bool:
        """Return whether the types of an arithmetic hold what it reads."""
        return way != "fp32" and self.is_narrow

    @cached_property
    def is_narrow(self) -> bool:
        """Return whether the operation's inputs survive rounding to the model's types unchanged."""
        return all(_equal(x, self.known[v]) for v, x in self.widened.items())

    def near(self, way: Way) -> Ran:
        """Return what it computes in binary64 of what it reads, rounded to these types."""
        if self.is_held(way):
            return self.wide
        return self.wide_single if way == "fp32" else self.wide_rounded

    @cached_property
    def wide_rounded(self) -> Ran:
        return self.step.ran(self.number, self.widened, torch.float64)

    @cached_property
    def wide_single(self) -> Ran:
        known = {v: _cast(_cast(x, torch.float32), torch.float64) for v, x in self.known.items()}
        return self.step.ran(self.number, known, torch.float64)

    @property
    def results_rounded(self) -> list[Tensor]:
        """The results in its arithmetic, in binary64, on what it reads rounded to its types."""
        if isinstance(self.way, BasePlan):
            entry = self.step.tape.entries[self.number]
            return emulated(entry, self.way, self.widened)
        low = self.own if self.way == "own" else self.single
        return [_cast(x.detach(), torch.float64) for x in low.outputs]

    def forward(self) -> list[Tensor]:
        """Return the outputs in binary64."""
        if self.way is None:
            return [x.detach() for x in self.wide.outputs]
        own = self.results_rounded
        if self.is_held(self.way):
            return own
        near = self.near(self.way).outputs
        if [x.shape for x in self.wide.outputs] != [x.shape for x in own]:
            self.known = self.widened  # as of tokens that go to other experts: no exact result
            del self.wide
            self.__dict__.pop("is_narrow", None)
            return own
        return [
            _moved(x.detach(), y, z.detach())
            for x, y, z in zip(self.wide.outputs, own, near, strict=True)
        ]

    def backward(self, given: list[Tensor | None]) -> dict[int, Tensor]:
        """Return the gradients of what it reads, in binary64, from those of its outputs."""
        if self.back is None:
            return _gradients(self.wide, given)
        entry = self.step.tape.entries[self.number]
        types = [
            torch.float32 if self.back == "fp32" else self.step.dtype(v) for v in entry.outputs
        ]
        narrow = [
            None if x is None else _cast(x, dtype) for x, dtype in zip(given, types, strict=True)
        ]
        again = [None if x is None else x.double() for x in narrow]
        if isinstance(self.back, BasePlan):
            found = emulated_gradients(entry, self.back, self.widened, again)
        else:
            low = self.own if self.back == "own" else self.single
            if [x.shape for x in low.outputs] != [x.shape for x in self.wide.outputs]:
                return _gradients(self.wide, given)  # whose own backward is of other results
            found = {v: x.double() for v, x in _gradients(low, narrow).items()}
        pairs = zip(given, again, strict=True)
        if self.is_held(self.back) and all(
            x is None or y is None or _equal(x, y) for x, y in pairs
        ):
            return found
        exact, near = _gradients(self.wide, given), _gradients(self.near(self.back), again)
        return {v: _moved(exact[v], x, near[v]) for v, x in found.items() if v in exact}


def _gradients(ran: Ran, given: list[Any]) -> dict[int, Tensor]:
    """Return the gradients of the inputs of a function that ran."""
    pairs = [
        (x, g) for x, g in zip(ran.outputs, given, strict=True) if g is not None and x.requires_grad
    ]
    inputs = {v: x for v, x in ran.inputs.items() if x.requires_grad}
    if not pairs or not inputs:
        return {}
    found = torch.autograd.grad(
        [x for x, _ in pairs],
        list(inputs.values()),
        [g for _, g in pairs],
        retain_graph=True,
        allow_unused=True,
    )
    return {v: g.detach() for v, g in zip(inputs, found, strict=True) if g is not None}


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floating-point numbers in a type; others as they are."""
    return x.to(dtype) if x.is_floating_point() else x


def _equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors have the same numbers, NaN equal to NaN."""
    if x is y or torch.equal(x, y):
        return True
    if not bool((x != x).any()):
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())


def _moved(exact: Tensor, own: Tensor, near: Tensor) -> Tensor:
    """Return exact + (own - near), and `own` where one of the two is not finite and they differ."""
    if not own.is_floating_point():
        return own
    off = own - near
    if bool(torch.isfinite(off).all()):
        return torch.where(off == 0, exact, exact + off)
    same = (own == near) | ((own != own) & (near != near))
    finite = torch.isfinite(own) & torch.isfinite(near)
    return torch.where(same, exact, torch.where(finite, exact + (own - near), own))
