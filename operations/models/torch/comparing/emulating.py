"""Entries of a tape as calls of our operations, which run under plans.

`calls_of` says what an entry is in the words of `operations.run`; `emulated` and
`emulated_gradients` compute it under a plan, in the place of the model's own function.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roundscope.attention.torch.arrays import numpy_of, tensor_of
from roundscope.events.plan import BasePlan
from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.models.calls import table_of
from roundscope.operations.models.tape import Entry, Ref
from roundscope.operations.operation import Shape
from roundscope.operations.run import run


class CallOf(NamedTuple):
    """A call of an operation that makes an output of an entry.

    operation  its name
    inputs     the values that it reads, by the names of its inputs
    settings   its settings
    output     the number of the output
    """

    operation: str
    inputs: Mapping[str, int]
    settings: Mapping[str, Any] = {}
    output: int = 0


def calls_of(entry: Entry) -> tuple[CallOf, ...]:
    """Return an entry as calls of our operations; () if it is none that is known."""
    args, kwargs = entry.arguments
    given: dict[Any, Any] = dict(enumerate(args)) | dict(kwargs)

    def ref(*names: Any) -> int | None:
        found = next((given[n] for n in names if n in given), None)
        return found.value if isinstance(found, Ref) else None

    held = {name: r.value for name, r in entry.held.items()}
    x = ref(0, "input", "hidden_states", "x")
    if x is None:
        return ()
    if entry.operation == "rms_norm" and "weight" in held and entry.settings:
        eps = next(iter(entry.settings.values()))
        return (CallOf("rms_norm", {"x": x, "weight": held["weight"]}, {"eps": eps}),)
    if entry.operation == "linear" and entry.function.endswith(("Linear", "linear")):
        own: dict[str, int | None] = dict(held) or {
            n: ref(i, n) for i, n in ((1, "weight"), (2, "bias"))
        }
        found = {n: v for n, v in own.items() if v is not None}
        return (CallOf("linear", {"x": x} | found),) if "weight" in found else ()
    if entry.operation == "rope" and len(entry.outputs) == 2:
        k, cos, sin = (ref(i) for i in (1, 2, 3))
        if k is None or cos is None or sin is None:
            return ()
        return tuple(
            CallOf("rope", {"x": v, "cos": cos, "sin": sin}, {}, i) for i, v in enumerate((x, k))
        )
    if entry.operation == "layer_norm":
        return _layer_norm(entry, given, x)
    if entry.operation == "gelu":
        by_tanh = _gelu_is_by_tanh(entry, given)
        return () if by_tanh is None else (CallOf("gelu_tanh" if by_tanh else "gelu", {"x": x}),)
    if entry.operation == "softmax":
        is_last = given.get("dim", given.get(1)) == -1 and given.get("dtype") is None
        return (CallOf("softmax", {"x": x}),) if is_last else ()
    if entry.operation == "silu":
        return (CallOf("silu", {"x": x}),)
    other = ref(1, "other")
    if entry.operation == "add" and other is not None and not kwargs:
        return (CallOf("add", {"a": x, "b": other}),)
    return ()


def _layer_norm(entry: Entry, given: Mapping[Any, Any], x: int) -> tuple[CallOf, ...]:
    """Return a LayerNorm over the last axis, of a module or of F.layer_norm, as a call."""
    held, eps = dict(entry.held), entry.settings.get("eps")
    if not entry.module:
        if len(given.get("normalized_shape", given.get(1, ()))) != 1:
            return ()
        held = {n: given.get(n, given.get(i)) for i, n in ((2, "weight"), (3, "bias"))}
        eps = given.get("eps", given.get(4, 1e-5))
    if eps is None:
        return ()
    found = {n: r.value for n, r in held.items() if isinstance(r, Ref)}
    return (CallOf("layer_norm", {"x": x} | found, {"eps": eps}),)


def _gelu_is_by_tanh(entry: Entry, given: Mapping[Any, Any]) -> bool | None:
    """Return whether a gelu is the form by tanh; None if its module does not tell."""
    if not entry.module:
        return bool(given.get("approximate", "none") == "tanh")
    if entry.function in ("NewGELUActivation", "GELUTanh"):
        return True
    if entry.function == "GELUActivation":
        return False
    approximate = entry.settings.get("approximate")
    return None if approximate is None else bool(approximate == "tanh")


def emulated(entry: Entry, plan: BasePlan, known: Mapping[int, Tensor]) -> list[Tensor]:
    """Return the outputs of an entry under a plan, in binary64."""
    found: list[Tensor] = [torch.empty(0)] * len(entry.outputs)
    for call, inputs in arrays_of(entry, known):
        ran = run(call.operation, plan, inputs, settings=call.settings)
        found[call.output] = _tensor(ran.outputs["out"], known)
    return found


def emulated_gradients(
    entry: Entry, plan: BasePlan, known: Mapping[int, Tensor], given: Sequence[Tensor | None]
) -> dict[int, Tensor]:
    """Return the gradients of what an entry reads under a plan, in binary64."""
    found: dict[int, Tensor] = {}
    for call, inputs in arrays_of(entry, known):
        own = given[call.output]
        if own is None:
            continue
        ran = run(
            call.operation,
            plan,
            inputs,
            settings=call.settings,
            gradients={"out": numpy_of(own.cpu())},
        )
        for name, gradient in ran.gradients.items():
            if name in call.inputs:
                v, x = call.inputs[name], _tensor(gradient, known)
                found[v] = found[v] + x if v in found else x
    return found


def arrays_of(
    entry: Entry, known: Mapping[int, Tensor]
) -> Iterator[tuple[CallOf, dict[str, np.ndarray]]]:
    """Yield the calls of an entry with their arrays, rows of one shape."""
    for call in calls_of(entry):
        arrays = {name: numpy_of(known[v].cpu()) for name, v in call.inputs.items()}
        if call.operation == "rope":
            tables = {n: table_of(arrays["x"], arrays[n]) for n in ("cos", "sin")}
            arrays |= {n: table for n, table in tables.items() if table is not None}
        yield call, arrays


def is_emulated(entry: Entry, known: Mapping[int, Tensor]) -> bool:
    """Return whether an entry is calls of our operations, in the shapes that these take."""
    calls = calls_of(entry)
    for call in calls:
        rows = {
            tuple(known[call.inputs[v.name]].shape)
            for v in OPERATIONS[call.operation].inputs
            if v.name in call.inputs and v.shape is Shape.ROWS
        }
        if call.operation != "rope" and len(rows) > 1:  # as of an addition that broadcasts
            return False
        if call.operation == "rope" and any(
            table_of(*(_shaped(known[call.inputs[n]]) for n in ("x", name))) is None
            for name in ("cos", "sin")
        ):
            return False
        if not all(known[v].is_floating_point() for v in call.inputs.values()):
            return False
    return bool(calls)


def _shaped(x: Tensor) -> np.ndarray:
    """Return an array of the shape of a tensor, which takes no memory."""
    return np.broadcast_to(np.zeros(()), x.shape)


def _tensor(x: np.ndarray, known: Mapping[int, Tensor]) -> Tensor:
    """Return an array in binary64, where the values of an entry are."""
    device = next(iter(known.values())).device
    return tensor_of(np.asarray(x).astype(np.float64)).to(device)
