"""The command `check`: is an attention kernel what it claims to be?"""

from roundscope.emu.testing.foreign import ForeignError
from roundscope.tools.check.options import CheckOptions, checked
from roundscope.tools.check.report import report, request
from roundscope.tools.check.run import check
from roundscope.tools.report.deliver import deliver
from roundscope.tools.report.junit import failed
from roundscope.tools.report.progress import telling
from roundscope.tools.results.folder import as_word, checked_folder, free_folder

RECORD = "check.json"


def run(asked: CheckOptions) -> int:
    """Check a kernel, print the report and write the files. Return 1 if a case fails, and else 0.

    Raises:
        UsageError: bad usage.
    """
    checked_folder(asked.out, RECORD)
    checked(asked)
    with telling("check") as tell:
        try:
            found = check(asked, tell)
        except ForeignError as error:
            suite = f"check {asked.source} against {asked.plan}"
            return failed(asked.junit, suite, asked.source, error)
    name = as_word(f"check-{found.name}-{asked.claimed}")[:80]
    folder = asked.out or free_folder(name, request(asked), RECORD)
    deliver(report(found), folder, RECORD, as_json=asked.json, junit_file=asked.junit)
    return 0 if found.is_fine else 1
