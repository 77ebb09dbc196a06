"""`roundscope reproduce mxfp8`: arms, the audit against NumPy, verdicts from runs that are made up,
and what is kept.
"""

import html
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from roundscope import emu
from roundscope.experiments.framework import command
from roundscope.experiments.framework.command import measure
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.mxfp8_2506_08027 import measurements, study
from roundscope.experiments.papers.mxfp8_2506_08027.measurements import (
    BF16,
    E5M2,
    ENDS,
    FLOOR,
    FLOOR_SR,
    FP32,
    FULL,
    PROXY,
    QUICK,
    RCEIL,
    Trial,
    collected,
    gpt_arms,
    key,
    proxy_arms,
    settings_of,
    trials,
)
from roundscope.experiments.train.gpt.linear import formats_of
from roundscope.experiments.train.groups import formats_at, numbers
from roundscope.experiments.train.mx import INDEX
from roundscope.experiments.train.student.arms import Arm
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

SEEDS = (0, 1, 2, 3, 4)
SCALE = replace(QUICK, rates=(1e-3,), seeds=SEEDS, proxy_rates=(0.1,), proxy_seeds=SEEDS)


def gpt(losses, died=()):
    """Results at one rate: name -> the loss of each seed; died: names whose first run diverged."""
    found = []
    for name, own in losses.items():
        for seed, loss in zip(SEEDS, own, strict=True):
            trial = Trial(name=name, changes=gpt_arms(SCALE.gpt)[name], lr=1e-3, seed=seed)
            died_at = 7 if name in died and not seed else None
            found.append(
                Run(condition=trial, steps=300, diverged=died_at, loss=loss, curve=((300, loss),))
            )
    return found


def proxy(along):
    """Results of the proxy: name -> (zeta, along) of every seed, seed s being larger by a factor 1
    + s / 100.
    """
    return [
        Run(
            condition=Arm(name=name, changes=((0, PROXY[name]),), lr=0.1, seed=s),
            steps=9,
            diverged=None,
            loss=1e-3,
            extra={
                "spikes": 0,
                "measures": ((0, {"zeta": zeta * (1 + s / 100), "along": bias * (1 + s / 100)}),),
            },
        )
        for name, (zeta, bias) in along.items()
        for s in SEEDS
    ]


def verdicts(made, start, end=""):
    """The words of claims that begin and end so."""
    found = [
        v.word for v in study.judged(made) if v.claim.startswith(start) and v.claim.endswith(end)
    ]
    assert found
    return found


def test_all_arms_of_a_rate_run_in_one_executable():
    """An arm whose structure is another's, which a launch would compile anew or refuse; two
    launches of one rate.
    """
    for scale in (QUICK, FULL):
        for own in trials(scale):
            s = settings_of(scale, own)
            assert numbers(s) == [list(range(len(own)))] and {t.lr for t in own} == {own[0].lr}
            assert all(formats_at(s, arm, 0).even for arm in s.arms)
        assert len(trials(scale)) == len(scale.rates) + bool(scale.more) and {
            len({a.lr for a in group}) for group in proxy_arms(scale)
        } == {1}


def test_arms_change_what_they_say():
    """E5M2 on another operand than the arm's name says; a kept layer that is not the last."""
    config = replace(FULL.gpt, layers=3)
    named = {
        name: formats_of(config, text.split("; ")).formats
        for name, text in gpt_arms(config).items()
    }

    def operand(name, layer, site):
        return str(named[name][layer][0][INDEX[site]])

    for what, sites in (
        ("weights", {"W", "W_X"}),
        ("activations", {"X", "X_W"}),
        ("gradients", {"G_X", "G_W"}),
    ):
        wide = {
            site
            for site in ("X", "W", "G_X", "W_X", "G_W", "X_W")
            if "e5m2" in operand(E5M2[what], 1, site)
        }
        assert wide == sites
    assert [operand(ENDS, layer, "X")[:4] for layer in range(3)] == ["bf16", "e4m3", "bf16"]
    assert (
        operand(FLOOR, 0, "W") == "mxfp8_e4m3"
        and operand(RCEIL, 0, "W").endswith("rceil")
        and operand(RCEIL, 0, "Y") == "bf16"
    )
    assert {operand(FP32, 0, site) for site in INDEX} == {"fp32"} and {
        operand(BF16, 0, site) for site in INDEX
    } == {"bf16"}


def test_the_audit_is_numpy_s():
    """A share of the wrong numbers, a copy along the wrong axis, a sign, or a norm of something
    else: elements and scales by hand.
    """
    x = (
        np.random.default_rng(0).standard_normal((1, 64, 96)).astype(np.float32)
        * np.float32(2.0) ** np.arange(-40, 24).astype(np.float32)[:, None]
    )
    own, apart = measurements._measured(x, 1, 0)
    for i, (element, rule) in enumerate(measurements.CASES):
        kept = []
        for copy, axis in enumerate((1, 0)):
            b = emu.to_blocks(x[0], measurements.ELEMENTS[element], axis=axis, rule=str(rule))
            scale = np.repeat(b.scales.astype(float), 32, axis=axis)
            q = b.elements.astype(float) * scale
            wanted = {
                "saturated": (
                    (np.abs(x[0]) / scale > {"E4M3": 448.0, "E5M2": 57344.0}[element]).mean()
                ),
                "underflow": (q == 0).mean(),
                "shrink": (np.abs(q) - np.abs(x[0])).sum() / np.abs(x[0].astype(float)).sum(),
                "error": np.linalg.norm(q - x[0]) / np.linalg.norm(x[0]),
            }
            for name, value in wanted.items():
                assert float(own[name][0, i, copy]) == pytest.approx(value, rel=1e-4, abs=1e-7), (
                    element,
                    rule,
                    axis,
                    name,
                )
            kept.append(q)
        assert float(apart[0, i]) == pytest.approx(
            np.linalg.norm(kept[0] - kept[1]) / np.linalg.norm(x), rel=1e-4, abs=1e-6
        )


BASE = {BF16: [2.0, 2.1, 2.2, 2.3, 2.4], FP32: [2.0, 2.1, 2.2, 2.3, 2.4]}


def moved(*by):
    """BF16's losses, each seed moved by so much."""
    return [loss + d for loss, d in zip(BASE[BF16], by, strict=True)]


def test_differences_are_paired_by_seed():
    """Seeds that differ by 0.1 nats and hide an arm that is worse by 0.01 in each; a run that
    diverged beside one that did not.
    """
    worse = collected(
        gpt(BASE | {RCEIL: BASE[BF16], FLOOR: moved(0.010, 0.011, 0.009, 0.010, 0.012)}), []
    )
    assert verdicts(worse, "RCEIL trains") == [Word.AGREES] and verdicts(worse, "E4M3 for all") == [
        Word.AGREES
    ]
    assert worse.gap(1e-3, FLOOR, RCEIL).mean == pytest.approx(0.0104)
    mixed = collected(
        gpt(BASE | {RCEIL: moved(0.02, -0.02, 0.01, -0.01, 0.0), FLOOR: BASE[FP32]}), []
    )
    assert verdicts(mixed, "RCEIL trains") == [Word.UNDECIDED] and verdicts(
        mixed, "E4M3 for all"
    ) == [Word.UNDECIDED]
    died = collected(
        gpt(BASE | {RCEIL: BASE[BF16], FLOOR: moved(9.0, 0.0, 0.0, 0.0, 0.0)}, died=(FLOOR,)), []
    )
    assert (
        died.gap(1e-3, FLOOR, RCEIL).mean == pytest.approx(0.0)
        and died.gap(1e-3, FLOOR, RCEIL).seeds == 4
    )


@pytest.mark.parametrize(
    ("died", "word"),
    [
        ((), Word.NOT_TESTABLE),
        ((FLOOR,), Word.AGREES),
        ((FLOOR, RCEIL), Word.CONTRADICTS),
        ((FLOOR, BF16), Word.NOT_TESTABLE),
    ],
)
def test_what_diverges_is_judged_against_what_should_not(died, word):
    """A floor that diverges with BF16, counted as the floor's fault; a claim that agrees though
    nothing diverged.
    """
    made = collected(gpt(dict.fromkeys((FP32, BF16, FLOOR, RCEIL), BASE[BF16]), died), [])
    assert verdicts(made, "with the floor") == [word]
    assert (
        f"GPT: {int(FLOOR in died)} of 5 with floor, {int(RCEIL in died)} of 5 with RCEIL"
        in study.answer(made)
    )


def test_the_lean_of_a_gradient_is_signed():
    """A larger error taken for a bias; a bias of the other sign that agrees."""
    own = {FP32: (0.0, 0.0), FLOOR: (0.06, -0.02), RCEIL: (0.05, -0.01), FLOOR_SR: (0.07, -0.001)}
    made = collected([], proxy(own))
    assert (
        verdicts(made, "floor's gradient")
        == verdicts(made, "floor shortens")
        == verdicts(made, "stochastic elements take", FLOOR)
        == [Word.AGREES]
    )
    made = collected([], proxy(own | {FLOOR: (0.0505, 0.02), FLOOR_SR: (0.07, 0.04)}))
    assert (
        verdicts(made, "floor's gradient")
        == verdicts(made, "floor shortens")
        == verdicts(made, "stochastic elements take", FLOOR)
        == [Word.CONTRADICTS]
    )


def audited(step):
    """Rows of an audit, of one layer and matrix, numbers that tell their place."""
    return [
        {
            "step": step,
            "layer": 0,
            "matrix": "fc1",
            "operand": str(site),
            "element": e,
            "rule": str(rule),
            "saturated": 0.01 * (rule == "floor"),
            "underflow": 0.001 + 0.001 * (rule == "ceil"),
            "shrink": -0.002 - 0.001 * (rule == "floor"),
            "error": 0.02 if e == "E4M3" else 0.04,
            "apart": 0.01,
        }
        for pair in measurements.COPIES.values()
        for site in pair
        for e, rule in measurements.CASES
    ]


@pytest.fixture
def faked(monkeypatch):
    """A command whose launches are made up; the names of those that ran."""
    ran = []

    def launch(scale, own, progress):
        ran.append("gpt")
        made = {name: moved(*(0.01 * i for i in SEEDS)) for name in gpt_arms(scale.gpt)} | BASE
        return [
            replace(r, extra={"audit": tuple(audited(0)) if r.condition.name == BF16 else ()})
            for r in gpt(made)
        ]

    def proxied(config, arms, progress):
        ran.append("proxy")
        return [
            replace(r, loss=1e-3 * (1 + r.seed))
            for r in proxy(dict.fromkeys(PROXY, (0.05, -0.01)))
            if r.condition in arms
        ]

    monkeypatch.setattr(measurements, "launch", launch)
    monkeypatch.setattr("roundscope.experiments.train.student.run.launch", proxied)
    return ran


@pytest.mark.pictures
def test_launches_are_kept_and_told(faked, tmp_path, capsys):
    """Launches that run twice, an audit that is lost on the disk, a page without its pictures, JSON
    with a NaN.
    """
    assert command.run(study.study(SCALE), out=tmp_path, as_json=True, command="here") == 0
    found, page = json.loads(capsys.readouterr().out), (tmp_path / "report.html").read_text()
    assert faked == ["proxy"] * 3 + ["gpt"] and page.count("<svg") == 5
    first, rest = found["answer"].split(". ", 1)  # the page has the first sentence in large letters
    text = " ".join(re.sub(r"<[^>]*>", " ", html.unescape(page)).split())
    assert first in text and rest in text
    assert found["run"]["ran"] == found["run"]["launches"] == 4
    with opened(tmp_path, "mxfp8") as kept:
        assert measure(study.study(SCALE), kept).ran == 0 and len(faked) == 4
        [trial] = [t for t in trials(SCALE)[0] if (t.name, t.seed) == (BF16, 3)]
        result = kept.read({trial: key(SCALE, trial)})[trial]
    assert (
        sorted(map(str, result.extra["audit"])) == sorted(map(str, audited(0)))
        and result.loss == 2.3
    )


def test_ctrl_c_leaves_what_is_done(faked, tmp_path, monkeypatch):
    """Work that is lost, or the exit code of success, after an interruption."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measurements, "launch", interrupted)
    assert command.run(study.study(SCALE), out=tmp_path, as_json=True, command="here") == 130
    assert faked == ["proxy"] * 3 and not (tmp_path / "report.html").exists()
    assert (
        command.run(study.study(SCALE), out=tmp_path, as_json=True, command="here") == 130
        and len(faked) == 3
    )


def test_a_file_is_no_folder(tmp_path):
    """A traceback for a folder that cannot be."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out"):
        command.run(study.asked(quick=True), out=tmp_path / "file", command="here")
    assert math.isnan(collected([], []).gap(1.0, FLOOR, RCEIL).mean)
