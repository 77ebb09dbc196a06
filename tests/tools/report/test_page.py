"""Pieces of pages: tables, openings, sections, and pictures that are part of the page."""

import re
from contextlib import nullcontext
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from roundscope.tools.report.html import HERE, SECTIONS, page
from roundscope.tools.report.model import (
    Cell,
    Code,
    Folded,
    Opening,
    Part,
    Picture,
    Points,
    Report,
    Section,
    Table,
    Text,
)
from roundscope.tools.report.pictures import (
    DENSE,
    DOWN,
    INK,
    TOGETHER,
    UP,
    bars,
    canvas,
    hover,
    png,
    svg,
    texts,
)
from roundscope.tools.report.terminal import show

CSS = (HERE / "page.css").read_text()


def made(*parts: Part, **more: Any) -> str:
    """Return the page of a report with these parts."""
    return page(Report(**({"title": "t", "opening": Opening("O."), "parts": parts} | more)))


def test_long_cells_break_and_short_ones_do_not():
    """Columns that are cut off at the width of the page, and lost in print."""
    long = "diverges where FP32 on the same rows does not, in nine runs of twelve"
    html = made(Table(["claim", "runs"], [[long, "9 of 12"]]))
    assert f"<td class=text>{long}" in html and "<td>9 of 12" in html
    assert re.search(r"td\.text\{[^}]*white-space:normal", CSS)
    assert re.search(r"@media print\{[^@]*td\{white-space:normal\}", CSS)


def test_a_narrow_screen_leaves_optional_columns_out_and_says_which():
    """The column that answers the question, out of sight behind one that need not be there."""
    html = made(Table(["name", "largest\nof all", "z"], [["a", "3.0", "1.5"]], optional=(1,)))
    assert "<th class=more>largest<br>of all<th>z" in html and "<td class=more>3.0<td>1.5" in html
    assert "A wider screen shows more columns:\nlargest of all.</p>" in html
    narrow = CSS.partition("(max-width:640px)")[2].partition("@media")[0]
    assert ".more{display:none}" in narrow and ".fewer{display:block}" in narrow
    assert "class='note fewer'" not in made(Table(["name"], [["a"]]))


def test_a_narrow_screen_shows_columns_below_the_others():
    """The bits of an example, the point of its row, off the screen of a telephone."""
    html = made(Table(["name", "got", "bits"], [["a", "3.0", "0|1"]], below=(2,)))
    assert (
        'class="n2 stacked" style="grid-template-columns:repeat(2,auto)"' in html
        and "<td class=below>0|1" in html
    )
    narrow = CSS.partition("(max-width:560px)")[2].partition("@media")[0]
    assert re.search(r"stacked\{display:grid", narrow)
    assert re.search(r"\.below\{grid-column:1/-1", narrow)
    assert "stacked" not in made(Table(["name"], [["a"]])).partition("</style>")[2]


def test_words_stand_at_the_left_and_numbers_at_the_right():
    """A question at the far right of a page, away from the test that it belongs to."""
    html = made(Table(["a", "b", "why", "z", "n"], [["x", "y", "Is it?", "nan", "3 of 4"]] * 2))
    assert "<th class=left>why" in html and "<td class=left>Is it?" in html
    assert "<td>nan<td>3 of 4" in html and re.search(r"\.left\{text-align:left", CSS)


def test_a_number_stays_with_its_interval():
    """-0.21, +-0.06 and the mark on three lines."""
    assert "<td><span class=n>-0.21 ±0.06 ·</span>" in made(Table(["a"], [["-0.21 ±0.06 ·"]]))
    assert "<span class=n>+3e-05 ±1e-06</span> here" in made(Text("+3e-05 ±1e-06 here"))


def test_many_words_of_a_number_are_not_bold():
    """An answer of which most is bold, so that nothing is."""
    assert "<p class=number>z is 3." in made(opening=Opening("O.", "z is 3."))
    assert "<p>z is 3. z is" in made(opening=Opening("O.", "z is 3. " * 30))


def test_panels_of_a_narrow_picture_stand_below_each_other():
    """A second panel off the screen of a telephone, of which the caption speaks."""
    figure, axes = canvas(2.0, 2, 3, narrow=True, sharex=True, width_ratios=[1, 2, 3])
    figure.draw_without_rendering()
    places = [ax.get_position() for ax in axes.flat]
    assert axes.shape == (2, 3) and figure.get_figwidth() < 5.0
    assert all(a.y0 > b.y1 and a.x0 == b.x0 for a, b in pairwise(places))
    assert all(ax.xaxis.get_tick_params()["labelbottom"] for ax in axes.flat)


def test_bars_of_one_artist_look_like_those_of_many():
    x, heights = np.arange(5) / 40, np.array([0.0, 0.3, 1.0, 0.2, 0.1])
    colours = [UP, UP, DOWN, DOWN, INK]
    one, axes = canvas(2.0)
    bars(axes[0, 0], x, heights, 1 / 40, facecolors=colours, alpha=0.85)
    many, axes = canvas(2.0)
    axes[0, 0].bar(x, heights, 1 / 40, color=colours, alpha=0.85)
    assert png(one) == png(many)


def test_opening_has_the_answer_the_number_and_a_command_that_a_click_marks():
    opening = Opening("OUT < exact.", "relative rms error 2e-3", "roundscope trace x --set P=fp32")
    html = made(opening=opening)
    assert html.index("OUT &lt; exact.") < html.index("2e-3") < html.index("<span>roundscope")
    assert re.search(r"\.next code\{[^}]*user-select:all", CSS)
    assert "class=next" not in made() and "class=number" not in made()
    words = re.search(r"class=next>.*?</code>", html, re.S)[0]
    assert re.sub(r"<[^>]*>", "", words).endswith(opening.command)
    assert "<span>--set</span>" in words and re.search(r"words span\{display:inline-block", CSS)
    assert "class='verdict bad'" in made(opening=Opening("It failed.", mood="bad"))


def test_no_text_of_a_report_is_html():
    """A name of a file, a layer or an arm that becomes an element of the page."""
    name = "a<script>b"
    html = made(
        Text(name, lead=name, command=name),
        Points([name, (name, name)]),
        Table([name], [[name], [Cell(name, "bad", note=name)]]),
        Picture(name, None, name),
        Code(name),
        Folded(name, [Section(name, [Text(name)])]),
        Section(name, [Text(name)], name=name),
        title=name,
        heading=name,
        about=name,
        opening=Opening(name, name, name, name),
    )
    assert "<script" not in html and html.count("a&lt;script&gt;b") == 26


def test_many_sections_get_a_table_of_contents_whose_links_lead_somewhere():
    titles = [*(f"Part {n}" for n in range(SECTIONS - 1)), "Part 0"]
    html = made(*(Section(title, []) for title in titles))
    assert re.findall(r"<a href=#([^>]+)>", html) == re.findall(r"<h2 id=([^>]+)>", html)
    assert len(set(re.findall(r"<h2 id=([^>]+)>", html))) == SECTIONS
    assert "<nav>" not in made(Section("One", []))


def test_a_page_fits_phones_and_dark_systems():
    assert "<meta name=viewport" in made() and "prefers-color-scheme:dark" in made()
    # every color is a variable, which has a dark twin
    rules = CSS.split("*{box-sizing", 1)[1]
    assert not re.search(r"#[0-9a-f]{3,6}\b", rules)
    light, dark = (
        set(re.findall(r"(--\w+):", block)) for block in CSS.split("*{", 1)[0].split("@media")
    )
    assert light == dark == set(re.findall(r"var\((--\w+)\)", CSS))


def test_the_terminal_leaves_out_columns_that_do_not_fit(capsys):
    """A table that is squeezed until its numbers are cut."""
    row = ["P", "1.5e-03", "2.5e-03"]
    wide = Table(["event", "x" * 50, "y" * 40 + "\nz"], [row], [True], optional=[1])
    show([Text("said", "bad", lead="First."), wide, Points(["a", ("b", "c")]), Code("x" * 120)])
    out = capsys.readouterr().out
    assert "1.5e-03" in out and out.splitlines()[0] == "First. said" and "x" * 120 in out
    show([replace(wide, heads=["event", "x" * 60, "y" * 60])])
    out = capsys.readouterr().out
    assert "1.5e-03" not in out and "2.5e-03" in out


def _drawn(points=5, marker=""):
    drawing, axes = canvas(2.0)
    axes[0, 0].plot(np.arange(points) % 7, color=INK, marker=marker)
    hover(axes[0, 0].bar([0], [1], color=UP)[0], 'a < "b"')
    return drawing


@pytest.mark.pictures
def test_a_picture_is_the_same_each_time_and_its_own_on_a_page():
    one, again, other = svg(_drawn(), "x"), svg(_drawn(), "x"), svg(_drawn(6), "x")
    assert one == again
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, other)]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip((one, other), ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text)) == own


@pytest.mark.pictures
def test_charts_and_tables_scroll_in_boxes_of_their_own():
    """Letters of five pixels on a phone; a page that scrolls sideways as a whole. `make pages`
    measures both in a browser.
    """
    html = made(Picture("t", _drawn(), "caption"), Table(["a"], [["b"]]))
    assert re.search(r"<div class=chart><svg .*?</svg></div><figcaption>", html, re.S)
    assert re.search(r'<div class="wide">\s*<table', html)
    for box in ("chart", "wide"):
        assert re.search(rf"\.{box}\{{[^}}]*overflow-x:auto", CSS)
    narrow = re.search(r"\(max-width:640px\)\{\.chart svg[^}]*min-width:(\d+)px", CSS)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', html)[1])
    assert int(narrow[1]) / width * 6.5 >= 7.0  # pixels of the smallest letters, of 6.5 points


@pytest.mark.pictures
def test_a_picture_names_itself_and_what_the_pointer_is_on():
    html = made(Picture("Is a < b?", _drawn(), "caption"))
    assert 'role="img" aria-label="Is a &lt; b?"' in html and "http" not in html
    assert '<title>a &lt; "b"</title>' in html
    assert "DejaVu" not in html and "font-family: system-ui" in html
    HTMLParser().feed(html)


@pytest.mark.pictures
def test_its_paper_is_the_page_and_that_of_a_file_is_white():
    drawing = _drawn()
    assert "fill: #ffffff" not in svg(drawing, "x")
    # the pixel in the corner of the file
    import io

    from matplotlib.image import imread

    assert imread(io.BytesIO(png(drawing)))[0, 0].tolist() == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.pictures
def test_many_marks_are_pixels():
    assert "<image" in svg(_drawn(DENSE + 1, "o"), "x")
    assert "<image" not in svg(_drawn(DENSE, "o"), "x")
    assert "<image" not in svg(_drawn(DENSE + 1), "x")  # a line, of which much cannot be seen


@pytest.mark.pictures
def test_many_artists_of_some_marks_stay_small():
    """Catches a page of a large sweep whose lines have few enough dots each, and too many in all:
    a figure of 11 MB, which no browser scrolls.
    """
    figure, axes = canvas(2.0)
    for k in range(30):
        axes[0, 0].plot(np.arange(1000) + k, np.arange(1000), "o")
    axes[0, 0].plot([0, 1], [0, 1], "o")
    text = svg(figure, "x")
    assert "<image" in text and 2 < text.count("<use") < TOGETHER + 100


@pytest.mark.pictures
def test_a_picture_is_laid_out_as_matplotlib_does(monkeypatch):
    """A label cut off, or axes of another size, where the figure is not drawn twice."""

    def drawing() -> Any:
        figure, axes = canvas(3.0, 1, 3)
        left, middle, right = axes[0]
        left.plot([1e-4, 1.0, 1e3], [-1.0, 1e-3, 1e2], label="a line")
        left.set_xscale("log")
        left.set_yscale("symlog", linthresh=1e-3)
        left.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0))
        left.set_title("a title")
        image = middle.imshow(np.arange(12.0).reshape(3, 4), aspect="auto")
        middle.set_yticks(range(3), ["a", "a long name", "b"], fontfamily="monospace")
        figure.colorbar(image, ax=middle).set_label("z")
        right.plot(np.arange(DENSE + 1), np.arange(DENSE + 1) % 7, "o")
        right.annotate("beyond", (DENSE, 3.0), xytext=(30, 0), textcoords="offset points")
        right.set_ylabel("on the right")
        figure.supxlabel("below all")
        return figure

    figure = drawing()
    ours = svg(figure, "x"), svg(figure, "x"), png(figure)
    monkeypatch.setattr("roundscope.tools.report.pictures._laid_out", _drawn_twice)
    figure = drawing()
    theirs = svg(figure, "x"), svg(figure, "x"), png(figure)
    assert ours == theirs


@pytest.mark.pictures
def test_texts_are_drawn_as_artists_of_their_own() -> None:
    """Numbers of a map in another place, color, size or order, or in its layout."""
    cells = [((x, y), f"{x - y:+d}", UP if x > y else INK) for x in range(3) for y in range(2)]
    how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5}

    def drawn(*, together: bool) -> str:
        figure, axes = canvas(2.0)
        axes[0, 0].set_xlim(0, 2)  # the texts of the last column leave the axes
        if together:
            texts(axes[0, 0], cells, **how)
        else:
            for place, words, color in cells:
                axes[0, 0].text(*place, words, color=color, in_layout=False, **how)
        return svg(figure, "x")

    assert drawn(together=True) == drawn(together=False)


def _drawn_twice(figure: Any) -> Any:
    import matplotlib as mpl

    mpl.rcParams["savefig.pad_inches"] = 0.08  # within the caller's context
    return nullcontext("tight")
