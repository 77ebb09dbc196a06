"""report.html: the picture that answers, one sentence, verdicts, the other pictures, every arm, what was run and what was not shown."""

from collections.abc import Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.report.wording import launched
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.verdicts import Verdict
from roundscope.experiments.studies.microscaling import claims_arms, claims_code, judging, pictures, pictures_epsilon, static, table
from roundscope.experiments.studies.microscaling.found import Found
from roundscope.experiments.studies.microscaling.scale import Scale
from roundscope.experiments.studies.microscaling.words import LEFT_OUT, QUESTION, missing
from roundscope.experiments.train.student.follow import RULE

OPENING = (
    "A dot per run and seed, from states that are the same to the bit. Blue rows outlive their shams and never diverged, green rows "
    "outlive them, red rows diverged before them; the others cannot be told from the shams. Dotted: where the run diverged at first."
)
PICTURES = (
    ("What averts the divergence?", pictures.opening, OPENING),
    ("At which rates does training fail?", pictures.formats, f"Runs that diverged of how many, and their median step. {RULE}"),
    ("How large is the gradient's error, and where does it come from?", pictures_epsilon.growth,
     "Left: every look before the divergence, a line per seed. Two trainings: the released code's epsilon, which has the distance of the "
     "two in it. Right: one event rounded and all others FP32, at the same states; a dot per seed, the median of its looks."),
    ("How does the loss run?", pictures.losses, "The largest loss of every 25 steps, a line per seed; grey: FP32 on the same rows."),
)  # fmt: skip


def html(found: Found, scale: Scale, verdicts: Sequence[Verdict], data: dict[str, Any]) -> str:
    """The whole page."""
    drawn = [(title, picture, caption) for title, draw, caption in PICTURES if (picture := draw(found, scale)) is not None]
    part = f"<p><b>{escape(missing(data['run']))}</b></p>" if missing(data["run"]) else ""
    lead = f"<h1>{escape(QUESTION)}</h1><p class=sub>arXiv 2506.20752, in its student and teacher.</p>"
    first, *others = (figure(*each) for each in drawn)
    body = f"{lead}<p class=lead>{escape(data['answer'])}</p>{part}{first}{_verdicts(verdicts)}<h2>Pictures</h2>{''.join(others)}"
    body += f"<h2>Every arm</h2>{grid(table.HEADS, table.rows(found))}"
    return document("Roundscope: arXiv 2506.20752", body + _run(scale, data))


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rules = "".join(f"<p class=note>{escape(text)}</p>" for text in (judging.RULES, claims_arms.RULES, claims_code.RULES, static.RULES))
    return f"<h2>Verdicts</h2>{verdict_table.html(verdicts)}{rules}"


def _run(scale: Scale, data: dict[str, Any]) -> str:
    run, c = data["run"], scale.base.config
    settings = [f"{s.name}: lr {' '.join(format(x, 'g') for x in s.rates)}" for s in scale.settings]
    text = "\n".join([
        f"command    {run['command']}",
        f"launches   {launched(run)}",
        f"device     {', '.join(run['devices'])}",
        f"student    {c.depth} layers, width {c.width}, {c.phi}, batch {c.batch}, {c.steps} steps, {len(scale.seeds)} seeds",
        f"settings   {'; '.join(settings)}",
        f"config     {' '.join(f'{k}={v}' for k, v in data['config'].items())}",
    ])  # fmt: skip
    return f"<h2>What was run, and what was not shown</h2><p>{escape(LEFT_OUT)}</p><pre>{escape(text)}</pre>"
