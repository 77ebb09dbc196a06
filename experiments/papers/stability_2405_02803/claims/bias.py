"""The tension with arXiv 2510.04212: magnitude, which tiling changes, and sign.

The largest |deviation| does not show the sign.
"""

from roundscope.experiments.framework.estimates import Estimate, mean, ratio
from roundscope.experiments.framework.verdicts import LARGER, Verdict, Word, interval, judge
from roundscope.experiments.papers.stability_2405_02803.claims.formats import own_ratio
from roundscope.experiments.papers.stability_2405_02803.conditions import ROW_SUM, biased
from roundscope.experiments.papers.stability_2405_02803.results import Results, query
from roundscope.experiments.papers.stability_2405_02803.scale import Scale

FIGURE, FAMILY = "tension", "repeated-maximum"


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return verdicts on the bias without tiling, on what tiling changes, and on the stabilizer."""
    return [
        untiled(r, scale),
        tiled(r, scale),
        removed(r, scale, 1),
        removed(r, scale, scale.counts[-1]),
        row_sum(r, scale),
        kept(r, scale),
    ]


def untiled(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on the signed error with one key tile."""
    point = biased(scale, FAMILY, 1, "none")
    found = mean(r.values(point, "mean_ulps"))
    return Verdict(
        figure=FIGURE,
        claim="the bias is there without any tiling",
        case=keys(1),
        sizes=where(scale),
        word=_nonzero(found),
        measured=(
            f"out {interval(found)} ulp, PV {interval(mean(r.values(point, 'PV.mean_ulps')))} ulp"
        ),
        estimate=found,
        queries=(query(point, "mean_ulps"), query(point, "PV.mean_ulps")),
    )


def tiled(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on the signed error with many key tiles over that with one."""
    points = [biased(scale, FAMILY, count, "none") for count in (scale.counts[-1], 1)]
    many, one = (r.values(point, "mean_ulps") for point in points)
    grown = ratio({s: abs(x) for s, x in many.items()}, {s: abs(x) for s, x in one.items()})
    return Verdict(
        figure=FIGURE,
        claim="tiling makes the bias larger",
        case=keys(scale.counts[-1]),
        sizes=where(scale),
        word=judge(grown, LARGER),
        measured=(
            f"out {interval(mean(many))} ulp, {interval(grown, 'x')} that of one key tile; "
            f"PV {interval(mean(r.values(points[0], 'PV.mean_ulps')))} ulp"
        ),
        estimate=grown,
        queries=(*(query(p, "mean_ulps") for p in points), query(points[0], "PV.mean_ulps")),
        note="ours: the two papers' effects are not independent on this input",
    )


def removed(r: Results, scale: Scale, count: int) -> Verdict:
    """Return the verdict on what the stabilizer leaves of the bias of PV."""
    points = [biased(scale, FAMILY, count, s) for s in ("2", "none")]
    left, before = (mean(r.values(point, "PV.mean_ulps")) for point in points)
    out, out_before = (mean(r.values(point, "mean_ulps")) for point in points)
    share = ratio(*({s: abs(x) for s, x in r.values(p, "PV.mean_ulps").items()} for p in points))
    return Verdict(
        figure=FIGURE,
        claim="the stabilizer removes the bias of PV",
        case=keys(count),
        sizes=where(scale),
        word=judge(share, (0.0, 0.25)),
        measured=(
            f"PV {interval(before)} to {interval(left)} ulp; out {interval(out_before)} to"
            f" {interval(out)} ulp"
        ),
        estimate=left,
        queries=(
            *(query(p, "PV.mean_ulps") for p in points),
            *(query(p, "mean_ulps") for p in points),
        ),
    )


def kept(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on the excess of tiling with the stabilizer."""
    point, before = (biased(scale, FAMILY, scale.counts[-1], s) for s in ("2", "none"))
    found = own_ratio(r, point, "rms")
    return Verdict(
        figure=FIGURE,
        claim="the stabilizer leaves the excess of tiling",
        case=keys(scale.counts[-1]),
        sizes=where(scale),
        word=judge(found, LARGER),
        measured=(
            f"rms {interval(found, 'x')} of unfused's, without it"
            f" {interval(own_ratio(r, before, 'rms'), 'x')}"
        ),
        estimate=found,
        queries=tuple(query(p, m) for p in (point, before) for m in ("rms", "unfused_rms")),
    )


def row_sum(r: Results, scale: Scale) -> Verdict:
    """Return the verdict on what the stabilizer leaves of the output's bias.

    It says what the row sum has to do with that.
    """
    points = [biased(scale, FAMILY, scale.counts[-1], "2", **more) for more in (ROW_SUM, {})]
    left, before = (mean(r.values(point, "mean_ulps")) for point in points)
    share = ratio(*({s: abs(x) for s, x in r.values(p, "mean_ulps").items()} for p in points))
    return Verdict(
        figure=FIGURE,
        claim="ours: what the stabilizer leaves comes from L kept in BF16",
        case=keys(scale.counts[-1]),
        sizes=where(scale),
        word=judge(share, (0.0, 0.5)),
        measured=f"out {interval(before)} to {interval(left)} ulp with L in FP32",
        estimate=share,
        queries=tuple(query(p, "mean_ulps") for p in points),
    )


def where(scale: Scale) -> str:
    """Return what the cases share, in words."""
    return f"qiu-yao, {FAMILY}, T {scale.bench[0]}"


def keys(count: int) -> str:
    """Return the number of key tiles in words."""
    return f"{count} key tile{'s' if count > 1 else ''}"


def _nonzero(e: Estimate) -> Word:
    """Return the word: it agrees if the interval leaves zero out, and never shows absence."""
    return Word.AGREES if e.low > 0.0 or e.high < 0.0 else Word.UNDECIDED
