"""`Trial`: one training; which ones the rows need, and their `Results` by case and row."""

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.framework.estimates import Estimate, mean
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.papers.failure_2510_04212.conditions import (
    FAILS,
    FP32,
    PATH,
    Case,
    Row,
    Scale,
    rows,
)
from roundscope.experiments.train.config import Config, unusual
from roundscope.experiments.train.gpt import monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.interventions import described, plans_of
from roundscope.experiments.train.gpt.linear import FULL
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.groups import Group, blocks, drawing, numbers
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.results.run import Run, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training.

    changes  changes of the preset qiu-yao, in the trainer's words
    tiles    the number of parts of the context
    seed     the seed of weights and batches
    times    `Case.times`
    """

    changes: tuple[str, ...]
    tiles: int
    steps: int
    seed: int
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A trial in its place: the names of its case and row.

    Several entries may share a trial, or have trials that are the same arithmetic.
    """

    case: str
    row: str
    trial: Trial


def chosen_rows(scale: Scale, case: Case) -> list[Row]:
    """Return the rows of a case that a scale runs."""
    return [row for row in rows(case, scale.config) if row.core or not scale.core]


def entries(scale: Scale) -> list[Entry]:
    """Return all entries that are run whatever the results are."""
    return [
        entry
        for case in scale.cases
        for row in chosen_rows(scale, case)
        for entry in of_row(scale, case, row)
    ]


def of_row(scale: Scale, case: Case, row: Row, seeds: Iterable[int] | None = None) -> list[Entry]:
    """Return the entries of a row, one for each seed."""
    steps, usual = (scale.short, scale.few) if row.search else (scale.steps, scale.seeds)
    changes = (*case.changes, *row.changes)
    return [
        Entry(
            case=case.name,
            row=row.name,
            trial=Trial(changes=changes, tiles=row.tiles, steps=steps, seed=seed, times=case.times),
        )
        for seed in (usual if seeds is None else seeds)
    ]


def config_of(scale: Scale, trial: Trial) -> Config:
    """Return the config of a trial's executable."""
    c = scale.config
    block, steps = c.context // trial.tiles, max(trial.steps, c.warmup)
    return replace(c, block=block, steps=steps, lr=1.0, min_lr=1.0, decay_steps=None)


def key(scale: Scale, trial: Trial) -> str:
    """Return the key of a run: of all that decides it but versions, device and a plan's wording."""
    named = (*NAMED, "block")
    config = {name: x for name, x in unusual(scale.config).items() if name not in named}
    plans = _plans(config_of(scale, trial), trial.changes)
    return key_of(config, plans, scale.rate * trial.times, trial.tiles, trial.steps, trial.seed)


@lru_cache(4096)
def _plans(config: Config, changes: tuple[str, ...]) -> list[dict[str, Any]]:
    plans = described(plans_of(config, changes))
    for each in plans:
        each["plan"].pop("name")
    return plans


def settings_of(scale: Scale, trials: Sequence[Trial]) -> Settings:
    """Return trials of equally many steps and tiles as arms of one run."""
    arms = [
        Arm(name=str(i), changes=t.changes, lr=scale.rate * t.times, seed=t.seed)
        for i, t in enumerate(trials)
    ]
    return Settings(config=config_of(scale, trials[0]), arms=tuple(arms))


def executables(scale: Scale, trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return trials by executable: the same steps, tiles and structure of plans.

    Long lists are cut into equal parts, the last of which is filled up with its first trials, so
    that all parts share a compilation.
    """
    alike: dict[tuple[int, int], list[Trial]] = {}
    for trial in {key(scale, t): t for t in trials}.values():
        alike.setdefault((trial.steps, trial.tiles), []).append(trial)
    found = []
    for group in (g for own in alike.values() for g in _by_structure(scale, tuple(own))):
        size = math.ceil(len(group) / math.ceil(len(group) / scale.arms))
        parts = [group[i : i + size] for i in range(0, len(group), size)]
        found += [part + part[:1] * (size - len(part)) for part in parts]
    return found


@lru_cache(64)
def _by_structure(scale: Scale, trials: tuple[Trial, ...]) -> list[list[Trial]]:
    """Return trials of equal steps and tiles by the structure that their changes give a plan."""
    firsts = list({t.changes: t for t in trials}.values())
    groups = []
    for arms in numbers(settings_of(scale, firsts)):
        alike = {firsts[i].changes for i in arms}
        groups.append([t for t in trials if t.changes in alike])
    return groups


LARGEST, SMALLEST, RANDOM = "8 largest", "8 smallest", "8 random"
PICKED = "O path FP32 in half of all heads"
SETS = 4  # the number of random sets of heads for each seed


def chosen(scale: Scale, case: Case, failing: Sequence[Run[Trial]]) -> list[Entry]:
    """Return the entries of row 8, with O in FP32 in half of all heads.

    The paper has it so in 6 of the 12 heads of a layer. For every failing run these are the heads
    with the largest ||W_Q,h||, those with the smallest, and random halves.
    """
    found: list[Entry] = []
    for run in failing:
        seed, order = run.seed, ranked(run)
        half = len(order) // 2
        draw = random.Random(seed)
        sets = {LARGEST: order[:half], SMALLEST: order[half:]}
        sets |= {f"{RANDOM} {i}": draw.sample(order, half) for i in range(SETS)}
        for name, heads in sets.items():
            changes = tuple(f"layer={i} head={h} site={PATH} -> fp32" for i, h in sorted(heads))
            found += of_row(scale, case, Row(name, PICKED, changes), [seed])
    return found


def ranked(run: Run[Trial]) -> list[tuple[int, int]]:
    """Return all (layer, head), those with the largest ||W_Q,h|| before divergence first."""
    norms = {
        (layer, head): norm
        for layer, row in enumerate(run.extra["heads"])
        for head, norm in enumerate(row)
    }
    return sorted(norms, key=lambda at: -norms[at])


Own = Sequence[Run[Trial]]  # the runs of one row, in the order of seeds


class Results:
    """Runs by (case, row).

    scale   the scale, with the cases of which some runs are stored
    by      (case, row) -> its runs, in the order of seeds; a run that rows share is the same in
            all of them, with the condition of the first
    changes (case, row) -> its changes of the preset
    """

    def __init__(
        self, scale: Scale, entries: Sequence[Entry], found: Mapping[Trial, Run[Trial]]
    ) -> None:
        self.by: dict[tuple[str, str], list[Run[Trial]]] = {}
        self.changes: dict[tuple[str, str], tuple[str, ...]] = {}
        for entry in entries:
            if entry.trial in found:
                self.by.setdefault((entry.case, entry.row), []).append(found[entry.trial])
                self.changes[entry.case, entry.row] = entry.trial.changes
        there = {case for case, _ in self.by}
        self.scale = replace(scale, cases=tuple(c for c in scale.cases if c.name in there))

    def of(self, case: str, row: str) -> list[Run[Trial]]:
        """Return the runs of a row; none where the row was not run."""
        return self.by.get((case, row), [])

    def rows(self, case: str) -> list[str]:
        """Return the names of the rows of a case that were run."""
        return [row for own, row in self.by if own == case]

    def excess(self, case: str, own: Own) -> Estimate:
        """Return the loss above FP32 of the same seed, in nats, of runs that ended as late."""
        exact = {run.seed: run for run in self.of(case, FP32)}
        pairs = [(run, exact[run.seed]) for run in own if run.seed in exact]
        return mean({a.seed: a.loss - b.loss for a, b in pairs if a.steps == b.steps})

    def fails(self, case: str) -> bool:
        """Return whether every run of a case diverged and no FP32 run; repairs are judged there."""
        base, exact = self.of(case, FAILS), self.of(case, FP32)
        if not (base and exact):
            return False
        return all(r.diverged is not None for r in base) and all(r.diverged is None for r in exact)


def whole(wanted: Sequence[Entry], found: Collection[Trial]) -> list[Entry]:
    """Return the entries of rows that are complete, in cases whose first two rows are.

    Rows that are judged together (layers, heads, the factorial: their names begin with the same
    word) are complete together.
    """
    places = [(e.case, e.row.partition(" ")[0]) for e in wanted]
    missing = {at for e, at in zip(wanted, places, strict=True) if e.trial not in found}
    cases = {e.case for e in wanted if not {(e.case, FAILS), (e.case, FP32)} & missing}
    return [
        e for e, at in zip(wanted, places, strict=True) if e.case in cases and at not in missing
    ]


def middle(values: Sequence[float]) -> float:
    """Return the median of the finite numbers, NaN without any."""
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else math.nan


def split(r: Results) -> tuple[list[Run[Trial]], list[Run[Trial]]]:
    """Return every run whose drift was measured, once: those that diverged, then the others."""
    runs = [run for own in r.by.values() for run in own if math.isfinite(drift(run))]
    every = {run.condition: run for run in runs}.values()
    return [x for x in every if x.diverged is not None], [x for x in every if x.diverged is None]


def share(run: Run[Any]) -> float:
    """Return sum |R| / sum |dW_Q| over looks, heads: the rest's share in the gradient of W_Q."""
    return _rest(run, 1, 2)


def steady(run: Run[Any]) -> float:
    """Return |sum R| / sum |R|: how far R points one way."""
    return _rest(run, 0, 1)


def drift(run: Run[Any]) -> float:
    """Return share x steady = |sum R| / sum |dW_Q|: what the rest adds to W_Q in one direction."""
    return _rest(run, 0, 2)


def _rest(run: Run[Any], over: int, under: int) -> float:
    """Return the quotient of two columns of "rest": |sum R|, sum |R| and sum |dW_Q|."""
    heads = [head for layer in run.extra["rest"] for head in layer]
    total = sum(head[under] for head in heads)
    return sum(head[over] for head in heads) / total if total else math.nan


# steps done, losses (A,) since the look before, ||W_Q,h|| (A, L, N)
Look = tuple[int, np.ndarray, np.ndarray]


def launch(
    scale: Scale, trials: Sequence[Trial], progress: Callable[[int], None]
) -> list[Run[Trial]]:
    """Return the runs of trials of one structure, in their order.

    It ends at the last step, or once every arm has diverged; `progress` is told the steps done.
    What is reported of an arm is of the time up to its divergence, so nothing depends on the arms
    beside it but the order of native sums.
    """
    settings, steps = settings_of(scale, trials), trials[0].steps
    state = one_step.start(
        settings.config, len(trials), [settings.config.init_seed + t.seed for t in trials]
    )
    group, drawn = Group(settings, list(range(len(trials))), state), drawing(settings)
    follow, rest = Follow(len(trials)), Rest(settings.config)

    def look(_: int) -> Any:
        return monitor.query_norms(group.state.params["layers"]["qkv"])

    def advance(number: int) -> Any:
        batches = drawn(number)
        if rest.due(number):
            rest.look(group.state.params, group.own(batches), group.plans(number)[0], number)
        return group.advance(number, batches)

    looks: list[Look] = [(0, np.full(len(trials), np.nan), np.asarray(look(0)))]
    for block in blocks(advance, 0, steps, look=look, ahead=False):
        follow.add(block.done, block.losses)
        looks.append((block.done, np.mean(block.losses, axis=0), block.look))
        progress(block.done)
        if (follow.first >= 0).all():
            break
    final, rests = follow.final(), rest.found(len(trials))
    return [
        _run(t, a, int(follow.first[a]), float(final[a]), looks, rests[a])
        for a, t in enumerate(trials)
    ]


def _run(
    trial: Trial, arm: int, first: int, final: float, looks: Sequence[Look], rest: np.ndarray
) -> Run[Trial]:
    """Return what is reported of an arm.

    extra has norm, the largest ||W_Q,h||_2 up to divergence; heads, those of layers and heads at
    the last look before it; and rest, as `Rest.found` gives it. The curve has (steps done, mean
    loss since the last entry, largest ||W_Q,h||_2), every 25 steps from 0.
    """
    before = [look for look in looks if first < 0 or look[0] <= first]  # the one at step 0 always
    norms = np.stack([seen[arm] for _, _, seen in before])
    norms = norms[np.isfinite(norms).all((1, 2))]
    return Run(
        condition=trial,
        steps=trial.steps,
        diverged=None if first < 0 else first,
        loss=final if first < 0 else math.nan,
        curve=tuple((done, float(loss[arm]), float(seen[arm].max())) for done, loss, seen in looks),
        extra={"norm": float(norms.max()), "heads": norms[-1].tolist(), "rest": rest.tolist()},
    )


SEQUENCES, EVERY = 4, 5  # how many sequences of a batch are read; steps between looks


class Rest:
    """Looks at all arms of a launch, from step `config.warmup` to twice that.

    These steps are early, and the same for every arm.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.totals = config, None

    def due(self, step: int) -> bool:
        """Return whether to look before this step."""
        return self.config.warmup <= step < 2 * self.config.warmup and step % EVERY == 0

    def look(self, params: Any, tokens: np.ndarray, plans: Tables | None, step: int) -> None:
        """Add R and dW_Q at these weights to the totals; tokens are (B, T + 1) or (A, B, T + 1)."""
        now = _looking(one_step.numbers_only(self.config))(
            params, tokens[..., :SEQUENCES, :], plans, np.int32(step)
        )
        self.totals = now if self.totals is None else jax.tree.map(jnp.add, self.totals, now)

    def found(self, arms: int) -> np.ndarray:
        """Return |sum R|, sum |R|, sum |dW_Q| by layer and head, (A, L, N, 3), or NaN."""
        if self.totals is None:
            return np.full((arms, self.config.layers, self.config.heads, 3), np.nan)
        rest, size, gradient = (np.asarray(x, float) for x in jax.device_get(self.totals))
        return np.stack([np.sqrt((rest**2).sum((-2, -1))), size, gradient], axis=-1)


@lru_cache(64)
def _looking(config: Config) -> Any:
    """Return the program that gives (R, |R|, |dW_Q|) of every arm, layer and head."""

    def one(params: Any, tokens: Array, plans: Tables, step: Any) -> tuple[Array, Array, Array]:
        own = row_sums(config, params, tokens, plans, step)
        rest = jnp.einsum("lbtn,lbtd,lbtnh->lndh", own.r, own.x, own.pk, precision=FULL)
        gradient = jnp.einsum("lbtd,lbtnh->lndh", own.x, own.dq, precision=FULL)
        size, norm = (jnp.sqrt((x * x).sum((-2, -1))) for x in (rest, gradient))
        return rest, size, norm

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        axes = (0, 0 if tokens.ndim == 3 else None, 0, None)
        return jax.vmap(one, in_axes=axes)(params, tokens, plans, step)

    return jax.jit(all_arms)
