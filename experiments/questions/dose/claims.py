"""The probes' statements beside what was measured, and the rules that judge them."""

import math
from collections.abc import Container

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.counts import time_of
from roundscope.experiments.framework.estimates import Estimate, factor
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge
from roundscope.experiments.questions.dose.arms import Dose
from roundscope.experiments.questions.dose.results import Results
from roundscope.experiments.questions.dose.scale import EVEN, FULL, OUTWARD, RANDOM, ZERO, Scale
from roundscope.tools.results.run import Run

# nats above the exact arm's final loss, below which an arm is harmless; the probe's lay within 0.02
HARMLESS = 0.05
RULES = (
    "Harmless: no run diverged and the 95 % interval of the excess loss over the exact arm of the"
    f" same seed ends below {HARMLESS} nats; it is not where more than half of the runs of a point"
    " diverged or the interval begins above. Diverges from p down: agrees if all runs of all those"
    " p diverged in the steps claimed, contradicts if none did at one of those p, else undecided."
    " Sign, not size: agrees if some toward-zero point of p bits diverged in more than half of its"
    " runs while no nearest-even run of p - 1 bits, an error of the same RMS, did; contradicts if"
    " nearest-even diverged at least as often there as toward zero; else undecided."
)


FAST = "toward zero diverges from p = 6 down at lr 1e-2 within 2,000 steps"
SLOW = "and from p = 4 down at lr 1e-3, after 3,000 to 9,000 steps"


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return a verdict for every statement, at every rate where it was measured."""
    rates = [rate for site, rate in r.panels() if site is Site.OD]
    found = [
        verdict
        for rate in rates
        for verdict in (_sign(r, rate, scale), _harmless(r, rate, scale), _norms(r, rate, scale))
    ]
    return [
        *found,
        _diverges(r, scale, ZERO, 1e-2, range(7), 2000, FAST),
        _diverges(r, scale, ZERO, 1e-3, range(5), 9000, SLOW),
        _diverges(r, scale, OUTWARD, 1e-2, (8,), 2000, "away from zero diverges already at p = 8"),
    ]


def same_size(r: Results, rate: float) -> list[tuple[int, list[Run[Dose]], list[Run[Dose]]]]:
    """Return (p, toward zero at p, nearest-even at p - 1) where both were run.

    Both errors are uniform in an ulp and have the same size: their rms is 2^-p x sqrt(1/3).
    """
    zero, even = r.series(Site.OD, ZERO, rate), r.series(Site.OD, EVEN, rate)
    return [(p, own, even[p - 1]) for p, own in zero.items() if p - 1 in even]


def _sign(r: Results, rate: float, scale: Scale) -> Verdict:
    claim, case = "it is the sign of the error, not its size, that kills", f"OD, lr {rate:g}"
    pairs = [(p, time_of(zero), time_of(even)) for p, zero, even in same_size(r, rate)]
    if not pairs:
        needs = "needs toward-zero at p and nearest-even at p - 1 bits"
        return _verdict(claim, case, scale, Word.NOT_TESTABLE, needs)
    strong = [(p, z, e) for p, z, e in pairs if 2 * z.diverged > z.runs and not e.diverged]
    as_often = [
        (p, z, e) for p, z, e in pairs if e.diverged and e.diverged * z.runs >= z.diverged * e.runs
    ]
    word = Word.UNDECIDED
    if bool(strong) != bool(as_often):
        word = Word.AGREES if strong else Word.CONTRADICTS
    words = "; ".join(
        f"p = {p}: {z.words}, nearest-even p = {p - 1}: {e.diverged} of {e.runs}"
        for p, z, e in pairs
    )
    return _verdict(claim, case, scale, word, f"toward zero {words}", _others(r, rate))


def _others(r: Results, rate: float) -> str:
    """What errors without a bias did, and those of the other sign, which may kill less."""
    named = {
        "stochastic (1.4 times nearest's RMS, no bias)": RANDOM,
        "away from zero (the RMS of toward zero, the other sign)": OUTWARD,
    }
    told = []
    for name, mode in named.items():
        times = {p: time_of(own) for p, own in r.series(Site.OD, mode, rate).items()}
        counts = ", ".join(f"p = {p}: {t.diverged} of {t.runs}" for p, t in times.items())
        told += [f"{name}: {counts}"] if times else []
    return "; ".join(told)


def _harmless(r: Results, rate: float, scale: Scale) -> Verdict:
    claim = "nearest-even is harmless down to p = 2"
    case = f"OD, lr {rate:g}"
    series = r.series(Site.OD, EVEN, rate)
    if not series:
        return _verdict(claim, case, scale, Word.NOT_TESTABLE, "nearest-even was not run")
    times = [time_of(own) for own in series.values()]
    least = min(series)
    excess = r.excess(series[least])
    diverged = sum(t.diverged for t in times)
    harmful = any(2 * t.diverged > t.runs for t in times) or excess.low > HARMLESS
    harmless = not diverged and excess.high < HARMLESS and least == 2
    word = Word.CONTRADICTS if harmful else Word.AGREES if harmless else Word.UNDECIDED
    measured = (
        f"{diverged} of {sum(t.runs for t in times)} diverged at p = {least} to {max(series)};"
        f" excess loss at p = {least}: "
    )
    return _verdict(claim, case, scale, word, measured + interval(excess, " nats"), estimate=excess)


def _norms(r: Results, rate: float, scale: Scale) -> Verdict:
    claim, case = "||W_Q|| grows without limit first", f"OD toward zero, lr {rate:g}"
    ratios = [
        at
        for own in r.series(Site.OD, ZERO, rate).values()
        for run in own
        if (at := ahead(r, run)) is not None
    ]
    if not ratios:
        return _verdict(claim, case, scale, Word.UNDECIDED, "no run diverged")
    found = factor(dict(enumerate(ratios)))
    measured = (
        "largest ||W_Q|| over the exact arm's at the last look before divergence:"
        f" {interval(found, 'x')}, {len(ratios)} runs"
    )
    return _verdict(
        claim,
        case,
        scale,
        judge(found, (2.0, math.inf)),
        measured,
        "agrees if the interval is above 2",
        estimate=found,
    )


def ahead(r: Results, run: Run[Dose]) -> float | None:
    """Return ||W_Q|| over that of the exact arm at the last look before the run diverged.

    None if it did not diverge, or before the first look.
    """
    if run.diverged is None:
        return None
    exact = {step: norm for step, _, norm in r.exact(run).curve}
    looks = [
        (step, norm)
        for step, _, norm in run.curve
        if 0 < step <= run.diverged and math.isfinite(norm)
    ]
    return looks[-1][1] / exact[looks[-1][0]] if looks else None


def _diverges(
    r: Results,
    scale: Scale,
    mode: RoundingMode,
    rate: float,
    bits: Container[int],
    within: int,
    claim: str,
) -> Verdict:
    series = {p: own for p, own in r.series(Site.OD, mode, rate).items() if p in bits}
    case = f"OD, lr {rate:g}"
    if not series:
        return _verdict(
            claim, case, scale, Word.NOT_TESTABLE, f"lr {rate:g} with these p was not run"
        )
    done = {
        p: [r.diverged is not None and r.diverged <= within for r in own]
        for p, own in series.items()
    }
    steps = min(run.condition.steps for own in series.values() for run in own)
    none_at = any(not any(d) for d in done.values())
    word = (
        Word.AGREES
        if all(all(d) for d in done.values())
        else Word.CONTRADICTS
        if none_at and steps >= within
        else Word.UNDECIDED
    )
    measured = "; ".join(f"p = {p}: {time_of(own).words}" for p, own in series.items())
    return _verdict(
        claim,
        case,
        scale,
        word,
        measured,
        "" if steps >= within else f"runs of {steps} steps, the probe's had {within}",
    )


def _verdict(
    claim: str,
    case: str,
    scale: Scale,
    word: Word,
    measured: str,
    note: str = "",
    *,
    estimate: Estimate | None = None,
) -> Verdict:
    return Verdict(
        figure="probe 2",
        claim=claim,
        case=case,
        sizes=_sizes(scale),
        word=word,
        measured=measured,
        note=note,
        estimate=estimate,
    )


def _sizes(scale: Scale) -> str:
    c = scale.config
    return (
        ""
        if c == FULL.config
        else (
            f"not the probe's model: {c.layers} layers, width {c.width}, context {c.context}, batch"
            f" {c.batch}"
        )
    )
