"""The headline of a report, its rows, its page, its data and its exit code say the same."""

from itertools import product

import pytest

from roundscope import emu
from roundscope.emu.testing.casts.records import (
    Agreement,
    CastReport,
    Row,
    Status,
    with_whole,
)
from roundscope.tools.check_cast import command as told
from roundscope.tools.check_cast.options import CheckCastOptions
from roundscope.tools.report.html import page

OWN, OTHER = "e4m3fn:ties-to-even:saturate", "e4m3fn:toward-zero:saturate"
ASKED = CheckCastOptions(function="m:f", format="e4m3fn", library="numpy")


def report(statuses: tuple[Status, ...], agree: int, best: str | None, noun: str) -> CastReport:
    rows = [
        Row(name=f"row {i}", question="Is it?", status=status, agree=1, of=1)
        for i, status in enumerate(statuses)
    ]
    whole = Agreement(name=OWN, agree=agree, of=9)
    known = Agreement(name=best or OTHER, agree=9 if best else 8, of=9)
    return CastReport(
        asked=emu.rounding("e4m3fn"),
        title="e4m3fn",
        name=OWN,
        whole=whole,
        noun=noun,
        behaves_as=best,
        rows=with_whole(rows, noun, whole),
        behaviors=(known,),
        returned="numbers",
    )


@pytest.mark.parametrize("noun", ["finite numbers", "blocks"])
@pytest.mark.parametrize(
    ("agree", "best"), [(9, OWN), (8, OTHER), (8, None), (0, OTHER), (0, None)]
)
def test_all_say_the_same(agree: int, best: str | None, noun: str) -> None:
    """ "As asked: all are equal" above a row that fails, or exit code 0 below "differ"."""
    for statuses in product(Status, repeat=2):
        found = report(statuses, agree, best, noun)
        fails = Status.FAIL in statuses or agree < 9
        assert found.passed is (not fails)
        is_as_asked = found.sentence.startswith(f"e4m3fn as asked: all 9 {noun}")
        assert is_as_asked is found.passed, found.sentence
        for row in found.failed:
            named = row.name in found.sentence
            assert named or "differ" in found.sentence, (row, found.sentence)
        assert ("differ" in found.sentence) is (agree < 9)
        html = page(told.report(ASKED, found, 0.0))
        assert ("in every question asked." in html) is found.passed
        assert ("does not round as e4m3fn does" in html) is (not found.passed)
        assert f"it behaves as {OWN}" not in html
        data = told.document(ASKED, found, 0.0)
        assert data["passed"] is found.passed and data["sentence"] == found.sentence
