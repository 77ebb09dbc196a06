"""The report of a command in every form that was asked for: a page, JSON, JUnit, the terminal."""

from pathlib import Path

from roundscope.tools.report import junit
from roundscope.tools.report.model import Report
from roundscope.tools.report.terminal import console, plain, print_json, show
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
    data = plain(report.data)
    if folder is not None:
        from roundscope.tools.report.html import page  # which imports matplotlib

        tell_replaced(folder, data["request"], record)
        write_results(folder, record, data, page(report))
    if junit_file is not None:
        junit.write(junit_file, report.title, report.cases)
    if as_json:
        print_json(data)
        return
    show(report.brief, console())
    if folder is not None:
        print(f"written: {folder / PAGE}, {folder / record}")
