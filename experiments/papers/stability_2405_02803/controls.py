"""What the paper does not have: controls of the cause, and sign beside magnitude.

Is it the rescales? Controls are in BF16 with many key tiles. The largest |deviation| does not show
the sign, of which arXiv 2510.04212 speaks, so the two papers seem to disagree.
"""

from collections.abc import Iterator
from functools import partial

from roundscope.experiments.framework.estimates import Values, mean, ratio
from roundscope.experiments.framework.verdicts import (
    LARGER,
    SMALLER,
    Verdict,
    Word,
    interval,
    judge,
)
from roundscope.experiments.papers.stability_2405_02803.claims import excess
from roundscope.experiments.papers.stability_2405_02803.conditions import (
    CONTROLS,
    ROW_SUM,
    Point,
    Scale,
    biased,
    narrow,
)
from roundscope.experiments.papers.stability_2405_02803.measuring import Results, queries

CLAIMS = {  # a control of CONTROLS -> what it says if the deviation falls
    "rescale events in FP32": "the excess of tiling comes from the rescales",
    "running output (AO, PV, O) in FP32": ("ours: it comes from the running output kept in BF16"),
    "row sum (AL, ROWSUM, L) in FP32": "ours: it comes from the row sum kept in BF16",
    "both in FP32": "ours: from one of the two",
}
FAMILY = "repeated-maximum"


def cause(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield the verdicts on what removes the excess of tiling, and on where there is none."""
    tiles = f"ops:bf16, T {scale.bench[0]}, {scale.bench[0] // scale.narrow} key tiles"
    verdict = partial(Verdict, figure="cause", sizes=tiles)
    for what, claim in CLAIMS.items():
        for family in ("gaussian", "sink"):
            base, changed = narrow(scale, family), narrow(scale, family, **CONTROLS[what])
            found = r.ratio((changed, "rms"), (base, "rms"))
            after = r.ratio((changed, "rms"), (base, "unfused_rms"))
            output = narrow(scale, family, **CONTROLS["O in FP32"])
            alone = r.ratio((output, "rms"), (base, "rms"))
            hidden = (
                "AO rounds in every tile, rescaled or not, and hides behind O as O behind AO: O"
                f" alone in FP32 gives {interval(alone, 'x')}"
            )
            yield verdict(
                claim=claim,
                case=f"{what}, {family}",
                word=judge(found, SMALLER),
                measured=(
                    f"rms {interval(found, 'x')}: from {interval(excess(r, base, 'rms'), 'x')} to"
                    f" {interval(after, 'x')} of unfused's"
                ),
                estimate=found,
                queries=queries((changed, "rms"), (base, "rms"), (base, "unfused_rms")),
                note=hidden if what == "rescale events in FP32" else "",
            )
    # the maximum of a sink is reached in the first tile
    base = narrow(scale, "sink")
    rescales, left = mean(r.values(base, "rescales")), excess(r, base, "rms")
    words = {judge(rescales, (-1.0, 0.01)), judge(left, LARGER)}
    yield verdict(
        claim="no excess without rescales",
        case="sink",
        word=(
            Word.CONTRADICTS
            if words == {Word.AGREES}
            else Word.UNDECIDED
            if Word.UNDECIDED in words
            else Word.AGREES
        ),
        measured=(
            f"{interval(rescales)} rescales per row, yet rms {interval(left, 'x')} of unfused's"
        ),
        estimate=left,
        queries=queries(*((base, m) for m in ("rescales", "rms", "unfused_rms"))),
        note=(
            "what each tile adds is rounded away against sums that are large from the first tile on"
        ),
    )
    last = narrow(scale, "sink", key_order="descending")
    found = r.ratio((last, "rms"), (base, "rms"))
    yield verdict(
        claim="ours: the sink met last, the excess is smaller",
        case="key_order=descending",
        word=judge(found, SMALLER),
        measured=f"rms {interval(found, 'x')}",
        estimate=found,
        queries=queries((last, "rms"), (base, "rms")),
    )


def bias(r: Results, scale: Scale) -> Iterator[Verdict]:
    """Yield verdicts on the bias without tiling, on what tiling changes, and on the stabilizer."""
    verdict = partial(Verdict, figure="tension", sizes=f"qiu-yao, {FAMILY}, T {scale.bench[0]}")
    most = scale.counts[-1]
    keys = {count: f"{count} key tile{'s' if count > 1 else ''}" for count in (1, most)}
    plain = {count: biased(scale, FAMILY, count, "none") for count in (1, most)}
    stabilized = {count: biased(scale, FAMILY, count, "2") for count in (1, most)}

    def size(point: Point, metric: str) -> Values:
        return {seed: abs(x) for seed, x in r.values(point, metric).items()}

    def shown(point: Point, metric: str) -> str:
        return interval(mean(r.values(point, metric)))

    found = mean(r.values(plain[1], "mean_ulps"))
    yield verdict(
        claim="the bias is there without any tiling",
        case=keys[1],
        # it agrees if the interval leaves zero out, and never shows absence
        word=Word.AGREES if found.low > 0.0 or found.high < 0.0 else Word.UNDECIDED,
        measured=f"out {interval(found)} ulp, PV {shown(plain[1], 'PV.mean_ulps')} ulp",
        estimate=found,
        queries=queries((plain[1], "mean_ulps"), (plain[1], "PV.mean_ulps")),
    )
    grown = ratio(size(plain[most], "mean_ulps"), size(plain[1], "mean_ulps"))
    yield verdict(
        claim="tiling makes the bias larger",
        case=keys[most],
        word=judge(grown, LARGER),
        measured=(
            f"out {shown(plain[most], 'mean_ulps')} ulp, {interval(grown, 'x')} that of one key"
            f" tile; PV {shown(plain[most], 'PV.mean_ulps')} ulp"
        ),
        estimate=grown,
        queries=queries(
            (plain[most], "mean_ulps"), (plain[1], "mean_ulps"), (plain[most], "PV.mean_ulps")
        ),
        note="ours: the two papers' effects are not independent on this input",
    )
    for count in (1, most):
        after, before = points = stabilized[count], plain[count]
        share = ratio(*(size(point, "PV.mean_ulps") for point in points))
        yield verdict(
            claim="the stabilizer removes the bias of PV",
            case=keys[count],
            word=judge(share, (0.0, 0.25)),
            measured=(
                f"PV {shown(before, 'PV.mean_ulps')} to {shown(after, 'PV.mean_ulps')} ulp; out"
                f" {shown(before, 'mean_ulps')} to {shown(after, 'mean_ulps')} ulp"
            ),
            estimate=mean(r.values(after, "PV.mean_ulps")),
            queries=queries(*((p, m) for m in ("PV.mean_ulps", "mean_ulps") for p in points)),
        )
    after = biased(scale, FAMILY, most, "2", **ROW_SUM)
    share = ratio(size(after, "mean_ulps"), size(stabilized[most], "mean_ulps"))
    yield verdict(
        claim="ours: what the stabilizer leaves comes from L kept in BF16",
        case=keys[most],
        word=judge(share, (0.0, 0.5)),
        measured=(
            f"out {shown(stabilized[most], 'mean_ulps')} to {shown(after, 'mean_ulps')} ulp with L"
            " in FP32"
        ),
        estimate=share,
        queries=queries((after, "mean_ulps"), (stabilized[most], "mean_ulps")),
    )
    points = stabilized[most], plain[most]
    kept, without = (excess(r, point, "rms") for point in points)
    yield verdict(
        claim="the stabilizer leaves the excess of tiling",
        case=keys[most],
        word=judge(kept, LARGER),
        measured=(f"rms {interval(kept, 'x')} of unfused's, without it {interval(without, 'x')}"),
        estimate=kept,
        queries=queries(*((p, m) for p in points for m in ("rms", "unfused_rms"))),
    )
