"""`revive`: the operations of a file run again, each if it gives every bit that the file has."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from roundscope.operations.models.replay import same
from roundscope.operations.models.tape import Arrays, Entry, Ref, Runner, Tape, mapped

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
        kept = [values[v].array for v in entry.outputs]
        for runner in runners_of(found, entry):
            again = run_entry(found, entry, runner)
            if again is None or len(again) != len(kept):
                continue
            for v, old, new in zip(entry.outputs, kept, again, strict=True):
                if old is None:
                    values[v] = replace(values[v], array=new)
            if all(
                old is None or same(arrays.numpy(old), arrays.numpy(new))
                for old, new in zip(kept, again, strict=True)
            ):
                runners[entry.number] = runner
                break
    return replace(found, runners=runners)


def run_entry(tape: Tape, entry: Entry, runner: Runner) -> list[Any] | None:
    """Return the results of an entry on its own arguments, None if it cannot run."""

    def filled(x: Any) -> Any:
        return tape.values[x.value].array if isinstance(x, Ref) else x

    args, kwargs = mapped(filled, tuple(entry.arguments))
    try:
        return runner(args, kwargs)
    except FAILURES:
        return None
