"""The table of events, one line for each that rounds, and words for the call that was traced."""

from typing import Any

from roundscope.attention.sites import PRODUCTS, Site
from roundscope.attention.trace.summary import site_of
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.analysis.bias import Bias, Event
from roundscope.tools.trace.options import Request
from roundscope.tools.trace.summary import Summary

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


NARROW = 112  # characters per line of the whole table
LEFT_OUT = (5, 12, 13, 15)  # columns of the table that a narrower screen does not show


def table(s: Summary, width: int = NARROW) -> Any:
    """Return the table of a layer, one line per event that rounds; width: that of the screen."""
    from rich.table import Table
    from rich.text import Text

    t = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    t.add_column("event", style="bold", no_wrap=True)
    t.add_column("format", no_wrap=True)
    shown = [i for i in range(len(HEADS)) if width >= NARROW or i not in LEFT_OUT]
    for name in (HEADS[i] for i in shown[2:]):
        t.add_column(name, justify="left" if not name else "right", no_wrap=True)
    stage = None
    for e in s.rounding:
        now = site_of(e.name).stage
        if stage not in (None, now):
            t.add_section()
        stage = now
        line = cells(e, s.layer.q.shape[0])
        t.add_row(*(Text(line[i]) for i in shown), style="bold red" if e.is_biased else None)
    return t


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
    """Return the mean error of a test in at most 9 characters, its z, and its mark.

    The mean is "-" if all is NaN.
    """
    mean, z = x.lean.mean, x.lean.z
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
    exact = [e.name for e in s.events if e not in s.rounding]
    inside = [str(site) for site in PRODUCTS if _rounds_inside(s, site)]
    absent = [n for n in s.stats if not int(s.stats[n].n.sum())]
    finite = "" if s.not_finite is None else ", where numbers are finite,"
    kinds = {
        f"the last rounding changes nothing{finite} (what is before it may be inexact)": exact,
        "sums whose additions round inside (shown by --record steps:SITE)": inside,
        "did not occur": absent,
    }
    return [f"{kind}: {' '.join(names)}" for kind, names in kinds.items() if names]


def _rounds_inside(s: Summary, site: Site) -> bool:
    """Whether a sum of products rounds at its additions, which the event itself does not show.

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
    heads = f"{n} heads" if g == n else f"{n} heads over {g} key heads"
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
        f"window {plan.window}": plan.window > 0,
        f"softcap {plan.softcap:g}": plan.softcap > 0.0,
        "sinks": layer.sinks is not None,
    }
    return "".join(f", {name}" for name, is_so in has.items() if is_so)


def formula(name: str) -> str:
    """Return what an event is; of the additions inside a sum, what is added."""
    text = site_of(name).formula
    return f"additions of {text}" if "." in name else text
