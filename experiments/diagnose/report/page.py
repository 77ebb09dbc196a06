"""report.html of a diagnosis: the verdict, the steps in order, its evidence, what was not shown, what was run."""

from html import escape
from typing import Any

from roundscope.experiments.diagnose.report import words
from roundscope.experiments.diagnose.report.steps_run import Step
from roundscope.experiments.diagnose.tensors.findings import Findings
from roundscope.experiments.report.page import document, figure, grid

HOW = """Exact: every rounding event of plan and repairs; delta's error up to binary64 sums. The accounts of step 5 replace exact numbers
by the plan's from the front to the back, so they add up; a part depends on that order where several errors meet. p, intervals and A are
statistics over tokens. A head is biased if p is below 0.01 divided by the heads looked at; the other rules stand in the table's evidence
and in experiments/diagnose/tensors/verdict.py."""
GLOSSARY = {
    "delta": "rowsum dO O, which the backward of attention subtracts from dP; its error reaches dQ times P K",
    "atom": "X[T] (P K)[T], the matrix by which token T's error of delta moves the gradient of W_Q",
    "carrier": "a direction that the atoms of many tokens share, along which their errors can add up",
    "coherence, A": "|sum| / sqrt(sum of squares) of delta's error over tokens: about 1 for random signs",
    "rows of dS": "they sum to 0 in exact arithmetic; what rounding leaves of that sum, in parts of the gradient of W_Q",
    "several P = 1": "a key tile in which a row has its largest score more than once: sums of V then meet ties",
    "sticky": "a small rest beside a sum that ties, which decides to which side it rounds",
    "production order": "FlashAttention-2's roundings (fa2-bf16) with this plan's formats of inputs and P",
    "sham": "a change as large as a repair's, but without its aim: what it cures was no cure",
    "low alone": "the events found round as in the run while all others are exact",
}


def html(found: Findings, steps: list[Step], data: dict[str, Any]) -> str:
    """The whole page."""
    sub = f"{found.file}, plan {found.layer.request.plan.name}{', causal' if found.layer.request.causal else ''}, against exact arithmetic"
    sub += "; steps 1 and 2 replay a training run, which tensors have not" if found.run is None else ""
    title = "Does rounding add up here, and why?" if found.run is None else "Why did this run fail, and is it rounding?"
    parts = [f"<h1>{title}</h1><p class=sub>{escape(sub)}.</p><p class=lead>{escape(words.headline(found))}</p>"]
    parts += [section(s) for s in steps]
    parts += [_verdict(found), f"<h2>How to read it</h2><p class=note>{HOW}</p>{_glossary()}", _machine(data)]
    return document(f"Roundscope: diagnosis of {found.file}", "\n".join(parts))


def _glossary() -> str:
    rows = "".join(f"<li><b>{escape(name)}</b>: {escape(words)}." for name, words in GLOSSARY.items())
    return f"<h3>Words</h3><ul>{rows}</ul>"


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
