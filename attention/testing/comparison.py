"""Is a kernel as good as a plan? Both are compared with exact attention on the same tensors.

The questions are paired: the errors of a kernel are compared with the errors that the plan has on
the same inputs, since the plan itself is biased on some of them. `evidence` says how a paired
difference becomes an answer.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.errors import STATISTICS, Errors, differences
from roundscope.attention.testing.evidence import Evidence, State, heads_needed, weigh
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.foreign.user import Kernel
from roundscope.attention.testing.gross import Gross, Pair, gross
from roundscope.attention.testing.gross import pairs as of_results
from roundscope.attention.testing.margins import Margins
from roundscope.attention.testing.reference import Reference
from roundscope.emu.stats.comparison import agree
from roundscope.emu.testing.foreign import raised

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
    for look in range(draws):
        asked = [k for k, p in pairs.items() if p.is_open or not is_sequential]
        for kind in (k for k in asked if k not in answer.raised):
            tell(f"draw {look + 1}: {kind}")
            x = draw(kind, look)
            try:
                own = kernel(x)
            except Exception as error:  # whatever a library raises
                if stop:
                    raise
                answer.raised[kind] = raised(error)
                continue
            theirs = plan.outputs(x, backward=own.dq is not None)
            answer.heads += x.q.shape[0] * x.q.shape[2]
            for pair in of_results(x, own, theirs):
                mine, array = getattr(own, pair.name), getattr(theirs, pair.name)
                bits.setdefault(pair.name, []).append(float(agree(mine, array).mean()))
                pairs[kind].add(pair)
                answer.gross += gross(kind, pair, mine, array, margins, unit)
            pairs[kind].findings = list(_findings(pairs[kind], kind, margins, level))
            answer.findings = [f for p in pairs.values() for f in p.findings]
            if stop and not answer.is_fine:
                break
        answer.looks = look + 1
        is_answered = is_sequential and not any(
            p.is_open for kind, p in pairs.items() if kind not in answer.raised
        )
        if is_answered or (stop and not answer.is_fine):
            break
    answer.equal = {name: float(np.mean(shares)) for name, shares in bits.items()}
    answer.seconds = time.perf_counter() - began
    return answer


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
    """Yield the answers of all questions on one kind of inputs."""
    for name in pairs.kernel:
        kernel, plan = (_joined(side[name]) for side in (pairs.kernel, pairs.plan))
        apart = differences(kernel, plan)
        for statistic in STATISTICS:
            own, theirs = (_shown(e, statistic) for e in (kernel, plan))
            for direction in DIRECTIONS[statistic]:
                evidence = weigh(direction * apart[statistic], margins.of(statistic), level)
                if statistic in ("gain", "mean") and direction * own <= abs(theirs):
                    evidence = _settled(evidence)
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


def _settled(e: Evidence) -> Evidence:
    """Return the evidence of a kernel that is nearer to 0 than the plan, in another direction."""
    return Evidence(mean=e.mean, error=e.error, chance=1.0, state=State.FINE)


def _shown(e: Errors, statistic: str) -> float:
    values: np.ndarray = getattr(e, statistic)
    return float(values.max() if statistic == "row" else values.mean())


def _joined(parts: list[Errors]) -> Errors:
    return Errors(
        **{n: np.concatenate([getattr(p, n) for p in parts]) for n in (*STATISTICS, "at")}
    )
