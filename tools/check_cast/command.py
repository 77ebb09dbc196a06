"""The command `check-cast`: is a user's cast or quantizer what it is meant to be?"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roundscope.attention.grammar.roundings import event_of
from roundscope.emu.testing.casts.examine import examine_cast
from roundscope.emu.testing.casts.records import CastReport, Function, Row, Status
from roundscope.emu.testing.foreign import ForeignError, check_timeout, limited
from roundscope.tools.check.junit import Case, failed, write
from roundscope.tools.check_cast import page as cast_page
from roundscope.tools.check_cast.call import cast_named
from roundscope.tools.check_cast.data import Asked, document
from roundscope.tools.check_cast.shown import show
from roundscope.tools.check_cast.words import failure
from roundscope.tools.report.terminal import console, print_json
from roundscope.tools.results.folder import checked_folder, tell_replaced, write_results

RECORD = "check-cast.json"


def run(
    function: str,
    *,
    format: str,
    library: str | None,
    out: Path | None,
    junit: Path | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Check a cast, print the report and write the files. Return 1 if a row fails, and else 0.

    Raises:
        ValueError: for a format or a function that is not known.
    """
    if out is not None:
        checked_folder(out, RECORD)
    rounding = event_of(format)
    check_timeout(timeout)
    cast, chosen = cast_named(function, library)
    began = time.perf_counter()
    name = f"check-cast {function} {format}"
    try:
        report = examine_cast(partial(_in_time, cast, timeout), rounding)
    except ForeignError as error:
        if error.is_refusal:
            raise
        return failed(junit, name, function, error)
    seconds = time.perf_counter() - began
    asked = Asked(function=function, format=format, library=chosen, seconds=seconds)
    if out is not None:
        _write(out, asked, report)
    if junit is not None:
        write(junit, name, [_case(r, report) for r in report.rows])
    if as_json:
        print_json(document(asked, report))
    else:
        show(asked, report, console())
        if out is not None:
            print(f"written: {out / 'report.html'}, {out / RECORD}")
    return 0 if report.passed else 1


def _in_time(cast: Function, timeout: float | None, x: np.ndarray) -> Any:
    return limited(cast, timeout, x, what="function")


def _write(out: Path, asked: Asked, report: CastReport) -> None:
    data = document(asked, report)
    tell_replaced(out, data["request"], RECORD)
    write_results(out, RECORD, data, cast_page.html(asked, report))


def _case(row: Row, report: CastReport) -> Case:
    if row.status is Status.SKIPPED:
        return Case(name=row.name, skipped=row.note)
    failed = row.status is Status.FAIL
    return Case(name=row.name, failure=failure(row, report.asked) if failed else None)
