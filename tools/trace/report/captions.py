"""The report's pictures with their captions: each caption asks a question and answers it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roundscope.attention.budget.table import Line
from roundscope.tools.report.wording import listed
from roundscope.tools.trace.analysis.bias import threshold
from roundscope.tools.trace.analysis.running_error import tied
from roundscope.tools.trace.costs import visible
from roundscope.tools.trace.report import plots
from roundscope.tools.trace.results import z_words
from roundscope.tools.trace.summary import Summary, share_of_rows

# title, figure or None, caption, and what draws the figure for a narrow screen
Picture = tuple[str, Figure | None, str, Callable[[], Figure | None] | None]


def pictures(s: Summary) -> list[Picture]:
    """Return the pictures of events, which every layer has."""
    focused = {k: f for k, f in s.histograms.items() if f.size}
    entries: list[Picture] = []
    if s.rounding:
        biased, rounding = len(s.biased_events), len(s.rounding)
        caption = (
            "Which events have a mean error that random signs would not give?"
            f' {biased or "None"} of the {rounding} events that round. "Up or down": red is'
            ' biased upward, blue downward. "Away from zero", the same errors counted from zero:'
            " red is biased away from it, blue toward it."
        )
        entries.append(_drawn("Bias per event", caption, plots.bias, s))
        figure, beyond, limit = plots.heat_map(s)
        answer = {0: "None", 1: "One cell, framed"}.get(beyond, f"{beyond} cells, framed")
        caption = (
            f"In which heads is an event biased up or down by itself (|z| > {limit:.1f})? {answer}."
            " One head may be biased where all heads together are not. The color is z; numbers,"
            " where they have room, are mean signed errors in ulp/1000."
        )
        entries.append(
            ("Bias per head", figure, caption, lambda: plots.heat_map(s, narrow=True)[0])
        )
    if focused:
        shares = {k: f.beyond / f.size for k, f in focused.items() if f.beyond}
        parts = ", ".join(f"{100 * share:.2g} % of {name}" for name, share in shares.items())
        caption = (
            f"Are the errors of {listed(list(focused))} distributed evenly about zero? Ties are at"
            " -1/2 and +1/2; exact events are left out."
            f"{f' Beyond an ulp and not drawn: {parts}.' if parts else ''}"
        )
        entries.append(_drawn("Signed errors", caption, plots.histogram, focused))
    return entries


def _drawn(title: str, caption: str, draw: Callable[..., Figure | None], *of: Any) -> Picture:
    """Return a picture of what a function draws, for wide screens and for narrow ones."""
    figure = draw(*of)
    return title, figure, caption, None if figure is None else partial(draw, *of, narrow=True)


def budget_picture(s: Summary, parts: list[Line]) -> Picture:
    """Return the picture of the error budget, of the parts that matter."""
    caption = (
        "Which event makes how much of the error of each result? A bar is the squared error that"
        " an event makes alone, over that of the whole plan. Bars of one result add up to 100 %"
        " where errors do not depend on each other."
    )
    b = s.budget
    assert b is not None
    if infinite := [n for n, x in b.total.items() if not np.isfinite(x)]:
        verb = "have infinite errors" if len(infinite) > 1 else "has an infinite error"
        caption += f" {listed(infinite)} {verb}, of which there are no shares."
    return _drawn("Error budget", caption, plots.budget, b, parts)


def _words(title: str, caption: str) -> Picture:
    """Return words in the place of a picture."""
    return title, None, caption, None


def mechanisms(s: Summary) -> tuple[list[Picture], list[str]]:
    """Return the pictures of published mechanisms that fire here, and words on those that do not.

    They are the biased rounding of O in rows with several P = 1, and the error of delta that adds
    up over tokens, both of arXiv 2510.04212.
    """
    fire, quiet = [], []
    limit = threshold(max(len(s.shares), 1))
    if any(abs(x.z) > limit for x in s.shares) or any(
        e.name in ("PV", "O") and e.away.is_biased for e in s.chain
    ):
        fire += [_ones_picture(s), _running_picture(s)]
    else:
        quiet.append(_ones_picture(s, draw=False)[2])
    if s.drift is not None and s.drift.leans and not s.drift.lost:
        fire.append(_drift_picture(s))
    else:
        quiet.append(_drift_picture(s, draw=False)[2])
    return fire, quiet


def shown(s: Summary) -> list[Picture]:
    """Return all pictures of a layer's page in order."""
    budget = s.budget
    first = [budget_picture(s, visible(budget))] if budget is not None and budget.lines else []
    return first + pictures(s) + mechanisms(s)[0]


def _running_picture(s: Summary) -> Picture:
    run, title = s.running, "Error of P V along the keys"
    if run is None and s.not_finite is not None:
        return _words(title, "The sum in question is not finite, so that its error is not drawn.")
    if run is None:
        caption = "No event after P V is narrower than binary32, so there is no rounding to follow."
        return _words(title, caption)
    row = "among the rows with several P = 1" if run.several else "of all rows"
    scaled = " (normalized by the row sum)" if run.site == "OUT" else ""
    # the events whose errors `running_error.most_biased` sums
    sites = [n for n in ("PV", "O") if n in s.histograms and s.histograms[n].counts.any()]
    steps = np.abs(np.diff(run.error, prepend=0.0))  # keys with P = 1 have this share of them:
    moved = float(steps[tied(run)].sum() / max(steps.sum(), 1e-300))
    caption = (
        "Where does the error of the sum come from? Shown is the (head, query, feature) with the"
        " largest |error| in value that the layer's own tiles leave, summed over the roundings"
        f" of {' and '.join(sites) or 'OUT'}, {row}. Err(t) is the prefix sum{scaled} rounded to"
        f" {run.site}'s format, minus itself (arXiv 2510.04212, eq. 5), with all keys in one tile."
        f" At {tied(run).size} keys P is 1 (red): {100 * moved:.1f} % of the summed |changes| of"
        f" Err happen there. Err ends at {run.error[-1]:+.3g}, which is"
        f" {run.error[-1] / run.ulp:+.2f} ulp of the sum."
    )
    return _drawn(title, caption, plots.along_keys, run)


def _drift_picture(s: Summary, draw: bool = True) -> Picture:
    d, title = s.drift, "Error of delta along the tokens"
    against = s.request.against.name
    if d is None:
        return _words(title, "The file has no do, so there is no backward and no delta.")
    if d.lost:
        caption = (
            f"{d.lost:,} of {d.error.size:,} errors of delta are infinite, so that they do not add"
            " up to a number."
        )
        return _words(title, caption)
    if not d.error.any():
        return _words(title, f"delta equals that of {against} everywhere.")
    ends = "beyond" if d.leans else "within"
    back = ""
    if d.crossing is not None and not d.leans:
        back = f"crosses the threshold first at token {d.crossing}, comes back and "
    # delta's error is the output's where both plans take delta from O
    other, gap = f"rowsum dO (O - O of {against})", f"{d.identity:.0e}"
    identity = f"equals {other} to {gap}: it is the error of O weighted by dO"
    if d.identity > 1e-3 * np.abs(d.error).max():
        source = s.request.plan.delta_from
        identity = f"differs from {other} by up to {gap}, since delta comes from {source}"
    caption = (
        f"Does the error of delta add up over tokens? The error is delta minus that of {against};"
        f" its running sum in the most extreme of {d.z.size} heads {back}ends {ends} the threshold"
        f" (only the end is tested), with {z_words(d.z[d.worst], 2)}. The band holds for a"
        " head that"
        f" is chosen blindly; this is the most extreme head. The error {identity}."
    )
    return _drawn(title, caption, plots.along_tokens, d) if draw else _words(title, caption)


def _ones_picture(s: Summary, draw: bool = True) -> Picture:
    title = "Rows with several P = 1"
    if s.several is None:
        return _words(title, "P was too large to keep, so such rows were not counted.")
    some, rows = share_of_rows(s)
    if not some:
        caption = (
            f"None of {rows} rows has two P = 1 in one key tile, so no bias of P V can come from"
            " them."
        )
        return _words(title, caption)
    shares = "; ".join(
        f"{x.site}: {100 * x.share:+.0f} % from {100 * x.events[0] / max(sum(x.events), 1):.1f} %"
        f" of the events, mean {x.away[0].mean:+.4f} ± {x.away[0].se:.4f} ulp there against"
        f" {x.away[1].mean:+.4f} ± {x.away[1].se:.4f}"
        for x in s.shares
    )
    caption = (
        f"Do rows with several P = 1 carry the bias of P V? {some} of {rows} rows have them (two"
        " or more in one key tile). Their share of the summed error away from zero:"
        f" {shares or 'nothing rounds after P V'}. Where the whole sum is near zero, its parts may"
        " exceed it. ± and the bars are one standard error."
    )
    return _drawn(title, caption, plots.several_ones, s) if draw else _words(title, caption)
