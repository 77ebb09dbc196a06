"""Tables of pages."""

import re

from roundscope.experiments.report.page import CSS, grid


def test_long_cells_break_and_short_ones_do_not():
    """Columns that are cut off at the width of the page, and lost in print."""
    long = "diverges where FP32 on the same rows does not, in nine runs of twelve"
    html = grid(["claim", "runs"], [[long, "9 of 12"]])
    assert f"<td class=text>{long}" in html and "<td>9 of 12" in html
    assert re.search(r"td\.text\{[^}]*white-space:normal", CSS)
    assert re.search(r"@media print\{[^@]*td\{white-space:normal\}", CSS)
