"""Step 5: what carries delta's error in one head.

It is split by accounts, features, rows with several P = 1, rounding classes and keys.

Rounding classes of events (before, after): where the argument lay between two numbers.

They are defined by the discarded part f = |before| / ulp - floor(|before| / ulp):

    exact                  nothing is discarded
    below half, above half the round bit decides alone
    tie                    f = 1/2: the tie rule decides
    tie broken by sticky   the main part of the sum ties, what is small beside it does not: the tie
                           rule never acts, and the side is that of the small rest (arXiv
                           2510.04212, section 3.3.2)
    carry                  rounded up into the next binade (whatever f)

The main part is given by the caller (for P V: the sum of V over the keys with P = 1), if the rest
is below 1/4 ulp; without it, it is `before` to the nearest 1/16 ulp, so that |f - 1/2| < 1/32: of
arguments spread evenly one in sixteen falls there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundscope.attention import Record, Site
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.tools.diagnose.tensors.accounts import Head, accounts, head_events, weighed_errors
from roundscope.tools.diagnose.tensors.coherence import Bias, bias
from roundscope.tools.diagnose.tensors.measured import (
    OUTPUT_SITES,
    Measured,
    by_head,
    narrow,
    one_head,
)
from roundscope.tools.trace.analysis.running_error import Running, running
from roundscope.tools.trace.run import observe

CLASSES = ("exact", "below half", "tie", "tie broken by sticky", "above half", "carry")
EXACT, BELOW, TIE, STICKY, ABOVE, CARRY = range(len(CLASSES))
LEFT_OUT = -1  # not finite, before or after


def classify(
    before: np.ndarray, after: np.ndarray, format: Format, main: np.ndarray | None = None
) -> np.ndarray:
    """Return the class of every event, int8, as an index into CLASSES; -1 where not finite.

    before, after   binary64, any shape;  main: the same shape, or None

    The result is exact for every format up to 50 bits wide: |before| / ulp and its parts are
    binary64 numbers.
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    finite = np.isfinite(before) & np.isfinite(after)
    before, after = np.where(finite, before, 0.0), np.where(finite, after, 0.0)
    exponent = np.maximum(np.frexp(before)[1] - 1, format.emin)
    per_ulp = format.precision - 1 - exponent
    f = _fraction(before, per_ulp)
    found = np.where(f > 0.5, ABOVE, BELOW)
    found = np.where(_main_ties(before, main, per_ulp, f), STICKY, found)
    found = np.where(f == 0.5, TIE, found)
    found = np.where(np.abs(after) >= np.ldexp(1.0, exponent + 1), CARRY, found)
    found = np.where(after == before, EXACT, found)
    return np.where(finite, found, LEFT_OUT).astype(np.int8)


def _fraction(x: np.ndarray, per_ulp: np.ndarray) -> np.ndarray:
    units = np.ldexp(np.abs(x), per_ulp)
    return np.asarray(units - np.floor(units))


def _main_ties(
    before: np.ndarray, main: np.ndarray | None, per_ulp: np.ndarray, f: np.ndarray
) -> np.ndarray:
    if main is None:
        return np.asarray(np.abs(f - 0.5) < 1.0 / 32.0)
    main = np.where(np.isfinite(main), main, 0.0)
    close = np.ldexp(np.abs(before - main), per_ulp) < 0.25
    return np.asarray(close & (before != main) & (_fraction(main, per_ulp) == 0.5))


NEAREST = (RoundingMode.TIES_TO_EVEN, RoundingMode.TIES_TO_AWAY)
BIASED = 0.01  # the p below which an account is biased
COUNTS_FROM = 0.1  # the share of the bias from which an account counts as an origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """One site's events by class of CLASSES.

    events       how many;  bias: what they contribute to delta's error per token
    ones_bias, ones_events   the part from rows of a key tile with several P = 1
    to_nearest   whether the site rounds to nearest, so that ties matter
    """

    site: str
    events: np.ndarray
    bias: np.ndarray
    ones_bias: np.ndarray
    ones_events: np.ndarray
    to_nearest: bool

    @property
    def total(self) -> float:
        """The part of all classes in the mean error per token."""
        return float(self.bias.sum())

    @property
    def share_of_ones(self) -> float:
        """The share of it from rows with several P = 1."""
        return float(self.ones_bias.sum()) / self.total if self.total else 0.0

    def share_of(self, name: str) -> float:
        """Return one class's share of it."""
        return float(self.bias[CLASSES.index(name)]) / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The results of step 5 for one head.

    total     the bias of delta;  accounts: its parts, by name;  errors: each per token, (B T,)
    features  (B T, H): dO (O - O exact), with O as delta reads it; delta's error is its row sum if
              delta comes from the output
    several   (B T,): rows with several P = 1 in some key tile
    classes   by site;  running: the running error of P V
    """

    head: int
    total: Bias
    accounts: dict[str, Bias]
    errors: dict[str, np.ndarray]
    features: np.ndarray
    several: np.ndarray
    classes: list[Classes]
    running: Running | None

    def share(self, name: str) -> float:
        """Return an account's signed share of the bias; all shares add up to 1."""
        return self.accounts[name].mean / self.total.mean if self.total.mean else 0.0

    @property
    def origins(self) -> list[str]:
        """Accounts that are biased by themselves and a tenth or more, largest first."""
        biased = [n for n, b in self.accounts.items() if b.p < BIASED and n != "rest"]
        found = [n for n in biased if self.share(n) >= COUNTS_FROM]
        return sorted(found, key=lambda n: -self.share(n))

    @property
    def site(self) -> Classes | None:
        """The output's rounding with the largest share of the origins; None for none."""
        named = [c for c in self.classes if c.site in self.origins]
        return max(named, key=lambda c: self.share(c.site), default=None)


def origin(m: Measured, n: int) -> Origin:
    """Run step 5 at one head, over all its sequences."""
    seen = [_of_sequence(m, b, n) for b in range(m.layer.q.shape[0])]
    parts, features, several, classes, runs = zip(*seen, strict=True)
    errors = {name: np.concatenate([x[name] for x in parts]) for name in parts[0]}
    return Origin(
        head=n,
        total=bias(by_head(m.drift.error)[n]),
        accounts={name: bias(x) for name, x in errors.items()},
        errors=errors,
        features=np.concatenate(features),
        several=np.concatenate(several),
        classes=[_added(own) for own in zip(*classes, strict=True)],
        running=max(
            (run for run in runs if run is not None),
            key=lambda run: (run.several, abs(run.error[-1] / run.ulp)),
            default=None,
        ),
    )


def _of_sequence(
    m: Measured, b: int, n: int
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, list[Classes], Running | None]:
    """Return one sequence's errors, features, rows with several P = 1, classes, running error."""
    h = head_events(m, b, n)
    read = h.events["OD"][1] if "OD" in h.events else np.asarray(m.low.out, np.float64)[b, :, n]
    difference = read - np.asarray(m.exact.out, np.float64)[b, :, n]
    several: Any = h.ones() > 1
    classes, running = _classes(m, h, several), _running(m, b, n, several.any(0))
    return accounts(m, b, n, h), h.do * difference, several.any(0), classes, running


def _added(own: Sequence[Classes]) -> Classes:
    """Return a site's classes over sequences of equal length: events add up, means average."""
    how: dict[str, Any] = {"events": np.sum, "bias": np.mean}
    how |= {"ones_bias": np.mean, "ones_events": np.sum}
    found = {name: add([getattr(c, name) for c in own], axis=0) for name, add in how.items()}
    return replace(own[0], **found)


def _classes(m: Measured, h: Head, several: Any) -> list[Classes]:
    plan, errors = m.request.plan, weighed_errors(h)
    found = []
    for site in (s for s in narrow(plan, OUTPUT_SITES) if s in h.events):
        before, after = (x[None] if x.ndim == 2 else x for x in h.events[site])
        exists = h.exists if before.shape[0] > 1 else np.ones((1, before.shape[1]), dtype=bool)
        ones = several if before.shape[0] > 1 else several.any(0, keepdims=True)
        codes = classify(before, after, plan[site].format, _main(m, h, site))
        codes = np.where(exists[..., None], codes, LEFT_OUT)
        ones = np.broadcast_to(ones[..., None], codes.shape)
        near = plan[site].mode in NEAREST
        found.append(_counted(str(site), codes, errors[site] * h.do, ones, near))
    return found


def _main(m: Measured, h: Head, site: Site) -> Any:
    """Return a P V sum's part of keys with P = 1 and what it is added to; None for other sites."""
    plan = m.request.plan
    if site is not (Site.O if plan.pv_into_o else Site.PV):
        return None
    whole = h.product((h.after(Site.P) == 1.0).astype(np.float64), h.after(Site.V))
    whole = whole if not plan.normalise_first else whole.sum(0, keepdims=True)
    return whole + h.after(Site.AO) if plan.pv_into_o else whole


def _counted(
    site: str, codes: np.ndarray, errors: np.ndarray, ones: np.ndarray, to_nearest: bool
) -> Classes:
    tokens, size = codes.shape[1], len(CLASSES)

    def added(chosen: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        own = None if weights is None else weights[chosen]
        return np.bincount(codes[chosen], weights=own, minlength=size)[:size]

    kept = codes >= 0
    return Classes(
        site=site,
        events=added(kept, None),
        bias=added(kept, errors) / tokens,
        ones_bias=added(kept & ones, errors) / tokens,
        ones_events=added(kept & ones, None),
        to_nearest=to_nearest,
    )


def _running(m: Measured, b: int, n: int, several: np.ndarray) -> Running | None:
    """Evaluate equation 5 in this head, at the most biased row with several P = 1."""
    layer = replace(one_head(m, b, n), do=None)
    seen = observe(layer, replace(m.request, scale=m.scale, record=Record(), inject=()))
    found = running(seen, several[None, None])
    return None if found is None else replace(found, where=(b, n, *found.where[2:]))
