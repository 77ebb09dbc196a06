"""The report of a proxy's diagnosis, and what the terminal shows."""

from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.experiments.diagnose.student import pictures as measured
from roundscope.experiments.diagnose.student import words
from roundscope.experiments.diagnose.student.data import document
from roundscope.experiments.diagnose.student.run import SET, Found
from roundscope.experiments.diagnose.student.verdict import links
from roundscope.experiments.train.student.results import RULE
from roundscope.tools.diagnose.replay.fate import Outcome
from roundscope.tools.diagnose.report import pictures_run, words_run
from roundscope.tools.diagnose.report.page import Report
from roundscope.tools.diagnose.report.steps_run import Step, replay_step, search_step
from roundscope.tools.report.pictures import DOWN, UP

HOW = (
    f"{words_run.SHAM} Epsilon is measured at the same weights and rows, so it contains no"
    " difference between two trainings."
)
Picture = tuple[str, Any, str]


def steps(found: Found) -> list[Step]:
    """Return what the report shows, in order."""
    errors: list[Picture] = []
    if found.errors:
        caption = "The events of a row round, all others are FP32."
        errors.append(("Error and coherence", measured.errors(found), caption))
    blocks: list[Picture] = []
    if found.origin:
        caption = (
            "Dots: the run's blocks, red those of the set; bars: normal numbers in the same format."
        )
        blocks.append(("Blocks", measured.origin(found), caption))
    repairs: list[Picture] = []
    if found.tried:
        caption = "Green: survives more often than shams do; red: none survives."
        repairs.append(("Repairs", measured.repairs(found), caption))
    return [
        replay_step(words_run.replayed(found.replayed), losses(found), RULE),
        search_step(found.replayed, words_run.searched(found.replayed)),
        Step(
            number=3,
            title="The gradient's error",
            sentence=words.error(found),
            pictures=errors,
            tables=[_errors(found)],
        ),
        Step(
            number=4,
            title="Origin",
            sentence=words.origin(found),
            pictures=blocks,
            tables=[_origin(found)],
        ),
        Step(
            number=5,
            title="Repair",
            sentence=words.repaired(found),
            pictures=repairs,
            tables=[_repairs(found)],
        ),
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


def _errors(found: Found) -> tuple[list[str], list[list[str]], list[bool]]:
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
    return heads, rows, [row[0] == SET for row in rows]


def _origin(found: Found) -> tuple[list[str], list[list[str]], list[bool]]:
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
    return heads, rows, [b.marked and not i for b in found.origin for i in (0, 1)]


def _repairs(found: Found) -> tuple[list[str], list[list[str]], list[bool]]:
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
    return (
        ["repair", "zeta", "along g, %", "A", "survive", "others\nfail at", "p", "verdict"],
        rows,
        [False] * len(rows),
    )


def _median(o: Outcome) -> str:
    """Return the median of the steps at which those that diverge do."""
    steps = [f.failed for f in o.fates if f.failed is not None]
    return f"{np.median(steps):.0f}" if steps else ""


def report(found: Found) -> Report:
    """Return what is said of a student's run."""
    data, r = document(found), found.replayed
    return Report(
        name=words.who(found),
        title="Why did this run diverge, and is it rounding?",
        about=words.who(found),
        first_line=words_run.first_line(r),
        kind=words.kind(found),
        headline=words.headline(found),
        steps=steps(found),
        links=links(found),
        unseen=words.not_shown(found),
        said=[_table(found)] if found.tried else [],
        how=f"<p class=note>{escape(HOW)}</p>",
        machine=[f"{k:<10} {v}" for k, v in data["run"].items()],
        data=data,
        seconds=found.seconds,
    )


def _table(found: Found) -> Any:
    """Return the repairs, for the terminal."""
    from rich.table import Table

    heads, rows, _ = _repairs(found)
    made = Table(
        *(h.replace("\n", " ") for h in heads), box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for row in rows:
        made.add_row(*row)
    return made
