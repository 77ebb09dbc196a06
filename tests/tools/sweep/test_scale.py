"""Tests of how much memory a large sweep takes, and of how much of its file a command reads."""

import gc
import hashlib
import json
import pickle
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from roundscope.emu.numerics import NUMERICS
from roundscope.tools.sweep import command
from roundscope.tools.sweep.conditions import cell as cells_module
from roundscope.tools.sweep.conditions.axes import MOST, each_point, spec_of
from roundscope.tools.sweep.conditions.cell import Cell
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.running.run import Outcome
from roundscope.tools.sweep.storage import frames
from roundscope.tools.sweep.storage.frames import frame_of, sites_of
from roundscope.tools.sweep.storage.store import (
    read_cells,
    read_sites,
    reading,
    statuses,
    writing,
)
from tests.tools.sweep.fakes import PLAN, cell, result

COUNT = 2000
MANY = ["preset=fa2-bf16", "O=fp16", "seed=0:20", "N=1:11", "T=10:20"]  # as many cells


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A results file of COUNT cells."""
    path = tmp_path_factory.mktemp("scale") / "sweep.sqlite"
    many = [cell(i) for i in range(COUNT)]
    with writing(path) as store:
        store.save([(of, result(of)) for of in many])
    return path


@contextmanager
def traced():
    """Yield a function that returns (bytes kept since, the most bytes held at once since)."""
    gc.collect()
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def test_a_cell_is_small():
    """Catches parameters that every cell has for itself, which with its point were 1,800 bytes."""
    list(map(cell_of, each_point(spec_of(MANY))))  # what is made once
    with traced() as memory:
        kept = list(map(cell_of, each_point(spec_of(MANY))))
        assert len(kept) == COUNT and memory()[1] < 600 * COUNT


def test_points_are_made_one_by_one():
    """Catches a list of all points in memory beside the cells, and a count that is not checked."""
    with traced() as memory:
        count = sum(1 for _ in each_point(spec_of(MANY)))
        assert count == COUNT and memory()[1] < 50 * COUNT
    with pytest.raises(ValueError, match="points, a sweep has up to"):
        each_point(spec_of([f"seed=0:{MOST}", "T=8,16"]))


def test_a_key_is_the_hash_of_all_that_determines_the_numbers():
    """Catches a key of pieces that is not that of the whole, under which no stored cell is found.

    It is asked of two plans that are equal but are not written the same.
    """
    for plan in (PLAN, type(PLAN).preset("fa4-bf16"), type(PLAN).preset("fa2-bf16")):
        of = Cell(parameters=(("T", 8), ("causal", True), ("seed", 1)), plan=plan, content="x")
        whole = {
            "parameters": dict(of.parameters),
            "plan": {k: v for k, v in plan.describe().items() if k != "name"},
            "content": "x",
            "numerics": NUMERICS,
        }
        text = json.dumps(whole, sort_keys=True).encode()
        assert of.key == hashlib.sha256(text).hexdigest()[:32]


def test_true_stays_true_among_shared_parameters():
    """Catches a value of one cell that becomes an equal one of another: True, 1 and 1.0."""
    found = [Cell(parameters=(("x", x),), plan=PLAN).parameters[0][1] for x in (1, True, 1.0)]
    assert [type(x) for x in found] == [int, bool, float]


def test_a_worker_hashes_a_cell_anew(monkeypatch):
    """Catches a key that travels with the cell.

    A worker of another version of the numeric core would then pass for one of this version.
    """
    of = cell()
    sent = pickle.dumps(of)
    assert pickle.loads(sent) == of and pickle.loads(sent).key == of.key
    monkeypatch.setattr(cells_module, "NUMERICS", NUMERICS + 1)
    assert pickle.loads(sent).key != of.key


def test_a_frame_is_small(large, monkeypatch):
    """Catches a file that is read as a dictionary of each row, which took 3,000 bytes."""
    monkeypatch.setattr(frames, "PIECE", 100)
    frame_of(large)  # what is made once
    with traced() as memory:
        frame = frame_of(large)
        assert len(frame.rows) == COUNT and memory()[1] < 1800 * COUNT


def test_a_summary_reads_no_plans(large, monkeypatch):
    """Catches a summary that parses the whole file, which took 12,600 bytes of each cell."""
    monkeypatch.setattr(frames, "PIECE", 100)
    many = [cell(i) for i in range(COUNT)]
    outcome = Outcome(done=COUNT, failed=0, skipped=0, seconds=1.0, interrupted=False)
    command.summary(many, large, outcome)
    with traced() as memory:
        assert command.summary(many, large, outcome)["first_error"] is None
        assert memory()[1] < 2000 * COUNT


def test_only_cells_that_are_asked_for_are_kept(large):
    """Catches what other sweeps put into the same file in the memory of this one."""
    keys = {cell(3).key, cell(4).key, cell(COUNT + 1).key}
    with writing(large) as store, traced() as memory:
        assert store.statuses(keys) == dict.fromkeys(keys - {cell(COUNT + 1).key}, "ok")
        assert memory()[1] < 20 * COUNT
        assert len(statuses(store.connection)) == COUNT
    assert {row["key"] for row in read_cells(large, keys)} == keys - {cell(COUNT + 1).key}
    assert {row["key"] for row in read_sites(large, keys)} == keys - {cell(COUNT + 1).key}


def test_cells_that_are_asked_for_are_looked_up(large, monkeypatch):
    """Catches a part of a sweep that reads the cells of all other parts in the same file.

    SQLite counts its steps in hundreds: 2,000 rows are thousands of steps.
    """
    steps = []

    @contextmanager
    def counting(path, **more):
        with reading(path, **more) as connection:
            connection.set_progress_handler(lambda: steps.append(100) and None, 100)
            yield connection

    monkeypatch.setattr(frames, "reading", counting)
    assert [row["seed"] for row in frame_of(large, {cell(i).key for i in (7, 3)}).rows] == [3, 7]
    few = len(steps)
    assert len(frame_of(large).rows) == COUNT and len(steps) - few > 100 * (few + 1)
    steps.clear()
    with counting(large) as connection:
        assert statuses(connection, {cell(3).key}) == {cell(3).key: "ok"}
    assert not steps


def test_numbers_of_sites_are_those_of_the_cells_that_have_them(large):
    """Catches a NULL that becomes a number, and a site of another cell."""
    found = sites_of(large, [cell(5).key, cell(9).key], ("mean_ulps", "n"))
    expected = [result(cell(i)).sites["O"]["mean_ulps"] for i in (5, 9)]
    assert found["mean_ulps"].keys() == {"O"} and found["mean_ulps"]["O"].tolist() == expected
    assert {site: x.tolist() for site, x in found["n"].items()} == {"O": [4.0] * 2, "P": [2.0] * 2}


def test_equal_rows_have_one_number():
    """Catches rows that share a number since the numbers of many columns did not fit, and NaN of
    other bits, or zeros of other signs, that are taken for other, or the same, numbers.
    """
    table = np.random.default_rng(0).integers(0, (2, 3, 4, 5, *[1 << 30] * 3), (300, 7))
    expected = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    assert np.array_equal(frames.together(list(table.T)), expected)
    odd = np.array([0.0, -0.0, np.nan, -np.nan, 1.0, 0.0])
    assert len(set(frames.bits(odd))) == 4 and frames.bits(odd)[0] == frames.bits(odd)[5]
