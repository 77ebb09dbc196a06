"""Results that were damaged or tampered with: refused in one line, and left as they are."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from roundscope.experiments.train import record
from roundscope.experiments.train.gpt import data
from roundscope.tools.diagnose.replay.store import Store
from roundscope.tools.errors import StorageError, UsageError
from roundscope.tools.results.tables import check_start
from roundscope.tools.toml_file import toml_of


def changed(path, *texts):
    """Execute statements, and leave one file."""
    with closing(sqlite3.connect(path)) as connection:
        for text in texts:
            connection.execute(text)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.fixture
def run(tmp_path):
    """The folder of a run with one step."""
    with record.writing(tmp_path) as log:
        log.begin(0, config={}, arms={"arms": []})
        row = {"arm": "run", "step": 0, "loss": 1.0, "gradient_norm": 1.0, "lr": 0.1}
        log.add("steps", [row])
    return tmp_path


FREE = ("CREATE TABLE free AS SELECT * FROM steps", "DROP TABLE steps")
BACK = "ALTER TABLE free RENAME TO steps"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("DROP TABLE steps",), "the table steps is missing"),
        ((*FREE, "ALTER TABLE free DROP loss", BACK), "steps lacks loss"),
        ((*FREE, "CREATE VIEW steps AS SELECT * FROM free"), "the table steps is missing"),
        ((*FREE, "UPDATE free SET loss = 'x'", BACK), "loss of its table steps has text"),
        ((*FREE, "UPDATE free SET step = NULL", BACK), "step of its table steps has nothing"),
        ((*FREE, "UPDATE free SET arm = x'00'", BACK), "arm of its table steps has bytes"),
        ((*FREE, "UPDATE free SET arm = CAST(x'ff' AS TEXT)", BACK), "Could not decode to UTF-8"),
        (("CREATE TRIGGER t AFTER INSERT ON steps BEGIN SELECT 1; END",), "has a trigger"),
        (("PRAGMA user_version = 9",), "a newer roundscope"),
        (("PRAGMA user_version = 0",), "an older roundscope"),
        (("PRAGMA application_id = 5",), "another program"),
    ],
)
def test_a_log_of_other_tables_is_refused_and_left(run, texts, said):
    """SQLite's own words, a column that is read as NaN, a file that is changed and then refused."""
    path = run / record.NAME
    changed(path, *texts)
    before = path.read_bytes()
    with pytest.raises((StorageError, UsageError), match=said) as error:
        record.rows(run, "steps")
    assert record.NAME in str(error.value) and "\n" not in str(error.value)
    with pytest.raises((StorageError, UsageError), match=said), record.writing(run):
        pass
    assert path.read_bytes() == before


def test_a_database_that_is_cut_short_gets_no_files_beside_it(run):
    """SQLite's -wal and -shm beside a file that is refused."""
    path = run / record.NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="damaged"):
        record.rows(run, "steps")
    assert [file.name for file in run.iterdir()] == [record.NAME]


def test_a_pipe_is_not_read(tmp_path):
    """A command that waits for ever."""
    os.mkfifo(tmp_path / "x")
    for read in (lambda path: check_start(path, "file"), lambda path: toml_of(path, "CONFIG")):
        with pytest.raises(UsageError, match="ordinary"):
            read(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = " + "[" * 5000, "nests too deeply"), (f"x = {'1' * 5000}", "digits"),
     ("x = \xff", "is no TOML"), ("x =", "is no TOML")],
)  # fmt: skip
def test_a_file_that_is_no_toml(tmp_path, text, said):
    """Python's own words, or a traceback."""
    (tmp_path / "x.toml").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=said):
        toml_of(tmp_path / "x.toml", "CONFIG")


def test_replays_of_another_program(tmp_path):
    """Our tables in a database that is not ours; one of an older version that is refused."""
    own = Store(tmp_path)
    changed(own.path, "PRAGMA application_id = 0")  # as older versions made it
    Store(tmp_path)
    changed(own.path, "CREATE TABLE birds (name)", "PRAGMA application_id = 0")
    before = own.path.read_bytes()
    with pytest.raises(UsageError, match="another program"):
        Store(tmp_path)
    assert own.path.read_bytes() == before


def test_a_state_that_cannot_be_read(tmp_path):
    """numpy's own words, or a pickle that is opened."""
    store = Store(tmp_path)
    changed(store.path, "INSERT INTO states VALUES ('a', x'00')")
    changed(store.path, "INSERT INTO replayed VALUES ('a', x'00', x'00')")
    for read in (store.arrays, store.read):
        with pytest.raises(StorageError, match="delete it: replays run anew"):
            read("a")


def test_tokens_that_are_not_those_that_were_prepared(tmp_path):
    """A training on other tokens than meta.json says, without a word."""
    data.write(tmp_path, iter([("a", b"words " * 100)]))
    data.check(tmp_path)
    whole = (tmp_path / "train.bin").read_bytes()
    for odd in (whole[:-2], b"\0\0" + whole[2:]):
        (tmp_path / "train.bin").write_bytes(odd)
        with pytest.raises(UsageError, match=r"not what its meta\.json says"):
            data.check(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"vocab": 50304}))
    data.check(tmp_path)  # somebody else's
