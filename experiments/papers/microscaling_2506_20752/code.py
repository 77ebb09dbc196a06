"""The paper's printed numbers and its released code: what arithmetic decides, and what runs.

`arithmetic` needs no training: scales, clipping, clusters and rounding modes, on drawn numbers.
Numbers called 'computed' are from the notes to the paper and were computed without this library;
here they are compared with the library's roundings. `discrepancies` says which differences between
the paper and its released code change a conclusion; for each of them a run decides, or arithmetic,
or nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from roundscope.attention import attend
from roundscope.emu import BLOCK_NAMED, block_format, block_stats, from_blocks, round_to, to_blocks
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.blocks.stats import BlockStats
from roundscope.experiments.framework.counts import counted, signs
from roundscope.experiments.framework.estimates import (
    Estimate,
    Values,
    factor,
    mean,
    ratio,
    relative_error,
)
from roundscope.experiments.framework.verdicts import (
    SAME,
    Range,
    Verdict,
    Word,
    interval,
    judge,
    verdict_on,
)
from roundscope.experiments.papers.microscaling_2506_20752.claims import (
    Effect,
    middle,
    outcome,
    runs_of,
)
from roundscope.experiments.papers.microscaling_2506_20752.measurements import FROZEN, Found
from roundscope.experiments.train.student.arms import EXACT
from roundscope.experiments.train.student.run import paired
from roundscope.tools.tensors.layers import read_layers, sample_path

DRAWS, BLOCKS = 8, 12_000  # independent draws, and blocks of 32 in each
NEAR = 0.02
E4M3, E5M2, E3M2 = "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2"
RULES = (
    "Discrepancies: 'agrees' says that the conclusion changes, 'contradicts' that it does not,"
    " 'undecided' that an arm showed no effect beyond the shams, which is no proof that there is"
    " none.",
    "Arithmetic on drawn numbers: a 95 % t interval over 8 draws, against a computed number and"
    " what rounds to it, 2 % wider on both sides.",
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
REVERSE = {Word.AGREES: Word.CONTRADICTS, Word.CONTRADICTS: Word.AGREES}


@dataclass(frozen=True, slots=True)
class Draws:
    """Numbers centre + spread N(0, 1), rounded to BF16 first if `bf16`."""

    spread: float = 1.0
    centre: float = 0.0
    bf16: bool = False

    def each(self, f: str | BlockFormat, read: Callable[[BlockStats], float]) -> Values:
        """Return a number of every draw under a format."""
        f = f if isinstance(f, BlockFormat) else BLOCK_NAMED[f]
        return {seed: read(stats(self, f, seed)) for seed in range(DRAWS)}

    def of(self, f: str | BlockFormat, read: Callable[[BlockStats], float]) -> Estimate:
        """Return the mean of that number, with its 95 % interval."""
        return mean(self.each(f, read))


@lru_cache(256)
def stats(draws: Draws, f: BlockFormat, seed: int) -> BlockStats:
    """Return the statistics of one draw."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    x = rng.standard_normal((BLOCKS, 32)).astype(np.float32)
    x = np.float32(draws.centre) + np.float32(draws.spread) * x
    return block_stats(np.asarray(round_to(x, "bf16"), np.float32) if draws.bf16 else x, f)


NORMAL, AS_BF16 = Draws(), Draws(bf16=True)


def arithmetic() -> list[Verdict]:
    """Return the verdicts that need no runs, in the order of the paper, then of its code."""
    return [example(), *clusters(), *clipped(), harm(), bumped(), meta(), *ties(), blocks_of_16()]


def example() -> Verdict:
    """Return the verdict on the five weights of LayerNorm that the paper prints."""
    x = np.array(EXAMPLE, np.float32)
    kept = {
        rule: from_blocks(to_blocks(x, E4M3, rule=rule))
        for rule in (ScaleRule.FLOOR, ScaleRule.RCEIL)
    }
    distinct = {
        rule: ", ".join(f"{v:g}" for v in np.unique(y).tolist()) for rule, y in kept.items()
    }
    alike = bool((kept[ScaleRule.FLOOR] == kept[ScaleRule.RCEIL]).all())
    claim = "five clustered scales of LayerNorm become one number because they exceed the largest"
    note = "with a scale that clips nothing they become the same: the grid does it, not the clamp"
    return verdict_on(
        "3.3",
        f"{claim} element",
        "E4M3",
        not alike,
        "; ".join(f"{rule} {distinct[rule]}" for rule in kept),
        note=note if alike else "",
    )


def clusters() -> Iterator[Verdict]:
    """Yield verdicts on how much a cluster loses by the clamp, and by the grid."""
    for centre, rule, rms in CLUSTERS:
        draws, f = Draws(spread=0.01, centre=centre), replace(BLOCK_NAMED[E4M3], rule=rule)
        e = draws.of(f, lambda s: 100 * s.relative_rms)
        lost = draws.of(f, lambda s: 100 * s.relative_shrink)
        claim = f"computed: a cluster at {centre:.2f} has an rms error of {rms} %"
        told = f"rms {interval(e, ' %')}, shrink {interval(lost, ' %')}"
        yield verdict_on("3.3", claim, f"E4M3 {rule}", judge(e, _about(rms)), told, e)


def clipped() -> Iterator[Verdict]:
    """Yield verdicts on how many blocks and numbers of N(0, 1) clip."""
    for name, computed in CLIPPED.items():
        both = [
            NORMAL.of(name, lambda s: 100 * s.clipped_blocks / s.blocks),
            NORMAL.of(name, lambda s: 100 * s.clipped / s.numbers),
        ]
        words = {judge(e, _about(c)) for e, c in zip(both, computed, strict=True)}
        word = words.pop() if len(words) == 1 else Word.UNDECIDED
        blocks, numbers = computed
        claim = f"computed: FLOOR clips {blocks} % of blocks of N(0, 1), {numbers} % of numbers"
        told = f"{interval(both[0], ' %')} of blocks, {interval(both[1], ' %')} of numbers"
        yield verdict_on("3.3", claim, name, word, told, both[0])


def harm() -> Verdict:
    """Return the verdict on clipped numbers that lose nothing by it."""
    e = NORMAL.of(E4M3, lambda s: 100 * (1 - s.saturated / s.clipped))
    more = NORMAL.of(E4M3, lambda s: 100 * s.relative_excess)
    claim = "the clip fraction counts numbers that clipping harms"
    told = (
        f"{interval(e, ' %')} of them become the largest element anyway; {interval(more, ' %')}"
        " of the error is excess over RCEIL"
    )
    return verdict_on("3.3", claim, "E4M3, N(0, 1)", judge(e, (0.0, 1.0)), told, e)


def bumped() -> Verdict:
    """Return the verdict on `bump` against RCEIL, over every fraction that binary32 has."""
    x = (np.arange(1 << 23, dtype=np.int32) + (127 << 23)).view(np.float32).reshape(-1, 1)
    differ = {name: _differ(x, name) for name in (E4M3, E5M2, E3M2)}
    told = ", ".join(f"{name}: {n}" for name, n in differ.items())
    return verdict_on(
        "3.5",
        "ours: the intervention `bump` is RCEIL, equality included",
        f"all {x.size} fractions of a maximum",
        not any(differ.values()),
        f"scales that differ, {told}",
    )


def _differ(x: np.ndarray, name: str) -> int:
    bump, rceil = (
        to_blocks(x, replace(block_format(name, rule=rule), size=1)).scales
        for rule in (ScaleRule.BUMP, ScaleRule.RCEIL)
    )
    return int((np.asarray(bump) != np.asarray(rceil)).sum())


def meta() -> Verdict:
    """Return the verdict on discrepancy f: FORMAT_META's E3M2."""
    f = BLOCK_NAMED[E3M2].element.format
    wrong, right = META["max"] / 2.0 ** META["emax"], f.max_finite / 2.0**f.emax
    cancel = "the two errors cancel in the threshold; " if wrong == right else ""
    return verdict_on(
        "3.5 f",
        "wrong constants of E3M2 make its clip fraction wrong",
        E3M2,
        wrong != right,
        f"code: emax {META['emax']}, largest {META['max']:g}; true: {f.emax}, {f.max_finite:g};"
        f" both clip above {wrong:g} 2^floor(log2 a)",
        note=f"{cancel}E2M3, which the code has not, is not judged",
    )


def ties() -> Iterator[Verdict]:
    """Yield the verdicts on discrepancy g, of BF16 numbers: ties away from zero against to even."""
    claim = "ours: ties away from zero lengthen numbers that nearest even does not"
    for rule in (ScaleRule.FLOOR, ScaleRule.RCEIL):
        even, away = (
            AS_BF16.each(
                replace(block_format(E4M3, mode), rule=rule), lambda s: 1e3 * s.relative_shrink
            )
            for mode in ("ties-to-even", "ties-to-away")
        )
        moved = mean({n: away[n] - even[n] for n in even})
        told = (
            f"by {interval(moved)} thousandths of their size: even {interval(mean(even))}, away"
            f" {interval(mean(away))}"
        )
        word = judge(moved, (1e-3, np.inf))
        yield verdict_on("3.5 g", claim, f"E4M3 {rule}, BF16 inputs", word, told, moved)


def blocks_of_16() -> Verdict:
    """Return the verdict on discrepancy i: a metric of blocks of 16 for a training with 32."""
    sizes = (replace(BLOCK_NAMED[E4M3], size=16), BLOCK_NAMED[E4M3])
    e = ratio(*(NORMAL.each(f, lambda s: s.clipped / s.numbers) for f in sizes))
    claim = "the clip fraction of blocks of 16 is that of blocks of 32"
    word, told = judge(e, (1 - NEAR, 1 + NEAR)), f"{interval(e, 'x')} as large"
    return verdict_on("3.5 i", claim, "E4M3, N(0, 1)", word, told, e)


def _about(computed: str) -> Range:
    """Return the range of what rounds to a printed number, widened by NEAR of it on both sides."""
    x, half = float(computed), 0.5 * 10.0 ** -len(computed.partition(".")[2])
    return (x - half) * (1 - NEAR), (x + half) * (1 + NEAR)


def discrepancies(found: Found) -> Iterator[Verdict]:
    """Yield a verdict for each discrepancy: does it change a conclusion?"""
    claim = "LN's scales are never in MX: it matters"
    yield verdict_on("3.5 a", claim, "run: gamma in MX", *_acts(found, "gamma in MX"))
    claim = "LN's shift is frozen in MX: it matters"
    yield verdict_on("3.5 b", claim, "run: frozen from the first step", *_frozen(found))
    claim = "the LN intervention also trains the shift: its effect is not LN's precision"
    yield verdict_on("3.5 b'", claim, "run: both, from the first step", *_confounded(found))
    claim = "GeLU is never rounded: it matters"
    yield verdict_on("3.5 c", claim, "run: phi in FP32", *_acts(found, "phi in FP32"))
    claim = "FP32 and MX have other targets: the failure needs that"
    yield verdict_on("3.5 d", claim, "run: same targets in both", *_targets(found))
    claim = "epsilon is of two states: it is not the formats' error"
    yield verdict_on("3.5 e", claim, "run: both, same rows", *_states(found))
    claim, own = "wrong constants of E3M2: its clip fraction is wrong", meta()
    yield verdict_on("3.5 f", claim, "arithmetic", own.word, own.measured)
    claim = "ties go away from zero: that matters"
    yield verdict_on("3.5 g", claim, "run: ties to away", *_acts(found, "ties to away"))
    yield unrounded()
    claim, own = "clip fractions of blocks of 16: not those of the training", blocks_of_16()
    # the conclusion changes where the code's number is not the true one
    yield verdict_on("3.5 i", claim, "arithmetic", REVERSE.get(own.word, own.word), own.measured)


@lru_cache(1)
def unrounded() -> Verdict:
    """Return the verdict on h: would the products of attention err as a linear layer does in MX?

    The language models' q k^T and P V are not in MX. Attention on the shipped tensors, with the
    operands of both products in E4M3 (preset mxfp8-attention), beside the product of a linear layer
    of normal numbers in E4M3, each against the same without rounding.
    """
    errors: dict[int, float] = {}
    for x in read_layers(sample_path()):
        scale = x.scale or x.q.shape[3] ** -0.5
        q, k, v = (np.asarray(y[:1], np.float64) for y in (x.q, x.k, x.v))
        low, exact = (
            np.asarray(attend(q, k, v, plan=plan, scale=scale), np.float64)
            for plan in ("mxfp8-attention", "exact")
        )
        for head in range(q.shape[2]):
            at = len(errors)
            errors[at] = relative_error(low[:, :, head], exact[:, :, head])
    linear = {seed: _linear(seed) for seed in range(DRAWS)}
    one, other = factor(errors), factor(linear)
    e = factor({n: error / other.mean for n, error in errors.items()})
    claim = "the transformer's MX file is not used, so attention is not in MX: it matters"
    told = (
        f"attention in E4M3 errs by {interval(one)} of its output, {one.seeds} heads; a linear"
        f" layer by {interval(other)}; {interval(e, 'x')}"
    )
    note = "agrees: at least half the error; no language model was trained, for its size"
    return verdict_on("3.5 h", claim, "MiniLM", judge(e, (0.5, np.inf)), told, e, note)


def _linear(seed: int) -> float:
    """Return the relative rms error of x w (256, 256) over 512 numbers in E4M3, N(0, 1)."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    x, w = rng.standard_normal((2, 256, 512)).astype(np.float32)
    low = [np.asarray(from_blocks(to_blocks(y, E4M3)), np.float64) for y in (x, w)]
    return relative_error(low[0] @ low[1].T, x.astype(np.float64) @ w.astype(np.float64).T)


Decided = tuple[Word, str]  # and what was measured


def _acts(found: Found, name: str) -> Decided:
    """Decide whether an intervention did anything, at any lead."""
    own = [o for o in [outcome(found.parted, lead, name) for lead in found.scale.leads] if o.runs]
    if not own:
        return Word.NOT_TESTABLE, "no interventions were run"
    acted = any(o.effect is not Effect.NONE for o in own)
    told = "; ".join(f"{o.name}, {o.lead} before: {o.effect}" for o in own)
    return Word.AGREES if acted else Word.UNDECIDED, told


def _frozen(found: Found) -> Decided:
    """Decide b: does a shift that is frozen from the first step on move the divergence?"""
    own, base = found.base(f"{found.scale.mx}, {FROZEN}"), found.base(found.scale.mx)
    if not own or not base:
        return Word.NOT_TESTABLE, "was not run"
    word = Word.AGREES if (signs(paired(own, base)).word is not Word.UNDECIDED) else Word.UNDECIDED
    return word, f"{counted(own)}; trained {counted(base)}"


def _confounded(found: Found) -> Decided:
    """Decide b': is LN's precision alone judged as precision and a trained shift together are?"""
    mx = found.scale.mx
    base, ln, frozen = map(found.base, (mx, f"{mx}, LN in FP32", f"{mx}, {FROZEN}"))
    if not (ln and frozen and base):
        return Word.NOT_TESTABLE, "was not run"
    alone, released = signs(paired(base, ln)), signs(paired(frozen, ln))
    measured = (
        f"LN in FP32 {counted(ln)}: later in {alone.earlier} of {len(ln)} seeds than LN in BF16"
        f" with a trained shift, in {released.earlier} than with a frozen one"
    )
    if alone.word is not released.word:
        return Word.AGREES, measured
    return (Word.CONTRADICTS if (alone.word is not Word.UNDECIDED) else Word.UNDECIDED), measured


def _targets(found: Found) -> Decided:
    """Decide d: does the failure need other targets in MX?"""
    own, exact = found.base(found.scale.mx), found.base(EXACT)
    if not own or not exact:
        return Word.NOT_TESTABLE, "the base was not run"
    wins = signs(paired(own, exact))
    measured = (
        f"{found.scale.mx} diverges earlier than FP32 with the same targets in {wins.earlier} of"
        f" {len(own)} seeds"
    )
    return (Word.CONTRADICTS if wins.word is Word.AGREES else Word.UNDECIDED), measured


def _states(found: Found) -> Decided:
    """Decide e: is the epsilon of two trainings that of the formats?"""
    if not runs_of(found):
        return Word.NOT_TESTABLE, "epsilon was not measured"
    apart = ratio(middle(found, "zeta_apart"), middle(found, "zeta"))
    word = REVERSE.get(judge(apart, SAME), Word.UNDECIDED)
    return word, f"zeta of two trainings is {interval(apart, 'x')} that at the same state"
