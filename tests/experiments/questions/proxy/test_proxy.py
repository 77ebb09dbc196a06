"""`roundscope proxy`: changes in words, arms, a beginning that arms share, when a run has diverged,
the command.
"""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu.blocks.format import block_format
from roundscope.emu.roundings.modes import BF16, RoundingMode
from roundscope.experiments.cli.main import main
from roundscope.experiments.questions.proxy.study import answer, asked
from roundscope.experiments.train.mx import GROUPS, INDEX, Site
from roundscope.experiments.train.student import model as steps
from roundscope.experiments.train.student import run
from roundscope.experiments.train.student.arms import (
    MATRICES,
    UNCHANGED,
    Arm,
    Config,
    arm_of,
    groups,
    interventions,
    plan_of,
)
from roundscope.experiments.train.student.run import Follow, lone
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

TINY = Config(depth=1, width=32, ratio=1, batch=32, steps=6, lr=1e-2, min_lr=1e-2)
WORDS = ["depth=1", "width=32", "ratio=1", "batch=32", "steps=6", "lr=1e-2"]
FP4 = Arm(name="fp4", changes=((0, "site=W,G_W -> mxfp4"),), lr=1e-2)  # few events: less to compile


def quiet(done):
    pass


def test_a_change_reaches_what_it_names_and_nothing_else():
    """An intervention that also changes another layer, matrix or event: its effect would be read as
    that of the one named.
    """
    config = Config(depth=3, width=32, batch=32)
    plan = plan_of(
        config,
        ("-> mx=mxfp8_e4m3", "layer=1-2 matrix=down site=W,X_W -> mxfp8_e5m2:rceil:stochastic"),
    )
    wanted = block_format("mxfp8_e5m2", "stochastic", rule="rceil")
    for k, row in enumerate(plan.formats):
        for matrix, own in zip(MATRICES, row, strict=True):
            for site in Site:
                here = k >= 1 and matrix == "down" and site in (Site.W, Site.X_W)
                usual = block_format("mxfp8_e4m3") if site in GROUPS["operands"] else BF16
                assert own[INDEX[site]] == (wanted if here else usual)
    assert plan.drawn == {Site.W, Site.X_W} and not plan.even and plan.beta
    assert not plan_of(config, ("-> beta=0",)).beta and plan_of(config, ()).rounded == frozenset()


def test_interventions_are_the_arms_of_the_paper_and_separate_its_confound():
    """An arm that changes two things at once: LayerNorm's precision and whether its shift is
    trained.
    """
    plans = {
        n: plan_of(TINY, ("-> mx=mxfp8_e4m3", *filter(None, [text])))
        for n, text in interventions("mxfp8_e4m3").items()
    }
    base = plans[UNCHANGED]

    def changed(n):
        return {s for s in Site if plans[n].formats[0][0][INDEX[s]] != base.formats[0][0][INDEX[s]]}

    assert (
        changed("LN in FP32")
        == {Site.GAMMA, Site.LN, Site.DLN}
        == changed("LN in FP32, beta frozen")
        and changed("beta frozen") == set()
    )
    assert [plans[n].beta for n in ("LN in FP32", "beta frozen", "LN in FP32, beta frozen")] == [
        True,
        False,
        False,
    ]
    assert changed("RCEIL") == changed("bump") == changed("stochastic") == set(GROUPS["operands"])
    assert (
        changed("backward BF16") == set(GROUPS["backward"])
        and plans["all FP32"].rounded == frozenset()
    )
    assert "bump" not in interventions("mxfp4")


@pytest.mark.parametrize(
    ("words", "options", "named"),
    [
        (["width=40"], {}, "width"),
        (["phi=tanh"], {}, "phi"),
        (["depth=x"], {}, "depth"),
        (["colour=red"], {}, "colour"),
        ([], {"own": ["a=site=WW -> bf16"]}, "WW"),
        ([], {"own": ["a=site=W -> mxfp8"]}, "mxfp8"),
        ([], {"own": ["a=W bf16"]}, "->"),
        ([], {"own": ["a=-> nvfp4"]}, "powers of two"),
        ([], {"own": ["a=layer=9 -> bf16"]}, "layer 9"),
        ([], {"first": 5}, "--from"),
        ([], {"own": ["fp32=-> fp32"]}, "--arm"),
        ([], {"own": ["a=-> bf16:rceil"]}, "scale"),
        ([], {"own": ["a=-> beta=2"]}, "beta"),
        ([], {"own": ["a=lr=-1"]}, "lr"),
        ([], {"at": ["x -> bf16"]}, "--at"),
        ([], {"own": ["a=-> bf16", "a=-> fp32"]}, "name"),
        ([], {"seeds": "a"}, "--seeds"),
    ],
)
def test_what_is_wrong_is_named(words, options, named):
    """A word that is silently ignored, or a traceback."""
    with pytest.raises(UsageError, match=named):
        asked(words, **{"name": "formats"} | options)


@pytest.mark.thorough
def test_arms_part_from_the_same_bits(tmp_path):
    """A branch whose weights, moments or rows differ from those of the run that it leaves; a
    beginning read back wrongly.
    """
    arms = [
        FP4,
        Arm(
            name="late", changes=((0, "site=W,G_W -> mxfp4"), (3, "site=W -> mxfp8_e4m3")), lr=1e-2
        ),
    ]
    first = run.begin(TINY, arms, 3, tmp_path, quiet)
    again = run.begin(TINY, arms, 3, tmp_path, quiet)
    assert len(list(tmp_path.glob("begin-3-*.safetensors"))) == 1
    leaves = [jax.tree.leaves(b.state) for b in (first, again)]
    assert all(
        np.array_equal(a, b) and np.array_equal(np.asarray(a)[0], np.asarray(a)[1])
        for a, b in zip(*leaves, strict=True)
    )
    whole = run.advance(TINY, [FP4], run.fresh(TINY, [FP4]), 6, quiet)[0]
    parted = run.advance(TINY, arms, again, 6, quiet)[0]
    assert np.allclose(parted.losses[:, 0], whole.losses[:, 0], rtol=1e-5)
    assert np.array_equal(parted.losses[:3, 0], parted.losses[:3, 1])
    assert parted.losses[5, 0] != parted.losses[5, 1]


def test_arms_of_a_seed_see_the_same_rows_and_weights():
    """An FP32 arm that has other rows, weights or a teacher of its own; rows that come twice."""
    rows = steps.batches(TINY)
    x, y = rows(np.array([0, 1], np.uint32), np.int32(0))
    later = rows(np.array([0, 1], np.uint32), np.int32(1))[0]
    assert (
        not np.array_equal(x[0], x[1])
        and not np.array_equal(x[0], later[0])
        and x.shape == y.shape == (2, 32, 32)
    )
    state = steps.start(TINY, [0, 1, 0])
    assert np.array_equal(state.params["up"][0], state.params["up"][2]) and not np.array_equal(
        state.params["up"][0], state.params["up"][1]
    )
    assert abs(float(x.mean())) < 0.1 and abs(float(x.std()) - 1.0) < 0.05


def test_beta_that_is_not_trained_stays():
    """The published confound without its cause: a shift that moves though its gradient is dropped,
    by Adam's memory too.
    """
    low = (0, "site=W,G_W -> mxfp4")
    arms = [FP4, *(Arm(name=f"from {n}", changes=(low, (n, "-> beta=0")), lr=1e-2) for n in (0, 2))]
    half = run.advance(TINY, arms, run.fresh(TINY, arms), 2, quiet)[0]
    end = run.advance(TINY, arms, half, 4, quiet)[0]
    before, after = (np.asarray(begin.state.params["beta"]) for begin in (half, end))
    assert np.all(after[1] == 0) and np.any(np.asarray(end.state.params["gamma"])[1] != 1)
    assert (
        np.any(before[2] != 0)
        and np.array_equal(after[2], before[2])
        and np.all(after[0] != before[0])
    )


def test_stochastic_rounding_draws_anew_and_without_bias():
    """Lots that are the same in every step or place: noise that is a bias."""
    table = jnp.asarray(plan_of(TINY, ("-> mx=mxfp4:stochastic",)).table(5))
    first, second = (np.asarray(steps.reseeded(table, jnp.int32(n)))[..., -1] for n in (0, 1))
    assert len(np.unique(first)) == first.size and not np.intersect1d(first, second).size
    assert (
        plan_of(TINY, ("site=W -> mxfp4:stochastic",)).formats[0][0][INDEX[Site.W]].element.mode
        is RoundingMode.STOCHASTIC
    )


def test_groups_share_an_executable_only_where_the_same_events_round():
    """FP32 that pays for roundings, or an arm in a program that cannot draw its lots."""
    exact = Arm(name="fp32", lr=1e-2)
    lots = arm_of(TINY, "s=-> mx=mxfp4:stochastic")
    found = groups(TINY, [exact, FP4, lots, arm_of(TINY, "e=site=W,G_W -> mxfp8_e4m3:rceil")])
    assert [[a.name for a in own] for own in found] == [["fp32"], ["fp4", "e"], ["s"]]
    assert run.how_of(TINY, [exact]).rounded == frozenset() and run.how_of(
        TINY, [lots]
    ).drawn == set(GROUPS["operands"])


def follow(losses):
    found = Follow(1)
    for n, loss in enumerate(losses):
        found.update(n, np.array([loss]))
    found.end(len(losses))
    return int(found.first[0])


def test_a_run_has_diverged_when_its_loss_doubles_or_is_lost():
    """A rule that takes noise, a fall over decades or one spike for a divergence, or misses one at
    a small loss.
    """
    rng = np.random.default_rng(0)
    fall = 1e-1 * np.exp(-np.arange(600) / 150) * np.exp(0.05 * rng.standard_normal(600))
    assert follow(fall) == -1
    spiky = fall.copy()
    spiky[300:310] *= 30
    assert follow(spiky) == -1
    risen = fall.copy()
    risen[400:] = 3 * fall[400]
    assert 390 < follow(risen) < 560
    late = fall.copy()
    late[560:] *= 1e6
    assert follow(late) == 560 and follow(late[:565]) == -1
    lost = fall.copy()
    lost[200:] = math.nan
    assert follow(lost) == 200


def outcome(name, seed, diverged, loss=1.0):
    return Run(
        condition=Arm(name=name, lr=1e-2, seed=seed),
        steps=100,
        diverged=diverged,
        loss=loss,
        extra={"spikes": 0},
    )


def test_the_answer_counts_only_seeds_with_which_fp32_lives():
    """A divergence that FP32 has too, told as one of the format."""
    wanted = asked(WORDS, name="formats", own=["a=-> bf16"], seeds="0-1")
    both = [
        outcome("fp32", 0, 50),
        outcome("fp32", 1, None),
        outcome("a", 0, 40),
        outcome("a", 1, None),
    ]
    assert lone(both) == [] and answer(wanted, both).startswith("No")
    alone = [*both[:3], outcome("a", 1, 60)]
    assert lone(alone) == ["a"] and answer(wanted, alone).startswith(
        "Yes: a in 2 of 2, step 50 [40, 60]"
    )


def test_interrupted_runs_are_told_and_drawn(tmp_path, monkeypatch, capsys):
    """Launches that are lost with the one after them, an answer of FP32 alone, and a page that
    trains when it is drawn.
    """
    launched = []

    def launch(config, arms, progress, start=None):
        launched.append([a.name for a in arms])
        if len(launched) in (2, 4):
            raise KeyboardInterrupt
        return [
            replace(outcome(a.name, a.seed, None, 2.0 if a.name == "b" else 1.0), condition=a)
            for a in arms
        ]

    monkeypatch.setattr(run, "launch", launch)
    words = [
        "proxy",
        *WORDS,
        "--seeds",
        "0-1",
        "--arm",
        "a=site=W -> bf16",
        "--arm",
        "b=-> bf16",
        "--out",
        str(tmp_path),
        "--json",
    ]
    page = tmp_path / "arms.html"
    assert ended(words) == 130 and launched == [["fp32"] * 2, ["a"] * 2] and not page.exists()
    assert ended(words) == 130 and launched[2:] == [["a"] * 2, ["b"] * 2]
    part = json.loads(capsys.readouterr().out)
    assert [a["name"] for a in part["arms"]] == ["fp32", "a"] and "2 of 3" in page.read_text()
    assert ended([*words, "--draw"]) == 0 and len(launched) == 4
    drawn = json.loads(capsys.readouterr().out)
    assert (
        (drawn["run"]["there"], drawn["run"]["ran"]) == (2, 0)
        and drawn["arms"] == part["arms"]
        and "Not complete" in page.read_text()
    )
    assert (
        ended(words) == 0 and launched[4:] == [["b"] * 2] and "Not complete" not in page.read_text()
    )
    whole = json.loads(capsys.readouterr().out)
    assert whole["answer"].endswith("The largest final loss over FP32's: b, 2.00 times.")


def ended(words):
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code or 0


@pytest.mark.thorough
@pytest.mark.pictures
def test_the_command_writes_a_page_and_computes_nothing_twice(tmp_path, capsys):
    """A page without its picture, a second run that computes again, a result under another arm's
    name.
    """
    words = [
        "proxy",
        *WORDS,
        "measure_every=3",
        "--seeds",
        "0",
        "--arm",
        "four=site=W,DX -> mxfp4",
        "--out",
        str(tmp_path),
        "--json",
    ]
    main_ok(words)
    first = json.loads(capsys.readouterr().out)
    main_ok(words)
    second = json.loads(capsys.readouterr().out)
    assert (
        first["run"]["ran"] == 2 and second["run"]["ran"] == 0 and first["arms"] == second["arms"]
    )
    four = next(a for a in first["arms"] if a["name"] == "four")
    assert (
        0.05 < four["measures"]["zeta"] < 1.0
        and four["measures"]["zeta_W"] < four["measures"]["zeta"]
    )
    page = (tmp_path / "arms.html").read_text()
    assert (
        page.index("<h1>") < page.index("<p class=lead>") < page.index("<svg")
        and page.count("<svg") == 4
    )
    assert (tmp_path / "arms.json").exists() and (tmp_path / "proxy.sqlite").exists()


def main_ok(words):
    assert not ended(words)
