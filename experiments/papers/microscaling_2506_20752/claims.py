"""All verdicts, in the order of the argument.

Does it fail, on what does that depend, what averts it, why, and what does the code do?
"""

from collections.abc import Iterator

from roundscope.experiments.framework.counts import counted, diverged, share, signs
from roundscope.experiments.framework.estimates import Estimate
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SMALLER,
    Range,
    Verdict,
    Word,
    interval,
    judge,
)
from roundscope.experiments.papers.microscaling_2506_20752 import (
    claims_arms,
    claims_code,
    claims_epsilon,
)
from roundscope.experiments.papers.microscaling_2506_20752.conditions import Scale
from roundscope.experiments.papers.microscaling_2506_20752.found import (
    Found,
    limit_ratio,
    limits,
    shown,
)
from roundscope.experiments.papers.microscaling_2506_20752.launches import Runs
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.results import paired

HALF = 0.5
RULES = (
    "Two arms are compared seed by seed, on the same rows from the same weights: which diverged"
    " earlier (never is later than all steps)? A claim agrees if the probability of so many wins,"
    " were a win as likely as a loss, is at most 0.05, one-sided; contradicts if that of the losses"
    " is, or, of a format that should diverge, if no run did and fewer than half would, by the"
    " interval of their share; else it is undecided, with too few seeds or because nothing is"
    " there. Shares have 95 % Clopper-Pearson intervals. A setting's limit is the lowest of its"
    " rates at which a seed diverged, and counts as moved from 5 % on; ratios of limits pair seeds,"
    " and seeds that no rate felled, or all did, say nothing. Intervals are not widened for the"
    " number of claims."
)


def judged(found: Found, scale: Scale) -> list[Verdict]:
    """Return verdicts on every claim of arXiv 2506.20752, and of ours, that runs can test.

    `static` has those of arithmetic.
    """
    return [
        *instability(found, scale),
        *paper(found, scale),
        *effects(found, scale),
        *claims_arms.hybrids(found, scale),
        *claims_arms.judged(found, scale),
        *claims_epsilon.judged(found, scale),
        *claims_code.judged(found, scale),
    ]


def instability(found: Found, scale: Scale) -> Iterator[Verdict]:
    """Yield verdicts: does a format diverge on rows on which FP32 does not?"""
    base = scale.base.name
    exact = found.of(base, EXACT)
    for name in scale.formats:
        own = found.of(base, name)
        if name == EXACT or not own or not exact:
            continue
        at, beside = found.of(base, name, scale.rate), found.of(base, EXACT, scale.rate)
        smooth = name == "bf16"
        here = "at this rate and length; the published setting is a row of its own"
        yield Verdict(
            figure="1",
            claim="BF16 is smooth" if smooth else "diverges where FP32 on the same rows does not",
            case=f"{name}, lr {scale.rate:g}, {scale.base.config.steps} steps",
            sizes="",
            word=_smooth(at) if smooth else _lone(at, beside),
            measured=f"{counted(at)}; FP32 {counted(beside)}",
            note="" if smooth else here,
        )
        if len(scale.base.rates) > 1:
            yield _limit(
                "1",
                f"{name} lowers the rate at which training diverges by 5 % or more",
                "all rates",
                own,
                exact,
                SMALLER,
            )


def _smooth(own: Runs) -> Word:
    """Return the word for runs that should not diverge.

    It agrees if fewer than half would, by the interval of their share.
    """
    low, high = share(diverged(own), len(own))
    return Word.AGREES if high <= HALF else Word.CONTRADICTS if low > HALF else Word.UNDECIDED


def _lone(own: Runs, exact: Runs) -> Word:
    """Return the word for runs that should diverge where FP32 does not.

    It agrees by the test of signs; it contradicts if no run diverged and fewer than half would, by
    the interval of their share.
    """
    word = signs(paired(own, exact)).word
    is_rare = not diverged(own) and share(0, len(own))[1] < HALF
    return Word.CONTRADICTS if word is Word.UNDECIDED and is_rare else word


def paper(found: Found, scale: Scale) -> Iterator[Verdict]:
    """Yield verdicts on the published setting, for as many steps as it was run."""
    claim = "the published setting: E4M3 diverges near step 5090, FP32 does not"
    if scale.paper is None:
        yield Verdict(
            figure="4",
            claim=claim,
            case="-",
            sizes="",
            word=Word.NOT_TESTABLE,
            measured="not run at this scale",
        )
        return
    setting, formats, _ = scale.paper
    config = setting.config
    exact = found.paper.get(EXACT, ())
    for name in formats:
        own = found.paper.get(name, ())
        if own and exact and name != EXACT:
            yield Verdict(
                figure="4",
                claim=claim,
                case=f"{name}, lr {config.lr:g}, {config.steps} steps",
                sizes="",
                word=_lone(own, exact),
                measured=f"{counted(own)}; FP32 {counted(exact)}",
            )


def effects(found: Found, scale: Scale) -> Iterator[Verdict]:
    """Yield what each change of the student does to the rates at which FP32 and the format fail."""
    for setting in scale.settings[1:]:
        for name in scale.few:
            own, base = found.of(setting.name, name), found.of(scale.base.name, name)
            if own and base and len(setting.rates) > 1:
                claim, holds = EFFECTS.get(
                    (setting.name, name == EXACT), (f"ours: {setting.name} moves the limit", None)
                )
                yield _limit("2", claim, f"{setting.name}, {name}", own, base, holds)
    for setting in scale.settings[1:]:
        for name in scale.few:
            own, exact = found.of(setting.name, name), found.of(setting.name, EXACT)
            if own and exact and name != EXACT:
                wins = signs(paired(own, exact))
                yield Verdict(
                    figure="2",
                    claim="the format diverges earlier than FP32 on the same rows",
                    case=f"{setting.name}, {name}",
                    sizes="",
                    word=wins.word,
                    measured=(
                        f"earlier in {wins.earlier} runs, later in {wins.later}, of {len(own)} at"
                        " all rates"
                    ),
                )


EFFECTS: dict[tuple[str, bool], tuple[str, Range]] = {
    ("no LN", True): ("without LN, FP32 is less stable", SMALLER),
    ("no LN", False): ("without LN, low precision is more stable", LARGER),
    ("gelu", True): ("SwiGLU destabilizes FP32 too: GeLU stands higher rates", LARGER),
    ("gelu", False): ("SwiGLU is worst: GeLU stands higher rates", LARGER),
}


def _limit(
    figure: str, claim: str, case: str, own: Runs, base: Runs, holds: Range | None
) -> Verdict:
    """Return the verdict on a ratio of limits; without a range the claim is that they differ."""
    e = limit_ratio(own, base)
    word = judge(e, holds) if holds else _differs(e)
    measured = (
        f"limit {interval(e, 'x')}: {shown(limits(own))} against {shown(limits(base))};"
        f" {counted(own)} of all rates"
    )
    return Verdict(
        figure=figure, claim=claim, case=case, sizes="", word=word, measured=measured, estimate=e
    )


def _differs(e: Estimate) -> Word:
    """Return the word: it agrees if the interval leaves out a change of less than 5 %."""
    return Word.AGREES if Word.AGREES in (judge(e, LARGER), judge(e, SMALLER)) else Word.UNDECIDED
