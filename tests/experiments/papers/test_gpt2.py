"""GPT-2's size: what is read of a training's log, what is said of it, and that it goes on."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.gpt2_2510_04212 import runs, study
from roundscope.experiments.train.record import rows, writing
from roundscope.experiments.train.settings import plain
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run

RECORD = Path(__file__).parents[3] / "docs" / "runs" / "gpt2.sqlite"


def run(c, *, steps=100, diverged=None, grown=None, looks=((0, 0.01, 2.0), (50, 0.2, 1.0))):
    """A made-up run."""
    curve = ((25, 3.0, 1.0), (50, 2.5, 1.0))
    extra = {"spikes": 1, "grown": grown, "looks": looks}
    return Run(condition=c, steps=steps, diverged=diverged, loss=2.5, curve=curve, extra=extra)


def results(**of):
    """All arms, those as released with these settings."""
    made = {c: run(c, **(of if c.row == runs.ITSELF else {})) for c in runs.CONDITIONS}
    return runs.Results(runs=made, tokens=8192)


def test_what_was_reached_is_that_of_the_slowest_arm():
    """Steps of another arm, tokens of a step counted for those of the run, a ratio upside down."""
    said = study.answer(results(steps=80, diverged=70))
    assert "6 arms did 80 steps of 8,192 tokens each, 0.655 million tokens" in said
    assert "Gradients 10 times as large as before: none" in said
    assert "5.6e+03 times as many" in said  # 7,000 x 524,288 / (80 x 8,192)
    assert said.count("as released") == 3 and "FP32, " not in said


def test_one_seed_decides_nothing():
    """A failure of one seed taken for one of the arithmetic, or a short run for the paper's."""
    found = list(study.claims(results(diverged=70, grown=60)))
    assert [v.word for v in found] == [Word.UNDECIDED] * 4 + [Word.NOT_TESTABLE]
    assert found[0].measured.startswith("1 of 1 [2%, 100%], step 70")
    assert found[2].measured == "1 of 1 [2%, 100%], step 60 [60, 60]; FP32 0 of 1"


@pytest.mark.pictures
def test_page_is_drawn():
    """A column of another look, the last look taken for the largest."""
    r = results()
    assert study.draw(r) is not None
    assert next(iter(study.lines(r)))[-3:] == ["2.5", "0.2", "2"]
    assert study.records(results(looks=()))[0]["loss"] == 2.5


def logged(folder, steps):
    """The log of a training of all arms, with one look of two heads in one layer."""
    arms = [{"name": c.name, "lr": c.rate, "seed": 0} for c in runs.CONDITIONS]
    texts = dict.fromkeys(("data", "versions", "origin"), "{}")
    folder.mkdir(exist_ok=True)
    with writing(folder) as log:
        about = {"arms": arms, "at": []}
        log.begin(0, config=plain(runs.QUICK), arms=about, device="some GPU", **texts)
        for arm in arms:
            log.add(
                "steps",
                [
                    {"arm": arm["name"], "step": n, "loss": n / 2, "gradient_norm": 1.0, "lr": 1.0}
                    for n in range(steps)
                ],
            )
            head = {"arm": arm["name"], "step": 0, "layer": 0}
            log.add(
                "heads",
                [
                    head | {"head": 0, "drift": 0.5, "w_q_gradient": 1.0, "w_q_norm": 7.0},
                    head | {"head": 1, "drift": 0.1, "w_q_gradient": 3.0, "w_q_norm": 5.0},
                ],
            )


def test_a_log_is_read_and_a_shorter_one_replaces_nothing(tmp_path):
    """A share of heads that are not weighed by their gradients; a mean over other steps; a record
    that is lost where a training begins anew.
    """
    logged(tmp_path / "run", 30)
    outcome, r = runs.measured(runs.QUICK, tmp_path, True)
    assert (outcome.there, outcome.launches, outcome.devices) == (30, 60, ["some GPU"])
    found = r.runs[runs.CONDITIONS[2]]
    assert found.extra["looks"] == ((0, 0.2, 7.0),)  # (0.5 x 1 + 0.1 x 3) / (1 + 3)
    assert found.curve == ((25, 6.0, 1.0), (30, 13.5, 1.0))  # means of n / 2
    logged(tmp_path / "run", 20)
    assert runs.measured(runs.QUICK, tmp_path, True)[0].there == 30


def test_the_record_is_known(tmp_path):
    """A field of Config or a name of an arm that changes what the record is called."""
    shutil.copy(RECORD, tmp_path)
    outcome, r = runs.measured(runs.FULL, tmp_path, True)
    assert outcome.there == 490 and set(r.runs) == set(runs.CONDITIONS)
    assert {runs.grown_step(x) for x in r.runs.values()} == {None, 371, 284}


def test_the_full_size_needs_a_gpu(tmp_path, monkeypatch):
    """A training of months on a CPU, or a message whose repair `reproduce` does not have."""
    monkeypatch.setattr(runs, "has_device", lambda config: False)
    with pytest.raises(UsageError, match="needs a GPU; add --quick"):
        runs.measured(runs.FULL, tmp_path, False)
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_training_goes_on_with_its_bits(tmp_path, monkeypatch):
    """A state, a batch or a rate that is another after a stop."""
    chosen = (runs.CONDITIONS[2], runs.CONDITIONS[-1])
    monkeypatch.setattr(runs, "CONDITIONS", chosen)
    short = replace(runs.QUICK, layers=1, width=16, context=16, warmup=3, monitor_every=5)
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for folder, steps in ((stopped, 7), (stopped, 20), (whole, 20)):
        folder.mkdir(exist_ok=True)
        outcome, _ = runs.measured(replace(short, steps=steps), folder, False)
        assert outcome.there == steps
    for table in ("steps", "heads"):
        assert rows(stopped / "run", table) == rows(whole / "run", table)
