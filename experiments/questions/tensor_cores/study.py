"""`roundscope accumulators` as a `Study`: everything is computed, no results file is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.catalogue import ACCUMULATORS
from roundscope.experiments.framework import command
from roundscope.experiments.framework.estimates import Estimate
from roundscope.experiments.framework.study import Figure, Outcome, Study, Table
from roundscope.experiments.questions.tensor_cores.figure import picture
from roundscope.experiments.questions.tensor_cores.sums import (
    HOPPER,
    HOPPER_FP8,
    LENGTHS,
    MODELS,
    NEAREST,
    POSITIVE,
    SEEDS,
    SIDE,
    SIGNED,
    UNIT,
    Point,
    measured,
)
from roundscope.tools.report.progress import bar
from roundscope.tools.report.terminal import plain

Points = Sequence[Point]
CAPTION = (
    f"{len(SEEDS)} seeds of {SIDE} x {SIDE} sums of normal numbers or their magnitudes; 95 % "
    "intervals over seeds. Models of arXiv 2511.10909, equal in every bit to MMA-Sim where tests "
    "compare them. FP32 every 128: sums of 128 products added in binary32, as DeepSeek-V3 does."
)


def run(*, out: Path, as_json: bool) -> int:
    """Write report.html and accumulators.json to `out`; return the exit code.

    It is 0, or 130 after Ctrl-C, when nothing is written. Raises UsageError for a file in the
    folder's place.
    """
    line = f"roundscope {ACCUMULATORS.command}"
    return command.run(study(), out=out, command=line, as_json=as_json)


def study() -> Study[Points]:
    """Return the study, which has one scale."""
    return Study(
        name=ACCUMULATORS.name,
        question=ACCUMULATORS.question,
        measure=_measure,
        unit="points",
        answer=answer,
        figures=[
            Figure(title="Mean error against the length of the sum", draw=picture, caption=CAPTION)
        ],
        tables=[
            Table(
                name="points",
                title="Mean error in u = 2^-24; below 0: toward zero",
                heads=("mean error, u", "K", *(model.name for model in MODELS)),
                rows=_rows,
                records=lambda points: plain(points),
                shown=tuple(range(2 + len(MODELS))),
            )
        ],
        config={"unit": UNIT, "seeds": len(SEEDS), "sums": SIDE * SIDE},
    )


def _measure(out: Path, draw: bool) -> tuple[Outcome, Points | None]:
    """Compute all points, since none are kept; return none of them after Ctrl-C."""
    points: list[Point] = []
    total = 2 * len(MODELS) * len(LENGTHS)
    try:
        with bar("sums", total) as progress:
            for point in measured(LENGTHS):
                points.append(point)
                progress(len(points))
    except KeyboardInterrupt:
        return Outcome(launches=total, there=0, ran=len(points), interrupted=True), None
    return Outcome(launches=total, there=total, ran=total, devices=["cpu"]), points


def answer(points: Points) -> str:
    """Return two sentences on the longest sums."""
    longest = {(p.model, p.inputs): p for p in points if p.k == LENGTHS[-1]}
    bias = {name: longest[name, POSITIVE].lean.mean for name in (HOPPER, HOPPER_FP8, NEAREST)}
    part = {name: f"{abs(x) * UNIT:.1e}" for name, x in bias.items()}
    signed = longest[HOPPER_FP8, SIGNED]
    return (
        f"Toward zero: sums of {LENGTHS[-1]:,} products above 0 are {part[HOPPER]} of themselves "
        f"too small on Hopper in BF16 and {part[HOPPER_FP8]} in E4M3, where binary32 to nearest is "
        f"off by {part[NEAREST]} on average. With products of either sign E4M3's mean error is "
        f"{_shown(signed.lean)} u at an rms of {signed.rms:.3g} u."
    )


def _shown(e: Estimate) -> str:
    return f"{e.mean:.2g} [{e.low:.2g}, {e.high:.2g}]"


def _rows(points: Points) -> list[list[str]]:
    """Return a line for each kind of products and each length."""
    by: dict[Any, Point] = {(p.inputs, p.k, p.model): p for p in points}
    return [
        [inputs, f"{k:,}", *(f"{by[inputs, k, model.name].lean.mean:.3g}" for model in MODELS)]
        for inputs in (POSITIVE, SIGNED)
        for k in LENGTHS
    ]
