"""The command `check`: is an attention kernel what it claims to be?"""

from pathlib import Path

from roundscope.emu.testing.foreign import ForeignError
from roundscope.tools.check.asked import Asked, checked
from roundscope.tools.check.report import report, request
from roundscope.tools.check.run import check
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.junit import failed
from roundscope.tools.report.progress import telling
from roundscope.tools.results.folder import as_word, checked_folder, free_folder

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
            found = check(asked, tell)
        except ForeignError as error:
            suite = f"check {asked.source} against {asked.plan}"
            return failed(junit_file, suite, asked.source, error)
    name = as_word(f"check-{found.name}-{asked.claims}")[:80]
    folder = out if out is not None else free_folder(name, request(asked), RECORD)
    deliver(report(found), folder, RECORD, as_json=as_json, junit_file=junit_file)
    return 0 if found.is_fine else 1
