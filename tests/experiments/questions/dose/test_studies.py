"""`roundscope dose --study`: what each arm is, that it does what its row says, what is kept, the
answers, and the command.
"""

import hashlib
import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from roundscope.attention import Record, Site, examine
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.experiments.cli.main import main
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.words import NAMED
from roundscope.experiments.questions.dose import doses as scales
from roundscope.experiments.questions.dose import results, study, topics
from roundscope.experiments.questions.dose.doses import Dose
from roundscope.experiments.train.gpt import step
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.plans import by_arm, by_layer, uniform
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run
from tests.checks.engines import normal

CURVE = ((0, math.nan, 1.0), (25, 1.0, 2.0))


def result(dose, diverged=None, loss=1.0, shares=()):
    return Run(
        condition=dose,
        steps=dose.steps,
        diverged=diverged,
        loss=loss,
        curve=CURVE,
        extra={"shares": shares},
    )


def found(topic, diverged):
    """A topic whose case has diverged in all seeds where diverged(case) says so, its exact arms
    never.
    """
    own = {
        replace(case.dose, seed=seed): diverged(case)
        for case in topic.cases
        for seed in topic.seeds
    }
    return results.Found(
        topic, [result(dose, 7 if own.get(dose) else None) for dose in topic.doses]
    )


def every():
    return [made(quick) for made in topics.TOPICS.values() for quick in (True, False)]


def test_an_exact_arm_differs_in_the_error_alone():
    """A control on other data, at another rate, or with the plan whose failure is asked."""
    dose = Dose(
        site=Site.OD,
        bits=3,
        rate=1e-2,
        steps=9,
        seed=2,
        words=("data=sink",),
        also=("-> plan=qiu-yao",),
        offset=("noise", 3.0),
    )
    assert dose.exact == Dose(
        rate=1e-2, steps=9, seed=2, words=("data=sink",), offset=("bias", 0.0)
    )
    assert dose.exact.exact == dose.exact and dose.exact.change == ()
    assert dose.change == ("-> plan=qiu-yao", "site=OD -> e8m2:ties-to-even")
    config = scales.config_of(scales.QUICK.config, dose)
    assert config == replace(scales.QUICK.config, data="sink")


def test_a_launch_holds_what_one_executable_can():
    """Arms of two models, or with and without an error, in one vmap."""
    doses = [
        Dose(rate=1e-2, steps=9, words=w, offset=o)
        for w in ((), ("width=64",))
        for o in (None, ("bias", 1.0), ("noise", 2.0))
    ]
    assert [len(group) for group in scales.launches(scales.QUICK.config, doses)] == [1, 2, 1, 2]


def test_keys_of_old_results_stay():
    """Results of hours lost since the record has new fields; or taken for those of an arm with a
    word more.
    """
    config = scales.QUICK.config
    dose = Dose(site=Site.OD, mode=RoundingMode.TOWARD_ZERO, bits=3, rate=1e-2, steps=9, seed=2)
    kept = {
        name: value
        for name, value in asdict(config).items()
        if name not in (*NAMED, "engine", "drift_alarm", "parts", "gated", "llama", "optimizer")
    }
    old = {"site": "OD", "mode": "toward-zero", "bits": 3, "rate": 1e-2, "steps": 9, "seed": 2}
    assert (
        scales.key(config, dose)
        == hashlib.sha256(json.dumps([kept, old], sort_keys=True).encode()).hexdigest()[:24]
    )
    more = [
        replace(dose, words=("width=64",)),
        replace(dose, also=("-> plan=fp32",)),
        replace(dose, offset=("bias", 1.0)),
    ]
    assert (
        len({scales.key(config, d) for d in (dose, *more, replace(dose, offset=("noise", 1.0)))})
        == 5
    )
    assert scales.key(replace(config, sums="preset", engine="pallas"), dose) != scales.key(
        replace(config, sums="preset"), dose
    )


@pytest.mark.parametrize("topic", every(), ids=lambda t: t.question)
def test_every_case_can_be_run(topic):
    """A word, a change or an event that is refused only on the GPU; a case without its control."""
    groups = scales.launches(topic.config, topic.doses)
    assert sum(map(len, groups)) == len(topic.doses)
    assert len({(case.group, case.name) for case in topic.cases}) == len(topic.cases)
    assert topic.alone or {d.exact for d in topic.doses} <= set(topic.doses)


@pytest.mark.parametrize("case", topics.identity(quick=False).cases, ids=lambda c: c.name)
def test_the_rows_of_ds_sum_as_the_group_says(case):
    """A row under the wrong heading: then the study says nothing about the identity."""
    [[plan, *_], *_] = plans_of(topics.identity(quick=False).config, case.dose.change)
    q, k, v, do = (normal(60 + i, 1, 24, 1, 16) for i in range(4))
    trace = examine(
        q, k, v, do, plan=plan, is_causal=True, engine="numpy", record=Record(events=(Site.DS,))
    ).trace
    ds = np.asarray(trace.events["DS"][1], float).reshape(24, 24)
    ratio = np.abs(ds[1:].sum(-1)).max() / np.abs(ds).max()
    assert ratio < 1e-5 if case.group == topics.KEEPS else ratio > 1e-2


def test_fewer_bits_at_all_bf16_events_and_nowhere_else():
    """An event of the preset that stays at 8 bits, or an FP32 one that does not."""
    config = topics.conditions(quick=False).config
    [[low, *_], *_] = plans_of(config, (topics.QIU_YAO,))
    [[fewer, *_], *_] = plans_of(config, (topics.QIU_YAO, topics.fewer(5)))
    changed = [s for s in Site if low[s] != fewer[s]]
    assert {low[s].format.precision for s in changed} == {8} and {
        fewer[s].format.precision for s in changed
    } == {5}
    assert len(changed) == 18 and all(low[s].format.precision > 8 for s in Site if s not in changed)


def test_shares_of_rows_by_hand():
    """Ties that the plan's own rounding of scores makes left out, keys that a row does not see
    counted, or heads mixed up.
    """
    config = replace(
        scales.QUICK.config,
        layers=1,
        heads=2,
        width=8,
        context=10,
        vocab=16,
        batch=2,
        position=False,
    )
    params = step.start(config, 2, [0, 1]).params
    params["layers"]["qkv"] = 30 * params["layers"]["qkv"]
    plans = by_arm([uniform(config), by_layer(plans_of(config, ("site=SCALED -> e8m2",)))])
    tokens = np.random.default_rng(0).integers(0, 4, (2, 11))
    found = scales.shares(config, params, tokens, plans)
    for arm in range(2):
        x = np.asarray(params["embedding"][arm], float)[tokens[0, :-1]]
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k = np.einsum(
            "td,dinh->inth", x, np.asarray(params["layers"]["qkv"][arm, 0], float)[:, :2]
        )
        s = np.einsum("nth,nsh->nts", q, k) * 0.5
        if arm:
            unit = 2.0 ** (np.floor(np.log2(np.abs(s))) - 2)
            s = np.round(s / unit) * unit
        s = np.where(np.tril(np.ones((10, 10), bool)), s, -np.inf)
        several = (s >= s.max(-1, keepdims=True) - 1.955e-3).sum(-1) > 1
        np.testing.assert_allclose(found[arm, 0], several.mean(-1), atol=1e-9)
    assert found[1].sum() > found[0].sum() > 0


def test_results_and_what_is_new_in_them_come_back(tmp_path):
    """Shares lost on the way to the disk."""
    config = scales.QUICK.config
    old = Dose(site=Site.OD, bits=3, rate=1e-2, steps=9)
    new = replace(old, words=("data=sink",), also=("-> plan=qiu-yao",), offset=("noise", 3.0))
    kept = [result(old), result(new, 5, shares=((100, 0.25, 0.5), (200, 0.75, 1.0)))]
    keys = {d: scales.key(config, d) for d in (old, new)}
    with opened(tmp_path, "dose") as store:
        store.add({keys[r.condition]: r for r in kept}, asdict(config), "here")
    with opened(tmp_path, "dose") as store:
        assert repr([store.read(keys)[d] for d in (old, new)]) == repr(kept)
    assert math.isnan(results.ties(kept[0])) and math.isnan(
        results.ties(kept[1])
    )  # it diverged before the first count
    assert (
        results.ties(replace(kept[1], diverged=150)) == 0.25
        and results.ties(replace(kept[1], diverged=None)) == 0.5
    )


def test_the_answer_of_bias():
    """A biased error said to kill where the same size of noise does, or an answer that names a c
    that does not.
    """
    topic = topics.bias(quick=True)
    killed = found(topic, lambda case: case.dose.offset[0] == "bias" and case.dose.offset[1] >= 64)
    assert "kills from c = 64 on (3 of 3" in topic.answer(
        killed
    ) and "random sign 0 of 3" in topic.answer(killed)
    assert "no biased error up to c = 256" in topic.answer(found(topic, lambda case: False))
    counted = found(topic, lambda case: False)
    first = next(iter(counted.cases.values()))
    shares = {"shares": ((100, 0.25, 0.5),)}, {"shares": ((100, 0.75, 1.0),)}
    first[:2] = [replace(first[0], extra=shares[0]), replace(first[1], diverged=5, extra=shares[1])]
    assert "up to 25 % of rows" in topic.answer(
        counted
    )  # a run that was gone before the first count says nothing


def test_the_answer_of_identity():
    """Yes although runs on the other side died too."""
    topic = topics.identity(quick=True)
    assert topic.answer(found(topic, lambda case: case.group == topics.BREAKS)).startswith(
        "As far as these runs go, yes"
    )
    assert topic.answer(found(topic, lambda case: True)).startswith("Not by these runs")
    assert topic.answer(found(topic, lambda case: False)).startswith("Not by these runs")
    few = found(topic, lambda case: case.group == topics.BREAKS or case.dose.site is Site.DP)
    assert few.topic.answer(few).startswith("Partly")


def test_the_answer_of_conditions():
    """A condition that failed left out of the sentence, or fewer bits read for it."""
    topic = topics.conditions(quick=False)
    none = topic.answer(
        found(topic, lambda case: len(case.dose.also) == 2 and case.name == "p = 4")
    )
    assert (
        "none of 35 runs under 7 conditions" in none and "most runs diverge from p = 4 down" in none
    )
    clip = topic.answer(
        found(topic, lambda case: case.group == "no clipping" and bool(case.dose.also))
    )
    assert "diverged in: no clipping (5 of 5)" in clip and "most runs do not diverge" in clip


def test_thresholds():
    """p* read from another column, or from a p at which only some died."""
    topic = topics.scaling(quick=False)
    columns = {"lr 0.003": 4, "width 256": 8, "context 64": 6}
    ours = found(topic, lambda case: case.dose.bits <= columns.get(case.group, 3))
    said = topic.answer(ours)
    assert (
        "lr 0.003, 0.01, 0.03: 4, below 4, below 4" in said
        and "width 64, 128, 256: below 4, below 4, 8 or more" in said
    )
    assert "context 64, 128, 256: 6, below 4, below 4" in said
    assert "In FP32 0 of 45 diverged" in said  # 4 x 3 models, of which 4 are one, 5 seeds


def test_a_model_that_fails_in_fp32_has_no_threshold():
    """A threshold told of a model that no rounding kills."""
    topic = topics.scaling(quick=False)
    said = topic.answer(found(topic, lambda case: case.group == "depth 8"))
    assert (
        "depth 2, 4, 8: below 4, below 4, not defined (FP32 diverges)" in said
        and "In FP32 5 of 45 diverged" in said
    )


@pytest.mark.parametrize("name", topics.TOPICS)
def test_the_command(name, tmp_path, capsys, monkeypatch):
    """A study that breaks after hours of training: in its picture, its table, its data."""
    counted = []

    def launch(config, doses, progress, ties):
        counted.append(ties)
        return [
            result(
                d,
                9 if d.seed else None,
                math.nan if d.seed else 1.0,
                ((100, 0.1, 0.2),) if ties else (),
            )
            for d in doses
        ]

    monkeypatch.setattr(scales, "launch", launch)
    for json_too in (True, False):
        with pytest.raises(SystemExit) as end:
            main(
                [
                    "dose",
                    "--study",
                    name,
                    "--quick",
                    "--out",
                    str(tmp_path),
                    "--seeds",
                    "0-1",
                    *(["--json"] if json_too else []),
                ]
            )
        assert not end.value.code
    out = capsys.readouterr().out
    told = json.loads((tmp_path / f"{name}.json").read_text())
    page = (tmp_path / f"{name}.html").read_text()
    assert (
        page.count("<svg") == 1
        and page.index("<p class=lead>") < page.index("<svg")
        and told["question"] in page
    )
    assert told["answer"].split()[0] in out and len(told["cases"]) == len(
        topics.TOPICS[name](quick=True).cases
    )
    assert (
        set(counted) == {name in ("bias", "conditions")} and len(counted) == told["run"]["launches"]
    )


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        ("bais", "steps=5", "did you mean 'bias'"),
        ("bias", "p=3", "p"),
        ("bias", "data=sink", "has data=repeat"),
        ("bias", "steps=0", "steps"),
    ],
)
def test_bad_words_name_themselves(name, word, says):
    """A setting that is silently another one than the cases have."""
    with pytest.raises(UsageError, match=says):
        study.topic(name, [word], quick=True, seeds=None)
