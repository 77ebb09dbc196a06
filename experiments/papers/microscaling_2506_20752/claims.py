"""Verdicts on what trainings show: does it fail, on what does that depend, and where from?

At the end is what averts the failure (the paper's figure 4, and ours), beyond what the smallest
change of the state does by itself. Training is chaotic: half an ulp in one step moves the step of
divergence. So every seed has shams beside its arms, and an arm counts where it outlives the
unchanged run and all shams of its seed. If the arm were one of them, it would be the last with
probability 1 / (shams + 2) or less; so many wins over seeds have a binomial probability.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from roundscope.experiments.framework.counts import LEVEL, at_least, counted, diverged, share, signs
from roundscope.experiments.framework.estimates import (
    Estimate,
    Values,
    factor,
    mean,
    positive,
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
    number,
    verdict_on,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import (
    FORWARD,
    HYBRID,
    PAPER,
    SHAM,
    Found,
    Parted,
    Runs,
)
from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import EXACT, UNCHANGED, Arm
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


BEYOND = (  # figure, claim, why it is not tested
    (
        "1",
        "of about 1,000 language models those in MX spike where they are large or run long",
        "not run for its size: up to 1.7 billion parameters and 35 billion tokens",
    ),
    (
        "Table 1",
        "language models with E4M3 weights and BF16 activations match full precision",
        "not run for its size; the table's numbers were not at hand",
    ),
    ("G", "the losses of language models follow scaling laws in each format", "their size"),
    ("2", "KL in place of the squared error changes nothing", "the paper's classes are not told"),
)


def training(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the divergence: of formats, as published, and in other settings."""
    scale = found.scale
    exact, beside = found.of(scale.base.name, EXACT), found.base(EXACT)
    for name in scale.formats:
        own, at = found.of(scale.base.name, name), found.base(name)
        if name == EXACT or not own or not exact:
            continue
        claim, word = "diverges where FP32 on the same rows does not", _lone(at, beside)
        note = "at this rate and length; the published setting is a row of its own"
        if name == "bf16":
            low, high = share(diverged(at), len(at))
            word = Word.CONTRADICTS if low > HALF else Word.UNDECIDED
            claim, word, note = "BF16 is smooth", Word.AGREES if high <= HALF else word, ""
        case = f"{name}, lr {scale.rate:g}, {scale.base.config.steps} steps"
        measured = f"{counted(at)}; FP32 {counted(beside)}"
        yield verdict_on("1", claim, case, word, measured, note=note)
        if len(scale.base.rates) > 1:
            claim = f"{name} lowers the rate at which training diverges by 5 % or more"
            yield _limit("1", claim, "all rates", own, exact, SMALLER)
    claim = "the published setting: E4M3 diverges near step 5090, FP32 does not"
    if scale.paper is None:
        yield verdict_on("4", claim, "-", Word.NOT_TESTABLE, "not run at this scale")
    exact, formats = found.paper.get(EXACT, ()), scale.paper[1] if scale.paper else ()
    for name in formats:
        own = found.paper.get(name, ())
        if scale.paper and own and exact and name != EXACT:
            config = scale.paper[0].config
            case, measured = f"{name}, lr {config.lr:g}, {config.steps} steps", counted(own)
            measured = f"{measured}; FP32 {counted(exact)}"
            yield verdict_on("4", claim, case, _lone(own, exact), measured)
    yield from _longer(found)
    yield from _fixes(found)
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
                yield verdict_on("2", claim, case, wins.word, f"{count} at all rates")


def _longer(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the base in more steps: does FP32 live, and how much later does it fail?"""
    scale = found.scale
    for setting in scale.settings[1:]:
        if setting.config != replace(scale.base.config, steps=setting.config.steps):
            continue
        exact = found.of(setting.name, EXACT, scale.rate)
        for name in scale.few:
            own = found.of(setting.name, name, scale.rate)
            if name == EXACT or not own or not exact:
                continue
            case = f"{name}, lr {scale.rate:g}, {setting.config.steps} steps"
            low, high = share(diverged(exact), len(exact))
            lives = Word.AGREES if high < HALF else Word.UNDECIDED
            word = Word.CONTRADICTS if low > HALF else lives
            claim = "given more steps FP32 on the same rows still does not diverge"
            measured = f"FP32 {counted(exact)}; {name} {counted(own)}"
            yield verdict_on("1", claim, case, word, measured)
            both = [(a, b) for a, b in paired(own, exact) if a.diverged and b.diverged]
            e = factor({a.seed: b.time / a.time for a, b in both})
            claim = "ours: FP32 diverges later than the format, on the same rows"
            told = f"at {interval(e, 'x')} the format's step; {len(both)} pairs in which both did"
            yield verdict_on("1", claim, case, LARGER, told, e)


def _fixes(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on the code's run_ln_fix.sh: LN in FP32, and scales that clip nothing."""
    if found.scale.fix is None:
        return
    setting, formats, _ = found.scale.fix
    exact = found.fix.get(EXACT, ())
    where = f"lr {setting.rates[0]:g}, {setting.config.steps} steps, width {setting.config.width}"
    plain = formats[1]
    base = found.fix.get(plain, ())
    words = dict(zip(formats[2:], ("LN in FP32", "a bump of the scales", "both"), strict=True))
    for name in formats[1:]:
        own = found.fix.get(name, ())
        if not own or not exact:
            continue
        over = mean({a.seed: 100 * (a.loss / b.loss - 1) for a, b in paired(own, exact)})
        told = f"{counted(own)}; FP32 {counted(exact)}; loss above FP32's {interval(over, ' %')}"
        case = f"{name}, {where}"
        if name == plain:
            claim = "run_ln_fix.sh: E4M3 diverges, FP32 does not"
            yield verdict_on("code", claim, case, _lone(own, exact), told)
            continue
        word = signs(paired(base, own)).word if diverged(base) else Word.NOT_TESTABLE
        note = "" if diverged(base) else "nothing diverged to be repaired"
        claim = f"run_ln_fix.sh: {words[name]} averts the divergence"
        yield verdict_on("code", claim, case, word, told, note=note)
        e = mean({a.seed: 100 * (a.loss / b.loss - 1) for a, b in paired(own, base)})
        claim = f"ours: {words[name]} lowers the loss by 0.05 % or more"
        told = f"{interval(e, ' %')} against E4M3's"
        yield verdict_on("code", claim, case, (-math.inf, -0.05), told, e)


def _lone(own: Runs, exact: Runs) -> Word:
    """Return the word for runs that should diverge where FP32 does not: of signs, or none did."""
    word = signs(paired(own, exact)).word
    is_rare = not diverged(own) and share(0, len(own))[1] < HALF
    return Word.CONTRADICTS if word is Word.UNDECIDED and is_rare else word


EFFECTS: dict[tuple[str, bool], tuple[str, Range]] = {
    ("no LN", True): ("without LN, FP32 is less stable", SMALLER),
    ("no LN", False): ("without LN, low precision is more stable", LARGER),
    ("gelu", True): ("SwiGLU destabilizes FP32 too: GeLU stands higher rates", LARGER),
    ("gelu", False): ("SwiGLU is worst: GeLU stands higher rates", LARGER),
}


def limits(runs: Runs) -> Values:
    """Return the lowest rate at which each seed diverged, unless it is the lowest that was run."""
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
    return verdict_on(figure, claim, case, word, measured, e)


def runs_of(found: Found) -> Runs:
    """Return the base's runs with measures that diverged, and all of them where none did."""
    runs = [r for r in found.epsilon if r.condition.name != EXACT and measures(r)]
    return [r for r in runs if r.diverged is not None] or runs


def before(r: Run[Arm]) -> list[tuple[int, dict[str, float]]]:
    """Return the looks before divergence, without that at step 0, where nothing is trained."""
    return [(step, dict(own)) for step, own in measures(r) if 0 < step < r.time]


def middle(found: Found, name: str) -> Values:
    """Return the median of a measure over looks before divergence, by seed."""
    return _at(found, lambda looks: float(np.median([own[name] for own in looks])))


def _at(found: Found, read: Callable[[list[dict[str, float]]], float]) -> Values:
    looks = {r.seed: [own for _, own in before(r)] for r in runs_of(found)}
    return {seed: read(own) for seed, own in looks.items() if own}


def epsilon(found: Found) -> Iterator[Verdict]:
    """Yield every verdict on the gradient's error epsilon; none before its runs are stored."""
    if not runs_of(found):
        return
    case = f"{found.scale.mx}, lr {found.scale.rate:g}"

    def verdict(claim: str, e: Estimate, holds: Range, told: str, note: str = "") -> Verdict:
        return verdict_on("epsilon", claim, case, judge(e, holds), told, e, note)

    def average(name: str, unit: float = 1.0) -> str:
        e = (mean if name.startswith("cosine") else positive)(middle(found, name))
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
    """Return the event of the largest zeta, its part of the whole, and in how many seeds."""
    firsts = [own for r in runs_of(found) for _, own in before(r)[:1]]
    there = [site for site in Site if all(f"zeta_{site}" in own for own in firsts)]
    by = {site: middle(found, f"zeta_{site}") for site in there}
    name = max(there, key=lambda s: float(np.median(list(by[s].values()))))
    sure = sum(max(there, key=lambda s: by[s][seed]) is name for seed in by[name])
    return name, ratio(by[name], middle(found, "zeta")), sure


OF_ARMS = (
    "Interventions. Shams leave the same state and differ in the rounding of one gradient in one"
    " step. An arm has an effect if it outlives (or precedes) the unchanged run and every sham of"
    " its seed in more seeds than chance, 1 / (shams + 2) each, allows at the 5 % level: averted if"
    " it then never diverged, delayed if it did. Delays are against the median of the unchanged run"
    " and shams, and lower bounds where a run lived to the last step."
)
# the interventions of which the paper's text says that they avert or delay
STATED = ("LN in FP32", "activations BF16 forward", "activations BF16")
HYBRIDS = (HYBRID, FORWARD)  # recipes of the paper's language models, where both were stable
NOT_STATED = "the outcome is in a figure that we have not"


class Effect(StrEnum):
    """The effect of an arm on when its runs diverge, compared with its shams."""

    AVERTED = "averted"  # outlives its shams in more seeds than chance, and never diverged
    DELAYED = "delayed"  # outlives its shams in more seeds than chance
    HASTENED = "earlier"  # precedes its shams in more seeds than chance
    NONE = "no effect seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One arm at one lead.

    runs      steps of divergence by seed, infinite without
    outlived  seeds in which it diverged, if at all, after the unchanged run and all shams
    preceded  seeds in which it diverged before all of them
    delay     steps by which it outlives their median, over seeds; at least that where it lived
    scatter   the standard deviation of their steps of divergence about that median
    """

    name: str
    lead: int
    runs: Mapping[int, float]
    outlived: int
    preceded: int
    delay: Estimate
    censored: bool
    scatter: float
    shams: int

    @property
    def effect(self) -> Effect:
        """The word for the outcome."""
        chance = 1.0 / (self.shams + 2)
        if self.runs and at_least(self.outlived, len(self.runs), chance) <= LEVEL:
            lived = all(math.isinf(x) for x in self.runs.values())
            return Effect.AVERTED if lived else Effect.DELAYED
        if self.runs and at_least(self.preceded, len(self.runs), chance) <= LEVEL:
            return Effect.HASTENED
        return Effect.NONE


def outcome(found: Parted, lead: int, name: str) -> Outcome:
    """Return the outcome over seeds whose unchanged run diverged; no end is the last step."""
    own = {
        seed: runs
        for (seed, at), runs in found.items()
        if at == lead and name in runs and math.isfinite(runs[UNCHANGED].time)
    }
    nulls = {
        seed: [r.time for n, r in runs.items() if n == UNCHANGED or n.startswith(SHAM)]
        for seed, runs in own.items()
    }
    steps = {seed: runs[name].time for seed, runs in own.items()}
    last = {seed: float(runs[name].steps) for seed, runs in own.items()}
    middle = {seed: float(np.median(np.minimum(null, last[seed]))) for seed, null in nulls.items()}
    around = [min(x, last[seed]) - middle[seed] for seed, null in nulls.items() for x in null]
    return Outcome(
        name=name,
        lead=lead,
        runs=steps,
        outlived=sum(steps[s] > max(nulls[s]) for s in own),
        preceded=sum(steps[s] < min(nulls[s]) for s in own),
        delay=mean({s: min(steps[s], last[s]) - middle[s] for s in own}),
        censored=any(map(math.isinf, steps.values())),
        scatter=float(np.sqrt(np.mean(np.square(around)))) if around else math.nan,
        shams=min((len(null) - 1 for null in nulls.values()), default=0),
    )


def outcomes(found: Parted, lead: int) -> list[Outcome]:
    """Return the outcomes of all arms but the unchanged run and the shams, in their order."""
    names = dict.fromkeys(
        n for runs in found.values() for n in runs if n != UNCHANGED and not n.startswith(SHAM)
    )
    return [outcome(found, lead, name) for name in names]


def arms(found: Found) -> Iterator[Verdict]:
    """Yield verdicts on recipes from the first step on, then on each lead's arms and shams."""
    base, claim = found.base(found.scale.mx), "the hybrid recipe is stable from the first step on"
    for name in HYBRIDS:
        hybrid = found.base(f"{found.scale.mx}, {name}")
        if hybrid and base:
            wins, died = signs(paired(base, hybrid)), diverged(hybrid)
            failed = share(died, len(hybrid))[0] >= 0.5 or died == len(hybrid)
            stable = wins.word is Word.AGREES and not died
            word = Word.AGREES if stable else Word.CONTRADICTS if failed else Word.UNDECIDED
            measured = f"{counted(hybrid)}; {found.scale.mx} alone {counted(base)}; later in"
            measured += f" {wins.earlier} of {len(hybrid)} seeds"
            yield verdict_on("recipe", claim, name, word, measured)
    for lead in found.leads:
        moved = [
            abs(r.time - runs[UNCHANGED].time)
            for (_, at), runs in found.parted.items()
            if at == lead
            for name, r in runs.items()
            if name.startswith(SHAM)
        ]
        lived = sum(map(math.isinf, moved))
        steps = sorted(x for x in moved if math.isfinite(x))
        distance = "none diverged"
        if steps:
            distance = f"median {number(steps[len(steps) // 2])}, largest {number(steps[-1])} steps"
        claim = "ours: a change of half an ulp in one step moves the divergence"
        word = Word.AGREES if any(moved) else Word.CONTRADICTS
        measured = f"by {distance}; {lived} of {len(moved)} did not diverge"
        yield verdict_on("4", claim, f"shams, {lead} steps before", word, measured)
        yield from map(_arm, outcomes(found.parted, lead))
    if not found.leads:
        claim = "precision of LN or activations averts the divergence"
        why = "no base run diverged where FP32 lived, or its arms are not there"
        yield verdict_on("4", claim, "-", Word.NOT_TESTABLE, why)
        return
    there = {name for runs in found.parted.values() for name in runs}
    why = f"not an arm of {found.scale.mx}: it is RCEIL for E4M3"
    for own, ours in PAPER.items():
        if ours not in there:
            yield verdict_on("4", "averts or delays", f"{ours} ({own})", Word.NOT_TESTABLE, why)


def _arm(o: Outcome) -> Verdict:
    """Return the verdict on one arm at one lead."""
    own = next((name for name, ours in PAPER.items() if ours == o.name), None)
    lived = sum(map(math.isinf, o.runs.values()))
    delay = "no seed"
    if o.runs:
        delay = f"delay {'at least ' if o.censored else ''}{interval(o.delay, ' steps')}"
    measured = (
        f"{o.effect}: {lived} of {len(o.runs)} never diverged; {delay}; shams scatter by"
        f" {number(o.scatter)}; outlives all shams in {o.outlived} of {len(o.runs)}, precedes them"
        f" in {o.preceded}"
    )
    case = f"{o.name}{f' ({own})' if own else ''}, {o.lead} steps before"
    note = NOT_STATED if own and o.name not in STATED else ""
    claim = "averts or delays" if own else "ours: averts or delays"
    if o.name in STATED:
        claim = "raising the precision of LN or activations averts or delays"
    elif o.name in HYBRIDS:
        claim = "the hybrid recipe is stable"
    return verdict_on("4", claim, case, _word(o), measured, o.delay, note)


def _word(o: Outcome) -> Word:
    """Return the word for "averts or delays", or for "stable" for hybrids."""
    if o.effect is Effect.HASTENED:
        return Word.CONTRADICTS
    if o.name in HYBRIDS and o.effect is Effect.AVERTED:
        return Word.AGREES
    if o.name in HYBRIDS:  # did more seeds diverge than a chance of one in two explains?
        died = sum(map(math.isfinite, o.runs.values()))
        failed = bool(o.runs) and at_least(died, len(o.runs), 0.5) <= LEVEL
        return Word.CONTRADICTS if failed else Word.UNDECIDED
    return Word.AGREES if o.effect in (Effect.AVERTED, Effect.DELAYED) else Word.UNDECIDED
