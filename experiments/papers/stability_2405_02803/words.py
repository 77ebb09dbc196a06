"""The answer in one sentence, how verdicts are reached, and names in words."""

from roundscope.experiments.framework.verdicts import TENFOLD, Word, judge, number
from roundscope.experiments.papers.stability_2405_02803.claims.formats import candidates, own_ratio
from roundscope.experiments.papers.stability_2405_02803.emulations import at
from roundscope.experiments.papers.stability_2405_02803.results import Results
from roundscope.experiments.papers.stability_2405_02803.scale import REAL, Scale

CAUTION = (
    "The paper's implementation, sizes, tiles and draws are unpublished: 'contradicts' says that"
    " the claim fails in our emulation at these sizes, not that the paper measured wrongly."
)
RULES = (
    "A verdict compares a 95 % t interval over seeds with what the claim says: 'agrees' if the"
    " whole interval is there, 'contradicts' if none of it is, 'undecided' otherwise, 'depends' if"
    " the claim holds under some conditions that the paper does not state and fails under others."
    " 'About 10 times' is 5 to 20; 'larger' and 'smaller' are by 5 % or more; 'grows' and 'falls'"
    " are exponents beyond 0.05. Ratios pair seeds, and their means are geometric. Intervals are"
    " not widened for the number of claims."
)
EMULATIONS = {
    "ops:bf16": "every operation in BF16, sums in FP32",
    "sums:bf16": "BF16 throughout, steps of sums too",
    "qiu-yao": "qiu-yao: scores, row sum and O kept in BF16",
    "fa2-bf16": "fa2-bf16: production, FP32 inside",
    "ops:fp32": "FP32 throughout",
    "baseline-bf16": "baseline-bf16: PyTorch's unfused",
}
INPUTS = {
    "gaussian": "Gaussian",
    "one-signed-v": "V of one sign",
    "sink": "a sink",
    "repeated-maximum": "repeated maxima",
    REAL: "real tensors",
}


def answer(r: Results, scale: Scale) -> str:
    """Return the answer to the paper's question in one sentence."""
    t, tile = scale.bench[0], scale.tile
    found = {
        name: number(own_ratio(r, at(name, scale.bench, tile)).mean)
        for name in ("ops:bf16", "sums:bf16", "fa2-bf16")
    }
    return (
        f"In BF16 the largest deviation of tiled attention from binary64 is {found['ops:bf16']}"
        " times that of unfused attention when every operation rounds and sums are FP32,"
        f" {found['sums:bf16']} times when sums round too and {found['fa2-bf16']} times in"
        f" production kernels (T {t}, tiles of {tile}, Gaussian); {tenfold(r, scale)}."
    )


def tenfold(r: Results, scale: Scale) -> str:
    """Return where a factor of about 10 appears."""
    found = [label for label, e, _ in candidates(r, scale) if judge(e, TENFOLD) is Word.AGREES]
    if not found:
        return "about 10 times appear in no condition that was run"
    own = [label for label in found if label.endswith("to its own unfused")]
    sums = [label for label in found if label.startswith("sums") and label not in own]
    where = []
    if own:
        fewest = min(int(label.split(" key tiles")[0].split()[-1]) for label in own)
        inputs = list(dict.fromkeys(label.split(" key tiles, ")[1].split(",")[0] for label in own))
        where.append(
            f"with running sums kept in BF16 over {fewest} key tiles or more"
            f" ({', '.join(INPUTS[i] for i in inputs)})"
        )
    if sums:
        where.append("with BF16 sums measured against PyTorch's FP32 sums")
    return f"about 10 times appear {' and '.join(where) or 'against PyTorch alone'}"
