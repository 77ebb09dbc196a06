"""The results file: what is saved is there, whole and to the bit, and no other file is ever
touched.
"""

import math
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from roundscope.tools.errors import StorageError, UsageError
from roundscope.tools.sweep.conditions.cell import DEFAULTS
from roundscope.tools.sweep.measuring import metrics
from roundscope.tools.sweep.storage import store as results
from roundscope.tools.sweep.storage.store import read_cells, read_sites, writing
from tests.tools.databases import database
from tests.tools.sweep.fakes import PLAN, cell, result

ROOT = Path(__file__).parents[3]
NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.sqlite"


def saved(path, *cells, fresh=False):
    with writing(path, fresh) as store:
        store.save([(c, result(c)) for c in cells])
    return path


def raw(path, sql):
    with database(path) as connection:
        got = connection.execute(sql).fetchall()
        connection.commit()
        return got


@contextmanager
def child(code, *args):
    """A Python process that runs code with the package at hand, and its first line of output;
    killed in the end.
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


HOLDER = """
import os, sys, time
from pathlib import Path
from roundscope.tools.sweep.storage.store import writing
with writing(Path(sys.argv[1])):
    {then}
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_round_trip(path):
    """Catches a lost column, a rounded number, and a NaN or infinity that comes back as something
    else.
    """
    of = cell(3, causal=True, stabiliser="1.5", format_O="bf16")
    saved(path, of)
    [row] = read_cells(path)
    assert {k: row[k] for k in DEFAULTS} == dict(of.parameters[: len(DEFAULTS)])
    assert (row["causal"], row["backward"], row["format.O"]) == (1, 0, "bf16")
    assert (row["key"], row["status"], row["error"], row["seconds"]) == (of.key, "ok", None, 0.25)
    assert row["max_abs"].hex() == result(of).metrics["max_abs"].hex()
    assert row["mean"] is None and row["ratio_max"] == math.inf and row["rms"] is None
    assert row["parts"] == {"attention": 0.125, "golden": 0.125} and row["versions"] == {
        "numpy": "2"
    }
    assert row["plan"]["roundings"].keys() == PLAN.describe()["roundings"].keys()
    assert row["finished"].endswith("+00:00")
    sites = {s["site"]: s for s in read_sites(path)}
    assert (sites["O"]["n"], sites["O"]["mean_ulps"], sites["P"]["mean_ulps"]) == (
        4.0,
        -row["max_abs"],
        None,
    )


def test_columns_are_those_promised(path):
    """Catches a metric without a column, and names that SQLite takes for one since it ignores
    case.
    """
    saved(path, cell())
    names = [name for _, name, *_ in raw(path, "PRAGMA table_info(cells)")]
    assert set(DEFAULTS) | set(metrics.METRICS) <= set(names)
    assert len({n.lower() for n in names}) == len(names)
    assert [n for _, n, *_ in raw(path, "PRAGMA table_info(sites)")] == [
        "key",
        "site",
        *metrics.SITE_METRICS,
    ]


def test_an_axis_of_one_site_met_later(path):
    """Catches a column that is added once only, or that spoils the rows before it."""
    saved(path, cell(1))
    saved(path, cell(2, format_O="bf16"), cell(3, mode_O="toward-zero"))
    assert [(r["format.O"], r["mode.O"]) for r in read_cells(path)] == [
        (None, None),
        ("bf16", None),
        (None, "toward-zero"),
    ]


def test_a_retried_cell_replaces_its_row_and_sites(path):
    """Catches a second row, or sites left over from the first try."""
    of = cell()
    with writing(path) as store:
        store.save([(of, replace(result(of), error="no memory"))])
        assert store.statuses() == {of.key: "failed"}
        store.save([(of, replace(result(of), sites={"S": {"n": 1.0}}))])
        assert store.statuses() == {of.key: "ok"}
    assert [r["site"] for r in read_sites(path)] == ["S"] and len(read_cells(path)) == 1


def test_readers_see_a_batch_when_save_returns(path):
    """Catches an open transaction behind `save`, and a reader that waits for the writer."""
    with writing(path) as store:
        store.save([(cell(i), result(cell(i))) for i in range(3)])
        assert len(read_cells(path)) == 3
        assert raw(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_batch_is_saved_whole_or_not_at_all(path):
    """Catches a half batch in the file, and a column that outlives its transaction."""
    good, odd = cell(1, format_O="bf16"), cell(2)
    with writing(path) as store:
        with pytest.raises(sqlite3.Error):
            store.save([(good, result(good)), (odd, replace(result(odd), device=object()))])
        assert store.statuses() == {}
        store.save([(good, result(good))])
    assert len(read_cells(path)) == 1


def test_pandas_reads_the_file_as_it_is(path):
    """Catches types that only we can read."""
    saved(path, cell(1), cell(2, causal=True))
    with database(path) as connection:
        frame = pd.read_sql(
            "SELECT * FROM cells JOIN sites USING (key) WHERE site = 'O'", connection
        )
    assert frame["T"].dtype == "int64" and frame["max_abs"].dtype == "float64" and len(frame) == 2
    assert (frame["mean_ulps"].iloc[:, 1] == -frame["max_abs"]).all()


def test_a_second_sweep_is_told_who_holds_the_file(path):
    """Catches two writers on a file, and a --fresh that deletes before it holds the file."""
    saved(path, cell())
    link = path.with_name("link.sqlite")
    link.symlink_to(path)
    with child(HOLDER.format(then=""), path) as (_, pid):
        for name, fresh in ((path, False), (path, True), (link, False)):
            with pytest.raises(
                StorageError,
                match=(
                    rf"another sweep \(pid {pid}\) is writing .*; wait for it or choose another"
                    r" --out"
                ),
            ):
                saved(name, cell(2), fresh=fresh)
        assert len(read_cells(path)) == 1
    saved(path, cell(2))
    assert len(read_cells(path)) == 2


def test_a_second_sweep_in_the_same_process(path):
    """Catches locks that only other processes see."""
    with writing(path), pytest.raises(StorageError, match=f"pid {os.getpid()}"):
        saved(path, cell())
    assert [f.name for f in path.parent.iterdir()] == [path.name]


def test_a_forked_child_does_not_keep_a_killed_sweeps_lock(path):
    """Catches a lock that an executor's forked worker holds on after kill -9, as it would with
    flock.
    """
    fork = (
        "child = os.fork()\n    if child == 0: os.close(1); time.sleep(60); os._exit(0)\n   "
        " print(child, end=' ')"
    )
    with child(HOLDER.format(then=fork), path) as (holder, pids):
        orphan, parent = map(int, pids.split())
        assert parent == holder.pid
    try:
        os.kill(orphan, 0)
        saved(path, cell())
    finally:
        os.kill(orphan, 9)


def test_after_kill_9_the_file_reads_at_once(path):
    """Catches rows that wait in a journal that only a writer may fold in."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom roundscope.tools.sweep.storage.store"
        " import writing\nfrom tests.tools.sweep.fakes import cell, result\nwith"
        " writing(Path(sys.argv[1])) as store:\n    store.save([(cell(i), result(cell(i))) for i in"
        " range(5)])\n    os.kill(os.getpid(), 9)"
    )
    with child(code, path) as (process, _):
        process.wait()
    assert process.returncode == -9 and path.with_name(path.name + "-wal").stat().st_size
    assert len(read_cells(path)) == 5 and len(read_sites(path)) == 10


def test_fresh_starts_over(path):
    """Catches rows, sites or columns that outlive --fresh."""
    saved(path, cell(1, format_O="bf16"))
    saved(path, cell(2), fresh=True)
    assert [r["seed"] for r in read_cells(path)] == [2] and "format.O" not in read_cells(path)[0]
    assert len(read_sites(path)) == 2


@pytest.mark.parametrize(
    ("version", "words"), [(0, "an older roundscope"), (9, "a newer roundscope")]
)
def test_another_schema(path, version, words):
    """Catches rows of another meaning next to ours; --fresh is the way out that the message
    names.
    """
    saved(path, cell(1))
    raw(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    for use in (lambda: saved(path, cell(2)), lambda: read_cells(path)):
        with pytest.raises(
            UsageError, match=rf"{words} \(schema {version}, here {results.SCHEMA}\)"
        ):
            use()
    assert path.read_bytes() == before
    saved(path, cell(2), fresh=True)
    assert [r["seed"] for r in read_cells(path)] == [2]


def test_a_metric_that_came_later(path):
    """Catches a file of the same schema that cannot take a new metric."""
    saved(path, cell(1))
    raw(path, "ALTER TABLE cells DROP COLUMN max_abs")
    saved(path, cell(2))
    assert [r["max_abs"] for r in read_cells(path)] == [None, result(cell(2)).metrics["max_abs"]]


@pytest.mark.parametrize("fresh", [False, True])
def test_files_of_others_are_not_touched(path, fresh):
    """Catches our tables in another program's database, or a text file overwritten."""
    raw(path, "CREATE TABLE birds (name)")
    other = path.with_name("notes.txt")
    other.write_text("a text of mine, longer than SQLite's header")
    for file, words in ((path, "another program"), (other, "is no SQLite file")):
        before = file.read_bytes()
        with pytest.raises(UsageError, match=words):
            saved(file, cell(), fresh=fresh)
        with pytest.raises(UsageError, match=words):
            read_cells(file)
        assert file.read_bytes() == before
    assert {f.name for f in path.parent.iterdir()} == {path.name, other.name}


def test_places_that_hold_no_file(tmp_path):
    """Catches a traceback, or folders made from a misspelt path."""
    for place, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "x.sqlite", "its folder does not exist"),
        (Path("/dev/null"), "ordinary"),
    ):
        with pytest.raises(UsageError, match=words):
            saved(place, cell())
    with pytest.raises(UsageError, match="does not exist; make it"):
        read_cells(tmp_path / "x.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_new_one(path):
    """Catches a refusal of what mktemp makes."""
    path.touch()
    saved(path, cell())
    assert len(read_cells(path)) == 1


def test_a_damaged_file_is_one_line(path):
    """Catches a traceback, and writing on into a damaged file."""
    saved(path, *(cell(i) for i in range(200)))
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xa5" * (len(whole) - 8192))
    with (
        pytest.raises(StorageError, match=r"sweep.sqlite: the file is damaged .*\.recover"),
        writing(path) as store,
    ):
        store.statuses()
    with pytest.raises(StorageError, match="damaged"):
        read_cells(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError, match="damaged"), writing(path) as store:
        store.statuses()


def test_a_full_disk_keeps_what_was_saved(path):
    """Catches half a batch, a lost file, or a sweep that cannot go on once there is room."""
    with writing(path) as store:
        store.save([(cell(0), result(cell(0)))])
        [(pages,)] = store.connection.execute("PRAGMA page_count")
        store.connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        many = [(cell(i), result(cell(i))) for i in range(1, 100)]
        with pytest.raises(
            StorageError,
            match=(
                r"the disk is full; what was saved before is intact: free some space and run again"
            ),
        ):
            store.save(many)
        assert [r["seed"] for r in read_cells(path)] == [0]
        store.connection.execute("PRAGMA max_page_count = 1000000")
        store.save(many)
    assert len(read_cells(path)) == 100


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from roundscope.tools.errors import one_line
from roundscope.tools.sweep.measuring import metrics
from roundscope.tools.sweep.storage import store
from tests.tools.sweep.fakes import cell, result
path = Path(sys.argv[1])
path.as_uri()  # imports what it needs
if os.getuid() == 0:
    os.setuid(65534)
try:
    with store.writing(path): pass
except OSError as error:
    print(type(error).__name__, one_line(error))
print(len(store.read_cells(path)))
"""


@pytest.mark.parametrize(
    ("folder", "words"),
    [(0o777, "cannot be written; change its permissions"), (0o555, "Permission denied")],
)
def test_a_file_that_may_only_be_read(folder, words, tmp_path_factory):
    """Catches a traceback on an archive's file, and a reader that wants to write next to it."""
    base = tmp_path_factory.mktemp("archive")
    path = saved(base / "sweep.sqlite", cell())
    path.chmod(0o444)
    base.chmod(folder)
    for parent in (
        p for p in base.parents if Path(tempfile.gettempdir()) in p.parents
    ):  # pytest's own are the user's alone
        parent.chmod(0o755)
    try:
        with child(UNPRIVILEGED, path) as (process, first):
            assert first.startswith("StorageError") and words in first
            assert process.stdout.readline() == "1\n"
    finally:
        base.chmod(0o755)
