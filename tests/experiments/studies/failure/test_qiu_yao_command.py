"""Runs from the command to the report: what is kept, what runs again, what is written."""

import json
import math
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from roundscope.experiments.cli.main import main
from roundscope.experiments.errors import UsageError
from roundscope.experiments.studies.failure import command, pictures, report, table
from roundscope.experiments.studies.failure import trials as trials_of
from roundscope.experiments.studies.failure.claims import judged
from roundscope.experiments.studies.failure.partial import whole
from roundscope.experiments.studies.failure.results import Result, Results
from roundscope.experiments.studies.failure.rows import FAILS, FP32, rows
from roundscope.experiments.studies.failure.run import launch
from roundscope.experiments.studies.failure.scale import FULL, QUICK
from roundscope.experiments.studies.failure.store import opened
from roundscope.experiments.studies.failure.trials import Trial, chosen_rows, entries, key, launches
from roundscope.experiments.studies.failure.words import answer
from roundscope.experiments.train.config import Config
from tests.experiments.studies.failure.made import run

TINY = replace(
    QUICK,
    config=Config(layers=1, heads=2, width=8, context=8, batch=2, warmup=30, data="sink"),
    steps=30,
    seeds=(0, 1),
    cases=QUICK.cases[:2],
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of two cases, of a model that trains in no time, and whose steps end before the looks at dS begin."""
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(command, "_static", lambda: ([], []))
    monkeypatch.setattr(trials_of, "rows", lambda case, config: [row for row in rows(case, config) if row.name in (FAILS, FP32)])


def test_command_writes_and_goes_on(tiny: None, tmp_path, capsys) -> None:
    """Catches a second call that trains again, a report that needs more than the results, and numbers that JSON has not."""
    first = called(tmp_path, capsys)
    assert first["run"]["ran"] == first["run"]["launches"] == 1
    assert {(row["case"], row["row"], row["runs"]) for row in first["rows"]} == {(c, r, 2) for c in "NA" for r in (FAILS, FP32)}
    second = called(tmp_path, capsys)
    assert second["run"]["ran"] == 0
    assert second["rows"] == first["rows"]
    page = (tmp_path / "report.html").read_text()
    assert page.index("<img") < page.index("<h2>")  # it opens with a picture
    assert json.loads((tmp_path / "qiu-yao.json").read_text())["verdicts"] == second["verdicts"]


def called(out, capsys):
    """What the command prints as JSON."""
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "qiu-yao", "--quick", "--out", str(out), "--json"])
    assert not end.value.code
    return json.loads(capsys.readouterr().out)


def test_killed_run_keeps_whole_launches_and_tells_them(tiny: None, tmp_path, monkeypatch, capsys) -> None:
    """Catches a launch that is half written, one that is done again after the process died in the next, a page of the launches done that
    speaks of others or does not say what is missing, and one that stays when they are there.
    """
    split = replace(TINY, arms=2)  # case N as it is, FP32 of both cases, case A as it is
    monkeypatch.setattr(command, "QUICK", split)
    calls: list[int] = []

    def dying(scale, group, progress):
        calls.append(len(group))
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return [made(trial) for trial in group]

    monkeypatch.setattr("roundscope.experiments.studies.failure.run.launch", dying)
    assert command.run(quick=True, out=tmp_path, as_json=True) == command.INTERRUPTED
    with sqlite3.connect(tmp_path / "qiu-yao.sqlite") as file:
        [(kept,)] = file.execute("SELECT count(*) FROM trials")
    assert kept == calls[0]
    assert not (tmp_path / "report.html").exists() and not capsys.readouterr().out
    assert command.run(quick=True, out=tmp_path, as_json=True) == command.INTERRUPTED
    part = json.loads(capsys.readouterr().out)
    assert {(row["case"], row["row"], row["runs"]) for row in part["rows"]} == {("N", FAILS, 2), ("N", FP32, 2)}
    assert {v["case"] for v in part["verdicts"]} == {"N", "A", "all"}  # row 8, of case A: not run
    assert (part["run"]["there"], part["run"]["launches"]) == (2, 3)
    assert "2 of 3 launches" in (tmp_path / "report.html").read_text()
    assert command.run(quick=True, out=tmp_path, as_json=True) == 0
    assert len(calls) == 5  # each launch once, and the two that died
    page = (tmp_path / "report.html").read_text()
    assert "Interrupted" not in page and "3, 1 of them run by the last command" in page


@pytest.mark.thorough
def test_any_number_of_launches_can_be_told() -> None:
    """Catches a verdict that needs a case or a row that is not there yet, rows with half of their seeds, and half of a search."""
    wanted, groups = entries(FULL), launches(FULL, [e.trial for e in entries(FULL)])
    names = {e.trial: key(FULL, e.trial) for e in wanted}
    told = []
    for n in range(len(groups) + 1):
        there = {names[trial] for group in groups[:n] for trial in group}
        found = {trial: made(trial) for trial, name in names.items() if name in there}
        kept = whole(wanted, found)
        r, cases = Results(kept, found), tuple(c for c in FULL.cases if c.name in {e.case for e in kept})
        verdicts = judged(r, replace(FULL, cases=cases))
        assert not any("cell" in row for c in cases for row in r.rows(c.name)) or sum("cell" in row for row in r.rows("A")) == 24
        assert answer(r, replace(FULL, cases=cases)) and {v.case for v in verdicts} <= {c.name for c in cases} | {"A", "all"}
        assert all(len(own) == len([e for e in wanted if (e.case, e.row) == place]) for place, own in r.by.items())
        told.append(len(kept))
    assert told[0] == 0 and told[-1] == len(wanted) and told == sorted(told) and len(set(told)) > 3


def made(trial: Trial) -> Result:
    return replace(run("N", "0", trial.seed)[1], trial=trial)


def test_store_gives_back_what_it_got(tmp_path) -> None:
    """Catches a column in the place of another, and NaN that comes back as 0 or None."""
    trial = Trial(changes=("site=O -> bf16",), tiles=2, steps=30, seed=1)
    wanted = Result(trial=trial, diverged=None, loss=1.25, norm=7.0, heads=((1.0, 2.0),), rest=(((1.0, math.nan, 3.0),),),
                    curve=((0, math.nan, 1.0), (25, 2.0, 3.0)))  # fmt: skip
    with opened(tmp_path) as store:
        store.add(TINY, [wanted], "here")
        found = store.read(TINY, [trial, replace(trial, seed=2)])
        assert store.devices() == ["here"]
    assert list(found) == [trial]
    assert repr(found[trial]) == repr(wanted)  # NaN is not equal to itself


def test_folder_of_another_program_is_refused(tmp_path) -> None:
    """Catches results written into a file that is not ours."""
    with sqlite3.connect(tmp_path / "qiu-yao.sqlite") as file:
        file.execute("CREATE TABLE t (x)")
    with pytest.raises(UsageError, match="another program"), opened(tmp_path):
        pass


@pytest.mark.thorough
def test_arm_is_described_up_to_its_divergence() -> None:
    """Catches norms of an arm after it diverged, losses of one that did, and a launch that goes on when all have: they would depend on
    the arms beside it.
    """
    scale = replace(TINY, rate=1e4)  # diverges at once
    trial = Trial(changes=("-> fp32",), tiles=1, steps=5000, seed=0)
    done: list[int] = []
    [found, again] = launch(scale, [trial, replace(trial, seed=1)], done.append)
    assert found.diverged is not None and again.diverged is not None
    assert max(done) < 5000
    assert math.isnan(found.loss)
    before = [norm for step, _, norm in found.curve if step <= found.diverged and math.isfinite(norm)]
    assert found.norm == pytest.approx(max(before))


@pytest.mark.pictures
def test_every_picture_draws_every_row() -> None:
    """Catches a row that the opening picture leaves out, and a picture that fails where something was not run."""
    entries = [(case.name, row.name) for case in FULL.cases for row in chosen_rows(FULL, case)]
    runs = [run(*place, seed, diverged=300 if place[1] == FAILS else None, drift=0.1) for place in entries for seed in range(2)]
    r = Results([e for e, _ in runs], {x.trial: x for _, x in runs})
    assert {pictures.line(row.name, case.bits) for case in FULL.cases for row in chosen_rows(FULL, case) if row.name[0] not in "348" and "cell" not in row.name} <= set(pictures.LINES)  # noqa: E501  # fmt: skip
    data = {"answer": "", "config": {}, "run": {"command": "", "launches": 1, "ran": 1, "seconds": 1.0, "devices": ["here"]}}
    page = report.html(r, FULL, judged(r, FULL), [("A question", None, "Its answer")], data)
    assert page.count("<img") == 5
    assert len(table.rows(r, FULL)) == len(entries)
    assert np.isfinite([row["runs"] for row in table.data(r, FULL)]).all()
