"""`groups_of`: the operations of a step that an error budget measures together."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from roundscope.operations.models.tape import CAST, EXACT, UNKNOWN, Entry, Tape, refs
from roundscope.operations.models.torch.budget.stepping import SUMS

By = Literal["operation", "name", "layer", "each"]
OF_SUMS = "sums of gradients"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


class Group(NamedTuple):
    """Operations of a step that are measured together.

    name     what they are called
    numbers  their entries, or `SUMS`
    how      what computes them
    """

    name: str
    numbers: tuple[int, ...]
    how: str


def groups_of(tape: Tape, by: By, has_sums: bool) -> list[Group]:
    """Return the groups of operations of a step that have floating-point results.

    has_sums: whether the sums of gradients are one
    """
    found: dict[str, list[Entry]] = {}
    for entry in tape.entries:
        if any(tape.values[v].array.is_floating_point() for v in entry.outputs):
            found.setdefault(_name(tape, entry, by), []).append(entry)
    groups = [Group(name, tuple(e.number for e in own), _how(own)) for name, own in found.items()]
    return groups + ([Group(OF_SUMS, (SUMS,), "autograd")] if has_sums else [])


def _name(tape: Tape, entry: Entry, by: By) -> str:
    name = "views" if entry.operation == EXACT else entry.operation
    if entry.operation == CAST:
        ends = tape.values[refs(entry.arguments)[0]], tape.values[entry.outputs[0]]
        name = f"cast {' to '.join(SHORT.get(x.dtype, x.dtype) for x in ends)}"
    if entry.operation == UNKNOWN:
        name = entry.function.removeprefix("torch.")
    parts = entry.module.split(".")
    if by == "name":
        last = next((x for x in reversed(parts) if not x.isdigit()), "")
        return f"{name} {last}".strip()
    if by == "layer":
        at = next((i for i, x in enumerate(parts) if x.isdigit()), -1)
        return f"{name} {'.'.join(parts[: at + 1])}".strip()
    return f"{name} {entry.module} {entry.number}" if by == "each" else name


def _how(entries: Sequence[Entry]) -> str:
    functions = dict.fromkeys(e.function.removeprefix("torch.") for e in entries)
    return ", ".join(functions) if len(functions) <= 3 else f"{len(functions)} functions"
