"""`roundscope accumulators` and `bench dot`: the errors by a formula of our own, what the page
says, and bad usage.
"""

import json
from fractions import Fraction

import numpy as np
import pytest

from roundscope.experiments.cli import main as cli
from roundscope.experiments.questions.tensor_cores import study as sums
from roundscope.tools.bench import dot as bench_dot


@pytest.fixture
def short(monkeypatch):
    """Two lengths and two seeds."""
    monkeypatch.setattr(sums, "LENGTHS", (16, 64))
    monkeypatch.setattr(sums, "SEEDS", range(2))


def called(*args):
    with pytest.raises(SystemExit) as stop:
        cli.main([*map(str, args)])
    return stop.value.code or 0


def test_the_error_is_that_of_the_formula():
    """An error without its sign, of the wrong side of zero, or in other units."""
    model = sums.MODELS[-2]
    a, b = sums.factors(3, 40, model.operand, sums.SIGNED)
    found, added = sums.errors(model, 3, 40, sums.SIGNED), model.add(a, b)
    for i, j in ((0, 0), (5, 17), (23, 23)):
        products = [
            Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True)
        ]
        want = (
            (abs(Fraction(float(added[i, j]))) - abs(sum(products)))
            / sum(map(abs, products))
            * 2**24
        )
        assert found[i, j] == pytest.approx(float(want), rel=1e-9, abs=1e-9)


def test_promotion_is_a_sum_of_sums():
    """A chunk lost, or added in the tensor core after all."""
    a, b = sums.factors(1, 300, "e4m3fn", sums.POSITIVE)
    parts = [
        sums.MODELS[-2].add(a[:, lo : lo + 128], b[lo : lo + 128]).astype(np.float32)
        for lo in (0, 128, 256)
    ]
    assert np.array_equal(
        sums.promoted(a, b), ((parts[0] + parts[1]) + parts[2]).astype(np.float64)
    )


@pytest.mark.pictures
def test_the_page_and_the_table(short, tmp_path, capsys):
    assert called("accumulators", "--out", tmp_path / "x") == 0
    out = capsys.readouterr().out
    assert all(
        len(line) <= 100 for line in out.splitlines()[:-1]
    ) and "64 products above 0" in " ".join(out.split())
    data = json.loads((tmp_path / "x" / "accumulators.json").read_text())
    assert len(data["points"]) == 2 * len(sums.MODELS) * 2
    lean = {(p["model"], p["inputs"], p["k"]): p["lean"]["mean"] for p in data["points"]}
    assert lean[sums.HOPPER_FP8, sums.POSITIVE, 64] < lean[sums.HOPPER, sums.POSITIVE, 64] < 0
    page = (tmp_path / "x" / "report.html").read_text()
    assert page.count("<svg ") == 1 and data["answer"][:30] in page


def test_json_goes_to_stdout(short, tmp_path, capsys):
    assert called("accumulators", "--json", "--out", tmp_path / "x") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        (tmp_path / "x" / "accumulators.json").read_text()
    )


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "x").write_text("")
    assert called("accumulators", "--out", tmp_path / "x") == 2
    assert "is a file; name a folder" in capsys.readouterr().err


def test_every_accumulator_is_timed():
    """A contestant without a speed, or a rival compared with other sums."""
    rows = bench_dot.bench_dot(size=32, repeat=1)
    for row in rows:
        assert (
            row.rate is not None and row.rate > 0 and row.of_matmul > 0
        ) or row.note == "not installed"
        assert row.differing in (None, 0)
    assert {row.name for row in rows} >= {bench_dot.MATMUL, "Hopper", "exact", "MMA-Sim"}
