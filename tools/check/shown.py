"""What `roundscope check` prints."""

import math
from typing import Any

from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.comparison import Comparison, Finding
from roundscope.attention.testing.exact import RESULTS
from roundscope.tools.check.report import Report
from roundscope.tools.check.words import counts, how, next_step, reasons
from roundscope.tools.report.terminal import table


def show(report: Report, screen: Any) -> None:
    """Print the answer on the first line, then what it rests on."""
    from rich.text import Text

    screen.print(Text(report.sentence, style="bold green" if report.is_fine else "bold red"))
    for line in reasons(report):
        screen.print(Text(f"- {line}"))
    for note in report.notes:
        screen.print(Text(note))
    why, command = next_step(report)
    screen.print(Text(f"{why}: {command}"))
    screen.print(_tests(report))
    if report.compared is not None and report.compared.findings:
        screen.print(_sizes(report.compared))
    for case in report.cases:
        is_shown = case.answer is Answer.NOTE and case.test in (
            "explanation",
            "invariance",
            "edges",
        )
        if is_shown or (case.test == "explanation" and case.answer is Answer.PASS):
            screen.print(Text(f"{case.test}, {case.name}: {case.sentence}"))
    screen.print(Text(how(report)[0], style="dim"))


def _tests(report: Report) -> Any:
    from rich.text import Text

    t = table("")
    for name in ("test", "question", "pass", "note", "fail", "not run", "s"):
        t.add_column(name, justify="left" if name in ("test", "question") else "right")
    for test, question, passed, noted, failed, skipped, seconds in counts(report):
        style = "bold red" if failed else "green"
        cells = (passed, noted, Text(failed, style="bold red"), skipped, seconds)
        t.add_row(Text(test, style=style), question, *cells)
    return t


def _over(f: Finding) -> float:
    return f.kernel / f.plan if f.plan else 1.0


def _sizes(compared: Comparison) -> Any:
    """Return the table of rms errors: the kernel's, and how many times the plan's."""
    from rich.text import Text

    t = table("relative rms error, and how many times the plan's")
    t.add_column("inputs")
    names = [n for n in RESULTS if n in compared.equal]
    for name in names:
        t.add_column(name, justify="right")
    bad = {(f.inputs, f.result) for f in compared.alarms if f.statistic == "rms"}
    bad |= {(g.inputs, g.result) for g in compared.gross}
    cells: dict[str, dict[str, Text]] = {}
    for f in compared.findings:
        if f.statistic == "rms":
            ratio = math.exp(f.evidence.mean) if f.plan == math.inf else _over(f)
            style = "bold red" if (f.inputs, f.result) in bad else ""
            text = Text(f"{f.kernel:.2e} {ratio:7.3g}", style=style)
            cells.setdefault(f.inputs, {})[f.result] = text
    for kind, row in cells.items():
        t.add_row(kind, *(row.get(name, Text("")) for name in names))
    equal = [f"{compared.equal[name]:.6f}" for name in names]
    t.add_row("share of equal bits", *equal, style="dim")
    return t
