"""report.html: the picture that answers, one sentence, verdicts, the other pictures, every row, what was run and what was not shown."""

from collections.abc import Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.report.wording import launched
from roundscope.experiments.studies.failure import claims, claims_controls, pictures, pictures_rest, table
from roundscope.experiments.studies.failure.results import Results
from roundscope.experiments.studies.failure.scale import Scale
from roundscope.experiments.studies.failure.words import LEFT_OUT, QUESTION, missing
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.verdicts import Verdict
from roundscope.experiments.train.spikes import RULE

PICTURES = (
    ("Do rows of dS that do not sum to zero foretell the divergence?", pictures_rest.drifts,
     "Each dot is a run, looked at in the steps after the warm-up, before anything has diverged. R = alpha sum_t r[t] X[t]^T (PK)[t] is "
     "what the sums r of the rows of dS put into the gradient of W_Q; in exact arithmetic it is 0."),
    ("What grows first?", pictures.norms, "The largest spectral norm of a head's query matrix, a line for each seed."),
    ("Which rounding of O, and does the rest matter?", pictures_rest.factorial,
     "O is rounded before its normalisation (PV, AO, O), after (OUT), or both; S, SCALED, X (scores) and M, DM, L in BF16 or FP32."),
    ("Does one head decide?", pictures.places, "Case A. Left: the O path is low in one head and FP32 in all others. Right: the reverse."),
)  # fmt: skip


def html(r: Results, scale: Scale, verdicts: Sequence[Verdict], static: Sequence[Any], data: dict[str, Any]) -> str:
    """The whole page; static: (question, picture, caption) of what needs no training."""
    opening = figure("Which runs diverged?", pictures.opening(r, scale), f"Runs that diverged of how many, and their median step. {RULE}")
    lead = f"<h1>{escape(QUESTION)}</h1><p class=sub>arXiv 2510.04212, its ablation table in small trainings.</p>"
    part = f"<p><b>{escape(missing(data['run']))}</b></p>" if missing(data["run"]) else ""
    body = f"{lead}<p class=lead>{escape(data['answer'])}</p>{part}{opening}{_verdicts(verdicts)}<h2>Pictures</h2>{_pictures(r, scale)}"
    rows = f"<h2>Every row</h2>{grid(table.HEADS, table.rows(r, scale))}<p class=note>Medians over seeds; loss: mean [95 %] of runs that did not diverge, against FP32 of the same seed and length.</p>"  # noqa: E501
    still = "".join(figure(*each) for each in static)
    alone = f"<h2>Without training: bits, ties, the clamp</h2>{still}" if static else ""
    return document("Roundscope: arXiv 2510.04212", body + alone + rows + _run(scale, data))


def _pictures(r: Results, scale: Scale) -> str:
    drawn = ((title, draw(r, scale), caption) for title, draw, caption in PICTURES)
    return "".join(figure(title, picture, caption) for title, picture, caption in drawn if picture is not None)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rules = f"<p class=note>{escape(claims.RULES)}</p><p class=note>{escape(claims_controls.RULES)}</p>"
    return f"<h2>Verdicts</h2>{verdict_table.html(verdicts)}{rules}"


def _run(scale: Scale, data: dict[str, Any]) -> str:
    run, c = data["run"], scale.config
    text = "\n".join([
        f"command    {run['command']}",
        f"launches   {launched(run)}",
        f"device     {', '.join(run['devices'])}",
        f"model      {c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch {c.batch}, byte-level, {c.data}",
        f"training   rate {scale.rate:g} after {c.warmup} steps of warm-up, {scale.steps} steps, seeds {len(scale.seeds)}; "
        f"layers, heads and factorial {scale.short} steps, seeds {len(scale.few)}",
        f"config     {' '.join(f'{k}={v}' for k, v in data['config'].items())}",
    ])  # fmt: skip
    return f"<h2>What was run, and what was not shown</h2><p>{escape(LEFT_OUT)}</p><pre>{escape(text)}</pre>"
