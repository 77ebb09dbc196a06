"""`error_budget`: which operation of a model makes how much of the error of its loss, of its
log-probabilities and of the gradients of its weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from roundscope.attention.budget.parts import (
    Part,
    alone,
    exactly,
    promotion,
    rounding_parts,
    without,
)
from roundscope.attention.budget.parts import on_tensor_core
from roundscope.attention.torch.arrays import numpy_of
from roundscope.emu.errors import unknown
from roundscope.emu.shown import shown
from roundscope.events.plan import BasePlan
from roundscope.events.recorder import RecordBase
from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.models.align import ending
from roundscope.operations.models.budget import (
    NOTHING,
    Broken,
    Errors,
    ModelBudget,
    ModelLine,
    Results,
    Tried,
    broken_in,
    errors_of,
)
from roundscope.operations.models.replay import check_replays, log_softmax
from roundscope.operations.models.tape import CAST, EXACT, PARAMETER, UNKNOWN, Entry, Tape
from roundscope.operations.models.torch.emulating import (
    arrays_of,
    is_emulated,
    operation_of,
)
from roundscope.operations.models.torch.recording import Side, record
from roundscope.operations.models.torch.stepping import SUMS, Outcome, Step, Way
from roundscope.operations.operation import Operation
from roundscope.operations.run import plan_of, run

By = Literal["operation", "name", "layer", "each"]
Tell = Callable[[str], None]
NAMED = {EXACT: "views", CAST: "casts"}
OF_SUMS = "sums of gradients"
KNOWN = 0.99  # the least part of equal bits for which a plan's events are measured
SMALL = 1e-3  # the share below which the events of a group are not measured
SUFFIXES = {"bfloat16": "", "float16": "-fp16", "float32": "-fp32"}


class Group(NamedTuple):
    """Operations of a step that are measured together.

    name     what they are called
    numbers  their entries, or `SUMS`
    how      what computes them
    """

    name: str
    numbers: tuple[int, ...]
    how: str


def error_budget(
    model: Any,
    inputs: Any,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    run: Callable[[Any, Any], Any] | None = None,
    logprobs: Callable[[Tensor, Tensor], Tensor] | None = None,
    plan: Mapping[str, str] | None = None,
    by: By = "operation",
    gradients: bool = True,
    events: bool = True,
    tell: Tell = lambda text: None,
) -> ModelBudget:
    """Say which operation of a model makes how much of the error of its results and gradients.

    The judge is the same step in binary64: the same weights and inputs, every operation with its
    casts in binary64. Each group of operations is measured in two ways: alone in its own
    arithmetic, with all else in binary64, and by its absence, with it alone in binary64. An
    operation's arithmetic is that of its function, forward and backward, and of the rounding of its
    result; the sums of gradients where a value is read more than once are an operation of their
    own. Where one of the plans of `roundscope.operations` gives the bits of a group, each event of
    the plan is measured in the same two ways.

    Args:
        model: An `nn.Module` in evaluation mode.
        inputs: Its tokens (B, T), or a dictionary of its arguments.
        loss: A function of (what the model returned, inputs) that returns the loss. By default it
            is the `loss` that the model returned, or else the mean cross entropy of the next token,
            in binary64.
        run: As of `Side`.
        logprobs: As of `Side`.
        plan: What another arithmetic would change: for a group or an operation the words of a plan
            (`{"rms_norm": "transformers-llama; XC=fp32"}`), only changes of the plan that it has
            (`{"rms_norm": "XC=fp32"}`), "fp32" for its own function in binary32, or "exact". All
            are put in together; the errors with them are the last of `tried`.
        by: Groups of operations: "operation" for all of a kind, "name" by the last name of their
            module too, such as `down_proj`, "layer" by the number of their layer too, or "each".
        gradients: Whether gradients are measured.
        events: Whether rounding events are.
        tell: Told what runs next.

    Returns:
        A `ModelBudget`. Its text is the answer and two tables.

    Raises:
        TypeError: `model` is no `nn.Module`, or the inputs are of another type.
        ValueError: The model or a function raised an error; dropout is active; an operation cannot
            run in binary64; there is no loss and gradients are wanted; or `by` or `plan` names what
            there is not.
        RuntimeError: The run, run again, gives other bits (`ReplayError`).
    """
    if by not in get_args(By):
        raise ValueError(unknown("by", by, get_args(By)))
    side = Side(model, inputs, run, logprobs, loss=loss)
    return budget_of(side, plan=plan, by=by, gradients=gradients, events=events, tell=tell)


def budget_of(
    side: Side,
    *,
    plan: Mapping[str, str] | None = None,
    by: By = "operation",
    gradients: bool = True,
    events: bool = True,
    tell: Tell = lambda text: None,
    name: str = "run",
) -> ModelBudget:
    """Return the budget of a run; the arguments are those of `error_budget`."""
    tell("recording the model")
    side = replace(side, loss=_loss_of(side) if gradients else None)
    tape = record(side, name)
    check_replays(tape, name)
    tell("in binary64")
    return _Measuring(tape, side, by, tell).budget(plan or {}, events)


def _loss_of(side: Side) -> Callable[[Any, Any], Tensor]:
    """Return the function of a run's loss."""
    if side.loss is not None:
        return side.loss

    def own(out: Any, inputs: Any) -> Tensor:
        if isinstance(x := getattr(out, "loss", None), Tensor):
            return x
        tokens = inputs if isinstance(inputs, Tensor) else inputs.get("input_ids")
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3 or not isinstance(tokens, Tensor):
            raise ValueError(
                "loss= is needed where a model has no logits of tokens: give a function of (what"
                " the model returned, inputs), or gradients=False"
            )
        wide = logits[:, :-1].double()
        return F.cross_entropy(wide.reshape(-1, wide.shape[-1]), tokens[:, 1:].reshape(-1))

    return own


class _Measuring:
    """The measurements of one step."""

    def __init__(self, tape: Tape, side: Side, by: By, tell: Tell) -> None:
        self.tape, self.side, self.tell = tape, side, tell
        self.step = Step(tape, side.model)
        self.groups = _groups(tape, by, has_sums=tape.loss is not None)
        self.own: dict[int, Way] = {n: "own" for group in self.groups for n in group.numbers}
        self.exact_run = self.step.run({}, end=tape.loss)
        self.exact = self._results(self.exact_run)
        tell("in its own arithmetic")
        self.own_run = self.step.run(self.own, end=tape.loss, keep=True)
        self.total = errors_of(self._results(self.own_run), self.exact)

    def _results(self, found: Outcome) -> Results:
        tape = self.tape
        end = numpy_of(found.values[ending(tape)])
        table = None
        if tape.logits is not None:
            assert tape.tokens is not None
            table = log_softmax(numpy_of(found.values[tape.logits])[:, :-1])
            if tape.logprobs is None:
                end = np.take_along_axis(table, tape.tokens[:, 1:, None], -1)
            table = table.reshape(-1, table.shape[-1])
        return Results(
            loss=None if tape.loss is None else float(found.values[tape.loss]),
            end=end.reshape(-1),
            table=table,
            gradients={
                tape.values[v].name.removeprefix(PARAMETER): numpy_of(x)
                for v, x in found.gradients.items()
            },
        )

    def errors(self, ways: Mapping[int, Way], back: Mapping[int, Way] | None = None) -> Errors:
        """Return the errors of the step with some entries in another arithmetic than binary64."""
        return errors_of(self._results(self.step.run(ways, back, end=self.tape.loss)), self.exact)

    def replaced(self, numbers: Sequence[int], way: Way | None) -> dict[int, Way]:
        """Return the arithmetic of the model with that of some entries replaced."""
        others = {n: x for n, x in self.own.items() if n not in numbers}
        return others if way is None else others | dict.fromkeys(numbers, way)

    def budget(self, plan: Mapping[str, str], events: bool) -> ModelBudget:
        """Return all that is measured."""
        has_gradients = self.tape.loss is not None
        wanted = [(key, words, self._meant(key)) for key, words in plan.items()]
        changes: dict[int, Way | None] = {}
        for key, words, numbers in wanted:
            changes |= dict.fromkeys(numbers, self._way(key, words, numbers))
        lines = []
        for i, group in enumerate(self.groups):
            self.tell(f"{group.name} ({i + 1} of {len(self.groups)} groups)")
            own: dict[int, Way] = dict.fromkeys(group.numbers, "own")
            line = ModelLine(
                group=group.name,
                event="",
                how=group.how,
                count=len(group.numbers),
                alone=self.errors(own),
                without=self.errors(self.replaced(group.numbers, None)),
                backward=self.errors({}, own) if has_gradients else None,
            )
            if self._matters(line):
                lines.append(line)
        lines.sort(key=self._weight, reverse=True)
        notes: list[str] = []
        found = self._events(lines, notes) if events else []
        found.sort(key=lambda x: self._weight(x[0]), reverse=True)
        tried = self._repairs(lines, found)
        repair = min(tried, key=lambda x: x.errors.of(self.first), default=None)
        if wanted:
            ways: dict[int, Way] = {n: x for n, x in (self.own | changes).items() if x is not None}
            words = "; ".join(f"{key}: {text}" for key, text, _ in wanted)
            tried.append(Tried(words, self.errors(ways)))
        return ModelBudget(
            total=self.total,
            lines=tuple(lines),
            events=tuple(line for line, _ in found),
            repair=repair,
            tried=tuple(tried),
            operations=len(self.tape.counted),
            is_logprobs=(self.tape.logits or self.tape.logprobs) is not None,
            unequal=self._unequal() if has_gradients else 0.0,
            broken=self._broken(),
            notes=tuple(notes),
        )

    @property
    def first(self) -> str:
        """The result by which lines are sorted."""
        return "end" if self.total.gradients is None else "gradients"

    def _results_named(self) -> tuple[str, ...]:
        return ("end",) if self.total.gradients is None else ("gradients", "end")

    def _weight(self, line: ModelLine) -> tuple[bool, float]:
        share = line.share(self.first, self.total)
        return line.rescues(self.first, self.total), share if np.isfinite(share) else 0.0

    def _matters(self, line: ModelLine) -> bool:
        names = self._results_named()
        return any(line.alone.of(n) > NOTHING or line.rescues(n, self.total) for n in names)

    def _meant(self, key: str) -> tuple[int, ...]:
        """Return the entries of a group or an operation.

        Raises:
            ValueError: The step has none of that name.
        """
        for group in self.groups:
            if group.name == key:
                return group.numbers
        found = tuple(e.number for e in self.tape.counted if e.operation == key)
        if not found:
            names = [g.name for g in self.groups] + [e.operation for e in self.tape.counted]
            raise ValueError(f"plan: {unknown('operation', key, dict.fromkeys(names))}")
        return found

    def _way(self, key: str, words: str, numbers: Sequence[int]) -> Way | None:
        """Return the arithmetic that words ask for.

        Raises:
            ValueError: The operation has no plans, or none of these words.
        """
        if words == "exact":
            return None
        if words == "fp32":
            return "fp32"
        entries = [self.tape.entries[n] for n in numbers if n != SUMS]
        known = self.exact_run.values
        if not entries or not all(is_emulated(e, known) for e in entries):
            raise ValueError(
                f"plan {key}={shown(words)}: {key} has no plans of its own; give 'fp32' or 'exact'"
            )
        operation = OPERATIONS[operation_of(entries[0]) or ""]
        if words.partition(";")[0].strip() in _names(operation) or words.startswith("all:"):
            return _without_inputs(plan_of(operation, words))
        base, equal = self._plan(entries)
        if base is None or equal < KNOWN:
            raise ValueError(
                f"plan {key}={shown(words)}: no plan of {operation.name} gives its bits; begin with"
                f" the name of one, as in '{next(islice(_names(operation), 2, None))}; {words}'"
            )
        return _without_inputs(plan_of(operation, f"{base}; {words}"))

    def _plan(self, entries: Sequence[Entry]) -> tuple[str | None, float]:
        """Return the name of the plan that gives most bits of some entries, and their part."""
        tape = self.tape
        operation = OPERATIONS[operation_of(entries[0]) or ""]
        suffix = SUFFIXES.get(tape.values[entries[0].outputs[0]].dtype)
        if suffix is None:
            return None, 0.0
        smallest = min(entries, key=lambda e: sum(np.prod(tape.values[v].shape) for v in e.outputs))
        found: list[tuple[float, str]] = []
        for name in islice(operation.published, 2, None):
            equal = self._equal([smallest], plan_of(operation, name + suffix))
            found.append((equal, name + suffix))
            if equal == 1.0:
                break
        best = max(found, key=lambda x: x[0], default=(0.0, ""))
        if best[0] < KNOWN:
            return None, best[0]
        return best[1], self._equal(entries, plan_of(operation, best[1]))

    def _equal(self, entries: Sequence[Entry], plan: BasePlan) -> float:
        """Return the part of the numbers of some entries that a plan gives to the bit."""
        equal = total = 0
        for entry in entries:
            for call, inputs in arrays_of(entry, self.own_run.values):
                ran = run(call.operation, plan, inputs, settings=call.settings)
                own = self.tape.numpy(entry.outputs[call.output]).astype(np.float64)
                again = ran.outputs["out"].astype(np.float64)
                equal += int(((own == again) | (np.isnan(own) & np.isnan(again))).sum())
                total += own.size
        return equal / total if total else 0.0

    def _events(
        self, lines: Sequence[ModelLine], notes: list[str]
    ) -> list[tuple[ModelLine, list[str]]]:
        """Return a line for each event of the groups whose plan is known, with its promotion."""
        found = []
        groups = {group.name: group for group in self.groups}
        for line in lines:
            names = self._results_named()
            if max(line.share(n, self.total) for n in names) < SMALL:
                continue
            numbers = groups[line.group].numbers
            entries = [self.tape.entries[n] for n in numbers if n != SUMS]
            if not entries or not all(is_emulated(e, self.exact_run.values) for e in entries):
                continue
            self.tell(f"the plan of {line.group}")
            name, equal = self._plan(entries)
            if name is None or equal < KNOWN:
                notes.append(f"{line.group}: no plan gives its bits, so its events are not known")
                continue
            if equal < 1.0:
                notes.append(f"{line.group}: its plan {name} gives {equal:.2%} of its numbers")
            plan = plan_of(OPERATIONS[operation_of(entries[0]) or ""], name)
            for part in self._parts(entries, plan):
                self.tell(f"{line.group} {part.name}")
                only = _without_inputs(alone(plan, part))
                absent = _without_inputs(without(plan, part))
                own: dict[int, Way] = dict.fromkeys(numbers, only)
                event = ModelLine(
                    group=line.group,
                    event=part.name,
                    how=part.how,
                    count=len(numbers),
                    alone=self.errors(own),
                    without=self.errors(self.replaced(numbers, absent)),
                )
                if self._matters(event):
                    found.append((event, promotion(plan, part)))
        return found

    def _parts(self, entries: Sequence[Entry], plan: BasePlan) -> list[Part]:
        """Return the events of a plan that change a number of the step."""
        changing: set[str] = set()
        for entry in entries:
            for call, inputs in arrays_of(entry, self.own_run.values):
                given = self.own_run.passed.get(entry.outputs[call.output])
                has_backward = given is not None and OPERATIONS[call.operation].backward is not None
                ran = run(
                    call.operation,
                    plan,
                    inputs,
                    settings=call.settings,
                    gradients={"out": numpy_of(given)} if has_backward else None,
                    record=RecordBase(),
                )
                changing |= {n for n, s in ran.stats.items() if s.inexact or s.overflow or s.nan}
        parts = rounding_parts(plan, changing, self.tape.loss is not None)
        inputs_of = {site for site in plan.SITES if site.stage == "inputs"}
        return [
            part
            for part in parts
            if not on_tensor_core(plan, part)
            and not any(site in inputs_of for site, _ in part.places)
        ]

    def _repairs(
        self, lines: Sequence[ModelLine], events: Sequence[tuple[ModelLine, list[str]]]
    ) -> list[Tried]:
        """Return what was tried: the largest event and the largest groups in binary32."""
        if not lines or self.total.of(self.first) <= NOTHING:
            return []
        groups = {group.name: group for group in self.groups}
        tried = []
        for line, words in events[:1]:
            numbers = groups[line.group].numbers
            base = self._plan([self.tape.entries[n] for n in numbers])[0]
            text = " ".join(words)
            self.tell(f"{line.group}: {text}")
            operation = OPERATIONS[operation_of(self.tape.entries[numbers[0]]) or ""]
            way = _without_inputs(plan_of(operation, f"{base}; {text}"))
            tried.append(Tried(f"{line.group}: {text}", self.errors(self.replaced(numbers, way))))
        for line in lines[:1]:
            self.tell(f"{line.group} in FP32")
            ways = self.replaced(groups[line.group].numbers, "fp32")
            tried.append(Tried(f"{line.group}: fp32", self.errors(ways)))
        return tried

    def _unequal(self) -> float:
        """Return the part of the numbers of the gradients that are not those of the model."""
        own = own_gradients(self.side)
        differ = total = 0
        for v, parameter in self.step.parameters.items():
            if (x := own.get(id(parameter))) is None:
                continue
            again = self.own_run.gradients.get(v, torch.zeros_like(x))
            differ += int(((x != again) & ~((x != x) & (again != again))).sum())
            total += x.numel()
        return differ / total if total else 0.0

    def _broken(self) -> Broken | None:
        """Return where numbers stop being finite."""
        own, exact = self.own_run, self.exact_run
        for entry in self.tape.entries:
            for v in entry.outputs:
                if self.tape.values[v].array.is_floating_point():
                    found = broken_in(
                        entry.title, numpy_of(own.values[v]), numpy_of(exact.values[v]), "results"
                    )
                    if found:
                        return found
        for entry in reversed(self.tape.entries):
            for v in entry.outputs:
                if v in own.passed and v in exact.passed:
                    found = broken_in(
                        f"the gradient that {entry.title} gets",
                        numpy_of(own.passed[v]),
                        numpy_of(exact.passed[v]),
                        "gradients",
                    )
                    if found:
                        return found
        return None


def own_gradients(side: Side) -> dict[int, Tensor]:
    """Return the gradients that the model itself computes, in binary64, by parameters' identity."""
    parameters = [x for x in side.model.parameters() if x.requires_grad]
    with torch.enable_grad():
        if side.run is not None:
            out = side.run(side.model, side.inputs)
        elif isinstance(side.inputs, Tensor):
            out = side.model(side.inputs)
        else:
            out = side.model(**side.inputs)
        assert side.loss is not None
        loss = side.loss(out, side.inputs)
    if not loss.requires_grad:
        return {}
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {id(x): g.double() for x, g in zip(parameters, found, strict=True) if g is not None}


def _groups(tape: Tape, by: By, has_sums: bool) -> list[Group]:
    """Return the groups of operations of a step."""
    found: dict[str, list[Entry]] = {}
    for entry in tape.entries:
        if any(tape.values[v].array.is_floating_point() for v in entry.outputs):
            found.setdefault(_name(entry, by), []).append(entry)
    groups = [Group(name, tuple(e.number for e in own), _how(own)) for name, own in found.items()]
    return groups + ([Group(OF_SUMS, (SUMS,), "autograd")] if has_sums else [])


def _name(entry: Entry, by: By) -> str:
    name = NAMED.get(entry.operation, entry.operation)
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


def _names(operation: Operation) -> list[str]:
    names = list(operation.published)
    return names + [f"{n}-{f}" for n in names[2:] for f in ("fp16", "fp32")]


def _without_inputs(plan: BasePlan) -> BasePlan:
    """Return a plan whose inputs are not rounded, which the operations did that made them.

    Tensor cores read narrow operands only, so a plan with one keeps these roundings.
    """
    if any(plan.accumulator(site).alignment is not None for site in plan.PRODUCTS):
        return plan
    wide = {site: exactly(plan)[site] for site in plan.SITES if site.stage == "inputs"}
    return plan.rounded(wide)
