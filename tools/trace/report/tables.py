"""The tables of a trace, on its page and the terminal: results, error budget, events, heads."""

import math

from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.attention.trace.parts import site_of
from roundscope.tools.report.model import Table
from roundscope.tools.report.wording import many
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.analysis.bias import Bias, Event
from roundscope.tools.trace.biased import FEWEST, percent
from roundscope.tools.trace.costs import cost, visible
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.results import Result, score
from roundscope.tools.trace.summary import Summary
from roundscope.tools.trace.verdict import less

HEADS = (
    "event",
    "format",
    "count",
    "inexact\n%",
    "ties\n%",
    "carries\n%",
    "up (+) or\ndown, ulps",
    "z",
    "",
    "away (+)\nfrom zero",
    "z",
    "",
    "mean\n|error|",
    "max",
    "over/under\nflow/NaN",
    "worst head\nits mean",
)
# events whose operation is a function, which has an error of its own
FUNCTIONS = frozenset(
    site for site in Site if site.formula.startswith(("exp(", "tanh(", "ln ", "1 /", "m + ln"))
)
LEFT_OUT = (5, 12, 13, 15)  # columns that a narrow screen does not show


def layers(summaries: list[Summary]) -> Table:
    """Return the table of the layers: errors, biased results, the event that makes most."""
    names = [r.name for r in summaries[0].results if r.gain is not None]
    rows = []
    for s in summaries:
        by_name = {r.name: r for r in s.results}
        errors = [f"{by_name[n].error:.2e}" if n in by_name else "" for n in names]
        biased = " ".join(r.name for r in s.biased_results) or "-"
        events = " ".join(e.name for e in s.biased_events) or "-"
        try:
            largest = "-" if s.budget is None else s.budget.largest("out").part.name
        except ValueError:  # there is none
            largest = "-"
        rows.append([s.layer.name, *errors, biased, largest, events])
    heads = ["layer", *(f"{n}:\nrms error" for n in names)]
    heads += ["biased\nresults", "largest part\nof out", "biased events"]
    marked = [bool(s.biased_results) or s.not_finite is not None for s in summaries]
    return Table(heads, rows, marked)


def results(s: Summary) -> Table:
    """Return the table of results; those that are biased or not finite are in red."""
    gains = [
        r.gain
        for r in s.results
        if r.gain is not None and r.gain.se > 0.0 and r.gain.heads >= FEWEST
    ]
    limit = f", biased\nbeyond ±{gains[0].limit:.1f}" if gains else ""
    heads = ["result", "relative\nrms error", "largest\n(absolute)", "too long (+)\nor short, %"]
    rows = [
        [r.name, f"{r.error:.2e}", f"{r.difference['max_abs']:.2e}", *_gain(r)] for r in s.results
    ]
    beside = s.request.beside.name if s.request.beside else ""
    more = {  # heading -> numbers of all results; a column that the first one lacks is left out
        "casts of\ninputs": [r.cast for r in s.results],
        "without\ncasts": [r.computed for r in s.results],
        f"{beside}:\nrms error": [r.beside for r in s.results],
    }
    more = {head: numbers for head, numbers in more.items() if numbers[0] is not None}
    for numbers in more.values():
        for row, x in zip(rows, numbers, strict=True):
            row.append("" if x is None else f"{x:.2e}")
    heads += [f"z{limit}", *more]
    if s.results[0].least is not None:  # beside the error that it is to be held against
        heads.insert(2, "rounded\nonce")
        for row, r in zip(rows, s.results, strict=True):
            row.insert(2, "" if r.least is None else f"{r.least:.2e}")
    spared = {"largest\n(absolute)", "casts of\ninputs", "without\ncasts"}
    spared |= {"rounded\nonce"} if beside else set()
    marked = [r.is_biased or not r.is_known for r in s.results]
    return Table(
        heads, rows, marked, optional=[i for i, head in enumerate(heads) if head in spared]
    )


def _gain(r: Result) -> list[str]:
    """Return the gain in percent with its mark, and its z."""
    if r.gain is None:
        return ["", ""]
    if r.gain.mean != r.gain.mean:  # a number of the result is infinite or NaN
        return ["-", "-"]
    mark = ("▲" if r.gain.mean > 0.0 else "▼") if r.is_biased else "·"
    z = score(r.gain)
    if z != z:  # one key head: there is no scatter
        return [f"{100 * r.gain.mean:+.2g} {mark}", ""]
    told = f"{z:+.1f}" if r.gain.heads >= FEWEST else "-"  # the verdict tells nothing of fewer
    return [f"{100 * r.gain.mean:+.2g} ±{100 * r.gain.se:.1g} {mark}", told]


def results_note(s: Summary) -> str:
    """Return what the columns of the table of results mean."""
    first, name = s.results[0], s.request.against.name
    parts = [f"Against {name}. ▲ ▼: biased, z beyond the limit: more than the scatter of heads."]
    if first.least is not None:
        parts.append("Rounded once: the exact result in its format, the least error there is.")
    if first.cast is not None:
        parts.append("Casts of inputs are part of the error; without them it is that of computing.")
    return " ".join(parts)


def shares(budget: ErrorBudget) -> Table:
    """Return the parts of an error budget that matter, and what the absence of each would do."""
    rows = [
        (
            line.part.name,
            line.part.how,
            *(budget.share_words(line, n) for n in budget.total),
            helps(budget, line),
        )
        for line in visible(budget)
    ]
    left = ("interaction", "", *(budget.interaction_words(n) for n in budget.total), "")
    return Table(("event", "rounds to", *budget.total, "without it"), [*rows, left])


def whole_budget(budget: ErrorBudget) -> Table:
    """Return every part of an error budget: its shares, and the errors that are left without it."""
    names, rows = list(budget.total), []

    def left_of(error: float, total: float) -> str:
        if not math.isfinite(total):  # a percentage of which says nothing
            return f"{error:.1e}"
        return f"{100 * error / total:.0f}" if total else "0"

    for line in budget.lines:
        left = line.without
        errors = [left_of(left[n], budget.total[n]) if left else "" for n in names]
        share = [budget.share_words(line, n) for n in names]
        rows.append([line.part.name, line.part.how, *share, *errors])
    left_over = [budget.interaction_words(n) for n in names]
    rows.append(["interaction", "", *left_over, *("" for _ in names)])
    finite = [math.isfinite(budget.total[n]) for n in names]
    ends = ["100.0" if x else "inf" for x in finite], ["100" if x else "" for x in finite]
    rows.append(["all", "", *ends[0], *ends[1]])
    heads = ["event", "rounds to", *(f"{n}\n%" for n in names)]
    heads += [f"error of {n}\nwithout it, %" for n in names]
    return Table(heads, rows)


LEFT = (
    "Error without it: what the error of the result is if this event alone does not round, in % of"
    " the error that it has now. Above 100 it is larger without the event, whose error cancels"
    " part of another one's."
)


def promotions(s: Summary, budget: ErrorBudget) -> Table:
    """Return what more bits for an event would buy and cost."""
    rows = [
        (
            line.part.name,
            line.part.formula,
            helps(budget, line),
            cost(s.request.plan, line.part, s.layer),
        )
        for line in visible(budget)
        if line.part.places
    ]
    heads = ("event", "formula", "more bits would buy", "and would cost a kernel on an H100")
    return Table(heads, rows, is_prose=True)


def helps(budget: ErrorBudget, line: Line) -> str:
    """Return what the absence of a part does to the result that it helps most, in words."""
    left, total = line.without, budget.total
    names = [n for n, x in total.items() if x > 0.0 and math.isfinite(x)]
    if left is None:
        return ""
    if rescued := [n for n in total if line.rescues(n, total)]:
        return f"{rescued[0]} {less(math.inf, left[rescued[0]])}"
    if not names:
        return ""
    name = min(names, key=lambda n: left[n] / total[n])
    is_less = left[name] < 0.99 * total[name]
    return f"{name} {less(total[name], left[name])}" if is_less else "no smaller error"


def budget_method(s: Summary, budget: ErrorBudget) -> str:
    """Return on which heads a budget was measured, and what its columns mean."""
    n, heads = s.layer.q.shape[2], len(budget.heads)
    which = f"{heads} of {n} heads" if heads < n else "all heads"
    infinite = any(math.isinf(x) for x in budget.total.values())
    inf = "inf: this alone makes the result infinite or NaN, whose error has no shares. "
    return (
        f"{inf if infinite else ''}"
        f"Measured on {which}: each event alone, all else in binary64; interaction is what these do"
        " not add up to. Without it: the event in binary64, all else as in the plan. The two need"
        " not agree: errors of two events may add up or cancel, above all where few numbers make"
        " most of the error."
    )


def by_head(shown: list[Result]) -> Table:
    """Return the relative rms errors of each head, which the page's field of heads cuts."""
    batch, heads = shown[0].heads.shape
    rows = [
        (f"{n}", f"{b}", *(percent(float(r.heads[b, n])) for r in shown))
        for b in range(batch)
        for n in range(heads)
    ]
    return Table(("head", "batch", *(r.name for r in shown)), rows, name="heads")


def events(s: Summary, *, with_formulas: bool) -> Table:
    """Return a row for each event that rounds, in the algorithm's order, biased ones in red."""
    rows = [cells(e, s.layer.q.shape[0]) for e in s.rounding]
    if with_formulas:
        rows = [[*row, formula(e.name)] for row, e in zip(rows, s.rounding, strict=True)]
    marked = [e.is_biased for e in s.rounding]
    heads = (*HEADS, "formula") if with_formulas else HEADS
    return Table(heads, rows, marked, optional=LEFT_OUT)


def cells(e: Event, batch: int) -> list[str]:
    """Return the cells of one event's line, as many as HEADS; batch: the size of that axis."""
    bad = [int(e.counts[k]) for k in ("overflow", "underflow", "nan")]
    head = f"{e.worst[1]}" if batch == 1 else f"{e.worst[0]}/{e.worst[1]}"
    return [
        e.name,
        e.format.name,
        count(int(e.counts["n"])),
        *(f"{100 * e.share(k):.1f}" for k in ("inexact", "ties", "carries")),
        *_bias(e, e.signed),
        *_bias(e, e.away),
        f"{e.mean_abs:.3f}" if e.mean_abs < 100 else f"{e.mean_abs:.1e}",
        f"{e.peak:.2f}" if e.peak < 100 else f"{e.peak:.0e}",
        "/".join(count(b) for b in bad) if any(bad) else "-",
        f"{head} {e.worst_mean:{'+.4f' if abs(e.worst_mean) < 10 else '+.1e'}}",
    ]


def _bias(e: Event, x: Bias) -> list[str]:
    """Return a test's mean error in at most 9 characters, "-" if all is NaN, its z, its mark."""
    mean, z = x.error.mean, x.error.z
    if e.counts["nan"] == e.counts["n"]:
        return ["-", "", x.mark]
    return [
        f"{mean:+.5f}" if abs(mean) < 100 else f"{mean:+.1e}",
        f"{z:+.1f}" if abs(z) < 1000 else f"{z:+.0e}",
        x.mark,
    ]


def count(n: int) -> str:
    """Return a count in at most five characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if n >= size:
            scale = 1000 if unit == "k" else size
            return f"{n / scale:.3g}{unit}"
    return str(n)


def folded(s: Summary) -> list[str]:
    """Return lines that name the events without a line of their own in the table."""
    quiet = [e for e in s.events if e not in s.rounding]
    exact = [e.name for e in quiet if _is_exact(s, e)]
    inexact = [e.name for e in quiet if e.name not in exact]
    inside = [str(site) for site in PRODUCTS if _rounds_inside(s, site)]
    absent = [n for n in s.stats if not int(s.stats[n].n.sum())]
    finite = "" if s.not_finite is None else ", where numbers are finite,"
    kinds = {
        f"exact here{finite} (neither the operation nor its rounding errs)": exact,
        f"the last rounding changes nothing{finite} (what is before it may be inexact)": inexact,
        "sums whose additions round inside (shown by --record steps:SITE)": inside,
        "did not occur": absent,
    }
    return [f"{kind}: {' '.join(names)}" for kind, names in kinds.items() if names]


def _is_exact(s: Summary, e: Event) -> bool:
    """Return whether an event whose rounding changes nothing has no other error either.

    A result of binary64 that a format of fewer bits holds is exact, but for sums that round at
    their additions, functions, and the dividing by l, whose own errors come before the rounding.
    """
    site = site_of(e.name)
    summed = Site.PV if site is Site.O and s.request.plan.pv_into_o else site
    errs = site in FUNCTIONS or (summed in PRODUCTS and _rounds_inside(s, summed))
    return e.format.precision < 53 and "." not in e.name and not errs


def _rounds_inside(s: Summary, site: Site) -> bool:
    """Return whether a sum of products rounds at its additions, which its event does not show.

    P V has no event of its own where a plan adds it to O.
    """
    plan, stats = s.request.plan, s.stats
    name = "O" if site is Site.PV and plan.pv_into_o else str(site)
    if f"{site}.step" in stats or name not in stats or not int(stats[name].n.sum()):
        return False
    return plan.accumulator(site).step.format.precision < 53


def legend(s: Summary) -> str:
    """Return a line that explains the marks."""
    text = (
        "Mean errors in ulps: up or down, and counted away from zero. ▲ ▼ biased"
        f" (|z| > {s.limit:.1f}, rows' signs flipped)   · not biased"
    )
    return text + ("   = biased by rows, not by distinct arguments" if s.cleared else "")


def sizes(s: Summary) -> str:
    """Return the sizes of the layer's axes, so that a wrong layout shows."""
    (b, t, n, h), (_, keys, g, hv) = s.layer.q.shape, s.layer.v.shape
    heads = many(n, "head") if g == n else f"{many(n, 'head')} over {many(g, 'key head')}"
    tokens = f"{t} tokens" if keys == t else f"{t} queries, {keys} keys"
    features = f"{h} features" if h == hv else f"{h} features, {hv} of v"
    return f"batch {b}, {heads}, {tokens}, {features}"


def call_words(request: Request, layer: Layer) -> str:
    """Return which keys a query sees, and what else the layer's call had, as words to add."""
    plan = request.plan
    is_placed = layer.q.shape[1] != layer.k.shape[1] and (request.causal or plan.window > 0)
    has = {
        "causal": request.causal,
        f"aligned {request.alignment}": request.alignment is not None and is_placed,
        "masked": layer.mask is not None,
        "biased": layer.bias is not None,
        f"window {plan.window}": plan.window > 0,
        f"softcap {plan.softcap:g}": plan.softcap > 0.0,
        "sinks": layer.sinks is not None,
    }
    return "".join(f", {name}" for name, is_so in has.items() if is_so)


def formula(name: str) -> str:
    """Return what an event is; of the additions inside a sum, what is added."""
    text = site_of(name).formula
    return f"additions of {text}" if "." in name else text
