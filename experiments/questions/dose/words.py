"""The answer in a sentence, and the names of modes and events in words."""

from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.framework.counts import Time, time_of
from roundscope.experiments.framework.verdicts import interval
from roundscope.experiments.questions.dose.claims import same_size
from roundscope.experiments.questions.dose.results import Results
from roundscope.experiments.questions.dose.scale import EVEN, OUTWARD, RANDOM, ZERO

QUESTION = "Is it the size or the sign of the rounding error that kills training?"
MODES = {
    RoundingMode.TIES_TO_EVEN: "nearest, ties to even",
    RoundingMode.TIES_TO_AWAY: "nearest, ties away",
    RoundingMode.STOCHASTIC: "stochastic",
    RoundingMode.TOWARD_ZERO: "toward zero",
    RoundingMode.AWAY_FROM_ZERO: "away from zero",
}
SITES = {
    Site.OD: "O as delta reads it (OD)",
    Site.O: "O before normalization (O)",
    Site.OUT: "output (OUT)",
    Site.P: "P",
    Site.PV: "P V",
    Site.DP: "dP",
    Site.DS: "dS",
}
LEFT_OUT = (
    "An injected bias against noise of the same size, what the threshold scales with, conditions"
    " that raise ties, and errors that leave the rows of dS summing to zero are studies of their"
    " own (--study). With one tile as large as the context AO is 0, so rounding O is rounding P V"
    " once. The probes' learning-rate schedule is not recorded; here the rate stays at its peak"
    " after the warm-up, so that a time to divergence does not depend on the number of steps. Sums"
    " are native: numbers repeat on one kind of device only."
)


def mode_words(mode: RoundingMode) -> str:
    """Return a mode in words."""
    return MODES.get(mode, str(mode))


def site_words(site: Site) -> str:
    """Return an event in words."""
    return SITES.get(site, str(site))


def answer(r: Results) -> str:
    """Return the answer in one sentence, from the rate at which toward zero killed most."""
    chosen = _strongest(r)
    if chosen is None:
        return (
            "Toward zero at p bits and nearest-even at p - 1 were not both run at OD: the question"
            " is not asked here."
        )
    rate, p, zero, even = chosen
    of_zero = (
        f"O rounded toward zero to {p} significand bits before delta reads it made training diverge"
        f" in {zero.words}"
    )
    excess = interval(r.excess(r.series(Site.OD, EVEN, rate)[p - 1]), " nats")
    of_even = (
        f"to nearest-even with {p - 1} bits, an error of the same RMS, in {even.diverged} of"
        f" {even.runs} (final loss above exact: {excess})"
    )
    where = f"{of_zero}, {of_even}{_also(r, rate, p)} (lr {rate:g})"
    if 2 * zero.diverged > zero.runs and not even.diverged:
        return f"The sign: {where}."
    if even.diverged * zero.runs >= zero.diverged * even.runs and even.diverged:
        return f"Here not the sign alone: {where}."
    return f"Not decided by these runs: {where}; {_growth(r, rate)}."


def _strongest(r: Results) -> tuple[float, int, Time, Time] | None:
    """Return (rate, p, toward zero at p, nearest-even at p - 1) with the largest difference.

    The difference is that of the shares of runs that diverged; of equal ones the most bits count.
    """
    rates = [rate for site, rate in r.panels() if site is Site.OD]
    found = [
        (rate, p, time_of(zero), time_of(even))
        for rate in rates
        for p, zero, even in same_size(r, rate)
    ]
    return max(
        found,
        key=lambda x: (x[2].diverged / x[2].runs - x[3].diverged / x[3].runs, x[1]),
        default=None,
    )


def _also(r: Results, rate: float, p: int) -> str:
    """Return how many runs diverged with stochastic and with outward rounding to as many bits.

    Empty if none was run.
    """
    found = ""
    for mode, word in ((RANDOM, "stochastically"), (OUTWARD, "away from zero")):
        if own := r.series(Site.OD, mode, rate).get(p):
            t = time_of(own)
            found += f", {word} to {p} bits in {t.diverged} of {t.runs}"
    return found


def _growth(r: Results, rate: float) -> str:
    series = r.series(Site.OD, ZERO, rate)
    least = min(series)
    return (
        f"||W_Q|| grew 2^{interval(r.growth(series[least]))} times as much as in the exact arm"
        f" toward zero at {least} bits"
    )


def others(r: Results) -> str:
    """Return what toward zero does at the other events, at the fewest bits each, in a sentence.

    Empty if none was run.
    """
    found = []
    for site, rate in r.panels():
        series = r.series(site, ZERO, rate)
        if site is not Site.OD and series:
            t = time_of(series[min(series)])
            found.append(f"{site} at {min(series)} bits {t.diverged} of {t.runs}")
    return f"Toward zero at other events made diverge: {', '.join(found)}." if found else ""
