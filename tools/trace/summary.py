"""The findings of one layer: `Summary`, computed from what was observed.

It holds everything that the table, the report and the JSON say, and no array of the size of the
layer's, so that the summaries of all layers of a file fit into memory.
"""

from dataclasses import dataclass, field

import numpy as np

from roundscope.attention import ErrorBudget
from roundscope.attention.budget.not_finite import NotFinite
from roundscope.attention.sites import Axes
from roundscope.attention.trace.parts import site_of
from roundscope.emu.stats.summary import Stats
from roundscope.tools.results.machine import digest
from roundscope.tools.tensors.layers import Layer, without_numbers
from roundscope.tools.trace.analysis import bias as analysis
from roundscope.tools.trace.analysis import consequences
from roundscope.tools.trace.analysis.bias import Event
from roundscope.tools.trace.analysis.consequences import DeltaDrift, Share
from roundscope.tools.trace.analysis.running_error import Running, running
from roundscope.tools.trace.focus import Distinct, Histogram
from roundscope.tools.trace.repairs import Repair, best_repair
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.results import Result, results
from roundscope.tools.trace.run import Observed, shared_arguments

CHAIN = ("PV", "O", "OUT")
INPUTS = ("q", "k", "v", "do", "mask", "bias", "sinks")
Heads = tuple[list[str], np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The findings of one layer.

    layer       its name, shapes and call, without its numbers (`tensors.layers.without_numbers`)
    request     what was asked for it
    scale       that of the scores
    digests     SHA-256 of the inputs and outputs, by name
    strange     the numbers of the inputs that are infinite or NaN, in words
    stats       by event, the counts and sums of every head
    heads       the names, mean errors and z of the rounding events by query head (`_by_head`)
    histograms  the inexact events of P, PV, O and OUT by signed error, where they occur
    budget      which event makes how much of the errors against exact attention; None if not asked
    not_finite  the numbers of the results that are infinite or NaN; None if all are finite
    limit       |z| beyond which an event counts as biased, in either of its two tests
    events      the events that occurred, in the order of the algorithm
    several     (B, N, T): rows with a key tile in which two or more P are 1; None if P was not kept
    shares      errors of PV, O and OUT in such rows and in the others
    running     the running error of P V along the keys; None if nothing rounds after P V
    drift       the error of delta along the tokens; None without do
    results     out, lse, delta and the gradients, each with its error and what to hold it against
    repair      the smallest change of the plan that repairs the furthest result, as it was tried
    hits        by event, how many of its entries injections hit, and how many there are
    """

    layer: Layer
    request: Request
    scale: float
    digests: dict[str, dict[str, str]]
    strange: tuple[str, ...]
    stats: dict[str, Stats]
    heads: Heads
    histograms: dict[str, Histogram]
    budget: ErrorBudget | None
    not_finite: NotFinite | None
    limit: float
    events: list[Event]
    several: np.ndarray | None
    shares: list[Share]
    running: Running | None
    drift: DeltaDrift | None
    results: list[Result]
    repair: Repair | None = None
    hits: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def biased_results(self) -> list[Result]:
        """The results that are too long or too short, the furthest first."""
        biased = [r for r in self.results if r.is_biased]
        return sorted(biased, key=lambda r: -abs(r.gain.mean) if r.gain else 0.0)

    @property
    def rounding(self) -> list[Event]:
        """The events of which at least one instance is inexact or NaN."""
        return [e for e in self.events if e.rounds]

    @property
    def biased_events(self) -> list[Event]:
        """The biased events, the one with the largest relative error first."""
        return sorted((e for e in self.rounding if e.is_biased), key=lambda e: -e.relative)

    @property
    def cleared(self) -> list[Event]:
        """The events biased when tested by rows, but not when equal arguments share a coin."""
        return [e for e in self.rounding if e.is_shared]

    @property
    def chain(self) -> list[Event]:
        """Those of P V, O and OUT that round."""
        return [e for e in self.rounding if e.name in CHAIN]


def summarise(seen: Observed) -> Summary:
    """Return the findings of one layer; suspects run once more to count distinct arguments."""
    stats, rows, plan = seen.trace.stats, seen.trace.rows, seen.request.plan
    names = [name for name in stats if int(stats[name].n.sum())]
    away = seen.trace.away
    limit = analysis.threshold(2 * sum(bool(stats[name].inexact.sum()) for name in names))

    def make(name: str, distinct: Distinct | None = None) -> Event:
        f = (
            plan.accumulator(site_of(name)).step.format
            if "." in name
            else plan[site_of(name)].format
        )
        return analysis.event(name, f, stats[name], rows[name], away[name], limit, distinct)

    events = {name: make(name) for name in names}
    suspects = [n for n, e in events.items() if e.is_biased and "." not in n]
    for name, distinct in shared_arguments(seen, suspects).items() if suspects else ():
        events[name] = make(name, distinct)
    chain = [s for s in CHAIN if s in seen.focus and seen.focus[s].rounds]
    several = None if seen.ones is None else np.any(seen.ones > 1, axis=2)
    own, want, drift = seen.results, seen.reference, None
    if own["delta"] is not None:
        drift = consequences.delta_drift(
            own["delta"], want["delta"], own["out"], want["out"], seen.layer.do
        )
    found = results(seen)
    is_avoided = seen.not_finite is not None and bool(seen.not_finite.avoided_by)
    inputs = {name: getattr(seen.layer, name) for name in INPUTS}
    return Summary(
        layer=without_numbers(seen.layer),
        request=seen.request,
        scale=seen.scale,
        digests={  # of shape, type and bytes, in layout (B, T, N, H)
            part: {name: digest(a) for name, a in arrays.items() if a is not None}
            for part, arrays in (("inputs", inputs), ("outputs", own))
        },
        strange=_strange(seen.layer),
        stats=stats,
        heads=_by_head(seen, [e for e in events.values() if e.rounds]),
        histograms={site: f.histogram for site, f in seen.focus.items()},
        budget=seen.budget,
        not_finite=seen.not_finite,
        limit=limit,
        events=list(events.values()),
        several=several,
        running=running(seen, several),
        drift=drift,
        shares=[] if several is None else [_share(seen, events[s]) for s in chain],
        results=found,
        repair=None if is_avoided else best_repair(seen, found, seen.budget),
        hits={
            name: (int(x.sum()), int(stats[name].n.sum())) for name, x in seen.trace.hits.items()
        },
    )


def _share(seen: Observed, event: Event) -> Share:
    """Compare a site's errors in rows with several P = 1 with those in the other rows.

    PV and O are taken by key tile; OUT, which occurs once a row, by whether any tile of the row has
    several P = 1.
    """
    focus = seen.focus[event.name]
    several, exists = np.asarray(seen.ones) > 1, seen.exists
    if focus.signed.shape[2] == 1:
        several, exists = np.any(several, axis=2, keepdims=True), np.ones((1, 1), dtype=bool)
    first, second = (
        test.error.null / test.by_rows.null if test.by_rows.null else 1.0
        for test in (event.signed, event.away)
    )
    features = seen.layer.v.shape[3]
    return consequences.share(
        event.name, focus.signed, focus.away, several, exists, features, (first, second)
    )


def _by_head(seen: Observed, rounding: list[Event]) -> Heads:
    """Return (names, means, z) of the rounding events by query head; means and z are (events, B N).

    Events that are counted by key head, and the additions inside sums that have an axis of keys,
    are left out.
    """
    names, means, z = [], [], []
    trace, heads = seen.trace, seen.layer.q.shape[2]
    for e in rounding:
        of_keys = site_of(e.name).axes is Axes.SH and "." in e.name
        if trace.stats[e.name].n.shape[1] != heads or of_keys:
            continue
        error, by_rows = e.signed.error, e.signed.by_rows
        ratio = error.null / by_rows.null if by_rows.null > 0.0 else 1.0
        mean, score = analysis.head_leans(trace.stats[e.name], trace.rows[e.name], ratio)
        names.append(e.name)
        means.append(mean.reshape(-1))
        z.append(score.reshape(-1))
    return names, np.array(means), np.array(z)


def _strange(layer: Layer) -> tuple[str, ...]:
    """Return how many numbers of each input are NaN and how many infinite, in words."""
    found = []
    for name in (x for x in INPUTS if x != "mask"):
        a = getattr(layer, name)
        if a is not None:
            counts = {"NaN": int(np.isnan(a).sum()), "infinite": int(np.isinf(a).sum())}
            found += [f"{n} {what} in {name}" for what, n in counts.items() if n]
    return tuple(found)


def share_of_rows(summary: Summary) -> tuple[int, int]:
    """Return (number of rows with several P = 1, number of rows); zeros if they are not known."""
    several = summary.several
    return (0, 0) if several is None else (int(several.sum()), int(several.size))
