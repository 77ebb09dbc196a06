"""The plans of entries of a tape: which one gives their bits, and which of its events they have."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from roundscope.attention.budget.parts import (
    Part,
    is_narrow,
    on_tensor_core,
    rounding_parts,
    together,
)
from roundscope.attention.torch.arrays import numpy_of
from roundscope.events.plan import BasePlan
from roundscope.events.recorder import RecordBase
from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.models.tape import Entry, Tape
from roundscope.operations.models.torch.budget.stepping import Outcome
from roundscope.operations.models.torch.comparing.emulating import arrays_of, calls_of, is_emulated
from roundscope.operations.operation import Operation
from roundscope.operations.run import plan_of, run

KNOWN = 0.99  # the least part of equal bits with which a plan is that of an operation
SUFFIXES = {"bfloat16": "", "float16": "-fp16", "float32": "-fp32"}


def operation_of(entries: Sequence[Entry], known: Mapping[int, Tensor]) -> Operation | None:
    """Return the operation whose plans some entries may have; None if there is none."""
    names = {call.operation for entry in entries for call in calls_of(entry)}
    if len(names) != 1 or not all(is_emulated(entry, known) for entry in entries):
        return None
    return OPERATIONS[names.pop()]


def found_plan(
    tape: Tape, entries: Sequence[Entry], known: Mapping[int, Tensor]
) -> tuple[Any, float]:
    """Return the plan that gives most bits of some entries, and the part of equal numbers.

    It is the one that gives most of the smallest entry, and None if it does not give nearly all.

    known: the values of the run, in binary64
    """
    operation = operation_of(entries, known)
    suffix = SUFFIXES.get(tape.values[entries[0].outputs[0]].dtype) if entries else None
    if operation is None or suffix is None:
        return None, 0.0
    smallest = min(entries, key=lambda e: sum(known[v].numel() for v in e.outputs))
    best, most = None, 0.0
    is_gpu = known[smallest.outputs[0]].is_cuda
    names = sorted(_of_implementations(operation), key=lambda x: _of_a_gpu(x) != is_gpu)
    for name in names:
        plan = plan_of(operation, name + suffix)
        if not is_gpu and any(plan.accumulator(site).alignment for site in plan.PRODUCTS):
            continue  # of tensor cores
        equal = _equal(tape, [smallest], plan, known)
        if equal > most:
            best, most = plan, equal
        if equal == 1.0:
            break
    if best is not None and most >= KNOWN:
        most = _equal(tape, entries, best, known)
    return best if most >= KNOWN else None, most


def _of_implementations(operation: Operation) -> Iterator[str]:
    """Return the names of the plans of an operation that are those of an implementation."""
    return islice(operation.published, 2, None)


def _of_a_gpu(name: str) -> bool:
    return any(word in name for word in ("cuda", "hopper", "liger", "inductor", "fused"))


def _equal(
    tape: Tape, entries: Sequence[Entry], plan: BasePlan, known: Mapping[int, Tensor]
) -> float:
    """Return the part of the numbers of some entries that a plan gives to the bit."""
    equal = total = 0
    for entry in entries:
        for call, inputs in arrays_of(entry, known):
            ran = run(call.operation, plan, inputs, settings=call.settings)
            own = tape.numpy(entry.outputs[call.output]).astype(np.float64)
            again = ran.outputs["out"].astype(np.float64)
            equal += int(((own == again) | (np.isnan(own) & np.isnan(again))).sum())
            total += own.size
    return equal / total if total else 0.0


def plan_in_words(
    tape: Tape, entries: Sequence[Entry], known: Mapping[int, Tensor], words: str
) -> Any:
    """Return the plan of words, which may be changes of the one that some entries have.

    Raises:
        ValueError: These are no entries with plans, or the words name no plan of theirs.
    """
    operation = operation_of(entries, known)
    if operation is None:
        raise ValueError("it has no plans; give 'fp32' or 'exact'")
    first = words.partition(";")[0].strip()
    if "=" not in first:
        return plan_of(operation, words)
    base, _ = found_plan(tape, entries, known)
    if base is None:
        name = next(_of_implementations(operation))
        raise ValueError(
            f"no plan of {operation.name} gives its bits: begin with one, as '{name}; {words}'"
        )
    return base.changed(words)


def parts_of(tape: Tape, entries: Sequence[Entry], plan: BasePlan, ran: Outcome) -> list[Part]:
    """Return the events of a plan that change a number of some entries.

    Those in binary32 are one part. Sums of tensor cores are left out, which cannot run alone.
    """
    changing: set[str] = set()
    for entry in entries:
        for call, inputs in arrays_of(entry, ran.values):
            given = ran.passed.get(entry.outputs[call.output])
            after = None
            if given is not None and OPERATIONS[call.operation].backward is not None:
                after = {"out": numpy_of(given.cpu())}
            stats = run(
                call.operation,
                plan,
                inputs,
                settings=call.settings,
                gradients=after,
                record=RecordBase(),
            ).stats
            changing |= {n for n, s in stats.items() if s.inexact or s.overflow or s.nan}
    parts = [
        part
        for part in rounding_parts(plan, changing, tape.loss is not None)
        if not on_tensor_core(plan, part)
    ]
    narrow = [part for part in parts if is_narrow(plan, part)]
    wide = [part for part in parts if not is_narrow(plan, part)]
    return narrow + ([together(wide, "events in fp32")] if len(wide) > 1 else wide)
