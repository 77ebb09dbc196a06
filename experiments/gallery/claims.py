"""docs/findings/claims.md: every claim of the papers on arXiv, made of the gallery's pages.

A claim has one row, in however many cases it was tested. Claims of ours, and controls, which no
paper makes, stay in the gallery.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundscope.experiments import catalogue
from roundscope.experiments.catalogue import Entry
from roundscope.experiments.framework.verdicts import Word, together

SHOWN = 2  # cases of a claim that its row shows, of different verdicts
CELLS = re.compile(r"(?<!\\)\|")  # between cells; \| is a bar in one
WORDS = frozenset(Word)
OURS = ("ours", "control")  # how the place, or the words, of a claim begin that no paper makes
PAGE = """\
# Every claim of four papers

**Of {total} claims our runs agree with {agrees} and contradict {contradicts}.** Of the others,
{depends} depend on conditions that the paper does not state, {undecided} are undecided, and
{not_testable} cannot be tested here. A row is a claim. Where it was tested in several cases, the
verdict is over all of them: it *depends* where some cases agree and others contradict, and is
*undecided* where they neither all agree nor all contradict, since an interval reaches across the
border of the claim. The last column shows up to two cases, of different verdicts, with 95 %
intervals; the gallery has every case, claims of our own, and controls. *Not testable* says why.
What has not run because of its size is named above its table.

{papers}

This page is made by `python -m roundscope.experiments.gallery`, of [the gallery's
pages](../gallery/index.md), which it draws from [the runs of record](../runs/README.md).
What the results mean together is in [the findings](index.md).
"""


@dataclass(slots=True)
class Claim:
    """A claim with its cases, as a page of the gallery has them."""

    where: str
    text: str
    cases: list[tuple[str, str, Word]] = field(default_factory=list)  # case, measured, verdict

    @property
    def verdict(self) -> Word:
        """The verdict over all cases."""
        return together([word for *_, word in self.cases])

    @property
    def counted(self) -> str:
        """The verdict, and how often each was given where cases differ."""
        count = Counter(word for *_, word in self.cases)
        if len(count) == 1:
            return f"{self.verdict}" + (f", {len(self.cases)} cases" if len(self.cases) > 1 else "")
        told = ", ".join(f"{word} {n}" for word, n in count.items())
        return f"{self.verdict}: {told}"

    @property
    def measured(self) -> str:
        """Return the measured numbers of at most `SHOWN` cases, the first of each verdict, in the
        order of `Word`: verdicts that decide come first.
        """
        first: dict[Word, str] = {}
        for case, measured, word in self.cases:
            first.setdefault(word, f"{case}: {measured}" if case != "-" else measured)
        return "; ".join([first[word] for word in Word if word in first][:SHOWN])


def claims_of(page: str) -> list[Claim]:
    """Return the claims of a paper in the table of verdicts of a page, in its order."""
    found: dict[tuple[str, str], Claim] = {}
    place = ("", "")
    for line in page.splitlines():
        cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
        word = cells[-1].strip("*") if len(cells) == 5 else ""
        if word in WORDS:
            where, text, case, measured, _ = cells
            place = (where, text) if text else place
            own = found.setdefault(place, Claim(*place))
            own.cases.append((case, measured, Word(word)))
    return [c for c in found.values() if not (c.where.startswith(OURS) or c.text.startswith(OURS))]


def text_of(pages: Mapping[str, str]) -> str:
    """Return the page; `pages` has those of the gallery by the names of studies."""
    by_paper: dict[str, list[Entry]] = {}
    for entry in catalogue.PAPERS:
        if entry.number.startswith("arXiv "):
            by_paper.setdefault(entry.paper, []).append(entry)
    found = {e.name: claims_of(pages[e.name]) for own in by_paper.values() for e in own}
    count = Counter(c.verdict for own in found.values() for c in own)
    sections = [
        "\n\n".join([_heading(paper), *(_table(e, found[e.name], pages[e.name]) for e in own)])
        for paper, own in by_paper.items()
    ]
    numbers = {word.name.lower(): count[word] for word in Word}
    return PAGE.format(total=count.total(), **numbers, papers="\n\n".join(sections))


def _heading(paper: str) -> str:
    number, _, title = paper.partition(", ")
    link = f"https://arxiv.org/abs/{number.removeprefix('arXiv ')}"
    return f"## {title}\n\n[{number}]({link})"


def _table(entry: Entry, claims: Sequence[Claim], page: str) -> str:
    """Return the rows of one study, under its command."""
    return "\n".join(
        [
            f"`roundscope {entry.command} --draw`, {_seeds(entry.seeds[1])};"
            f" [every case](../gallery/{entry.name}.md).{_lacking(page)}\n",
            "| where | claim | verdict | measured |",
            "|---|---|---|---|",
            *(f"| {c.where} | {c.text} | {c.counted} | {c.measured} |" for c in claims),
        ]
    )


def _seeds(most: int) -> str:
    return "one seed" if most == 1 else f"at most {most} seeds where a row names no n"


def _lacking(page: str) -> str:
    """Return what a page says of parts that have not run."""
    told = re.search(r"Not complete: (\d+) of (\d+) ([\w ]+) are there", page)
    return f" Of its {told[2]} {told[3]} {told[1]} have run." if told else ""


def pages_of(folder: Path) -> dict[str, str]:
    """Return the text of each page of the gallery by its name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
