"""report.html of a diagnosis: the verdict, the steps in order, its evidence, what was not shown, what was run."""

from html import escape
from typing import Any

from roundscope.experiments.diagnose.report import words
from roundscope.experiments.diagnose.report.steps_run import Step
from roundscope.experiments.diagnose.tensors.findings import Findings
from roundscope.experiments.report.page import document, figure, grid

HOW = """Exact: every rounding event of plan and repairs; delta's error up to binary64 sums. The accounts of step 5 replace exact numbers
by the plan's from the front to the back, so they add up; a part depends on that order where several errors meet. p, intervals and A are
statistics over tokens. A head leans if p is below 0.01 divided by the heads looked at; the other rules stand in the table's evidence and in
experiments/diagnose/verdict.py."""


def html(found: Findings, steps: list[Step], data: dict[str, Any]) -> str:
    """The whole page."""
    sub = f"{found.file}, plan {found.layer.request.plan.name}{', causal' if found.layer.request.causal else ''}, against exact arithmetic"
    title = "Does rounding add up here, and why?" if found.run is None else "Why did this run fail, and is it rounding?"
    parts = [f"<h1>{title}</h1><p class=sub>{escape(sub)}.</p><p class=lead>{escape(words.headline(found))}</p>"]
    parts += [section(s) for s in steps]
    parts += [_verdict(found), f"<h2>How to read it</h2><p class=note>{HOW}</p>", _machine(data)]
    return document(f"Roundscope: diagnosis of {found.file}", "\n".join(parts))


def section(s: Step) -> str:
    """One step: its answer, pictures, tables."""
    images = "".join(figure(*p) for p in s.pictures)
    tables = "".join(grid(*t) for t in s.tables)
    return f"<h2>{s.number}. {escape(s.title)}</h2><p>{escape(s.sentence)}</p>{images}{tables}"


def _verdict(found: Findings) -> str:
    links = "".join(
        f"<li><b>{escape(x.name)}: {'holds' if x.holds else 'does not hold'}</b>. {escape(x.evidence)}." for x in words.links(found)
    )
    unseen = "".join(f"<li>{escape(line)}" for line in words.not_shown(found))
    return (
        f"<h2>Verdict: {escape(words.kind(found))}</h2><p>{escape(words.headline(found))}</p>"
        f"<h3>Evidence</h3><ul>{links}</ul><h3>Not shown</h3><ul>{unseen}</ul>"
    )


def _machine(data: dict[str, Any]) -> str:
    lines = [f"command    {' '.join(data['command'])}", f"versions   {' '.join(f'{k} {v}' for k, v in data['versions'].items())}",
             f"platform   {data['platform']}", f"seconds    {data['seconds']:.1f}"]  # fmt: skip
    lines += [f"sha256     {name} {role} {digest}" for name, roles in data["digests"].items() for role, digest in roles.items()]
    return f"<h2>What was run</h2><pre>{escape(chr(10).join(lines))}</pre>"
