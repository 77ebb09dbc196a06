"""The results of both models by peak rate and arm, and comparisons of two arms seed by seed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roundscope.experiments.framework.estimates import Estimate, Values, mean, ratio
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.student import stored
from roundscope.experiments.papers.mxfp8_2506_08027.conditions import (
    Scale,
    Trial,
    key,
    proxy_arms,
    trials,
)
from roundscope.experiments.train.student.arms import Arm
from roundscope.experiments.train.student.results import before
from roundscope.tools.results.run import Run

Runs = Sequence[Run[Any]]
Place = tuple[float, str]  # peak rate, arm


@dataclass(frozen=True, slots=True)
class Results:
    """Runs of both models.

    gpt, proxy   (rate, arm) -> runs in the order of seeds
    audit        the audit of the GPT's BF16 runs
    """

    gpt: Mapping[Place, Sequence[Run[Trial]]]
    proxy: Mapping[Place, Sequence[Run[Arm]]]
    audit: Sequence[Mapping[str, Any]]

    @property
    def rates(self) -> list[float]:
        """Return the rates of the GPT."""
        return list(dict.fromkeys(lr for lr, _ in self.gpt))

    @property
    def proxy_rates(self) -> list[float]:
        """Return the rates of the proxy."""
        return list(dict.fromkeys(lr for lr, _ in self.proxy))

    def arms(self) -> Iterator[tuple[str, float, str, Runs]]:
        """Yield (model, rate, arm, runs), the GPT first."""
        for model, places in (("GPT", self.gpt), ("proxy", self.proxy)):
            for (lr, name), runs in places.items():
                yield model, lr, name, runs

    def gaps(self, lr: float, name: str, base: str) -> Values:
        """Return the final loss above that of another arm of the GPT in nats, by seed.

        Seeds count if neither run diverged.
        """
        over, under = (losses(self.gpt.get((lr, arm), ())) for arm in (name, base))
        return {seed: loss - under[seed] for seed, loss in over.items() if seed in under}

    def gap(self, lr: float, name: str, base: str) -> Estimate:
        """Return the estimate of `gaps` over seeds."""
        return mean(self.gaps(lr, name, base))

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


def collected(gpt: Sequence[Run[Trial]], proxy: Sequence[Run[Arm]]) -> Results:
    """Return runs of both models in their places."""
    audit = [{"seed": r.seed, **row} for r in gpt for row in r.extra.get("audit", ())]
    return Results(_places(gpt), _places(proxy), audit)


def read(scale: Scale, store: Store) -> Results | None:
    """Return what the store holds of a scale; None unless it has runs of both models."""
    gpt = store.read({t: key(scale, t) for own in trials(scale) for t in own})
    proxy = stored(store, scale.proxy, [a for arms in proxy_arms(scale) for a in arms])
    return collected(list(gpt.values()), list(proxy.values())) if gpt and proxy else None


def losses(runs: Runs) -> dict[int, float]:
    """Return the final losses of the runs that did not diverge, by seed."""
    return {r.seed: r.loss for r in runs if r.diverged is None and math.isfinite(r.loss)}


def _places(runs: Iterable[Run[Any]]) -> dict[Place, list[Run[Any]]]:
    found: dict[Place, list[Run[Any]]] = {}
    for r in runs:
        found.setdefault((r.condition.lr, r.condition.name), []).append(r)
    return found
