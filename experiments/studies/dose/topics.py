"""The studies of cases by name, and their page, their data and their words on the terminal."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.report.terminal import console
from roundscope.experiments.studies.dose import bias, conditions, identity, scaling
from roundscope.experiments.studies.dose.arms import NAMED
from roundscope.experiments.studies.dose.cases import HEADS, Found, Topic, named, points, rows
from roundscope.experiments.train.spikes import RULE

TOPICS = {"bias": bias, "scaling": scaling, "conditions": conditions, "identity": identity}


def topic(name: str, words: Sequence[str], *, quick: bool, seeds: tuple[int, ...] | None) -> Topic:
    """The study of that name. Raises UsageError naming the word and the repair."""
    module = TOPICS[named(name, tuple(TOPICS))]
    return (module.quick() if quick else module.full()).given(words, seeds)


def data(found: Found, about: dict[str, Any]) -> dict[str, Any]:
    """The study as plain data."""
    asked = found.topic
    config = {k: v for k, v in asdict(asked.config).items() if k not in NAMED}
    return {"question": asked.question, "answer": asked.answer(found), "cases": points(found), "config": config, "run": about}


def html(found: Found, told: dict[str, Any]) -> str:
    """The whole page."""
    asked, c = found.topic, found.topic.config
    model = (
        f"A byte-level GPT of {c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch {c.batch}: {asked.about}. "
        f"{len(asked.seeds)} seeds of weights and batches."
    )
    body = f"<h1>{escape(asked.question)}</h1><p class=lead>{escape(told['answer'])}</p><p>{escape(model)}</p>"
    body += figure(asked.question, asked.draw(found), f"{asked.caption} {RULE}") + f"<p>{escape(asked.notes)}</p>"
    body += f"<h2>Every case</h2>{grid(HEADS, rows(found))}<p class=note>mean [95 % t interval] over seeds, pairs of one seed</p>"
    run = told["run"]
    text = "\n".join([
        f"command    {run['command']}", f"launches   {run['launches']}, {run['ran']} of them run by the last command in {run['seconds']} s",
        f"device     {', '.join(run['devices'])}", f"config     {' '.join(f'{k}={v}' for k, v in told['config'].items())}",
    ])  # fmt: skip
    return document(asked.question, f"{body}<h2>What was run</h2><pre>{escape(text)}</pre>")


def show(found: Found, told: dict[str, Any], page: Path) -> None:
    """The answer, every case, and where the rest is."""
    from rich.table import Table

    screen = console()
    screen.print(told["answer"], markup=False)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    kept = [column for column in (1, 2, 4, 6) if any(line[column] for line in rows(found))]
    for column in kept:
        made.add_column(HEADS[column].replace("\n", " "))
    group = ""
    for line in rows(found):
        if line[0] != group:
            group = line[0]
            made.add_row(f"[bold]{group}[/bold]")
        made.add_row(*(line[column] for column in kept))
    screen.print(made)
    run = told["run"]
    screen.print(f"{run['ran']} of {run['launches']} launches run now, {run['seconds']:.0f} s", markup=False)
    print(f"written: {page}, {page.with_suffix('.json')}, {page.parent / 'dose.sqlite'}")
