"""The report of a command in every form that was asked for: a page, JSON, JUnit, the terminal."""

from collections.abc import Sequence
from pathlib import Path

from roundscope.tools.report import junit
from roundscope.tools.report.model import Report
from roundscope.tools.report.terminal import print_json, show
from roundscope.tools.results.folder import PAGE, tell_replaced, write_results


def deliver(
    report: Report,
    folder: Path | None,
    record: str,
    *,
    page: str = PAGE,
    as_json: bool = False,
    junit_file: Path | None = None,
    more: Sequence[Path] = (),
) -> None:
    """Write a report into a folder, and print it.

    Args:
        report: What is told.
        folder: Where the page and the record go; None to write neither.
        record: The name of the JSON file.
        page: That of the page.
        as_json: Whether to print the data as JSON in place of the brief form.
        junit_file: A file of JUnit's XML, or None.
        more: Other files that the command has written, which are named with these.

    Raises:
        StorageError: A file cannot be written.
    """
    written = [] if folder is None else write(report, folder, record, page)
    if junit_file is not None:
        junit.write(junit_file, report.title, report.cases)
    if as_json:
        print_json(report.data)
        return
    show(report.brief)
    if files := [*written, *more]:
        print(f"written: {', '.join(map(str, files))}")


def write(report: Report, folder: Path, record: str, page: str = PAGE) -> list[Path]:
    """Write the page and the record of a report into its folder; return their paths.

    It says so on stderr where these replace the results of another request, which data name.
    """
    from roundscope.tools.report import html  # which imports matplotlib

    if "request" in report.data:
        tell_replaced(folder, report.data["request"], record)
    write_results(folder, record, report.data, html.page(report), page)
    return [folder / page, folder / record]
