"""Tests on a copy of the tree: which one failed first, and with what message."""

import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.checks.mutants.copies import environment, renewed
from tests.checks.mutants.faults import Fault, place_of, planted

WIDER = ("tests/emu", "tests/attention")  # for faults that the nearest tests do not notice
LIMIT = 1500.0  # seconds for one run of tests; a fault may cause a loop without end
FAILED, BROKEN = (1,), (2, 3, 4, 5)  # exit codes of pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of pytest: whether all tests passed, and otherwise the first failure.

    Attributes:
        passed: whether every test passed.
        test: the name of the first test that failed, or "" if all passed.
        message: the first line of its message.
        seconds: how long the run took.
    """

    passed: bool
    test: str
    message: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one fault.

    Attributes:
        name: the name of the fault.
        kind: its kind.
        imitates: the real bug that it is like.
        where: the place of the fault, as file:line.
        caught: whether a test noticed it.
        nearest: whether a test in the fault's own list noticed it.
        test: the test that noticed it, or "".
        message: the first line of that test's message.
        seconds: how long all its runs of tests took.
    """

    name: str
    kind: str
    imitates: str
    where: str
    caught: bool
    nearest: bool
    test: str
    message: str
    seconds: float


def run_tests(folder: Path, tree: Path, tests: Sequence[str]) -> Run:
    """Run tests of the copy until one fails.

    Raises RuntimeError if pytest did not run the tests, for example where one cannot be imported.
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-x", "-q", "-m", "not thorough", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command = ["nice", "-n", "5", sys.executable, "-m", "pytest", *options, "--hypothesis-seed=0"]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment(folder, tree),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Run(passed=False, test="(time limit)", message="", seconds=LIMIT)
    seconds = time.perf_counter() - start
    if done.returncode in BROKEN or done.returncode < 0:
        raise RuntimeError(f"pytest did not run {' '.join(tests)}:\n{done.stdout[-3000:]}")
    test, message = ("", "") if done.returncode == 0 else first_failure(report)
    return Run(passed=done.returncode == 0, test=test, message=message, seconds=seconds)


def first_failure(report: Path) -> tuple[str, str]:
    """Return the name of the first failed test in a JUnit report, and its message's first line.

    The name is pytest's, as tests/emu/test_api.py::test_name[parameters].
    """
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            names = case.get("classname", "").split(".")
            classes = [names.pop()] if names[-1].startswith("Test") else []
            place = "::".join(["/".join(names) + ".py", *classes, case.get("name", "")])
            lines = failure.get("message", "").splitlines()
            return place, lines[0] if lines else ""
    raise RuntimeError(f"{report}: pytest failed, but the report names no failed test")


def check_unchanged(folder: Path, archive: bytes, tests: Sequence[str]) -> Run:
    """Return a run of tests on a copy without a fault, which must pass.

    Raises RuntimeError for a test that fails.
    """
    tree = renewed(folder, archive)
    run = run_tests(folder, tree, tests)
    if not run.passed:
        raise RuntimeError(f"{run.test} fails without any fault: {run.message}")
    return run


def tried(folder: Path, archive: bytes, fault: Fault, wider: Sequence[str] = WIDER) -> Result:
    """Return what became of one fault: its own tests first, and then, if they pass, wider ones."""
    tree = renewed(folder, archive)
    where, text = place_of(fault, tree), planted(fault, tree)
    (tree / fault.file).write_text(text)
    first = run_tests(folder, tree, fault.tests)
    run, seconds = first, first.seconds
    if first.passed and wider:
        run = run_tests(folder, tree, wider)
        seconds += run.seconds
    return Result(
        name=fault.name,
        kind=fault.kind,
        imitates=fault.imitates,
        where=where,
        caught=not run.passed,
        nearest=not first.passed,
        test=run.test,
        message=run.message,
        seconds=round(seconds, 1),
    )
