"""What the closed form says of the paper's Claim 3 and Remark 1, and a picture of it."""

from matplotlib.figure import Figure

from roundscope.experiments.framework.verdicts import (
    Verdict,
    Word,
    interval,
    judge,
    together,
)
from roundscope.experiments.papers.failure_2510_04212.static.closed import (
    DRAWS,
    FORMATS,
    SEEDS,
    Line,
)
from roundscope.tools.report.pictures import COLOURS, INK, MARKERS, canvas

FIGURE = "Claim 3"
NEAR = 0.03  # ulps: a mean within this of the formula counts as equal to it
SIZES = f"{SEEDS} x {DRAWS} draws"
CLAIMS = (
    "k unit weights and a same-sign residual: half an ulp of V, any format",
    "and any k",
    "without a residual no bias",
    "an opposite residual turns the sign",
    "stochastic rounding has no bias",
    "Remark 1: weights below 1 have no bias (powers of two)",
    "Remark 1: weights below 1 have no bias (random)",
)
NORMALISED = "divided, then rounded: the sign is that of residual V minus main V"
NOTES = {
    "same-sign residual, other k": (
        "where it fails the format is too short: the low bits of such sums of its numbers are not"
        " uniform"
    ),
    "no residual": (
        "E5M2 has 4 numbers in [1, 2): the low bits of a sum of 4 of them are not uniform, and ties"
        " to even see that"
    ),
    "weights of 1/2": (
        "false for powers of two: their products have as many trailing zeros as V itself"
    ),
    "random weights below 1": (
        "products of p-bit numbers have 2p bits: in FP8 one sum in 8 to 16 is still a tie"
    ),
}


def judged(found: list[Line]) -> list[Verdict]:
    """Return one verdict for each case; the last three cases are one claim."""
    first = [
        _verdict(claim, line, 0.0 if "Remark" in claim else None)
        for claim, line in zip(CLAIMS, found, strict=False)
    ]
    return [*first, _of_several(NORMALISED, found[len(CLAIMS) :])]


def _words(line: Line, claimed: float | None = None) -> list[Word]:
    """Return, by format and k, whether the measured mean is the formula's (or a claimed number)."""
    wanted = {at: line.formula[at] if claimed is None else claimed for at in line.found}
    return [judge(e, (wanted[at] - NEAR, wanted[at] + NEAR)) for at, e in line.found.items()]


def _verdict(claim: str, line: Line, claimed: float | None) -> Verdict:
    terms = list(dict.fromkeys(k for _, k in line.found))
    unit = "ulp" if "weights" in line.words else "ulp(V)"
    shown = ", ".join(
        f"{f} " + " ".join(f"{line.found[f, k].mean:+.3f}" for k in terms) for f in FORMATS
    )
    half = max(e.high - e.mean for e in line.found.values())
    said = "" if claimed is not None else f"; formula {next(iter(line.formula.values())):+.3f}"
    return Verdict(
        figure=FIGURE,
        claim=claim,
        case=f"{line.words}; k = {', '.join(map(str, terms))}",
        sizes=SIZES,
        word=together(_words(line, claimed)),
        measured=f"{unit}: {shown} (each +- {half:.3f} or less){said}",
        estimate=line.found["bf16", terms[0]],
        note=NOTES.get(line.words, ""),
    )


def _of_several(claim: str, found: list[Line]) -> Verdict:
    shown = "; ".join(
        f"{line.words.split('= ')[1]} {interval(line.found['bf16', 2])}" for line in found
    )
    return Verdict(
        figure=FIGURE,
        claim=claim,
        case="k = 2, all V > 0",
        sizes=SIZES,
        word=together([w for x in found for w in _words(x)]),
        measured=f"ulp in BF16, residual V = {shown}; formula "
        + ", ".join(f"{x.formula['bf16', 2]:+.3f}" for x in found),
        estimate=found[1].found["bf16", 2],
        note="the bias survives the order of production kernels, the paper's sign rule does not",
    )


def picture(found: list[Line]) -> Figure:
    """Draw the formula and the measured means, by case and format."""
    figure, ((ax,),) = canvas(4.2)
    for y, line in enumerate(found):
        formula = next(iter(line.formula.values()))
        ax.plot(
            [formula, formula],
            [y - 0.36, y + 0.36],
            color=INK,
            lw=1.6,
            label="formula" if y == 0 else None,
        )
        for n, (f, colour, marker) in enumerate(zip(FORMATS, COLOURS, MARKERS, strict=False)):
            own = [e for (g, _), e in line.found.items() if g == f]
            x, place = [e.mean for e in own], [y - 0.24 + 0.16 * n] * len(own)
            bars = [[e.mean - e.low for e in own], [e.high - e.mean for e in own]]
            ax.errorbar(
                x,
                place,
                xerr=bars,
                fmt=marker,
                color=colour,
                ms=4.5,
                capsize=2,
                lw=1,
                label=f if y == 0 else None,
            )
    ax.axvline(0.0, color=INK, lw=0.6)
    ax.set_yticks(range(len(found)), [_label(line) for line in found])
    ax.invert_yaxis()
    ax.set_xlabel(
        "mean error, positive away from zero: ulps of V (first five), of the result (others)"
    )
    figure.legend(
        *ax.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=5,
        fontsize=8.5,
        frameon=False,
    )
    return figure


def _label(line: Line) -> str:
    terms = ", ".join(str(k) for k in dict.fromkeys(k for _, k in line.found))
    return f"{line.words}; k = {terms}"
