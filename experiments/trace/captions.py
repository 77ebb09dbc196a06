"""The report's pictures with their captions: each caption asks a question and answers it."""

from typing import Any

import numpy as np

from roundscope.experiments.trace import plots
from roundscope.experiments.trace.analysis.running_error import Running, tied
from roundscope.experiments.trace.focus import Focus
from roundscope.experiments.trace.summary import Summary, share_of_rows


def pictures(s: Summary) -> list[tuple[str, Any, str]]:
    """(question, figure or None, caption) of each picture that this layer has."""
    kept = {k: f for k, f in s.seen.focus.items() if f.histogram.any() or f.beyond}
    made: list[tuple[str, Any, str]] = []
    if s.rounding:
        made.append(("Bias per event", plots.bias(s), _bias_caption(s)))
    made.append(_running_picture(s))
    made.append(_drift_picture(s))
    if s.rounding:
        figure, beyond, limit = plots.heat_map(s)
        made.append(("Bias per head", figure, _heads_caption(beyond, limit)))
    if kept:
        caption = (
            "Are the errors of P, P V, O and OUT even about zero? Ties stand at -1/2 and +1/2;"
            f" exact events are left out.{_beyond(kept)}"
        )
        made.append(("Signed errors", plots.histogram(kept), caption))
    made.append(_ones_picture(s))
    return made


def _beyond(kept: dict[str, Focus]) -> str:
    """Which part of the events lies outside the histograms, if any."""
    shares = {k: f.beyond / max(int(f.histogram.sum()) + f.beyond, 1) for k, f in kept.items()}
    parts = [f"{100 * share:.2g} % of {name}" for name, share in shares.items() if share]
    return f" Beyond an ulp and not drawn: {', '.join(parts)}." if parts else ""


def _bias_caption(s: Summary) -> str:
    answer = (
        f"{len(s.leaning)} of {len(s.rounding)} do"
        if s.leaning
        else f"none of {len(s.rounding)} does"
    )
    return (
        "Which events have a mean error that random signs would not give? Of those that round,"
        f" {answer} (red up, blue down)."
    )


def _heads_caption(beyond: int, limit: float) -> str:
    answer = (
        f"{beyond} cells do, framed"
        if beyond > 1
        else "One cell does, framed"
        if beyond
        else "None"
    )
    return (
        f"Which heads lean on their own (|z| > {limit:.1f})? {answer}. Colour is z; numbers are"
        " mean signed errors in ulp/1000."
    )


def _running_picture(s: Summary) -> tuple[str, Any, str]:
    run, title = s.running, "Error of P V along the keys"
    if run is None:
        return (
            title,
            None,
            "No event after P V is narrower than binary32, so there is no rounding to follow.",
        )
    row = "among the rows with several P = 1" if run.several else "of all rows"
    scaled = ", normalised by the row sum" if run.site == "OUT" else ""
    return (
        title,
        plots.along_keys(run),
        (
            "Where does the error of the sum come from? The (head, query, feature) with the"
            " largest |error| in value that the layer's own tiles leave, summed over the roundings"
            f" of {_where(s)}, {row}; Err(t) is the prefix sum{scaled} rounded to {run.site}'s"
            " format minus itself (arXiv 2510.04212, eq. 5), with all keys as one tile, where"
            f" {tied(run).size} P are 1 (red). {100 * _moved(run):.1f} % of the summed |changes| of"
            f" Err happen there; it ends at {run.error[-1]:+.3g}, {run.error[-1] / run.ulp:+.2f}"
            " ulp of the sum."
        ),
    )


def _where(s: Summary) -> str:
    """The events whose errors `running_error.most_biased` sums."""
    sites = [n for n in ("PV", "O") if n in s.seen.focus and s.seen.focus[n].histogram.any()]
    return " and ".join(sites) or "OUT"


def _moved(run: Running) -> float:
    """The part of the total variation of Err(t) at keys with P = 1."""
    steps = np.abs(np.diff(run.error, prepend=0.0))
    return float(steps[tied(run)].sum() / max(steps.sum(), 1e-300))


def _drift_picture(s: Summary) -> tuple[str, Any, str]:
    d, title = s.drift, "Error of delta along the tokens"
    if d is None:
        return title, None, "The file has no do, so there is no backward and no delta."
    if not d.error.any():
        return title, None, f"delta equals that of {s.seen.request.against.name} everywhere."
    ends = "beyond" if d.leans else "within"
    back = (
        f"crosses the threshold first at token {d.crossing}, comes back and "
        if d.crossing is not None and not d.leans
        else ""
    )
    return (
        title,
        plots.along_tokens(d),
        (
            "Does the error of delta add up over tokens? delta minus that of"
            f" {s.seen.request.against.name} in the furthest of {d.z.size} heads {back}ends {ends}"
            f" the threshold (only the end is tested), z = {d.z[d.worst]:+.2f} (the band is for a"
            f" head chosen blindly, this is the furthest); {_identity(s)}."
        ),
    )


def _identity(s: Summary) -> str:
    """Whether delta's error is the output's, as it is where both plans take delta from O."""
    d: Any = s.drift
    other = f"rowsum dO (O - O of {s.seen.request.against.name})"
    if d.identity <= 1e-3 * np.abs(d.error).max():
        return f"it is {other}, to {d.identity:.0e}: the error of O as dO weighs it"
    return (
        f"it differs from {other} by up to {d.identity:.0e}, since delta comes from"
        f" {s.seen.request.plan.delta_from}"
    )


def _ones_picture(s: Summary) -> tuple[str, Any, str]:
    title = "Rows with several P = 1"
    if s.several is None:
        return title, None, "P was too large to keep, so such rows were not counted."
    some, rows = share_of_rows(s)
    if not some:
        return (
            title,
            None,
            (
                f"None of {rows} rows has two P = 1 in one key tile, so no bias of P V can come"
                " from them."
            ),
        )
    shares = "; ".join(
        f"{x.site}: {100 * x.share:+.0f} % from {100 * x.events[0] / max(sum(x.events), 1):.1f} %"
        f" of the events, mean {x.away[0].mean:+.4f} ± {x.away[0].se:.4f} ulp there against"
        f" {x.away[1].mean:+.4f} ± {x.away[1].se:.4f}"
        for x in s.shares
    )
    return (
        title,
        plots.several_ones(s),
        (
            f"Do rows with several P = 1 carry the bias of P V? {some} of {rows} rows have them"
            " (two or more in one key tile). Their part of the summed error away from zero:"
            f" {shares or 'nothing rounds after P V'}. Where the whole sum is near zero, its parts"
            " may exceed it. ± and bars: one standard error."
        ),
    )
