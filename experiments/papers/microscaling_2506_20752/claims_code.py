"""Which discrepancies between the paper and its released code change a conclusion.

For each of them a run decides, or arithmetic, or nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roundscope.experiments.framework.counts import counted, signs
from roundscope.experiments.framework.estimates import ratio
from roundscope.experiments.framework.verdicts import SAME, Verdict, Word, interval, judge
from roundscope.experiments.papers.microscaling_2506_20752 import static
from roundscope.experiments.papers.microscaling_2506_20752.claims_epsilon import middle, runs_of
from roundscope.experiments.papers.microscaling_2506_20752.conditions import FROZEN, Scale
from roundscope.experiments.papers.microscaling_2506_20752.found import Found
from roundscope.experiments.papers.microscaling_2506_20752.outcomes import Effect, Outcome, outcome
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import paired

RULES = (
    "Discrepancies: 'agrees' says that the conclusion changes, 'contradicts' that it does not,"
    " 'undecided' that an arm showed no effect beyond the shams, which is no proof that there is"
    " none."
)

REVERSE = {Word.AGREES: Word.CONTRADICTS, Word.CONTRADICTS: Word.AGREES}
Decide = Callable[[Found, Scale], tuple[Word, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One discrepancy.

    decide  gives (word, what was measured)
    by      what decides it
    """

    letter: str
    claim: str
    by: str
    decide: Decide


def judged(found: Found, scale: Scale) -> list[Verdict]:
    """Return a verdict for each discrepancy."""
    rows = [(f, *f.decide(found, scale)) for f in FINDINGS]
    return [
        Verdict(
            figure=f"3.5 {f.letter}", claim=f.claim, case=f.by, sizes="", word=word, measured=told
        )
        for f, word, told in rows
    ]


def _arms(*names: str) -> Decide:
    """Return a decision: whether any of these interventions did anything, at any lead."""

    def decide(found: Found, scale: Scale) -> tuple[Word, str]:
        own = _outcomes(found, scale, names)
        if not own:
            return Word.NOT_TESTABLE, "no interventions were run"
        acted = any(o.effect is not Effect.NONE for o in own)
        return Word.AGREES if acted else Word.UNDECIDED, _told(own)

    return decide


def _outcomes(found: Found, scale: Scale, names: Sequence[str]) -> list[Outcome]:
    every = [outcome(found.parted, lead, name) for name in names for lead in scale.leads]
    return [o for o in every if o.runs]


def _told(own: Sequence[Outcome]) -> str:
    return "; ".join(f"{o.name}, {o.lead} before: {o.effect}" for o in own)


def _frozen(found: Found, scale: Scale) -> tuple[Word, str]:
    """Decide b: does a shift that is frozen from the first step on move the divergence?"""
    own = found.of(scale.base.name, f"{scale.mx}, {FROZEN}")
    base = found.of(scale.base.name, scale.mx, scale.rate)
    if not own or not base:
        return Word.NOT_TESTABLE, "was not run"
    moved = signs(paired(own, base)).word is not Word.UNDECIDED
    word = Word.AGREES if moved else Word.UNDECIDED
    return word, f"{counted(own)}; trained {counted(base)}"


def _confounded(found: Found, scale: Scale) -> tuple[Word, str]:
    """Decide b': is LN's precision alone judged as precision and shift together are, as released?

    The shift is trained in both.
    """
    ln, frozen = (
        found.of(scale.base.name, f"{scale.mx}, {name}") for name in ("LN in FP32", FROZEN)
    )
    base = found.of(scale.base.name, scale.mx, scale.rate)
    if not (ln and frozen and base):
        return Word.NOT_TESTABLE, "was not run"
    alone, released = signs(paired(base, ln)), signs(paired(frozen, ln))
    measured = (
        f"LN in FP32 {counted(ln)}: later in {alone.earlier} of {len(ln)} seeds than LN in BF16"
        f" with a trained shift, in {released.earlier} than with a frozen one"
    )
    if alone.word is not released.word:
        return Word.AGREES, measured
    decided = alone.word is not Word.UNDECIDED
    return (Word.CONTRADICTS if decided else Word.UNDECIDED), measured


def _targets(found: Found, scale: Scale) -> tuple[Word, str]:
    """Decide d: does the failure need other targets in MX?"""
    own, exact = (found.of(scale.base.name, f, scale.rate) for f in (scale.mx, EXACT))
    if not own or not exact:
        return Word.NOT_TESTABLE, "the base was not run"
    wins = signs(paired(own, exact))
    measured = (
        f"{scale.mx} diverges earlier than FP32 with the same targets in {wins.earlier} of"
        f" {len(own)} seeds"
    )
    return (Word.CONTRADICTS if wins.word is Word.AGREES else Word.UNDECIDED), measured


def _states(found: Found, scale: Scale) -> tuple[Word, str]:
    """Decide e: is the epsilon of two trainings that of the formats?"""
    if not runs_of(found):
        return Word.NOT_TESTABLE, "epsilon was not measured"
    apart = ratio(middle(found, "zeta_apart"), middle(found, "zeta"))
    word = REVERSE.get(judge(apart, SAME), Word.UNDECIDED)
    return word, f"zeta of two trainings is {interval(apart, 'x')} that at the same state"


def _arithmetic(judged: Callable[[], Verdict], *, reverse: bool = False) -> Decide:
    """Return a decision: the conclusion changes where the code's number is not the true one."""

    def decide(found: Found, scale: Scale) -> tuple[Word, str]:
        own = judged()
        return REVERSE.get(own.word, own.word) if reverse else own.word, own.measured

    return decide


def _not(why: str) -> Decide:
    return lambda found, scale: (Word.NOT_TESTABLE, why)


FINDINGS = (
    Finding(
        letter="a",
        claim="LN's scales are never in MX: it matters",
        by="run: gamma in MX",
        decide=_arms("gamma in MX"),
    ),
    Finding(
        letter="b",
        claim="LN's shift is frozen in MX: it matters",
        by="run: frozen from the first step",
        decide=_frozen,
    ),
    Finding(
        letter="b'",
        claim="the LN intervention also trains the shift: its effect is not LN's precision",
        by="run: both, from the first step",
        decide=_confounded,
    ),
    Finding(
        letter="c",
        claim="GeLU is never rounded: it matters",
        by="run: phi in FP32",
        decide=_arms("phi in FP32"),
    ),
    Finding(
        letter="d",
        claim="FP32 and MX have other targets: the failure needs that",
        by="run: same targets in both",
        decide=_targets,
    ),
    Finding(
        letter="e",
        claim="epsilon is of two states: it is not the formats' error",
        by="run: both, same rows",
        decide=_states,
    ),
    Finding(
        letter="f",
        claim="wrong constants of E3M2: its clip fraction is wrong",
        by="arithmetic",
        decide=_arithmetic(static.meta),
    ),
    Finding(
        letter="g",
        claim="ties go away from zero: that matters",
        by="run: ties to away",
        decide=_arms("ties to away"),
    ),
    Finding(
        letter="h",
        claim="the transformer's MX file is not used",
        by="not decided",
        decide=_not("no run of the paper depends on it"),
    ),
    Finding(
        letter="i",
        claim="clip fractions of blocks of 16: not those of the training",
        by="arithmetic",
        decide=_arithmetic(static.blocks_of_16, reverse=True),
    ),
)
