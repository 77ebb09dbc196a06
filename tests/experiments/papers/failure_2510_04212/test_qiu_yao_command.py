"""Runs from the command to the report: what is kept, what runs again, what is written."""

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roundscope.experiments import reproduce
from roundscope.experiments.cli.main import main
from roundscope.experiments.framework import command
from roundscope.experiments.framework.store import opened
from roundscope.experiments.framework.study import Static
from roundscope.experiments.options import ReproduceOptions
from roundscope.experiments.papers.failure_2510_04212 import (
    static,
    trials,
)
from roundscope.experiments.papers.failure_2510_04212.claims import judged
from roundscope.experiments.papers.failure_2510_04212.study import (
    LINES,
    answer,
    line,
    opening,
    records,
    study,
)
from roundscope.experiments.papers.failure_2510_04212.study import rows as lines
from roundscope.experiments.papers.failure_2510_04212.trials import (
    FAILS,
    FP32,
    FULL,
    QUICK,
    Results,
    Trial,
    chosen_rows,
    entries,
    executables,
    key,
    rows,
    split,
    whole,
)
from roundscope.experiments.train.config import Config
from roundscope.tools.errors import UsageError
from roundscope.tools.report import html
from roundscope.tools.results.run import Run
from roundscope.tools.signals import INTERRUPTED
from tests.experiments.papers.failure_2510_04212.made import gathered, run
from tests.tools.databases import database

RECORD = Path(__file__).parents[4] / "docs" / "runs" / "qiu-yao.sqlite"

TINY = replace(
    QUICK,
    config=Config(layers=1, heads=2, width=8, context=8, batch=2, warmup=30, data="sink"),
    steps=30,
    seeds=(0, 1),
    cases=QUICK.cases[:2],
)
SPLIT = replace(TINY, arms=2)  # case N as it is, FP32 of both cases, case A as it is


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of two cases, of a model that trains in no time, and whose steps end before the
    looks at dS begin.
    """
    monkeypatch.setattr(trials, "QUICK", TINY)
    monkeypatch.setattr(static, "static", lambda progress: Static())
    monkeypatch.setattr(
        trials,
        "rows",
        lambda case, config: [row for row in rows(case, config) if row.name in (FAILS, FP32)],
    )


def test_command_writes_and_goes_on(tiny: None, tmp_path, capsys) -> None:
    """Catches a second call that trains again, a report that needs more than the results, and
    numbers that JSON has not.
    """
    first = called(tmp_path, capsys)
    assert first["run"]["ran"] == first["run"]["launches"] == 1
    assert {(row["case"], row["row"], row["runs"]) for row in first["rows"]} == {
        (c, r, 2) for c in "NA" for r in (FAILS, FP32)
    }
    second = called(tmp_path, capsys)
    assert second["run"]["ran"] == 0
    assert second["rows"] == first["rows"]
    page = (tmp_path / "report.html").read_text()
    assert page.index("<svg") < page.index("<h2 ")  # it opens with a picture
    assert json.loads((tmp_path / "qiu-yao.json").read_text())["verdicts"] == second["verdicts"]


def called(out, capsys, *options):
    """What the command prints as JSON."""
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "qiu-yao", "--quick", "--out", str(out), "--json", *options])
    assert not end.value.code
    return json.loads(capsys.readouterr().out)


def reproduced(out, **options):
    """The exit code of the command."""
    asked = {"paper": "qiu-yao", "out": out, "quick": True, "json": True} | options
    return reproduce.run(ReproduceOptions(**asked))


def test_killed_run_keeps_whole_launches_and_tells_them(
    tiny: None, tmp_path, monkeypatch, capsys
) -> None:
    """Catches a launch that is half written, one that is done again after the process died in the
    next, a page of the launches done that speaks of others or does not say what is missing, and one
    that stays when they are there.
    """
    monkeypatch.setattr(trials, "QUICK", SPLIT)
    calls: list[int] = []

    def dying(scale, group, progress):
        calls.append(len(group))
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return [made(trial) for trial in group]

    monkeypatch.setattr(trials, "launch", dying)
    assert reproduced(tmp_path) == INTERRUPTED
    with database(tmp_path / "qiu-yao.sqlite") as file:
        [(kept,)] = file.execute("SELECT count(*) FROM runs")
    assert kept == calls[0]
    assert not (tmp_path / "report.html").exists() and not capsys.readouterr().out
    assert reproduced(tmp_path) == INTERRUPTED
    part = json.loads(capsys.readouterr().out)
    assert {(row["case"], row["row"], row["runs"]) for row in part["rows"]} == {
        ("N", FAILS, 2),
        ("N", FP32, 2),
    }
    assert {v["case"] for v in part["verdicts"]} == {"N", "A", "all"}  # row 8, of case A: not run
    assert (part["run"]["there"], part["run"]["launches"]) == (2, 3)
    assert "2 of 3 launches" in (tmp_path / "report.html").read_text()
    assert reproduced(tmp_path) == 0
    assert len(calls) == 5  # each launch once, and the two that died
    page = (tmp_path / "report.html").read_text()
    assert "Not complete" not in page and "3 of 3, 1 of them run by the last command" in page


@pytest.mark.thorough
def test_any_number_of_launches_can_be_told() -> None:
    """Catches a verdict that needs a case or a row that is not there yet, rows with half of their
    seeds, and half of a search.
    """
    wanted, groups = entries(FULL), executables(FULL, [e.trial for e in entries(FULL)])
    names = {e.trial: key(FULL, e.trial) for e in wanted}
    told = []
    for n in range(len(groups) + 1):
        there = {names[trial] for group in groups[:n] for trial in group}
        found = {trial: made(trial) for trial, name in names.items() if name in there}
        kept = whole(wanted, found)
        r = Results(FULL, kept, found)
        cases, verdicts = r.scale.cases, judged(r)
        assert {c.name for c in cases} == {e.case for e in kept}
        assert {sum("cell" in row for row in r.rows(c.name)) for c in cases} <= {0, 24}
        assert answer(r) and {v.case for v in verdicts} <= {c.name for c in cases} | {"A", "all"}
        assert all(
            len(own) == len([e for e in wanted if (e.case, e.row) == place])
            for place, own in r.by.items()
        )
        told.append(len(kept))
    assert told[0] == 0 and told[-1] == len(wanted) and told == sorted(told) and len(set(told)) > 3


def made(trial: Trial) -> Run[Trial]:
    return replace(run("N", "0", trial.seed)[1], condition=trial)


def test_store_gives_back_what_it_got(tmp_path) -> None:
    """Catches a column in the place of another, and NaN that comes back as 0 or None."""
    trial = Trial(changes=("site=O -> bf16",), tiles=2, steps=30, seed=1)
    other = replace(trial, seed=2)
    wanted = Run(
        condition=trial,
        steps=30,
        diverged=None,
        loss=1.25,
        curve=((0, math.nan, 1.0), (25, 2.0, 3.0)),
        extra={"norm": 7.0, "heads": ((1.0, 2.0),), "rest": (((1.0, math.nan, 3.0),),)},
    )
    names = {t: key(TINY, t) for t in (trial, other)}
    with opened(tmp_path, "qiu-yao") as store:
        store.add({names[trial]: wanted}, {}, "here")
        found = store.read(names)
        assert store.devices(names.values()) == ["here"]
    assert list(found) == [trial]
    assert repr(found[trial]) == repr(wanted)  # NaN is not equal to itself


def test_folder_of_another_program_is_refused(tmp_path) -> None:
    """Catches results written into a file that is not ours."""
    with database(tmp_path / "qiu-yao.sqlite") as file:
        file.execute("CREATE TABLE t (x)")
    with pytest.raises(UsageError, match="another program"):
        reproduced(tmp_path)


def test_old_file_holds_the_same_runs(tmp_path) -> None:
    """Catches a column of a file of before, read by hand here, that is another field now; runs that
    are lost; and an old file changed.
    """
    shutil.copy(RECORD, tmp_path)
    with database(RECORD) as file:
        names = "key, steps, seed, diverged, loss, norm, heads, rest, curve"
        rows = {row[0]: row[1:] for row in file.execute(f"SELECT {names} FROM trials")}
    wanted = {e.trial: key(FULL, e.trial) for e in entries(FULL)}
    with opened(tmp_path, "qiu-yao") as store:
        found = store.read(wanted)
        assert store.keys() == set(rows) == {wanted[trial] for trial in found}
    for trial, own in found.items():
        steps, seed, diverged, loss, norm, *lists = rows[wanted[trial]]
        assert (own.condition, own.steps, own.seed) == (trial, steps, seed)
        assert own.diverged == diverged and math.isnan(own.loss) == (loss is None)
        assert loss is None or own.loss == loss
        seen = {name: listed(own.extra[name]) for name in ("heads", "rest")}
        assert [own.extra["norm"], seen["heads"], seen["rest"]] == [
            norm,
            *map(json.loads, lists[:2]),
        ]
        assert listed(own.curve) == json.loads(lists[2])
    assert (tmp_path / "qiu-yao-old.sqlite").read_bytes() == RECORD.read_bytes()


def listed(x):
    """Nested tuples as lists, None for NaN."""
    return [listed(each) for each in x] if isinstance(x, tuple) else None if math.isnan(x) else x


def refused(*given):
    raise AssertionError("a launch was started")


def test_record_that_is_not_complete_draws_and_trains_nothing(
    tiny: None, tmp_path, monkeypatch, capsys
) -> None:
    """Catches --draw that goes on, a page that does not say what is missing, and one that tells
    half of a case.
    """
    monkeypatch.setattr(trials, "QUICK", SPLIT)
    monkeypatch.setattr(trials, "launch", refused)
    monkeypatch.setattr(static, "static", refused)
    first, *_, last = executables(SPLIT, [e.trial for e in entries(SPLIT)])
    keep(tmp_path, first)
    with pytest.raises(UsageError, match="--draw"):  # rows of which no case is whole
        reproduced(tmp_path, draw=True)
    for group in executables(SPLIT, [e.trial for e in entries(SPLIT)])[1:-1]:
        keep(tmp_path, group)
    drawn = called(tmp_path, capsys, "--draw")
    assert (drawn["run"]["ran"], drawn["run"]["there"], drawn["run"]["launches"]) == (0, 2, 3)
    assert {(row["case"], row["row"]) for row in drawn["rows"]} == {("N", FAILS), ("N", FP32)}
    page = (tmp_path / "report.html").read_text()
    assert "2 of 3 launches are there" in page and "--quick --draw" in page
    keep(tmp_path, last)
    monkeypatch.setattr(static, "static", lambda progress: Static())
    assert called(tmp_path, capsys, "--draw")["run"]["there"] == 3
    assert "Not complete" not in (tmp_path / "report.html").read_text()


def keep(folder: Path, group: list[Trial]) -> None:
    """Writes runs of a launch that were made up."""
    with opened(folder, "qiu-yao") as store:
        store.add({key(SPLIT, trial): made(trial) for trial in group}, {}, "here")


@pytest.mark.parametrize("held", ["nothing", "a link", "an empty file", "another study"])
def test_folder_without_results_is_not_drawn(tiny: None, tmp_path, held) -> None:
    """Catches --draw that makes an empty page, or trains, or leaves a results file behind."""
    file = tmp_path / "qiu-yao.sqlite"
    if held == "a link":
        file.symlink_to("elsewhere")
    elif held == "an empty file":
        file.touch()
    elif held == "another study":
        with opened(tmp_path, "two-level"):
            pass
    before = {path.name: path.lstat().st_size for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="holds no results"):
        reproduced(tmp_path, draw=True)
    assert {path.name: path.lstat().st_size for path in tmp_path.iterdir()} == before


def test_run_that_rows_share_is_counted_once(tiny: None, tmp_path) -> None:
    """Catches FP32 runs, which every case shares, counted again for each: they never diverge, which
    flatters the rest of dS.
    """
    for group in executables(SPLIT, [e.trial for e in entries(SPLIT)]):
        keep(tmp_path, group)
    with opened(tmp_path, "qiu-yao") as store:
        r, kept = study(SPLIT).results(store), store.keys()
    assert len(entries(SPLIT)) == 8 and len(kept) == 6
    assert sum(map(len, split(r))) == 6
    changes = {(row["case"], row["row"]): row["changes"] for row in records(r)}
    assert changes == {
        (e.case, e.row): list(e.trial.changes) for e in entries(SPLIT)
    }  # each as its own row words it


@pytest.mark.thorough
@pytest.mark.pictures
def test_record_draws(tmp_path, monkeypatch, capsys) -> None:
    """Catches docs/runs/README.md promising a page that would take days of training."""
    monkeypatch.setattr(trials, "launch", refused)
    monkeypatch.setattr(static, "static", refused)
    shutil.copy(RECORD, tmp_path)
    assert reproduced(tmp_path, quick=False, draw=True) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["run"]["ran"] == 0 and drawn["run"]["there"] < drawn["run"]["launches"]
    places = {(e.case, e.row): 0 for e in entries(FULL)}
    for e in entries(FULL):
        places[e.case, e.row] += 1
    assert all(row["runs"] == places[row["case"], row["row"]] for row in drawn["rows"])
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.thorough
def test_arm_is_described_up_to_its_divergence() -> None:
    """Catches norms of an arm after it diverged, losses of one that did, and a launch that goes on
    when all have: they would depend on the arms beside it.
    """
    fast = replace(TINY, rate=1e4)  # diverges at once
    trial = Trial(changes=("-> fp32",), tiles=1, steps=5000, seed=0)
    done: list[int] = []
    [found, again] = trials.launch(fast, [trial, replace(trial, seed=1)], done.append)
    assert found.diverged is not None and again.diverged is not None
    assert max(done) < 5000
    assert math.isnan(found.loss)
    before = [
        norm for step, _, norm in found.curve if step <= found.diverged and math.isfinite(norm)
    ]
    assert found.extra["norm"] == pytest.approx(max(before))


@pytest.mark.pictures
def test_every_picture_draws_every_row() -> None:
    """Catches a row that the opening picture leaves out, and a picture that fails where something
    was not run.
    """
    places = [(case.name, row.name) for case in FULL.cases for row in chosen_rows(FULL, case)]
    runs = [
        run(*place, seed, diverged=300 if place[1] == FAILS else None, drift=0.1)
        for place in places
        for seed in range(2)
    ]
    r = gathered(runs)
    named = {
        line(row.name, case.bits)
        for case in FULL.cases
        for row in chosen_rows(FULL, case)
        if row.name[0] not in "348" and "cell" not in row.name
    }
    assert named <= set(LINES)
    about = {
        "command": "",
        "launches": 1,
        "there": 1,
        "ran": 1,
        "interrupted": False,
        "seconds": 1.0,
        "devices": ["here"],
    }
    data = {"answer": "", "config": {}, "run": about}
    still = Static(title="Without training", figures=[("A question", None, "Its answer")])
    page = html.page(command.report(study(FULL), r, judged(r), still, data))
    assert page.count("<svg") == 5 and "Its answer" in page
    assert len(lines(r)) == len(places)
    assert np.isfinite([row["runs"] for row in records(r)]).all()
    first = opening(r)
    boxes = [label.get_window_extent() for label in drawn_heads(first)]
    assert all(
        left.x1 < right.x0 for left, right in itertools.pairwise(boxes)
    )  # heads of columns do not touch


def drawn_heads(figure):
    """The heads of the columns, where they stand on the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    return figure.axes[0].get_xticklabels()
