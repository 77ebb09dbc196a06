"""The page of a study: the picture that answers, one sentence, verdicts, pictures, every number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from roundscope.experiments.framework.study import R, Static, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word, lines
from roundscope.tools.report.page import CONTENTS, document, figure, folded, grid, verdict

COUNTED = {  # words of verdicts, of several
    Word.AGREES: "agree with the claim",
    Word.CONTRADICTS: "contradict it",
    Word.DEPENDS: "depend on something that it does not state",
}
COLOURED = {Word.AGREES: "good", Word.CONTRADICTS: "bad", Word.DEPENDS: "warn"}
READ = (
    "<p class=note>A claim is a sentence of the paper, or of ours, as it can be tested. A verdict"
    " is what our measurement says of it: it agrees, contradicts or is undecided (its interval"
    " reaches across the border of the claim), or it depends on something that the claim does not"
    " state.</p>"
)


def html(
    study: Study[R],
    results: R,
    verdicts: Sequence[Verdict],
    static: Static,
    data: Mapping[str, Any],
) -> str:
    """Return the whole page."""
    opening, *others = [
        figure(f.title, picture, f.caption)
        for f in study.figures
        if (picture := f.draw(results)) is not None
    ] or [""]
    still = "".join(figure(*each) for each in static.figures)
    rules = (f"<p class=note>{escape(text)}</p>" for text in study.rules)
    how = "".join([READ if verdicts else "", *rules])
    body = [
        f"<h1>{escape(study.question)}</h1>",
        f"<p class=sub>{escape(study.paper)}</p>" if study.paper else "",
        _opening(study, verdicts, data),
        f"<p><b>{escape(lack)}</b></p>" if (lack := missing(data["run"], study.unit)) else "",
        folded("How to read this page", how) if how else "",
        opening,
        CONTENTS,
        _verdicts(study, verdicts),
        f"<h2>Pictures</h2>{''.join(others)}" if others else "",
        f"<h2>{escape(static.title)}</h2>{still}" if still else "",
        *(_table(table, results) for table in study.tables),
        _run(study, data["run"], data["config"]),
        _queries(study, verdicts),
    ]
    return document(f"Roundscope: {study.paper or study.question}", "\n".join(body))


def _opening(study: Study[Any], verdicts: Sequence[Verdict], data: Mapping[str, Any]) -> str:
    counted = Counter(v.word for v in verdicts)
    words = ", ".join(f"{counted[w]} {COUNTED.get(w, w)}" for w in Word if counted[w])
    number = f"{len(verdicts)} verdicts: {words}." if verdicts else ""
    run = data["run"]
    is_whole = run["there"] == run["launches"]
    why = "To measure it yourself" if is_whole else "Next, the rest of it"
    return verdict(data["answer"], number, run["command"].replace(" --draw", ""), why=why)


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


def _verdicts(study: Study[Any], verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    caution = f"<p class=note>{escape(study.caution)}</p>" if study.caution else ""
    names = (study.source, "claim", "case", "measured", "verdict")
    head = "".join(f"<th>{name}" for name in names)
    rows = "".join(_row(figure, claim, v) for figure, claim, v in lines(verdicts))
    table = f"<div class=wide><table class=words><tr>{head}{rows}</table></div>"
    return f"<h2>Verdicts</h2>{caution}{table}"


def _row(place: str, claim: str, v: Verdict) -> str:
    note = f"<br><i>{escape(v.note)}</i>" if v.note else ""
    word = f"<b class={COLOURED.get(v.word, 'muted')}>{v.word}</b>"
    cells = (escape(place), escape(claim), escape(v.case), escape(v.measured) + note, word)
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells)


def _table(table: Table[R], results: R) -> str:
    cells = grid(list(table.heads), [list(row) for row in table.rows(results)])
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2>{cells}{note}"


def _run(study: Study[Any], run: Mapping[str, Any], config: Mapping[str, Any]) -> str:
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
    caveats = f"<p>{escape(study.caveats)}</p>" if study.caveats else ""
    return f"<h2>{title}</h2>{caveats}<pre>{escape(text)}</pre>"


def _queries(study: Study[Any], verdicts: Sequence[Verdict]) -> str:
    """Return the SQL behind the numbers, in full; nothing where no verdict has any."""
    known = [v for v in verdicts if v.queries]
    if not known:
        return ""
    text = "\n\n".join(
        f"-- {v.figure}: {v.claim}; {v.case}; {v.sizes}\n" + ";\n".join(v.queries) + ";"
        for v in known
    )
    summary = f"<summary>SQL over {study.file or study.name}.sqlite</summary>"
    shown = f"<details>{summary}<pre>{escape(text)}</pre></details>"
    return f"<h2>The queries behind the numbers</h2>{shown}"
