"""Operations of files that no function of PyTorch gives here, such as those of a GPU: they run
again by the plan that gives their numbers (`operations.identify`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from roundscope.attention.torch.arrays import tensor_of
from roundscope.operations.identification.identified import Identified
from roundscope.operations.models.calls import calls_of, explained, explained_by, inputs_of
from roundscope.operations.models.revival import gives, run_entry
from roundscope.operations.models.tape import Entry, Runner, Tape, mapped
from roundscope.operations.operation import Call
from roundscope.operations.run import run

QUICK = 2**14  # numbers or products on which a plan of the other run is checked first


@dataclass(frozen=True, slots=True)
class Emulated:
    """Runs an entry by a plan: a function of (args, kwargs) that returns its outputs."""

    tape: Tape
    entry: Entry
    plan: str
    words: str
    is_common: bool  # whether the plan gives the other run's numbers as well

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        tape = self.tape

        def numbers(x: Any) -> Any:
            return tape.arrays.numpy(x) if isinstance(x, Tensor) else x

        own_args, own_kwargs = mapped(numbers, (tuple(args), dict(kwargs)))
        held = {name: tape.numpy(ref.value) for name, ref in self.entry.held.items()}
        found = []
        for name, inputs, settings in inputs_of(self.entry, own_args, own_kwargs, held):
            (out,) = list(run(name, self.plan, inputs, settings=settings).outputs.values())[:1]
            found.append(tensor_of(out))
        return found


def with_plans(
    a: Tape, b: Tape, tell: Callable[[str], None] = lambda text: None
) -> tuple[Tape, Tape]:
    """Return two tapes whose operations run by plans where nothing else runs them.

    Where one plan gives the numbers of an operation in both runs, it is that of both: these numbers
    do not tell their arithmetic apart.
    """
    runners: tuple[dict[int, Runner], dict[int, Runner]] = (dict(a.runners), dict(b.runners))
    places: dict[tuple[Any, ...], list[int]] = {}
    for entry in b.counted:
        places.setdefault(_place(entry), []).append(entry.number)
    lost: set[tuple[Any, ...]] = set()  # kinds of operations that no plan gives
    alone: set[int] = {e.number for e in b.counted if e.number not in runners[1]}
    for entry in a.counted:
        same = places.get(_place(entry), [])
        other = same.pop(0) if same else None
        lacks = entry.number not in runners[0], other is not None and other not in runners[1]
        if not any(lacks):
            continue
        tell(f"plans of {entry.title}")
        calls = calls_of(a, entry.number)
        others = [] if other is None else calls_of(b, other)
        said = (
            explained(calls, depth=0, device=a.about.get("device", ""))
            if lacks[0] and calls and _kind(calls) not in lost
            else None
        )
        if said is None or not others:
            pass
        elif common := _common(said, calls, others):
            runners[0][entry.number] = Emulated(a, entry, *common, True)
            if lacks[1] and other is not None:
                runners[1][other] = Emulated(b, b.entries[other], *common, True)
                alone.discard(other)
            continue
        if said is not None and not said.is_found:
            lost.add(_kind(calls))
        if lacks[0] and said is not None:
            _alone(a, entry, said, runners[0])
    for number in sorted(alone):
        calls = calls_of(b, number)
        if calls and _kind(calls) not in lost:
            said = explained(calls, depth=0, device=b.about.get("device", ""))
            _alone(b, b.entries[number], said, runners[1])
            if not said.is_found:
                lost.add(_kind(calls))
    return replace(a, runners=runners[0]), replace(b, runners=runners[1])


def _common(
    said: Identified, calls: Sequence[Call], others: Sequence[Call]
) -> tuple[str, str] | None:
    """Return a plan that gives the numbers of both runs, and its words; None if there is none.

    The plans that tie in one run are compared with the other run, and the other way round.
    """
    for one, two in ((calls, others), (others, calls)):
        plans = (said if one is calls else explained(one, depth=0)).plans
        for plan in plans:
            if explained_by(two, plan, QUICK) == 1.0 and explained_by(two, plan) == 1.0:
                return plan, f"{plan}, not told apart"
    return None


def _place(entry: Entry) -> tuple[Any, ...]:
    return entry.operation, entry.module, entry.step


def _kind(calls: Sequence[Call]) -> tuple[Any, ...]:
    """Return what calls have in common that probably have one arithmetic."""
    return calls[0].operation, *(np.shape(x)[-1:] for x in calls[0].inputs.values())


def _alone(tape: Tape, entry: Entry, said: Identified, runners: dict[int, Runner]) -> None:
    """Let an entry run by the plan that gives all of its numbers, if there is one."""
    own = Emulated(tape, entry, said.plan, said.name, False)
    again = run_entry(tape, entry, own) if said.is_found else None
    if again is not None and gives(tape, entry, again):  # every number, of large ones too
        runners[entry.number] = own


def words_by_plan(tape: Tape, number: int) -> str:
    """Return the plans that give the numbers of an entry in few words, "" if none does."""
    runner = tape.runners.get(number)
    if isinstance(runner, Emulated):
        return runner.words
    calls = calls_of(tape, number)
    device = tape.about.get("device", "")
    return explained(calls, depth=0, device=device).name if calls else ""
