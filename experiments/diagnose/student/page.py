"""The report of a proxy's diagnosis, and what the terminal shows."""

import numpy as np
from matplotlib.figure import Figure

from roundscope.experiments.diagnose.student import pictures as measured
from roundscope.experiments.diagnose.student import words
from roundscope.experiments.diagnose.student.data import document
from roundscope.experiments.diagnose.student.run import SET, Found
from roundscope.experiments.diagnose.student.verdict import links
from roundscope.experiments.train.student.follow import RULE
from roundscope.tools.diagnose.replay.fate import Outcome
from roundscope.tools.diagnose.report import pictures_run, words_run
from roundscope.tools.diagnose.report.diagnosis import Diagnosis, step
from roundscope.tools.diagnose.report.steps_run import replay_step, search_step
from roundscope.tools.report.model import Picture, Section, Table, notes
from roundscope.tools.report.pictures import DOWN, UP

HOW = (
    f"{words_run.SHAM} Epsilon is measured at the same weights and rows, so it contains no"
    " difference between two trainings."
)


def steps(found: Found) -> list[Section]:
    """Return what the report shows, in order."""
    r = found.replayed
    error = "The events of a row round, all others are FP32."
    dots = "Dots: the run's blocks, red those of the set; bars: normal numbers in the same format."
    green = "Green: survives more often than shams do; red: none survives."
    errors = Picture("Error and coherence", measured.errors(found), error) if found.errors else None
    blocks = Picture("Blocks", measured.origin(found), dots) if found.origin else None
    repairs = Picture("Repairs", measured.repairs(found), green) if found.tried else None
    return [
        replay_step(words_run.replayed(r), losses(found), RULE),
        search_step(r, words_run.searched(r)),
        step(3, "The gradient's error", words.error(found), errors, _errors(found)),
        step(4, "Origin", words.origin(found), blocks, _origin(found)),
        step(5, "Repair", words.repaired(found), repairs, _repairs(found)),
    ]


def losses(found: Found) -> Figure:
    """Draw the file's curve, the replay, and the sanity arms.

    A point of the curve is the largest loss of 25 steps.
    """
    case, r = found.case, found.replayed
    curve = [(step, loss) for step, loss, _ in case.row.curve if loss > 0.0]
    return pictures_run.losses(
        curve, r, [(case.failed, UP, "diverged"), (r.replayer.first, DOWN, "replays begin")]
    )


def _errors(found: Found) -> Table:
    rows = []
    for who, e in found.errors.items():
        mean, half = e.bias
        rows.append(
            [
                who,
                f"{e.zeta.mean():.3g}",
                f"{e.cosine.mean():.4f}",
                f"{100 * mean:+.3g}",
                f"{100 * half:.2g}",
                f"{e.a:.2f}",
                f"{e.null:.2f}",
                f"{e.p:.1g}",
            ]
        )
    heads = ["rounded", "zeta", "cosine", "along g, %", "+-", "A", "flips, 95 %", "p"]
    return Table(heads, rows, [row[0] == SET for row in rows])


def _origin(found: Found) -> Table:
    rows = []
    for b in found.origin:
        for title, s, spread in (
            (f"{b.units[0].site}", b.shares, f"{b.spread:.3g}"),
            ("  normal numbers", b.normal_shares, ""),
        ):
            percent = [
                f"{100 * s[n]:.2f}"
                for n in ("clipped", "last", "underflow", "shrink", "rms", "excess")
            ]
            where = [str(b.format), str(len(b.units))] if spread else ["", ""]
            rows.append([title, *where, *percent, f"{s['distinct']:.1f}", spread])
    heads = [
        "event",
        "format",
        "places",
        "clipped\n%",
        "largest\n%",
        "to 0\n%",
        "shrink\n%",
        "rms\nerror %",
        "over\nRCEIL %",
        "distinct",
        "max / min",
    ]
    return Table(heads, rows, [b.marked and not i for b in found.origin for i in (0, 1)])


def _repairs(found: Found) -> Table:
    rows = []
    for t in found.tried:
        mean, half = t.error.bias
        rows.append(
            [
                t.name,
                f"{t.error.zeta.mean():.3g}",
                f"{100 * mean:+.3g} +- {100 * half:.2g}",
                f"{t.error.a:.2f}",
                t.outcome.count,
                _median(t.outcome),
                f"{t.p:.1g}",
                "" if t is found.tried[0] else t.word,
            ]
        )
    heads = ["repair", "zeta", "along g, %", "A", "survive", "others\nfail at", "p", "verdict"]
    return Table(heads, rows)


def _median(o: Outcome) -> str:
    """Return the median of the steps at which those that diverge do."""
    steps = [f.failed for f in o.fates if f.failed is not None]
    return f"{np.median(steps):.0f}" if steps else ""


def diagnosis(found: Found) -> Diagnosis:
    """Return what is said of a student's run."""
    data, r = document(found), found.replayed
    return Diagnosis(
        name=words.who(found),
        title="Why did this run diverge, and is it rounding?",
        about=words.who(found),
        first_line=words_run.first_line(r),
        kind=words.kind(found),
        headline=words.headline(found),
        steps=steps(found),
        links=links(found),
        unseen=words.not_shown(found),
        said=[_repairs(found)] if found.tried else [],
        how=notes(HOW),
        machine=[f"{k:<10} {v}" for k, v in data["run"].items()],
        data=data,
        seconds=found.seconds,
    )
