"""What is trained, in cases in which a small model fails, and the `Results` by case and row.

A case is a list of changes to the preset qiu-yao. Rows 0 to 10 are the paper's (section 3), the
others are controls. In every training the rest of dS is looked at, what its rows sum to, where
exact arithmetic gives 0 (`experiments.train.gpt.row_sums`). It enters the gradient of W_Q:

    r[t] = sum_s dS[t,s] = sum_s P[t,s] (dP[t,s] - delta[t])
    R = alpha sum_t r[t] X[t]^T (PK)[t]   (D, H): equation 2 of the paper with r in place of the
        error of delta
    share = sum |R| / sum |dW_Q|   over looks at a run and heads, |.| Frobenius
    steady = |sum R| / sum |R|     sums over looks inside |.|: 1 if R points the same way every
        time, 1 / sqrt(looks) if it has no direction
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.experiments.framework.estimates import Estimate, grouped, mean
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.train.config import Config, unusual
from roundscope.experiments.train.gpt import monitor
from roundscope.experiments.train.gpt import step as one_step
from roundscope.experiments.train.gpt.interventions import described, plans_of
from roundscope.experiments.train.gpt.linear import FULL as FULL_PRECISION
from roundscope.experiments.train.gpt.plans import Tables
from roundscope.experiments.train.gpt.row_sums import row_sums
from roundscope.experiments.train.groups import Group, blocks, drawing, numbers
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.experiments.train.spikes import Follow
from roundscope.tools.results.run import Run, key_of

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
    """A way to make the algorithm fail: changes, the O path's rounding, a multiple of the rate.

    late   whether it fails so late that searches, too, need all of the steps
    """

    name: str
    words: str
    changes: tuple[str, ...]
    bits: int
    mode: str = "ties-to-even"
    times: float = 1.0
    late: bool = False

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
    return Case(name, words, changes, bits, mode, late=name == NEAREST)


def fewer(bits: int) -> Case:
    """Return the authors' algorithm with fewer bits at every event that they keep in BF16."""
    changes = (f"site={ALL} -> {rounded(bits, 'ties-to-even')}",)
    return Case(FEWER, f"all BF16 events at p\xa0=\xa0{bits}", changes, bits, late=True)


FAILS, FP32 = "0", "0'"
UNFUSED = "baseline-bf16"
# scores rounded twice forward, once backward: they differ unless the scale is a power of two
ONCE = "baseline-bf16 once"
ALONE, EXACT = "only", "all but"  # which layers or heads are low: this one, or all but it
HALVES = {"before": BEFORE, "after": AFTER, "both": PATH}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the ablation table; `search`: one of many places, shorter; `core`: in --quick."""

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
    for layer in range(config.layers if case.name == AMPLIFIED and config.layers > 1 else 0):
        found += of_layer(config, layer)
    if case.name in (AMPLIFIED, NEAREST):
        found += factorial(case)
    heads = range(config.heads if case.name == AMPLIFIED else 0)
    for layer, head in product(range(config.layers), heads):  # each alone exact, and alone low
        own, name = f"layer={layer} head={head} site={PATH}", f"head {layer}.{head}"
        only = (f"site={PATH} -> fp32", f"{own} -> {case.path}")
        found += [
            Row(f"8 {EXACT} {name}", f"O path FP32 in {name}", (f"{own} -> fp32",), search=True),
            Row(f"8 {ALONE} {name}", f"O path low in {name} only", only, search=True),
        ]
    return found


def of_layer(config: Config, layer: int) -> list[Row]:
    """Return rows 3 and 4 at a layer: it alone is low, and it alone is exact."""
    others = ",".join(str(i) for i in range(config.layers) if i != layer)
    low, exact = (f"layer={others} -> fp32",), (f"layer={layer} -> fp32",)
    return [
        Row(f"3 {ALONE} layer {layer}", f"only layer {layer} low", low, search=True),
        Row(f"4 {EXACT} layer {layer}", f"layer {layer} FP32", exact, search=True),
    ]


def _paper(case: Case) -> Iterator[Row]:
    before = f"site={BEFORE} -> fp32"
    yield Row("1", "4 key tiles", tiles=4)
    if case.name != OTHER_DELTA:
        yield Row("5", "delta = rowsum(P dP)", ("-> delta_from=P_DP",), core=True)
    yield Row("6", "delta from O in FP32, output still rounded", (before, "-> delta_from=O"))
    yield Row("7", "O path FP32", (f"site={PATH} -> fp32",), core=True)
    yield Row("9", "PV, AO and O FP32, output rounded", (before,), core=case.name == AMPLIFIED)
    for beta in (2,) if case.name == OTHER_DELTA else (2, 7):
        yield Row(f"10 beta {beta}", f"stabilized softmax, beta {beta}", (f"-> stabiliser={beta}",))


def _controls(case: Case) -> Iterator[Row]:
    """Yield rows that the paper does not have, among them errors without bias of the same RMS.

    The errors of toward zero at p bits and of nearest-even at p - 1 are both uniform in an ulp,
    sqrt(1/3) ulp of p bits; stochastic has sqrt(1/6) ulp of its own bits, 0.7 times that of
    nearest-even with one bit less.
    """
    yield Row("centred", "delta = rowsum(P dP) / rowsum(P)", ("-> delta_from=CENTRED",), core=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model, its failing cases, and how long and how often each row runs.

    --quick is for two cores, full for a GPU.

    rate          the rate after `config.warmup` steps, constant whatever the number of steps
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training: changes of the preset qiu-yao, parts of the context, steps, seed, `times`."""

    changes: tuple[str, ...]
    tiles: int
    steps: int
    seed: int
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A trial in its place; several may share a trial, or have trials of one arithmetic."""

    case: str
    row: str
    trial: Trial


def chosen_rows(scale: Scale, case: Case) -> list[Row]:
    """Return the rows of a case that a scale runs."""
    return [row for row in rows(case, scale.config) if row.core or not scale.core]


def entries(scale: Scale) -> list[Entry]:
    """Return all entries that are run whatever the results are."""
    return [
        entry
        for case in scale.cases
        for row in chosen_rows(scale, case)
        for entry in of_row(scale, case, row)
    ]


def of_row(scale: Scale, case: Case, row: Row, seeds: Iterable[int] | None = None) -> list[Entry]:
    """Return the entries of a row, one for each seed."""
    usual = scale.few if row.search else scale.seeds
    steps = scale.short if row.search and not case.late else scale.steps
    changes = (*case.changes, *row.changes)
    return [
        Entry(
            case=case.name,
            row=row.name,
            trial=Trial(changes=changes, tiles=row.tiles, steps=steps, seed=seed, times=case.times),
        )
        for seed in (usual if seeds is None else seeds)
    ]


def config_of(scale: Scale, trial: Trial) -> Config:
    """Return the config of a trial's executable."""
    c = scale.config
    block, steps = c.context // trial.tiles, max(trial.steps, c.warmup)
    return replace(c, block=block, steps=steps, lr=1.0, min_lr=1.0, decay_steps=None)


def key(scale: Scale, trial: Trial) -> str:
    """Return the key of a run: of all that decides it but versions, device and a plan's wording."""
    named = (*NAMED, "block")
    config = {name: x for name, x in unusual(scale.config).items() if name not in named}
    plans = _plans(config_of(scale, trial), trial.changes)
    return key_of(config, plans, scale.rate * trial.times, trial.tiles, trial.steps, trial.seed)


@lru_cache(4096)
def _plans(config: Config, changes: tuple[str, ...]) -> list[dict[str, Any]]:
    plans = described(plans_of(config, changes))
    for each in plans:
        each["plan"].pop("name")
    return plans


def settings_of(scale: Scale, trials: Sequence[Trial]) -> Settings:
    """Return trials of equally many steps and tiles as arms of one run."""
    arms = [
        Arm(name=str(i), changes=t.changes, lr=scale.rate * t.times, seed=t.seed)
        for i, t in enumerate(trials)
    ]
    return Settings(config=config_of(scale, trials[0]), arms=tuple(arms))


def executables(scale: Scale, trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return trials by executable; long lists are cut into equal parts, filled up, to share one."""
    alike = grouped(((t.steps, t.tiles), t) for t in {key(scale, t): t for t in trials}.values())
    found = []
    for group in (g for own in alike.values() for g in _by_structure(scale, tuple(own))):
        size = math.ceil(len(group) / math.ceil(len(group) / scale.arms))
        parts = [group[i : i + size] for i in range(0, len(group), size)]
        found += [part + part[:1] * (size - len(part)) for part in parts]
    return found


@lru_cache(64)
def _by_structure(scale: Scale, trials: tuple[Trial, ...]) -> list[list[Trial]]:
    """Return trials of equal steps and tiles by the structure that their changes give a plan."""
    firsts = list({t.changes: t for t in trials}.values())
    groups = []
    for arms in numbers(settings_of(scale, firsts)):
        alike = {firsts[i].changes for i in arms}
        groups.append([t for t in trials if t.changes in alike])
    return groups


SEARCHED = (NEAREST, FEWER, OTHER_DELTA)  # cases in which one layer is tried, the one that grew
LARGEST, SMALLEST, RANDOM = "8 largest", "8 smallest", "8 random"
PICKED = "O path FP32 in half of all heads"
SETS = 4  # the number of random sets of heads for each seed


def chosen(scale: Scale, case: Case, failing: Sequence[Run[Trial]]) -> list[Entry]:
    """Return row 8: O in FP32 in half of all heads, by ||W_Q,h|| of failing runs or random."""
    found: list[Entry] = []
    for run in failing:
        seed, order = run.seed, ranked(run)
        half = len(order) // 2
        draw = random.Random(seed)
        sets = {LARGEST: order[:half], SMALLEST: order[half:]}
        sets |= {f"{RANDOM} {i}": draw.sample(order, half) for i in range(SETS)}
        for name, heads in sets.items():
            changes = tuple(f"layer={i} head={h} site={PATH} -> fp32" for i, h in sorted(heads))
            found += of_row(scale, case, Row(name, PICKED, changes, search=True), [seed])
    return found


def grown(failing: Sequence[Run[Trial]]) -> tuple[int, int]:
    """Return the layer whose ||W_Q,h|| was the largest before divergence in most runs, and in how
    many.
    """
    layers = [int(np.argmax([max(row) for row in run.extra["heads"]])) for run in failing]
    layer = int(np.bincount(layers).argmax())
    return layer, layers.count(layer)


def ranked(run: Run[Trial]) -> list[tuple[int, int]]:
    """Return all (layer, head), those with the largest ||W_Q,h|| before divergence first."""
    norms = {
        (layer, head): norm
        for layer, row in enumerate(run.extra["heads"])
        for head, norm in enumerate(row)
    }
    return sorted(norms, key=lambda at: -norms[at])


Own = Sequence[Run[Trial]]  # the runs of one row, in the order of seeds


class Results:
    """The runs by (case, row), in the order of seeds, and changes; rows may share a run."""

    def __init__(
        self, scale: Scale, entries: Sequence[Entry], found: Mapping[Trial, Run[Trial]]
    ) -> None:
        self.by: dict[tuple[str, str], list[Run[Trial]]] = {}
        self.changes: dict[tuple[str, str], tuple[str, ...]] = {}
        for entry in entries:
            if entry.trial in found:
                self.by.setdefault((entry.case, entry.row), []).append(found[entry.trial])
                self.changes[entry.case, entry.row] = entry.trial.changes
        there = {case for case, _ in self.by}
        self.scale = replace(scale, cases=tuple(c for c in scale.cases if c.name in there))

    def of(self, case: str, row: str) -> list[Run[Trial]]:
        """Return the runs of a row; none where the row was not run."""
        return self.by.get((case, row), [])

    def rows(self, case: str) -> list[str]:
        """Return the names of the rows of a case that were run."""
        return [row for own, row in self.by if own == case]

    def excess(self, case: str, own: Own) -> Estimate:
        """Return the loss above FP32 of the same seed, in nats, of runs that ended as late."""
        exact = {run.seed: run for run in self.of(case, FP32)}
        pairs = [(run, exact[run.seed]) for run in own if run.seed in exact]
        return mean({a.seed: a.loss - b.loss for a, b in pairs if a.steps == b.steps})

    def fails(self, case: str) -> bool:
        """Return whether every run of a case diverged and no FP32 run; repairs are judged there."""
        base, exact = self.of(case, FAILS), self.of(case, FP32)
        if not (base and exact):
            return False
        return all(r.diverged is not None for r in base) and all(r.diverged is None for r in exact)


def whole(wanted: Sequence[Entry], found: Collection[Trial]) -> list[Entry]:
    """Return the entries of whole rows, in whole cases; each search (layers, sets) is one row."""
    places = [(e.case, place_of(e.row)) for e in wanted]
    missing = {at for e, at in zip(wanted, places, strict=True) if e.trial not in found}
    cases = {e.case for e in wanted if not {(e.case, FAILS), (e.case, FP32)} & missing}
    return [
        e for e, at in zip(wanted, places, strict=True) if e.case in cases and at not in missing
    ]


def place_of(row: str) -> str:
    """Return what a row is shown with: of row 8 sets of heads apart from heads alone."""
    first = row.partition(" ")[0]
    picked = row.startswith((LARGEST, SMALLEST, RANDOM))
    return f"{first} sets" if picked else first


def middle(values: Sequence[float]) -> float:
    """Return the median of the finite numbers, NaN without any."""
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else math.nan


def split(r: Results) -> tuple[list[Run[Trial]], list[Run[Trial]]]:
    """Return every run whose drift was measured, once: those that diverged, then the others."""
    runs = [run for own in r.by.values() for run in own if math.isfinite(drift(run))]
    every = {run.condition: run for run in runs}.values()
    return [x for x in every if x.diverged is not None], [x for x in every if x.diverged is None]


def share(run: Run[Any]) -> float:
    """Return sum |R| / sum |dW_Q| over looks, heads: the rest's share in the gradient of W_Q."""
    return _rest(run, 1, 2)


def steady(run: Run[Any]) -> float:
    """Return |sum R| / sum |R|: how far R points one way."""
    return _rest(run, 0, 1)


def drift(run: Run[Any]) -> float:
    """Return share x steady = |sum R| / sum |dW_Q|: what the rest adds to W_Q in one direction."""
    return _rest(run, 0, 2)


def _rest(run: Run[Any], over: int, under: int) -> float:
    """Return the quotient of two columns of "rest": |sum R|, sum |R| and sum |dW_Q|."""
    heads = [head for layer in run.extra["rest"] for head in layer]
    total = sum(head[under] for head in heads)
    return sum(head[over] for head in heads) / total if total else math.nan


# steps done, losses (A,) since the look before, ||W_Q,h|| (A, L, N)
Look = tuple[int, np.ndarray, np.ndarray]


def launch(
    scale: Scale, trials: Sequence[Trial], progress: Callable[[int], None]
) -> list[Run[Trial]]:
    """Return the runs of trials of one structure, to the last step or until all diverged."""
    settings, steps = settings_of(scale, trials), trials[0].steps
    state = one_step.start(
        settings.config, len(trials), [settings.config.init_seed + t.seed for t in trials]
    )
    group, drawn = Group(settings, list(range(len(trials))), state), drawing(settings)
    follow, rest = Follow(len(trials)), Rest(settings.config)

    def look(_: int) -> Any:
        return monitor.query_norms(group.state.params["layers"]["qkv"])

    def advance(number: int) -> Any:
        batches = drawn(number)
        if rest.due(number):
            rest.look(group.state.params, group.own(batches), group.plans(number)[0], number)
        return group.advance(number, batches)

    looks: list[Look] = [(0, np.full(len(trials), np.nan), np.asarray(look(0)))]
    for block in blocks(advance, 0, steps, look=look, ahead=False):
        follow.add(block.done, block.losses)
        looks.append((block.done, np.mean(block.losses, axis=0), block.look))
        progress(block.done)
        if (follow.first >= 0).all():
            break
    final, rests = follow.final(), rest.found(len(trials))
    return [
        _run(t, a, int(follow.first[a]), float(final[a]), looks, rests[a])
        for a, t in enumerate(trials)
    ]


def _run(
    trial: Trial, arm: int, first: int, final: float, looks: Sequence[Look], rest: np.ndarray
) -> Run[Trial]:
    """Return what is reported of an arm: norms up to divergence, `Rest.found`, and the curve."""
    before = [look for look in looks if first < 0 or look[0] <= first]  # the one at step 0 always
    norms = np.stack([seen[arm] for _, _, seen in before])
    norms = norms[np.isfinite(norms).all((1, 2))]
    return Run(
        condition=trial,
        steps=trial.steps,
        diverged=None if first < 0 else first,
        loss=final if first < 0 else math.nan,
        curve=tuple((done, float(loss[arm]), float(seen[arm].max())) for done, loss, seen in looks),
        extra={"norm": float(norms.max()), "heads": norms[-1].tolist(), "rest": rest.tolist()},
    )


SEQUENCES, EVERY = 4, 5  # how many sequences of a batch are read; steps between looks


class Rest:
    """Looks at all arms of a launch, from step `config.warmup` to twice that, which is early."""

    def __init__(self, config: Config) -> None:
        self.config, self.totals = config, None

    def due(self, step: int) -> bool:
        """Return whether to look before this step."""
        return self.config.warmup <= step < 2 * self.config.warmup and step % EVERY == 0

    def look(self, params: Any, tokens: np.ndarray, plans: Tables | None, step: int) -> None:
        """Add R and dW_Q at these weights to the totals; tokens are (B, T + 1) or (A, B, T + 1)."""
        now = _looking(one_step.numbers_only(self.config))(
            params, tokens[..., :SEQUENCES, :], plans, np.int32(step)
        )
        self.totals = now if self.totals is None else jax.tree.map(jnp.add, self.totals, now)

    def found(self, arms: int) -> np.ndarray:
        """Return |sum R|, sum |R|, sum |dW_Q| by layer and head, (A, L, N, 3), or NaN."""
        if self.totals is None:
            return np.full((arms, self.config.layers, self.config.heads, 3), np.nan)
        rest, size, gradient = (np.asarray(x, float) for x in jax.device_get(self.totals))
        return np.stack([np.sqrt((rest**2).sum((-2, -1))), size, gradient], axis=-1)


@lru_cache(64)
def _looking(config: Config) -> Any:
    """Return the program that gives (R, |R|, |dW_Q|) of every arm, layer and head."""

    def one(params: Any, tokens: Array, plans: Tables, step: Any) -> tuple[Array, Array, Array]:
        own = row_sums(config, params, tokens, plans, step)
        rest = jnp.einsum("lbtn,lbtd,lbtnh->lndh", own.r, own.x, own.pk, precision=FULL_PRECISION)
        gradient = jnp.einsum("lbtd,lbtnh->lndh", own.x, own.dq, precision=FULL_PRECISION)
        size, norm = (jnp.sqrt((x * x).sum((-2, -1))) for x in (rest, gradient))
        return rest, size, norm

    def all_arms(params: Any, tokens: Array, plans: Tables, step: Any) -> Any:
        axes = (0, 0 if tokens.ndim == 3 else None, 0, None)
        return jax.vmap(one, in_axes=axes)(params, tokens, plans, step)

    return jax.jit(all_arms)
