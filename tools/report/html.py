"""A report as a page: one file that opens anywhere, light or dark as the reader's system is.

What a page looks like from top to bottom stands in `page.html.jinja`, and its style in `page.css`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from roundscope.tools.report import pictures
from roundscope.tools.report.model import Cell, Report, Section, Table, text_of

HERE = Path(__file__).parent
LONG = 36  # number of characters beyond which a cell may take several lines
LEAD = 160  # number of characters that fit in large letters
SECTIONS = 5  # sections from which on a page has a table of contents
BREAKS = 24  # characters of a word beyond which it may break behind a dot, a line or a colon
_NUMBER = re.compile(r"[-+±]?\s*[\d.,]+(e[-+]?\d+)?\s*[%x]?|-|inf|nan|")
_WORD = re.compile(rf"[\w.:/,=-]{{{BREAKS},}}")
_INTERVAL = r"[-+]?[\d.]+(?:e[-+]?\d+)? ±[\d.]+(?:e[-+]?\d+)?(?: [▲▼·])?"
_UNBROKEN = re.compile(rf"{_INTERVAL}|[-+]?[\d.]+e[-+]\d+")
_SENTENCE = re.compile(r"(?<=[a-z0-9)\]][.?!]) (?=\w)")  # where a sentence ends


def page(report: Report) -> str:
    """Return the page of a report as HTML. It needs no other file, and reads without scripts."""
    text = report.opening.text
    names = dict(_names(p for p in report.parts if isinstance(p, Section) and p.title))
    html: str = _template().render(
        report=report,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        is_brief=len(report.opening.number) <= LEAD,
        lead=_SENTENCE.split(text, maxsplit=1) if len(text) > LEAD else [text],
        names=names,
        contents=len(names) >= SECTIONS,
    )
    return html


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["svg"] = lambda figure, title: Markup(pictures.svg(figure, title))
    environment.filters["kinds"] = _kinds
    environment.filters["number"] = id
    environment.filters["heading"] = lambda i, heads: heads[i].replace("\n", " ")
    environment.filters["numeric"] = _numeric
    environment.filters["flowing"] = flowing
    environment.filters["unbroken"] = unbroken
    return environment.get_template("page.html.jinja")


def _names(sections: Iterable[Section]) -> Iterator[tuple[int, str]]:
    """Yield what the links to sections say, each another, with the identity of the section."""
    found: set[str] = set()
    for section in sections:
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        name = name if name not in found else f"{name}-{len(found)}"
        found.add(name)
        yield id(section), name


def flowing(text: str) -> Markup:
    """Return a text as HTML whose long words may break at their parts, and whose numbers do not,
    nor between a number and its interval.

    Example:
        >>> print(flowing("model.layers.0.self_attn.q_proj: 1e-05"))
        model.<wbr>layers.<wbr>0.<wbr>self_<wbr>attn.<wbr>q_<wbr>proj: <span class=n>1e-05</span>
    """
    escaped = str(Markup.escape(text))
    parted = _WORD.sub(lambda m: re.sub(r"([._:/])(?=\w)", r"\1<wbr>", m[0]), escaped)
    return Markup(_UNBROKEN.sub(r"<span class=n>\g<0></span>", parted))


def unbroken(command: str) -> Markup:
    """Return a command as HTML whose lines end between its words, and never inside --option.

    Example:
        >>> print(unbroken("roundscope trace --set P=fp32"))
        <span>roundscope</span> <span>trace</span> <span>--set</span> <span>P=fp32</span>
    """
    return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in command.split(" "))


def _numeric(table: Table) -> str:
    """Return classes that say whether the first two columns hold numbers alone: "n1 n2"."""
    columns = [*zip(*table.rows, strict=True)][:2]
    found = [
        f" n{i}"
        for i, column in enumerate(columns, 1)
        if all(_NUMBER.fullmatch(text_of(cell)) for cell in column)
    ]
    return "".join(found)


def _is_words(column: Sequence[str | Cell]) -> bool:
    """Return whether the cells of a column begin with letters, but for empty ones."""
    texts = [text for cell in column if (text := text_of(cell))]
    return bool(texts) and all(t[0].isalpha() and not _NUMBER.fullmatch(t) for t in texts)


def _kinds(table: Table) -> list[Markup]:
    """Return the class of each column's cells, as the attribute of a tag.

    Long cells may break, so that no column is cut off; a narrow screen leaves optional ones out,
    and shows others below.
    """
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.heads)
    found = []
    for number, column in enumerate(columns):
        is_long = any(len(text_of(cell)) > LONG for cell in column)
        names = ["text"] * is_long + ["more"] * (number in table.optional)
        names += ["left"] * (number > 1 and not is_long and _is_words(column))
        names += ["below"] * (number in table.below)
        found.append(
            Markup(("", " class={}", " class='{}'")[min(len(names), 2)].format(" ".join(names)))
        )
    return found
