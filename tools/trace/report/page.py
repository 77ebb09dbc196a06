"""report.html of a trace: one file that opens anywhere and needs no other.

It answers in this order: how exact are the results, which event is to blame, what would help, and
then what every event did.
"""

import math
import shlex
from collections.abc import Callable
from html import escape
from typing import Any

from roundscope.attention.budget.table import ErrorBudget
from roundscope.tools.report.page import CONTENTS, document, figure, folded, grid
from roundscope.tools.report.page import verdict as opening
from roundscope.tools.trace.costs import cost, visible
from roundscope.tools.trace.report import table as events
from roundscope.tools.trace.report import terminal
from roundscope.tools.trace.report.captions import budget_picture, mechanisms, pictures
from roundscope.tools.trace.report.explanations import EXACT, HOW, NULL
from roundscope.tools.trace.report.filters import SCRIPT, controls
from roundscope.tools.trace.report.words import plan_words, sentence
from roundscope.tools.trace.results import Result
from roundscope.tools.trace.summary import Summary
from roundscope.tools.trace.verdict import percent, verdict

PICTURED = 16  # layers of which a page has pictures, at most
Progress = Callable[[str], None]


def html(
    summaries: list[Summary], data: dict[str, Any], progress: Progress = lambda _: None
) -> str:
    """Return the report of all layers as HTML.

    data: that of trace.json, with the command; progress: called with what is drawn now.
    """
    worst, many = min(summaries, key=_exactness), len(summaries) > 1
    pictured = least_exact(summaries)
    parts = [_top(summaries, worst, data)]
    parts.append(folded("How to read this page", f"{HOW}<p class=note>{NULL}</p>"))
    if many:
        parts.append(f"<h2>The layers</h2>{_layers(summaries)}")
    parts.append(controls([s.layer.name for s in summaries], _heads(worst)))
    parts += [CONTENTS] if many else []
    for s in summaries:
        is_pictured = s.layer.name in pictured
        name = escape(s.layer.name, quote=True)
        title = f"<h2>{name}</h2><p>{escape(verdict(s).text)}</p>" if many else ""
        if is_pictured:
            progress(f"{s.layer.name}: pictures")
        else:
            one = escape(f"{data['next']} --layer {shlex.quote(s.layer.name)}")
            title += (
                f"<p class=note>Drawn are the {PICTURED} least exact layers. Pictures of this one:"
                f" <code>{one}</code></p>"
            )
        parts.append(f"<section data-layer='{name}'>{title}{_layer(s, is_pictured)}</section>")
    parts += [folded("What is exact on this page, and what is not", f"<p class=note>{EXACT}</p>")]
    parts += [folded("What was run", _machine(data)), SCRIPT]
    title = f"Roundscope: {data['plan']['name']}, {data['file']}"
    return document(title, "\n".join(p for p in parts if p))


def least_exact(summaries: list[Summary]) -> set[str]:
    """Return the names of the layers of which a page has pictures, which take most of its time."""
    return {s.layer.name for s in sorted(summaries, key=_exactness)[:PICTURED]}


def _exactness(s: Summary) -> tuple[bool, float]:
    """Return what layers are sorted by, the least exact first."""
    return s.not_finite is None, -s.results[0].error


def _heads(s: Summary) -> int:
    return int(s.layer.q.shape[2])


def _top(summaries: list[Summary], worst: Summary, data: dict[str, Any]) -> str:
    """Return the title, what was traced, and the verdict on the layer that is least exact."""
    request, layer = worst.request, worst.layer
    what = (
        f"{data['file']}: {plan_words(request)}, against {data['against']['name']}, tiles of"
        f" {data['block_q']} x {data['block_k']}{events.call_words(request, layer)},"
        f" engine {data['engine']}."
    )
    v = verdict(worst)
    first = v.accuracy
    if len(summaries) > 1:
        first = f"{layer.name} is the least exact of {len(summaries)} layers. {first}"
    is_bad = any(s.biased_results or s.not_finite is not None for s in summaries)
    mood = "bad" if is_bad else "good"
    step = f"{data['next']} {v.step}" if v.step else ""
    more = " ".join(x for x in (v.bias, v.causes) if x)
    return (
        "<h1>How exact is this attention, and which rounding is to blame?</h1>"
        f"<p class=sub>{escape(what)} {escape('; '.join((events.sizes(worst), *layer.notes)))}.</p>"
        + opening(first, more, step, why=f"Next, to see how {v.buys}", mood=mood)
    )


def _layers(summaries: list[Summary]) -> str:
    """Return the table of the layers: errors, biased results, the event that makes most."""
    names = [r.name for r in summaries[0].results if r.gain is not None]
    rows = []
    for s in summaries:
        budget, by_name = s.budget, {r.name: r for r in s.results}
        errors = [f"{by_name[n].error:.2e}" if n in by_name else "" for n in names]
        most = _largest(budget)
        biased = " ".join(r.name for r in s.biased_results) or "-"
        rows.append([s.layer.name, *errors, biased, most, _biased_events(s)])
    heads = ["layer", *(f"{n}:\nrms error" for n in names)]
    heads += ["biased\nresults", "largest part\nof out", "biased events"]
    marked = [bool(s.biased_results) or s.not_finite is not None for s in summaries]
    return grid(heads, rows, marked)


def _largest(budget: ErrorBudget | None) -> str:
    """Return the event that makes most of the output's error, or "-" if there is none."""
    try:
        return "-" if budget is None else budget.largest("out").part.name
    except ValueError:
        return "-"


def _biased_events(s: Summary) -> str:
    return " ".join(e.name for e in s.biased_events) or "-"


def _layer(s: Summary, is_pictured: bool) -> str:
    """Return the sections of one layer."""
    parts = [f"<h3>Results</h3>{_results(s)}"]
    if s.budget is not None and s.budget.lines:
        if is_pictured:
            parts.append(figure(*budget_picture(s, visible(s.budget))))
        parts.append(_budget(s))
    parts.append(f"<h3>What every rounding event did</h3><p>{escape(sentence(s))}</p>")
    fire, quiet = mechanisms(s)
    if is_pictured:
        parts += [figure(*p) for p in (*pictures(s), *fire)]
    parts.append(folded("All events that round, with their formulas", _events(s)))
    parts.append(folded("Errors of every head", _by_head(s)))
    words = "".join(f"<p class=note>{escape(text)}</p>" for text in quiet)
    if quiet:
        parts.append(folded("Published mechanisms of failure that do not show here", words))
    return "".join(parts)


def _results(s: Summary) -> str:
    rows = [terminal.result_cells(r, s) for r in s.results]
    note = escape(terminal.results_note(s))
    marked = [r.is_biased or not r.is_known for r in s.results]
    return f"{grid(terminal.result_heads(s), rows, marked)}<p class=note>{note}</p>"


def _budget(s: Summary) -> str:
    """Return the tables of the error budget: shares, what promotion buys and what it costs."""
    budget = s.budget
    assert budget is not None
    names, rows = list(budget.total), []
    for line in budget.lines:
        left = line.without
        shares = [budget.share_words(line, n) for n in names]
        errors = [_left(left[n], budget.total[n]) if left else "" for n in names]
        rows.append([line.part.name, line.part.how, *shares, *errors])
    left_over = [budget.interaction_words(n) for n in names]
    rows.append(["interaction", "", *left_over, *("" for _ in names)])
    whole = [math.isfinite(budget.total[n]) for n in names]
    rows.append(
        ["all", "", *("100.0" if x else "inf" for x in whole), *("100" if x else "" for x in whole)]
    )
    heads = ["event", "rounds to", *(f"{n}\n%" for n in names)]
    heads += [f"{n} left\nwithout it, %" for n in names]
    note = escape(terminal.budget_method(s))
    return f"{grid(heads, rows)}<p class=note>{note}</p>{_promotions(s)}"


def _left(error: float, total: float) -> str:
    """Return an error in percent of the whole one; of an infinite one, the error itself."""
    if not math.isfinite(total):
        return f"{error:.1e}"
    return f"{100 * error / total:.0f}" if total else "0"


def _promotions(s: Summary) -> str:
    """Return the table of what more bits for an event would buy and cost."""
    budget, plan = s.budget, s.request.plan
    assert budget is not None
    rows = [
        [
            line.part.name,
            line.part.formula,
            terminal.helps(budget, line),
            cost(plan, line.part, s.layer),
        ]
        for line in visible(budget)
        if line.part.places
    ]
    heads = ["event", "formula", "more bits would buy", "and would cost a kernel on an H100"]
    table = grid(heads, rows).replace("<table>", "<table class=words>")
    note = "Rates are NVIDIA's of dense products on an H100 SXM; sizes are those of all heads."
    return f"<h3>What more bits would buy, and cost</h3>{table}<p class=note>{note}</p>"


def _events(s: Summary) -> str:
    formulas = [events.formula(e.name) for e in s.rounding]
    rows = [
        [*events.cells(e, s.layer.q.shape[0]), text]
        for e, text in zip(s.rounding, formulas, strict=True)
    ]
    lines = (*events.folded(s), events.legend(s))
    notes = "".join(f"<p class=note>{escape(line)}</p>" for line in lines)
    return f"{grid([*events.HEADS, 'formula'], rows, [e.is_biased for e in s.rounding])}{notes}"


def _by_head(s: Summary) -> str:
    """Return the table of the relative rms errors of each head, which the filter of heads cuts."""
    shown: list[Result] = [r for r in s.results if r.heads.shape == s.results[0].heads.shape]
    batch, heads = s.results[0].heads.shape
    rows = [
        [f"{n}", f"{b}", *(percent(float(r.heads[b, n])) for r in shown)]
        for b in range(batch)
        for n in range(heads)
    ]
    table = grid(["head", "batch", *(r.name for r in shown)], rows)
    keys = [r.name for r in s.results if r not in shown]
    more = f"<p class=note>{' and '.join(keys)} belong to key heads.</p>" if keys else ""
    return f"<div class=heads>{table}</div>{more}"


def _machine(data: dict[str, Any]) -> str:
    plan = data["plan"]
    lines = [
        f"command    {' '.join(data['command'])}",
        f"versions   {' '.join(f'{k} {v}' for k, v in data['versions'].items())}",
        f"platform   {data['platform']}",
        f"seed       {data['seed']}",
        "",
        *(f"{k:10} {v}" for k, v in plan.items() if not isinstance(v, dict)),
        f"roundings  {' '.join(f'{k}={v}' for k, v in plan['roundings'].items())}",
        f"sums       {'; '.join(f'{k}: {v}' for k, v in plan['accumulators'].items())}",
    ]
    for layer in data["layers"]:
        sizes = " ".join(f"{k}={v}" for k, v in layer["shape"].items())
        lines += ["", f"{layer['name']}   scale {layer['scale']!r}   {sizes}"]
        lines += [
            f"sha256 {k:6} {v}" for part in layer["digests"].values() for k, v in part.items()
        ]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
