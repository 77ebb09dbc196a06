"""`roundscope dose` as a study: doses of one rounded event, or the cases of one of four topics.

`asked` reads the words of the command line; `of_scale` and `of_topic` say what is run and reported.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from roundscope.attention.sites import Site
from roundscope.emu.errors import unknown
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.catalogue import DOSE
from roundscope.experiments.framework import command
from roundscope.experiments.framework.counts import time_of
from roundscope.experiments.framework.estimates import factor
from roundscope.experiments.framework.store import Store
from roundscope.experiments.framework.study import Figure, Launch, Progress, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, interval, judge, verdict_on
from roundscope.experiments.framework.words import seeds_of, unnamed
from roundscope.experiments.options import DoseOptions
from roundscope.experiments.questions.dose import doses, results
from roundscope.experiments.questions.dose.results import PICTURES, Found, Results, Runs, Topic
from roundscope.experiments.questions.dose.topics import TOPICS
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.spikes import RULE
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

PAIRED = "mean [95 % t interval] over seeds, pairs of one seed"
LEFT_OUT = (
    "An injected bias against noise of the same size, what the threshold scales with, conditions"
    " that raise ties, and errors that leave the rows of dS summing to zero are studies of their"
    " own (--study). With one tile as large as the context AO is 0, so rounding O is rounding P V"
    " once. The probes' learning-rate schedule is not recorded; here the rate stays at its peak"
    " after the warm-up, so that a time to divergence does not depend on the number of steps. Sums"
    " are native: numbers repeat on one kind of device only."
)


def run(options: DoseOptions) -> int:
    """Write dose.sqlite, and the study's page and data; as `framework.command.run`."""
    study = asked(options.words, name=options.study, quick=options.quick, seeds=options.seeds)
    said = ["--study", options.study] if options.study else []
    said += ["--quick"] if options.quick else []
    said += ["--seeds", options.seeds] if options.seeds else []
    line = " ".join(["roundscope dose", *said, *options.words])
    return command.run(study, out=options.out, command=line, as_json=options.json)


def asked(
    given: Sequence[str], *, name: str | None, quick: bool, seeds: str | None
) -> Study[Results] | Study[Found]:
    """Return the study of a topic, or of doses if there is none. Raises UsageError."""
    if name is None:
        return of_scale(doses.scale(given, quick=quick, seeds=seeds))
    return of_topic(name, topic(name, given, quick=quick, seeds=seeds_of(seeds)))


def topic(name: str, given: Sequence[str], *, quick: bool, seeds: tuple[int, ...] | None) -> Topic:
    """Return the topic of that name. Raises UsageError naming the word and the repair."""
    if name not in TOPICS:
        raise UsageError(f"--study: {unknown('study', name, tuple(TOPICS))}")
    return TOPICS[name](quick).given(given, seeds)


def of_scale(asked: doses.Scale) -> Study[Results]:
    """Return the study of every dose of a scale."""
    c, sizes = asked.config, ""
    if c != doses.FULL.config:
        sizes = (
            f"not the probe's model: {c.layers} layers, width {c.width}, context {c.context}, batch"
            f" {c.batch}"
        )
    return Study(
        name=DOSE.name,
        question=DOSE.question,
        launches=partial(_launches, c, doses.doses_of(asked), False),
        results=lambda store: _results(asked, store),
        answer=lambda r: f"{answer(r)} {others(r)}".strip(),
        claims=lambda r: [replace(verdict, sizes=sizes) for verdict in judged(r)],
        source="probe",
        figures=[Figure(title=t, draw=draw, caption=caption) for t, draw, caption in PICTURES],
        tables=[
            Table(
                name="points",
                title="Every point",
                heads=results.POINT_HEADS,
                rows=results.point_rows,
                records=results.point_records,
                note=PAIRED,
                shown=(0, 1, 2, 3, 4),
            )
        ],
        rules=(RULES,),
        caveats=LEFT_OUT,
        about={"model": _model(c, "all is FP32 but one event of attention")},
        config=unnamed(c),
        scale=asked.name,
    )


def of_topic(name: str, asked: Topic) -> Study[Found]:
    """Return the study of the cases of a topic."""
    return Study(
        name=name,
        file=DOSE.name,
        page=name,
        question=asked.question,
        launches=partial(_launches, asked.config, asked.doses, asked.ties),
        results=lambda store: _found(asked, store),
        answer=asked.answer,
        figures=[Figure(title=asked.question, draw=asked.draw, caption=f"{asked.caption} {RULE}")],
        tables=[
            Table(
                name="cases",
                title="Every case",
                heads=results.CASE_HEADS,
                rows=results.case_rows,
                records=results.case_records,
                note=PAIRED,
                shown=(0, 1, 2, 4, 6),
                grouped=True,
            )
        ],
        caveats=asked.notes,
        about={"model": _model(asked.config, asked.about), "seeds": str(len(asked.seeds))},
        config=unnamed(asked.config),
    )


def _launches(
    config: Config, wanted: Sequence[doses.Dose], ties: bool, store: Store
) -> list[Launch]:
    """Return a launch for each executable; doses that are stored are not trained again."""

    def launch(group: Sequence[doses.Dose]) -> Launch:
        keys = {dose: doses.key(config, dose) for dose in group}

        def run(progress: Progress) -> Mapping[str, Run[Any]]:
            there = store.keys()
            missing = [dose for dose in group if keys[dose] not in there]
            return {keys[r.condition]: r for r in doses.launch(config, missing, progress, ties)}

        title, steps = f"{len(group)} arms", group[0].steps
        names = tuple(keys.values())
        return Launch(title=title, steps=steps, config=asdict(config), keys=names, run=run)

    return [launch(group) for group in doses.launches(config, wanted)]


def _results(asked: doses.Scale, store: Store) -> Results | None:
    """Return the points that are stored with all seeds and their exact arms."""
    wanted = doses.doses_of(asked)
    found = store.read({dose: doses.key(asked.config, dose) for dose in wanted})
    missing = {point for d in wanted if d not in found for point in (d.point, d.exact.point)}
    whole = [r for d, r in found.items() if not {d.point, d.exact.point} & missing]
    return Results(whole) if any(r.condition.site for r in whole) else None


def _found(asked: Topic, store: Store) -> Found | None:
    """Return all cases, since an answer compares them; None if one is missing."""
    found = store.read({dose: doses.key(asked.config, dose) for dose in asked.doses})
    return Found(asked, found.values()) if len(found) == len(asked.doses) else None


def _model(c: Config, what: str) -> str:
    data = "the sources of Python" if c.data == "stdlib" else c.data
    return (
        f"byte-level GPT of {c.layers} layers, width {c.width}, {c.heads} heads, context"
        f" {c.context}, batch {c.batch}, on {data}; {what}"
    )


def answer(r: Results) -> str:
    """Return the answer in one sentence, from the rate at which toward zero killed most."""
    chosen = max(
        [
            (rate, p, time_of(zero), time_of(even))
            for site, rate in r.panels()
            if site is Site.OD
            for p, zero, even in same_size(r, rate)
        ],
        key=lambda x: (x[2].diverged / x[2].runs - x[3].diverged / x[3].runs, x[1]),
        default=None,
    )
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
    excess = interval(r.excess(r.series(Site.OD, doses.EVEN, rate)[p - 1]), " nats")
    of_even = (
        f"to nearest-even with {p - 1} bits, an error of the same RMS, in {even.count}"
        f" (final loss above exact: {excess})"
    )
    for mode, word in ((doses.RANDOM, "stochastically"), (doses.OUTWARD, "away from zero")):
        if own := r.series(Site.OD, mode, rate).get(p):
            of_even += f", {word} to {p} bits in {time_of(own).count}"
    where = f"{of_zero}, {of_even} (lr {rate:g})"
    if 2 * zero.diverged > zero.runs and not even.diverged:
        return f"The sign: {where}."
    if even.diverged * zero.runs >= zero.diverged * even.runs and even.diverged:
        return f"Here not the sign alone: {where}."
    series = r.series(Site.OD, doses.ZERO, rate)
    least = min(series)
    return (
        f"Not decided by these runs: {where}; ||W_Q|| grew 2^{interval(r.growth(series[least]))}"
        f" times as much as in the exact arm toward zero at {least} bits."
    )


def others(r: Results) -> str:
    """Return what toward zero does at other events at the fewest bits, or ""."""
    found = []
    for site, rate in r.panels():
        series = r.series(site, doses.ZERO, rate)
        if site is not Site.OD and series:
            t = time_of(series[min(series)])
            found.append(f"{site} at {min(series)} bits {t.count}")
    return f"Toward zero at other events made diverge: {', '.join(found)}." if found else ""


# nats above the exact arm's final loss, below which an arm is harmless; the probe's lay within 0.02
HARMLESS = 0.05
_verdict = partial(verdict_on, "probe 2")
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


def judged(r: Results) -> list[Verdict]:
    """Return a verdict for every statement, at every rate where it was measured."""
    rates = [rate for site, rate in r.panels() if site is Site.OD]
    return [
        *(judge_at(r, rate) for rate in rates for judge_at in (_sign, _harmless, _norms)),
        _diverges(r, doses.ZERO, 1e-2, range(7), 2000, FAST),
        _diverges(r, doses.ZERO, 1e-3, range(5), 9000, SLOW),
        _diverges(r, doses.OUTWARD, 1e-2, (8,), 2000, "away from zero diverges already at p = 8"),
    ]


def same_size(r: Results, rate: float) -> list[tuple[int, Runs, Runs]]:
    """Return (p, toward zero at p, nearest at p - 1): both errors have the rms 2^-p sqrt(1/3)."""
    zero, even = r.series(Site.OD, doses.ZERO, rate), r.series(Site.OD, doses.EVEN, rate)
    return [(p, own, even[p - 1]) for p, own in zero.items() if p - 1 in even]


def _sign(r: Results, rate: float) -> Verdict:
    claim, case = "it is the sign of the error, not its size, that kills", f"OD, lr {rate:g}"
    pairs = [(p, time_of(zero), time_of(even)) for p, zero, even in same_size(r, rate)]
    if not pairs:
        needs = "needs toward-zero at p and nearest-even at p - 1 bits"
        return _verdict(claim, case, Word.NOT_TESTABLE, needs)
    strong = [(p, z, e) for p, z, e in pairs if 2 * z.diverged > z.runs and not e.diverged]
    as_often = [
        (p, z, e) for p, z, e in pairs if e.diverged and e.diverged * z.runs >= z.diverged * e.runs
    ]
    word = Word.UNDECIDED
    if bool(strong) != bool(as_often):
        word = Word.AGREES if strong else Word.CONTRADICTS
    words = "; ".join(
        f"p = {p}: {z.words}, nearest-even p = {p - 1}: {e.count}" for p, z, e in pairs
    )
    return _verdict(claim, case, word, f"toward zero {words}", note=_others(r, rate))


def _others(r: Results, rate: float) -> str:
    """What errors without a bias did, and those of the other sign, which may kill less."""
    named = {
        "stochastic (1.4 times nearest's RMS, no bias)": doses.RANDOM,
        "away from zero (the RMS of toward zero, the other sign)": doses.OUTWARD,
    }
    told = []
    for name, mode in named.items():
        times = {p: time_of(own) for p, own in r.series(Site.OD, mode, rate).items()}
        counts = ", ".join(f"p = {p}: {t.count}" for p, t in times.items())
        told += [f"{name}: {counts}"] if times else []
    return "; ".join(told)


def _harmless(r: Results, rate: float) -> Verdict:
    claim = "nearest-even is harmless down to p = 2"
    case = f"OD, lr {rate:g}"
    series = r.series(Site.OD, doses.EVEN, rate)
    if not series:
        return _verdict(claim, case, Word.NOT_TESTABLE, "nearest-even was not run")
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
    return _verdict(claim, case, word, measured + interval(excess, " nats"), estimate=excess)


def _norms(r: Results, rate: float) -> Verdict:
    claim, case = "||W_Q|| grows without limit first", f"OD toward zero, lr {rate:g}"
    runs = (run for own in r.series(Site.OD, doses.ZERO, rate).values() for run in own)
    ratios = [at for run in runs if (at := ahead(r, run)) is not None]
    if not ratios:
        return _verdict(claim, case, Word.UNDECIDED, "no run diverged")
    found = factor(dict(enumerate(ratios)))
    measured = (
        "largest ||W_Q|| over the exact arm's at the last look before divergence:"
        f" {interval(found, 'x')}, {len(ratios)} runs"
    )
    word, note = judge(found, (2.0, math.inf)), "agrees if the interval is above 2"
    return _verdict(claim, case, word, measured, note=note, estimate=found)


def ahead(r: Results, run: Run[doses.Dose]) -> float | None:
    """Return ||W_Q|| over the exact arm's at the last look before divergence, or None."""
    if run.diverged is None:
        return None
    exact = {step: norm for step, _, norm in r.exact(run).curve}
    looks = [(n, norm) for n, _, norm in run.curve if 0 < n <= run.diverged and math.isfinite(norm)]
    return looks[-1][1] / exact[looks[-1][0]] if looks else None


def _diverges(
    r: Results, mode: RoundingMode, rate: float, bits: Container[int], within: int, claim: str
) -> Verdict:
    series = {p: own for p, own in r.series(Site.OD, mode, rate).items() if p in bits}
    case = f"OD, lr {rate:g}"
    if not series:
        return _verdict(claim, case, Word.NOT_TESTABLE, f"lr {rate:g} with these p was not run")
    done = [[run.time <= within for run in own] for own in series.values()]
    steps = min(run.condition.steps for own in series.values() for run in own)
    word = Word.UNDECIDED
    if all(all(own) for own in done):
        word = Word.AGREES
    elif steps >= within and any(not any(own) for own in done):
        word = Word.CONTRADICTS
    measured = "; ".join(f"p = {p}: {time_of(own).words}" for p, own in series.items())
    note = "" if steps >= within else f"runs of {steps} steps, the probe's had {within}"
    return _verdict(claim, case, word, measured, note=note)
