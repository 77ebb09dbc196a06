"""Parts of a proxy's diagnosis: units and their words, the gradient's error and its coherence,
operands, repairs, states that are kept.
"""

import json
import math
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from roundscope.emu.blocks.api import round_blocks
from roundscope.emu.blocks.format import block_format
from roundscope.emu.roundings.modes import BF16, BINARY32
from roundscope.experiments.diagnose.student.blocks import operands, origin
from roundscope.experiments.diagnose.student.case import Case, Row, case, read
from roundscope.experiments.diagnose.student.errors import GRADIENT, coherence, errors, only
from roundscope.experiments.diagnose.student.run import spelled, texts
from roundscope.experiments.diagnose.student.units import (
    Unit,
    change,
    format_of,
    there,
    units_of,
    words,
)
from roundscope.experiments.framework.store import opened
from roundscope.experiments.papers.mxfp8_2506_08027.measurements import Trial
from roundscope.experiments.train.mx import GROUPS, INDEX, How, Site, kept
from roundscope.experiments.train.student import model, run
from roundscope.experiments.train.student.arms import Arm, Config, key, plan_of
from roundscope.experiments.train.student.run import fresh
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.errors import StorageError
from roundscope.tools.results.run import Run
from tests.tools.databases import database

TINY = Config(depth=1, width=32, ratio=1, batch=32, steps=20, lr=1e-3, min_lr=1e-3, phi="swiglu")
LOW = "site=W,X_W -> mxfp4; site=G_X -> bf16"


def made(text, config=TINY, diverged=9):
    """A run that never ran."""
    arm = Arm(name="a", changes=((0, text),), lr=config.lr)
    row = Row(arm=arm, config=config, diverged=diverged, curve=(), device="cpu")
    return Case(folder=None, row=row, twin=None, origin=0, starts=(0,), until=20, longest=20)


def bent(b):
    """A beginning with other weights, gamma and beta among them, in every arm."""
    rng = np.random.default_rng(3)
    other = {
        n: np.asarray(x) * (1.0 + 0.3 * rng.standard_normal(x.shape)).astype(np.float32)
        for n, x in b.state.params.items()
    }
    other["beta"] = (0.1 * rng.standard_normal(other["beta"].shape)).astype(np.float32)
    return b._replace(state=replace(b.state, params=other))


def test_a_change_makes_exactly_its_units_exact():
    """Catches a change that misses a unit, reaches another, or says it in words that `roundscope
    proxy` does not take.
    """
    config = Config(depth=3, width=32, batch=32, phi="swiglu")
    plan = plan_of(config, ("-> mx=mxfp4",))
    every = units_of(config, plan)
    assert every == there(config) and len(every) == 3 * (9 * 3 + 5)
    rng = np.random.default_rng(0)
    for size in (1, 5, 40):
        chosen = frozenset(sorted(every)[i] for i in rng.choice(len(every), size, replace=False))
        assert units_of(config, plan_of(config, ("-> mx=mxfp4", change(chosen)))) == every - chosen
        assert units_of(config, only(plan, chosen)) == chosen
        assert all(format_of(only(plan, chosen), u) == format_of(plan, u) for u in chosen)
    gates = {u.matrix for u in there(Config(depth=1, width=32, batch=32, phi="gelu", norm=False))}
    assert gates == {"", "up", "down"} and Site.LN not in {
        u.site for u in there(Config(width=32, batch=32, norm=False))
    }


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (
            {
                Unit(0, "up", Site.X),
                Unit(1, "up", Site.X),
                Unit(0, "down", Site.X),
                Unit(1, "down", Site.X),
            },
            "X everywhere",
        ),
        ({Unit(1, "up", Site.X), Unit(1, "up", Site.W)}, "X and W of up in layer 1"),
        ({Unit(0, "up", Site.W), Unit(1, "up", Site.W)}, "W of up in layers 0 and 1"),
        ({Unit(1, "", Site.LN)}, "LN in layer 1"),
        (
            {Unit(0, "up", Site.W), Unit(1, "down", Site.W)},
            "W of down in layer 1 and of up in layer 0",
        ),
    ],
)
def test_words_name_the_places(chosen, said):
    """Catches 'everywhere' of a part, and places that are left out."""
    assert words(chosen, there(Config(depth=2, width=32, batch=32))) == said


def test_coherence_of_what_is_known():
    """Catches A that is not 1 for unrelated errors or not sqrt(T) for equal ones, and a p that is
    not that of sign flips.
    """
    t, flips = 8, 2.0**-7  # of 2^8 draws of signs two make equal vectors add up as they do
    a, p, null = coherence(np.tile([1.0, -2.0, 0.5], (t, 1)))
    assert (
        a == pytest.approx(np.sqrt(t))
        and p == pytest.approx(flips, abs=4 * np.sqrt(flips / 4096))
        and null < a
    )
    a, p, _ = coherence(np.eye(t))
    assert a == pytest.approx(1.0) and p == 1.0
    a, p, _ = coherence(np.array([[1.0], [-1.0]] * 4))
    assert a == 0.0 and p == 1.0
    assert coherence(np.zeros((3, 2))) == (0.0, 1.0, 0.0)


@pytest.fixture(scope="module")
def seen():
    """Errors of three choices at one state, and the gradients that they compare, each from a call
    of its own.
    """
    state, run = bent(fresh(TINY, [Arm(name="a", lr=1e-3)])), made(LOW)
    x, y = (v[0] for v in model.batches(TINY)(np.array([0], np.uint32), np.int32(0)))
    params, plan = jax.tree.map(lambda leaf: leaf[0], state.state.params), run.plan(0)

    how = How(TINY.block, plan.rounded, frozenset(), True)
    jitted = jax.jit(lambda table: jax.grad(model.loss)(params, TINY, how, x, y, table))

    def gradient(p):
        found = jitted(p.table())
        return found, np.concatenate(
            [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(found)]
        )

    part = {
        "all": plan,
        "W": only(plan, frozenset(u for u in there(TINY) if u.site is Site.W)),
        "none": only(plan, frozenset()),
    }
    return state, run, part, {name: gradient(p) for name, p in part.items()}


def test_the_error_is_the_difference_of_two_gradients(seen):
    """Catches a choice that rounds other events, FP32's gradient that rounds some, other rows, and
    a sign that is turned.
    """
    state, run, part, gradients = seen
    found = errors(run, [state], part)
    g = gradients["none"][1]
    for name in ("all", "W"):
        e = gradients[name][1] - g
        assert found[name].zeta == pytest.approx([np.linalg.norm(e) / np.linalg.norm(g)], rel=1e-4)
        assert found[name].along == pytest.approx([e @ g / (g @ g)], rel=1e-3)
        assert found[name].cosine == pytest.approx(
            [(g + e) @ g / np.linalg.norm(g + e) / np.linalg.norm(g)], rel=1e-5
        )
    assert (
        found["none"].zeta == [0.0]
        and found["none"].p == 1.0
        and found[GRADIENT].a == pytest.approx(1.0)
    )
    assert found["all"].zeta > found["W"].zeta > 0.01


def test_operands_are_those_of_the_products(seen):
    """Catches g of another place, or one that has missed a rounding on its way: DW is X_W(x)^T
    G_W(g), of every matrix.
    """
    state, run, _, gradients = seen
    [found] = operands(run, state)
    assert set(found) == {"up", "down", "gate"}
    for matrix, own in found.items():
        x = np.asarray(round_blocks(own["x"], "mxfp4", axis=0), np.float64)
        wanted = np.asarray(gradients["all"][0][matrix], np.float64)[0]
        assert x.T @ own["g"].astype(np.float64) == pytest.approx(
            wanted, rel=1e-3, abs=1e-5 * np.abs(wanted).max()
        )
    blocks = origin(run, state, units_of(TINY, run.plan(0)), frozenset({Unit(0, "up", Site.W)}))
    assert [(b.units[0].site, b.marked, len(b.units)) for b in blocks] == [
        (Site.W, True, 1),
        (Site.W, False, 2),
        (Site.X_W, False, 3),
    ]
    normal = (
        blocks[0].normal_shares
    )  # docs: 29.9 % of normal blocks and 2.35 % of their numbers are clipped in MXFP4
    assert (
        normal["clipped"] == pytest.approx(0.0235, rel=0.05) and blocks[0].stats.numbers == 32 * 32
    )


def test_repairs_change_what_they_name():
    """Catches a repair that changes another event or the element too, one that rounds what was
    exact, and BUMP of other formats.
    """
    run = made("-> mx=mxfp8_e4m3:ties-to-away; site=backward -> mxfp4")
    plan, found = run.plan(0), texts(run)

    def of(name):
        return plan_of(TINY, (*run.own.texts(0), found[name]))

    def at(p, site):
        return p.formats[0][0][INDEX[site]]

    assert at(of("RCEIL"), Site.X) == block_format("mxfp8_e4m3", "ties-to-away", rule="rceil")
    assert (
        at(of("RCEIL"), Site.W_X) == block_format("mxfp4", rule="rceil")
        and at(of("RCEIL"), Site.Y) == BF16
    )
    assert at(of("BUMP"), Site.X).rule == "bump" and at(of("BUMP"), Site.G_X) == at(plan, Site.G_X)
    assert (
        of("stochastic").drawn == set(GROUPS["operands"]) and at(of("EVEN"), Site.W).rule == "even"
    )
    assert (
        at(of("ties-to-away"), Site.G_X).element.mode == "ties-to-away"
        and at(of("LayerNorm exact"), Site.LN) == BINARY32
    )
    assert all(at(of("forward only"), s) == BF16 for s in GROUPS["backward"]) and at(
        of("forward only"), Site.X
    ) == at(plan, Site.X)
    away = texts(made("-> mx=mxfp8_e4m3:ties-to-away"))
    assert "ties-to-even" in away and "ties-to-away" not in away and "LayerNorm exact" in away
    assert set(texts(made("site=W,LN -> bf16"))) == {"LayerNorm exact"} and set(
        texts(made("site=X -> e5m2"))
    ) == {"activations BF16"}
    for text in ("mxfp4:rceil", "mxfp6_e2m3:even:stochastic", "mxfp8_e5m2:toward-zero", "mxint8"):
        assert kept(spelled(kept(text, 16)), 16) == kept(text, 16)


def test_replays_begin_at_a_state_that_the_study_kept(tmp_path, monkeypatch):
    """Catches a state of another seed or arm, and one that is not found so that a run is replayed
    from its first step.
    """
    early = (0, "site=W -> mxfp4")
    arms = [
        Arm(name=n, changes=(early, (3, text)), lr=1e-3, seed=s)
        for n, text in (("late", "site=W -> bf16"), ("x", "site=W -> fp32"))
        for s in (0, 1)
    ]

    def later(config, arms, b, first, progress):
        return (bent(b)._replace(step=first, losses=np.ones((3, 2)), norms=np.ones((3, 2))), [])

    monkeypatch.setattr(run, "advance", later)
    wanted = run.begin(TINY, arms, 3, tmp_path, lambda n: None)

    def fate(a):
        return 12 if a == arms[1] else None

    runs = {
        key(TINY, a): Run(
            condition=a, steps=20, diverged=fate(a), loss=1.0, curve=((20, 1.0, 1.0),)
        )
        for a in arms
    }
    with opened(tmp_path, "proxy") as store:
        store.add(runs, asdict(TINY), "cpu")
    found = case(tmp_path, DiagnoseOptions())
    assert (
        found.own == arms[1]
        and found.origin == 3
        and found.starts == (3,)
        and case(tmp_path, DiagnoseOptions(first=2)).origin == 0
    )
    ours, theirs = (jax.tree.leaves(b.state.params) for b in (found.beginning(), wanted.take([1])))
    assert (
        all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        and found.beginning().step == 3
    )
    assert len(list(tmp_path.glob("begin-*"))) == 1


@pytest.mark.parametrize("diverged", [TINY.steps, 2**62])
def test_a_run_that_diverged_after_its_end_is_damaged(tmp_path, diverged):
    """A line about --until, which nobody gave, that names no file."""
    arm = Arm(name="a", changes=(), lr=0.1, seed=7)
    run = Run(condition=arm, steps=20, diverged=diverged, loss=1.0, curve=((20, 1.0, 1.0),))
    with opened(tmp_path, "proxy") as store:
        store.add({"own": run}, asdict(TINY), "cpu")
    with pytest.raises(StorageError, match=rf"proxy\.sqlite: .* step {diverged} of {TINY.steps}"):
        read(tmp_path)


def test_runs_of_every_results_file_are_read(tmp_path):
    """Catches runs of an older version's file or of `reproduce mxfp8` that are lost, and a GPT's
    taken for a student's.
    """
    arm = Arm(name="a", changes=((0, "site=W -> mxfp4"),), lr=0.1 + 0.2, seed=7)
    gpt = Trial(name="bf16", changes="matrix=all -> bf16", lr=1e-3, seed=0)

    def run(c):
        return Run(condition=c, steps=20, diverged=12, loss=math.nan, curve=((20, math.nan, 1.0),))

    with opened(tmp_path, "mxfp8") as store:
        store.add({"own": run(arm)}, asdict(TINY), "cpu")
        store.add({"gpt": replace(run(gpt), curve=((20, 1.0),))}, {"layers": 3}, "cpu")
    [row] = read(tmp_path)
    assert (
        row.arm == arm and row.config == TINY and row.diverged == 12 and math.isnan(row.curve[0][1])
    )
    older = tmp_path / "older"
    older.mkdir()
    with database(older / "proxy.sqlite") as file:
        file.execute(f"PRAGMA application_id = {int.from_bytes(b'RSpx', 'big')}")
        file.execute("CREATE TABLE runs (name, changes, lr, seed, diverged, curve, config, device)")
        own = (
            arm.name,
            json.dumps(arm.changes),
            arm.lr,
            arm.seed,
            12,
            "[[20, null, 1.0]]",
            json.dumps(asdict(TINY)),
            "cpu",
        )
        file.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", own)
        file.commit()
    assert str(read(older)) == str([row])
