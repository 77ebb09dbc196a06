"""The gallery of the documentation: a page for every study, as the program writes it."""

import re

import pytest

from roundscope.experiments.catalogue import IDENTITY, PAPERS, STUDIES
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.gallery import claims
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


DRAWN = [entry for entry in PAPERS if entry.number.startswith("arXiv ")]


@pytest.mark.parametrize(
    "entry", [IDENTITY, *(pytest.param(e, marks=pytest.mark.thorough) for e in DRAWN)],
    ids=lambda entry: entry.name,
)  # fmt: skip
def test_a_page_says_what_its_record_says(entry, tmp_path):
    """The study or its words changed: run `python -m roundscope.experiments.gallery`."""
    (tmp_path / "images").mkdir()
    written = (GALLERY / f"{entry.name}.md").read_text(encoding="utf-8")
    assert text_of(entry, tmp_path) == written
    assert (tmp_path / images_of(written)[0]).stat().st_size > 1000


def test_the_page_of_claims_has_the_verdicts_of_the_gallery():
    """A page of the gallery changed: run `python -m roundscope.experiments.gallery`."""
    written = (DOCS / "findings" / "claims.md").read_text(encoding="utf-8")
    assert claims.text_of(claims.pages_of(GALLERY)) == written


def test_claims_have_a_row_each_with_the_verdict_over_their_cases():
    def verdict(claim, case, word, figure="1"):
        measured = f"{case} [1, 3]"
        return Verdict(
            figure=figure, claim=claim, case=case, sizes="", word=word, measured=measured
        )

    verdicts = [
        verdict("|z| falls", "a", Word.AGREES),
        verdict("|z| falls", "b", Word.UNDECIDED),
        verdict("it ends", "a", Word.AGREES),
        verdict("ours: it never began", "a", Word.AGREES),
        verdict("a sham does nothing", "a", Word.AGREES, "control"),
        verdict("|z| falls", "c", Word.CONTRADICTS),
        verdict("it is free", "-", Word.NOT_TESTABLE),
    ]
    found = claims.claims_of(page(IDENTITY, drawn="Drawn.", links={}, verdicts=verdicts))
    assert [(c.where, c.text, c.counted) for c in found] == [
        ("1", r"\|z\| falls", "depends: agrees 1, undecided 1, contradicts 1"),
        ("1", "it ends", "agrees"),
        ("1", "it is free", "not testable"),
    ]
    assert found[0].measured == r"a: a \[1, 3\]; c: c \[1, 3\]"


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
