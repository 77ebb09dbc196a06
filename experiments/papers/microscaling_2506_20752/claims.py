"""Verdicts on what trainings show: does it fail, on what does that depend, and where from?

`interventions` has those on what averts the failure, `code` those on the released code.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from roundscope.experiments.framework.counts import counted, diverged, share, signs
from roundscope.experiments.framework.estimates import (
    Estimate,
    Values,
    factor,
    mean,
    ratio,
)
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SAME,
    SMALLER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import Found, Runs
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT, Arm
from roundscope.experiments.train.student.run import measures, paired
from roundscope.tools.results.run import Run

HALF = 0.5
NEAR_TWO: Range = (1.5, 2.5)
EARLY = 0.5  # the place of the early look among those before divergence: half way
RULES = (
    "Two arms are compared seed by seed, on the same rows from the same weights: which diverged"
    " earlier (never is later than all steps)? A claim agrees if the probability of so many wins,"
    " were a win as likely as a loss, is at most 0.05, one-sided; contradicts if that of the losses"
    " is, or, of a format that should diverge, if no run did and fewer than half would, by the"
    " interval of their share; else it is undecided, with too few seeds or because nothing is"
    " there. Shares have 95 % Clopper-Pearson intervals. A setting's limit is the lowest of its"
    " rates at which a seed diverged, and counts as moved from 5 % on; ratios of limits pair seeds,"
    " and seeds that no rate felled, or all did, say nothing. Intervals are not widened for the"
    " number of claims."
)


def row(
    figure: str,
    claim: str,
    case: str,
    word: Word,
    measured: str,
    estimate: Estimate | None = None,
    note: str = "",
) -> Verdict:
    """Return a verdict; the cells of this study have no sizes in common."""
    return Verdict(
        figure=figure,
        claim=claim,
        case=case,
        sizes="",
        word=word,
        measured=measured,
        estimate=estimate,
        note=note,
    )


def training(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the divergence: of formats, as published, and in other settings."""
    yield from _instability(found)
    yield from _paper(found)
    yield from _effects(found)


def _instability(found: Found) -> Iterator[Verdict]:
    """Yield verdicts: does a format diverge on rows on which FP32 does not?"""
    scale = found.scale
    exact, beside = found.of(scale.base.name, EXACT), found.base(EXACT)
    for name in scale.formats:
        own, at = found.of(scale.base.name, name), found.base(name)
        if name == EXACT or not own or not exact:
            continue
        claim, word = "diverges where FP32 on the same rows does not", _lone(at, beside)
        note = "at this rate and length; the published setting is a row of its own"
        if name == "bf16":
            claim, word, note = "BF16 is smooth", _smooth(at), ""
        case = f"{name}, lr {scale.rate:g}, {scale.base.config.steps} steps"
        measured = f"{counted(at)}; FP32 {counted(beside)}"
        yield row("1", claim, case, word, measured, note=note)
        if len(scale.base.rates) > 1:
            claim = f"{name} lowers the rate at which training diverges by 5 % or more"
            yield _limit("1", claim, "all rates", own, exact, SMALLER)


def _smooth(own: Runs) -> Word:
    """Return the word for runs that should not diverge.

    It agrees if fewer than half would, by the interval of their share.
    """
    low, high = share(diverged(own), len(own))
    return Word.AGREES if high <= HALF else Word.CONTRADICTS if low > HALF else Word.UNDECIDED


def _lone(own: Runs, exact: Runs) -> Word:
    """Return the word for runs that should diverge where FP32 does not.

    It agrees by the test of signs; it contradicts if no run diverged and fewer than half would, by
    the interval of their share.
    """
    word = signs(paired(own, exact)).word
    is_rare = not diverged(own) and share(0, len(own))[1] < HALF
    return Word.CONTRADICTS if word is Word.UNDECIDED and is_rare else word


def _paper(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the published setting, for as many steps as it was run."""
    claim = "the published setting: E4M3 diverges near step 5090, FP32 does not"
    if found.scale.paper is None:
        yield row("4", claim, "-", Word.NOT_TESTABLE, "not run at this scale")
        return
    setting, formats, _ = found.scale.paper
    exact = found.paper.get(EXACT, ())
    for name in formats:
        own = found.paper.get(name, ())
        if own and exact and name != EXACT:
            case = f"{name}, lr {setting.config.lr:g}, {setting.config.steps} steps"
            measured = f"{counted(own)}; FP32 {counted(exact)}"
            yield row("4", claim, case, _lone(own, exact), measured)


def _effects(found: Found) -> Iterator[Verdict]:
    """Yield what each change of the student does to the rates at which FP32 and the format fail."""
    scale = found.scale
    for setting in scale.settings[1:]:
        for name in scale.few:
            own, base = found.of(setting.name, name), found.of(scale.base.name, name)
            if own and base and len(setting.rates) > 1:
                place, ours = (setting.name, name == EXACT), f"ours: {setting.name} moves the limit"
                claim, holds = EFFECTS.get(place, (ours, None))
                yield _limit("2", claim, f"{setting.name}, {name}", own, base, holds)
    claim = "the format diverges earlier than FP32 on the same rows"
    for setting in scale.settings[1:]:
        for name in scale.few:
            own, exact = found.of(setting.name, name), found.of(setting.name, EXACT)
            if own and exact and name != EXACT:
                wins = signs(paired(own, exact))
                count = f"earlier in {wins.earlier} runs, later in {wins.later}, of {len(own)}"
                case = f"{setting.name}, {name}"
                yield row("2", claim, case, wins.word, f"{count} at all rates")


EFFECTS: dict[tuple[str, bool], tuple[str, Range]] = {
    ("no LN", True): ("without LN, FP32 is less stable", SMALLER),
    ("no LN", False): ("without LN, low precision is more stable", LARGER),
    ("gelu", True): ("SwiGLU destabilizes FP32 too: GeLU stands higher rates", LARGER),
    ("gelu", False): ("SwiGLU is worst: GeLU stands higher rates", LARGER),
}


def limits(runs: Runs) -> Values:
    """Return the lowest rate at which each seed diverged.

    Seeds that diverged at no rate, or at the lowest, are left out.
    """
    lowest = min((r.condition.lr for r in runs), default=0.0)
    by_seed: dict[int, float] = {}
    for r in sorted(runs, key=lambda r: (r.seed, r.condition.lr)):
        if r.diverged is not None:
            by_seed.setdefault(r.seed, r.condition.lr)
    return {seed: rate for seed, rate in by_seed.items() if rate > lowest}


def _limit(
    figure: str, claim: str, case: str, own: Runs, base: Runs, holds: Range | None
) -> Verdict:
    """Return the verdict on a ratio of limits; without a range the claim is that they differ."""

    def shown(limit: Values) -> str:
        rates = sorted(limit.values())
        if not rates:
            return "none inside the rates"
        return f"{rates[len(rates) // 2]:g} [{rates[0]:g}, {rates[-1]:g}]"

    e = ratio(limits(own), limits(base))
    moved = Word.AGREES in (judge(e, LARGER), judge(e, SMALLER))
    word = judge(e, holds) if holds else Word.AGREES if moved else Word.UNDECIDED
    measured = (
        f"limit {interval(e, 'x')}: {shown(limits(own))} against {shown(limits(base))};"
        f" {counted(own)} of all rates"
    )
    return row(figure, claim, case, word, measured, e)


def runs_of(found: Found) -> Runs:
    """Return the base's runs with measures that diverged, and all of them where none did."""
    runs = [r for r in found.epsilon if r.condition.name != EXACT and measures(r)]
    return [r for r in runs if r.diverged is not None] or runs


def before(r: Run[Arm]) -> list[tuple[int, dict[str, float]]]:
    """Return the looks at steps before divergence.

    The first one, at step 0, is left out, since nothing is trained there.
    """
    return [(step, dict(own)) for step, own in measures(r) if 0 < step < r.time]


def middle(found: Found, name: str) -> Values:
    """Return the median of a measure over looks before divergence, by seed."""
    return _at(found, lambda looks: float(np.median([own[name] for own in looks])))


def _at(found: Found, read: Callable[[list[dict[str, float]]], float]) -> Values:
    looks = {r.seed: [own for _, own in before(r)] for r in runs_of(found)}
    return {seed: read(own) for seed, own in looks.items() if own}


def epsilon(found: Found) -> Iterator[Verdict]:
    """Yield every verdict on the gradient's error epsilon; none before its runs are stored.

    How large is it, how does it grow before a divergence, where does it come from, and what does
    the released measure say?
    """
    if not runs_of(found):
        return
    case = f"{found.scale.mx}, lr {found.scale.rate:g}"

    def verdict(claim: str, e: Estimate, holds: Range, told: str, note: str = "") -> Verdict:
        return row("epsilon", claim, case, judge(e, holds), told, e, note)

    def average(name: str, unit: float = 1.0) -> str:
        e = mean(middle(found, name))
        return interval(replace(e, mean=unit * e.mean, low=unit * e.low, high=unit * e.high))

    zeta = middle(found, "zeta")
    last = _at(found, lambda looks: looks[-1]["zeta"])
    early = _at(found, lambda looks: looks[int(EARLY * (len(looks) - 1))]["zeta"])
    grown, end = ratio(last, early), factor(last)
    told = f"zeta {interval(grown, 'x')} that of half way there"
    yield verdict("the error grows before the divergence", grown, LARGER, told)
    told, note = f"zeta at the last look before: {interval(end)}", "its bound on the noise"
    claim = "diverges where |epsilon| / |g| nears 2"
    yield verdict(claim, end, NEAR_TWO, told, f"from memory of the paper: {note}")
    apart = ratio(middle(found, "zeta_apart"), zeta)
    told = (
        f"at different states zeta is {interval(apart, 'x')} that at the same state; cosine"
        f" {average('cosine_apart')} against {average('cosine')}"
    )
    yield verdict("epsilon of two trainings is the formats' error (3.5 e)", apart, SAME, told)
    along = mean(middle(found, "along"))
    claim = "the error is a bias that shortens the gradient"
    yield verdict(claim, along, (-math.inf, -0.005), f"<epsilon, g> / |g|^2 = {interval(along)}")

    rceil = ratio(middle(found, "zeta_rceil"), zeta)
    claim = "the error comes from clipping: RCEIL at the same state has less"
    yield verdict(claim, rceil, SMALLER, interval(rceil, "x"))
    told = (
        f"{average('gamma_last', 100)} % of gamma in the last bin, of activations"
        f" {average('x_last', 100)} % ({average('x_clipped', 100)} % clipped)"
    )
    note = "gamma is not in MX in the released code (3.5 a): what would be"
    gamma = mean(middle(found, "gamma_last"))
    yield verdict("gamma's blocks fall into the last bin", gamma, (0.5, 1.0), told, note)
    spread = mean(middle(found, "gamma_ratio"))
    told = f"max / min {interval(spread)}, {average('gamma_distinct')} different numbers of 32"
    claim = "gamma clusters: max / min of a block is below 1.25"
    yield verdict(claim, spread, (1.0, 1.25), told)
    name, part, sure = largest(found)
    told = f"largest: {name} ({name.formula}) in {sure} seeds, alone {interval(part, 'x')} the"
    most = math.sqrt(0.5) if name in (Site.X, Site.X_W) else math.inf
    claim = "activations make most of the error"
    yield verdict(claim, part, (most, math.inf), f"{told} whole zeta")


def largest(found: Found) -> tuple[Site, Estimate, int]:
    """Return the event whose own zeta is largest in the median, with two numbers.

    They are its part of the whole, and in how many seeds it is the largest.
    """
    firsts = [own for r in runs_of(found) for _, own in before(r)[:1]]
    there = [site for site in Site if all(f"zeta_{site}" in own for own in firsts)]
    by = {site: middle(found, f"zeta_{site}") for site in there}
    name = max(there, key=lambda s: float(np.median(list(by[s].values()))))
    sure = sum(max(there, key=lambda s: by[s][seed]) is name for seed in by[name])
    return name, ratio(by[name], middle(found, "zeta")), sure
