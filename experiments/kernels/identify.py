"""Which arithmetic gave these numbers: the search, its verdict, and how far the verdict holds."""

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from roundscope.attention import Plan
from roundscope.attention.grammar.differences import differences
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.emu.roundings.modes import BF16
from roundscope.experiments.kernels import search
from roundscope.experiments.kernels.candidates import PRESETS, Candidate
from roundscope.experiments.kernels.compare import (
    Nearness,
    nearness,
    relative_rms,
    ulps,
    where_rows_differ,
)
from roundscope.experiments.kernels.emulated import emulated
from roundscope.experiments.kernels.search import Found, Told
from roundscope.experiments.report.wording import listed

SAME = 0.9999  # the share of equal bits from which the plan is taken to be the kernel's
NEAR = 0.99  # the share from which only some event of the plan is wrong
FAR = 3.0  # the ratio of errors beyond which rounding is no explanation
BUDGET = 45.0  # seconds for the search of either direction
ROWS = 64  # rows of the tiles whose differences are reported


class Kind(StrEnum):
    """The kind of a verdict: how near the nearest plan is, and if rounding can explain the rest."""

    SAME = "same"
    NEAR = "near"
    NO_ROUNDING = "no-rounding"
    NOT_FOUND = "not-found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The comparison of one result with that of the nearest plan.

    near     how near they are
    one      the share, among the numbers that differ, of those that are at most one ulp apart
    rows     (first row, share of equal numbers) of each tile of rows that is not wholly equal
    """

    near: Nearness
    one: float
    rows: list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative root mean squares of differences between the kernel, the nearest plan and exactness.

    kernel   the kernel's error, from the exact result
    plan     the nearest plan's error, from the exact result
    between  the kernel from the plan
    cast     the exact result cast to BF16, from the exact result: no plan's error is taken to be
             smaller than this
    strange  how many numbers of the kernel are not finite where the plan's are
    """

    kernel: float
    plan: float
    between: float
    cast: float
    strange: int

    @property
    def ratio(self) -> float:
        """The distance of the kernel from the plan over that of the plan from the exact result."""
        return self.between / max(self.plan, self.cast, 1e-300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """The answer.

    kind       the kind of verdict
    verdict    the verdict as a sentence
    base       the named twin or preset that is nearest to the plan
    words      the changes that turn the base into the plan
    best       the plan with its tiles
    forward    the search of the forward
    backward   the search of the gradients, None if they were not searched for
    ties       other structures that give every bit too
    parts      the comparisons of out, dq, dk and dv
    errors     the errors of out
    seconds    how long it all took
    notes      what the reader must know of the search
    """

    kind: Kind
    verdict: str
    base: str
    words: list[str]
    best: Candidate
    forward: Found
    backward: Found | None
    ties: list[str]
    parts: dict[str, Part]
    errors: Errors
    seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def plan(self) -> str:
        """The plan in words."""
        return named(self.base, self.words)


def identify(x: Inputs, outputs: Outputs, tell: Told, budget: float = BUDGET) -> Identified:
    """Find the plan that is nearest to the outputs of one key head.

    Args:
        x: the inputs, of one key head and the query heads that share it.
        outputs: what the kernel returned.
        tell: called with words that say what runs.
        budget: seconds for the search of either direction; that of the backward begins only if the
            forward was found.
    """
    start = time.perf_counter()
    found = search.forward(x, outputs.out, tell, budget)
    has_gradients = any(n in ("dq", "dk", "dv") for n, _ in outputs.named())
    best, back, notes = found.best, None, []
    if found.stopped:
        notes.append(
            f"the search of the forward stopped after {budget:.0f} s, its budget; a longer one may"
            " find more"
        )
    out = _results(x, best, with_do=False).out
    kind = _kind(float((out == outputs.out).mean()))
    if has_gradients and kind in (Kind.SAME, Kind.NEAR):
        back = search.backward(x, outputs, found, tell, budget)
        best = back.best
        if back.stopped:
            notes.append(
                f"the search of the backward stopped after {budget:.0f} s, its budget; a longer one"
                " may find more"
            )
    elif has_gradients:
        notes.append("the gradients were not looked for, since the forward was not found")
    tell("comparing")
    got = _results(x, best, with_do=has_gradients)
    parts = {n: _part(getattr(got, n), a) for n, a in outputs.named() if n != "lse"}
    errors = _errors(x, outputs.out, got.out)
    kind = _kind(parts["out"].near.equal)
    if kind is Kind.NOT_FOUND and (errors.strange or errors.ratio > FAR):
        kind = Kind.NO_ROUNDING
    gradients = [p.near.equal for n, p in parts.items() if n != "out"]
    is_whole = back is not None and min(gradients) >= NEAR
    base, of_forward = _nearest_name(best.plan if is_whole else found.best.plan)
    words = differences(
        replace(best.plan, name=base), TWINS[base].plan if base in TWINS else Plan.preset(base)
    )
    tried = found.tried + (back.tried if back else 0)
    ties = [_nearest_name(c.plan) for c in (back or found).ties] if kind is Kind.SAME else []
    tied = [named(*each) for each in ties]
    verdict = _verdict(
        kind,
        named(base, words if is_whole else of_forward),
        tied,
        parts,
        errors,
        tried,
        is_known=back is not None,
    )
    return Identified(
        kind=kind,
        verdict=verdict,
        base=base,
        words=words,
        best=best,
        forward=found,
        backward=back,
        ties=tied,
        parts=parts,
        errors=errors,
        seconds=time.perf_counter() - start,
        notes=notes,
    )


def named(base: str, words: list[str]) -> str:
    """Return a plan in words: its base and the changes of it."""
    return f"{base} with {' '.join(words)}" if words else base


def _kind(equal: float) -> Kind:
    return Kind.SAME if equal >= SAME else Kind.NEAR if equal >= NEAR else Kind.NOT_FOUND


def _verdict(
    kind: Kind,
    plan: str,
    ties: list[str],
    parts: dict[str, Part],
    errors: Errors,
    tried: int,
    is_known: bool,
) -> str:
    equal = f"{parts['out'].near.equal:.6f} of out's bits"
    if kind is Kind.SAME:
        sentence = f"These are the numbers of {plan}: {equal} are equal."
        if ties:
            give = "give" if len(ties) > 1 else "gives"
            sentence += f" {listed(ties)} {give} them too: these tensors do not tell them apart."
    elif kind is Kind.NEAR:
        sentence = f"Near {plan}: some event is missing. {equal} are equal."
    elif kind is Kind.NOT_FOUND:
        return f"Not found among {tried} plans: the nearest, {plan}, gives {equal}."
    elif errors.strange:
        return (
            f"No rounding explains this: {errors.strange} numbers of out are not finite where those"
            " of the nearest plan are."
        )
    else:
        return (
            f"No rounding explains this: it is {errors.ratio:.3g} times farther from the nearest"
            " plan than that plan is from the exact result."
        )
    gradients = {n: p.near.equal for n, p in parts.items() if n != "out"}
    if is_known and gradients and min(gradients.values()) < SAME:
        shares = ", ".join(f"{share:.4f} of {n}" for n, share in gradients.items())
        word = "near" if min(gradients.values()) >= NEAR else "not found"
        sentence += f" Its gradients are {word}: {shares} are equal."
    return sentence


def _results(x: Inputs, c: Candidate, *, with_do: bool) -> Outputs:
    got = emulated(c, x.q, x.k, x.v, x.do if with_do else None, **x.options)
    names = ("out", "dq", "dk", "dv") if with_do else ("out",)
    return Outputs(**{n: np.asarray(getattr(got, n)) for n in names})


def _part(got: np.ndarray, want: np.ndarray) -> Part:
    near = nearness(got, want)
    apart = got != want
    ulp = ulps(want[apart])
    with np.errstate(invalid="ignore"):
        one = np.abs(got[apart].astype(np.float64) - want[apart]) <= ulp
    return Part(
        near=near,
        one=float(one.mean()) if one.size else 1.0,
        rows=where_rows_differ(got, want, ROWS),
    )


def _errors(x: Inputs, out: np.ndarray, got: np.ndarray) -> Errors:
    """Return the errors over the numbers that are finite in all of the outputs."""
    golden = Candidate(plan=Plan.preset("exact"), block_k=x.k.shape[1])
    exact = _results(x, golden, with_do=False).out
    strange = np.isfinite(got) & ~np.isfinite(out)
    fine = np.isfinite(out) & np.isfinite(got) & np.isfinite(exact)
    out, got, exact = out[fine], got[fine], exact[fine]
    if not out.size:
        return Errors(
            kernel=np.nan, plan=np.nan, between=np.nan, cast=np.nan, strange=int(strange.sum())
        )
    return Errors(
        kernel=relative_rms(out, exact),
        plan=relative_rms(got, exact),
        between=relative_rms(out, got),
        cast=relative_rms(_bf16(exact), exact),
        strange=int(strange.sum()),
    )


def _bf16(x: np.ndarray) -> np.ndarray:
    from roundscope.emu import round_to

    return np.asarray(round_to(x, BF16))


def _nearest_name(plan: Plan) -> tuple[str, list[str]]:
    """Return the twin or preset from which the plan has the fewest changes, and those changes."""
    bases = {name: twin.plan for name, twin in TWINS.items()} | {
        name: Plan.preset(name) for name in PRESETS
    }
    words = {name: differences(replace(plan, name=base.name), base) for name, base in bases.items()}
    name = min(words, key=lambda n: len(words[n]))
    return name, words[name]
