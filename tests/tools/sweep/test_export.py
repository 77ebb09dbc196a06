"""CSV and Parquet: the same rows, every bit of every number, and no half-written file."""

import csv
import math
import sys

import pandas as pd
import pyarrow.parquet as parquet
import pytest

from roundscope.tools.errors import StorageError, UsageError
from roundscope.tools.sweep.conditions.cell import DEFAULTS
from roundscope.tools.sweep.storage import export as module
from roundscope.tools.sweep.storage.export import export
from roundscope.tools.sweep.storage.store import read_cells, read_sites, writing
from tests.tools.sweep.fakes import cell, result


@pytest.fixture
def path(tmp_path):
    """Seven cells, one of them with an axis of its own and one that failed."""
    cells = [cell(i) for i in range(6)] + [cell(6, 'a, "b"\nc', format_O="bf16")]
    with writing(tmp_path / "sweep.sqlite") as store:
        store.save([(c, result(c)) for c in cells])
    return tmp_path / "sweep.sqlite"


def test_csv_keeps_every_bit(path, tmp_path, monkeypatch):
    """Catches shortened numbers, broken quoting, lost columns, and rows lost between two pieces."""
    monkeypatch.setattr(module, "_PIECE", 3)
    out = tmp_path / "cells.csv"
    assert export(path, out) == 7
    with out.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    cells = read_cells(path)
    names = list(rows[0])
    assert set(names) == set(cells[0]) and names[: len(DEFAULTS) + 2] == [
        *DEFAULTS,
        "format.O",
        "key",
    ]
    assert names[-3:] == ["parts", "versions", "plan"]
    assert [float(r["max_abs"]).hex() for r in rows] == [c["max_abs"].hex() for c in cells]
    assert rows[6]["input"] == 'a, "b"\nc' and rows[6]["format.O"] == "bf16"
    assert (rows[0]["format.O"], rows[0]["mean"], float(rows[0]["ratio_max"])) == ("", "", math.inf)


@pytest.mark.parametrize("piece", [3, 100])
def test_parquet_has_the_types_of_the_tables(path, tmp_path, monkeypatch, piece):
    """Catches columns of text where numbers were, nulls that become zeros, and a column without
    values in one piece.
    """
    monkeypatch.setattr(module, "_PIECE", piece)
    out = tmp_path / "cells.parquet"
    assert export(path, out) == 7
    kinds = {field.name: str(field.type) for field in parquet.read_schema(out)}
    assert (kinds["T"], kinds["causal"], kinds["max_abs"], kinds["preset"], kinds["format.O"]) == (
        "int64",
        "int64",
        "double",
        "string",
        "string",
    )
    frame, cells = pd.read_parquet(out), read_cells(path)
    assert [x.hex() for x in frame["max_abs"]] == [c["max_abs"].hex() for c in cells]
    assert (
        frame["mean"].isna().all()
        and frame["format.O"].isna().sum() == 6
        and (frame["ratio_max"] == math.inf).all()
    )
    assert set(frame.columns) == set(cells[0]) and list(frame.columns)[:2] == list(DEFAULTS)[:2]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_row_of_sites_has_the_axes_of_its_cell(path, tmp_path, kind):
    """Catches rows that only a join by key can tell apart, and axes of another cell."""
    out = tmp_path / f"sites.{kind}"
    export(path, out, table="sites")
    frame = pd.read_csv(out) if kind == "csv" else pd.read_parquet(out)
    own = list(read_sites(path)[0])
    assert list(frame.columns) == [*own, *DEFAULTS, "format.O"]
    cells = {c["key"]: c for c in read_cells(path)}
    for row in frame.to_dict("records"):
        cell = cells[row["key"]]
        assert (row["T"], row["seed"], row["input"]) == (cell["T"], cell["seed"], cell["input"])
    assert (frame["format.O"] == "bf16").sum() == 2


def test_sites_and_an_empty_table(path, tmp_path):
    """Catches a table that cannot be chosen, and a table without rows that is taken for results."""
    assert export(path, tmp_path / "sites.parquet", table="sites") == 14 == len(read_sites(path))
    assert set(pd.read_parquet(tmp_path / "sites.parquet")["site"]) == {"O", "P"}
    with writing(tmp_path / "none.sqlite"):
        pass
    for name in ("none.csv", "none.parquet"):
        with pytest.raises(UsageError, match=r"none\.sqlite': holds no cells; fill it"):
            export(tmp_path / "none.sqlite", tmp_path / name)
        assert not (tmp_path / name).exists()


def test_bad_usage_is_one_line(path, tmp_path, monkeypatch):
    """Catches a traceback, and a table's name that goes into SQL as it is."""
    with pytest.raises(UsageError, match=r"end it in \.csv or \.parquet"):
        export(path, tmp_path / "cells.xlsx")
    with pytest.raises(UsageError, match="use cells or sites"):
        export(path, tmp_path / "cells.csv", table="cells; DROP TABLE cells")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'roundscope\[parquet\]'"):
        export(path, tmp_path / "cells.parquet")


def test_an_earlier_file_survives_a_failed_export(path, tmp_path, monkeypatch):
    """Catches a half-written table under the name of a whole one."""
    out = tmp_path / "cells.csv"
    out.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_csv", full)
    with pytest.raises(StorageError, match=r"cells\.csv: No space left on device"):
        export(path, out)
    with pytest.raises(StorageError, match="No such file or directory"):
        export(path, tmp_path / "nowhere" / "cells.csv")
    assert out.read_text() == "before" and {f.name for f in tmp_path.iterdir()} == {
        "cells.csv",
        "sweep.sqlite",
    }
