"""The operations of a tape as calls of the catalogue, and the plans that give their numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.identification.given import calls_given, score_of
from roundscope.operations.identification.identified import Identified
from roundscope.operations.identification.identify import DEPTH, identify
from roundscope.operations.models.tape import Entry, Tape
from roundscope.operations.operation import Call, Operation, Shape, Value
from roundscope.operations.run import plan_of

ALIASES = {"variance_epsilon": "eps"}
OTHERS = ("addmm", "nll_loss")  # functions of an operation's name whose arguments are others
NEAR = 0.99  # the share beyond which a difference may be that of an order of a sum
CHECKED = 2**24  # numbers or products of a call on which a plan is checked
TOGETHER = 6  # calls of one kind that are explained together, and then each alone if they are not


class Named(NamedTuple):
    """Operations of a run that have one arithmetic.

    Attributes:
        operation: Their name.
        function: The function or the class of the modules that computed them.
        modules: The paths of their modules.
        found: What is said of them; None if the catalogue has no such operation, or the file not
            all numbers.
        why: Why the catalogue's plans were not compared; "" if they were, or if it has none.
    """

    operation: str
    function: str
    modules: tuple[str, ...]
    found: Identified | None
    why: str = ""

    def __str__(self) -> str:
        count = f"{self.operation} x {len(self.modules)}"
        if self.found is None and self.operation == "attention":
            return f"{count}: not compared; capture its tensors and identify those"
        if self.found is None and self.operation in OPERATIONS:
            return f"{count}: not compared, since {self.why}"
        if self.found is None:
            return f"{count}: no plan is known of {self.function}"
        return f"{count}: {self.found.name or self.found.sentence}"


def calls_of(tape: Tape, number: int) -> list[Call]:
    """Return the calls of the catalogue that an entry is, with what it returned; none if the
    catalogue does not have it, or if a value was not kept.
    """
    entry = tape.entries[number]
    if not _is_kept(tape, entry):
        return []
    args, kwargs = entry.filled(tape.numpy)
    held = {name: tape.numpy(ref.value) for name, ref in entry.held.items()}
    outputs = [tape.numpy(v) for v in entry.outputs]
    calls = inputs_of(entry, args, kwargs, held)
    if len(outputs) != len(calls):
        return []
    return [
        Call(name, inputs, settings, {OPERATIONS[name].outputs[0].name: x})
        for (name, inputs, settings), x in zip(calls, outputs, strict=True)
    ]


def _is_kept(tape: Tape, entry: Entry) -> bool:
    return all(tape.values[v].array is not None for v in (*entry.outputs, *entry.reads))


def inputs_of(
    entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any], held: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the calls of the catalogue that an entry makes of arrays: name, inputs and settings.

    args, kwargs: its arguments, with arrays of NumPy
    held: the parameters of its module
    """
    own = OPERATIONS.get(entry.operation)
    if own is None or entry.function.rpartition(".")[2] in OTHERS:
        return []
    arrays = [x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray)]
    settings = _settings(own, entry, args, kwargs)
    if settings is None:
        return []
    if own.name == "rope":
        found = [] if len(arrays) < 4 else [(x, *arrays[2:4]) for x in arrays[:2]]
        pairs = [(x, table_of(x, cos), table_of(x, sin)) for x, cos, sin in found]
        if any(table is None for _, *tables in pairs for table in tables):
            return []
        return [(own.name, dict(zip(("x", "cos", "sin"), p, strict=True)), {}) for p in pairs]
    inputs = _assigned(own, arrays, held)
    return [] if inputs is None else [(own.name, inputs, settings)]


def table_of(x: np.ndarray, table: np.ndarray) -> np.ndarray | None:
    """Return a table of a rotary embedding as an array of the shape of x; None if it does not fit.

    Args:
        x: Heads (B, N, T, F), or (B, T, N, F).
        table: Cosines or sines (B, T, F), or of half as many features, those of both halves, as
            gpt-oss has them.
    """
    if 2 * table.shape[-1] == x.shape[-1]:
        table = np.concatenate([table, table], -1)
    for axis in (1, -2):
        one = np.expand_dims(table, axis) if table.ndim == x.ndim - 1 else table
        try:
            return np.broadcast_to(one, x.shape)
        except ValueError:
            continue
    return None


def _settings(
    own: Operation, entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the settings of a call; None where it computes something else."""
    told = {ALIASES.get(name, name): x for name, x in {**kwargs, **entry.settings}.items()}
    found = {name: x for name, x in told.items() if name in own.settings and x is not None}
    numbers = [x for x in args if isinstance(x, float)]
    if "eps" in own.settings and "eps" not in found:
        if not numbers:
            return None
        found["eps"] = numbers[-1]
    if told.get("alpha", 1) != 1 or told.get("label_smoothing") or told.get("weight") is not None:
        return None
    if own.name.endswith("softmax"):
        first = next(x for x in (*args, *kwargs.values()) if isinstance(x, np.ndarray))
        whole = [x for x in args if isinstance(x, int) and not isinstance(x, bool)]
        axis = told.get("dim", whole[0] if whole else None)
        if axis not in (-1, first.ndim - 1):
            return None
    return found


def _assigned(
    own: Operation, arrays: Iterable[np.ndarray], held: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return arrays by the names of the inputs that they are: whole numbers and others apart."""
    names = {v.name for v in own.inputs}
    found = {name: x for name, x in held.items() if name in names}
    free: list[Value] = [v for v in own.inputs if v.name not in found]
    for x in arrays:
        is_whole = np.issubdtype(x.dtype, np.integer)
        own_value = next((v for v in free if (v.site is None) == is_whole), None)
        if own_value is None:
            return None
        free.remove(own_value)
        found[own_value.name] = x
    if any(not v.optional for v in free):
        return None
    of_rows = {v.name for v in own.inputs if v.shape is Shape.ROWS}
    leads = {x.shape[:-1] for name, x in found.items() if name in of_rows}
    return found if len(leads) <= 1 else None


def explained(
    calls: Sequence[Call],
    tell: Callable[[str], None] = lambda text: None,
    depth: int = DEPTH,
    device: str = "",
) -> Identified:
    """Return what is said of calls of one operation that have one arithmetic."""
    first = calls[0]
    return identify(
        first.operation,
        [call.inputs for call in calls],
        [call.outputs for call in calls],
        settings=first.settings,
        depth=depth,
        tell=tell,
        device=device,
    )


def explained_by(calls: Sequence[Call], plan: str, work: int = CHECKED) -> float:
    """Return the share of the numbers of calls that a plan in words gives, of large ones of a part;
    below 1 if a zero has the other sign.
    """
    own = OPERATIONS[calls[0].operation]
    inputs, outputs = [call.inputs for call in calls], [call.outputs for call in calls]
    given = calls_given(own, inputs, outputs, calls[0].settings)
    score = score_of([own.within(work) for own in given], plan_of(own, plan))
    if score is None:
        return 0.0
    return score.share if score.is_exact or score.share < 1.0 else np.nextafter(1.0, 0.0)


def named(tape: Tape, tell: Callable[[str], None] = lambda text: None) -> list[Named]:
    """Return the operations of a run, grouped by their arithmetic.

    Operations of one name, function and width are explained together, the first `TOGETHER` of
    them, and the others are compared with that plan and its ties; where that fails, each alone.
    """
    kinds: dict[tuple[Any, ...], list[tuple[Entry, list[Call]]]] = {}
    unknown: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in tape.counted:
        calls = calls_of(tape, entry.number)
        if not calls:
            unknown.setdefault((entry.operation, entry.function, _why(tape, entry)), []).append(
                entry
            )
            continue
        widths = [np.shape(x)[-1:] for x in calls[0].inputs.values()]
        key = (entry.operation, entry.function, *widths, *calls[0].settings.items())
        kinds.setdefault(key, []).append((entry, calls))
    found: dict[tuple[str, str, str], Named] = {}
    for kind in kinds.values():
        for entries, said in _explained(kind, tell, tape.about.get("device", "")):
            one = entries[0]
            key = (one.operation, one.function, said.name or said.sentence)
            before = found[key].modules if key in found else ()
            modules = (*before, *(entry.module for entry in entries))
            found[key] = Named(one.operation, one.function, modules, said)
    others = [
        Named(operation, function, tuple(e.module for e in entries), None, why)
        for (operation, function, why), entries in unknown.items()
    ]
    return [*found.values(), *others]


def _why(tape: Tape, entry: Entry) -> str:
    """Return why an operation of the catalogue is no call of it; "" of another operation."""
    if entry.operation not in OPERATIONS:
        return ""
    if not _is_kept(tape, entry):
        return "the file lacks some of its numbers"
    return f"the catalogue has no such call of {entry.function}"


def _explained(
    kind: Sequence[tuple[Entry, list[Call]]],
    tell: Callable[[str], None],
    device: str = "",
    again: bool = True,
) -> list[tuple[list[Entry], Identified]]:
    """Return what is said of operations of one kind.

    Those that the nearest plan does not give are looked at apart if they are far from it. If they
    are near, as where the order of a sum is none that is known, they get no name of their own: it
    would be one of many that tie by chance.
    """
    step = -(-len(kind) // TOGETHER)
    said = explained([call for _, calls in kind[::step] for call in calls], tell, device=device)
    alike = (
        [pair for pair in kind if explained_by(pair[1], said.plan)] if said.settings == {} else []
    )
    if said.is_found and len(alike) == len(kind):
        return [([e for e, _ in kind], said)]
    rest = [pair for pair in kind if pair not in alike]
    if not again or not alike or not rest:
        return [([e for e, _ in kind], said)]
    share = explained_by([call for _, calls in rest for call in calls], said.plan)
    if share >= NEAR:
        return [([e for e, _ in kind], said)]
    return [*_explained(alike, tell, device, False), *_explained(rest, tell, device, False)]
