"""report.html: one file that opens anywhere, without scripts or other files.

Pictures first, then numbers.
"""

from collections.abc import Callable
from html import escape
from typing import Any

from roundscope.experiments.report.page import document, figure, grid
from roundscope.experiments.trace.captions import pictures
from roundscope.experiments.trace.summary import Summary, share_of_rows
from roundscope.experiments.trace.table import (
    HEADS,
    cells,
    folded,
    legend,
    results,
    results_note,
    sizes,
)
from roundscope.experiments.trace.words import outward, plan_words, sentence, short

NULL = """The null: flip the signs of all errors of a row together, by a fair coin per row. Then
z = &Sigma;<sub>r</sub> s<sub>r</sub> / &radic;(&Sigma;<sub>r</sub> s<sub>r</sub>&sup2;), with
s<sub>r</sub> the row's sum of signed errors in ulps. Errors inside a row may depend on each
other in any way. Events that exceed it are run once more with one coin per distinct argument
(signed significand; of LSE, equal errors), since equal arguments round alike in every row; the
larger variance counts. &plusmn; is one standard error. Thresholds are set so that without any
bias each table or picture marks something once in a hundred times."""

EXACT = """<b>Exact.</b> The rounding of every event, from binary64, once; counts of inexact
events, ties, carries, overflow; the results, the same bits on every engine for plans without
native accumulators. The errors of single events (the difference of two neighbouring numbers
needs no rounding). <b>Not exact.</b> Sums of errors, means and deviations are binary64 sums.
<code>exp</code> and <code>log</code> enter an event in binary64, within 1 ulp of binary64, and
exp rounds correctly to binary32 and narrower. The golden value <code>exact</code> is binary64
throughout, not infinite precision. z and its threshold are statistics about these tensors; they
say nothing of other inputs."""


def html(
    summaries: list[Summary], data: dict[str, Any], progress: Callable[[str], None] = lambda _: None
) -> str:
    """The report of all layers; data: that of trace.json."""
    many = len(summaries) > 1
    parts = [_opening(summaries, data), _comparison_of_layers(summaries) if many else ""]
    for s in summaries:
        progress(f"{s.seen.layer.name}: pictures")
        parts.append(
            f"<h2>{escape(s.seen.layer.name)}</h2><p>{escape(sentence(s))}</p>" if many else ""
        )
        parts.append(_against(s))
        parts += [figure(title, picture, caption) for title, picture, caption in pictures(s)]
        parts.append(_table(s))
    parts += [
        f"<h2>How to read it</h2><p class=note>{NULL}</p><p class=note>{EXACT}</p>",
        _machine(data),
    ]
    body = "\n".join(p for p in parts if p)
    title = f"Roundscope: {data['plan']['name']}, {data['file']}"
    return document(title, body)


def _opening(summaries: list[Summary], data: dict[str, Any]) -> str:
    what = (
        f"{data['file']}, plan {plan_words(summaries[0].seen.request)}, against"
        f" {data['against']['name']}"
    )
    tile = (
        f"tiles {data['block_q']} x {data['block_k']}{', causal' if data['causal'] else ''}, engine"
        f" {data['engine']}"
    )
    many = len(summaries) > 1
    lead = _across(summaries) if many else sentence(summaries[0])
    lines = "<br>".join(
        f"<b>{escape(s.seen.layer.name)}</b>: {escape(short(s))}" for s in summaries
    )
    each = f"<p>{lines}</p>" if many else ""
    return (
        f"<h1>Which rounding events lean?</h1><p class=sub>{escape(what)}; {escape(tile)}.</p><p"
        f" class=lead>{escape(lead)}</p>{each}"
    )


def _across(summaries: list[Summary]) -> str:
    leaning = {e.name for s in summaries for e in s.leaning}
    some = sum(bool(s.leaning) for s in summaries)
    sites = sorted({n for s in summaries for n in outward(s)})
    zero = f" ({' '.join(sites)} lean away from zero or toward it in some)" if sites else ""
    events = f" ({' '.join(sorted(leaning))})" if leaning else ""
    drifting = [s.seen.layer.name for s in summaries if s.drift is not None and s.drift.leans]
    delta = (
        f"delta's error adds up in {len(drifting)} ({', '.join(drifting)})"
        if drifting
        else "delta's error adds up in none"
    )
    return (
        f"{some} of {len(summaries)} layers have an event that leans up or down{events}{zero};"
        f" {delta}."
    )


def _comparison_of_layers(summaries: list[Summary]) -> str:
    rows = []
    for s in summaries:
        some, of = share_of_rows(s)
        z = "-" if s.drift is None else f"{s.drift.z[s.drift.worst]:+.1f}"
        rms = f"{s.compared['out']['relative_rms']:.2e}"
        leaning = " ".join(e.name for e in s.leaning) or "-"
        rows.append(
            [
                s.seen.layer.name,
                leaning,
                " ".join(e.name for e in s.cleared) or "-",
                f"{some} / {of}",
                z,
                rms,
            ]
        )
    heads = [
        "layer",
        "lean",
        "shared arguments only",
        "rows with several P = 1",
        "delta, worst head z",
        "out, relative rms error",
    ]
    return grid(heads, rows)


def _table(s: Summary) -> str:
    rows = [cells(e, s.seen.layer.q.shape[0]) for e in s.rounding]
    notes = "".join(f"<p class=note>{escape(line)}</p>" for line in (*folded(s), legend(s)))
    return (
        "<h3>All events that"
        f" round</h3>{grid(list(HEADS), rows, [e.leans for e in s.rounding])}{notes}"
    )


def _against(s: Summary) -> str:
    names = ("max_abs", "rms", "mean", "relative_rms")
    gains = {name: f"{gain} {mark}" for name, *_, gain, mark in results(s)}
    rows = [
        [k, *(f"{v[n]:.3e}" for n in names), gains[k], str(v["not_finite"])]
        for k, v in s.compared.items()
    ]
    marked = [k in s.gains and s.gains[k].is_biased for k in s.compared]
    heads = ["result", "max |difference|", "rms", "mean", "rms / rms of it"]
    heads += ["too long (+), short (-), %", "not finite"]
    return (
        f"<h3>Results against {escape(s.seen.request.against.name)}, in"
        f" value</h3>{grid(heads, rows, marked)}<p class=note>{escape(sizes(s))};"
        f" {escape(results_note(s))}</p>"
    )


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
        lines += ["", f"{layer['name']}   scale {layer['scale']!r}   {layer['shape']}"]
        lines += [
            f"sha256 {k:6} {v}" for part in layer["digests"].values() for k, v in part.items()
        ]
    return f"<h2>What was run</h2><pre>{escape(chr(10).join(lines))}</pre>"
