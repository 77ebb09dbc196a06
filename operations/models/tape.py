"""`Tape`: the operations of one run of a model, in their order, and the values between them.

Nothing here knows of a library of arrays: what runs an operation and what changes an array come
with the tape.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

EXACT, CAST, UNKNOWN = "exact", "cast", "unknown"
PASSED = (EXACT, CAST)  # entries that belong to whatever reads their results


class Span(NamedTuple):
    """A part of an array along an axis."""

    axis: int
    start: int
    length: int


class Ref(NamedTuple):
    """The place of a value of the tape in the arguments of an entry."""

    value: int


LEAVES = frozenset({Ref, int, float, bool, str, type(None)})  # kinds that hold nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor of a run.

    Attributes:
        name: "parameter <path>", "input <number>", or "" for the result of an entry.
        dtype: The name of its type, such as "bfloat16".
        shape: Its shape.
        array: Its numbers as they were when the run made them; None if they were not kept.
        digest: The SHA-256 of its bytes, "" if it was not computed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    array: Any = None
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation of a run.

    Attributes:
        number: Its number on the tape.
        operation: Its name, such as "rms_norm"; "exact" where nothing is rounded, "cast" for a
            change of type, and "unknown" for what no name is known of.
        function: The function or the class of the module that computed it.
        module: The path of the module, "" for the model itself.
        step: The number of the forward pass.
        arguments: (args, kwargs), with a `Ref` in the place of each tensor.
        outputs: The values that it returned.
        held: What it uses beside its arguments, each with a `Ref`: the parameters of a module by
            their names, and the "mask" of attention.
        settings: Numbers and words that the operation has, such as the eps of a norm.
        note: Why it is unknown, or what else a reader must know.
    """

    number: int
    operation: str
    function: str
    module: str
    step: int
    arguments: tuple[Sequence[Any], Mapping[str, Any]]
    outputs: tuple[int, ...]
    held: Mapping[str, Ref] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether it is an operation of its own."""
        return self.operation not in PASSED

    @property
    def reads(self) -> list[int]:
        """The values of its arguments and of what it holds."""
        return refs([self.arguments, [*self.held.values()]])

    def filled(self, get: Callable[[int], Any]) -> tuple[Any, Any]:
        """Return its arguments, (args, kwargs), with get(value) in the place of each `Ref`."""
        args, kwargs = mapped(lambda x: get(x.value) if isinstance(x, Ref) else x, self.arguments)
        return args, kwargs

    @property
    def title(self) -> str:
        """The operation and its module in words; of an unknown one the function."""
        name = f"{self.operation} ({self.function})" if self.operation == UNKNOWN else ""
        return f"{name or self.operation} {self.module}".strip()


class Arrays(Protocol):
    """The functions with which a replay handles the arrays of one library."""

    def cast(self, x: Any, dtype: str) -> Any:
        """Return floating-point numbers in a type, rounded to nearest even; others as they are."""

    def part(self, x: Any, axis: int, start: int, length: int) -> Any:
        """Return a part along an axis, contiguous."""

    def put(self, x: Any, spans: Sequence[Span], part: Any) -> Any:
        """Return a copy that has other numbers in a part."""

    def shaped(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return the same numbers in another shape."""

    def joined(self, parts: Sequence[Any], axis: int) -> Any:
        """Return arrays one behind the other along an axis."""

    def nudged(self, x: Any, seed: int) -> Any:
        """Return a copy of which one number in 64 is replaced by a neighbour of its type."""

    def shifted(self, x: Any, new: Any, old: Any) -> Any:
        """Return x + new - old in the type of `new`, and `new` itself where x is `old`."""

    def numpy(self, x: Any) -> np.ndarray:
        """Return an array of NumPy with the same bits."""


PARAMETER, INPUT = "parameter ", "input "  # begin the names of values
Runner = Callable[..., list[Any]]  # of (args, kwargs); of a live model also of grad=True


@dataclass(frozen=True, kw_only=True)
class Tape:
    """The operations of one run.

    Attributes:
        entries: Them, in their order.
        values: All values, to which the refs of the entries refer.
        tokens: The tokens (B, T) that the model read; None if it read none.
        logits: The value of the logits (B, T, V); None if there are none.
        logprobs: The value of the log-probabilities that the run itself computed; None if it
            computed none.
        output: The value that the model returned, where there are no logits.
        about: Versions, device and types, in words.
        runners: For entries that can run again: a function of (args, kwargs) that returns the
            outputs.
        arrays: What is done with the arrays.
        row: Which entry of a larger batch is compared.
        lengths: How many tokens each forward pass read; () if that is not known.
        first: The position of the token that the first logits are of; the last ones are of the
            last token.
        loss: The value of the loss; None if the run has none.
    """

    entries: Sequence[Entry]
    values: Sequence[Value]
    tokens: np.ndarray | None = None
    logits: int | None = None
    logprobs: int | None = None
    output: int | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    runners: Mapping[int, Runner] = field(default_factory=dict)
    arrays: Arrays
    row: int = 0
    lengths: tuple[int, ...] = ()
    first: int = 0
    loss: int | None = None

    @cached_property
    def made_by(self) -> dict[int, int]:
        """The number of the entry that made a value."""
        return {v: e.number for e in self.entries for v in e.outputs}

    @cached_property
    def counted(self) -> list[Entry]:
        """The entries that are operations of their own."""
        return [entry for entry in self.entries if entry.is_counted]

    @cached_property
    def steps(self) -> int:
        """How many forward passes there are."""
        return 1 + max((entry.step for entry in self.entries), default=0)

    @property
    def has_default_logprobs(self) -> bool:
        """Whether its log-probabilities are computed by `compare`, from the logits."""
        return self.logprobs is None and self.logits is not None

    def numpy(self, value: int) -> np.ndarray:
        """Return a value as an array of NumPy."""
        return self.arrays.numpy(self.values[value].array)

    def needs(
        self, values: Sequence[int], within: Sequence[int] = ()
    ) -> tuple[list[int], set[int]]:
        """Return what must run for some values, back to the results of other operations.

        Args:
            values: The values.
            within: Entries that run too, though they are operations of their own.

        Returns:
            The numbers of the entries in their order, and the values that they begin with:
            results of operations that are not within, parameters and inputs.
        """
        numbers: set[int] = set()
        begin: set[int] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            number = self.made_by.get(value)
            if number is None or (self.entries[number].is_counted and number not in within):
                begin.add(value)
            elif number not in numbers:
                numbers.add(number)
                waiting += refs(self.entries[number].arguments)
        return sorted(numbers), begin

    def run(self, number: int, known: Mapping[int, Any]) -> list[Any]:
        """Run an entry again, with values that are known and else those of the tape."""

        def get(v: int) -> Any:
            return known[v] if v in known else self.values[v].array

        return self.runners[number](*self.entries[number].filled(get))


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of tuples, lists and dictionaries with its leaves changed."""
    kind = type(tree)
    if kind is tuple:  # the most frequent kinds first: budgets take trees apart a million times
        return tuple([mapped(change, x) for x in tree])
    if kind in LEAVES:
        return change(tree)
    if isinstance(tree, tuple):
        each = [mapped(change, x) for x in tree]
        return type(tree)(*each) if hasattr(tree, "_fields") else tuple(each)
    if isinstance(tree, list):
        return [mapped(change, x) for x in tree]
    if isinstance(tree, dict):
        return {name: mapped(change, x) for name, x in tree.items()}
    return change(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of a tree in their order."""
    if type(tree) in LEAVES:
        yield tree
    elif isinstance(tree, tuple | list):
        for x in tree:
            yield from leaves(x)
    elif isinstance(tree, Mapping):
        for x in tree.values():
            yield from leaves(x)
    else:
        yield tree


def refs(tree: Any) -> list[int]:
    """Return the values to which a tree refers."""
    return [x.value for x in leaves(tree) if isinstance(x, Ref)]


def within(axes: int, spans: Sequence[Span]) -> tuple[slice, ...]:
    """Return the index of a part of an array with some number of axes."""
    index = [slice(None)] * axes
    for axis, start, length in spans:
        index[axis] = slice(start, start + length)
    return tuple(index)
