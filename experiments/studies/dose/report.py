"""The report: the answer, the pictures, verdicts, every point, and how it was run."""

from collections.abc import Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.studies.dose import pictures, table
from roundscope.experiments.studies.dose.claims import RULES
from roundscope.experiments.studies.dose.results import Results
from roundscope.experiments.studies.dose.scale import Scale
from roundscope.experiments.studies.dose.words import LEFT_OUT, QUESTION, others
from roundscope.experiments.studies.framework.verdicts import Verdict, Word
from roundscope.experiments.train.spikes import RULE

CAPTIONS = {
    "How many steps does training survive?": "Dots: seeds; marker: their median, hollow where it is not reached; bar: smallest to largest "
    "(holds the median with 94 % for 5 seeds). An arrow: runs that ended without divergence, all of them or as many as its number. " + RULE,
    "What loss is left?": "Mean of the last 50 losses; line: median of the seeds. Grey: the range of the exact arms, FP32 throughout, with "
    "the same weights and batches. A cross at the top edge: some loss is not finite.",
    "What grows first?": "The largest spectral norm of a head's query matrix at the fewest bits, a line for each seed; a cross marks "
    "divergence. Grey: exact arms.",
}


def html(r: Results, scale: Scale, verdicts: Sequence[Verdict], data: dict[str, Any]) -> str:
    """The whole page."""
    c = scale.config
    model = (
        f"A byte-level GPT of {c.layers} layers, width {c.width}, {c.heads} heads, context {c.context}, batch {c.batch}, on "
        f"{c.data if c.data != 'stdlib' else 'the sources of Python'}. All is FP32 but one event of attention, which rounds to p "
        f"significand bits with the exponents of BF16; {len(scale.seeds)} seeds of weights and batches."
    )
    lead = "".join(f"<p>{escape(text)}</p>" for text in (others(r), model) if text)
    drawn = "".join(figure(title, draw(r), CAPTIONS[title]) for title, draw in pictures.PICTURES)
    body = f"<h1>{escape(QUESTION)}</h1><p class=lead>{escape(data['answer'])}</p>{lead}{drawn}"
    points = f"<h2>Every point</h2>{grid(table.HEADS, table.rows(r))}<p class=note>mean [95 % t interval] over seeds, pairs of one seed</p>"
    return document(QUESTION, body + _verdicts(verdicts) + points + _run(scale, data))


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    colours = {Word.AGREES: "#00704e", Word.CONTRADICTS: "#b2182b"}
    head = "".join(f"<th style='text-align:left'>{name}" for name in ("statement of the probe", "case", "measured", "verdict"))
    left = "style='text-align:left;white-space:normal;vertical-align:top'"
    lines = ""
    for v in verdicts:
        note = f"<br><i>{escape(v.note)}</i>" if v.note else ""
        cells = (
            escape(v.claim),
            escape(v.case),
            escape(v.measured) + note,
            f"<b style='color:{colours.get(v.word, '#52606d')}'>{v.word}</b>",
        )
        lines += "<tr>" + "".join(f"<td {left}>{text}" for text in cells)
    sizes = escape(verdicts[0].sizes) if verdicts and verdicts[0].sizes else ""
    note = f"{sizes}. {escape(RULES)}" if sizes else escape(RULES)
    return f"<h2>Verdicts</h2><div class=wide><table><tr>{head}{lines}</table></div><p class=note>{note}</p>"


def _run(scale: Scale, data: dict[str, Any]) -> str:
    run = data["run"]
    text = "\n".join([
        f"command    {run['command']}",
        f"launches   {run['launches']}, {run['ran']} of them run by the last command in {run['seconds']} s",
        f"device     {', '.join(run['devices'])}", f"config     {' '.join(f'{k}={v}' for k, v in data['config'].items())}",
    ])  # fmt: skip
    return f"<h2>What was run, and what was not</h2><p>{escape(LEFT_OUT)}</p><pre>{escape(text)}</pre>"
