"""What a command reports: an opening, parts, and data.

`html.page` shows a report as a page, `terminal.show` its brief form on the terminal, and
`deliver.deliver` writes it. Texts are plain: what shows them escapes them.

Example:
    >>> from roundscope.tools.report.html import page
    >>> rows = Table(("event", "error"), [("P", "2.1e-03"), ("OUT", "1.9e-03")])
    >>> report = Report(title="mine", opening=Opening("P makes most of the error."), parts=[rows])
    >>> "<td>2.1e-03" in page(report)
    True
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Mood = Literal["", "good", "bad", "warn", "note", "strong"]


@dataclass(frozen=True, slots=True)
class Opening:
    """The box that a page opens with.

    Attributes:
        text: The answer, in a sentence that nobody can misread; of a long text, the first
            sentence is in large letters.
        number: The number behind it, in words: "relative rms error 2.3e-3".
        command: The command of the next step; one click marks all of it.
        why: What the command is for.
        mood: "good" or "bad" for an answer that is, and "" for one that is neither.
    """

    text: str
    number: str = ""
    command: str = ""
    why: str = "Next"
    mood: Mood = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. lead: words before it, in bold; command: a command behind it."""

    kind: ClassVar = "text"
    text: str
    mood: Mood = ""
    lead: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Points:
    """A list; each point is a text, or (words in bold, text)."""

    kind: ClassVar = "points"
    points: Sequence[str | tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table that is not only text. note: smaller words below, on a page alone."""

    text: str
    mood: Mood = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        heads: The headings of its columns, in which newlines are kept.
        rows: The cells, as many in a row as there are headings.
        marked: For each row, whether it is drawn in red.
        title: A line above it on the terminal.
        name: A class of the page's element, by which a script finds it.
        is_prose: Whether most columns are sentences.
        optional: The numbers of the columns that a screen that is too narrow leaves out.
        below: The numbers of the columns whose cells such a screen shows below the others of
            their row.
    """

    kind: ClassVar = "table"
    heads: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    marked: Sequence[bool] = ()
    title: str = ""
    name: str = ""
    is_prose: bool = False
    optional: Sequence[int] = ()
    below: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture under its title, with a caption; figure: matplotlib's, or None for words alone.

    narrow: the same for a narrow screen, its panels below each other, or a function that draws it;
    None where one serves both.
    """

    kind: ClassVar = "picture"
    title: str
    figure: Any
    caption: str
    narrow: Any = None


@dataclass(frozen=True, slots=True)
class Code:
    """Lines in letters of one width, which the terminal does not break."""

    kind: ClassVar = "code"
    text: str
    mood: Mood = ""


@dataclass(frozen=True, slots=True)
class Raw:
    """HTML as it is, for the fields and the script of a page that needs any; on a page alone."""

    kind: ClassVar = "raw"
    html: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Parts under a title that opens them."""

    kind: ClassVar = "folded"
    title: str
    parts: Sequence["Part"]


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a heading; name: what a script finds it by. Many get a table of contents."""

    kind: ClassVar = "section"
    title: str
    parts: Sequence["Part"]
    name: str = ""


Part = Text | Points | Table | Picture | Code | Raw | Folded | Section


@dataclass(frozen=True, slots=True)
class Case:
    """A test case of JUnit's XML.

    Attributes:
        name: The name of the case.
        seconds: How long it took.
        failure: The message of a failure, whose first line is the summary; None if it passed.
        skipped: The reason why it was skipped; None if it was not.
    """

    name: str
    seconds: float = 0.0
    failure: str | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a command reports.

    Attributes:
        title: What a window of the page is called, behind "Roundscope: ".
        heading: The page's heading; "" for `title`.
        about: What was examined, in small letters below it.
        opening: The answer.
        parts: What a page shows below the answer.
        brief: What the terminal shows.
        data: What is written as JSON.
        cases: What JUnit's XML lists.
    """

    title: str
    heading: str = ""
    about: str = ""
    opening: Opening
    parts: Sequence[Part] = ()
    brief: Sequence[Part] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    cases: Sequence[Case] = ()


def notes(*texts: str) -> list[Text]:
    """Return texts as paragraphs in small grey letters, without those that are empty."""
    return [Text(text, "note") for text in texts if text]


def text_of(cell: str | Cell) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text
