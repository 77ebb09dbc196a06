"""Every arm with its numbers, for su.json and the report; the answer and the verdicts on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.report.terminal import console
from roundscope.experiments.report.wording import launched
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.verdicts import Verdict
from roundscope.experiments.studies.microscaling.found import Found
from roundscope.experiments.studies.microscaling.judging import counted
from roundscope.experiments.studies.microscaling.scale import Scale
from roundscope.experiments.studies.microscaling.words import missing
from roundscope.experiments.studies.proxy.table import over
from roundscope.experiments.train.student.results import Result

HEADS = ["setting", "arm", "lr", "diverged [95 %], step", "final loss\nover FP32"]


def groups(found: Found) -> dict[tuple[str, str, float], list[Result]]:
    """(setting or parting, arm, rate) -> runs of its seeds."""
    own: dict[tuple[str, str, float], list[Result]] = {}
    trained: list[tuple[str, str, Sequence[Result]]] = [(setting, f, runs) for (setting, f), runs in found.trained.items()]
    trained += [("published", f, runs) for f, runs in found.paper.items()]
    parted = [(f"{lead} steps before", name, [r]) for (_, lead), runs in found.parted.items() for name, r in runs.items()]
    for place, name, runs in [*trained, *sorted(parted, key=lambda p: -int(p[0].split()[0]))]:
        for r in runs:
            own.setdefault((place, name, r.arm.lr), []).append(r)
    return own


def data(found: Found, scale: Scale) -> list[dict[str, Any]]:
    """A record per setting, arm and rate."""
    return [
        {
            "setting": place, "arm": name, "lr": lr, "seeds": [r.arm.seed for r in runs], "diverged": [r.diverged for r in runs],
            "losses": [r.loss for r in runs], "changes": [r.arm.changes for r in runs], "steps": runs[0].steps,
        }
        for (place, name, lr), runs in groups(found).items()
    ]  # fmt: skip


def rows(found: Found) -> list[list[str]]:
    """The same in words; the columns of HEADS."""
    lines = []
    for (place, name, lr), runs in groups(found).items():
        exact = found.paper.get("fp32", []) if place == "published" else found.trained.get((place, "fp32"), [])
        shown = "" if not exact or any(r.diverged is not None for r in runs) else f"{over(runs, exact):.3g}"
        lines.append([place, name, f"{lr:g}", counted(runs), shown if shown not in ("inf", "nan") else ""])
    return lines


def show(verdicts: Sequence[Verdict], data: Mapping[str, Any], out: Path) -> None:
    """The answer, every verdict, and where the rest is."""
    screen = console()
    say = lambda text: screen.print(text, markup=False)  # noqa: E731
    say(data["answer"])
    screen.print(verdict_table.screen(verdicts, {"row": 7, "claim": 28, "case": 18, "measured": 32, "verdict": 12}))
    if missing(data["run"]):
        say(missing(data["run"]))
    say(f"launches: {launched(data['run'])} ({data['scale']})")
    print(f"written: {out / 'report.html'}, {out / 'su.json'}, {out / 'proxy.sqlite'}")
