"""`evaluated`: values of a run by its own or other arithmetic, on values that are given."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from roundscope.operations.models.tape import Tape, refs
from roundscope.operations.models.torch.comparing.alternatives import Alternative

Overrides = Mapping[int, Alternative]


class Missing(RuntimeError):
    """An operation that cannot run again."""


class Evaluation(NamedTuple):
    """Values of a run by its arithmetic on others, and the operations that ran."""

    values: list[Tensor]
    ran: list[int]


def evaluated(
    tape: Tape, values: Sequence[int], known: Mapping[int, Tensor], overrides: Overrides
) -> Evaluation:
    """Return values of a run by its arithmetic, on others that are known.

    Args:
        tape: The run.
        values: The values.
        known: Numbers of values that are not computed.
        overrides: Arithmetic of some entries in the place of the run's own.

    Raises:
        Missing: An entry cannot run again, and what it depends on is other than it was.
    """
    done: dict[int, Any] = {}
    changed: set[int] = set()

    def get(value: int) -> Any:
        if value in known:
            return tape.arrays.cast(known[value], tape.values[value].dtype)
        return done.get(value, tape.values[value].array)

    def is_other(value: int) -> bool:
        return value in known or value in changed

    ran = []
    for number in needed_for(tape, values, known, overrides):
        entry = tape.entries[number]
        if number in overrides:
            outputs = [
                x if v in values else tape.arrays.cast(x, tape.values[v].dtype)
                for v, x in zip(entry.outputs, overrides[number].run(get), strict=True)
            ]
        elif not any(map(is_other, _reads(tape, number))):
            continue
        elif number not in tape.runners:
            raise Missing(entry.title)
        else:
            outputs = tape.run(number, {v: get(v) for v in _reads(tape, number)})
        done.update(zip(entry.outputs, outputs, strict=False))
        changed.update(entry.outputs)
        if entry.is_counted:
            ran.append(number)
    return Evaluation([done.get(v, tape.values[v].array) for v in values], ran)


def needed_for(
    tape: Tape, values: Sequence[int], known: Mapping[int, Tensor], overrides: Overrides
) -> list[int]:
    """Return the entries on which values depend, back to values that are known."""
    found: set[int] = set()
    waiting = [tape.made_by[v] for v in values if v in tape.made_by]
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found.add(number)
        read = _reads(tape, number)
        if number in overrides:  # which may read what the operations before it read
            read += [u for v in read if v in tape.made_by for u in _reads(tape, tape.made_by[v])]
        waiting += [tape.made_by[v] for v in read if v in tape.made_by and v not in known]
    return sorted(found)


def _reads(tape: Tape, number: int) -> list[int]:
    return list(dict.fromkeys(refs(tape.entries[number].arguments)))
