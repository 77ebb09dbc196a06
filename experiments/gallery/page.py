"""Pages of the gallery, as Markdown for Sphinx: one for a study, and the index with a card each."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from roundscope.experiments.catalogue import Entry
from roundscope.experiments.framework.verdicts import Verdict, Word

COUNTED = {  # what is said of several verdicts
    Word.AGREES: "agree",
    Word.CONTRADICTS: "contradict",
    Word.DEPENDS: "depend on conditions",
    Word.UNDECIDED: "are undecided",
    Word.NOT_TESTABLE: "are not testable",
}
BADGES = {Word.AGREES: "success", Word.CONTRADICTS: "danger", Word.DEPENDS: "warning"}
SHOWN = 12  # verdicts beyond which the table is folded
SITES = {  # the beginning of a paper's number -> its address; what follows is the number
    "arXiv ": "https://arxiv.org/abs/",
    "flash-attention #": "https://github.com/Dao-AILab/flash-attention/pull/",
    "vllm-project/flash-attention #": "https://github.com/vllm-project/flash-attention/pull/",
}
INDEX = """\
# Gallery

Every study of `roundscope studies`: its question, its figures, and what they say of each claim.
What the results mean together is in [the findings](../findings/index.md).

<style>
.gallery .sd-card-img-top {{
  height: 9.5rem; object-fit: contain; background: #fff; padding: 6px; border-radius: 0;
}}
.gallery .sd-card-body {{ padding-top: .6rem; }}
.gallery .sd-card-title {{ font-size: 1rem; line-height: 1.35; }}
.gallery .sd-card-text {{ font-size: .85rem; }}
</style>

:::::{{grid}} 1 2 2 3
:gutter: 3
:class-container: gallery

{cards}
:::::

These pages are written by `python -m roundscope.experiments.gallery`, which trains
nothing: it draws what [the runs of record](../runs/README.md) hold.

```{{toctree}}
:hidden:

{names}
```
"""
CARD = """\
::::{{grid-item-card}} {question}
:link: {name}
:link-type: doc
{image}
`roundscope {command}`
::::"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A picture of a page: its title, its caption, and its file beside the page."""

    title: str
    caption: str
    file: str


def page(
    entry: Entry,
    *,
    drawn: str,
    answer: str,
    verdicts: Sequence[Verdict],
    pictures: Sequence[Shown],
    caveats: str,
    links: Mapping[str, str],
) -> str:
    """Return the page of a study.

    Args:
        entry: The study, as the catalogue has it.
        drawn: Where its figures come from, as Markdown.
        answer: The study's answer, as text.
        verdicts: A verdict for each claim and case.
        pictures: Its figures, in their order.
        caveats: What it does not show, as text.
        links: Further pages -> their titles.
    """
    shown = [_picture(each, each.title != entry.question) for each in pictures]
    parts = [
        f"# {escaped(entry.question)}",
        paper(entry.paper),
        f"    roundscope {entry.command}",
        escaped(answer),
        *shown[:1],
        drawn,
        "\n".join(_verdicts(verdicts)),
        *shown[1:],
        f"## Notes and limits\n\n{escaped(caveats)}" if caveats else "",
        f"See also: {', '.join(f'[{title}]({link})' for link, title in links.items())}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def paper(text: str) -> str:
    """Return the paper of a study with a link to it: "arXiv 2405.02803, Is ..."."""
    number, _, title = text.partition(", ")
    for start, site in SITES.items():
        if number.startswith(start):
            return f"[{number}]({site}{number.removeprefix(start)}), *{escaped(title)}*"
    return escaped(text)


def index(entries: Mapping[Entry, str]) -> str:
    """Return the page of all studies, given each one's first picture ("" where it has none)."""
    cards = "\n\n".join(_card(entry, image) for entry, image in entries.items())
    names = "\n".join(f"{entry.name} <{entry.name}>" for entry in entries)
    return INDEX.format(cards=cards, names=names)


def _card(entry: Entry, image: str) -> str:
    lines = f":img-top: {image}\n:img-alt: {entry.question}\n" if image else ""
    question = escaped(entry.question)
    return CARD.format(question=question, name=entry.name, image=lines, command=entry.command)


def _picture(shown: Shown, is_titled: bool) -> str:
    title = escaped(shown.title)
    head = f"## {title}\n\n" if is_titled else ""
    return f"{head}![{title}]({shown.file})\n\n*{shown.caption.strip()}*"


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the lines of the verdicts: how many of each kind, and the table."""
    if not verdicts:
        return
    count = Counter(v.word for v in verdicts)
    kinds = ", ".join(f"{count[word]} {text}" for word, text in COUNTED.items() if count[word])
    yield f"## Verdicts\n\nOf {len(verdicts)} verdicts {kinds}.\n"
    is_long = len(verdicts) > SHOWN
    if is_long:
        yield "::::{dropdown} Every verdict\n"
    yield "| | claim | case | measured | verdict |\n|---|---|---|---|---|"
    before = ("", "")
    for v in verdicts:
        now = (v.figure, f"{v.claim} ({v.sizes})" if v.sizes else v.claim)
        where, claim = ("", "") if now == before else now
        before = now
        measured = escaped(v.measured) + (f" *{escaped(v.note)}*" if v.note else "")
        word = f"{{bdg-{BADGES.get(v.word, 'secondary')}}}`{v.word}`"
        yield f"| {escaped(where)} | {escaped(claim)} | {escaped(v.case)} | {measured} | {word} |"
    if is_long:
        yield "::::"


def escaped(text: str) -> str:
    """Return text as Markdown that shows it as it is, in one line."""
    return re.sub(r"([\\`*_<>|$\[\]{}])", r"\\\1", " ".join(text.split()))
