"""report.html: the picture that answers, one sentence, the verdicts, the other pictures, what was run."""

from collections.abc import Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.report.wording import launched
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.verdicts import Verdict
from roundscope.experiments.studies.mxfp8 import pictures, table
from roundscope.experiments.studies.mxfp8.arms import WORDS
from roundscope.experiments.studies.mxfp8.claims import RULES
from roundscope.experiments.studies.mxfp8.results import Results
from roundscope.experiments.studies.mxfp8.scale import Scale
from roundscope.experiments.studies.mxfp8.words import QUESTION
from roundscope.experiments.train.spikes import RULE
from roundscope.experiments.train.student.follow import RULE as PROXY_RULE

LEFT_OUT = (
    "Not shown: the paper's 8 B and 16 B models and its trillions of tokens, native MXFP8 products, MMLU. The paper's text was not at "
    "hand: its claims are those of its abstracts and of notes that quote it. Tests check the scale rules against public oracles."
)
AUDIT = (
    "Operands of the BF16 runs' steps: X and X_W the activations as operands of x W and of x^T g, W and W_X the weights, G_X and G_W the "
    "gradients, blocked along the axis that the product sums over. Below 0, numbers shrink."
)


def html(r: Results, scale: Scale, verdicts: Sequence[Verdict], data: dict[str, Any]) -> str:
    """The whole page."""
    first = figure("What do scale, format and layers cost the GPT?", pictures.opening(r, scale),
                   f"A dot for each seed, the mean and its 95 % interval. {RULE}")  # fmt: skip
    others = (
        ("What do they cost the proxy?", pictures.proxy(r), f"A student that learns a teacher, arXiv 2506.20752. {PROXY_RULE}"),
        ("How wrong is the proxy's gradient at one state?", pictures.epsilon(r),
         "Against FP32's at the same weights and rows; medians over each run before it diverged."),
        ("What do rules and formats do to the operands?", pictures.audit(r), AUDIT),
        ("How far are the two copies of a tensor apart?", pictures.copies(r),
         "A scale is a power of two, so both copies round alike except where one is clipped or below the element's normal range."),
    )  # fmt: skip
    lead = f"<h1>{escape(QUESTION)}</h1><p class=sub>arXiv 2506.08027, on small models.</p><p class=lead>{escape(data['answer'])}</p>"
    arms = f"<h2>Every arm</h2>{grid(table.HEADS, table.rows(r))}"
    body = [lead, first, _verdicts(verdicts), "<h2>Pictures</h2>", *(figure(*each) for each in others), arms, _run(scale, data)]
    return document("Roundscope: arXiv 2506.08027", "\n".join(body))


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    names = "<br>".join(f"<b>{escape(name)}</b> {escape(words)}" for name, words in WORDS.items())
    return f"<h2>Verdicts</h2>{verdict_table.html(verdicts, 'source')}<p class=note>{escape(RULES)}</p><p class=note>{names}</p>"


def _run(scale: Scale, data: dict[str, Any]) -> str:
    run, g, p = data["run"], scale.gpt, scale.proxy
    text = "\n".join([
        f"command    {run['command']}",
        f"launches   {launched(run)}",
        f"device     {', '.join(run['devices'])}",
        f"GPT        {g.layers} layers, width {g.width}, {g.heads} heads, context {g.context}, batch {g.batch}, {g.steps} steps, bytes of "
        f"{g.data}, cosine to a tenth after {g.warmup} steps of warm-up, {len(scale.seeds)} seeds",
        f"proxy      {p.depth} layers, width {p.width}, batch {p.batch}, {p.steps} steps, {p.phi}, {len(scale.proxy_seeds)} seeds",
        f"audit      steps {' '.join(map(str, scale.audited))} of the BF16 runs, all layers and matrices",
    ])  # fmt: skip
    return f"<h2>What was run, and what was not shown</h2><p>{escape(LEFT_OUT)}</p><pre>{escape(text)}</pre>"
