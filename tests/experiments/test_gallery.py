"""The gallery of the documentation: a page for every study, as the program writes it."""

import re

import pytest

from roundscope.experiments.catalogue import IDENTITY, STUDIES
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.gallery.pages import (
    DOCS,
    LINKS,
    SOURCES,
    escaped,
    page,
    source_of,
    text_of,
)

GALLERY = DOCS / "gallery"


def images_of(text):
    return re.findall(r"(?:!\[[^\n]*\]\(|:img-top: )([^)\n]+\.png)", text)


def test_every_study_has_a_source_and_a_page():
    """A study that is new is missing from the gallery."""
    names = {entry.name for entry in STUDIES}
    assert all(source_of(entry) for entry in STUDIES) and {*SOURCES, *LINKS} <= names
    assert {path.stem for path in GALLERY.glob("*.md")} == {*names, "index"}


def test_pictures_are_those_that_pages_show():
    """A page shows a picture that is not there, or a picture is left over."""
    texts = [path.read_text(encoding="utf-8") for path in GALLERY.glob("*.md")]
    shown = {(GALLERY / image).resolve() for text in texts for image in images_of(text)}
    assert all(path.is_file() for path in shown)
    assert set((GALLERY / "images").glob("*.png")) <= shown


def test_a_page_says_what_its_record_says(tmp_path):
    """The study or its words changed: run `python -m roundscope.experiments.gallery`."""
    (tmp_path / "images").mkdir()
    written = (GALLERY / f"{IDENTITY.name}.md").read_text(encoding="utf-8")
    assert text_of(IDENTITY, tmp_path) == written
    assert (tmp_path / images_of(written)[0]).stat().st_size > 1000


@pytest.mark.parametrize("count", [1, 13])
def test_a_long_table_of_verdicts_is_folded(count):
    """A hundred verdicts hide the figures below them."""
    verdict = Verdict(
        figure="1", claim="|z| < 4", case="a_b", sizes="", word=Word.AGREES, measured="2 [1, 3]"
    )
    text = page(
        IDENTITY,
        drawn="Drawn.",
        answer="Yes.",
        verdicts=[verdict] * count,
        pictures=(),
        caveats="",
        links={"../a.md": "A"},
    )
    assert ("<details>" in text) == ("\n</details>" in text) == (count == 13)
    assert f"Of {count} verdicts {count} agree." in text
    assert r"\|z\| \< 4" in text


def test_text_is_shown_as_it_is():
    """Markdown of a caption: |x| splits a table, W_Q becomes italics, line breaks end a cell."""
    assert escaped("||W_Q||  of\n<eps> [0 %]") == r"\|\|W\_Q\|\| of \<eps\> \[0 %\]"
