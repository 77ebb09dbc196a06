"""The command `check`: is an attention kernel what it claims to be?"""

from pathlib import Path

from roundscope.attention.testing.cases import Answer, Case
from roundscope.emu.testing.foreign import ForeignError
from roundscope.tools.check import junit, page, shown
from roundscope.tools.check.asked import Asked, checked
from roundscope.tools.check.data import document, request
from roundscope.tools.check.report import Report
from roundscope.tools.check.run import check
from roundscope.tools.report.progress import telling
from roundscope.tools.report.terminal import console, print_json
from roundscope.tools.results.folder import (
    as_word,
    checked_folder,
    free_folder,
    tell_replaced,
    write_results,
)

RECORD = "check.json"


def run(asked: Asked, *, out: Path | None, junit_file: Path | None, as_json: bool) -> int:
    """Check a kernel, print the report and write the files. Return 1 if a case fails, and else 0.

    Args:
        asked: what is asked.
        out: the folder of report.html and check.json; None for check-NAME.
        junit_file: a file of JUnit's XML, or None.
        as_json: whether to print JSON rather than text.

    Raises:
        UsageError: bad usage.
    """
    checked_folder(out, RECORD)
    checked(asked)
    with telling("check") as tell:
        try:
            report = check(asked, tell)
        except ForeignError as error:
            suite = f"check {asked.source} against {asked.plan}"
            return junit.failed(junit_file, suite, asked.source, error)
    data = document(report)
    folder = out if out is not None else free_folder(_name(report), request(asked), RECORD)
    tell_replaced(folder, request(asked), RECORD)
    write_results(folder, RECORD, data, page.html(report))
    if junit_file is not None:
        cases = [_case(case) for case in report.cases]
        junit.write(junit_file, f"check {report.name} against {asked.plan}", cases)
    if as_json:
        print_json(data)
    else:
        shown.show(report, console())
        print(f"written: {folder / 'report.html'}, {folder / RECORD}")
    return 0 if report.is_fine else 1


def _name(report: Report) -> str:
    plan = report.asked.claims
    return as_word(f"check-{report.name}-{plan}")[:80]


def _case(case: Case) -> junit.Case:
    return junit.Case(
        name=f"{case.test}: {case.name}",
        seconds=case.seconds,
        failure=case.sentence if case.answer is Answer.FAIL else None,
        skipped=case.sentence if case.answer is Answer.NOT_RUN else None,
    )
