"""All verdicts, in the order of the paper's figures, and what cannot be tested."""

from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.experiments.papers.stability_2405_02803.claims import (
    bias,
    cause,
    drift,
    formats,
    lengths,
    tiles,
)
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import Scale


def judged(r: Results, scale: Scale) -> list[Verdict]:
    """Return verdicts on every claim of arXiv 2405.02803.

    Some are on arXiv 2510.04212, where the two papers seem to disagree.
    """
    return [
        *formats.judged(r, scale),
        *lengths.judged(r, scale),
        *tiles.judged(r, scale),
        *cause.judged(r, scale),
        *drift.judged(r, scale),
        *untestable(),
        *bias.judged(r, scale),
    ]


def untestable() -> list[Verdict]:
    """Return the claims that no run here can test."""
    return [
        Verdict(
            figure="3-6",
            claim="the values on the axes",
            case="-",
            sizes="",
            word=Word.NOT_TESTABLE,
            measured="N, d, draws and tiles are not published",
            note="so only directions and the factor of 10 are compared",
        )
    ]
