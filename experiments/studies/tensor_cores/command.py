"""`roundscope accumulators`: measures, draws and prints."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from roundscope.experiments.errors import bad
from roundscope.experiments.report.progress import bar
from roundscope.experiments.report.terminal import console, plain, print_json
from roundscope.experiments.studies.framework.estimates import Estimate
from roundscope.experiments.studies.tensor_cores.study import (
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

QUESTION = "Which way do the sums of tensor cores lean?"
CAPTION = (
    f"{len(SEEDS)} seeds of {SIDE} x {SIDE} sums of normal numbers or their magnitudes; 95 % intervals over seeds. Models of arXiv "
    "2511.10909, equal in every bit to MMA-Sim where tests compare them. FP32 every 128: sums of 128 products added in binary32, as "
    "DeepSeek-V3 does."
)


def run(*, out: Path, as_json: bool) -> None:
    """Writes report.html and accumulators.json into `out`. Raises UsageError for a file in its place."""
    import json

    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    with bar("sums", len(MODELS) * len(LENGTHS) * 2) as progress:
        points = []
        for point in measured(LENGTHS):
            points.append(point)
            progress(len(points))
    data = {"answer": answer(points), "unit": UNIT, "points": plain(points)}
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(_page(points), encoding="utf-8")
    (out / "accumulators.json").write_text(json.dumps(data, indent=2), encoding="utf-8")
    if as_json:
        print_json(data)
    else:
        _show(points, out)


def run_order(*, as_json: bool) -> None:
    """Prints in which order NumPy's and JAX's products add on this machine."""
    from rich.table import Table

    from roundscope.experiments.studies.tensor_cores.order import TERMS, measured

    with bar("orders", 1):
        ways = measured()
    if as_json:
        print_json({"terms": TERMS, "ways": plain(ways)})
        return
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    made.add_column("product", overflow="fold")
    made.add_column(f"order of {TERMS} terms", overflow="fold")
    for way in ways:
        made.add_row(way.name, way.order)
    console().print(made)


def answer(points: Sequence[Point]) -> str:
    """Two sentences for the longest sums."""
    found = {(p.model, p.inputs): p for p in points if p.k == LENGTHS[-1]}
    lean = {name: found[name, POSITIVE].lean.mean for name in (HOPPER, HOPPER_FP8, NEAREST)}
    part = {name: f"{abs(x) * UNIT:.1e}" for name, x in lean.items()}
    signed = found[HOPPER_FP8, SIGNED]
    return (
        f"Toward zero: sums of {LENGTHS[-1]:,} products above 0 are {part[HOPPER]} of themselves too small on Hopper in BF16 and "
        f"{part[HOPPER_FP8]} in E4M3, where binary32 to nearest is off by {part[NEAREST]} on average. With products of either sign "
        f"E4M3's mean error is {_shown(signed.lean)} u at an rms of {signed.rms:.3g} u."
    )


def _shown(e: Estimate) -> str:
    return f"{e.mean:.2g} [{e.low:.2g}, {e.high:.2g}]"


def _rows(points: Sequence[Point], inputs: str) -> list[list[str]]:
    by = {(p.model, p.k): p for p in points if p.inputs == inputs}
    return [[model.name, *(f"{by[model.name, k].lean.mean:.3g}" for k in LENGTHS)] for model in MODELS]


def _page(points: Sequence[Point]) -> str:
    from roundscope.experiments.report.page import document, figure, grid
    from roundscope.experiments.studies.tensor_cores.picture import picture

    heads = ["model", *(f"K = {k:,}" for k in LENGTHS)]
    tables = "".join(
        f"<h2>{inputs[0].upper()}{inputs[1:]}: mean error in u</h2>{grid(heads, _rows(points, inputs))}" for inputs in (POSITIVE, SIGNED)
    )
    lead = f"<h1>{escape(QUESTION)}</h1><p class=lead>{escape(answer(points))}</p>"
    return document(
        "Roundscope: tensor cores", lead + figure("Mean error against the length of the sum", picture(points), CAPTION) + tables
    )


def _show(points: Sequence[Point], out: Path) -> None:
    from rich.table import Table

    screen = console()
    screen.print(answer(points), markup=False)
    for inputs in (POSITIVE, SIGNED):
        screen.print(f"\n{inputs}: mean error in u = 2^-24, below 0 toward zero", markup=False)
        made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for head in ("model", *(f"K={k}" for k in LENGTHS)):
            made.add_column(head, justify="left" if head == "model" else "right")
        for row in _rows(points, inputs):
            made.add_row(*row)
        screen.print(made)
    print(f"written: {out / 'report.html'}, {out / 'accumulators.json'}")
