"""`Row`: a line of the ablation table, and what it changes in a case.

Rows 0 to 10 are the paper's (section 3), the others are controls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from roundscope.experiments.papers.failure_2510_04212.conditions.cases import (
    AFTER,
    AMPLIFIED,
    BEFORE,
    FASTER,
    FEWER,
    NEAREST,
    OTHER_DELTA,
    PATH,
    PUBLISHED,
    SCORES,
    STATS,
    Case,
    rounded,
)
from roundscope.experiments.train.config import Config

FAILS, FP32 = "0", "0'"
UNFUSED = "baseline-bf16"
# scores rounded twice forward, once backward: they differ unless the scale is a power of two
ONCE = "baseline-bf16 once"
ALONE, EXACT = "only", "all but"  # which layers or heads are low: this one, or all but it
FACTORS = ("O rounded", "scores", "M, L", "key tiles")
HALVES = {"before": BEFORE, "after": AFTER, "both": PATH}


@dataclass(frozen=True, slots=True, kw_only=True)
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


def rows(case: Case, config: Config) -> list[Row]:
    """Return all rows of a case but those that need the failing run first (`heads.chosen`)."""
    if case.name == PUBLISHED:
        return [*_base(case), *_as_published()]
    found = [
        *_base(case),
        *(_as_published() if case.name == FASTER else ()),
        *_paper(case),
        *_controls(case),
    ]
    if case.name != NEAREST:
        found += _layers(config)
    if case.name in (AMPLIFIED, NEAREST):
        found += factorial(case)
    return [*found, *(heads(case, config) if case.name == AMPLIFIED else ())]


def _base(case: Case) -> Iterator[Row]:
    yield Row(name=FAILS, words=case.words, core=True)
    # changes rather than the preset fp32, so that it shares the executable of the case
    yield Row(name=FP32, words="every event FP32", changes=("-> fp32",), core=True)


def _as_published() -> Iterator[Row]:
    yield Row(
        name="toward zero",
        words="O path toward zero, BF16",
        changes=(f"site={PATH} -> {rounded(8, 'toward-zero')}",),
    )
    yield Row(
        name="fa2-bf16", words="production FlashAttention-2 and -3", changes=("-> plan=fa2-bf16",)
    )
    yield Row(name=UNFUSED, words="unfused attention in BF16", changes=("-> plan=baseline-bf16",))
    yield Row(
        name=ONCE,
        words="unfused, backward's scores rounded once",
        changes=("-> plan=baseline-bf16", "site=S_B -> fp32"),
    )


def _paper(case: Case) -> Iterator[Row]:
    yield Row(name="1", words="4 key tiles", tiles=4)
    if case.name != OTHER_DELTA:
        yield Row(
            name="5", words="delta = rowsum(P dP)", changes=("-> delta_from=P_DP",), core=True
        )
    wide = (f"site={BEFORE} -> fp32", "-> delta_from=O")
    yield Row(name="6", words="delta from O in FP32, output still rounded", changes=wide)
    yield Row(name="7", words="O path FP32", changes=(f"site={PATH} -> fp32",), core=True)
    yield Row(
        name="9",
        words="PV, AO and O FP32, output rounded",
        changes=(f"site={BEFORE} -> fp32",),
        core=case.name == AMPLIFIED,
    )
    yield Row(name="10 beta 2", words="stabilized softmax, beta 2", changes=("-> stabiliser=2",))
    if case.name != OTHER_DELTA:
        yield Row(
            name="10 beta 7", words="stabilized softmax, beta 7", changes=("-> stabiliser=7",)
        )


def _controls(case: Case) -> Iterator[Row]:
    yield Row(
        name="centred",
        words="delta = rowsum(P dP) / rowsum(P)",
        changes=("-> delta_from=CENTRED",),
        core=True,
    )
    if case.name in (FEWER, OTHER_DELTA, FASTER):
        yield Row(
            name="scores",
            words="scores, m and l FP32",
            changes=(f"site={SCORES},{STATS} -> fp32",),
            core=True,
        )
        same = ("site=S -> fp32", f"site=SCALED,SCALED_B -> {rounded(case.bits, 'ties-to-even')}")
        yield Row(
            name="same scores",
            words="backward rounds its scores as the forward",
            changes=same,
            core=True,
        )
    if case.name == OTHER_DELTA:
        return
    for mode in ("toward-zero", "ties-to-even", "ties-to-away", "stochastic"):
        if mode != case.mode:
            yield _mode(case.bits, mode)
    yield from _shams(case)


def _shams(case: Case) -> Iterator[Row]:
    """Yield rows with errors without bias of about the same RMS.

    The errors of toward zero at p bits and of nearest-even at p - 1 are both uniform in an ulp,
    sqrt(1/3) ulp of p bits; stochastic has sqrt(1/6) ulp of its own bits, 0.7 times that of
    nearest-even with one bit less.
    """
    if case.mode == "toward-zero":
        yield _mode(case.bits - 1, "ties-to-even", core=True)
        yield _mode(case.bits - 1, "stochastic")
    elif case.name == NEAREST:
        yield _mode(case.bits + 1, "stochastic")


def _mode(bits: int, mode: str, *, core: bool = False) -> Row:
    return Row(
        name=f"{mode} {bits}",
        words=f"O path {mode}, p = {bits}",
        changes=(f"site={PATH} -> {rounded(bits, mode)}",),
        core=core,
    )


def _layers(config: Config) -> Iterator[Row]:
    for layer in range(config.layers):
        others = ",".join(str(i) for i in range(config.layers) if i != layer)
        if others:
            yield Row(
                name=f"3 {ALONE} layer {layer}",
                words=f"only layer {layer} low",
                changes=(f"layer={others} -> fp32",),
                search=True,
            )
            yield Row(
                name=f"4 {EXACT} layer {layer}",
                words=f"layer {layer} FP32",
                changes=(f"layer={layer} -> fp32",),
                search=True,
            )


def factorial(case: Case) -> Iterator[Row]:
    """Yield the rows: where O is rounded x scores x statistics x tiles, the rest as in qiu-yao."""
    for (half, sites), scores, stats, tiles in product(
        HALVES.items(), ("BF16", "FP32"), ("BF16", "FP32"), (1, 4)
    ):
        changes = (
            f"site={PATH} -> fp32",
            f"site={sites} -> {case.path}",
            f"site={SCORES} -> {scores}",
            f"site={STATS} -> {stats}",
        )
        yield Row(
            name=cell(half, scores, stats, tiles),
            words=f"O rounded {half}, scores {scores}, m and l {stats}, {tiles} tiles",
            changes=tuple(text.replace("FP32", "fp32").replace("BF16", "bf16") for text in changes),
            tiles=tiles,
            search=True,
        )


def cell(half: str, scores: str, stats: str, tiles: int) -> str:
    """Return the name of a row of the factorial."""
    return f"cell {half} {scores} {stats} {tiles}"


def heads(case: Case, config: Config) -> Iterator[Row]:
    """Yield a row for each head alone exact, and for each head alone low."""
    for layer, head in product(range(config.layers), range(config.heads)):
        own, name = f"layer={layer} head={head} site={PATH}", f"head {layer}.{head}"
        yield Row(
            name=f"8 {EXACT} {name}",
            words=f"O path FP32 in {name}",
            changes=(f"{own} -> fp32",),
            search=True,
        )
        low = (f"site={PATH} -> fp32", f"{own} -> {case.path}")
        yield Row(
            name=f"8 {ALONE} {name}", words=f"O path low in {name} only", changes=low, search=True
        )
