"""What is said of the gradient's error epsilon.

How large is it, how does it grow before a divergence, where does it come from, and what does the
released measure say?
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from roundscope.experiments.framework.estimates import Estimate, Values, factor, mean, ratio
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SAME,
    SMALLER,
    Range,
    Verdict,
    interval,
    judge,
)
from roundscope.experiments.papers.microscaling_2506_20752.conditions import Scale
from roundscope.experiments.papers.microscaling_2506_20752.found import Found
from roundscope.experiments.papers.microscaling_2506_20752.launches import Runs
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT, Arm
from roundscope.experiments.train.student.results import measures
from roundscope.tools.results.run import Run

FIGURE = "epsilon"
NEAR_TWO: Range = (1.5, 2.5)
EARLY = 0.5  # the place of the early look among those before divergence: half way


def runs_of(found: Found) -> Runs:
    """Return the base's runs with measures that diverged, and all of them where none did."""
    runs = [r for r in found.epsilon if r.condition.name != EXACT and measures(r)]
    return [r for r in runs if r.diverged is not None] or runs


def before(r: Run[Arm]) -> list[tuple[int, dict[str, float]]]:
    """Return the looks at steps before divergence.

    The first one, at step 0, is left out, since nothing is trained there.
    """
    return [(step, dict(own)) for step, own in measures(r) if 0 < step < r.time]


def late(found: Found, name: str) -> Values:
    """Return a measure at the last look before divergence, by seed."""
    return _at(found, lambda looks: looks[-1][1][name])


def early(found: Found, name: str) -> Values:
    """Return a measure half way to divergence, by seed."""
    return _at(found, lambda looks: looks[int(EARLY * (len(looks) - 1))][1][name])


def middle(found: Found, name: str) -> Values:
    """Return the median of a measure over looks before divergence, by seed."""
    return _at(found, lambda looks: float(np.median([own[name] for _, own in looks])))


def _at(found: Found, read: Callable[[list[tuple[int, dict[str, float]]]], float]) -> Values:
    return {r.seed: read(looks) for r in runs_of(found) if (looks := before(r))}


def judged(found: Found, scale: Scale) -> list[Verdict]:
    """Return every verdict on epsilon; none before its runs are stored."""
    return [*sizes(found, scale), *sources(found, scale)] if runs_of(found) else []


def sizes(found: Found, scale: Scale) -> Iterator[Verdict]:
    """Yield how large epsilon is, how it grows, and what the released code measures."""
    grown, last = ratio(late(found, "zeta"), early(found, "zeta")), factor(late(found, "zeta"))
    yield _row(
        "the error grows before the divergence",
        scale,
        grown,
        LARGER,
        f"zeta {interval(grown, 'x')} that of half way there",
    )
    yield _row(
        "diverges where |epsilon| / |g| nears 2",
        scale,
        last,
        NEAR_TWO,
        f"zeta at the last look before: {interval(last)}",
        "from memory of the paper: its bound on the noise",
    )
    apart = ratio(middle(found, "zeta_apart"), middle(found, "zeta"))
    yield _row(
        "epsilon of two trainings is the formats' error (3.5 e)",
        scale,
        apart,
        SAME,
        f"at different states zeta is {interval(apart, 'x')} that at the same state; cosine"
        f" {interval(mean(middle(found, 'cosine_apart')))} against"
        f" {interval(mean(middle(found, 'cosine')))}",
    )
    along = mean(middle(found, "along"))
    yield _row(
        "the error is a bias that shortens the gradient",
        scale,
        along,
        (-math.inf, -0.005),
        f"<epsilon, g> / |g|^2 = {interval(along)}",
    )


def sources(found: Found, scale: Scale) -> Iterator[Verdict]:
    """Yield verdicts on saturation or grid, on clusters of gamma, and on the largest event."""
    rceil = ratio(middle(found, "zeta_rceil"), middle(found, "zeta"))
    yield _row(
        "the error comes from clipping: RCEIL at the same state has less",
        scale,
        rceil,
        SMALLER,
        f"{interval(rceil, 'x')}",
    )
    clipped, last = mean(middle(found, "x_clipped")), mean(middle(found, "x_last"))
    gamma = mean(middle(found, "gamma_last"))
    yield _row(
        "gamma's blocks fall into the last bin",
        scale,
        gamma,
        (0.5, 1.0),
        f"{interval(_percent(gamma))} % of gamma in the last bin, of activations"
        f" {interval(_percent(last))} % ({interval(_percent(clipped))} % clipped)",
        "gamma is not in MX in the released code (3.5 a): what would be",
    )
    spread, kinds = mean(middle(found, "gamma_ratio")), mean(middle(found, "gamma_distinct"))
    yield _row(
        "gamma clusters: max / min of a block is below 1.25",
        scale,
        spread,
        (1.0, 1.25),
        f"max / min {interval(spread)}, {interval(kinds)} different numbers of 32",
    )
    name, part, sure = largest(found)
    forward = [Site.X, Site.X_W]
    yield _row(
        "activations make most of the error",
        scale,
        part,
        (math.sqrt(0.5), math.inf) if name in forward else (math.inf, math.inf),
        f"largest: {name} ({name.formula}) in {sure} seeds, alone {interval(part, 'x')} the whole"
        " zeta",
    )


def largest(found: Found) -> tuple[Site, Estimate, int]:
    """Return the event whose own zeta is largest in the median, with two numbers.

    They are its part of the whole, and in how many seeds it is the largest.
    """
    there = [
        site
        for site in Site
        if all(f"zeta_{site}" in own for r in runs_of(found) for _, own in before(r)[:1])
    ]
    by = {site: middle(found, f"zeta_{site}") for site in there}
    name = max(there, key=lambda s: float(np.median(list(by[s].values()))))
    sure = sum(max(there, key=lambda s: by[s][seed]) is name for seed in by[name])
    return name, ratio(by[name], middle(found, "zeta")), sure


def _percent(e: Estimate) -> Estimate:
    return Estimate(mean=100 * e.mean, low=100 * e.low, high=100 * e.high, seeds=e.seeds)


def _row(claim: str, scale: Scale, e: Estimate, holds: Range, told: str, note: str = "") -> Verdict:
    return Verdict(
        figure=FIGURE,
        claim=claim,
        case=f"{scale.mx}, lr {scale.rate:g}",
        sizes="",
        word=judge(e, holds),
        measured=told,
        estimate=e,
        note=note,
    )
