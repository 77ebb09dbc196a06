"""A report as a page: one file that opens anywhere, light or dark as the reader's system is.

What a page looks like from top to bottom stands in `page.html.jinja`, and its style in `page.css`.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from roundscope.tools.report import pictures
from roundscope.tools.report.model import Report, Section, Table, text_of

HERE = Path(__file__).parent
LONG = 36  # number of characters beyond which a cell may take several lines
LEAD = 160  # number of characters that fit in large letters
SECTIONS = 5  # sections from which on a page has a table of contents
_SENTENCE = re.compile(r"(?<=[a-z0-9)\]][.?!]) (?=\w)")  # where a sentence ends


def page(report: Report) -> str:
    """Return the page of a report as HTML. It needs no other file, and reads without scripts."""
    text = report.opening.text
    names = dict(_names(p for p in report.parts if isinstance(p, Section) and p.title))
    html: str = _template().render(
        report=report,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
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
    environment.filters["wide"] = _wide
    environment.filters["number"] = id
    return environment.get_template("page.html.jinja")


def _names(sections: Iterable[Section]) -> Iterator[tuple[int, str]]:
    """Yield what the links to sections say, each another, with the identity of the section."""
    found: set[str] = set()
    for section in sections:
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        name = name if name not in found else f"{name}-{len(found)}"
        found.add(name)
        yield id(section), name


def _wide(table: Table) -> list[bool]:
    """Return which columns have long cells; these may break, so that no column is cut off."""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.heads)
    return [any(len(text_of(cell)) > LONG for cell in column) for column in columns]
