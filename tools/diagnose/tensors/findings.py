"""The diagnosis of tensors as one record: steps 3 to 6.

Steps 3 and 4 are over the layers of a file, steps 5 and 6 at the head that stands out most.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from roundscope.attention import Site
from roundscope.tools.diagnose.replay.start import RunPart
from roundscope.tools.diagnose.tensors.carrier import Carrier, carrier, shares
from roundscope.tools.diagnose.tensors.coherence import Coherence, coherence
from roundscope.tools.diagnose.tensors.measured import Measured, Subject, by_head, measure, narrow
from roundscope.tools.diagnose.tensors.origin import Origin, origin
from roundscope.tools.diagnose.tensors.repairs import Outcome, repair
from roundscope.tools.diagnose.tensors.verdict import Effect, Kind, Verdict, effect, verdict
from roundscope.tools.errors import bad
from roundscope.tools.report.wording import many
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.analysis.bias import FALSE_ALARMS
from roundscope.tools.trace.request import Request
from roundscope.tools.trace.served import settled

T = TypeVar("T")
Progress = Callable[[int, str], None]  # (number of the step, what runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of a diagnosis.

    measured, carriers, coherences   of every layer, in the same order; the rest is of one head
    chosen   index of its layer;  head: that of the head
    base     the plan as it is;  outcomes: the arms
    rows     by layer and head, the sums of the rows of dS, relative to the gradient of W_Q
             (`carrier.shares`); None for blocks
    lost     the layers whose results are infinite or NaN; they take no part in the steps
    among    the number of heads that steps 5 and 6 chose from, those that a search names; 0: all
    run      for a run: steps 1 and 2, and the replays of step 6
    """

    file: str
    measured: list[Measured]
    carriers: list[Carrier]
    coherences: list[Coherence]
    chosen: int
    head: int
    origin: Origin
    base: Outcome
    outcomes: list[Outcome]
    verdict: Verdict
    rows: list[np.ndarray | None]
    lost: tuple[Measured, ...] = ()
    among: int = 0
    run: RunPart | None = None

    @property
    def layer(self) -> Measured:
        """The layer of steps 5 and 6."""
        return self.measured[self.chosen]

    @property
    def coherence(self) -> Coherence:
        """The coherence of the layer of steps 5 and 6."""
        return self.coherences[self.chosen]

    @property
    def where(self) -> str:
        """The head of steps 5 and 6, in words."""
        return self.named(self.chosen, self.head)

    def named(self, layer: int, head: int) -> str:
        """Return a head in words, by the numbers of its layer and of itself there."""
        m = self.measured[layer]
        return f"{m.layer.name}, head {m.heads[head]}"

    @property
    def furthest(self) -> tuple[int, int]:
        """(layer, head), as numbers, of the head whose error of delta stands out most of all."""
        return furthest(self.coherences, _places(self.measured))

    @property
    def biased(self) -> list[tuple[str, str]]:
        """(layer, head) of every head that is biased."""
        pairs = zip(self.measured, self.coherences, strict=True)
        return [(m.layer.name, m.heads[i]) for m, c in pairs for i in c.biased]

    def effect(self, outcome: Outcome) -> Effect:
        """Return what an arm did to the bias."""
        return effect(outcome, self.base, biased=self.verdict.kind is not Kind.NOTHING)

    @property
    def half_ulp(self) -> float:
        """The mean over tokens of sum_i |dO_i| ulp(OUT_i) / 2 in this head.

        It is delta's error if every rounding of OUT had dO's sign; 0 where OUT does not round.
        """
        if not narrow(self.layer.request.plan, (Site.OUT,)):
            return 0.0
        f = self.layer.request.plan[Site.OUT].format
        out, do = (by_head(x)[self.head] for x in (self.layer.low.out, self.layer.layer.do))
        exponent = np.where(out == 0.0, f.emin, np.maximum(np.frexp(out)[1] - 1, f.emin))
        return float((np.abs(do) * np.ldexp(0.5, exponent - f.precision + 1)).sum(1).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A diagnosis that ends at step 3, since the results of every layer are infinite or NaN.

    The error of delta is infinite then, and has no sum over tokens.
    """

    file: str
    lost: tuple[Measured, ...]


def diagnose(
    layers: list[Layer], request: Request, file: str, progress: Progress
) -> Findings | Stopped:
    """Run steps 3 to 6 on tensors. A layer is causal as its file says, unless the request says it.

    Raises UsageError for a layer without do, and for one with a mask, a window, a softcap, a bias
    or sinks.
    """
    for x in layers:
        _check_plain(x)
    subjects = [Subject(layer=x, request=settled(request, x)) for x in layers]
    return findings(subjects, file, progress)


def _check_plain(x: Layer) -> None:
    had = {"a mask that is not causal": x.mask, "a window": x.window, "a bias": x.bias}
    for what, value in (had | {"a softcap": x.softcap, "sinks": x.sinks}).items():
        if value is not None:
            why = f"has {what}, for which delta's error cannot be split into accounts"
            repair = (
                "choose another layer or batch entry, or see its events with `roundscope trace`"
            )
            raise bad("layer", x.name, f"{why}; {repair}")


def findings(
    subjects: Sequence[Subject],
    file: str,
    progress: Progress,
    places: Collection[tuple[int, int]] = (),
) -> Findings | Stopped:
    """Run steps 3 to 6, on the layers whose results are finite as they should be.

    places: (subject, head) among which steps 5 and 6 take the one that stands out most; all if
    empty. Raises UsageError for a layer without do, and for too few tokens.
    """
    tests = sum(x.layer.q.shape[2] for x in subjects)
    _check_tokens([x.layer for x in subjects], tests)
    seen = [measure(x, lambda text: progress(3, text)) for x in subjects]
    lost = tuple(m for m in seen if m.not_finite is not None)
    measured = [m for m in seen if m.not_finite is None]
    if not measured:
        return Stopped(file=file, lost=lost)
    number = {id(m): i for i, m in enumerate(measured)}
    places = [(number[id(seen[i])], n) for i, n in places if id(seen[i]) in number]

    def told(step: int, what: str, work: Callable[[Measured], T]) -> list[T]:
        done = []
        for m in measured:
            progress(step, f"{m.layer.name}: {what}")
            done.append(work(m))
        return done

    carriers = told(3, "P K", carrier)
    coherences = told(4, "sign flips", lambda m: coherence(m, tests))
    rows = told(4, "rows of dS", lambda m: shares(m, m.request.plan))
    chosen, head = furthest(coherences, places or _places(measured))
    m, c = measured[chosen], coherences[chosen]
    progress(5, f"{m.layer.name}: head {m.heads[head]}")
    found = origin(m, head)
    origins = found.origins if c.p[head] < c.level else []
    base, outcomes = repair(m, head, origins, c.level, lambda text: progress(6, text))
    return Findings(
        file=file,
        measured=measured,
        carriers=carriers,
        coherences=coherences,
        chosen=chosen,
        head=head,
        origin=found,
        base=base,
        outcomes=outcomes,
        verdict=verdict(carriers[chosen], head, c, found, base, outcomes),
        rows=rows,
        lost=lost,
        among=len(places),
    )


def _places(measured: Sequence[Measured]) -> list[tuple[int, int]]:
    return [(i, n) for i, m in enumerate(measured) for n in range(len(m.heads))]


def furthest(
    coherences: Sequence[Coherence], places: Collection[tuple[int, int]]
) -> tuple[int, int]:
    """Return the one of these (layer, head) with the smallest p, then the largest A."""
    return min(places, key=lambda at: (coherences[at[0]].p[at[1]], -coherences[at[0]].a[at[1]]))


def _check_tokens(layers: list[Layer], tests: int) -> None:
    """Refuse too few tokens for any bias: equal signs have p = 2^(1 - T)."""
    needed = 1 + math.ceil(math.log2(tests / FALSE_ALARMS))
    for x in layers:
        tokens = x.q.shape[0] * x.q.shape[1]
        if tokens <= needed:
            among = many(tests, "head")
            few = f"too few to tell a bias from chance in {among}; give more than {needed}"
            raise bad(f"layer {x.name!r}: tokens", tokens, few)
