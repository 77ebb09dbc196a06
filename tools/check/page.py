"""report.html of `roundscope check`: the answer, the reasons, a picture, every question."""

from html import escape

from roundscope.attention.testing.cases import Answer
from roundscope.tools.check.data import used, where
from roundscope.tools.check.picture import CAPTION, picture
from roundscope.tools.check.report import QUESTIONS, Report
from roundscope.tools.check.words import counts, how, next_step, number, reasons
from roundscope.tools.report.page import document, figure, folded, grid, verdict
from roundscope.tools.results.provenance import command_line

READ = (
    "<p class=note>A case is one question about the kernel on one kind of inputs. It passes, fails,"
    " or has a note: something worth knowing that is no failure. The plan is an emulated attention"
    " whose every rounding is known; the kernel fails where it is worse than its plan, or where its"
    " results depend on how it is called. Red rows failed.</p>"
)


def html(report: Report) -> str:
    """Return the page."""
    body = [
        f"<h1>{escape(report.name)} against {escape(report.asked.plan)}</h1>",
        f"<p class=sub>{escape(report.about)}.</p>",
        _opening(report),
        _reasons(report),
        _how(report),
        _tests(report),
        _picture(report),
        *(_cases(report, test) for test in QUESTIONS if report.of(test)),
        f"<h2>What was run</h2><pre>{escape(' '.join(command_line()))}</pre>",
    ]
    return document(f"Roundscope: check of {report.name}", "".join(body))


def _opening(report: Report) -> str:
    why, command = next_step(report)
    mood = "good" if report.is_fine else "bad"
    return verdict(report.sentence, number(report), command, why=why, mood=mood)


def _reasons(report: Report) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in reasons(report))
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in report.notes)
    return (f"<ul>{lines}</ul>" if lines else "") + notes


def _tests(report: Report) -> str:
    rows = [list(row) for row in counts(report)]
    marked = [any(c.answer is Answer.FAIL for c in report.of(row[0])) for row in rows]
    heads = ["test", "question", "pass", "note", "fail", "not run", "seconds"]
    return grid(heads, rows, marked)


def _picture(report: Report) -> str:
    if report.compared is None or not report.compared.findings:
        return ""
    drawn = picture(report.compared, report.asked.margins)
    return figure("How does it differ from the plan?", drawn, CAPTION)


def _cases(report: Report, test: str) -> str:
    rows = [[c.name, str(c.answer), c.sentence] for c in report.of(test)]
    marked = [c.answer is Answer.FAIL for c in report.of(test)]
    title = f"<h2>{escape(test.capitalize())}: {escape(QUESTIONS[test])}</h2>"
    return title + grid(["", "answer", "what was found"], rows, marked)


def _how(report: Report) -> str:
    names = ", ".join(f"{name} {version}" for name, version in used().items())
    lines = [*how(report), f"{names}; {where()}.", f"{report.seconds:.0f} s."]
    text = "".join(f"<p class=note>{escape(line)}</p>" for line in lines)
    return folded("How to read this page, and how it was measured", READ + text)
