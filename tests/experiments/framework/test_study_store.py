"""The results file of studies: what goes in comes back, and files of older versions are read to the
bit.
"""

import gzip
import json
import math
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest

from roundscope.experiments.framework.store import opened
from roundscope.tools.errors import UsageError
from roundscope.tools.results.run import Run
from tests.tools.databases import database

RUNS = Path(__file__).parents[3] / "docs" / "runs"


@dataclass(frozen=True)
class Condition:
    name: str
    seed: int = 0


@pytest.fixture
def old():
    """Copies a file of record; what it returns is a connection to it, closed when the test ends."""
    connections = []

    def copied(folder, stored, name):
        folder.mkdir(exist_ok=True)
        data = (RUNS / stored).read_bytes()
        (folder / name).write_bytes(gzip.decompress(data) if stored.endswith(".gz") else data)
        shutil.copy(folder / name, folder / "kept.db")
        connections.append(sqlite3.connect(folder / "kept.db"))
        return connections[-1]

    yield copied
    for connection in connections:
        connection.close()


def same(x, y):
    """Equal to the bit, NaN where there is NULL."""
    return y is None if isinstance(x, float) and math.isnan(x) else x == y


def test_a_run_comes_back_with_every_bit(tmp_path):
    """A number cut to fifteen digits, a NaN that becomes a zero, a tuple that becomes something
    else.
    """
    condition = Condition("a")
    curve = ((0, math.nan, 1 / 3), (25, 0.1 + 0.2, math.inf))
    run = Run(
        condition=condition,
        steps=30,
        diverged=7,
        loss=math.nan,
        curve=curve,
        extra={"rest": ((1 / 7,),), "n": 3},
    )
    with opened(tmp_path, "x") as store:
        store.add({"k": run}, {"width": 8}, "here")
        assert (
            store.keys() == {"k"} and store.devices(["k"]) == ["here"] and store.devices([]) == []
        )
    with opened(tmp_path, "x") as store:
        found = store.read({condition: "k", Condition("b"): "missing"})
    assert (
        list(found) == [condition] and found[condition].seed == 0 and found[condition].time == 7.0
    )
    back = found[condition]
    assert (back.steps, back.diverged, back.extra) == (
        30,
        7,
        {"rest": ((1 / 7,),), "n": 3},
    ) and math.isnan(back.loss)
    assert (
        math.isnan(back.curve[0][1]) and back.curve[0][2] == 1 / 3 and back.curve[1][1] == 0.1 + 0.2
    )
    assert math.isnan(back.curve[1][2])  # what is not finite is NULL in the file


@pytest.mark.parametrize("study", ["conditions", "identity", "scaling"])
def test_old_doses(study, tmp_path, old):
    """A run of record that is lost, or a curve with other numbers."""
    before = old(tmp_path, f"dose-{study}.sqlite", "dose.sqlite")
    rows = before.execute("SELECT key, seed, steps, diverged, loss, shares FROM doses").fetchall()
    with opened(tmp_path, "dose") as store:
        assert store.keys() == {row[0] for row in rows}
        found = store.read({Condition(key, seed): key for key, seed, *_ in rows})
    for (key, _, steps, diverged, loss, shares), run in zip(rows, found.values(), strict=True):
        points = before.execute(
            "SELECT step, loss, w_q FROM curves WHERE key = ? ORDER BY step", (key,)
        ).fetchall()
        assert (run.steps, run.diverged) == (steps, diverged) and same(run.loss, loss)
        assert all(
            same(x, y)
            for a, b in zip(run.curve, points, strict=True)
            for x, y in zip(a, b, strict=True)
        )
        assert run.extra["shares"] == tuple(map(tuple, json.loads(shares or "[]")))
    assert (tmp_path / "dose-old.sqlite").is_file()


def test_old_trials_of_failure(tmp_path, old):
    """The same, with numbers of every head."""
    before = old(tmp_path, "qiu-yao.sqlite", "qiu-yao.sqlite")
    rows = before.execute(
        "SELECT key, seed, diverged, loss, norm, heads, curve FROM trials"
    ).fetchall()
    with opened(tmp_path, "qiu-yao") as store:
        found = store.read({Condition(key, seed): key for key, seed, *_ in rows})
    assert len(found) == len(rows) == 352
    for (_, _, diverged, loss, norm, heads, curve), run in zip(rows, found.values(), strict=True):
        assert run.diverged == diverged and same(run.loss, loss) and run.extra["norm"] == norm
        assert run.extra["heads"] == tuple(map(tuple, json.loads(heads)))
        assert [look[0] for look in run.curve] == [look[0] for look in json.loads(curve)]


def test_two_old_files_of_one_study(tmp_path, old):
    """Runs of the GPT read and those of the student beside it left, or an operand's numbers
    lost.
    """
    before = old(tmp_path, "mxfp8.sqlite.gz", "mxfp8.sqlite")
    student = old(tmp_path / "student", "mxfp8-proxy.sqlite.gz", "proxy.sqlite")
    shutil.copy(tmp_path / "student" / "kept.db", tmp_path / "proxy.sqlite")
    [(gpt,)], [(own,)] = (
        before.execute("SELECT count(*) FROM trials"),
        student.execute("SELECT count(*) FROM runs"),
    )
    key, count = before.execute(
        "SELECT key, count(*) FROM audit GROUP BY key ORDER BY key LIMIT 1"
    ).fetchone()
    with opened(tmp_path, "mxfp8") as store:
        assert len(store.keys()) == gpt + own == 310
        audit = store.read({Condition(key): key})[Condition(key)].extra["audit"]
    errors = before.execute(
        "SELECT error FROM audit WHERE key = ? ORDER BY rowid", (key,)
    ).fetchall()
    assert len(audit) == count and all(
        same(row["error"], e) for row, (e,) in zip(audit, errors, strict=True)
    )


def test_what_was_computed_since_wins(tmp_path, old):
    """A new run overwritten by the old file of the same folder when it is opened again."""
    before = old(tmp_path, "dose-identity.sqlite", "dose.sqlite")
    [(key,)] = before.execute("SELECT key FROM doses LIMIT 1")
    new = Run(condition=Condition("new"), steps=1, diverged=None, loss=5.5)
    with opened(tmp_path, "dose") as store:
        store.add({key: new}, {}, "here")
    with opened(tmp_path, "dose") as store:
        assert store.read({Condition("new"): key})[Condition("new")].loss == 5.5


def test_a_foreign_file_is_left_alone(tmp_path):
    """Results written into another program's database."""
    with database(tmp_path / "x.sqlite") as connection:
        connection.execute("CREATE TABLE own (x)")
    with pytest.raises(UsageError, match="another program"), opened(tmp_path, "x"):
        pass
