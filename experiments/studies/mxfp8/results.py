"""What came of both models, by peak rate and arm, and comparisons of two arms seed by seed."""

import math
from collections.abc import Sequence
from typing import Any

from roundscope.experiments.studies.framework.estimates import Estimate, Values, mean, ratio
from roundscope.experiments.studies.mxfp8.launches import Result
from roundscope.experiments.train.student.results import Result as ProxyResult

Own = Sequence[Result] | Sequence[ProxyResult]


class Results:
    """gpt, proxy: (rate, arm) -> results in the order of seeds."""

    def __init__(self, gpt: Sequence[Result], proxy: Sequence[ProxyResult]) -> None:
        self.gpt: dict[tuple[float, str], list[Result]] = {}
        self.proxy: dict[tuple[float, str], list[ProxyResult]] = {}
        for r in gpt:
            self.gpt.setdefault((r.trial.lr, r.trial.name), []).append(r)
        for p in proxy:
            self.proxy.setdefault((p.arm.lr, p.arm.name), []).append(p)
        self.audit = [{"seed": r.trial.seed, "lr": r.trial.lr, **row} for r in gpt for row in r.audit]

    @property
    def rates(self) -> list[float]:
        """Of the GPT."""
        return list(dict.fromkeys(lr for lr, _ in self.gpt))

    @property
    def proxy_rates(self) -> list[float]:
        """Of the proxy."""
        return list(dict.fromkeys(lr for lr, _ in self.proxy))

    def gaps(self, lr: float, name: str, base: str) -> Values:
        """Final loss above that of another arm of the GPT, nats, by seed; of seeds of which neither diverged."""
        under = _losses(self.gpt.get((lr, base), []))
        return {seed: loss - under[seed] for seed, loss in _losses(self.gpt.get((lr, name), [])).items() if seed in under}

    def gap(self, lr: float, name: str, base: str) -> Estimate:
        """`gaps` over seeds."""
        return mean(self.gaps(lr, name, base))

    def over(self, lr: float, name: str, base: str) -> Estimate:
        """By how many per cent an arm of the proxy ends with a higher loss than another; the geometric mean."""
        e = ratio(_losses(self.proxy.get((lr, name), [])), _losses(self.proxy.get((lr, base), [])))
        mean, low, high = (100.0 * (x - 1.0) for x in (e.mean, e.low, e.high))
        return Estimate(mean=mean, low=low, high=high, seeds=e.seeds)

    def seen(self, lr: float, name: str, measure: str) -> Values:
        """A measure of the proxy before divergence, by seed."""
        return {r.arm.seed: r.before(measure) for r in self.proxy.get((lr, name), [])}

    def audited(self, number: str, **where: Any) -> Values:
        """The mean of an audited number over layers, matrices, steps and rates, by seed; where: column -> value or a tuple of values."""
        kept: dict[int, list[float]] = {}
        for row in self.audit:
            if all(row[c] in v if isinstance(v, tuple) else row[c] == v for c, v in where.items()) and math.isfinite(row[number]):
                kept.setdefault(row["seed"], []).append(row[number])
        return {seed: sum(own) / len(own) for seed, own in kept.items()}


def _losses(own: Own) -> dict[int, float]:
    return {seed_of(r): r.loss for r in own if r.diverged is None and math.isfinite(r.loss)}


def seed_of(r: Result | ProxyResult) -> int:
    """Of weights and batches."""
    return r.trial.seed if isinstance(r, Result) else r.arm.seed


def diverged(own: Own) -> int:
    """How many did."""
    return sum(r.diverged is not None for r in own)
