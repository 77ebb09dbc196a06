"""The study of attention in few bits: its arithmetics, what it measures of a call, its verdicts."""

import gzip
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roundscope.attention import Plan, Site
from roundscope.experiments.framework import command
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.study import Launch, Study
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.questions.lowbit import recipes, static, study
from roundscope.experiments.questions.lowbit import trainings as t
from roundscope.experiments.questions.lowbit.measure import COLUMNS, ROUTES, exact, measured
from roundscope.tools.results.run import Run

RATE = 1e-2
RECORD = Path(__file__).parents[4] / "docs" / "runs" / "lowbit.sqlite.gz"


def plan_of(recipe, cure):
    text = recipes.words(recipe, cure)
    return Plan.preset("fa2-bf16").changed(*([text] if text else []))


def tensors(seed=3, tokens=64):
    return np.random.default_rng(seed).standard_normal((4, 1, tokens, 1, 32)).astype(np.float32)


def test_cures_are_what_their_names_say():
    """A cure that changes the forward, one that leaves dS or operands as they were."""
    for recipe, cure in recipes.pairs():
        if recipe not in recipes.RECIPES:
            continue
        plan, plain = plan_of(recipe, cure), plan_of(recipe, recipes.NONE)
        how = recipes.CURES[cure]
        for site in (Site.Q, Site.K, Site.V, Site.P):
            assert plan.event(site) == plain.event(site)
        assert (str(plan.event(Site.DS)) == "bf16") == how.high
        is_matched = not plan.inputs_again or plan.event(Site.KB) == plan.event(Site.K)
        assert is_matched == how.matched
        assert str(plan.delta_from) == how.delta
        assert (plan.row_sum_of is Site.P) == how.rounded and plan.lse_again == how.own
    assert len({plan_of(*pair) for pair in recipes.pairs()}) == len(recipes.pairs())


def test_exact_gradients_are_those_of_the_loss():
    """A backward of other attention, by differences of sum(dO O)."""
    q, k, v, do = tensors(tokens=8).astype(np.float64)

    def loss(q, k):
        s = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(32)
        e = np.exp(np.where(np.tri(8, dtype=bool), s, -np.inf))
        out = np.einsum("bnts,bsnh->btnh", e / e.sum(-1, keepdims=True), v)
        return (do * out).sum()

    dq, dk, _ = exact(q, k, v, do, is_causal=True)
    step = np.zeros_like(q)
    step[0, 5, 0, 3] = 1e-5
    for own, moved in ((dq, lambda h: loss(q + h, k)), (dk, lambda h: loss(q, k + h))):
        assert own[0, 5, 0, 3] == pytest.approx((moved(step) - moved(-step)) / 2e-5, rel=1e-6)


def test_routes_are_named_by_what_was_rounded():
    """A route that takes the error of another; parts that do not add up to the row sums."""
    one = {  # one cause of each, all else in binary64
        "route_1": "P=nvfp4",
        "route_2": "inputs_again=true K=nvfp4",
        "route_3": "kept_state=true LANES=bf16",
        "rounding": "DS=nvfp4",
    }
    for route, words in one.items():
        x = tensors().astype(np.float64)
        found = measured(Plan.preset("exact").changed(words), *x, is_causal=True)
        others = [found[name] for name in ROUTES if name != route]
        assert found[route] > 1e-4
        limit = 2.0 if route == "route_3" else 1e-9  # a row sum in BF16 moves O too
        assert max(others) < limit * found[route]
        assert found["rows"] < sum(found[name] for name in ROUTES) + 1e-12
    cured = measured(plan_of("nvfp4", recipes.CENTRED_HIGH), *tensors(), is_causal=True)
    assert cured["rows"] < 2e-3 < 2e-2 < found["rows"]


def test_gradients_that_vanish_are_not_hidden():
    """An arithmetic that rounds every dS to zero and seems to keep its rows."""
    x = tensors() * np.array([1, 1, 1, 1e-9], np.float32)[:, None, None, None, None]
    lost = Plan.preset("fa2-bf16").changed("DS=e4m3fn")
    found = measured(lost, *x, is_causal=True)
    assert math.isnan(found["rows"]) and found["dq_gain"] == pytest.approx(-1.0, abs=1e-6)


def runs_of(loss_of, seeds=5):
    """Results in which each recipe and cure has the losses of a function of cure and seed."""
    found = {}
    for recipe, cure in recipes.pairs():
        own = []
        for seed in range(seeds):
            c = t.Condition(recipe=recipe, cure=cure, rate=RATE, seed=seed)
            looks = {"100": dict.fromkeys(COLUMNS, 0.1)}
            loss = loss_of(recipe, cure, seed)
            gone = None if math.isfinite(loss) else 50
            own.append(
                Run(condition=c, steps=100, diverged=gone, loss=loss, extra={"looks": looks})
            )
        found[recipe, cure, RATE] = own
    return found


def made(recipe, cure, seed):
    """Few bits cost 0.3 nats, a centered delta repairs them, other cures do nothing."""
    cost = 0.0 if recipe in ("bf16", "fp32") or "centered" in cure else 0.3
    noise = (seed * (1 + len(cure) % 4) + len(cure) // 4) % 5 - 2  # its mean over seeds is 0
    return 2.0 + 0.01 * seed + cost + 0.002 * noise


def word_of(r, cure, other, recipe="nvfp4"):
    """The word of the claim on these two cures, of one recipe."""
    each = (*study.REPLACES, *study.HELPS)
    [claim] = [claim for claim in each if (claim.cure, claim.other) == (cure, other)]
    return study.judged(claim, r[recipe, cure, RATE], r[recipe, other, RATE])[0]


def test_claims_have_the_words_of_their_intervals():
    """A difference of the wrong sign, or one that is not paired by seed."""
    r = runs_of(made)
    assert word_of(r, recipes.CENTRED, recipes.BOTH) is Word.AGREES
    assert word_of(r, recipes.BOTH, recipes.MATCHED) is Word.UNDECIDED
    assert word_of(r, recipes.CENTRED_MATCHED, recipes.ROWS_MATCHED) is Word.AGREES
    worse = runs_of(lambda x, cure, seed: 5.0 - made(x, cure, seed))
    assert word_of(worse, recipes.CENTRED, recipes.BOTH) is Word.CONTRADICTS
    means = [v for v in study.claims(r) if v.case.startswith("mean of")]
    assert len(means) == len(study.REPLACES) + len(study.HELPS)
    assert means[5].word is Word.AGREES  # matched, a centered delta helps
    assert study.draw(r) is not None and study.forest(r) is not None
    assert "without matched recomputation 0 of 95 [0%, 4%] runs diverged" in study.answer(r)
    assert len(study.rows(r)) == len(recipes.pairs())


def test_runs_that_diverged_are_judged_before_losses():
    """A seed that is left out of a mean in silence; a cure that kills and has a lower mean."""

    def lost(recipe, cure, seed):
        is_lost = recipe == "nvfp4" and cure == recipes.MATCHED
        return math.nan if is_lost else made(recipe, cure, seed)

    r = runs_of(lost)
    assert word_of(r, recipes.CENTRED_MATCHED, recipes.MATCHED) is Word.AGREES
    assert word_of(r, recipes.BOTH, recipes.MATCHED) is Word.AGREES  # none diverged with it
    [own] = [v for v in study.claims(r) if (v.claim, v.case) == (study.HELPS[0].text, "NVFP4")]
    assert own.measured.startswith("diverged 0 of 5; the other 5 of 5, step 50")
    count = study.pooled(r, RATE, recipes.CENTRED_MATCHED, recipes.MATCHED)[1]
    assert count == len(recipes.RECIPES) - 2  # without INT8's control and the one that diverged
    one = runs_of(lambda x, cure, seed: math.nan if seed == 2 and cure == recipes.CENTRED else 2.0)
    assert word_of(one, recipes.CENTRED, recipes.BOTH) is Word.UNDECIDED  # one decides nothing
    assert study.told({0: 1.0, 1: math.nan}).startswith("1 of 2 not finite")


def test_launches_train_only_what_is_new(tmp_path):
    """More seeds that train the first ones again; launches that no other process can take."""
    scale = replace(t.QUICK, pairs={RATE: [("bf16", "none")]}, seeds=1)
    with opened(tmp_path, "lowbit") as store:
        [first] = t.launches(scale, store)
        [key] = first.keys
        [c] = t.conditions(scale)
        run = Run(condition=c, steps=100, diverged=None, loss=1.0, extra={"looks": {}})
        store.add({key: run}, first.config, "cpu")
        known, new = t.launches(replace(scale, seeds=3), store)
        assert known.keys == first.keys and len(new.keys) == 2
        assert t.results(scale, store).keys() == {("bf16", "none", RATE)}
        assert t.results(replace(scale, seeds=3), store) is None
    assert pickle.loads(pickle.dumps(new)).keys == new.keys


def test_the_run_of_record_is_whole(tmp_path):
    """A changed word that gives stored trainings another name; a page that lacks a part."""
    (tmp_path / "lowbit.sqlite").write_bytes(gzip.decompress(RECORD.read_bytes()))
    asked = study.asked(quick=False)
    with opened(tmp_path, "lowbit") as store:
        launches = asked.launches(store)
        assert store.keys() == {key for launch in launches for key in launch.keys}
        r = asked.results(store)
    assert "60 of 90 [56%, 76%] with a centered delta" in study.answer(r)
    assert "ends -0.26 [-0.35, -0.16] (n = 5) nats" in study.answer(r)


def counted(number, progress):
    """A launch of a process: its run, or an error for number 2."""
    if number == 2:
        raise ValueError("number 2")
    c = t.Condition(recipe="bf16", cure="none", rate=RATE, seed=number)
    return {str(number): Run(condition=c, steps=1, diverged=None, loss=float(number))}


@pytest.mark.thorough
def test_launches_side_by_side_keep_what_ended(tmp_path):
    """A failed launch that takes the others with it; runs that are not stored."""
    from functools import partial

    each = [
        Launch(title=f"{n}", steps=1, config={}, keys=(f"{n}",), run=partial(counted, n))
        for n in range(4)
    ]
    made_of = Study(name="x", question="", answer=lambda r: "", launches=lambda store: each)
    with opened(tmp_path, "x") as store:
        with pytest.raises(ValueError, match="number 2"):
            command.measure(made_of, store, jobs=2)
        assert store.keys() == {"0", "1", "3"}


def test_static_cells_are_heads_of_layers(monkeypatch):
    """A cell that mixes heads; a picture or verdicts of a recipe that is not there."""
    monkeypatch.setattr(static, "TOKENS", 32)
    one = static.tensors(quick=True)[0]
    assert one[0].shape == (1, 64, 1, 32)
    cells = static.cells_of(recipes.words("nvfp4", recipes.NONE), quick=True)
    assert len(cells["rows"]) == len(static.tensors(quick=True))
    found = {("nvfp4", cure): cells for cure in (recipes.NONE, recipes.CENTRED_HIGH)}
    told = static.verdicts(found, quick=True)
    assert [v.case for v in told] == ["NVFP4", "NVFP4"]
    assert static.picture(found) is not None
