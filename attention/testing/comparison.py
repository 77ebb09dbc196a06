"""Is a kernel as good as a plan? Both are compared with exact attention on the same tensors.

The questions are paired: the errors of a kernel are compared with the errors that the plan has on
the same inputs, since the plan itself is biased on some of them. The test of a paired difference
may be looked at again and again. Kernel and plan run on the same independently drawn heads, and
each head gives a difference d of some error of theirs. If the kernel is as good as the plan, then d
is as likely below as above its margin by the same amount: d - margin is symmetric around 0 or below
it. For independent symmetric x_i, and for any u > 0,

    P(sum x_i >= u sqrt(sum x_i^2)) <= exp(-u^2 / 2),

since the signs are fair coins once the magnitudes are known (Hoeffding's inequality). It needs no
normal distribution and no variance. The bound is never below exp(-n / 2) for n heads, so that too
few heads give no evidence at all. Looks, results and directions share the false-alarm rate equally.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from roundscope.attention.testing import errors as of
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.causes import of_output
from roundscope.attention.testing.errors import STATISTICS, Errors, Gross, Margins, Pair
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.foreign.user import Kernel, Unavailable
from roundscope.attention.testing.known import known_of
from roundscope.attention.testing.reference import Reference
from roundscope.attention.testing.suspects import explained
from roundscope.emu.stats.comparison import agree
from roundscope.emu.testing.foreign import raised

CLEAR = 3.0  # standard errors below its margin at which a difference is settled


class State(StrEnum):
    """The state of a question: answered by "alarm" or "fine", still "open", or "undefined".

    It is undefined where a number of the results is not finite, so that they have no bias.
    """

    ALARM = "alarm"
    FINE = "fine"
    OPEN = "open"
    UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How clearly differences exceed their margin.

    Attributes:
        mean: The mean difference.
        error: The standard error of the mean.
        chance: A bound of the probability of differences like these, or clearer ones, if the kernel
            is as good as the plan.
        state: The answer.
    """

    mean: float
    error: float
    chance: float
    state: State


def chance(x: np.ndarray) -> float:
    """Return the bound of the probability that symmetric numbers have a sum as large as this."""
    total, size = float(x.sum()), float(np.square(x).sum())
    if total <= 0.0:
        return 1.0
    if not math.isfinite(size):
        return math.exp(-0.5 * x.size)
    return math.exp(-0.5 * total * total / size)


def weigh(d: np.ndarray, margin: float, level: float) -> Evidence:
    """Return the evidence that differences exceed a margin.

    Args:
        d: Differences of independent heads, (n,); NaN where a result has no such error.
        margin: The largest difference that is accepted.
        level: The probability of a false alarm.
    """
    if np.isnan(d).any():
        return Evidence(mean=math.nan, error=math.nan, chance=1.0, state=State.UNDEFINED)
    bound = chance(d - margin)
    with np.errstate(invalid="ignore"):
        mean = float(d.mean())
        spread = float(d.std(ddof=1)) if d.size > 1 else math.inf
    error = spread / math.sqrt(d.size)
    state = State.OPEN
    if bound <= level:
        state = State.ALARM
    elif mean + CLEAR * error <= margin:
        state = State.FINE
    return Evidence(mean=mean, error=error, chance=bound, state=state)


def heads_needed(level: float) -> int:
    """Return the least number of heads that can give an alarm at a level."""
    return math.ceil(-2.0 * math.log(level))


FALSE_ALARM = 1e-4
DIRECTIONS = {"rms": (1,), "row": (1,), "gain": (-1, 1), "mean": (-1, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the heads of one kind of inputs say of one error of one result.

    Attributes:
        inputs: The kind of inputs in words, such as "sink, causal".
        result: "out", "dq", "dk" or "dv".
        statistic: "rms", "row", "gain" or "mean", see `errors.Errors`.
        direction: 1 if the error may be too large, or -1 if it may be too far below 0.
        kernel: The kernel's error: the mean over heads, or the largest for "row".
        plan: The plan's error, likewise.
        heads: How many heads were compared.
        evidence: Whether the difference exceeds its margin.
    """

    inputs: str
    result: str
    statistic: str
    direction: int
    kernel: float
    plan: float
    heads: int
    evidence: Evidence

    @property
    def sentence(self) -> str:
        """The finding in words."""
        e, is_up = self.evidence, self.direction > 0
        what = {
            "rms": "its relative rms error is {:.3g}, that of the plan {:.3g}",
            "row": "the error of its worst row is {:.3g}, that of the plan {:.3g}",
            "gain": f"it is too {'long' if is_up else 'short'}: gain {{:+.3g}}, that of the plan"
            " {:+.3g}",
            "mean": f"it is too {'high' if is_up else 'low'}: mean error {{:+.3g}}, that of the"
            " plan {:+.3g}",
        }[self.statistic].format(self.kernel, self.plan)
        z = e.mean / e.error if e.error else math.inf
        return (
            f"{self.inputs}: {self.result}: {what} ({self.heads} heads, z = {z:.3g}, chance below"
            f" {max(e.chance, 1e-99):.1g})"
        )


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The answer.

    Attributes:
        plan: The plan's name.
        false_alarm: The probability that a kernel as good as the plan fails.
        findings: Every question with its answer.
        gross: Heads whose errors no order of additions explains.
        suspect: Which mistake in the code explains the grossest of them, in words; "" if none does.
        other: Which other arithmetic or place explains the output, in words; "" if none does.
        known: What was known of this kernel before, if it is not fine; "" if nothing.
        left_out: The kinds of inputs that were not drawn, since a gross failure came before.
        sums: The largest error of L, the logarithm of the row sums, of the kernel and of the plan,
            by the kind of inputs, if the kernel returns L.
        raised: The error that the kernel raised on a kind of inputs, by the kind, in words.
        equal: The share of equal bits of each result, over all inputs.
        heads: How many heads were compared in all.
        looks: How many draws of each kind of inputs were looked at.
        seconds: How long it took.
    """

    plan: str
    false_alarm: float
    findings: list[Finding] = field(default_factory=list)
    gross: list[Gross] = field(default_factory=list)
    suspect: str = ""
    other: str = ""
    known: str = ""
    left_out: list[str] = field(default_factory=list)
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    raised: dict[str, str] = field(default_factory=dict)
    equal: dict[str, float] = field(default_factory=dict)
    heads: int = 0
    looks: int = 0
    seconds: float = 0.0

    @property
    def alarms(self) -> list[Finding]:
        """The findings that say that the kernel is worse than the plan, clearest first."""
        found = [f for f in self.findings if f.evidence.state is State.ALARM]
        return sorted(found, key=lambda f: f.evidence.chance)

    @property
    def is_fine(self) -> bool:
        """True if nothing says that the kernel is worse than the plan."""
        return not self.gross and not self.alarms and not self.raised

    @property
    def cause(self) -> str:
        """What explains a failure, in words: a mistake in the code, or another arithmetic."""
        return self.suspect or self.other

    @property
    def undecided(self) -> int:
        """How many questions had neither an alarm nor a clear answer when the draws ended."""
        return sum(f.evidence.state is State.OPEN for f in self.findings)

    def worst(self) -> list[str]:
        """Return the reasons of a failure as sentences, the grossest first."""
        gross = sorted(self.gross, key=lambda g: g.size, reverse=True)
        return [g.sentence for g in gross] + [f.sentence for f in self.alarms]


@dataclass(slots=True)
class _Pairs:
    """The errors of a kernel and of the plan on the heads of one kind of inputs so far."""

    kernel: dict[str, list[Errors]] = field(default_factory=dict)
    plan: dict[str, list[Errors]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        """Add the heads of a draw."""
        self.kernel.setdefault(pair.name, []).append(pair.kernel)
        self.plan.setdefault(pair.name, []).append(pair.plan)

    @property
    def is_open(self) -> bool:
        """True if a question on this kind of inputs has no answer yet."""
        return not self.findings or any(f.evidence.state is State.OPEN for f in self.findings)


Draw = Callable[[str, int], Inputs]
"""The inputs of a kind, by its name and the number of the draw."""


def compare(
    kernel: Kernel,
    plan: Reference,
    kinds: Sequence[str],
    draw: Draw,
    *,
    draws: int,
    margins: Margins,
    unit: float,
    false_alarm: float = FALSE_ALARM,
    stop: bool = True,
    stop_gross: bool = False,
    is_sequential: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare a kernel with a plan on more and more inputs, for as long as a question is open.

    Args:
        kernel: The kernel.
        plan: The plan and its tiles.
        kinds: The kinds of inputs in words.
        draw: Returns the inputs of a kind, with independent heads.
        draws: The largest number of draws of each kind.
        margins: How much worse than the plan the kernel may be.
        unit: The least error that is taken for the plan's where a single head is judged.
        false_alarm: The probability that a kernel as good as the plan fails.
        stop: Whether the first failure ends the comparison, if it is sequential. An error that the
            kernel raises is a failure of these inputs if not, and else leaves the comparison.
        stop_gross: Whether a gross failure ends the comparison, after its draw.
        is_sequential: Whether the comparison ends as soon as every question is answered. Otherwise
            all draws are made, and judged once.
        tell: Called with words that say what runs.
    """
    began = time.perf_counter()
    stop = stop and is_sequential  # else a look after every draw would be one of many
    answer = Comparison(plan=plan.plan.name, false_alarm=false_alarm)
    pairs = {kind: _Pairs() for kind in kinds}
    level = level_of(false_alarm, len(kinds), draws if is_sequential else 1)
    bits: dict[str, list[float]] = {}
    is_explained = False
    for look in range(draws):
        asked = [k for k, p in pairs.items() if p.is_open or not is_sequential]
        for kind in (k for k in asked if k not in answer.raised):
            tell(f"draw {look + 1}: {kind}")
            x = draw(kind, look)
            try:
                own = kernel(x)
            except Unavailable:  # on this machine no call has an answer
                raise
            except Exception as error:  # whatever a library raises
                if stop:
                    raise
                answer.raised[kind] = raised(error)
                continue
            theirs = plan.outputs(x, backward=own.dq is not None)
            found: list[Gross] = []
            answer.heads += x.q.shape[0] * x.q.shape[2]
            for pair in of.pairs(x, own, theirs):
                share = float(agree(pair.mine, pair.theirs).mean())
                bits.setdefault(pair.name, []).append(share)
                if pair.name == "lse":
                    sizes = (float(e.row.max()) for e in (pair.kernel, pair.plan))
                    now = zip(answer.sums.get(kind, (0.0, 0.0)), sizes, strict=True)
                    answer.sums[kind] = tuple(max(two) for two in now)  # type: ignore[assignment]
                else:
                    pairs[kind].add(pair)
                found += of.gross(kind, pair, margins, unit)
            answer.gross += found
            if found and not answer.suspect:
                answer.suspect = suspected(x, own, theirs, found)
            pairs[kind].findings = list(_findings(pairs[kind], kind, margins, level))
            answer.findings = [f for p in pairs.values() for f in p.findings]
            bad = {g.result for g in answer.gross} | {f.result for f in answer.alarms}
            if "out" in bad and not is_explained:
                is_explained = True
                answer.other = "" if answer.suspect else of_output(x, own, theirs, plan)
            if stop and not answer.is_fine:
                break
            if stop_gross and answer.gross:
                answer.left_out = [k for k in kinds if not pairs[k].findings]
                break
        answer.looks = look + 1
        are_open = (p.is_open for kind, p in pairs.items() if kind not in answer.raised)
        if stop_gross and answer.gross:
            break
        if (is_sequential and not any(are_open)) or (stop and not answer.is_fine):
            break
    answer.equal = {name: float(np.mean(shares)) for name, shares in bits.items()}
    grossly = {g.result for g in answer.gross}
    if not answer.is_fine and grossly <= {"dk", "dv"} and not answer.suspect:  # as that kernel's
        answer.known = known_of(kernel, x)
    answer.seconds = time.perf_counter() - began
    return answer


def suspected(x: Inputs, own: Outputs, theirs: Outputs, found: Sequence[Gross]) -> str:
    """Return which mistake explains the gross errors of one call, in words; "" if none does.

    The output is asked about first, since the gradients follow from it.
    """
    order = {"out": 0, "lse": 1}
    first = min(found, key=lambda g: (order.get(g.result, 2), -g.size))
    return explained(x, own, theirs, first.result, first.head)


def level_of(false_alarm: float, kinds: int, draws: int) -> float:
    """Return the share of the false-alarm rate that each question of each look has."""
    questions = len(RESULTS) * sum(map(len, DIRECTIONS.values()))
    return false_alarm / (kinds * draws * questions)


def check_heads(heads: int, false_alarm: float, kinds: int, draws: int) -> None:
    """Raise ValueError if so few heads can give no evidence."""
    needed = heads_needed(level_of(false_alarm, kinds, draws))
    if heads * draws < needed:
        raise ValueError(
            f"batch * heads * draws = {heads * draws}: {needed} independent heads are needed for"
            f" evidence at false_alarm={false_alarm:g}; give more of them, or a larger false_alarm"
        )


def _findings(pairs: _Pairs, kind: str, margins: Margins, level: float) -> Iterator[Finding]:
    for name in pairs.kernel:
        kernel, plan = (_joined(side[name]) for side in (pairs.kernel, pairs.plan))
        apart = of.differences(kernel, plan)
        for statistic in STATISTICS:
            own, theirs = (_shown(e, statistic) for e in (kernel, plan))
            for direction in DIRECTIONS[statistic]:
                evidence = weigh(direction * apart[statistic], margins.of(statistic), level)
                if statistic in ("gain", "mean") and direction * own <= abs(theirs):
                    # nearer to 0 than the plan, in another direction
                    evidence = replace(evidence, chance=1.0, state=State.FINE)
                yield Finding(
                    inputs=kind,
                    result=name,
                    statistic=statistic,
                    direction=direction,
                    kernel=own,
                    plan=theirs,
                    heads=apart[statistic].size,
                    evidence=evidence,
                )


def _shown(e: Errors, statistic: str) -> float:
    values: np.ndarray = getattr(e, statistic)
    return float(values.max() if statistic == "row" else values.mean())


def _joined(parts: list[Errors]) -> Errors:
    names = (*STATISTICS, "at")
    return Errors(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})
