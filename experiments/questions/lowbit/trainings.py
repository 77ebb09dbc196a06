"""The trainings of `roundscope reproduce lowbit`: conditions, launches, what a look measures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax import Array

from roundscope.experiments.framework import training
from roundscope.experiments.framework.estimates import grouped
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.questions.lowbit.measure import COLUMNS, measured
from roundscope.experiments.questions.lowbit.recipes import (
    BF16,
    BOTH,
    BOTH_OF_P,
    CENTRED,
    CENTRED_HIGH,
    CENTRED_MATCHED,
    FP32,
    HIGH,
    MATCHED,
    NONE,
    OWN,
    OWN_HIGH,
    PLAIN,
    SHAMS,
    SHAMS_MATCHED,
    SIGNS_MATCHED,
    pairs,
    words,
)
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.plans import uniform
from roundscope.experiments.train.gpt.step import numbers_only
from roundscope.experiments.train.groups import Batches, Group
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.compile_cache import keep_compilations
from roundscope.tools.results.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The settings of a run; rate is the learning rate after the warm-up."""

    recipe: str
    cure: str
    rate: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, the number of seeds, and by learning rate the recipes with their cures."""

    name: str
    config: Config
    seeds: int
    pairs: Mapping[float, Sequence[tuple[str, str]]]


ABOUT = "measured in the middle and at the end, on the first sequence"
SIZES: dict[str, Any] = {"layers": 2, "heads": 4, "width": 128, "context": 64, "batch": 16}
WHOLE = (NONE, CENTRED, *SHAMS, MATCHED, HIGH, CENTRED_MATCHED, CENTRED_HIGH, BOTH, BOTH_OF_P)
FEW = (NONE, CENTRED, MATCHED, CENTRED_MATCHED, BOTH)


def _each(recipes: Sequence[str], cures: Sequence[str]) -> list[tuple[str, str]]:
    """Return every recipe with every cure."""
    return [(recipe, cure) for recipe in recipes for cure in cures]


QUICK = Scale(
    name="quick",
    config=Config(
        **SIZES | {"heads": 2, "width": 64, "batch": 8}, plan="fa2-bf16", warmup=50, steps=100
    ),
    seeds=2,
    pairs={
        1e-2: [
            (recipe, cure)
            for recipe, cure in pairs()
            if (recipe, cure) == (BF16, NONE)
            or (recipe == "nvfp4" and cure in (NONE, CENTRED_MATCHED, BOTH))
        ]
    },
)
# at the rate of the other studies, where BF16 is noisy, and at a third of it
FULL = Scale(
    name="full",
    config=Config(**SIZES, plan="fa2-bf16", warmup=100, steps=1000),
    seeds=5,
    pairs={
        1e-2: [
            *((recipe, cure) for recipe, cure in pairs() if cure in WHOLE or recipe == BF16),
            *_each(PLAIN, (*SHAMS_MATCHED, OWN, OWN_HIGH)),
        ],
        3e-3: [
            (BF16, NONE),
            (BF16, CENTRED),
            (FP32, NONE),
            *_each(PLAIN, (*FEW, OWN, OWN_HIGH)),
            *_each(("nvfp4", "int8"), (BOTH_OF_P,)),
            *_each(("nvfp4", "int8", "mxfp4"), SHAMS),
            *_each(("int4", "fp8-block"), SHAMS_MATCHED),
            ("mxfp4", SIGNS_MATCHED),
            *_each(("nvfp4-turned",), (NONE, CENTRED)),
        ],
    },
)

Key = tuple[str, str, float]  # recipe, cure, rate
Runs = list[Run[Condition]]
Results = dict[Key, Runs]  # in the order of seeds


def conditions(scale: Scale) -> list[Condition]:
    """Return the conditions of all runs; those of one recipe and cure train together."""
    return [
        Condition(recipe=recipe, cure=cure, rate=rate, seed=seed)
        for rate, each in scale.pairs.items()
        for recipe, cure in each
        for seed in range(scale.seeds)
    ]


def arm_of(c: Condition) -> Arm:
    """Return what a condition trains."""
    text = words(c.recipe, c.cure)
    name, changes = f"{c.recipe}, {c.cure}", (f"-> {text}",) if text else ()
    return Arm(name=f"{name}, {c.rate:g}, {c.seed}", changes=changes, lr=c.rate, seed=c.seed)


def launches(scale: Scale, store: Store) -> list[Launch]:
    """Return a launch for each recipe and cure, and one for those of its runs that are stored."""
    there, config, each = store.keys(), scale.config, []
    for (recipe, cure), own in grouped(((c.recipe, c.cure), c) for c in conditions(scale)).items():
        named = {training.key(config, arm_of(c), ABOUT): c for c in own}
        known = {key: c for key, c in named.items() if key in there}
        for part in (known, {key: c for key, c in named.items() if key not in there}):
            run = partial(_trained, config, part)
            title = f"{recipe}, {cure}: {len(part)} runs"
            each += [
                Launch(title=title, steps=config.steps, config=asdict(config), keys=keys, run=run)
                for keys in [tuple(part)]
                if keys
            ]
    return each


def results(scale: Scale, store: Store) -> Results | None:
    """Return the recipes with cures that are complete; None if there are none."""
    named = {c: training.key(scale.config, arm_of(c), ABOUT) for c in conditions(scale)}
    found = store.read(named)
    by_key = grouped(((c.recipe, c.cure, c.rate), run) for c, run in found.items())
    return {key: runs for key, runs in by_key.items() if len(runs) == scale.seeds} or None


def looks_of(config: Config) -> tuple[int, ...]:
    """Return the steps after which gradients are measured."""
    return config.steps // 2 // 25 * 25, config.steps


def _trained(
    config: Config, named: Mapping[str, Condition], progress: Progress
) -> dict[str, Run[Condition]]:
    """Return the runs of conditions by their keys, with looks apart from curves."""
    keep_compilations()
    constant = replace(config, lr=1.0, min_lr=1.0, decay_steps=None)
    settings = Settings(config=constant, arms=tuple(map(arm_of, named.values())))
    look, looks = looking(config), looks_of(config)
    runs = training.trained(settings, list(named.values()), progress, look=look)
    return {key: _parted(run, looks) for key, run in zip(named, runs, strict=True)}


def _parted(run: Run[Any], looks: Sequence[int]) -> Run[Any]:
    seen = {str(done): dict(zip(COLUMNS, x, strict=True)) for done, _, *x in run.curve}
    curve = tuple((done, loss) for done, loss, *_ in run.curve)
    return replace(run, curve=curve, extra={"looks": {str(n): seen[str(n)] for n in looks}})


def looking(config: Config) -> training.Look:
    """Return a look that measures each arm's plan on tensors of its own weights.

    q, k, v and dO are those of attention in BF16 at the arm's weights, on the first sequence of the
    step's batch; the numbers (arms, COLUMNS) are NaN after other steps.
    """
    steps = looks_of(config)

    def look(group: Group, done: int, batches: Batches) -> np.ndarray:
        found = np.full((len(group.arms), len(COLUMNS)), np.nan)
        if done not in steps:
            return found
        tokens = group.own(batches)[..., :1, :]
        each = jax.device_get(_all_arms(numbers_only(config))(group.state.params, tokens))
        for n, (tensors, plans) in enumerate(zip(_by_arm(each), group.plans(done)[1], strict=True)):
            assert plans is not None
            q, k, v, do, x = tensors
            own = measured(plans[0][0], q, k, v, do, x, is_causal=True)
            found[n] = [own[name] for name in COLUMNS]
        return found

    return look


def _by_arm(each: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield q, k, v, dO (L, T, N, H) and x (L, T, D) of each arm, layers as the batch."""
    for own in zip(*each, strict=True):
        yield [x[:, 0] for x in own]


@lru_cache(8)
def _all_arms(config: Config) -> Any:
    """Return a function of the arms' weights and a sequence: q, k, v, dO and x of all layers."""
    plans = uniform(config)

    def one(params: Any, tokens: Array) -> tuple[Array, ...]:
        do, seen = model.read(params, tokens, plans, config)
        return seen.q, seen.k, seen.v, do, seen.x

    def all_arms(params: Any, tokens: Array) -> Any:
        return jax.vmap(one, in_axes=(0, 0 if tokens.ndim == 3 else None))(params, tokens)

    return jax.jit(all_arms)
