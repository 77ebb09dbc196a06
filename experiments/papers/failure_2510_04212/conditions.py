"""What is trained: cases in which a small model fails, the rows of the ablation table, scales.

A case is a list of changes to the preset qiu-yao, with which the authors' algorithm fails. Rows 0
to 10 are the paper's (section 3), the others are controls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from roundscope.experiments.train.config import Config

BEFORE, AFTER = "PV,AO,O", "OUT"  # events of O before and after its normalization
PATH = f"{BEFORE},{AFTER}"  # the O path of the forward; the backward reads OUT
SCORES, STATS = "S,SCALED,X", "M,DM,L"
ALL = "Q,K,V,DO,S,SCALED,M,X,P,DM,L,AO,PV,O,OUT,DQ_OUT,DK_OUT,DV_OUT"  # what is BF16 in qiu-yao
PUBLISHED, AMPLIFIED, NEAREST, FEWER, OTHER_DELTA, FASTER = "N", "A", "A'", "B", "C", "D"
MODES = {
    "toward-zero": "toward zero",
    "ties-to-even": "nearest-even",
    "ties-to-away": "ties away",
    "stochastic": "stochastic",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A way to make the algorithm fail.

    changes     changes of the preset
    bits, mode  the rounding of the O path there
    times       the rate, as a multiple of that of the other cases
    """

    name: str
    words: str
    changes: tuple[str, ...]
    bits: int
    mode: str = "ties-to-even"
    times: float = 1.0

    @property
    def path(self) -> str:
        """The rounding of PV, AO, O and OUT."""
        return rounded(self.bits, self.mode)


def rounded(bits: int, mode: str) -> str:
    """Return a format's name: p significand bits, the leading one included, BF16's exponents."""
    return f"e8m{bits - 1}:{mode}"


# the released forward, run eagerly, with a backward in FP32; that of the released code is not in
# FP32 (docs/findings/kernels.md)
AS_IT_IS = Case(PUBLISHED, "qiu-yao as it is: BF16", (), 8)
# the paper's own alternative
WITH_OTHER_DELTA = Case(
    OTHER_DELTA, "BF16, delta\xa0=\xa0rowsum(P\xa0dP)", ("-> delta_from=P_DP",), 8
)
AT_A_HIGHER_RATE = Case(FASTER, "qiu-yao as it is: BF16, 3\xa0times the rate", (), 8, times=3.0)


def isolated(name: str, bits: int, mode: str) -> Case:
    """Return the paper's mechanism alone, amplified: scores and statistics FP32, O coarser."""
    changes = (f"site={SCORES},{STATS} -> fp32", f"site={PATH} -> {rounded(bits, mode)}")
    words = f"scores FP32, O {MODES[mode]}, p\xa0=\xa0{bits}"
    return Case(name, words, changes, bits, mode)


def fewer(bits: int) -> Case:
    """Return the authors' algorithm with fewer bits at every event that they keep in BF16."""
    changes = (f"site={ALL} -> {rounded(bits, 'ties-to-even')}",)
    return Case(FEWER, f"all BF16 events at p\xa0=\xa0{bits}", changes, bits)


FAILS, FP32 = "0", "0'"
UNFUSED = "baseline-bf16"
# scores rounded twice forward, once backward: they differ unless the scale is a power of two
ONCE = "baseline-bf16 once"
ALONE, EXACT = "only", "all but"  # which layers or heads are low: this one, or all but it
HALVES = {"before": BEFORE, "after": AFTER, "both": PATH}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the ablation table.

    name     its number or a word, unique in a case
    words    what is different
    changes  what is changed, after the case's own changes
    tiles    into how many tiles the context is cut
    search   whether it is one of many places tried, with fewer seeds and steps
    core     whether it is also in --quick
    """

    name: str
    words: str
    changes: tuple[str, ...] = ()
    tiles: int = 1
    search: bool = False
    core: bool = False


AS_PUBLISHED = (
    Row(
        "toward zero", "O path toward zero, BF16", (f"site={PATH} -> {rounded(8, 'toward-zero')}",)
    ),
    Row("fa2-bf16", "production FlashAttention-2 and -3", ("-> plan=fa2-bf16",)),
    Row(UNFUSED, "unfused attention in BF16", ("-> plan=baseline-bf16",)),
    Row(
        ONCE,
        "unfused, backward's scores rounded once",
        ("-> plan=baseline-bf16", "site=S_B -> fp32"),
    ),
)


def rows(case: Case, config: Config) -> list[Row]:
    """Return all rows of a case but those that need the failing run first (`trials.chosen`)."""
    found = [
        Row(FAILS, case.words, core=True),
        # changes rather than the preset fp32, so that it shares the executable of the case
        Row(FP32, "every event FP32", ("-> fp32",), core=True),
    ]
    if case.name in (PUBLISHED, FASTER):
        found += AS_PUBLISHED
    if case.name == PUBLISHED:
        return found
    found += [*_paper(case), *_controls(case)]
    if case.name != NEAREST and config.layers > 1:
        found += _layers(config)
    if case.name in (AMPLIFIED, NEAREST):
        found += factorial(case)
    return [*found, *(_heads(case, config) if case.name == AMPLIFIED else ())]


def _paper(case: Case) -> Iterator[Row]:
    before = f"site={BEFORE} -> fp32"
    yield Row("1", "4 key tiles", tiles=4)
    if case.name != OTHER_DELTA:
        yield Row("5", "delta = rowsum(P dP)", ("-> delta_from=P_DP",), core=True)
    yield Row("6", "delta from O in FP32, output still rounded", (before, "-> delta_from=O"))
    yield Row("7", "O path FP32", (f"site={PATH} -> fp32",), core=True)
    core = case.name == AMPLIFIED
    yield Row("9", "PV, AO and O FP32, output rounded", (before,), core=core)
    for beta in (2,) if case.name == OTHER_DELTA else (2, 7):
        words = f"stabilized softmax, beta {beta}"
        yield Row(f"10 beta {beta}", words, (f"-> stabiliser={beta}",))


def _controls(case: Case) -> Iterator[Row]:
    """Yield rows that the paper does not have, among them errors without bias of the same RMS.

    The errors of toward zero at p bits and of nearest-even at p - 1 are both uniform in an ulp,
    sqrt(1/3) ulp of p bits; stochastic has sqrt(1/6) ulp of its own bits, 0.7 times that of
    nearest-even with one bit less.
    """
    words = "delta = rowsum(P dP) / rowsum(P)"
    yield Row("centred", words, ("-> delta_from=CENTRED",), core=True)
    if case.name in (FEWER, OTHER_DELTA, FASTER):
        exact = (f"site={SCORES},{STATS} -> fp32",)
        yield Row("scores", "scores, m and l FP32", exact, core=True)
        same = ("site=S -> fp32", f"site=SCALED,SCALED_B -> {rounded(case.bits, 'ties-to-even')}")
        yield Row("same scores", "backward rounds its scores as the forward", same, core=True)
    if case.name == OTHER_DELTA:
        return
    modes = [(mode, case.bits) for mode in MODES if mode != case.mode]
    if case.mode == "toward-zero":
        modes += [("ties-to-even", case.bits - 1), ("stochastic", case.bits - 1)]
    elif case.name == NEAREST:
        modes += [("stochastic", case.bits + 1)]
    for mode, bits in modes:
        changes = (f"site={PATH} -> {rounded(bits, mode)}",)
        core = (mode, bits) == ("ties-to-even", case.bits - 1)
        yield Row(f"{mode} {bits}", f"O path {mode}, p = {bits}", changes, core=core)


def _layers(config: Config) -> Iterator[Row]:
    for layer in range(config.layers):
        others = ",".join(str(i) for i in range(config.layers) if i != layer)
        low, exact = (f"layer={others} -> fp32",), (f"layer={layer} -> fp32",)
        yield Row(f"3 {ALONE} layer {layer}", f"only layer {layer} low", low, search=True)
        yield Row(f"4 {EXACT} layer {layer}", f"layer {layer} FP32", exact, search=True)


def factorial(case: Case) -> Iterator[Row]:
    """Yield the rows: where O is rounded x scores x statistics x tiles, the rest as in qiu-yao."""
    for (half, sites), scores, stats, tiles in product(
        HALVES.items(), ("BF16", "FP32"), ("BF16", "FP32"), (1, 4)
    ):
        changes = (
            f"site={PATH} -> fp32",
            f"site={sites} -> {case.path}",
            f"site={SCORES} -> {scores.lower()}",
            f"site={STATS} -> {stats.lower()}",
        )
        words = f"O rounded {half}, scores {scores}, m and l {stats}, {tiles} tiles"
        yield Row(cell(half, scores, stats, tiles), words, changes, tiles=tiles, search=True)


def cell(half: str, scores: str, stats: str, tiles: int) -> str:
    """Return the name of a row of the factorial."""
    return f"cell {half} {scores} {stats} {tiles}"


def _heads(case: Case, config: Config) -> Iterator[Row]:
    """Yield a row for each head alone exact, and for each head alone low."""
    for layer, head in product(range(config.layers), range(config.heads)):
        own, name = f"layer={layer} head={head} site={PATH}", f"head {layer}.{head}"
        low, exact = (f"site={PATH} -> fp32", f"{own} -> {case.path}"), (f"{own} -> fp32",)
        yield Row(f"8 {EXACT} {name}", f"O path FP32 in {name}", exact, search=True)
        yield Row(f"8 {ALONE} {name}", f"O path low in {name} only", low, search=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its failing cases, and how long and how often each row runs.

    --quick is for two cores, full for a GPU.

    rate          the rate after `config.warmup` steps, which is constant, so that a time to
                  divergence does not depend on the number of steps
    steps, seeds  the steps and seeds of rows
    short, few    those of rows of searches (layers, heads, the factorial)
    core          whether only the rows that the answer needs are run
    arms          the largest number of arms in a launch
    """

    name: str
    config: Config
    rate: float
    cases: tuple[Case, ...]
    steps: int
    short: int
    seeds: tuple[int, ...]
    few: tuple[int, ...]
    core: bool
    arms: int = 96


QUICK = Scale(
    name="quick",
    config=Config(layers=2, heads=2, width=32, context=32, batch=8, warmup=50),
    rate=6e-2,
    cases=(AS_IT_IS, isolated(AMPLIFIED, 3, "toward-zero"), fewer(6), WITH_OTHER_DELTA),
    steps=500,
    short=500,
    seeds=(0, 1, 2),
    few=(0, 1, 2),
    core=True,
)
FULL = Scale(
    name="full",
    config=Config(layers=4, heads=4, width=128, context=128, batch=16, warmup=100),
    rate=1e-2,
    cases=(
        AS_IT_IS,
        isolated(AMPLIFIED, 6, "toward-zero"),
        isolated(NEAREST, 3, "ties-to-even"),
        fewer(6),
        WITH_OTHER_DELTA,
        AT_A_HIGHER_RATE,
    ),
    steps=1500,
    short=1000,
    seeds=(0, 1, 2, 3, 4),
    few=(0, 1, 2),
    core=False,
)
