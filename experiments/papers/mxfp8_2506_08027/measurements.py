"""What is trained and measured, launch by launch, and the stored results by rate and arm.

A launch of the GPT trains all arms and seeds of one rate in one executable, and audits the BF16
arms on the way: every tensor of theirs is rounded, at some steps, under every scale rule and
format. Of an operand V and its rounded copy Q:

    saturated   share of numbers that the block's scale cannot reach (|V| / X above the largest
                element)
    underflow   share of numbers other than 0 that become 0
    shrink      sum (Q - V) sign V / sum |V|: the signed part; below 0: numbers get smaller
    error       |Q - V| / |V|, Frobenius norms
    apart       |Q_row - Q_col| / |V|: of the two copies of a tensor, blocked along either axis
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.blocks.format import block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.blocks.xla import ends_row, round_even, row_of
from roundscope.experiments.framework import student
from roundscope.experiments.framework.estimates import Estimate, Values, grouped, mean, ratio
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.train.config import Config, unusual
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.interventions import BLOCK
from roundscope.experiments.train.gpt.operands import operands
from roundscope.experiments.train.groups import EVERY, Group, blocks, drawing, numbers
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.settings import Arm as TrainArm
from roundscope.experiments.train.settings import Settings
from roundscope.experiments.train.spikes import followed
from roundscope.experiments.train.student.arms import Arm, groups
from roundscope.experiments.train.student.arms import Config as Proxy
from roundscope.experiments.train.student.run import before
from roundscope.tools.results.run import Run, key_of

# attention stays FP32 (the paper keeps it in BF16 or more); products in FP32 where an arm does not
# say otherwise
GPT = {"plan": "jax", "matmul": "fp32", "data": "stdlib"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A GPT and a proxy, each at some peak rates.

    All arms of a model see the same batches of a seed.

    looks   steps of the BF16 runs at which operands are audited, as parts of the run
    more    further seeds of the two arms that tell gradients in E5M2 from E4M3, at the first rate
    """

    name: str
    gpt: Config
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    proxy: Proxy
    proxy_rates: tuple[float, ...]
    proxy_seeds: tuple[int, ...]
    looks: tuple[float, ...] = (0.0, 0.1, 0.5, 0.95)
    more: tuple[int, ...] = ()

    @property
    def audited(self) -> tuple[int, ...]:
        """The steps of `looks`."""
        return tuple(int(part * self.gpt.steps) for part in self.looks)


QUICK = Scale(
    name="quick",
    gpt=Config(layers=3, heads=2, width=32, context=32, batch=8, steps=300, warmup=50, **GPT),  # type: ignore[arg-type]
    rates=(3e-3, 1e-2),
    seeds=tuple(range(5)),
    proxy=Proxy(depth=2, width=64, batch=64, steps=300, warmup=50, phi="swiglu", measure_every=50),
    proxy_rates=(0.03, 0.1),
    proxy_seeds=tuple(range(10)),
)
FULL = Scale(
    name="full",
    gpt=Config(layers=4, heads=4, width=128, context=128, batch=16, steps=2000, warmup=100, **GPT),  # type: ignore[arg-type]
    rates=(1e-3, 1e-2),
    seeds=tuple(range(5)),
    proxy=Proxy(
        depth=4, width=128, batch=256, steps=2000, warmup=100, phi="swiglu", measure_every=100
    ),
    proxy_rates=(6e-4, 1e-2, 5e-2),
    proxy_seeds=tuple(range(10)),
    more=tuple(range(5, 15)),
)

FP32, BF16, FLOOR, RCEIL = "fp32", "bf16", "E4M3 floor", "E4M3 RCEIL"
FLOOR_SR, RCEIL_SR = "E4M3 floor, stochastic", "E4M3 RCEIL, stochastic"
E5M2 = {
    "weights": "W in E5M2",
    "activations": "A in E5M2",
    "gradients": "G in E5M2",
    "operands": "W, A, G in E5M2",
}
FIRST, LAST, ENDS = "first layer BF16", "last layer BF16", "first and last BF16"
RECIPE = "-> mx=mxfp8_e4m3:rceil"
PROXY = {
    FP32: "-> fp32",
    BF16: "-> bf16",
    FLOOR: "-> mx=mxfp8_e4m3",
    RCEIL: RECIPE,
    FLOOR_SR: "-> mx=mxfp8_e4m3:stochastic",
    RCEIL_SR: "-> mx=mxfp8_e4m3:rceil:stochastic",
}
WORDS = {  # for the report
    FP32: "no rounding",
    BF16: (
        "every operand and result of a linear layer, LayerNorm and the activation function in BF16"
    ),
    FLOOR: "operands in MXFP8 E4M3, scale by the floor of OCP MX 1.0; the rest as BF16",
    RCEIL: "the same with the scale rounded up, the paper's recipe",
    FLOOR_SR: "floor, elements rounded stochastically",
    RCEIL_SR: "RCEIL, elements rounded stochastically",
    **{name: f"RCEIL; {what} in E5M2, the rest E4M3" for what, name in E5M2.items()},
    FIRST: "RCEIL; the first layer's operands stay BF16",
    LAST: "the last layer's",
    ENDS: "both",
}


def gpt_arms(config: Config) -> dict[str, str]:
    """Return name -> changes; one executable runs them all."""
    last = config.layers - 1
    kept = {FIRST: "0", LAST: f"{last}", ENDS: f"0,{last}"}
    return {
        FP32: "matrix=all -> fp32",
        BF16: "matrix=all -> bf16",
        FLOOR: "-> mx=mxfp8_e4m3",
        RCEIL: RECIPE,
        **{name: f"{RECIPE}; site={what} -> mxfp8_e5m2:rceil" for what, name in E5M2.items()},
        **{name: f"{RECIPE}; layer={layers} matrix=all -> bf16" for name, layers in kept.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training of the GPT: arm, changes, peak rate, and the seed of weights and batches."""

    name: str
    changes: str
    lr: float
    seed: int


def key(scale: Scale, t: Trial) -> str:
    """Return the key of a run: of all that decides it but versions, device and the arm's name."""
    return key_of(unusual(scale.gpt), t.changes, t.lr, t.seed, scale.audited)


def trials(scale: Scale) -> list[list[Trial]]:
    """Return all trials of the GPT by launch: one for each rate, and one of the seeds `more`."""
    arms = gpt_arms(scale.gpt)
    pair = {name: arms[name] for name in (RCEIL, E5M2["gradients"])}
    further = [(scale.rates[0], scale.more, pair)] if scale.more else []
    return [
        [Trial(name=n, changes=text, lr=lr, seed=s) for n, text in own.items() for s in seeds]
        for lr, seeds, own in [*((lr, scale.seeds, arms) for lr in scale.rates), *further]
    ]


def settings_of(scale: Scale, own: list[Trial]) -> Settings:
    """Return trials as arms of one run."""
    arms = tuple(
        TrainArm(
            name=f"{t.name}/{t.seed}", changes=tuple(t.changes.split("; ")), lr=t.lr, seed=t.seed
        )
        for t in own
    )
    config = replace(scale.gpt, lr=1.0, min_lr=0.1)  # the cosine ends at a tenth of an arm's peak
    settings = Settings(config=config, arms=arms)
    assert len(numbers(settings)) == 1
    return settings


def proxy_arms(scale: Scale) -> list[list[Arm]]:
    """Return all arms of the proxy by launch: one for each rate and executable."""
    config = scale.proxy
    own = [
        [
            Arm(name=n, changes=((0, text),), lr=lr, seed=s)
            for n, text in PROXY.items()
            for s in scale.proxy_seeds
        ]
        for lr in scale.proxy_rates
    ]
    return [group for arms in own for group in groups(config, arms)]


RULES = (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.RCEIL, ScaleRule.EVEN)
ELEMENTS = {"E4M3": "mxfp8_e4m3", "E5M2": "mxfp8_e5m2"}
CASES = tuple(product(ELEMENTS, RULES))
ROWS = np.stack([row_of(block_format(ELEMENTS[name], rule=rule)) for name, rule in CASES])
NUMBERS = ("saturated", "underflow", "shrink", "error")
# the two copies of a tensor: blocked along the row's axis, and along the column's
COPIES = {"X": (Site.X, Site.X_W), "W": (Site.W, Site.W_X), "G": (Site.G_X, Site.G_W)}

Row = dict[str, Any]
Runs = Sequence[Run[Any]]
Place = tuple[float, str]  # peak rate, arm


def planned(scale: Scale, store: Store) -> list[Launch]:
    """Return the proxy's launches by rate and executable, then the GPT's, one for each rate."""

    def gpt(own: list[Trial]) -> Launch:
        return Launch(
            title=f"GPT, lr {own[0].lr:g}: {len(own)} runs",
            steps=scale.gpt.steps,
            config=asdict(scale.gpt),
            keys=tuple(key(scale, trial) for trial in own),
            run=lambda progress: {key(scale, r.condition): r for r in launch(scale, own, progress)},
        )

    proxy = [
        student.launch(f"proxy, lr {arms[0].lr:g}", scale.proxy, arms) for arms in proxy_arms(scale)
    ]
    return [*proxy, *map(gpt, trials(scale))]


def launch(scale: Scale, own: list[Trial], progress: Progress) -> list[Run[Trial]]:
    """Return the runs of trials; BF16 arms have extra["audit"] at the steps of the scale."""
    settings, steps = settings_of(scale, own), scale.gpt.steps
    state = one_step.start(
        settings.config, len(own), [settings.config.init_seed + t.seed for t in own]
    )
    group, drawn = Group(settings, list(range(len(own))), state), drawing(settings)
    audits, looks = {t: list[Row]() for t in own if t.name == BF16}, list[np.ndarray]()

    def step(number: int) -> Any:
        tokens = drawn(number)
        for a, trial in enumerate(own if number in scale.audited else ()):
            if trial in audits:
                mine = jax.tree.map(lambda leaf, a=a: leaf[a], group.state.params)
                rows = audit(scale.gpt, mine, tokens[trial.seed])
                audits[trial] += [{"step": number, **row} for row in rows]
        return group.advance(number, tokens)

    for block in blocks(step, 0, steps):
        looks.append(block.losses.astype(float))
        progress(block.done)
    losses = np.concatenate(looks)
    follow = followed(losses)
    diverged, final = follow.diverged(), follow.final()
    return [
        Run(
            condition=t,
            steps=steps,
            diverged=diverged[a],
            loss=float(final[a]),
            curve=tuple(
                (min(n + EVERY, steps), float(losses[n : n + EVERY, a].mean()))
                for n in range(0, steps, EVERY)
            ),
            extra={"audit": tuple(audits.get(t, ()))},
        )
        for a, t in enumerate(own)
    ]


def audit(config: Config, params: Any, tokens: np.ndarray) -> list[Row]:
    """Return a row per layer, matrix, operand, format and rule of an arm; tokens are (B, T + 1)."""
    rows = []
    for matrix, tensors in operands(config)(params, tokens).items():
        for tensor, values in tensors.items():
            sites = COPIES[tensor]
            numbers, apart = jax.device_get(_measured(values, sites[0].axis % 2, sites[1].axis % 2))
            places = product(range(config.layers), enumerate(CASES), enumerate(sites))
            rows += [
                {
                    "layer": layer,
                    "matrix": str(matrix),
                    "operand": str(site),
                    "element": element,
                    "rule": str(rule),
                    **{name: float(numbers[name][layer, i, copy]) for name in NUMBERS},
                    "apart": float(apart[layer, i]),
                }
                for layer, (i, (element, rule)), (copy, site) in places
            ]
    return rows


@partial(jax.jit, static_argnums=(1, 2))
def _measured(values: Array, row: int, column: int) -> tuple[dict[str, Array], Array]:
    """Return NUMBERS (layers, cases, 2) and apart (layers, cases) of (layers, rows, columns)."""

    def share(flags: Array, of: Array | float) -> Array:
        return flags.sum().astype(jnp.float32) / of

    def copy(v: Array, q: Array, case: Array, axis: int) -> dict[str, Array]:
        return {
            "saturated": ends_row(v, case, BLOCK, axis)[0],
            "underflow": share((q == 0) & (v != 0), share(v != 0, 1.0)),
            "shrink": ((q - v) * jnp.sign(v)).sum() / jnp.abs(v).sum(),
            "error": jnp.linalg.norm(q - v) / jnp.linalg.norm(v),
        }

    def one(v: Array, case: Array) -> tuple[dict[str, Array], Array]:
        kept = [round_even(v, case, BLOCK, axis) for axis in (row, column)]
        each = [copy(v, q, case, axis) for q, axis in zip(kept, (row, column), strict=True)]
        numbers = {name: jnp.stack([own[name] for own in each]) for name in NUMBERS}
        return numbers, jnp.linalg.norm(kept[0] - kept[1]) / jnp.linalg.norm(v)

    cases = jnp.asarray(ROWS)
    every: tuple[dict[str, Array], Array]
    every = jax.lax.map(lambda v: jax.lax.map(lambda case: one(v, case), cases), values)
    return every


@dataclass(frozen=True, slots=True)
class Results:
    """Runs of both models by (rate, arm), in the order of seeds; the audit of the BF16 runs."""

    gpt: Mapping[Place, Runs]
    proxy: Mapping[Place, Runs]
    audit: Sequence[Mapping[str, Any]]

    @property
    def rates(self) -> list[float]:
        """The rates of the GPT."""
        return list(dict.fromkeys(lr for lr, _ in self.gpt))

    @property
    def proxy_rates(self) -> list[float]:
        """The rates of the proxy."""
        return list(dict.fromkeys(lr for lr, _ in self.proxy))

    def arms(self) -> Iterator[tuple[str, float, str, Runs]]:
        """Yield (model, rate, arm, runs), the GPT first."""
        for name_of_model, places in (("GPT", self.gpt), ("proxy", self.proxy)):
            for (lr, name), runs in places.items():
                yield name_of_model, lr, name, runs

    def gaps(self, lr: float, name: str, base: str) -> Values:
        """Return the final loss above another arm's of the GPT, in nats, where neither diverged."""
        over, under = (losses(self.gpt.get((lr, arm), ())) for arm in (name, base))
        return {seed: loss - under[seed] for seed, loss in over.items() if seed in under}

    def gap(self, lr: float, name: str, base: str) -> Estimate:
        """Return the estimate of `gaps` over seeds."""
        return mean(self.gaps(lr, name, base))

    def perplexity(self, lr: float, name: str, base: str) -> Estimate:
        """Return by how many per cent an arm of the GPT has a higher perplexity than another."""
        gaps = self.gaps(lr, name, base)
        return mean({seed: 100.0 * math.expm1(gap) for seed, gap in gaps.items()})

    def over(self, lr: float, name: str, base: str) -> Estimate:
        """Return by how many per cent the proxy's loss is above another arm's, geometrically."""
        e = ratio(*(losses(self.proxy.get((lr, arm), ())) for arm in (name, base)))
        middle, low, high = (100.0 * (x - 1.0) for x in (e.mean, e.low, e.high))
        return Estimate(mean=middle, low=low, high=high, seeds=e.seeds)

    def seen(self, lr: float, name: str, measure: str) -> Values:
        """Return a measure of the proxy before divergence, by seed."""
        return {r.seed: before(r, measure) for r in self.proxy.get((lr, name), ())}

    def audited(self, number: str, **where: Any) -> Values:
        """Return an audited number's mean by seed, over rows whose columns are as `where`."""
        wanted = {column: v if isinstance(v, tuple) else (v,) for column, v in where.items()}
        kept = grouped(
            (row["seed"], row[number])
            for row in self.audit
            if all(row[column] in v for column, v in wanted.items()) and math.isfinite(row[number])
        )
        return {seed: sum(own) / len(own) for seed, own in kept.items()}


def collected(gpt: Collection[Run[Trial]], proxy: Collection[Run[Arm]]) -> Results:
    """Return runs of both models in their places."""
    audit = [{"seed": r.seed, **row} for r in gpt for row in r.extra.get("audit", ())]
    of_gpt = grouped(((r.condition.lr, r.condition.name), r) for r in gpt)
    return Results(of_gpt, grouped(((r.condition.lr, r.condition.name), r) for r in proxy), audit)


def read(scale: Scale, store: Store) -> Results | None:
    """Return what the store holds of a scale; None unless it has runs of both models."""
    gpt = store.read({t: key(scale, t) for own in trials(scale) for t in own})
    proxy = student.stored(store, scale.proxy, [a for arms in proxy_arms(scale) for a in arms])
    return collected(gpt.values(), proxy.values()) if gpt and proxy else None


def losses(runs: Runs) -> dict[int, float]:
    """Return the final losses of the runs that did not diverge, by seed."""
    return {r.seed: r.loss for r in runs if r.diverged is None and math.isfinite(r.loss)}
