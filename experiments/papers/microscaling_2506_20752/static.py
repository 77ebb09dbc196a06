"""What of arXiv 2506.20752 and of its released code needs no training.

It is scales, clipping, clusters and rounding modes, on drawn numbers. Numbers called 'computed' are
from the notes to the paper and were computed without this library; here they are compared with the
library's roundings.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roundscope.emu import BLOCK_NAMED, block_format, from_blocks, to_blocks
from roundscope.emu.blocks.format import ScaleRule
from roundscope.experiments.framework.estimates import Estimate, mean, ratio
from roundscope.experiments.framework.verdicts import Range, Verdict, Word, interval, judge
from roundscope.experiments.papers.microscaling_2506_20752.draws import AS_BF16, NORMAL, Draws

NEAR = 0.02
E4M3, E5M2, E3M2 = "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2"
RULES = (
    "Arithmetic on drawn numbers: a 95 % t interval over 8 draws, against a computed number and"
    " what rounds to it, 2 % wider on both sides."
)
CLIPPED = {
    E4M3: ("17.0", "0.86"),
    E5M2: ("17.0", "0.86"),
    E3M2: ("17.0", "0.86"),
    "mxfp6_e2m3": ("9.6", "0.38"),
    "mxfp4": ("29.9", "2.35"),
}
CLUSTERS = (
    (0.95, ScaleRule.FLOOR, "7.96"),
    (0.95, ScaleRule.RCEIL, "1.6"),
    (0.90, ScaleRule.FLOOR, "3.0"),
    (0.90, ScaleRule.RCEIL, "2.5"),
)
EXAMPLE = (0.8974, 0.8963, 0.8836, 0.8847, 0.9037)
META = {"emax": 7, "max": 224.0}  # what the released FORMAT_META says of E3M2


def judged() -> list[Verdict]:
    """Return every verdict, in the order of the paper's argument, then of its code."""
    return [example(), *clusters(), *clipped(), harm(), bumped(), meta(), *ties(), blocks_of_16()]


def example() -> Verdict:
    """Return the verdict on the five weights of LayerNorm that the paper prints."""
    x = np.array(EXAMPLE, np.float32)
    kept = {
        rule: from_blocks(to_blocks(x, E4M3, rule=rule))
        for rule in (ScaleRule.FLOOR, ScaleRule.RCEIL)
    }
    alike = bool((kept[ScaleRule.FLOOR] == kept[ScaleRule.RCEIL]).all())
    shown = "; ".join(f"{rule} {_distinct(y)}" for rule, y in kept.items())
    return _exact(
        "3.3",
        "five clustered scales of LayerNorm become one number because they exceed the largest"
        " element",
        "E4M3",
        not alike,
        shown,
        (
            "with a scale that clips nothing they become the same: the grid does it, not the clamp"
            if alike
            else ""
        ),
    )


def clusters() -> list[Verdict]:
    """Return verdicts on how much a cluster loses by the clamp, and by the grid."""
    found = []
    for centre, rule, rms in CLUSTERS:
        draws, f = Draws(spread=0.01, centre=centre), replace(BLOCK_NAMED[E4M3], rule=rule)
        e = draws.of(f, lambda s: 100 * s.relative_rms)
        lost = draws.of(f, lambda s: 100 * s.relative_shrink)
        told = f"rms {interval(e, ' %')}, shrink {interval(lost, ' %')}"
        found.append(
            _near(
                "3.3",
                f"computed: a cluster at {centre:.2f} has an rms error of {rms} %",
                f"E4M3 {rule}",
                e,
                rms,
                told,
            )
        )
    return found


def clipped() -> list[Verdict]:
    """Return verdicts on how many blocks and numbers of N(0, 1) clip."""
    found = []
    for name, (blocks, numbers) in CLIPPED.items():
        both = [
            NORMAL.of(name, lambda s: 100 * s.clipped_blocks / s.blocks),
            NORMAL.of(name, lambda s: 100 * s.clipped / s.numbers),
        ]
        claim = f"computed: FLOOR clips {blocks} % of blocks of N(0, 1), {numbers} % of numbers"
        words = [judge(e, _about(c)) for e, c in zip(both, (blocks, numbers), strict=True)]
        word = words[0] if words[0] is words[1] else Word.UNDECIDED
        told = f"{interval(both[0], ' %')} of blocks, {interval(both[1], ' %')} of numbers"
        found.append(
            Verdict(
                figure="3.3",
                claim=claim,
                case=name,
                sizes="",
                word=word,
                measured=told,
                estimate=both[0],
            )
        )
    return found


def harm() -> Verdict:
    """Return the verdict on clipped numbers that lose nothing by it."""
    e = NORMAL.of(E4M3, lambda s: 100 * (1 - s.saturated / s.clipped))
    more = NORMAL.of(E4M3, lambda s: 100 * s.relative_excess)
    return Verdict(
        figure="3.3",
        claim="the clip fraction counts numbers that clipping harms",
        case="E4M3, N(0, 1)",
        sizes="",
        word=judge(e, (0.0, 1.0)),
        estimate=e,
        measured=(
            f"{interval(e, ' %')} of them become the largest element anyway; {interval(more, ' %')}"
            " of the error is excess over RCEIL"
        ),
    )


def bumped() -> Verdict:
    """Return the verdict on `bump` against RCEIL, over every fraction that binary32 has."""
    x = (np.arange(1 << 23, dtype=np.int32) + (127 << 23)).view(np.float32).reshape(-1, 1)
    differ = {name: _differ(x, name) for name in (E4M3, E5M2, E3M2)}
    told = ", ".join(f"{name}: {n}" for name, n in differ.items())
    return _exact(
        "3.5",
        "ours: the intervention `bump` is RCEIL, equality included",
        f"all {x.size} fractions of a maximum",
        not any(differ.values()),
        f"scales that differ, {told}",
    )


def _differ(x: np.ndarray, name: str) -> int:
    scales = [
        to_blocks(x, replace(block_format(name, rule=rule), size=1)).scales
        for rule in (ScaleRule.BUMP, ScaleRule.RCEIL)
    ]
    return int((np.asarray(scales[0]) != np.asarray(scales[1])).sum())


def meta() -> Verdict:
    """Return the verdict on discrepancy f: FORMAT_META's E3M2."""
    f = BLOCK_NAMED[E3M2].element.format
    wrong, right = META["max"] / 2.0 ** META["emax"], f.max_finite / 2.0**f.emax
    return _exact(
        "3.5 f",
        "wrong constants of E3M2 make its clip fraction wrong",
        E3M2,
        wrong != right,
        f"code: emax {META['emax']}, largest {META['max']:g}; true: {f.emax}, {f.max_finite:g};"
        f" both clip above {wrong:g} 2^floor(log2 a)",
        f"{'the two errors cancel in the threshold; ' if wrong == right else ''}E2M3, which the"
        " code has not, is not judged",
    )


def ties() -> list[Verdict]:
    """Return the verdict on discrepancy g: ties away from zero against ties to even.

    The numbers are BF16, as the emulator's are.
    """
    found = []
    for rule in (ScaleRule.FLOOR, ScaleRule.RCEIL):
        even, away = (
            replace(block_format(E4M3, mode), rule=rule)
            for mode in ("ties-to-even", "ties-to-away")
        )
        both = [AS_BF16.each(f, lambda s: 1e3 * s.relative_shrink) for f in (even, away)]
        moved = mean({n: both[1][n] - both[0][n] for n in both[0]})
        found.append(
            Verdict(
                figure="3.5 g",
                claim="ours: ties away from zero lengthen numbers that nearest even does not",
                case=f"E4M3 {rule}, BF16 inputs",
                sizes="",
                word=judge(moved, (1e-3, np.inf)),
                estimate=moved,
                measured=(
                    f"by {interval(moved)} thousandths of their size: even"
                    f" {interval(mean(both[0]))}, away {interval(mean(both[1]))}"
                ),
            )
        )
    return found


def blocks_of_16() -> Verdict:
    """Return the verdict on discrepancy i: a metric of blocks of 16 for a training with 32."""
    small = replace(BLOCK_NAMED[E4M3], size=16)
    e = ratio(
        *(NORMAL.each(f, lambda s: s.clipped / s.numbers) for f in (small, BLOCK_NAMED[E4M3]))
    )
    return Verdict(
        figure="3.5 i",
        claim="the clip fraction of blocks of 16 is that of blocks of 32",
        case="E4M3, N(0, 1)",
        sizes="",
        word=judge(e, (1 - NEAR, 1 + NEAR)),
        measured=f"{interval(e, 'x')} as large",
        estimate=e,
    )


def _near(figure: str, claim: str, case: str, e: Estimate, computed: str, told: str) -> Verdict:
    word = judge(e, _about(computed))
    return Verdict(
        figure=figure, claim=claim, case=case, sizes="", word=word, measured=told, estimate=e
    )


def _about(computed: str) -> Range:
    """Return the range of what rounds to a printed number, widened by NEAR of it on both sides."""
    x, half = float(computed), 0.5 * 10.0 ** -len(computed.partition(".")[2])
    return (x - half) * (1 - NEAR), (x + half) * (1 + NEAR)


def _exact(figure: str, claim: str, case: str, holds: bool, told: str, note: str = "") -> Verdict:
    word = Word.AGREES if holds else Word.CONTRADICTS
    return Verdict(
        figure=figure, claim=claim, case=case, sizes="", word=word, measured=told, note=note
    )


def _distinct(y: Sequence[float] | np.ndarray) -> str:
    return ", ".join(f"{v:g}" for v in sorted(set(map(float, y))))
