"""`docs/runs`: this version still knows every result that is stored there."""

import gzip
import sqlite3
from pathlib import Path

import pytest
from roundscope.experiments.studies.mxfp8.arms import trials
from roundscope.experiments.studies.mxfp8.scale import FULL as MXFP8

from roundscope.experiments.studies.dose import arms as dose
from roundscope.experiments.studies.dose.topics import topic
from roundscope.experiments.studies.failure import trials as qiu_yao
from roundscope.experiments.studies.failure.scale import FULL as QIU_YAO
from roundscope.experiments.studies.mxfp8 import store as mxfp8
from roundscope.experiments.studies.stability.scale import FULL as GOLDEN

RUNS = Path(__file__).parents[3] / "docs" / "runs"


def stored(name, table, tmp_path):
    """The keys of a file."""
    path = RUNS / name
    if name.endswith(".gz"):
        path = tmp_path / "found.sqlite"
        path.write_bytes(gzip.decompress((RUNS / name).read_bytes()))
    with sqlite3.connect(path) as connection:
        return {key for (key,) in connection.execute(f"SELECT key FROM {table}")}


@pytest.mark.parametrize("name", ["scaling", "identity", "conditions"])
def test_doses(name, tmp_path):
    """A field of Config or of a dose that changes the names of results: what is there would be trained again."""
    asked = topic(name, ["steps=1000"] if name == "conditions" else [], quick=False, seeds=(0, 1, 2))
    found = stored(f"dose-{name}.sqlite", "doses", tmp_path)
    assert found and found <= {dose.key(asked.config, one) for one in asked.doses}


def test_trainings_of_qiu_yao(tmp_path):
    """The same, of plans."""
    found = stored("qiu-yao.sqlite", "trials", tmp_path)
    assert found and found <= {qiu_yao.key(QIU_YAO, entry.trial) for entry in qiu_yao.entries(QIU_YAO)}


def test_trainings_of_mxfp8(tmp_path):
    """The same, of linear layers."""
    found = stored("mxfp8.sqlite.gz", "trials", tmp_path)
    assert found and found <= {mxfp8.key(MXFP8, one) for own in trials(MXFP8) for one in own}


def test_trainings_of_golden():
    """The same; none is stored here, but people have files of their own."""
    assert GOLDEN.training.key == "a5012ff1691bd831562cf16b"  # as of 2026-11-22
