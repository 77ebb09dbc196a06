"""What `roundscope dose` trains: `Dose` is one run, `Scale` names those of --quick and of a GPU.

KEY=VALUE words change either scale. Doses that share an executable are one launch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.attention import Record
from roundscope.attention.engines import xla as engine
from roundscope.attention.grammar.ranges import numbers
from roundscope.attention.plans.traced import HeadPlans
from roundscope.attention.sites import Site, site_named
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Inputs
from roundscope.emu.roundings.modes import RoundingMode, mode_named
from roundscope.experiments.framework.estimates import grouped
from roundscope.experiments.framework.study import Progress
from roundscope.experiments.framework.words import NAMED, pairs, seeds_of
from roundscope.experiments.train import groups
from roundscope.experiments.train.config import WORD, Config, deciding
from roundscope.experiments.train.gpt import model, monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.offset import BIAS, WINDOW
from roundscope.experiments.train.groups import Group, blocks, drawing
from roundscope.experiments.train.settings import Arm, Settings, typed
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.results.run import Run, key_of

EVEN = RoundingMode.TIES_TO_EVEN
AWAY = RoundingMode.TIES_TO_AWAY
ZERO = RoundingMode.TOWARD_ZERO
RANDOM = RoundingMode.STOCHASTIC
OUTWARD = RoundingMode.AWAY_FROM_ZERO
MOST_BITS = 24  # the precision of binary32, in which everything is that is not rounded
# fields that were added later: where they are empty, the key is that of a dose without them
ADDED = ("words", "also", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """One run. If site is None no event is named: it is exact unless `also` or `offset` says more.

    bits     the precision p of the significand, the leading bit included
    words    settings of the model over the scale's, such as data=repeat; the exact arm has them too
    also     changes of its attention in the trainer's words, made before that of `site`
    offset   (kind, c): the error of delta's operand (`train.gpt.offset`); 0 in the exact arm
    """

    site: Site | None = None
    mode: RoundingMode = EVEN
    bits: int = MOST_BITS
    rate: float
    steps: int
    seed: int = 0
    words: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    offset: tuple[str, float] | None = None

    @property
    def change(self) -> tuple[str, ...]:
        """The dose in the trainer's words: one format at one event, BF16's exponents."""
        if self.site is None:
            return self.also
        return (*self.also, f"site={self.site} -> e8m{self.bits - 1}:{self.mode}")

    @property
    def point(self) -> "Dose":
        """The condition without its seed: the dose of seed 0."""
        return replace(self, seed=0)

    @property
    def exact(self) -> "Dose":
        """The arm that is exact and differs in nothing else."""
        none = self.offset and (BIAS, 0.0)
        return replace(self, site=None, mode=EVEN, bits=MOST_BITS, also=(), offset=none)


def with_exact(wanted: Sequence[Dose]) -> list[Dose]:
    """Return doses and their exact arms, each once; the exact arms come first."""
    return list(dict.fromkeys([*(dose.exact for dose in wanted), *wanted]))


def key(config: Config, dose: Dose) -> str:
    """Return the key of a result: of all that decides it but versions and device."""
    kept = {name: value for name, value in deciding(config).items() if name not in NAMED}
    said = {"site": None if dose.site is None else str(dose.site), "mode": str(dose.mode)}
    own = {n: value for n, value in (asdict(dose) | said).items() if n not in ADDED or value}
    return key_of(kept, own)


def settings_of(config: Config, wanted: Sequence[Dose]) -> Settings:
    """Return doses of equal steps and words as arms of one run, at a constant peak rate."""
    steps, config = wanted[0].steps, config_of(config, wanted[0])
    one = replace(config, steps=max(steps, config.warmup), lr=1.0, min_lr=1.0, decay_steps=None)
    arms = []
    for i, dose in enumerate(wanted):
        injected = [] if dose.offset is None else [f"-> offset={dose.offset[1]}:{dose.offset[0]}"]
        changes = (*dose.change, *injected)
        arms.append(Arm(name=str(i), changes=changes, lr=dose.rate, seed=dose.seed))
    return Settings(config=one, arms=tuple(arms))


def config_of(config: Config, dose: Dose) -> Config:
    """Return the config with the words of a dose over it. Raises UsageError."""
    return with_words(config, dict(word.split("=", 1) for word in dose.words))


def with_words(config: Config, given: Mapping[str, str]) -> Config:
    """Return the config with these settings, as text, over it. Raises UsageError."""
    return replace(config, **{name: typed(name, value) for name, value in given.items()})


def launches(config: Config, wanted: Sequence[Dose]) -> list[list[Dose]]:
    """Return doses by executable: equal steps, words and structure. Raises UsageError."""
    return [
        [own[i] for i in arms]
        for own in grouped(((dose.steps, dose.words), dose) for dose in wanted).values()
        for arms in groups.numbers(settings_of(config, own))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Combinations of events, modes, significand bits and peak rates, for `steps` steps each."""

    sites: tuple[Site, ...]
    modes: tuple[RoundingMode, ...]
    bits: tuple[int, ...]
    rates: tuple[float, ...]
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model in which all but one event is FP32, with native sums; and what is varied."""

    name: str
    config: Config
    axes: tuple[Axes, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


PLAIN: dict[str, Any] = {"plan": "fp32", "matmul": "fp32", "sums": "native"}
QUICK = Scale(
    name="quick",
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50, **PLAIN),
    axes=(
        Axes(
            sites=(Site.OD,),
            modes=(EVEN, RANDOM, ZERO, OUTWARD),
            bits=(2, 3, 4),
            rates=(3e-2,),
            steps=400,
        ),
    ),
)
# the probe's model; 2,000 steps at 1e-2 and 6,000 at 1e-3, and other events at 2 and 4 bits
FULL = Scale(
    name="full",
    config=Config(layers=4, heads=4, width=128, context=128, batch=16, warmup=100, **PLAIN),
    axes=(
        Axes(
            sites=(Site.OD,),
            modes=(EVEN, AWAY, RANDOM, ZERO, OUTWARD),
            bits=(2, 3, 4, 5, 6, 7, 8),
            rates=(1e-2,),
            steps=2000,
        ),
        Axes(
            sites=(Site.O, Site.OUT, Site.P, Site.DP, Site.DS),
            modes=(EVEN, ZERO),
            bits=(2, 4),
            rates=(1e-2,),
            steps=2000,
        ),
        Axes(sites=(Site.OD,), modes=(EVEN, ZERO), bits=(2, 3, 4), rates=(1e-3,), steps=6000),
    ),
)


def doses_of(scale: Scale) -> list[Dose]:
    """Return every run of a scale, each once, exact arms first."""
    found = [
        Dose(site=site, mode=mode, bits=bits, rate=rate, steps=axes.steps, seed=seed)
        for axes in scale.axes
        for site in axes.sites
        for mode in axes.modes
        for bits in axes.bits
        for rate in axes.rates
        for seed in scale.seeds
    ]
    return with_exact(found)


# fields of Config that a dose decides, or that decide no result: no word sets them
OWN = (*NAMED, "data_seed", "init_seed")
MODEL = tuple(f.name for f in fields(Config) if f.name not in OWN)


def scale(words: Sequence[str], *, quick: bool, seeds: str | None) -> Scale:
    """Return the scale that was asked for. Raises UsageError.

    words   of axes, such as  site=OD,O mode=toward-zero p=2-4 lr=1e-2,1e-3 steps=2000; or of the
            model, such as  width=64
    """
    found = QUICK if quick else FULL
    given = pairs(words, (*AXES, *MODEL))
    varied = {
        AXES[name][0]: AXES[name][1](name, given.pop(name)) for name in list(given) if name in AXES
    }
    axes = tuple(dict.fromkeys(replace(each, **varied) for each in found.axes))
    config, own = with_words(found.config, given), seeds_of(seeds) or found.seeds
    return replace(found, config=config, axes=axes, seeds=own)


def _each(read: Callable[[str], Any]) -> Callable[[str, str], tuple[Any, ...]]:
    def reader(name: str, text: str) -> tuple[Any, ...]:
        try:
            return tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))
        except ValueError as error:
            raise UsageError(f"{name}={text}: {error}") from None

    return reader


def _bits(name: str, text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(numbers(text)))
    except ValueError as error:
        raise UsageError(f"{name}={text}: {error}") from None
    if not all(2 <= p <= MOST_BITS for p in found):
        repair = f"significand bits, the leading one counted: 2 to {MOST_BITS}; BF16 has 8"
        raise bad(name, text, repair)
    return found


def steps_of(name: str, text: str) -> int:
    """Return a number of steps. Raises UsageError."""
    steps: int = typed("steps", text)
    if steps < 1:
        raise bad(name, text, "give at least 1 step")
    return steps


def _rate(text: str) -> float:
    lr: float = typed("lr", text)
    if not lr > 0.0:
        raise ValueError("a learning rate is above 0")
    return lr


AXES: dict[str, tuple[str, Callable[[str, str], Any]]] = {  # word -> field of Axes, its reader
    "site": ("sites", _each(site_named)),
    "mode": ("modes", _each(mode_named)),
    "p": ("bits", _bits),
    "lr": ("rates", _each(_rate)),
    "steps": ("steps", steps_of),
}


TIES_EVERY = 100  # steps between two counts of rows with several P = 1


def launch(
    config: Config, doses: Sequence[Dose], progress: Progress, ties: bool = False
) -> list[Run[Dose]]:
    """Return the results of doses of one structure; with `ties` they have their `shares`."""
    settings, steps = settings_of(config, doses), doses[0].steps
    seeds = [(config.init_seed + dose.seed) % WORD for dose in doses]
    state = one_step.start(settings.config, len(doses), seeds)
    group, drawn = Group(settings, list(range(len(doses))), state), drawing(settings)
    follow = Follow(len(doses))
    looks = [(0, np.full(len(doses), np.nan), np.asarray(largest(group.state.params)))]
    counted: list[tuple[int, np.ndarray]] = []

    def look(done: int) -> Any:
        if ties and (done % TIES_EVERY == 0 or done == steps):
            plans = group.plans(0)[0]
            assert isinstance(plans, HeadPlans)  # doses change all layers alike
            found = shares(settings.config, group.state.params, group.own(drawn(done)), plans)
            counted.append((done, np.stack([found.mean((1, 2)), found.max((1, 2))], axis=1)))
        return largest(group.state.params)

    for block in blocks(lambda n: group.advance(n, drawn(n)), 0, steps, look=look):
        follow.add(block.done, block.losses)
        looks.append((block.done, np.mean(block.losses, axis=0), block.look))
        progress(block.done)
    diverged, final = follow.diverged(), follow.final()
    return [
        Run(
            condition=dose,
            steps=steps,
            diverged=diverged[a],
            loss=float(final[a]),
            curve=tuple((n, float(loss[a]), float(norm[a])) for n, loss, norm in looks),
            extra={"shares": tuple((n, float(x[a, 0]), float(x[a, 1])) for n, x in counted)},
        )
        for a, dose in enumerate(doses)
    ]


@jax.jit
def largest(params: Any) -> Array:
    """Return the largest ||W_Q,h||_2 of all layers and heads, (arms,)."""
    return jnp.max(monitor.query_norms(params["layers"]["qkv"]), axis=(1, 2))


def shares(config: Config, params: Any, tokens: np.ndarray, plans: HeadPlans) -> np.ndarray:
    """Return the share of rows with several scores within 1.955e-3 of the largest.

    There P rounds to 1 in BF16. The result is (arms, layers, heads). params and plans are those of
    arms; tokens are (B, T + 1) or (A, B, T + 1), of which the first sequence is read. Scores are as
    the plan rounds them (SCALED).
    """
    one = tokens[..., :1, :].astype(np.int32)
    q, k = _reading(one_step.numbers_only(config))(params, one, plans)
    with jax.enable_x64(True):
        return np.asarray(_shares(_setup(config, plans), jnp.asarray(plans.table), q, k))


@lru_cache(8)
def _reading(config: Config) -> Any:
    """Return the jitted function that gives q and k, (A, L, 1, T, N, H)."""

    def one(params: Any, tokens: Array, plans: HeadPlans) -> tuple[Array, Array]:
        return model.attention_inputs(params, tokens, plans, config)[:2]

    def all_arms(params: Any, tokens: Array, plans: HeadPlans) -> tuple[Array, Array]:
        return jax.vmap(one, in_axes=(0, 0 if tokens.ndim == 3 else None, 0))(params, tokens, plans)

    return jax.jit(all_arms)


def _setup(config: Config, plans: HeadPlans) -> Setup:
    t, scale = config.context, config.head_width**-0.5
    return Setup(
        plan=plans.like,
        queries=t,
        keys=t,
        block_q=t,
        block_k=t,
        heads=1,
        key_heads=1,
        scale=scale,
        whole_scale=scale,
        is_causal=True,
        record=Record(events=(Site.SCALED,)),
    )


@partial(jax.jit, static_argnums=0)
def _shares(setup: Setup, table: Array, q: Array, k: Array) -> Array:
    """Return the shares; every (arm, layer, head) is a batch entry, K in place of V."""
    t = setup.queries
    entries = [x[:, :, 0].swapaxes(2, 3).reshape(-1, t, 1, x.shape[5]) for x in (q, k)]
    each = engine.Each(table.reshape(-1, *table.shape[3:]), np.arange(entries[0].shape[0]))
    own_q, own_k = [
        engine.round_inputs(setup, s, engine.enter(x, t), each)[0]
        for s, x in zip((Site.Q, Site.K), entries, strict=True)
    ]
    _, seen = engine.forward(setup, Inputs(own_q, own_k, own_k), each)
    scores = seen["tiles"]["SCALED.events"][1].reshape(-1, t, t)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    ones = (scores >= scores.max(-1, keepdims=True) - WINDOW).sum(-1)
    return (ones > 1).mean(1).reshape(q.shape[0], q.shape[1], q.shape[4])
