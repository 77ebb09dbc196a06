"""What is trained and measured, launch by launch, and the stored runs by their place.

Launches are trainings, epsilon, interventions and the published setting. The error epsilon of a
gradient is measured while a run goes to its divergence, in two ways:

same state   g_mx(theta) - g_32(theta): the formats' error, whole, with RCEIL in place of the
             arm's scales, and event by event (`measure`)
apart        g_mx(theta_mx) - g_32(theta_32), of two trainings on the same rows, which is what
             the paper's code calls epsilon: the distance of the trainings is in it
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from roundscope.experiments.framework import student
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.train.mx import How
from roundscope.experiments.train.student import model, run
from roundscope.experiments.train.student.arms import (
    EXACT,
    UNCHANGED,
    Arm,
    Changes,
    Config,
    Matrix,
    groups,
    how_of,
)
from roundscope.experiments.train.student.arms import interventions as texts_of
from roundscope.experiments.train.student.measure import measure
from roundscope.tools.results.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A student and its rates, ascending: the lowest trains, the highest fails in FP32 too."""

    name: str
    config: Config
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Which students, formats and seeds are trained.

    mx       the format whose divergence is averted: at `rate` of `base`, where FP32 has none
    settings the base first; others differ from it in one thing
    formats  the formats of the base
    few      the formats, beside FP32, of the other settings
    seeds    all seeds
    parted   the number of seeds that get interventions: the first ones that diverge
    leads    steps before a run's divergence at which its interventions leave it
    shams    runs per seed and lead whose arithmetic differs in one gradient of one step only
    looks    steps between two measurements of epsilon
    paper    (the published setting, formats, seeds), one run a launch; None: not run
    fix      (the setting of the code's run_ln_fix.sh, formats, seeds); None: not run
    arms     the largest number of arms in a launch
    """

    name: str
    mx: str
    rate: float
    settings: tuple[Setting, ...]
    formats: tuple[str, ...]
    few: tuple[str, ...]
    seeds: tuple[int, ...]
    parted: int
    leads: tuple[int, ...]
    shams: int
    looks: int
    paper: tuple[Setting, tuple[str, ...], tuple[int, ...]] | None = None
    fix: tuple[Setting, tuple[str, ...], tuple[int, ...]] | None = None
    arms: int = 64

    @property
    def base(self) -> Setting:
        """The setting of everything but the effects."""
        return self.settings[0]

    @property
    def at_rate(self) -> Setting:
        """The base at the rate of the interventions alone."""
        return replace(self.base, rates=(self.rate,))

    @property
    def few_seeds(self) -> tuple[int, ...]:
        """The seeds that have measures of epsilon, and LN's changes from the first step on."""
        return self.seeds[: self.parted]


def varied(
    base: Setting, **changes: tuple[dict[str, object], tuple[float, ...]]
) -> tuple[Setting, ...]:
    """Return the base and settings that differ from it in one change each, by name."""
    return base, *(
        Setting(name=name.replace("_", " "), config=replace(base.config, **own), rates=rates)  # type: ignore[arg-type]
        for name, (own, rates) in changes.items()
    )


SMALL = Config(depth=4, width=64, batch=64, steps=650, lr=0.1, min_lr=0.1, warmup=100, phi="swiglu")
QUICK = Scale(
    name="quick",
    mx="mxfp4",
    rate=0.1,
    formats=("fp32", "bf16", "mxfp8_e4m3", "mxfp4"),
    few=("fp32", "mxfp4"),
    settings=varied(
        Setting(name="base", config=SMALL, rates=(0.1,)), no_LN=({"norm": False}, (0.0175,))
    ),
    seeds=tuple(range(6)),
    parted=3,
    leads=(200,),
    shams=2,
    looks=200,
)
ALL = (
    "fp32",
    "bf16",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "e4m3 / e5m2",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "mxfp4:rceil",
)
PUBLISHED = Setting(name="paper", config=Config(), rates=(Config().lr,))
# run_ln_fix.sh of the released code, at an eighth of its width and with a smaller batch
LN_FIX = Setting(
    name="run_ln_fix.sh",
    config=Config(depth=3, width=64, batch=64, steps=11_000, lr=5e-4, min_lr=5e-4),
    rates=(5e-4,),
)
E4M3, BUMPED = "mxfp8_e4m3", "mxfp8_e4m3:rceil"  # its bump is RCEIL (`code.bumped`)
FIXES = ("fp32", E4M3, f"{E4M3}, LN in FP32", BUMPED, f"{BUMPED}, LN in FP32")
FULL = Scale(
    name="full",
    mx="mxfp4",
    rate=0.1,
    formats=ALL,
    few=("fp32", "mxfp8_e4m3", "mxfp4"),
    settings=varied(
        Setting(name="base", config=SMALL, rates=(0.085, 0.09, 0.095, 0.1, 0.105, 0.11)),
        no_LN=({"norm": False}, (0.008, 0.01, 0.0125, 0.015, 0.0175, 0.02)),
        gelu=({"phi": "gelu"}, (0.05, 0.06, 0.07, 0.08, 0.09, 0.1)),
        relu=({"phi": "relu"}, (0.05, 0.06, 0.07, 0.08, 0.09, 0.1)),
        width_128=({"width": 128}, (0.07, 0.08, 0.09, 0.1, 0.11, 0.12)),
        longer=({"steps": 1500}, (0.08, 0.09, 0.1)),
        depth_2=({"depth": 2}, (0.1, 0.12, 0.14, 0.16, 0.18, 0.2)),
        depth_8=({"depth": 8}, (0.04, 0.05, 0.06, 0.07, 0.08, 0.09)),
    ),
    seeds=tuple(range(12)),
    parted=8,
    leads=(400, 200, 50),
    shams=6,
    looks=25,
    paper=(PUBLISHED, ("fp32", "mxfp8_e4m3"), (0, 1)),
    fix=(LN_FIX, FIXES, (0, 1, 2, 3)),
    arms=144,
)

MIXED = "e4m3 / e5m2"
WORDS = {MIXED: "-> mx=mxfp8_e4m3; site=backward -> mxfp8_e5m2", "bf16": "-> bf16"}
SHAM = "sham"
FROZEN = "beta frozen"
HYBRID, FORWARD = "activations BF16, LN in FP32", "backward BF16"
LN = {
    FROZEN: "-> beta=0",
    "LN in FP32": "site=norm -> fp32",
    f"LN in FP32, {FROZEN}": "site=norm -> fp32; -> beta=0",
}
ADDED = LN | {
    HYBRID: "site=activations -> bf16; site=norm -> fp32",
    FORWARD: "site=backward -> bf16",
}
"""From the first step on: LN's precision and its shift, each alone and both (frozen later, the
shift keeps Adam's momentum); hybrids.
"""
PAPER = {  # the paper's arm -> ours
    "no_mx_inject": "all FP32",
    "bump_exp": "bump",
    "no_ln_q": "LN in FP32",
    "bf16_act": "activations BF16 forward",
    "bf16_act_all": "activations BF16",
    "no_bp_quant": "backward BF16",
    "no_gelu_quant": "phi in FP32",
    "bf16_weight": "weights BF16",
}
OURS = {"gamma in MX": "site=GAMMA -> {mx}"}


def changes_of(format: str) -> Changes:
    """Return what trains in a format from the first step on, alone or with one of ADDED."""
    if format == EXACT:
        return ()
    name, _, more = format.partition(", ")
    texts = [WORDS.get(name, f"-> mx={name}"), *([ADDED[more]] if more else [])]
    return ((0, "; ".join(texts)),)


def changed(mx: str) -> tuple[str, ...]:
    """Return the format with every one of ADDED."""
    return tuple(f"{mx}, {name}" for name in ADDED)


def trained(setting: Setting, formats: Sequence[str], seeds: Sequence[int]) -> list[Arm]:
    """Return the arms of formats x rates x seeds."""
    return [
        Arm(name=f, changes=changes_of(f), lr=rate, seed=seed)
        for f in formats
        for rate in setting.rates
        for seed in seeds
    ]


def base_arm(scale: Scale, seed: int) -> Arm:
    """Return the run that the interventions leave."""
    return Arm(name=UNCHANGED, changes=changes_of(scale.mx), lr=scale.rate, seed=seed)


def parted(scale: Scale, seed: int, first: int) -> list[Arm]:
    """Return all arms that leave the base at `first`; the unchanged one is a run of its own."""
    base = base_arm(scale, seed)
    texts = {name: text for name, text in texts_of(scale.mx).items() if FROZEN not in name}
    texts |= {name: text.format(mx=scale.mx) for name, text in OURS.items()}
    texts[UNCHANGED] = "; ".join(text for _, text in base.changes)

    def arm(name: str) -> Arm:
        changes = [(first, t.strip()) for t in texts[name].split(";") if t.strip()]
        return replace(base, name=name, changes=(*base.changes, *changes))

    others = [arm(name) for name in texts if name != UNCHANGED]
    return [arm(UNCHANGED), *shams(scale, base, first), *others]


def shams(scale: Scale, base: Arm, first: int) -> list[Arm]:
    """Return runs in which one matrix's gradient is half an ulp off in step `first` alone."""
    places = product((Matrix.UP, Matrix.DOWN), range(scale.base.config.depth))
    wheres = [f"layer={layer} matrix={matrix} site=DW" for matrix, layer in places]
    return [
        replace(
            base,
            name=f"{SHAM} {k}",
            changes=(*base.changes, (first, f"{where} -> fp32"), (first + 1, f"{where} -> bf16")),
        )
        for k, where in enumerate(wheres[: scale.shams])
    ]


def config_of(setting: Setting, rate: float | None = None) -> Config:
    """Return the setting's config, with its optimizer at a constant rate."""
    lr = setting.config.lr if rate is None else rate
    return replace(setting.config, lr=lr, min_lr=lr)


Runs = Sequence[Run[Arm]]
Parted = Mapping[tuple[int, int], Mapping[str, Run[Arm]]]  # (seed, lead) -> arm -> run


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Arms of one executable, and the step at which they leave a run that they share, if any."""

    config: Config
    arms: tuple[Arm, ...]
    first: int | None = None


def planned(scale: Scale, store: Store) -> list[Launch]:
    """Return all launches; the base comes first, since it says where interventions leave it."""

    def launch(part: Part) -> Launch:
        title = "student" if part.first is None else f"student, from step {part.first}"

        def compute(progress: Progress) -> list[Run[Arm]]:
            return ran(scale, part, store.path.parent, progress)

        return student.launch(title, part.config, part.arms, compute)

    first = [launch(part) for part in base(scale)]
    if not store.keys().issuperset(key for each in first for key in each.keys):
        return first
    return [*first, *map(launch, [*interventions(scale, starts(scale, store)), *others(scale)])]


def ran(scale: Scale, part: Part, folder: Path, progress: Progress) -> list[Run[Arm]]:
    """Return the runs of a launch; states at which arms part are kept in the folder."""
    config, arms = part.config, part.arms
    if config.measure_every:
        half = len(arms) // 2
        return pair_up(config, arms[:half], arms[half:], changes_of(f"{scale.mx}:rceil"), progress)
    start = None if part.first is None else run.begin(config, arms, part.first, folder, progress)
    return run.launch(config, arms, progress, start)


def base(scale: Scale) -> list[Part]:
    """Return the base in all formats; the runs that interventions leave are launched alone."""
    config, arms = config_of(scale.base), trained(scale.base, scale.formats, scale.seeds)
    # beside others they would be another executable, whose last bits move the divergence
    alone = [arm for arm in arms if (arm.name, arm.lr) == (scale.mx, scale.rate)]
    beside = [arm for arm in arms if arm not in alone]
    return [*_split(config, beside, scale.arms), *(Part(config=config, arms=(a,)) for a in alone)]


def others(scale: Scale) -> list[Part]:
    """Return epsilon of the base, the other settings, and the published one."""
    added = trained(scale.at_rate, changed(scale.mx), scale.few_seeds)
    found = [epsilon(scale), *_split(config_of(scale.base), added, scale.arms)]
    for setting in scale.settings[1:]:
        found += _split(config_of(setting), trained(setting, scale.few, scale.seeds), scale.arms)
    if scale.paper is not None:
        published, formats, seeds = scale.paper
        found += _split(config_of(published), trained(published, formats, seeds), 1)
    if scale.fix is not None:
        setting, formats, seeds = scale.fix
        found += _split(config_of(setting), trained(setting, formats, seeds), scale.arms)
    return found


def epsilon(scale: Scale) -> Part:
    """Return the base in format mx, and FP32 beside it."""
    arms = [base_arm(scale, seed) for seed in scale.few_seeds]
    exact = [Arm(name=EXACT, lr=scale.rate, seed=seed) for seed in scale.few_seeds]
    config = replace(config_of(scale.base, scale.rate), measure_every=scale.looks)
    return Part(config=config, arms=(*arms, *exact))


def interventions(scale: Scale, places: Sequence[tuple[int, int, int]]) -> list[Part]:
    """Return the arms that leave the base run of a seed at a step, as `leaving` says where."""
    config = config_of(scale.base, scale.rate)
    each = [(first, parted(scale, seed, first)) for seed, _, first in places]
    return [part for first, arms in each for part in _split(config, arms, scale.arms, first)]


def _split(config: Config, arms: Sequence[Arm], most: int, first: int | None = None) -> list[Part]:
    """Return arms by executable, in equal parts of at most so many arms."""
    found = []
    for group in groups(config, arms):
        size = math.ceil(len(group) / math.ceil(len(group) / most))
        own = [tuple(group[i : i + size]) for i in range(0, len(group), size)]
        found += [Part(config=config, arms=each, first=first) for each in own]
    return found


def starts(scale: Scale, store: Store) -> list[tuple[int, int, int]]:
    """Return what `leaving` does; empty before the base and FP32 are stored at all rates."""
    whole = [
        student.whole(store, config_of(scale.base), trained(scale.base, [f], scale.seeds))
        for f in (scale.mx, EXACT)
    ]
    own, exact = ([r for r in runs if r.condition.lr == scale.rate] for runs in whole)
    return leaving(scale, own, exact)


def leaving(scale: Scale, own: Runs, exact: Runs) -> list[tuple[int, int, int]]:
    """Return (seed, lead, step at which arms leave) of runs that diverge late, unlike FP32's."""
    alive = {r.seed for r in exact if r.diverged is None}
    steps = {r.seed: r.diverged for r in own if r.diverged is not None and r.seed in alive}
    fit = [seed for seed, step in steps.items() if step > max(scale.leads)][: scale.parted]
    return [(seed, lead, steps[seed] - lead) for lead in scale.leads for seed in fit]


def pair_up(
    config: Config, arms: Sequence[Arm], exact: Sequence[Arm], other: Changes, progress: Progress
) -> list[Run[Arm]]:
    """Return the runs of arms, with what `_look` measures, and of their FP32 partners."""
    bare, both, looks = replace(config, measure_every=0), [*arms, *exact], []
    begin = run.fresh(bare, both)
    for until in [*range(0, config.steps, config.measure_every), config.steps]:
        begin = run.advance(bare, both, begin, until, progress)[0]
        if until < config.steps:
            looks.append((until, _look(bare, arms, both, other, begin)))
    found = run.launch(bare, both, progress, begin)
    for i, r in enumerate(found[: len(arms)]):
        found[i] = replace(r, extra={**r.extra, "measures": run.of_arm(looks, i)})
    return found


def _look(
    config: Config, arms: Sequence[Arm], both: Sequence[Arm], other: Changes, begin: run.Begin
) -> dict[str, np.ndarray]:
    how, n, (words, of) = how_of(config, both), len(arms), run.seeds_of(config, both)
    x, y = model.batches(config)(words, np.int32(begin.step))

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[:n], tree)

    own, data = first(begin.state), run.data_of(config, both, begin.step)
    same = measure(config, how)(own, first(data), x, y, of[:n])
    rceil = run.data_of(config, [replace(a, changes=other) for a in arms], begin.step)
    zeta = measure(config, how)(own, rceil, x, y, of[:n])["zeta"]
    g = _gradients(config, how)(begin.state, data, x, y, of)
    apart = jax.vmap(_apart)(g[:n], g[n:])
    return jax.device_get(same | {"zeta_rceil": zeta} | apart)  # type: ignore[no-any-return]


@lru_cache(16)
def _gradients(config: Config, how: How) -> Callable[..., Array]:
    """Return the function (state, arms, x, y, of) -> gradients (A, weights), each arm's own."""
    config = model.numbers_only(config)

    def one(state: model.State, arm: model.Arms, x: Array, y: Array) -> Array:
        return ravel_pytree(jax.grad(model.loss)(state.params, config, how, x, y, arm.table))[0]

    return jax.jit(lambda state, arms, x, y, of: jax.vmap(one)(state, arms, x[of], y[of]))


def _apart(g: Array, exact: Array) -> dict[str, Any]:
    size = jnp.linalg.norm(exact)
    return {
        "zeta_apart": jnp.linalg.norm(g - exact) / size,
        "cosine_apart": jnp.vdot(g, exact) / (size * jnp.linalg.norm(g)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The stored runs of a scale, whole parts only, by their place in the argument.

    trained  (setting, format) -> runs of all rates and seeds
    epsilon  the base's runs with measures
    parted   (seed, lead) -> arm -> run
    paper    format -> runs of the published setting
    fix      format -> runs of run_ln_fix.sh
    """

    scale: Scale
    trained: Mapping[tuple[str, str], Runs] = field(default_factory=dict)
    epsilon: Runs = ()
    parted: Parted = field(default_factory=dict)
    paper: Mapping[str, Runs] = field(default_factory=dict)
    fix: Mapping[str, Runs] = field(default_factory=dict)

    def of(self, setting: str, format: str, rate: float | None = None) -> Runs:
        """Return the runs of a setting in a format, at one rate or at all; empty without any."""
        runs = self.trained.get((setting, format), ())
        return [r for r in runs if rate is None or r.condition.lr == rate]

    def base(self, format: str) -> Runs:
        """Return the runs of the base in a format at the rate of the interventions."""
        return self.of(self.scale.base.name, format, self.scale.rate)

    @property
    def leads(self) -> list[int]:
        """The leads of which interventions are there."""
        return [lead for lead in self.scale.leads if any(at == lead for _, at in self.parted)]


def read(scale: Scale, store: Store) -> Found | None:
    """Return what the store holds in whole: all of a format, or of a parting; else None."""

    def runs(setting: Setting, format: str, seeds: Sequence[int]) -> Runs:
        return student.whole(store, config_of(setting), trained(setting, [format], seeds))

    wanted = [(scale.base, f, scale.seeds) for f in scale.formats]
    wanted += [(s, f, scale.seeds) for s in scale.settings[1:] for f in scale.few]
    wanted += [(scale.at_rate, f, scale.few_seeds) for f in changed(scale.mx)]
    by_format = {(s.name, f): own for s, f, seeds in wanted if (own := runs(s, f, seeds))}
    watched, config = epsilon(scale), config_of(scale.base, scale.rate)
    by_lead = {
        (seed, lead): {r.condition.name: r for r in own}
        for seed, lead, first in starts(scale, store)
        if (own := student.whole(store, config, parted(scale, seed, first)))
    }
    paper, fix = (
        {} if part is None else {f: own for f in part[1] if (own := runs(part[0], f, part[2]))}
        for part in (scale.paper, scale.fix)
    )
    found = Found(
        scale=scale,
        trained=by_format,
        epsilon=student.whole(store, watched.config, watched.arms),
        parted=by_lead,
        paper=paper,
        fix=fix,
    )
    return found if found.trained else None
