"""report.html: the picture that answers, one sentence, the verdicts, all pictures, what was run."""

from collections.abc import Sequence
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.studies.framework import verdict_table
from roundscope.experiments.studies.framework.estimates import factor, ratio
from roundscope.experiments.studies.framework.verdicts import Verdict, interval
from roundscope.experiments.studies.stability import pictures, pictures_drift, pictures_tiles
from roundscope.experiments.studies.stability.conditions import EVENTS, GROUPS, narrow
from roundscope.experiments.studies.stability.pictures_tiles import EXACT
from roundscope.experiments.studies.stability.results import Results
from roundscope.experiments.studies.stability.scale import Scale
from roundscope.experiments.studies.stability.table import CAUTION
from roundscope.experiments.studies.stability.words import EMULATIONS, QUESTION

RULES = """A verdict compares a 95 % t interval over seeds with what the claim says: 'agrees' if the whole interval is there, 'contradicts'
if none of it is, 'undecided' otherwise, 'depends' if the claim holds under some conditions that the paper does not state and fails under
others. 'About 10 times' is 5 to 20; 'larger' and 'smaller' are by 5 % or more; 'grows' and 'falls' are exponents beyond 0.05. Ratios pair
seeds, and their means are geometric. Intervals are not widened for the number of claims."""


def html(r: Results, scale: Scale, studies: dict[str, Any], verdicts: Sequence[Verdict], data: dict[str, Any]) -> str:
    """The report."""
    first, *others = (
        draw(r, scale)
        for draw in (pictures.opening, pictures.formats, pictures.lengths, pictures_tiles.shape, pictures_tiles.controls,
                     pictures_tiles.attribution, pictures_tiles.bias, pictures_drift.drift)
    )  # fmt: skip
    body = [
        f"<h1>{escape(QUESTION)}</h1><p class=sub>arXiv 2405.02803, reproduced in emulation.</p><p class=lead>{escape(data['answer'])}</p>",
        figure(*first), _verdicts(verdicts), "<h2>Pictures</h2>", *(figure(*other) for other in others), _events(r, scale),
        _run(r, scale, studies, data), _queries(verdicts),
    ]  # fmt: skip
    return document("Roundscope: arXiv 2405.02803", "\n".join(body))


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    names = "<br>".join(f"<b>{escape(name)}</b> {escape(words)}" for name, words in EMULATIONS.items())
    return (
        f"<h2>Verdicts</h2><p class=note>{escape(CAUTION)}</p>{verdict_table.html(verdicts, 'figure')}"
        f"<p class=note>{escape(RULES)}</p><p class=note>{names}</p>"
    )  # fmt: skip


def _events(r: Results, scale: Scale) -> str:
    """The table of attribution: which event makes the difference between tiled and unfused."""
    heads = ["event", "input", "alone: tiled,\nrms / rms of output", "alone:\ntiled / unfused", "left out:\nrms / rms with all"]
    rows = []
    for family in ("gaussian", "sink"):
        base = r.values(narrow(scale, family), "rms")
        for site in (*EVENTS, *GROUPS):
            only, but = narrow(scale, family, only=site), narrow(scale, family, but=site)
            alone, costs = factor(r.values(only, "rel_rms")), ratio(r.values(only, "rms"), r.values(only, "unfused_rms"))
            left = interval(ratio(r.values(but, "rms"), base))
            exact, tiled_only = not alone.mean > EXACT, costs.mean > 1e6
            shown = "-" if exact else "tiled only" if tiled_only else interval(costs, "x")
            rows.append([site, family, "exact" if exact else f"{alone.mean:.2e}", shown, left])
    return f"<h3>Every event alone, and left out</h3>{grid(heads, rows)}"


def _run(r: Results, scale: Scale, studies: dict[str, Any], data: dict[str, Any]) -> str:
    rows = [[name, str(len(cells)), _span(cells, "T"), _span(cells, "N"), _span(cells, "block_k"),
             str(len({cell["seed"] for cell in cells}))] for name, cells in studies.items()]  # fmt: skip
    measured = [row for by_seed in r.cells.values() for row in by_seed.values()]
    devices, versions = sorted({row["device"] for row in measured}), measured[0]["versions"] if measured else {}
    engine = next((cell["engine"] for cells in studies.values() for cell in cells), "")
    t = scale.training
    text = "\n".join([
        f"command    roundscope reproduce golden{' --quick' if scale.name == 'quick' else ''} --engine {engine}",
        f"cells      {len(measured)} in golden.sqlite, {data['run']['failed']} failed; golden value: unfused attention in binary64",
        f"trainings  {'; '.join(t.versions)}: each with {t.seeds} seeds, on {', '.join(data['run']['trained_on'])}",
        f"device     {', '.join(devices)}", f"versions   {' '.join(f'{k} {v}' for k, v in versions.items())}",
    ])  # fmt: skip
    table = grid(["study", "cells", "T", "N", "keys per tile", "seeds"], rows)
    return f"<h2>What was run</h2>{table}<pre>{escape(text)}</pre>"


def _span(cells: Sequence[Any], axis: str) -> str:
    values = sorted({int(cell[axis]) for cell in cells})
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _queries(verdicts: Sequence[Verdict]) -> str:
    """The SQL behind the numbers, in full."""
    text = "\n\n".join(f"-- {v.figure}: {v.claim}; {v.case}; {v.sizes}\n" + ";\n".join(v.queries) + ";" for v in verdicts if v.queries)
    return f"<h2>The queries behind the numbers</h2><details><summary>SQL over golden.sqlite</summary><pre>{escape(text)}</pre></details>"
