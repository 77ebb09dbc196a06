"""`run`: one call of an operation under a plan, on NumPy arrays or in a program of JAX."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from roundscope.attention.grammar.changes import changed
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import BF16, BINARY32, FP16, rounding
from roundscope.emu.shown import shown
from roundscope.emu.stats.summary import Stats
from roundscope.events.hook import Events
from roundscope.events.injection import InjectionBase
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan, check_factors, half
from roundscope.events.recorder import NO_SUMMARIES, RecordBase, Recorder, Seen, check_record
from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.operation import Operation, Shape, Value

PARTS = 2**24  # the number of the first operation's random bits, beyond those of heads of attention
TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp32": np.float32,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
Settings: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a call of an operation returned.

    Attributes:
        outputs: Arrays by name, in the type of the event that rounds them, or in float64.
        gradients: Gradients of inputs by name, likewise; empty without gradients of the outputs.
        stats: The summary of each event by its site's name, if the call was recorded.
        events: The values before and after each event of the sites that the record names.
        hits: Of a recorded call, how many entries of each event injections hit, by its site.
    """

    outputs: Mapping[str, Any]
    gradients: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Stats] = field(default_factory=dict)
    events: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict
    )
    hits: Mapping[str, int] = field(default_factory=dict)


@known_arguments
def run(
    operation: Operation | str,
    plan: BasePlan | str,
    inputs: Mapping[str, Any],
    *,
    settings: Mapping[str, Any] | None = None,
    gradients: Mapping[str, Any] | None = None,
    inject: Iterable[InjectionBase] = (),
    record: RecordBase | None = None,
    engine: Literal["numpy", "xla"] = "numpy",
) -> Run:
    """Return what an operation computes under a plan.

    Args:
        operation: An operation, or its name in `OPERATIONS`.
        plan: A plan of the operation, or its name as `plan_of` reads it.
        inputs: Arrays by name, of any type; `Operation.inputs` says how each is shaped.
        settings: What differs from `Operation.settings`, such as eps.
        gradients: Gradients of the outputs by name; then the gradients of the inputs are computed.
        inject: Errors at sites of the operation.
        record: What is recorded beside a summary of each event; None records nothing.
        engine: "numpy" (Numba kernels) or "xla" (a program of JAX); both give the same bits.

    Raises:
        ValueError: A name is unknown, an input is missing or has another shape, the operation has
            no backward, or an injection is at an event that the call does not have. The message
            names the argument, its value and what to give.

    Example:
        >>> import numpy as np
        >>> x = np.array([[3.0, 4.0]], np.float32)
        >>> run("rms_norm", "fp32", {"x": x}, settings={"eps": 0.0}).outputs["out"]
        array([[0.84852815, 1.1313709 ]], dtype=float32)
    """
    own = operation_named(operation)
    chosen = plan_of(own, plan)
    check_factors(chosen)
    told = settings_of(own, settings or {})
    arrays, lead = arrays_of(own, inputs)
    after: tuple[Any, ...] | None = None
    if gradients is not None:
        if own.backward is None:
            raise ValueError(f"gradients: {own.name} has no backward; leave them out")
        after = _given_gradients(own, gradients)
    if record is not None:
        record = replace(record)
        check_record(record, own.plan.SITES, own.plan.PRODUCTS)
    errors = _injections(own, chosen, told, tuple(inject), arrays, after)
    work = partial(computed, own, chosen, told, errors, record)
    if engine == "numpy":
        with np.errstate(all="ignore"):  # overflow and NaN are results here
            found, grads, seen = work(numpy_ops(), arrays, after)
    elif engine == "xla":
        from roundscope.operations.xla import compiled

        found, grads, seen = compiled(work, arrays, after)
    else:
        raise ValueError(f"engine={shown(engine)}: give 'numpy' or 'xla'")
    return Run(
        outputs={
            v.name: typed(_led(v, x, lead), own_format(chosen, v))
            for v, x in zip(own.outputs, found, strict=True)
            if x is not None
        },
        gradients={
            v.name: _led(v, np.asarray(grads[v.name]), lead)
            for v in own.inputs
            if v.name in (grads or {})
        },
        stats={
            name: Stats.of(*map(np.asarray, x[:4])) for name, x in _summaries(own, seen).items()
        },
        events={
            name.removesuffix(".events"): (np.asarray(x[0]), np.asarray(x[1]))
            for name, x in seen.items()
            if name.endswith(".events")
        },
        hits={
            name.removesuffix(".hits"): int(np.asarray(x).sum())
            for name, x in seen.items()
            if name.endswith(".hits")
        },
    )


def computed(
    operation: Operation,
    plan: BasePlan,
    settings: Settings,
    inject: tuple[InjectionBase, ...],
    record: RecordBase | None,
    ops: Ops,
    arrays: tuple[Array | None, ...],
    gradients: tuple[Array, ...] | None,
) -> tuple[tuple[Array, ...], dict[str, Array], Seen]:
    """Return the outputs, the gradients and what was recorded, in one array library."""
    place = Rows(head=PARTS + operation.number)
    recorder = None if record is None else Recorder(ops, place, record)
    at = Events(ops, plan, place, inject, recorder)
    count = len(operation.outputs)
    outputs = operation.forward(at, dict(settings), *arrays)
    found: dict[str, Array] = {}
    if gradients is not None and operation.backward is not None:
        found = operation.backward(at, dict(settings), outputs[count:], gradients)
    return outputs[:count], found, at.seen()


def _injections(
    operation: Operation,
    plan: BasePlan,
    settings: Settings,
    inject: tuple[InjectionBase, ...],
    arrays: tuple[Any, ...],
    gradients: tuple[Any, ...] | None,
) -> tuple[InjectionBase, ...]:
    """Return the injections, whose sites may be given by name.

    Raises:
        ValueError: There is no such site, or the call has no event there, as its first row tells.
    """
    if not inject:
        return ()
    found = tuple(replace(own, site=operation.plan.SITES.named(own.site)) for own in inject)
    first = tuple(
        x if x is None or v.shape is Shape.SHARED else x[:1]
        for v, x in zip(operation.inputs, arrays, strict=True)
    )
    after = None if gradients is None else tuple(x if x is None else x[:1] for x in gradients)
    with np.errstate(all="ignore"):
        masked = RecordBase(events=tuple(own.site for own in found if own.mask is not None))
        seen = computed(operation, plan, settings, (), masked, numpy_ops(), first, after)[2]
    for own in found:
        if own.site not in seen:
            events = " ".join(site for site in operation.plan.SITES if site in seen)
            raise ValueError(f"inject: this call has no event {own.site}; it has {events}")
        if own.mask is not None:
            shape = seen[f"{own.site}.events"][0].shape
            if str(own.site.axes).startswith("rows"):
                shape = (_rows(operation, arrays), *shape[1:])
            _check_mask(own, shape if own.site.has_second else shape[:1])
    return found


def _rows(operation: Operation, arrays: tuple[Any, ...]) -> int:
    """Return how many rows a call has."""
    pairs = zip(operation.inputs, arrays, strict=True)
    return next(len(x) for v, x in pairs if x is not None and v.shape is not Shape.SHARED)


def _check_mask(injection: InjectionBase, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a mask that does not fit an event of this shape."""
    own = injection.mask.shape
    fits = all(a in (1, b) for a, b in zip(own[2:], shape, strict=False))
    if own[:2] != (1, 1) or not fits:
        raise ValueError(
            f"inject at {injection.site}: mask of shape {own[2:]}; give {injection.site.axes},"
            f" which is {shape} for this call, its leading axes being one axis of rows; an axis"
            " of 1 stands for all"
        )


def operation_named(operation: Operation | str) -> Operation:
    """Return an operation, which may be given by its name.

    Raises:
        ValueError: There is no operation of that name.
    """
    if isinstance(operation, Operation):
        return operation
    if operation not in OPERATIONS:
        raise ValueError(unknown("operation", operation, OPERATIONS))
    return OPERATIONS[operation]


def plan_of(operation: Operation, plan: BasePlan | str) -> Any:
    """Return a plan of an operation, which may be given by its name.

    That is the name of a published plan, or all:FORMAT, in which every event and every step of a
    sum rounds to one format. A published name that ends in -fp16 or -fp32 has that format in place
    of BF16. Changes in words may follow, which semicolons separate (docs/reference/grammar.md).

    Raises:
        ValueError: There is no such plan, or a change is not one of plans of this operation.
        TypeError: The plan is one of another operation.

    Example:
        >>> plan = plan_of(OPERATIONS["rms_norm"], "transformers-llama-fp16")
        >>> str(plan["OUT"]), str(plan["XN"]), str(plan.accumulator("SS"))
        ('fp16', 'fp32', 'cascade[8] fp32')
        >>> changed = plan_of(OPERATIONS["rms_norm"], "torch-cpu; SS.sum=ascending root=correct")
        >>> str(changed.accumulator("SS")), str(changed.root)
        ('ascending fp32', 'correct')
    """
    if not isinstance(plan, str):
        if not isinstance(plan, operation.plan):
            told = f"plan={shown(plan)}: a plan of another operation than {operation.name}"
            raise TypeError(told)
        return plan
    plan, given, changes = plan.partition(";")
    if given:
        return changed(plan_of(operation, plan.strip()), (changes,))
    if plan.startswith("all:"):
        return operation.plan.everywhere(plan, rounding(plan.removeprefix("all:")))
    plain, _, suffix = plan.rpartition("-")
    if plan in operation.published or suffix not in ("fp16", "fp32"):
        plain, suffix = plan, ""
    if plain not in operation.published:
        raise ValueError(unknown(f"plan of {operation.name}", plain, operation.published))
    made = operation.published[plain]()
    if suffix == "fp16":
        made = half(made)
    elif suffix:
        made = made.rounded({site: BINARY32 for site in made.SITES if made[site] == BF16})
    for site in made.PRODUCTS if suffix else ():
        own = made.accumulator(site)
        if own.step == BF16:
            step = FP16 if suffix == "fp16" else BINARY32
            made = made.adding(site, replace(own, step=step))
    return replace(made, name=plan)


def settings_of(operation: Operation, settings: Mapping[str, Any]) -> Settings:
    """Return all settings of a call, with the defaults of the operation.

    Raises:
        ValueError: The operation does not have a setting of that name.
    """
    for name in settings:
        if name not in operation.settings:
            raise ValueError(unknown(f"setting of {operation.name}", name, operation.settings))
    return tuple({**operation.settings, **settings}.items())


def arrays_of(
    operation: Operation, inputs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the inputs as the equations take them, in binary64, and the leading axes of rows.

    Raises:
        ValueError: An input is unknown or missing, or rows have other leading axes than the first.
    """
    known = {v.name: v for v in operation.inputs}
    for name in inputs:
        if name not in known:
            raise ValueError(unknown(f"input of {operation.name}", name, known))
    found: list[Any] = []
    lead: tuple[int, ...] | None = None
    for v in operation.inputs:
        given = inputs.get(v.name)
        if given is None:
            if not v.optional:
                raise ValueError(f"inputs: {operation.name} needs {v.name}, {v.shape}")
            found.append(None)
            continue
        x = np.asarray(given)
        if v.site is not None:
            with np.errstate(invalid="ignore"):  # signalling NaN
                x = x.astype(np.float64)
        if v.shape is Shape.SHARED:
            found.append(x)
            continue
        own = x.shape if v.shape is Shape.NUMBERS else x.shape[:-1]
        lead = own if lead is None else lead
        if own != lead or (v.shape is Shape.ROWS and x.ndim == 0):
            raise ValueError(f"{v.name} of shape {x.shape}: its rows are not {lead}, as before")
        found.append(x.reshape(-1) if v.shape is Shape.NUMBERS else x.reshape(-1, x.shape[-1]))
    return tuple(found), lead or ()


def _given_gradients(operation: Operation, gradients: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the gradients of the outputs as rows of binary64.

    Raises:
        ValueError: One is of an unknown output, or missing and of no optional output.
    """
    known = [v.name for v in operation.outputs]
    needed = {v.name for v in operation.outputs if not v.optional}
    if not needed <= set(gradients) <= set(known):
        raise ValueError(f"gradients: give those of {' '.join(known)}, here {' '.join(gradients)}")
    found: list[Any] = []
    for v in operation.outputs:
        if v.name not in gradients:
            found.append(None)
            continue
        x = np.asarray(gradients[v.name]).astype(np.float64)
        found.append(x.reshape(-1, x.shape[-1]) if v.shape is Shape.ROWS else x.reshape(-1))
    return tuple(found)


def own_format(plan: BasePlan, value: Value) -> Format | None:
    """Return the format of an output's event, or None where it rounds in blocks."""
    if value.site is None or plan.block(value.site) is not None:
        return None
    return plan[value.site].format


def typed(x: NDArray[np.float64], f: Format | None) -> NDArray[Any]:
    """Return numbers of a format in its type, and in float64 where it has none."""
    return x if f is None or f.name not in TYPES else x.astype(TYPES[f.name])


def _led(value: Value, x: Any, lead: tuple[int, ...]) -> NDArray[np.float64]:
    """Return rows with the leading axes of the call."""
    array = np.asarray(x)
    if value.shape is Shape.SHARED:
        return array
    if array.shape[:1] != (math.prod(lead),):  # one number for the whole call, as a loss
        return array
    return array.reshape(*lead, *array.shape[1:])


def _summaries(operation: Operation, seen: Seen) -> dict[str, Any]:
    """Return the summaries among what was recorded, in the order of the sites."""
    sites = operation.plan.SITES
    names = (n for n in seen if not n.endswith((*NO_SUMMARIES, ".away")))
    ordered = sorted(names, key=lambda n: (sites.named(n.partition(".")[0]).ordinal, n))
    return {n: seen[n] for n in ordered}
