"""The faults that `make mutants` plants still stand in the tree."""

from pathlib import Path

import pytest

from tests.checks.mutants.catalogue import FAULTS
from tests.checks.mutants.faults import Fault, place_of, planted
from tests.checks.mutants.running import Result, first_failure
from tests.checks.mutants.table import markdown

ROOT = Path(__file__).parents[1]
KNOWN = Fault(
    name="known",
    kind="order",
    imitates="A first line is changed.",
    file="code.py",
    old="a = 1",
    new="a = 2",
    tests=("test_code.py",),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault):
    """Code that changed under a fault, which would then no longer be planted or tested."""
    text = planted(fault, ROOT)
    compile(text, fault.file, "exec")
    assert text != (ROOT / fault.file).read_text()


def test_names_are_unique():
    """Two faults with one name, of which the results would hold only one."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("text", ["b = 1\n", "a = 1\na = 1\n"])
def test_a_text_that_does_not_stand_once_is_refused(tmp_path, text):
    """A fault that would change nothing, or two places at a time."""
    (tmp_path / "code.py").write_text(text)
    (tmp_path / "test_code.py").touch()
    with pytest.raises(ValueError, match="known: its old text occurs"):
        planted(KNOWN, tmp_path)


def test_the_place_is_the_changed_line(tmp_path):
    """A table that points at another line than the fault's."""
    (tmp_path / "code.py").write_text("b = 1\n\na = 1\n")
    (tmp_path / "test_code.py").touch()
    assert place_of(KNOWN, tmp_path) == "code.py:3"


def test_the_first_failure_is_read(tmp_path):
    """A result that names a test that passed, or a message that is not the failed test's."""
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.emu.test_a" name="test_good"/>'
        '<testcase classname="tests.emu.test_a" name="test_bad[1]">'
        '<failure message="assert 1 == 2&#10;more">trace</failure></testcase>'
        "</testsuite></testsuites>"
    )
    assert first_failure(report) == ("tests/emu/test_a.py::test_bad[1]", "assert 1 == 2")


def test_the_table_says_what_was_not_caught():
    """A page that counts a fault as caught, or leaves it out, although no test noticed it."""
    common = {"name": "known", "kind": "order", "imitates": "A line.", "where": "code.py:3"}
    found = {"caught": False, "nearest": False, "test": "", "message": "", "seconds": 61.4}
    page = markdown([KNOWN], {"known": Result(**common, **found)})
    assert "1 faults, 0 caught, 1 not caught." in page
    assert "| known (order) | A line. | `code.py:3` | **nothing** | 61 |" in page
