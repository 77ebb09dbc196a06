"""The answer and the verdicts on the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.report.terminal import console
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.verdicts import Verdict

CAUTION = (
    "The paper's implementation, sizes, tiles and draws are unpublished: 'contradicts' says that the claim fails in our emulation at these "
    "sizes, not that the paper measured wrongly."
)


def show(verdicts: Sequence[Verdict], data: dict[str, Any], out: Path) -> None:
    """The answer, every verdict, and where the rest is."""
    screen = console()
    say = lambda text: screen.print(text, markup=False)  # noqa: E731
    say(data["answer"])
    screen.print(verdict_table.screen(verdicts, {"figure": 7, "claim": 27, "case": 22, "measured": 28, "verdict": 12}))
    say(CAUTION)
    run = data["run"]
    say(f"{run['done']} cells done, {run['failed']} failed, {run['skipped']} there already, {run['seconds']:.0f} s ({run['scale']})")
    if data["first_error"]:
        say(f"first failure: {data['first_error']}; the same command tries failed cells again")
    say(f"written: {out / 'report.html'}, {out / 'verdicts.json'}, {out / 'golden.sqlite'}")
