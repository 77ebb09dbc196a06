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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.blocks.format import ScaleRule, block_format
from roundscope.emu.blocks.xla import ends_row, round_even, row_of
from roundscope.experiments.framework import student
from roundscope.experiments.framework.estimates import Estimate, Values, mean, ratio
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Launch, Progress
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    BF16,
    Scale,
    Trial,
    key,
    proxy_arms,
    settings_of,
    trials,
)
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.interventions import BLOCK, MATRICES, Matrix
from roundscope.experiments.train.gpt.linear import LinearPlans, formats_of, how_of
from roundscope.experiments.train.groups import EVERY, Group, blocks, drawing
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.spikes import followed
from roundscope.experiments.train.student.arms import Arm
from roundscope.experiments.train.student.run import before
from roundscope.tools.results.run import Run

RULES = (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.RCEIL, ScaleRule.EVEN)
ELEMENTS = {"E4M3": "mxfp8_e4m3", "E5M2": "mxfp8_e5m2"}
CASES = tuple(product(ELEMENTS, RULES))
ROWS = np.stack([row_of(block_format(ELEMENTS[name], rule=rule)) for name, rule in CASES])
NUMBERS = ("saturated", "underflow", "shrink", "error")
# the two copies of a tensor: blocked along the row's axis, and along the column's
COPIES = {"X": (Site.X, Site.X_W), "W": (Site.W, Site.W_X), "G": (Site.G_X, Site.G_W)}
# the names of matrices in the tree of parameters
NAMES = {Matrix.QKV: "qkv", Matrix.PROJ: "proj", Matrix.FC1: "up", Matrix.FC2: "down"}

Row = dict[str, Any]
Taps = dict[Matrix, tuple[Array, ...]]
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
    """Return the runs of trials, in their order. Same trials, same device: same bits.

    curve           (steps done, mean loss since the last entry)
    extra["audit"]  of a BF16 arm: `audit` at the steps of the scale, each row with its step
    """
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
    """Return a row per layer, matrix, operand (an event's name), element format and rule.

    params are those of one arm, tokens are (B, T + 1).
    """
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


@lru_cache(8)
def operands(config: Config) -> Any:
    """Return a function (params, tokens) -> matrix -> X, W, G of shape (layers, rows, columns).

    These are what the products of an FP32 step read.
    """
    formats = formats_of(config, ["matrix=all -> fp32"])
    assert formats is not None
    how, table = how_of([formats]), formats.table()

    def read(params: Any, tokens: Array) -> dict[Matrix, dict[str, Array]]:
        layers = params["layers"]
        into, out = (config.width, -1), (-1, config.width)
        wide = {"qkv": into, "proj": out, "up": into, "down": out}
        weights = {m: layers[name].reshape(config.layers, *wide[name]) for m, name in NAMES.items()}
        rows = tokens.shape[0] * (tokens.shape[1] - 1)
        taps = {
            m: tuple(jnp.zeros((config.layers, rows, n), jnp.float32) for n in w.shape[1:])
            for m, w in weights.items()
        }

        def one(taps: Taps) -> Array:
            return model.loss(
                params, tokens, None, config, linears=LinearPlans(how, jnp.asarray(table), taps)
            )

        seen = jax.grad(one)(taps)
        return {m: {"X": seen[m][0], "W": weights[m], "G": seen[m][1]} for m in MATRICES}

    return jax.jit(read)


@partial(jax.jit, static_argnums=(1, 2))
def _measured(values: Array, row: int, column: int) -> tuple[dict[str, Array], Array]:
    """Return NUMBERS (layers, cases, 2 copies) and apart (layers, cases) of a tensor.

    The tensor is (layers, rows, columns).
    """

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
    """Runs of both models.

    gpt, proxy   (rate, arm) -> runs in the order of seeds
    audit        the audit of the GPT's BF16 runs
    """

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
        """Return the final loss above that of another arm of the GPT in nats, by seed.

        Seeds count if neither run diverged.
        """
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
        """Return by how many per cent an arm of the proxy ends with a higher loss than another.

        It is a geometric mean over seeds.
        """
        e = ratio(*(losses(self.proxy.get((lr, arm), ())) for arm in (name, base)))
        middle, low, high = (100.0 * (x - 1.0) for x in (e.mean, e.low, e.high))
        return Estimate(mean=middle, low=low, high=high, seeds=e.seeds)

    def seen(self, lr: float, name: str, measure: str) -> Values:
        """Return a measure of the proxy before divergence, by seed."""
        return {r.seed: before(r, measure) for r in self.proxy.get((lr, name), ())}

    def audited(self, number: str, **where: Any) -> Values:
        """Return the mean of an audited number over layers, matrices, steps and rates, by seed.

        where   column -> value or a tuple of values
        """
        wanted = {column: v if isinstance(v, tuple) else (v,) for column, v in where.items()}
        kept: dict[int, list[float]] = {}
        for row in self.audit:
            fits = all(row[column] in values for column, values in wanted.items())
            if fits and math.isfinite(row[number]):
                kept.setdefault(row["seed"], []).append(row[number])
        return {seed: sum(own) / len(own) for seed, own in kept.items()}


def collected(gpt: Collection[Run[Trial]], proxy: Collection[Run[Arm]]) -> Results:
    """Return runs of both models in their places."""

    def places(runs: Iterable[Run[Any]]) -> dict[Place, list[Run[Any]]]:
        found: dict[Place, list[Run[Any]]] = {}
        for r in runs:
            found.setdefault((r.condition.lr, r.condition.name), []).append(r)
        return found

    audit = [{"seed": r.seed, **row} for r in gpt for row in r.extra.get("audit", ())]
    return Results(places(gpt), places(proxy), audit)


def read(scale: Scale, store: Store) -> Results | None:
    """Return what the store holds of a scale; None unless it has runs of both models."""
    gpt = store.read({t: key(scale, t) for own in trials(scale) for t in own})
    proxy = student.stored(store, scale.proxy, [a for arms in proxy_arms(scale) for a in arms])
    return collected(gpt.values(), proxy.values()) if gpt and proxy else None


def losses(runs: Runs) -> dict[int, float]:
    """Return the final losses of the runs that did not diverge, by seed."""
    return {r.seed: r.loss for r in runs if r.diverged is None and math.isfinite(r.loss)}
