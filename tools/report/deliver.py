"""The report of a command in every form that was asked for: a page, JSON, JUnit, the terminal."""

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
    as_json: bool = False,
    junit_file: Path | None = None,
) -> None:
    """Write a report into a folder, and print it.

    Args:
        report: What is told. Its data name the request, by which a folder is known.
        folder: Where the page and the record go; None to write neither.
        record: The name of the JSON file.
        as_json: Whether to print the data as JSON in place of the brief form.
        junit_file: A file of JUnit's XML, or None.

    Raises:
        StorageError: A file cannot be written.
    """
    written = [] if folder is None else write(report, folder, record)
    if junit_file is not None:
        junit.write(junit_file, report.title, report.cases)
    if as_json:
        print_json(report.data)
        return
    show(report.brief)
    if written:
        print(f"written: {', '.join(map(str, written))}")


def write(report: Report, folder: Path, record: str) -> list[Path]:
    """Write the page and the record of a report into its folder; return their paths.

    It says so on stderr where these replace the results of another request.
    """
    from roundscope.tools.report.html import page  # which imports matplotlib

    tell_replaced(folder, report.data["request"], record)
    write_results(folder, record, report.data, page(report))
    return [folder / PAGE, folder / record]
