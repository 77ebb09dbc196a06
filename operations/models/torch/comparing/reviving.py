"""`revived`: the operations of a file run again by functions of PyTorch, and `words_of` names them.

A function runs an operation if it gives every bit that the file has: the function of its name, the
same in another type as `torch.autocast` runs it, or a candidate, also for files of other machines.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from roundscope.attention.torch.arrays import tensor_of
from roundscope.operations.models.revival import gives, revive, run_entry
from roundscope.operations.models.tape import Entry, Runner, Tape, leaves, mapped
from roundscope.operations.models.tape_file import Named
from roundscope.operations.models.torch.arrays import TensorArrays
from roundscope.operations.models.torch.comparing.candidates import CANDIDATES
from roundscope.operations.models.torch.memory import SHARED, put_places, run_again, writes
from roundscope.operations.models.torch.recording.scopes import FUNCTIONS

# functions without a name as an operation, which depend on their arguments alone
_PURE = """sum mean var std cumsum cumprod div __truediv__ __rtruediv__ true_divide __floordiv__
    __and__ __or__ __xor__ __invert__ histc bincount one_hot nonzero sigmoid tanh exp log log1p
    expm1 sqrt rsqrt pow __pow__ __rpow__ square reciprocal cos sin erf relu softplus logsumexp
    index_add scatter_add outer prod greater less logical_and logical_or logical_not floor ceil
    round sign"""
PURE = frozenset(_PURE.split())


def words_of(tape: Tape, number: int) -> str:
    """Return the arithmetic of an entry that was recorded as a module, in words; "" for unknown."""
    found = _found(tape, tape.entries[number])
    return found[0] if found else ""


def _found(tape: Tape, entry: Entry) -> tuple[str, Runner] | None:
    """Return the first candidate that gives every bit of an entry."""
    make = CANDIDATES.get(entry.operation)
    held = {name: tape.values[ref.value].array for name, ref in entry.held.items()}
    outputs = [tape.values[v].array for v in entry.outputs]
    if make is None or any(x is None for x in (*held.values(), *outputs)):
        return None
    runs = [(words, partial(_run_named, own)) for words, own in make(held, entry.settings)]
    if cast := _autocast(tape, entry):
        name = str(cast).removeprefix("torch.")
        runs += [
            (f"{words}, in {name} by autocast", partial(own, cast=cast)) for words, own in runs
        ]
    for words, runner in runs:
        again = run_entry(tape, entry, runner)
        if again is not None and gives(tape, entry, again):
            return words, runner
    return None


def revived(tape: Tape) -> Tape:
    """Return the tape of a file with tensors, whose operations run again where they can.

    An operation can if it gives every bit that the file has of it. Functions are found by their
    names, among those that `scopes.FUNCTIONS` has.
    """
    return revive(tape, TensorArrays(), _tensor, _runners)


def _runners(tape: Tape, entry: Entry) -> Iterator[Runner]:
    """Yield what may run an entry of a file: its function, that in another type as `torch.autocast`
    runs it, and another function of the same operation, as where the file is of another machine.
    """
    if entry.function == SHARED:
        yield put_places
        return
    function = _function(entry.function)
    if function is not None:
        yield partial(_run_named, function)
        if cast := _autocast(tape, entry):
            yield partial(_run_named, function, cast=cast)
    if (function is not None or entry.module) and (chosen := _found(tape, entry)):
        yield chosen[1]


def _autocast(tape: Tape, entry: Entry) -> torch.dtype | None:
    """Return the type in which autocast may have run an entry; None if none."""
    types = {tape.values[v].dtype for v in entry.outputs}
    given = {tape.values[v].dtype for v in entry.reads}
    if types <= {"bfloat16", "float16"} and len(types) == 1 and "float32" in given:
        found: torch.dtype = getattr(torch, types.pop())
        return found
    return None


def _run_named(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    cast: torch.dtype | None = None,
) -> list[Any]:
    args, kwargs = mapped(_constant, (tuple(args), dict(kwargs)))
    given = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor)]
    out = kwargs.get("out")
    written = [n for n, x in enumerate(given) if x is out]
    if writes(getattr(function, "__name__", ""), kwargs):
        written = [0]
    return run_again(function, written, {} if cast is None else {"cpu": cast}, args, kwargs)


def _constant(x: Any) -> Any:
    if isinstance(x, Named):
        if x.kind == "dtype":
            return getattr(torch, x.words.removeprefix("torch."))
        if x.kind == "device":
            return torch.device("cpu")
        raise ValueError(f"an argument {x.words} is not in the file")
    return x


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function of PyTorch by its name, if it is one that is known."""
    first, *parts = name.split(".")
    bare = name.removesuffix(".__get__").rpartition(".")[2]
    if name == "_grouped_mm":
        return getattr(torch, name, None)
    known = bool({bare, bare.removesuffix("_")} & (FUNCTIONS.keys() | PURE))
    if first != "torch" or not known or parts[:-1] not in ([], ["Tensor"], ["nn", "functional"]):
        return None
    return getattr({0: torch, 1: Tensor, 2: F}[len(parts) - 1], parts[-1], None)


def _tensor(x: np.ndarray, dtype: str) -> Tensor:
    if x.dtype.name.startswith("float8"):
        return torch.from_numpy(x.view(np.uint8).copy()).view(getattr(torch, dtype))
    return tensor_of(x.copy())
