"""What a study reports: the picture that answers, one sentence, verdicts, every number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from roundscope.experiments.framework.study import R, Static, Study
from roundscope.experiments.framework.study import Table as StudyTable
from roundscope.experiments.framework.verdicts import Verdict, Word, lines
from roundscope.tools.report.model import (
    Cell,
    Code,
    Folded,
    Mood,
    Opening,
    Part,
    Picture,
    Report,
    Section,
    Table,
    Text,
    notes,
)

COUNTED = {  # words of verdicts, of several
    Word.AGREES: "agree with the claim",
    Word.CONTRADICTS: "contradict it",
    Word.DEPENDS: "depend on something that it does not state",
}
MOODS: dict[Word, Mood] = {Word.AGREES: "good", Word.CONTRADICTS: "bad", Word.DEPENDS: "warn"}
READ = (
    "A claim is a sentence of the paper, or of ours, as it can be tested. A verdict is what our"
    " measurement says of it: it agrees, contradicts or is undecided (its interval reaches across"
    " the border of the claim), or it depends on something that the claim does not state."
)


def report(
    study: Study[R],
    results: R,
    verdicts: Sequence[Verdict],
    static: Static,
    data: Mapping[str, Any],
) -> Report:
    """Return the report of a study."""
    drawn = [
        Picture(f.title, picture, f.caption)
        for f in study.figures
        if (picture := f.draw(results)) is not None
    ]
    still = [Picture(*each) for each in static.figures]
    lack = missing(data["run"], study.unit)
    how = notes(READ if verdicts else "", *study.rules)
    return Report(
        title=study.paper or study.question,
        heading=study.question,
        about=study.paper,
        opening=_opening(study, verdicts, data),
        parts=[
            *([Text("", lead=lack)] if lack else []),
            *([Folded("How to read this page", how)] if how else []),
            *drawn[:1],
            *_verdicts(study, verdicts),
            *([Section("Pictures", drawn[1:])] if drawn[1:] else []),
            *([Section(static.title, still)] if still else []),
            *(
                Section(t.title, [Table(t.heads, t.rows(results)), *notes(t.note)])
                for t in study.tables
            ),
            _run(study, data["run"], data["config"]),
            *_queries(study, verdicts),
        ],
        brief=_brief(study, results, verdicts, data),
        data=data,
    )


def _opening(study: Study[Any], verdicts: Sequence[Verdict], data: Mapping[str, Any]) -> Opening:
    counted = Counter(v.word for v in verdicts)
    words = ", ".join(f"{counted[w]} {COUNTED.get(w, w)}" for w in Word if counted[w])
    number = f"{len(verdicts)} verdicts: {words}." if verdicts else ""
    run = data["run"]
    why = "To measure it yourself" if (run["there"] == run["launches"]) else "Next, the rest of it"
    return Opening(data["answer"], number, run["command"].replace(" --draw", ""), why)


def _brief(
    study: Study[R], results: R, verdicts: Sequence[Verdict], data: Mapping[str, Any]
) -> list[Part]:
    """Return what the terminal shows: the answer, tables, verdicts, what is missing."""
    caution, lack = study.caution if verdicts else "", missing(data["run"], study.unit)
    scale = f" ({study.scale})" if study.scale else ""
    return [
        Text(data["answer"]),
        *(_shown(table, table.rows(results)) for table in study.tables if table.shown),
        *([verdict_table(verdicts, study.source)] if verdicts else []),
        *(Text(text) for text in (caution, lack) if text),
        Text(f"{study.unit}: {launched(data['run'])}{scale}"),
    ]


def _shown(table: StudyTable[Any], rows: Sequence[Sequence[str]]) -> Table:
    """Return the columns that the terminal shows; a first cell like the one above is left out."""
    kept = [column for column in table.shown if any(row[column] for row in rows)]
    cells: list[list[str | Cell]] = []
    before = ""
    for row in rows:
        first, *rest = (row[column] for column in kept)
        if table.grouped and first != before:
            cells.append([Cell(first, "strong"), *("" for _ in rest[1:])])
        cells.append([*rest] if table.grouped else ["" if first == before else first, *rest])
        before = first
    return Table([table.heads[n] for n in (kept[1:] if table.grouped else kept)], cells)


def verdict_table(verdicts: Sequence[Verdict], first: str = "row") -> Table:
    """Return the table of verdicts; `first` heads the column that says where a claim stands."""
    rows = [
        (
            place,
            claim,
            v.case,
            Cell(v.measured, note=v.note),
            Cell(str(v.word), MOODS.get(v.word, "note")),
        )
        for place, claim, v in lines(verdicts)
    ]
    return Table((first, "claim", "case", "measured", "verdict"), rows, is_prose=True)


def missing(run: Mapping[str, Any], unit: str) -> str:
    """Return what a page lacks, in words; empty for a complete one. `unit` is `Study.unit`."""
    if run["there"] == run["launches"]:
        return ""
    failure = f" The first that failed: {run['failure']}." if run.get("failure") else ""
    return (
        f"Not complete: {run['there']} of {run['launches']} {unit} are there; parts that are not"
        f" whole, and parts that need none, are left out.{failure} The same command, without"
        " --draw, goes on and completes this page."
    )


def launched(run: Mapping[str, Any]) -> str:
    """Return how many launches a page shows, and how many of them the last command ran."""
    if run["interrupted"]:
        when = f"the last command was interrupted after {run['seconds']} s"
        return f"{run['there']} of {run['launches']}; {when}"
    when = f"{run['ran']} of them run by the last command in {run['seconds']} s"
    return f"{run['there']} of {run['launches']}, {when}"


def _verdicts(study: Study[Any], verdicts: Sequence[Verdict]) -> list[Section]:
    if not verdicts:
        return []
    return [Section("Verdicts", [*notes(study.caution), verdict_table(verdicts, study.source)])]


def _run(study: Study[Any], run: Mapping[str, Any], config: Mapping[str, Any]) -> Section:
    about = {
        "command": run["command"],
        study.unit: launched(run),
        "device": ", ".join(run["devices"]),
        **study.about,
        "config": " ".join(f"{name}={value}" for name, value in config.items()),
    }
    width = max(map(len, about)) + 2
    text = "\n".join(f"{name:{width}}{line}" for name, line in about.items() if line)
    title = "What was run, and what was not shown" if study.caveats else "What was run"
    return Section(title, [*([Text(study.caveats)] if study.caveats else []), Code(text)])


def _queries(study: Study[Any], verdicts: Sequence[Verdict]) -> list[Section]:
    """Return the SQL behind the numbers, in full; nothing where no verdict has any."""
    known = [v for v in verdicts if v.queries]
    text = "\n\n".join(
        f"-- {v.figure}: {v.claim}; {v.case}; {v.sizes}\n" + ";\n".join(v.queries) + ";"
        for v in known
    )
    sql = Folded(f"SQL over {study.file or study.name}.sqlite", [Code(text)])
    return [Section("The queries behind the numbers", [sql])] if known else []
