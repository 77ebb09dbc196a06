"""Which arithmetic gave these numbers: the search, its verdict, and how far the verdict holds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache

import numpy as np

from roundscope.attention import Plan, Site
from roundscope.attention.engines.fused import from_scores
from roundscope.attention.grammar.differences import count_of_differences, differences
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import BF16, FP16
from roundscope.emu.stats.comparison import relative_rms, share_words
from roundscope.events.plan import half
from roundscope.tools.identify import low_bits, search, trial
from roundscope.tools.identify.candidates import (
    ARITHMETIC,
    PRESETS,
    Candidate,
    cast_of,
    emulated,
    options_of,
)
from roundscope.tools.identify.compare import (
    GRADIENTS,
    Part,
    Whole,
    best_over_heads,
    nearness,
    part_of,
)
from roundscope.tools.identify.low_bits import Sized
from roundscope.tools.identify.machine import Machine
from roundscope.tools.identify.meanings import exact_rows
from roundscope.tools.identify.probes.kernel import Probed, sums_of, tilings
from roundscope.tools.identify.reading import UNSAID, of_key_head
from roundscope.tools.identify.search import LEAST, Found, Told
from roundscope.tools.identify.trial import Meant
from roundscope.tools.report.wording import listed

NEAR = 0.99  # the share of equal numbers from which only some event of the plan is wrong
FAR = 3.0  # the ratio of errors beyond which rounding is no explanation
# scores of a call from which a search compiles programs: they are of one plan, tried once
COMPILED = 2**22
MOST_TIES = 24  # plans that give every bit of a head and are compared in all heads


class Kind(StrEnum):
    """The kind of a verdict: how near the nearest plan is, and if rounding can explain the rest."""

    SAME = "same"
    NEAR = "near"
    LOW_BITS = "low-bits"
    NO_ROUNDING = "no-rounding"
    NOT_FOUND = "not-found"
    MEANING = "another-meaning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative root mean squares of differences between the kernel, the nearest plan and exactness.

    An error is infinite if one of the two results is not finite where the other is.

    kernel   the kernel's error, from the exact result
    plan     the nearest plan's error, from the exact result
    between  the kernel from the plan
    cast     the exact result cast to BF16, or to the fewer bits that the output has, from the exact
             result: no plan's error is taken to be smaller than this
    """

    kernel: float
    plan: float
    between: float
    cast: float

    @property
    def ratio(self) -> float:
        """The distance of the kernel from the plan over that of the plan from the exact result."""
        if np.isinf(self.between):
            return np.inf
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
    parts      the comparisons of out, dq, dk and dv of the head that was searched for
    whole      the comparison of all heads
    errors     the errors of out, of the head that was searched for
    meant      the trial of what the call means
    seconds    how long it all took
    notes      what the reader must know of the search
    probes     what probes of the kernel found
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
    whole: Whole
    errors: Errors
    meant: Meant
    seconds: float
    notes: list[str] = field(default_factory=list)
    probes: Sequence[Probed] = ()

    @property
    def plan(self) -> str:
        """The plan in words."""
        return named(self.base, self.words, self.best)

    @property
    def tried(self) -> int:
        """How many plans were compared with the outputs."""
        return self.forward.tried + (self.backward.tried if self.backward else 0)

    def is_plan(self, plan: Plan) -> bool:
        """Return whether the arithmetic that was found is that of a plan, whatever its name.

        Numbers that differ all over the output may (`Kind.NEAR`); those gathered in a part may not.
        """
        is_found = self.kind in (Kind.SAME, Kind.NEAR) and not self.whole.counts["out"].gathered
        return is_found and self.has_arithmetic_of(plan)

    def has_arithmetic_of(self, plan: Plan) -> bool:
        """Return whether the nearest plan is this one, whatever its name."""
        return not differences(plan, replace(self.best.plan, name=""))

    @property
    def cause(self) -> str:
        """What makes these numbers in a few words, for the first line of a report; "" if unknown.

        Of a plan that gives them it has the changes first, since they are what a reader may know.
        """
        return self.cause_beside(None)

    def cause_beside(self, claimed: Plan | None) -> str:
        """Return the cause; of several changes, roundings that the claimed plan lacks come first.

        claimed: the plan that the kernel claims; None if it claims none
        """
        if self.kind is Kind.MEANING:
            return f"it is explained if {self.meant.words or self.meant.nearest[0]}"
        if self.kind not in (Kind.SAME, Kind.NEAR):
            return ""
        out = self.whole.counts["out"]
        but = f", but for {out.differ:,} of {out.of:,}" if out.differ else ""
        if out.gathered:
            but += f": {out.gathered.words}"
        if out.gathered and out.gathered.factor:  # which no change of a plan explains
            return f"its numbers are those of {self.plan}{but}"
        if not self.words:
            return f"its numbers are those of {self.plan}{but}"
        first = self._leading(claimed)
        rest = [word for word in self.words if word not in first]
        given = listed(["that", *rest])
        return f"{' '.join(first)} explains it ({self.base} with {given} gives its numbers{but})"

    def _leading(self, claimed: Plan | None) -> list[str]:
        """Return the changes to name first: roundings, those that the claimed plan lacks before."""
        roundings = [word for word in self.words if word.partition("=")[0] in {*map(str, Site)}]
        own = [] if claimed is None else differences(self.best.plan, claimed)
        return [word for word in roundings if word in own] or roundings or self.words


def identify(
    x: Inputs,
    outputs: Outputs,
    tell: Told,
    budget: int = search.MOST,
    head: int = 0,
    probes: Sequence[Probed] = (),
    machine: Machine = UNSAID,
) -> Identified:
    """Find the plan that gives the outputs of a call: on one key head, then compared in all heads.

    Args:
        x: the inputs, of all heads.
        outputs: what the kernel returned.
        tell: called with words that say what runs.
        budget: the number of plans that the search of the forward tries; that of the backward
            begins only if the forward was found, and tries a sixteenth of them, which cost more.
        head: the number of the key head, in the first entry of the batch.
        probes: what probes of the kernel found; their tiles and sums are tried first.
        machine: where the call ran, as far as that is said: of plans that give as much, one of a
            library that runs there comes first.
    """
    start = time.perf_counter()
    tell("meanings of the call")
    meant = trial.trial(x, outputs, head)
    notes = _notes_of_rows(x, outputs, meant)
    part, kept, _ = of_key_head(meant.x, meant.outputs, 0, head)
    with from_scores(COMPILED):
        found = search.forward(part, kept.out, tell, budget, tilings(probes), sums_of(probes))
    has_gradients = any(n in GRADIENTS for n, _ in kept.named())
    best, back = found.best, None
    if found.stopped:
        notes.append(
            f"the search of the forward ended after {found.tried} plans, its budget; a larger one"
            " may find more"
        )
    proposed = _each_plan_first([best, *found.ties])
    ranked = [
        (c, nearness(_results(part, c, with_do=False).out, kept.out)) for c in proposed[:MOST_TIES]
    ]
    # of several that give as much, one without changes, of a library that runs there, of few words
    ranked.sort(key=lambda pair: _order(pair[0], machine))
    ranked.sort(key=lambda pair: pair[1], reverse=True)
    best, near = ranked[0]
    equal = [c for c, n in ranked if n.equal == 1.0 and c is not best]
    names_of = [_named(c) for c in proposed] if len(proposed) > MOST_TIES else []
    left_out = {*names_of[MOST_TIES:]} - {*names_of[:MOST_TIES]}
    if near.equal == 1.0 and left_out:
        notes.append(
            f"{len(left_out)} more plans give every bit of the head that was searched for; they"
            " were not compared in other heads"
        )
    over = best_over_heads([best, *equal], meant.x, meant.outputs, ("out",), tell)
    (best, every), *others = over
    found = replace(found, best=best, near=near, ties=[c for c, w in others if not w.differ])
    if has_gradients and near.equal >= NEAR:
        with from_scores(COMPILED):
            back = search.backward(part, kept, found, tell, budget // search.SHARE)
        names = ("out", *GRADIENTS)
        both = [back.best, *back.ties]
        if machine.kind and back.near.equal == 1.0:
            both.sort(key=lambda c: _order(c, machine))
        over = best_over_heads(both, meant.x, meant.outputs, names, tell)
        (best, every), *others = over
        back = replace(back, best=best, ties=[c for c, w in others if not w.differ])
        if back.stopped:
            notes.append(
                f"the search of the backward ended after {back.tried} plans, its budget; a larger"
                " one may find more"
            )
    elif has_gradients:
        notes.append("the gradients were not looked for, since the forward was not found")
    got = _results(part, best, with_do=has_gradients)
    parts = {n: part_of(getattr(got, n), a) for n, a in kept.named()}
    notes.insert(0, f"compared: {every.about}")
    errors = _errors(part, kept.out, got.out)
    kind = _kind(parts["out"].near.equal, every, errors)
    gradients = [p.near.equal for n, p in parts.items() if n != "out"]
    is_whole = back is not None and min(gradients) >= NEAR
    base, of_forward = _nearest_name(best.plan if is_whole else found.best.plan)
    words = differences(replace(best.plan, name=base), Plan.preset(base))
    ties = [] if kind is not Kind.SAME else (back or found).ties
    if kind is not Kind.SAME and machine.note:
        notes.append(machine.note)
    tied_names = [n for n in dict.fromkeys(_named(c) for c in ties) if n != _named(best)]
    plan = named(base, words if is_whole else of_forward, best)
    sentence = _verdict(kind, plan, tied_names, parts, every, errors, found, back, head)
    if kind is Kind.NEAR and parts["out"].near.equal == 1.0:
        notes += _of_other_heads(meant, every, head, budget, tell)
    sizes: list[Sized] = []
    is_far = trial.ROUNDED * errors.cast < errors.kernel < np.inf
    if is_far and kind in (Kind.NO_ROUNDING, Kind.NOT_FOUND):
        tell("errors of low-bit formats")
        alike, sizes = low_bits.of_low_bits(part, kept.out)
        if alike is not None:
            share = parts["out"].near.equal
            kind, sentence = Kind.LOW_BITS, _of_low_bits(alike, sizes, errors, plan, share)
    kind, sentence = _meant_so(kind, sentence, meant, sizes)
    return Identified(
        kind=kind,
        verdict=f"{_strange(every)}{sentence}",
        base=base,
        words=words,
        best=best,
        forward=found,
        backward=back,
        ties=tied_names,
        parts=parts,
        whole=every,
        errors=errors,
        meant=meant,
        seconds=time.perf_counter() - start,
        notes=notes,
        probes=probes,
    )


def named(base: str, words: list[str], c: Candidate | None = None) -> str:
    """Return a plan in words: its base, the changes of it, and a scale that is not the call's."""
    text = f"{base} with {' '.join(words)}" if words else base
    if c is not None and c.scale_ulps:
        larger = "larger" if c.scale_ulps > 0 else "smaller"
        text += f" and a scale that is {abs(c.scale_ulps)} ulp of FP32 {larger}"
    return text


def _named(c: Candidate) -> str:
    """Return a candidate in words."""
    return named(*_nearest_name(c.plan), c)


def _kind(share: float, every: Whole, errors: Errors) -> Kind:
    """Return the kind of a verdict, by the head that was searched for and by all heads."""
    if not every.counts["out"].differ:
        return Kind.SAME
    if share >= NEAR and not np.isinf(errors.between):
        return Kind.NEAR
    return Kind.NO_ROUNDING if errors.ratio > FAR else Kind.NOT_FOUND


def _strange(every: Whole) -> str:
    """Return what is not finite in the kernel's results: it comes before all else."""
    sentences = []
    for c in every.counts.values():
        if not c.strange:
            continue
        assert c.strange.first is not None
        b, t, n, h = c.strange.first
        plan = (
            "the nearest plan has them at the same places"
            if not c.lost
            else f"the nearest plan differs in {c.lost:,} such places"
        )
        sentences.append(
            f"{c.strange.words(f'numbers of {c.name}')}, first at batch entry {b}, head {n}, token"
            f" {t}, feature {h}; {plan}. "
        )
    return "".join(sentences)


def _verdict(
    kind: Kind,
    plan: str,
    ties: list[str],
    parts: dict[str, Part],
    every: Whole,
    errors: Errors,
    found: Found,
    back: Found | None,
    head: int,
) -> str:
    out = every.counts["out"]
    tried = found.tried + (back.tried if back else 0)
    if kind is Kind.SAME:
        sentence = f"These are the numbers of {plan}: {out.words()}."
        if ties:
            give = "give" if len(ties) > 1 else "gives"
            sentence += f" {listed(ties)} {give} them too: these tensors do not tell them apart."
    elif kind is Kind.NEAR and parts["out"].near.equal == 1.0:
        sentence = f"In key head {head} these are the numbers of {plan}, but not in all heads:"
        sentence += f" {out.words()}."
        if out.equal >= NEAR and not out.gathered:
            sentence += " The formats are found; what differs may be another order of additions."
    elif kind is Kind.NEAR:
        missing = ""
        if out.gathered and out.gathered.factor:
            missing = " No rounding does that: look at what the code does there."
        up_to = "the same arithmetic up to an order of additions or an event that is missing"
        same = "" if missing else f", {up_to}"
        sentence = f"Near {plan}{same}: {out.words()}.{missing}"
    elif kind is Kind.NOT_FOUND:
        share = parts["out"].near.equal
        given = share_words(share, 4)
        return f"Not found among {tried} plans: the nearest, {plan}, gives {given} of out."
    elif np.isinf(errors.between):
        return (
            f"No rounding explains this: {out.lost:,} numbers of out are not finite where those of"
            " the nearest plan are, or the other way round."
        )
    else:
        return (
            f"No rounding explains this: it is {errors.ratio:.3g} times farther from the nearest"
            " plan than that plan is from the exact result."
        )
    gradients = [c for n, c in every.counts.items() if n != "out"]
    if back is not None and gradients:
        wrong = [c for c in gradients if c.differ]
        if not wrong:
            begin = "Its gradients are equal" if out.differ else "So are its gradients"
            sentence += f" {begin}: {listed([c.words() for c in gradients])}."
        else:
            least = min(p.near.equal for n, p in parts.items() if n != "out")
            word = "near" if least >= NEAR else "not found"
            sentence += f" Its gradients are {word}: {'; '.join(c.words() for c in gradients)}."
    return sentence


def _of_low_bits(alike: Sized, sizes: list[Sized], errors: Errors, plan: str, share: float) -> str:
    others = [s.words for s in sizes if s is not alike and s.is_like(errors.kernel)]
    size = "That is a size only, which other causes have too"
    size += f", such as {listed(others[:2])}" if others else ""
    if alike.along >= low_bits.ALONG:
        size = f"The two errors go together (correlation {alike.along:.2f})"
    return (
        f"Not found, but its error is of the size that {alike.words} would make:"
        f" {errors.kernel:.3g} from the exact result, against {alike.error:.3g}. {size}."
        f" The nearest plan, {plan}, gives {share_words(share, 4)} of out."
    )


def _meant_so(kind: Kind, sentence: str, meant: Meant, sizes: list[Sized]) -> tuple[Kind, str]:
    """Return the verdict with what the call means, where the call's own words do not explain it."""
    if meant.is_rounded or not meant.tried:
        return kind, sentence
    if meant.words:
        said = (
            f"Explained if {meant.words}: the error from exact attention falls from"
            f" {meant.given:.3g} to {meant.error:.3g}, which rounding makes."
        )
        if not meant.is_call:
            return Kind.MEANING, f"{said} Roundings were not looked for under this meaning."
        return Kind.MEANING, f"{said} Then: {sentence}"
    if kind is Kind.NO_ROUNDING:
        words, error = meant.nearest
        like = [s for s in sizes if s.is_like(error)]
        alike = min(like, key=lambda s: abs(np.log(s.error / error)), default=None)
        if alike is not None and error * trial.FALLS <= meant.given:
            return Kind.MEANING, (
                f"Explained if {words}, but for an error of the size that {alike.words} would make:"
                f" the error from exact attention falls from {meant.given:.3g} to {error:.3g},"
                f" against {alike.error:.3g}. Roundings were not looked for under this meaning."
            )
        if sizes:
            formats = "; ".join(f"{s.words}, {s.error:.2g}" for s in sizes)
            sentence += f" It is not the error of a low-bit format either: tried were {formats}."
        more = (
            f" Nor does another meaning: {meant.tried} were tried (causality, window, softcap,"
            f" sinks, scale, a factor, missing keys, other heads); the nearest, {words}, leaves an"
            f" error of {error:.3g}."
        )
        return kind, sentence + more
    return kind, sentence


def _notes_of_rows(x: Inputs, outputs: Outputs, meant: Meant) -> list[str]:
    """Return what the kernel does in rows without keys, and what its L is."""
    notes = []
    if words := trial.blind_rows(x, outputs):
        notes.append(words)
    if outputs.lse is not None:
        notes.append(trial.base_of_lse(meant.x, outputs.lse))
    return notes


def _of_other_heads(meant: Meant, every: Whole, head: int, budget: int, tell: Told) -> list[str]:
    """Return what explains the head in which most numbers differ: another plan, or a meaning."""
    heads = every.counts["out"].heads
    (entry, other), _ = max(heads.items(), key=lambda item: item[1])
    group = meant.x.q.shape[2] // meant.x.k.shape[2]
    if (entry, other // group) == (0, head):
        return []
    part, kept, _ = of_key_head(meant.x, meant.outputs, entry, other // group)
    # few last bits, as of another order of additions, are those of other tiles at most
    few = heads[entry, other] < (1.0 - NEAR) * kept.out[:, :, 0].size
    alone = identify(
        part, Outputs(out=kept.out), tell, min(budget // 2, LEAST) if few else budget // 2
    )
    own = sum(
        count for (e, n), count in heads.items() if (e, n // group) == (entry, other // group)
    )
    if alone.kind is not Kind.MEANING and alone.whole.counts["out"].differ > own:
        return []  # the plan in hand gives more of that head
    return [f"batch entry {entry}, head {other}, searched for alone: {alone.verdict}"]


def _results(x: Inputs, c: Candidate, *, with_do: bool) -> Outputs:
    got = emulated(c, x.q, x.k, x.v, x.do if with_do else None, **options_of(x))
    names = ("out", "dq", "dk", "dv") if with_do else ("out",)
    return Outputs(**{n: np.asarray(getattr(got, n)) for n in names})


def _errors(x: Inputs, out: np.ndarray, got: np.ndarray) -> Errors:
    """Return the errors of the output of one key head."""
    exact = exact_rows(x, np.arange(x.q.shape[1]))
    return Errors(
        kernel=relative_rms(out, exact),
        plan=relative_rms(got, exact),
        between=relative_rms(out, got),
        cast=relative_rms(np.asarray(round_to(exact, cast_of(out, exact))), exact),
    )


def _each_plan_first(ties: list[Candidate]) -> list[Candidate]:
    """Return candidates with the first of each plan before others of it, on other tiles."""
    first = {ARITHMETIC(c.plan): c for c in reversed(ties)}
    ahead = [c for c in ties if first[ARITHMETIC(c.plan)] is c]
    return ahead + [c for c in ties if first[ARITHMETIC(c.plan)] is not c]


def _order(c: Candidate, machine: Machine) -> tuple[bool, int, int]:
    """Return what decides which of several plans that give as much is named first."""
    name, words = _nearest_name(c.plan)
    return bool(words), machine.rank(name), len(words)


def _nearest_name(plan: Plan) -> tuple[str, list[str]]:
    """Return the twin or preset from which the plan has the fewest changes, and those changes.

    A plan with FP16 is compared with those in FP16 too.
    """
    bases = _bases(FP16 in plan.roundings)
    name = min(bases, key=lambda n: count_of_differences(plan, bases[n]))
    return name, differences(replace(plan, name=bases[name].name), bases[name])


@cache
def _bases(is_half: bool) -> dict[str, Plan]:
    """Return the twins and presets by which plans are named, if `is_half` those in FP16 too."""
    bases = {name: Plan.preset(name) for name in (*TWINS, *PRESETS)}
    if is_half:
        bases |= {f"{n}-fp16": half(base) for n, base in bases.items() if BF16 in base.roundings}
    return bases
