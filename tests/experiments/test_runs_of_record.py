"""`docs/runs`: this version still knows every result that is stored there."""

import gzip
import json
import math
import shutil
import sqlite3
from pathlib import Path
from typing import NamedTuple

import pytest

from roundscope.experiments.framework import training
from roundscope.experiments.framework.command import missing
from roundscope.experiments.framework.store import opened
from roundscope.experiments.papers.failure_2510_04212 import study as failure
from roundscope.experiments.papers.failure_2510_04212 import trials as qiu_yao
from roundscope.experiments.papers.failure_2510_04212.trials import FULL as QIU_YAO
from roundscope.experiments.papers.microscaling_2506_20752 import study as su
from roundscope.experiments.papers.mxfp8_2506_08027 import study as mxfp8
from roundscope.experiments.papers.stability_2405_02803 import long
from roundscope.experiments.papers.stability_2405_02803.measuring import FULL as GOLDEN
from roundscope.experiments.questions.dose import doses as dose
from roundscope.experiments.questions.dose.study import topic
from roundscope.experiments.questions.truncation import study as truncation
from tests.tools.databases import database

RUNS = Path(__file__).parents[2] / "docs" / "runs"


class Key(NamedTuple):
    """A condition of which only the name is known."""

    key: str
    seed: int = 0


def stored(name, table):
    """The keys of a file."""
    with database(RUNS / name) as connection:
        return {key for (key,) in connection.execute(f"SELECT key FROM {table}")}


@pytest.mark.parametrize("name", ["scaling", "identity", "conditions"])
def test_doses(name):
    """A field of Config or of a dose that changes the names of results: what is there would be
    trained again.
    """
    asked = topic(
        name, ["steps=1000"] if name == "conditions" else [], quick=False, seeds=(0, 1, 2)
    )
    found = stored(f"dose-{name}.sqlite", "doses")
    assert found and found <= {dose.key(asked.config, one) for one in asked.doses}


def test_trainings_of_qiu_yao():
    """The same, of plans."""
    found = stored("qiu-yao.sqlite", "trials")
    assert found and found <= {
        qiu_yao.key(QIU_YAO, entry.trial) for entry in qiu_yao.entries(QIU_YAO)
    }


def test_what_was_chosen_from_failing_runs_of_qiu_yao(tmp_path):
    """A change of how heads and layers are chosen, after which the later file would train again."""
    shutil.copy(RUNS / "qiu-yao.sqlite", tmp_path / "qiu-yao-h200.sqlite")
    later = stored("qiu-yao-h100.sqlite", "runs")
    with opened(tmp_path, "qiu-yao") as store:
        chosen = {qiu_yao.key(QIU_YAO, e.trial) for e in failure.sets(QIU_YAO, store)}
    assert later == chosen and len(later) == 48


def test_the_deviations_and_weights_of_long(tmp_path):
    """The same, of cells and trainings: a file of which nothing can be drawn."""
    shutil.copy(RUNS / "long.sqlite", tmp_path / "golden.sqlite")
    outcome, results = long.asked(quick=False).measure(tmp_path, True)
    assert outcome.there == outcome.launches == 222 and results is not None


@pytest.mark.parametrize(
    ("study", "files"),
    [
        (su.study(), {"su-proxy": "proxy", "su-ln-fix": "su"}),
        (mxfp8.study(), {"mxfp8": "mxfp8", "mxfp8-proxy": "proxy"}),
    ],
    ids=("su", "mxfp8"),
)
def test_trainings_of_the_student_and_of_mxfp8(study, files, tmp_path):
    """The same, of linear layers and of the student; numbers that change while older files are read
    in.
    """
    before, later = {}, set()
    for stored_as, name in files.items():
        path = tmp_path / f"{name}.sqlite"
        path.write_bytes(gzip.decompress((RUNS / f"{stored_as}.sqlite.gz").read_bytes()))
        if stored_as == "su-ln-fix":  # in the present form
            with opened(tmp_path, name) as store:
                later = store.keys() - before.keys()
        else:
            before |= older(path)
    with opened(tmp_path, study.file or study.name) as store:
        wanted = {key for launch in study.launches(store) for key in launch.keys}
        assert store.keys() == before.keys() | later == wanted and not before.keys() & later
        assert not missing(study, store)
        runs = store.read({Key(key): key for key in before})
    for condition, run in runs.items():
        assert repr((run.diverged, run.loss, run.curve, extra(run))) == repr(before[condition.key])


def older(path):
    """key -> the numbers of a run in a file of an older version, with tables of its own for each
    study.
    """
    with database(path) as connection:
        connection.row_factory = sqlite3.Row
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        rows = connection.execute(
            f"SELECT * FROM {'runs' if 'runs' in names else 'trials'}"
        ).fetchall()
        audit = connection.execute("SELECT * FROM audit").fetchall() if "audit" in names else []

    def number(x):
        return math.nan if x is None else x

    found = {}
    for row in rows:
        curve = tuple(tuple(map(number, point)) for point in json.loads(row["curve"]))
        found[row["key"]] = (row["diverged"], number(row["loss"]), curve, [])
        if "measures" in row.keys():  # noqa: SIM118
            looks = [
                (step, {n: number(v) for n, v in own.items()})
                for step, own in json.loads(row["measures"])
            ]
            found[row["key"]][3].extend([row["spikes"], *looks])
    for row in audit:
        names = (n for n in row.keys() if n != "key")  # noqa: SIM118
        found[row["key"]][3].append({n: number(row[n]) for n in names})
    return found


def extra(run):
    """A run's own numbers in the order of `older`."""
    return (
        list(run.extra["audit"])
        if "audit" in run.extra
        else [run.extra["spikes"], *run.extra["measures"]]
    )


def test_trainings_of_golden():
    """The same; none is stored here, but people have files of their own."""
    assert GOLDEN.training.key == "a5012ff1691bd831562cf16b"  # as of 2026-11-22


def test_trainings_of_truncation():
    """The same, of builds of a plan: every run of the study is there."""
    arms = truncation.arms_of(truncation.FULL)
    wanted = {training.key(truncation.FULL.config, arm) for arm in arms.values()}
    assert stored("truncation.sqlite", "runs") == wanted
