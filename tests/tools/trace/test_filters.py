"""The filters of a trace's page, in a headless browser: the layer and the head of its address."""

import re
import shutil
import subprocess

import pytest

from roundscope.tools.report import html
from roundscope.tools.report.model import Folded, Opening, Raw, Report, Section, Table, Text
from roundscope.tools.trace.report.report import SCRIPT, controls

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
HEADS = Folded("heads", [Table(["head"], [["0"], ["1"], ["2"]], name="heads")])


def test_a_page_of_one_layer_has_no_choice_of_layers():
    assert "select" not in controls(["a"], 4) and "max=3" in controls(["a"], 4)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to run the page's script")
@pytest.mark.parametrize(
    ("address", "layers", "rows"),
    [("", [], []), ("#layer=b&head=1", ["a"], ["0", "2"]), ("#head=2", [], ["0", "1"])],
)
def test_what_the_address_asks_for_is_shown(tmp_path, address, layers, rows):
    """A script that fails, which leaves a page whole but its filters dead."""
    sections = [Section(x, [Text(x)], name=x) for x in "ab"]
    parts = [Raw(controls(["a", "b"], 3)), *sections, HEADS, Raw(SCRIPT)]
    page = tmp_path / "page.html"
    page.write_text(html.page(Report(title="t", opening=Opening("o"), parts=parts)), "utf-8")
    words = [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [str(BROWSER), *words, f"file://{page}{address}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    dom = done.stdout
    assert "hidden" not in re.search(r"<p class=\"filters note\"[^>]*>", dom)[0]
    assert re.findall(r"<section data-layer=\"(.)\" hidden", dom) == layers
    assert re.findall(r"<tr hidden=\"\"><td>(\d)", dom) == rows
    assert ("<details open" in dom) is bool(rows)
