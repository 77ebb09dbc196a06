"""The sentence that opens a sweep's report, and the caption of its first picture."""

import numpy as np

from roundscope.tools.sweep.report.effects import Shares, fold, mean_interval
from roundscope.tools.sweep.report.lost import lost
from roundscope.tools.sweep.report.lost import sentence as lost_sentence
from roundscope.tools.sweep.report.words import fold as times
from roundscope.tools.sweep.report.words import listed, many, number, percent, with_interval
from roundscope.tools.sweep.storage.frames import Frame


def sentence(frame: Frame, found: Shares) -> str:
    """Return what is NaN or infinite, and which axis matters most for the deviation elsewhere."""
    if not frame.rows:
        return f"None of {len(frame.failed)} cells is ok; below is why."
    first = lost_sentence(frame, lost(frame))
    if not first:
        return _axis(frame, found)
    if not frame.axes or not found.cells:
        return first
    return (
        f"{first} Over the {many(found.cells, 'cell')} of finite rms above 0: {_axis(frame, found)}"
    )


def _axis(frame: Frame, found: Shares) -> str:
    if not found.cells:
        return "No cell has a finite deviation above 0, so no axis can explain it."
    if not frame.axes:
        return _alone(frame)
    first = found.effects[0]
    if first.share == 0.0:
        return f"No axis matters: rms is {number(_rms(frame))} in every cell."
    if np.isnan(first.limit):
        return f"{_most(frame, found)}; without several seeds nothing tells an effect from chance."
    if not first.stands_out:
        share = percent(first.share)
        return (
            f"No axis stands out from the seeds: the largest, {first.axis.label}, explains {share}"
            " of the variance of log rms."
        )
    return f"{_most(frame, found)}{_next(found)}; the seeds alone make {percent(found.seeds)}."


def _most(frame: Frame, found: Shares) -> str:
    first = found.effects[0]
    codes, means = fold(frame, first.axis)
    high = first.axis.word(int(codes[means.argmax()]))
    low = first.axis.word(int(codes[means.argmin()]))
    ratio = 10 ** float(means.max() - means.min())
    than = f"{times(ratio)} at {high} than at {low}"
    if ratio >= 2:
        than = f"{times(ratio)} as large at {high} as at {low}"
    explains = f"it explains {percent(first.share)} of the variance of log rms, and rms is {than}"
    return f"{first.axis.label} matters most for the deviation: {explains}"


def _next(found: Shares) -> str:
    if len(found.effects) < 2:
        return ""
    second = found.effects[1]
    return (
        f"; next is {second.axis.label} with"
        f" {percent(second.share)}{'' if second.stands_out else ', which seeds could give too'}"
    )


def _alone(frame: Frame) -> str:
    rms, largest = (mean_interval(frame.metric(name)) for name in ("rms", "max_abs"))
    count = len(frame.rows)
    seeds = f"{count} seeds of one condition" if count > 1 else "One condition, one seed"
    share = percent(mean_interval(frame.metric("rel_rms"))[0])
    return (
        f"{seeds}: rms from float64 is {with_interval(*rms)} ({share} of its rms), the largest"
        f" difference {with_interval(*largest)}."
    )


def _rms(frame: Frame) -> float:
    rms = frame.metric("rms")
    return mean_interval(rms[np.isfinite(rms)])[0]


def opening(frame: Frame, found: Shares) -> str:
    """Return the caption of the opening picture."""
    crossed = "Combinations: what the axes explain together, beyond each alone."
    if not found.crossed:
        crossed = (
            "The axes are not fully crossed here: an axis' share contains that of others that"
            " change with it."
        )
    limit = "One seed: the level of noise is not known."
    if any(np.isfinite(e.limit) for e in found.effects):
        limit = (
            "Blue line: what the seeds could give by chance (1 % over all axes); red: beyond it."
        )
    seeds = ""
    if np.isfinite(found.seeds):
        seeds = " Seeds: the variance within conditions, which no axis explains."
    return (
        f"Left: the share of the variance of log rms over {found.cells} cells that lies between the"
        f" values of one axis (main effect, eta squared). {limit} {crossed}{seeds} Right: the rms"
        f" of every cell by {found.effects[0].axis.label} (dots), geometric means"
        f" (lines).{_missing(frame)}"
    )


def _missing(frame: Frame) -> str:
    rms = frame.metric("rms")
    left = [
        f"{many(n, 'cell')} {what}"
        for n, what in (
            (int(np.isinf(rms).sum()), "of infinite rms (red triangles)"),
            (int(np.isnan(rms).sum()), "without an rms"),
            (int((rms == 0).sum()), "of rms 0"),
        )
        if n
    ]
    return f" Left out of shares and means: {listed(left)}." if left else ""


def seeds(frame: Frame) -> str:
    """Return the caption of the picture of seeds."""
    infinite = int(lost(frame).cells.sum())
    left = f" {infinite} of them have NaN or infinite results: no dots." if infinite else ""
    return (
        f"{len(frame.rows)} seeds (dots); line and band: mean and its 95 % t interval over seeds,"
        f" of the logarithm for rms and largest.{left}"
    )
