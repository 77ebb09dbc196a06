"""The page: the picture that answers the question, the losses, the gradient's error, every arm, and how it was run."""

from collections.abc import Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.studies.proxy import pictures, table
from roundscope.experiments.studies.proxy.studies import Study
from roundscope.experiments.train.student.follow import RULE
from roundscope.experiments.train.student.results import Result

NOTES = (
    "Weights and Adam's moments are FP32 in every arm; arms of one seed have the same first weights, teacher and rows. zeta and cosine "
    "compare two gradients at the same weights and rows, so that the distance of two trainings is not in them. gamma last and distinct: in "
    "the format of the activations, how many of LayerNorm's scales become the largest element, and how many different numbers a block of "
    "32 keeps. Medians over the run before it diverged, then over seeds."
)


def html(asked: Study, results: Sequence[Result], data: dict[str, Any]) -> str:
    """The whole page."""
    c = asked.config
    model = (
        f"A residual MLP of {c.depth} layers, width {c.width}, hidden {c.hidden}, {c.phi}{', LayerNorm' if c.norm else ', no LayerNorm'}, "
        f"learns a teacher of the same shape without LayerNorm; {c.batch} fresh rows a step, lr {c.lr:g}, noise {c.noise:g}; "
        f"{len(asked.seeds)} seeds of weights, teacher and rows."
    )
    body = f"<h1>{escape(data['question'])}</h1><p class=lead>{escape(data['answer'])}</p>"
    body += figure("When does each run diverge?", pictures.outcomes(results), f"A dot for each seed. {RULE}") + f"<p>{escape(model)}</p>"
    caption = "The largest loss of every 25 steps, a line for each seed; grey: FP32. Dotted: divergence."
    body += figure("How does the loss run?", pictures.losses(results), caption)
    errors, sites = pictures.errors(results), pictures.sites(results)
    if errors is not None:
        body += figure("How wrong is the gradient?", errors, "Against FP32's at the same weights and rows; median of the seeds.")
    if sites is not None:
        body += figure("Which event makes the error?", sites, "One event rounded as in the arm, all others FP32.")
    body += f"<h2>Every arm</h2>{grid(table.HEADS, table.rows(results))}<p class=note>{escape(NOTES)}</p>"
    run = data["run"]
    text = "\n".join([
        f"command    {run['command']}",
        f"runs       {run['runs']}, {run['ran']} of them computed by the last command in {run['seconds']} s",
        f"device     {', '.join(run['devices'])}", f"config     {' '.join(f'{k}={v}' for k, v in data['config'].items())}",
    ])  # fmt: skip
    return document(data["question"], f"{body}<h2>What was run</h2><pre>{escape(text)}</pre>")
