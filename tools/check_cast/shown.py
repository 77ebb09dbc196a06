"""What `roundscope check-cast` prints."""

from typing import Any

from roundscope.emu.testing.casts.records import Agreement, CastReport, Row, Status
from roundscope.tools.check_cast.data import Asked
from roundscope.tools.check_cast.words import OF_SCALES, format_of, hexed, lines_of, share

COLORS = {Status.PASS: "green", Status.FAIL: "bold red", Status.SKIPPED: "dim"}
FEW = 5  # how many known behaviors and exceptions are shown


def show(asked: Asked, report: CastReport, screen: Any) -> None:
    """Print the sentence on the first line, then a row for each question and the worst examples."""
    from rich.text import Text

    screen.print(Text(report.sentence, style="bold green" if report.passed else "bold red"))
    screen.print(Text(f"{asked.function} against {asked.format}; it returns {report.returned}"))
    screen.print(_rows(report))
    for row in report.failed:
        _failure(row, report, screen)
    if report.scales:
        screen.print(Text("scale rules: on how many blocks each agrees", style="bold"))
        screen.print(_agreements(report.scales))
    if report.exceptions:
        screen.print(Text(f"blocks that {report.scales[0].name} does not explain", style="bold"))
        for example in report.exceptions[:FEW]:
            given, got, expected = map(hexed, (example.given, example.got, example.expected))
            screen.print(Text(f"  largest {given}: scale {got}, expected {expected}"))
    if not report.passed:
        screen.print(Text("known behaviors: how many results each explains", style="bold"))
        screen.print(_agreements(report.behaviors[:FEW]))


def _rows(report: CastReport) -> Any:
    from rich.text import Text

    table = _table()
    for name in ("question", "answer", "as asked", "note"):
        table.add_column(name, justify="right" if name == "as asked" else "left", overflow="fold")
    for row in report.rows:
        status = Text(str(row.status), style=COLORS[row.status])
        table.add_row(Text(row.name), status, share(row), Text(row.note))
    return table


def _failure(row: Row, report: CastReport, screen: Any) -> None:
    from rich.text import Text

    screen.print(Text(f"{row.name}: {row.question}", style="bold"))
    if not row.examples:
        return
    example = row.examples[0]
    if example.where:
        screen.print(Text(f"  {example.where}"))
    for label, decimal, hexadecimal, bits in lines_of(
        example, format_of(row, report.asked), row.name in OF_SCALES
    ):
        screen.print(Text(f"  {label:<18}{decimal:<15} {hexadecimal:<16} {bits}"))


def _agreements(found: tuple[Agreement, ...]) -> Any:
    table = _table()
    table.add_column("", overflow="fold")
    table.add_column("agrees", justify="right")
    table.add_column("of", justify="right")
    for agreement in found:
        table.add_row(agreement.name, f"{agreement.agree:,}", f"{agreement.of:,}")
    return table


def _table() -> Any:
    from rich.table import Table

    return Table(
        box=None,
        pad_edge=False,
        header_style="bold",
    )
