"""Is it the rescales? Controls of the cause, in BF16 with many key tiles."""

from roundscope.experiments.framework.estimates import mean, ratio
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SMALLER,
    Verdict,
    Word,
    interval,
    judge,
)
from roundscope.experiments.papers.stability_2405_02803.claims.formats import own_ratio
from roundscope.experiments.papers.stability_2405_02803.conditions import CONTROLS, narrow
from roundscope.experiments.papers.stability_2405_02803.results import Results, query
from roundscope.experiments.papers.stability_2405_02803.scale import Scale

RESCALES, OUTPUT, ROW_SUM, BOTH = (
    name for name in CONTROLS if name.endswith("in FP32") and not name.startswith("O ")
)
CLAIMS = {
    RESCALES: "the excess of tiling comes from the rescales",
    OUTPUT: "ours: it comes from the running output kept in BF16",
    ROW_SUM: "ours: it comes from the row sum kept in BF16",
    BOTH: "ours: from one of the two",
}


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return the verdicts on the cause."""
    return [
        *(control(r, scale, family, what) for what in CLAIMS for family in ("gaussian", "sink")),
        without(r, scale),
        order(r, scale),
    ]


def control(r: Results, scale: Scale, family: str, what: str) -> Verdict:
    """Return the verdict on the deviation with some events in FP32 over that with all in BF16.

    The claim says that it falls.
    """
    base, changed = narrow(scale, family), narrow(scale, family, **CONTROLS[what])
    found = ratio(r.values(changed, "rms"), r.values(base, "rms"))
    before = own_ratio(r, base, "rms")
    after = ratio(r.values(changed, "rms"), r.values(base, "unfused_rms"))
    alone = ratio(
        r.values(narrow(scale, family, **CONTROLS["O in FP32"]), "rms"), r.values(base, "rms")
    )
    hidden = (
        "AO rounds in every tile, rescaled or not, and hides behind O as O behind AO: O alone in"
        f" FP32 gives {interval(alone, 'x')}"
    )
    return Verdict(
        figure="cause",
        claim=CLAIMS[what],
        case=f"{what}, {family}",
        sizes=tiles(scale),
        word=judge(found, SMALLER),
        measured=(
            f"rms {interval(found, 'x')}: from {interval(before, 'x')} to {interval(after, 'x')} of"
            " unfused's"
        ),
        estimate=found,
        queries=(query(changed, "rms"), query(base, "rms"), query(base, "unfused_rms")),
        note=hidden if what == RESCALES else "",
    )


def without(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on an input whose maximum is reached in the first tile."""
    point = narrow(scale, "sink")
    rescales, excess = mean(r.values(point, "rescales")), own_ratio(r, point, "rms")
    none, more = judge(rescales, (-1.0, 0.01)), judge(excess, LARGER)
    word = (
        Word.CONTRADICTS
        if none is more is Word.AGREES
        else Word.UNDECIDED
        if Word.UNDECIDED in (none, more)
        else Word.AGREES
    )
    return Verdict(
        figure="cause",
        claim="no excess without rescales",
        case="sink",
        sizes=tiles(scale),
        word=word,
        measured=(
            f"{interval(rescales)} rescales per row, yet rms {interval(excess, 'x')} of unfused's"
        ),
        estimate=excess,
        queries=tuple(query(point, m) for m in ("rescales", "rms", "unfused_rms")),
        note=(
            "what each tile adds is rounded away against sums that are large from the first tile on"
        ),
    )


def order(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on the sink met last instead of first."""
    base, other = narrow(scale, "sink"), narrow(scale, "sink", key_order="descending")
    found = ratio(r.values(other, "rms"), r.values(base, "rms"))
    return Verdict(
        figure="cause",
        claim="ours: the sink met last, the excess is smaller",
        case="key_order=descending",
        sizes=tiles(scale),
        word=judge(found, SMALLER),
        measured=f"rms {interval(found, 'x')}",
        estimate=found,
        queries=(query(other, "rms"), query(base, "rms")),
    )


def tiles(scale: Scale) -> str:
    """Return the bench of controls in words."""
    return f"ops:bf16, T {scale.bench[0]}, {scale.bench[0] // scale.narrow} key tiles"
