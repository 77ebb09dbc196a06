"""JUnit's XML, which continuous integration reads: a suite of cases, passed, failed or skipped."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from roundscope.emu.testing.foreign import ForeignError
from roundscope.emu.whole_files import write_whole
from roundscope.tools.errors import one_line, shown
from roundscope.tools.report.model import Case

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """Write a file of JUnit's XML with one suite; folders that do not exist are made.

    Args:
        path: the file.
        suite: the name of the suite, which is the class name of every case too.
        cases: the cases, in the order in which they are written.
    """
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
        _add(parent, suite, case)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def failed(path: Path | None, suite: str, asked: str, error: ForeignError) -> int:
    """Tell that a function failed a check before it could be judged. Return the exit code, 1.

    Args:
        path: the file of JUnit's XML, or None.
        suite: the name of the suite.
        asked: the function as it was named.
        error: what it did.
    """
    text = one_line(error)
    if path is not None:
        write(path, suite, [Case(name="call", failure=text)])
    print(f"roundscope: {shown(asked)} fails the check: {text}", file=sys.stderr)
    return 1


def _add(parent: ElementTree.Element, suite: str, case: Case) -> None:
    attributes = {
        "classname": _plain(suite),
        "name": _plain(case.name),
        "time": f"{case.seconds:.3f}",
    }
    element = ElementTree.SubElement(parent, "testcase", attributes)
    if case.failure is not None:
        text = _plain(case.failure)
        first = text.splitlines()[0] if text else ""
        ElementTree.SubElement(element, "failure", {"message": first}).text = text
    elif case.skipped is not None:
        ElementTree.SubElement(element, "skipped", {"message": _plain(case.skipped)})


def _plain(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return NOT_XML.sub("?", text)
