"""report.html of a trace: one file that opens anywhere, without scripts or other files.

The pictures come first, then the numbers.
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

NULL = """The null hypothesis: flip the signs of all errors of a row together, by a fair coin per
row. Then z = &Sigma;<sub>r</sub> s<sub>r</sub> / &radic;(&Sigma;<sub>r</sub>
s<sub>r</sub>&sup2;), with s<sub>r</sub> the row's sum of signed errors in ulps. Errors inside a row
may depend on each other in any way. Events whose |z| exceeds the threshold are tested once more
with one coin per distinct argument (its signed significand; of LSE, equal errors), since equal
arguments round alike in every row; the larger variance counts. &plusmn; is one standard error.
Thresholds are set so that without any bias each table or picture marks something once in a hundred
times."""

EXACT = """<b>What is exact.</b> Every event is rounded exactly, from binary64, once. The counts of
inexact events, ties, carries and overflows are exact, and so are the errors of single events (the
difference of two neighboring numbers needs no rounding). The results have the same bits on every
engine for plans without native accumulators. <b>What is not exact.</b> Sums of errors, means and
deviations are binary64 sums. <code>exp</code> and <code>log</code> enter an event in binary64,
within 1 ulp of binary64, and exp rounds correctly to binary32 and narrower. The reference plan
<code>exact</code> is binary64 throughout, not infinite precision. z and its threshold are
statistics of these tensors; they say nothing of other inputs."""


def html(
    summaries: list[Summary], data: dict[str, Any], progress: Callable[[str], None] = lambda _: None
) -> str:
    """Return the report of all layers as HTML.

    data: that of trace.json; progress: called with what is drawn now.
    """
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
        f"<h2>How to read this report</h2><p class=note>{NULL}</p><p class=note>{EXACT}</p>",
        _machine(data),
    ]
    body = "\n".join(p for p in parts if p)
    title = f"Roundscope: {data['plan']['name']}, {data['file']}"
    return document(title, body)


def _opening(summaries: list[Summary], data: dict[str, Any]) -> str:
    plan, against = plan_words(summaries[0].seen.request), data["against"]["name"]
    tile = f"{data['block_q']} x {data['block_k']}{', causal' if data['causal'] else ''}"
    what = (
        f"{data['file']}, plan {plan}, compared with {against}; tiles {tile},"
        f" engine {data['engine']}."
    )
    many = len(summaries) > 1
    lead = _across(summaries) if many else sentence(summaries[0])
    lines = "<br>".join(
        f"<b>{escape(s.seen.layer.name)}</b>: {escape(short(s))}" for s in summaries
    )
    return (
        "<h1>Which rounding events are biased?</h1>"
        f"<p class=sub>{escape(what)}</p>"
        f"<p class=lead>{escape(lead)}</p>" + (f"<p>{lines}</p>" if many else "")
    )


def _across(summaries: list[Summary]) -> str:
    """Return the lead of a report of several layers."""
    biased = {e.name for s in summaries for e in s.leaning}
    some = sum(bool(s.leaning) for s in summaries)
    sites = sorted({n for s in summaries for n in outward(s)})
    events = f" ({' '.join(sorted(biased))})" if biased else ""
    zero = f" (in some, {' '.join(sites)} are biased away from zero or toward it)" if sites else ""
    drifting = [s.seen.layer.name for s in summaries if s.drift is not None and s.drift.leans]
    delta = f"{len(drifting)} ({', '.join(drifting)})" if drifting else "none"
    return (
        f"{some} of {len(summaries)} layers have an event that is biased up or down{events}{zero};"
        f" delta's error adds up over tokens in {delta}."
    )


def _comparison_of_layers(summaries: list[Summary]) -> str:
    rows = []
    for s in summaries:
        some, of = share_of_rows(s)
        z = "-" if s.drift is None else f"{s.drift.z[s.drift.worst]:+.1f}"
        rms = f"{s.compared['out']['relative_rms']:.2e}"
        biased = " ".join(e.name for e in s.leaning) or "-"
        cleared = " ".join(e.name for e in s.cleared) or "-"
        rows.append([s.seen.layer.name, biased, cleared, f"{some} / {of}", z, rms])
    heads = [
        "layer",
        "biased events",
        "explained by shared arguments",
        "rows with several P = 1",
        "delta: z of the most extreme head",
        "out: relative rms error",
    ]
    return grid(heads, rows)


def _table(s: Summary) -> str:
    rows = [cells(e, s.seen.layer.q.shape[0]) for e in s.rounding]
    notes = "".join(f"<p class=note>{escape(line)}</p>" for line in (*folded(s), legend(s)))
    table = grid(list(HEADS), rows, [e.leans for e in s.rounding])
    return f"<h3>All events that round</h3>{table}{notes}"


def _against(s: Summary) -> str:
    names = ("max_abs", "rms", "mean", "relative_rms")
    gains = {name: f"{gain} {mark}" for name, *_, gain, mark in results(s)}
    rows = [
        [k, *(f"{v[n]:.3e}" for n in names), gains[k], str(v["not_finite"])]
        for k, v in s.compared.items()
    ]
    against = s.seen.request.against.name
    marked = [k in s.gains and s.gains[k].is_biased for k in s.compared]
    heads = ["result", "max |difference|", "rms", "mean", f"rms / rms of {against}"]
    heads += ["too long (+), short (-), %", "not finite"]
    title = escape(f"Differences of the results from those of {against}")
    note = f"{escape(sizes(s))}; {escape(results_note(s))}"
    return f"<h3>{title}</h3>{grid(heads, rows, marked)}<p class=note>{note}</p>"


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
