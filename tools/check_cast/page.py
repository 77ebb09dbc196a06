"""report.html of `roundscope check-cast`."""

from html import escape

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.emu.testing.casts.records import Agreement, CastReport, Row, Status
from roundscope.tools.check_cast.data import Asked
from roundscope.tools.check_cast.words import OF_SCALES, format_of, hexed, lines_of, share
from roundscope.tools.report import page
from roundscope.tools.results.provenance import command_line

READ = (
    "<p class=note>Each question gives the function many numbers and compares every result, bit for"
    " bit, with the rounding that was asked for. As asked: how many results have the right bits."
    " Below the questions, the worst results are shown in bits: sign, exponent and fraction. Known"
    " behaviors are other ways to round, with the number of results that each would explain: the"
    " first in that list is what the function most likely does.</p>"
)


def html(asked: Asked, report: CastReport) -> str:
    """Return the page: the sentence, a row for each question, examples, and known behaviors."""
    parts = [
        f"<h1>{escape(asked.function)} against {escape(asked.format)}</h1>",
        f"<p class=sub>It returns {escape(report.returned)}, and was given arrays of"
        f" {escape(asked.library)}. {asked.seconds:.1f} s.</p>",
        _opening(asked, report),
        page.folded("How to read this page", READ),
        "<h2>Questions</h2>",
        _rows(report),
        *(_examples(row, report) for row in report.rows if row.examples),
        _agreements("Scale rules", "On how many blocks each rule agrees.", report.scales),
        _exceptions(report),
        _agreements("Known behaviors", "How many results each explains.", report.behaviors),
        f"<h2>What was run</h2><pre>{escape(' '.join(command_line()))}</pre>",
    ]
    return page.document(f"check-cast {asked.function}", "".join(parts))


def _opening(asked: Asked, report: CastReport) -> str:
    ran = [row for row in report.rows if row.status is not Status.SKIPPED]
    failed = f"{len(report.failed) or 'None'} of {len(ran)} questions failed."
    if report.passed:
        return page.verdict(
            f"{asked.function} rounds as {asked.format} does, in every question asked.",
            f"{failed} {report.sentence}",
            f"roundscope check-cast {asked.function} --format {asked.format} --junit cast.xml",
            why="Next: keep it so, in CI by",
            mood="good",
        )
    instead = f": it behaves as {report.instead}" if report.instead else ""
    return page.verdict(
        f"{asked.function} does not round as {asked.format} does{instead}.",
        f"{failed} {report.sentence}",
        _explained(report),
        why="Next, one of the results that differ, in bits as it should be",
        mood="bad",
    )


def _explained(report: CastReport) -> str:
    """Return a command that explains the worst example of a cast; none for blocks."""
    examples = [e for row in report.failed for e in row.examples]
    if isinstance(report.asked, BlockFormat) or not examples:
        return ""
    r = report.asked
    mode = "" if r.mode is RoundingMode.TIES_TO_EVEN else f" --mode {r.mode.value}"
    return f"roundscope explain {hexed(examples[0].given)} --to {r.format.name}{mode}"


def _rows(report: CastReport) -> str:
    heads = ["", "answer", "as asked", "question", "note"]
    rows = [[row.name, str(row.status), share(row), row.question, row.note] for row in report.rows]
    return page.grid(heads, rows, [row.status is Status.FAIL for row in report.rows])


def _examples(row: Row, report: CastReport) -> str:
    f = format_of(row, report.asked)
    lines = []
    for number, example in enumerate(row.examples, 1):
        for line in lines_of(example, f, row.name in OF_SCALES):
            lines.append([f"{number}", *line])
    heads = ["example", "", "decimal", "hexadecimal", "sign|exponent|fraction"]
    return f"<h3>{escape(row.name)}: the worst</h3>{page.grid(heads, lines)}"


def _agreements(title: str, note: str, found: tuple[Agreement, ...]) -> str:
    if not found:
        return ""
    rows = [[a.name, f"{a.agree:,}", f"{a.of:,}"] for a in found]
    return (
        f"<h2>{title}</h2><p class=note>{note}</p>{page.grid(['behavior', 'agrees', 'of'], rows)}"
    )


def _exceptions(report: CastReport) -> str:
    if not report.exceptions:
        return ""
    rows = [[e.where, hexed(e.given), hexed(e.got), hexed(e.expected)] for e in report.exceptions]
    heads = ["block", "largest magnitude", "scale got", "scale expected"]
    title = f"Blocks that {report.scales[0].name} does not explain"
    return f"<h3>{escape(title)}</h3>{page.grid(heads, rows)}"
