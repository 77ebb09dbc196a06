"""The diagnosis of a proxy's run as one record: steps 1 to 5.

Step 5, the known repairs, is here: the error of the gradient that each leaves, and the outcome of
its replays.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import BF16, RoundingMode
from roundscope.experiments.diagnose.student.blocks import Blocks, origin
from roundscope.experiments.diagnose.student.case import Case, case
from roundscope.experiments.diagnose.student.errors import Error, errors, looked, only
from roundscope.experiments.diagnose.student.replay import AS_IT_WAS, Student
from roundscope.experiments.diagnose.student.units import (
    Unit,
    Units,
    by_layer,
    by_site,
    change,
    format_of,
    ordered,
    units_of,
)
from roundscope.experiments.train.mx import GROUPS
from roundscope.experiments.train.student.arms import Plan, plan_of
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.replay.replayer import Clock, Outcome, Trial, better
from roundscope.tools.diagnose.replay.start import LEVEL, Cause, Replayed, replayed
from roundscope.tools.diagnose.search import REPEATS

BASE = "as it was"
FOUND = "the set of step 2 exact"
RANDOM = "sham: as many events exact, drawn by lot"
CLASSES = {
    "activations BF16": ("activations", "bf16"),
    "weights BF16": ("weights", "bf16"),
    "forward only": ("backward", "bf16"),
    "LayerNorm exact": ("norm", "fp32"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A repair that was tried.

    name, text   its name and change
    error        the gradient's error with it, at the weights of the run as it was
    outcome      of its replays;  p: that of `better`
    level        the p below which it counts, so that one repair in a hundred diagnoses seems to
                 work by luck
    """

    name: str
    text: str
    error: Error
    outcome: Outcome
    p: float
    level: float

    @property
    def word(self) -> str:
        """What the replays say of the repair."""
        if self.p < self.level:
            return "averts it"
        if self.outcome.failures == len(self.outcome.fates):
            return "does not avert it"
        return "undecided"


def texts(case: Case) -> dict[str, str]:
    """Return, as changes, repairs that change something of the plan and no event that is exact."""
    plan = case.plan(case.failed)
    units = units_of(case.config, plan)
    blocked = {u: f for u in ordered(units) if isinstance(f := format_of(plan, u), BlockFormat)}
    away = all(f.element.mode is RoundingMode.TIES_TO_AWAY for f in blocked.values())
    ties = RoundingMode.TIES_TO_EVEN if away else RoundingMode.TIES_TO_AWAY
    rules = {"RCEIL": ScaleRule.RCEIL, "BUMP": ScaleRule.BUMP, "EVEN": ScaleRule.EVEN}
    found = {name: _with(blocked, rule=rule) for name, rule in rules.items()}
    found |= {str(mode): _with(blocked, mode=mode) for mode in (ties, RoundingMode.STOCHASTIC)}
    for name, (group, to) in CLASSES.items():
        members = [u for u in units if u.site in GROUPS[group]]
        wider = [u for u in members if to == "fp32" or format_of(plan, u) != BF16]
        found[name] = change(wider, to)
    return {name: text for name, text in found.items() if text}


def _with(
    blocked: dict[Unit, BlockFormat],
    rule: ScaleRule | None = None,
    mode: RoundingMode | None = None,
) -> str:
    """Return the change of block formats that can have another rule or mode to it."""
    groups: dict[BlockFormat, list[Unit]] = {}
    for u, f in blocked.items():
        if (rule or f.rule) != f.rule or (mode or f.element.mode) is not f.element.mode:
            groups.setdefault(f, []).append(u)
    new = {
        f: (rule or f.rule, replace(f.element, mode=mode or f.element.mode))
        for f in groups
        if rule is not ScaleRule.BUMP
        or f.element.format.max_finite == 1.75 * 2.0**f.element.format.emax
    }
    return "; ".join(
        change(groups[f], spelled(replace(f, rule=other, element=element)))
        for f, (other, element) in new.items()
    )


def spelled(f: BlockFormat) -> str:
    """Return FORMAT:RULE:MODE of a block format, as changes write it."""

    def plain(x: BlockFormat) -> BlockFormat:
        element = replace(x.element, mode=RoundingMode.TIES_TO_EVEN)
        return replace(x, size=32, rule=ScaleRule.FLOOR, element=element)

    name = next(n for n, known in BLOCK_NAMED.items() if plain(known) == plain(f))
    return f"{name}:{f.rule}:{f.element.mode}"


def candidates(case: Case, done: Replayed) -> dict[str, str]:
    """Return as changes: the run as it was, repairs, the set of step 2, as many at random."""
    g, found = done.guilty, {BASE: AS_IT_WAS, **texts(case)}
    if g is not None:
        found[FOUND] = change(g.found)
        found |= {RANDOM: change(g.controls[0].units)} if g.controls else {}
    return found


def plan_with(case: Case, text: str) -> Plan:
    """Return what rounds where with a change, when the run diverged."""
    return plan_of(case.config, (*case.own.texts(case.failed), *filter(None, [text])))


def repairs(done: Replayed, found: dict[str, str], measured: Mapping[str, Error]) -> list[Tried]:
    """Replay the repairs; the replays of the run as it was are all shams."""
    names, shams = [name for name in found if name != BASE], done.shams.fates
    fates = iter(done.replayer([Trial(found[n], r) for n in names for r in range(REPEATS)]))
    made = {n: tuple(next(fates) for _ in range(REPEATS)) for n in names} | {BASE: shams}
    return [
        Tried(
            name=name,
            text=text,
            error=measured[name],
            outcome=Outcome(units=frozenset(), fates=made[name]),
            p=1.0 if name == BASE else better(made[name], shams),
            level=LEVEL / max(len(names), 1),
        )
        for name, text in found.items()
    ]


ALL, SET, REST = "all events", "the set of step 2", "all but the set"
REPAIR = "with "  # before the name of a repair, so that one executable measures all


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The results of the diagnosis.

    case, replayed   the run, and steps 1 and 2
    steps            the first and last step whose gradients were measured
    errors           by choice of events;  origin: blocks of operands
    tried            the repairs, the run as it was first; empty where there is nothing to repair
    """

    case: Case
    replayed: Replayed
    steps: tuple[int, int]
    errors: dict[str, Error]
    origin: tuple[Blocks, ...]
    tried: tuple[Tried, ...]
    seconds: float

    @property
    def guilty(self) -> Units:
        """The set of step 2, empty without one that holds."""
        g = self.replayed.guilty
        found: Units = g.found if g is not None and self.replayed.holds else frozenset()
        return found


def diagnose(
    folder: Path, options: DiagnoseOptions, out: Path, progress: Callable[[int, str], None]
) -> Found:
    """Return the diagnosis of one run; out: where replays are kept. Raises as `case` does."""
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    began = time.perf_counter()
    chosen, clock = case(folder, options), Clock(progress)
    done = replayed(Student(case=chosen, clock=clock), out, clock)
    begin = done.replayer.window.begin
    plan, units = chosen.plan(chosen.failed), done.units
    states = looked(chosen, begin) if units else [begin]
    clock.says(3, f"gradients at {len(states)} steps")
    marked: Units = done.guilty.found if done.guilty is not None and done.holds else frozenset()
    picked = choices(plan, units, marked) if units else {}
    texts = candidates(chosen, done) if done.cause is Cause.ROUNDING else {}
    picked |= {f"{REPAIR}{n}": plan_with(chosen, text) for n, text in texts.items()}
    found = errors(chosen, states, picked) if units else {}
    clock.says(4, "blocks")
    blocks = origin(chosen, states[-1], units, marked)
    clock.says(5, "replays of the repairs")
    left = {n.removeprefix(REPAIR): e for n, e in found.items() if n.startswith(REPAIR)}
    tried = repairs(done, texts, left)
    return Found(
        case=chosen,
        replayed=done,
        steps=(states[0].step, states[-1].step),
        origin=tuple(blocks),
        errors={n: e for n, e in found.items() if not n.startswith(REPAIR)},
        tried=tuple(tried),
        seconds=time.perf_counter() - began,
    )


def choices(plan: Plan, units: Units, marked: Units) -> dict[str, Plan]:
    """Return plans in which only these round: all, the set and its rest, a layer, an event."""
    found = {ALL: units}
    found |= {SET: marked, REST: units - marked} if marked and marked != units else {}
    found |= by_layer(units) | by_site(units)
    return {name: only(plan, own) for name, own in found.items()}
