"""`Measuring`: what is measured for the error budget of one step of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roundscope.attention.budget.parts import Part, alone, promotion, rounding_parts, without
from roundscope.attention.torch.arrays import numpy_of
from roundscope.emu.errors import unknown
from roundscope.emu.shown import shown
from roundscope.emu.stats.comparison import agree, relative_rms
from roundscope.events.plan import BasePlan
from roundscope.operations.models.budget import (
    NOTHING,
    Broken,
    Errors,
    Flipped,
    ModelBudget,
    ModelLine,
    Results,
    Tried,
    broken_in,
    errors_of,
)
from roundscope.operations.models.comparing.align import ending
from roundscope.operations.models.replay import log_softmax
from roundscope.operations.models.tape import PARAMETER, Tape, refs
from roundscope.operations.models.torch.budget.grouping import By, Group, groups_of
from roundscope.operations.models.torch.budget.stepping import SUMS, Outcome, Step, Way
from roundscope.operations.models.torch.comparing.plans import (
    found_plan,
    operation_of,
    parts_of,
    plan_in_words,
)
from roundscope.operations.models.torch.side import Side, result_of

Tell = Callable[[str], None]
SMALL = 1e-3  # the share below which no events of a group are measured, nor an event's absence
LARGE = 1e-2  # the share above which events that are in binary32 are measured one by one
NEGLIGIBLE = 1e-4  # the share below which a group's absence is not measured
TRIED = 2  # how many of the largest groups, and of the largest events, are tried in binary32


class Measured(NamedTuple):
    """A line, and the change that puts what it is about into binary32.

    line   the line
    group  its group
    words  the change, such as "OUT=fp32"; "exact" for binary64
    way    the arithmetic of the group with it; None for binary64
    """

    line: ModelLine
    group: Group
    words: str
    way: Way | None


class Measuring:
    """The measurements of one step."""

    def __init__(self, tape: Tape, side: Side, by: By, tell: Tell) -> None:
        self.tape, self.side, self.tell = tape, side, tell
        self.step = Step(tape, side.model)
        self.groups = groups_of(tape, by, has_sums=tape.loss is not None)
        self.own: dict[int, Way] = {n: "own" for group in self.groups for n in group.numbers}
        self.exact_run = self.step.run({}, end=tape.loss)
        self.exact = self._results(self.exact_run)
        tell("in its own arithmetic")
        self.own_run = self.step.run(self.own, end=tape.loss, keep=True)
        self.total = errors_of(self._results(self.own_run), self.exact)

    def _results(self, found: Outcome) -> Results:
        tape = self.tape
        end = _numbers(found.values[ending(tape)])
        table = None
        if tape.logits is not None:
            assert tape.tokens is not None
            with np.errstate(all="ignore"):  # infinite and NaN are told later
                table = log_softmax(_numbers(found.values[tape.logits])[:, :-1])
            if tape.logprobs is None:
                end = np.take_along_axis(table, tape.tokens[:, 1:, None], -1)
            table = table.reshape(-1, table.shape[-1])
        return Results(
            loss=None if tape.loss is None else float(found.values[tape.loss]),
            end=end.reshape(-1),
            table=table,
            gradients={
                tape.values[v].name.removeprefix(PARAMETER): _numbers(x)
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
        notes: list[str] = []
        lines = self._sorted(self._groups_measured(notes))
        found = self._sorted(self._events_measured(lines, notes)) if events else []
        tried = [self._tried(x) for x in (*self._largest(found), *self._largest(lines))]
        if wanted:
            ways: dict[int, Way] = {n: x for n, x in (self.own | changes).items() if x is not None}
            words = "; ".join(f"{key}: {text}" for key, text, _ in wanted)
            tried.append(Tried(words, self.errors(ways)))
        flips = self._flips(self.own_run)
        if flips:
            names = "; ".join(str(flip) for flip in flips)
            notes.insert(0, f"decisions that differ from those in binary64: {names}")
        unequal, apart = self._unequal(notes) if has_gradients else (0.0, 0.0)
        return ModelBudget(
            total=self.total,
            lines=tuple(x.line for x in lines),
            events=tuple(x.line for x in found),
            tried=tuple(tried),
            operations=len(self.tape.counted),
            is_logprobs=self.tape.logits is not None or self.tape.logprobs is not None,
            unequal=unequal,
            broken=self._broken(),
            notes=tuple(notes),
            apart=apart,
            flips=tuple(flips),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The results of which there are shares; lines are sorted by the first."""
        return ("end",) if self.total.gradients is None else ("gradients", "end")

    def _sorted(self, found: Sequence[Measured]) -> list[Measured]:
        """Return those that make an error, the largest first."""
        lost = [name for name in self.names if not np.isfinite(self.total.of(name))]
        kept = [
            x
            for x in found
            if any(x.line.alone.of(n) > NOTHING for n in self.names)
            or any(x.line.rescues(n, self.total) for n in lost)
        ]

        def weight(x: Measured) -> tuple[bool, float]:
            share = x.line.share(self.names[0], self.total)
            rescues = any(x.line.rescues(n, self.total) for n in lost)
            return rescues, share if np.isfinite(share) else 0.0

        return sorted(kept, key=weight, reverse=True)

    def _largest(self, found: Sequence[Measured]) -> list[Measured]:
        """Return the largest of each result."""
        most = []
        for name in self.names:
            each = [x for x in found if x.line.share(name, self.total) > NEGLIGIBLE]
            each.sort(key=lambda x: -x.line.share(name, self.total))
            most += [x for x in each[:TRIED] if x not in most]
        return most

    def _tried(self, found: Measured) -> Tried:
        words = f"{found.group.name}: {found.words}"
        self.tell(f"{words} is tried")
        return Tried(words, self.errors(self.replaced(found.group.numbers, found.way)))

    def _groups_measured(self, notes: list[str]) -> list[Measured]:
        found = []
        for i, group in enumerate(self.groups):
            self.tell(f"{group.name} ({i + 1} of {len(self.groups)} groups)")
            own: dict[int, Way] = dict.fromkeys(group.numbers, "own")
            line = self._line(group, "", group.how, own, None)
            if line.flips:
                names = "; ".join(str(flip) for flip in line.flips)
                notes.append(f"{group.name} alone makes other decisions than binary64: {names}")
            if line.without is not None and self.tape.loss is not None:
                line = replace(line, backward=self.errors({}, own))
            is_single = self._is_single(group)
            wider: tuple[str, Way | None] = ("exact", None) if is_single else ("fp32", "fp32")
            found.append(Measured(line, group, *wider))
        return found

    def _is_single(self, group: Group) -> bool:
        """Return whether all that a group reads and makes is in binary32 or binary64."""
        every = range(len(self.tape.entries))
        entries = [
            self.tape.entries[n] for n in (every if SUMS in group.numbers else group.numbers)
        ]
        touched = {v for e in entries for v in (*refs(e.arguments), *e.outputs)}
        values = [self.tape.values[v] for v in touched]
        types = {x.dtype for x in values if x.array.is_floating_point()}
        return "float32" in types and types <= {"float32", "float64"}

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
        """Return the arithmetic that words ask for; None for binary64.

        Raises:
            ValueError: The operation has no plans, or none of these words.
        """
        if words == "exact":
            return None
        if words == "fp32":
            return "fp32"
        entries = [self.tape.entries[n] for n in numbers if n != SUMS]
        try:
            plan: BasePlan = plan_in_words(self.tape, entries, self.own_run.values, words)
            return plan
        except ValueError as error:
            raise ValueError(f"plan {key}={shown(words)}: {error}") from None

    def _events_measured(self, lines: Sequence[Measured], notes: list[str]) -> list[Measured]:
        """Return the events of the groups whose plan is known."""
        found: list[Measured] = []
        for line, group, *_ in lines:
            entries = [self.tape.entries[n] for n in group.numbers if n != SUMS]
            is_small = line.weight(self.total, self.names) < SMALL
            if is_small or operation_of(entries, self.own_run.values) is None:
                continue
            self.tell(f"the plan of {group.name}")
            plan, equal = found_plan(self.tape, entries, self.own_run.values)
            if plan is None:
                notes.append(f"{group.name}: no plan gives its bits, so its events are not known")
                continue
            bits = "all" if equal == 1.0 else f"{equal:.3%}"
            notes.append(
                f"{group.name}: the plan {plan.name} gives {bits} of its results to the bit"
            )
            for part in parts_of(self.tape, entries, plan, self.own_run):
                found += self._event_measured(group, plan, part)
        return found

    def _event_measured(self, group: Group, plan: BasePlan, part: Part) -> list[Measured]:
        """Measure a part of a plan, or its members if they matter."""
        self.tell(f"{group.name} {part.name}")
        own: dict[int, Way] = dict.fromkeys(group.numbers, alone(plan, part))
        line = self._line(group, part.name, part.how, own, without(plan, part))
        if len(part.places) > 1 and line.weight(self.total, self.names) > LARGE:
            names = part.formula.split()
            members = [p for p in rounding_parts(plan, names, True) if p.name in names]
            return [x for p in members for x in self._event_measured(group, plan, p)]
        words = " ".join(promotion(plan, part))
        return [Measured(line, group, words, plan.changed(words))]

    def _line(
        self, group: Group, event: str, how: str, own: Mapping[int, Way], absent: Way | None
    ) -> ModelLine:
        """Measure some operations, or an event of them, alone and by their absence.

        own: the arithmetic of what is measured alone; absent: that of the group without it.
        """
        run = self.step.run(own, end=self.tape.loss)
        line = ModelLine(
            group=group.name,
            event=event,
            how=how,
            count=len(group.numbers),
            alone=errors_of(self._results(run), self.exact),
            without=None,
            flips=tuple(self._flips(run)),
        )
        is_lost = not all(np.isfinite(self.total.of(n)) for n in self.names)
        least = SMALL if event else NEGLIGIBLE
        if is_lost or line.weight(self.total, self.names) > least:
            line = replace(line, without=self.errors(self.replaced(group.numbers, absent)))
        return line

    def _flips(self, run: Outcome) -> list[Flipped]:
        """Return the operations of a run that decide otherwise than in binary64.

        Such have results that are no floating-point numbers, of inputs that are: the numbers of
        experts or of tokens, and comparisons.
        """
        found = []
        for entry in self.tape.entries:
            if not any(self.exact_run.values[v].is_floating_point() for v in refs(entry.arguments)):
                continue
            title = f"{entry.function.rpartition('.')[2]} {entry.module}".strip()
            for v in entry.outputs:
                one, two = run.values[v], self.exact_run.values[v]
                if one.is_floating_point():
                    continue
                if one.shape != two.shape:
                    found.append(Flipped(title, one.numel(), one.numel()))
                    continue
                if entry.function.endswith("topk"):  # the experts of a token, in any order
                    one, two = (x.sort(-1).values for x in (one, two))
                    differ = (one != two).any(-1)
                else:
                    differ = one != two
                if count := int(differ.sum()):
                    found.append(Flipped(title, count, differ.numel()))
        return found

    def _unequal(self, notes: list[str]) -> tuple[float, float]:
        """Return the part of the numbers of the gradients that are not those of the model, and by
        how much of their length.
        """
        own, result = own_gradients(self.side)
        wanted = {
            v: x for v, p in self.step.parameters.items() if (x := own.get(id(p))) is not None
        }
        if not wanted:
            return 0.0, 0.0
        found = self.own_run.gradients
        pairs = [(found.get(v, torch.zeros_like(x)), x) for v, x in wanted.items()]
        again, want = (
            np.concatenate([_numbers(x).reshape(-1) for x in each])
            for each in zip(*pairs, strict=True)
        )
        share = float((~agree(again, want)).mean())
        if not share:
            return 0.0, 0.0
        apart = relative_rms(again, want)
        why = []
        recorded = None if self.tape.output is None else self.tape.values[self.tape.output].array
        if recorded is not None and not _equal(result, recorded):
            why.append(
                "with gradients on, the model's results are others than in the recorded run, since"
                " PyTorch takes other kernels, as of attention whose bias has a gradient"
            )
        if lost := [v for v, x in wanted.items() if v not in found and bool((x != 0).any())]:
            name = self.tape.values[lost[0]].name.removeprefix(PARAMETER)
            why.append(
                f"no gradient reaches {name}{f' and {n} more' if (n := len(lost) - 1) else ''}: a"
                " bias or a mask of attention is a constant here"
            )
        order = "autograd adds gradients in another order where an operation reads a value twice"
        notes.append(
            f"{share:.1%} of the numbers of the gradients are others than the model's own, by"
            f" {apart:.1e} of their length: {'; '.join(why) or order}"
        )
        return share, apart

    def _broken(self) -> Broken | None:
        """Return where numbers stop being finite."""
        own, exact = self.own_run, self.exact_run
        for entry in self.tape.entries:
            for v in entry.outputs:
                if self.tape.values[v].array.is_floating_point():
                    found = broken_in(
                        entry.title, _numbers(own.values[v]), _numbers(exact.values[v]), "results"
                    )
                    if found:
                        return found
        for entry in reversed(self.tape.entries):
            for v in entry.outputs:
                if v in own.passed and v in exact.passed:
                    found = broken_in(
                        f"the gradient that {entry.title} gets",
                        _numbers(own.passed[v]),
                        _numbers(exact.passed[v]),
                        "gradients",
                    )
                    if found:
                        return found
        return None


def _numbers(x: Tensor) -> np.ndarray:
    return numpy_of(x.cpu())


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and bool(agree(_numbers(x.detach()), _numbers(y)).all())


def own_gradients(side: Side) -> tuple[dict[int, Tensor], Tensor]:
    """Return the gradients that the model itself computes, in binary64, by parameters' identity,
    and what it returned.
    """
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
        return {}, result_of(out)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, found, strict=True)
    return {id(x): g.double() for x, g in pairs if g is not None}, result_of(out)
