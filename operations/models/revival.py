"""`revive`: the operations of a file run again, each if it gives every bit that the file has."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from roundscope.operations.models.replay import same
from roundscope.operations.models.tape import Arrays, Entry, Runner, Tape

FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError)


def revive(
    tape: Tape,
    arrays: Arrays,
    array_of: Callable[[Any, str], Any],
    runners_of: Callable[[Tape, Entry], Iterable[Runner]],
) -> Tape:
    """Return the tape of a file, whose operations run again where they can.

    Results that the file has not, those of views and casts, are computed.

    Args:
        tape: It, with arrays of NumPy.
        arrays: What a replay does with the arrays of the library.
        array_of: Returns an array of the library from one of NumPy and the name of its type.
        runners_of: Returns what may run an entry; the first that gives its bits does.
    """
    values = [
        value if value.array is None else replace(value, array=array_of(value.array, value.dtype))
        for value in tape.values
    ]
    found = replace(tape, values=values, arrays=arrays)
    runners: dict[int, Runner] = {}
    for entry in found.entries:
        made: Sequence[Any] = ()
        for runner in runners_of(found, entry):
            again = run_entry(found, entry, runner)
            if again is None or len(again) != len(entry.outputs):
                continue
            made = again
            if gives(found, entry, made):
                runners[entry.number] = runner
                break
        for v, x in zip(entry.outputs, made, strict=False):
            if values[v].array is None:
                values[v] = replace(values[v], array=x)
    return replace(found, runners=runners)


def run_entry(tape: Tape, entry: Entry, runner: Runner) -> list[Any] | None:
    """Return the results of an entry on its own arguments, None if it cannot run."""
    try:
        return runner(*entry.filled(lambda v: tape.values[v].array))
    except FAILURES:
        return None


def gives(tape: Tape, entry: Entry, made: Sequence[Any]) -> bool:
    """Return whether numbers are the results of an entry, every bit of those that are kept."""
    kept = [tape.values[v].array for v in entry.outputs]
    numpy = tape.arrays.numpy
    return len(made) == len(kept) and all(
        x is None or same(numpy(x), numpy(y)) for x, y in zip(kept, made, strict=True)
    )
