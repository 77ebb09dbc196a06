"""The report of a command in every form that was asked for: a page, JSON, JUnit, the terminal."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from roundscope.emu.testing.foreign import ForeignError
from roundscope.emu.whole_files import write_whole
from roundscope.tools.errors import one_line, shown
from roundscope.tools.report.model import Case, Report
from roundscope.tools.report.terminal import print_json, show
from roundscope.tools.results.folder import PAGE, tell_replaced, write_results

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
        write_junit(junit_file, report.title, report.cases)
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


def write_junit(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """Write a file of JUnit's XML with one suite, whose name is every case's class name too."""
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.failure is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.skipped is not None for case in cases)),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
    root = ElementTree.Element("testsuites")
    parent = ElementTree.SubElement(root, "testsuite", {"name": _plain(suite), **counts})
    for case in cases:
        about = {"classname": _plain(suite), "name": _plain(case.name)}
        element = ElementTree.SubElement(
            parent, "testcase", about | {"time": f"{case.seconds:.3f}"}
        )
        if case.failure is not None:
            text = _plain(case.failure)
            first = text.splitlines()[0] if text else ""
            ElementTree.SubElement(element, "failure", {"message": first}).text = text
        elif case.skipped is not None:
            ElementTree.SubElement(element, "skipped", {"message": _plain(case.skipped)})
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def failed(path: Path | None, suite: str, asked: str, error: ForeignError) -> int:
    """Tell that a function failed a check before it could be judged. Return the exit code, 1.

    path: the file of JUnit's XML, or None; asked: the function as it was named
    """
    text = one_line(error)
    if path is not None:
        write_junit(path, suite, [Case(name="call", failure=text)])
    print(f"roundscope: {shown(asked)} fails the check: {text}", file=sys.stderr)
    return 1


def _plain(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return NOT_XML.sub("?", text)
