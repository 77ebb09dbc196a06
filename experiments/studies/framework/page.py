"""The page of a study: the picture that answers, one sentence, verdicts, pictures, every number."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.study import R, Static, Study, Table
from roundscope.experiments.studies.framework.verdicts import Verdict


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
    body = [
        f"<h1>{escape(study.question)}</h1>",
        f"<p class=sub>{escape(study.paper)}</p>" if study.paper else "",
        f"<p class=lead>{escape(data['answer'])}</p>",
        f"<p><b>{escape(lack)}</b></p>" if (lack := missing(data["run"], study.unit)) else "",
        opening,
        _verdicts(study, verdicts),
        f"<h2>Pictures</h2>{''.join(others)}" if others else "",
        _static(static),
        *(_table(table, results) for table in study.tables),
        _run(study, data["run"], data["config"]),
        _queries(study, verdicts),
    ]
    return document(f"Roundscope: {study.paper or study.question}", "\n".join(body))


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
    rules = "".join(f"<p class=note>{escape(text)}</p>" for text in study.rules)
    if not verdicts:
        return rules
    caution = f"<p class=note>{escape(study.caution)}</p>" if study.caution else ""
    return f"<h2>Verdicts</h2>{caution}{verdict_table.html(verdicts, study.source)}{rules}"


def _static(static: Static) -> str:
    if not static.figures:
        return ""
    return f"<h2>{escape(static.title)}</h2>{''.join(figure(*each) for each in static.figures)}"


def _table(table: Table[R], results: R) -> str:
    lines = grid(list(table.heads), [list(row) for row in table.rows(results)])
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2>{lines}{note}"


def _run(study: Study[Any], run: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    lines = {
        "command": run["command"],
        study.unit: launched(run),
        "device": ", ".join(run["devices"]),
        **study.about,
        "config": " ".join(f"{name}={value}" for name, value in config.items()),
    }
    width = max(map(len, lines)) + 2
    text = "\n".join(f"{name:{width}}{line}" for name, line in lines.items() if line)
    title = "What was run, and what was not shown" if study.caveats else "What was run"
    caveats = f"<p>{escape(study.caveats)}</p>" if study.caveats else ""
    return f"<h2>{title}</h2>{caveats}<pre>{escape(text)}</pre>"


def _queries(study: Study[Any], verdicts: Sequence[Verdict]) -> str:
    """Return the SQL behind the numbers, in full; nothing where no verdict has any."""
    known = [v for v in verdicts if v.queries]
    if not known:
        return ""
    lines = (
        f"-- {v.figure}: {v.claim}; {v.case}; {v.sizes}\n" + ";\n".join(v.queries) + ";"
        for v in known
    )
    summary = f"<summary>SQL over {study.file or study.name}.sqlite</summary>"
    text = "\n\n".join(lines)
    shown = f"<details>{summary}<pre>{escape(text)}</pre></details>"
    return f"<h2>The queries behind the numbers</h2>{shown}"
