"""`roundscope reproduce golden` from end to end at a tiny scale, and how it fails."""

import json

import numpy as np
import pytest

from roundscope.experiments.papers.stability_2405_02803 import study, trainings
from roundscope.experiments.papers.stability_2405_02803.measuring import (
    DERIVED,
    at,
    biased,
    cells,
    gathered,
    narrow,
    query,
)
from roundscope.tools.sweep.conditions.cell import Result
from roundscope.tools.sweep.running import run as loop
from roundscope.tools.sweep.running.run import Outcome
from roundscope.tools.sweep.storage.store import read_cells, read_sites
from tests.experiments.papers.stability_2405_02803.synthetic import TINY, straight
from tests.tools.databases import database

MODELS = len(TINY.training.versions) * TINY.training.seeds


def trained(t, progress):
    """In place of a training: distances that were never measured."""
    trained.calls += 1
    return straight(t, dict.fromkeys(t.pairs, 1.0))


@pytest.fixture
def run(roundscope, monkeypatch, tmp_path):
    """Runs the command line in an empty folder at a tiny scale: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "QUICK", TINY)
    monkeypatch.setattr(trainings, "run", trained)
    trained.calls = 0

    return roundscope


@pytest.fixture
def fake(monkeypatch):
    """Replaces the loop: nothing is computed, seeds of `failing` fail, and it may be
    interrupted.
    """

    def install(failing=(), interrupted=False):
        def run(cells, store, *, jobs, retry_failed, progress):
            bad = [c for c in cells if c["seed"] in failing]
            store.save(
                [(c, Result(key=c.key, error="too unlucky" if c in bad else None)) for c in cells]
            )
            counts = {"done": len(cells) - len(bad), "failed": len(bad), "skipped": 0}
            return Outcome(seconds=1.0, interrupted=interrupted, **counts)

        monkeypatch.setattr(loop, "run", run)

    install()
    return install


@pytest.mark.thorough
@pytest.mark.pictures
def test_from_end_to_end_and_again(run, tmp_path):
    """Catches conditions that cannot be computed, a report that cannot be drawn, SQL that gives
    other numbers, and a second run that measures again.
    """
    code, out, err = run("reproduce", "golden", "--quick", "--jobs", "2")
    assert (code, err) == (0, "")
    unique = {cell.key for study in cells(TINY, "numpy").values() for cell in study}
    assert out.startswith("In BF16 the largest deviation") and _launched(
        out, len(unique) + MODELS, ran=len(unique) + MODELS
    )
    data = json.loads((tmp_path / "golden" / "verdicts.json").read_text())
    assert data["answer"].split()[:3] == out.split()[:3] and len(data["verdicts"]) > 30
    exact = next(v for v in data["verdicts"] if v["figure"] == "6a, b")
    assert exact["word"] == "agrees" and exact["measured"].startswith(f"{2 * 4} of {2 * 4} cells")
    html = (tmp_path / "golden" / "report.html").read_text()
    assert (
        html.count("<svg ") == 8
        and html.index("<svg ") < html.index("Verdicts")
        and "nan" not in html.split("<svg")[0]
    )
    _check_queries(tmp_path / "golden" / "golden.sqlite", data, unique)
    code, out, _ = run("reproduce", "golden", "--quick", "--jobs", "1")
    assert code == 0 and _launched(out, len(unique) + MODELS, ran=0) and trained.calls == 1


def _launched(out, whole, ran):
    """Whether the last lines say how many there are, and how many of them were measured now."""
    return (
        f"cells and trainings: {whole} of {whole}, {ran} of them run by the last command"
        in " ".join(out.split())
    )


def _check_queries(path, data, unique):
    """Every query runs; some give what `Results.values` gives."""
    results = gathered(read_cells(path, unique), read_sites(path, unique))
    with database(path) as c:
        for v in data["verdicts"]:
            for q in v["queries"]:
                assert len(c.execute(q).fetchall()) == 2, (v["claim"], q)
        tiled = at("ops:bf16", TINY.bench, TINY.tile, "one-signed-v")
        tiled = narrow(TINY, "gaussian", only="O") if not results.rows(tiled) else tiled
        pairs = [(tiled, m) for m in (*DERIVED, "max_abs")] + [
            (biased(TINY, "repeated-maximum", 2, "none"), "PV.mean_ulps")
        ]
        for point, metric in pairs:
            seen = dict(c.execute(query(point, metric)).fetchall())
            expected = results.values(point, metric)
            assert seen.keys() == expected.keys(), metric
            assert np.allclose(
                [seen[k] for k in expected], list(expected.values()), rtol=1e-12, atol=0
            ), metric


def test_json(run, fake):
    """Catches a table in front of the JSON, and numbers that JSON has not."""
    code, out, err = run("reproduce", "golden", "--quick", "--json", "--out", "deep/er")
    data = json.loads(out)
    assert (code, err) == (0, "") and data["scale"] == "tiny"
    assert {v["word"] for v in data["verdicts"] if v["figure"] not in ("7", "8")} == {
        "undecided",
        "not testable",
    }


def test_failed_cells_exit_1_and_are_named(run, fake, tmp_path):
    """Catches failures that pass for results, and a report that is not written for the others."""
    fake(failing={1})
    code, out, _ = run("reproduce", "golden", "--quick")
    text = " ".join(out.split())
    assert (
        code == 1
        and "The first that failed: too unlucky." in text
        and "written: golden/report.html" in text
    )
    assert (
        "Not complete: " in text
        and "Not complete: " in (tmp_path / "golden" / "report.html").read_text()
    )


def test_ctrl_c_keeps_what_is_done(run, fake, tmp_path):
    """Catches verdicts on half of the cells."""
    fake(interrupted=True)
    code, out, err = run("reproduce", "golden", "--quick")
    assert (code, out) == (130, "") and "the same command goes on" in err
    assert (tmp_path / "golden" / "golden.sqlite").exists() and not (
        tmp_path / "golden" / "verdicts.json"
    ).exists()


def test_ctrl_c_in_the_training(run, fake, tmp_path, monkeypatch):
    """Catches half of a training that is kept, and a traceback."""

    def stopped(t, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainings, "run", stopped)
    code, out, err = run("reproduce", "golden", "--quick")
    assert (code, out) == (130, "") and "the same command goes on" in err
    monkeypatch.setattr(trainings, "run", trained)
    assert run("reproduce", "golden", "--quick")[0] == 0 and trained.calls == 1


def test_a_drawing_measures_nothing(run, fake, tmp_path, monkeypatch):
    """A drawing that measures or trains, or shows half of the cells as if they were all."""
    fake(failing={1})
    run("reproduce", "golden", "--quick")
    trained.calls = 0
    monkeypatch.setattr(loop, "run", None)
    with database(tmp_path / "golden" / "golden.sqlite") as connection:
        connection.execute("DELETE FROM cells WHERE status = 'failed'")
    code, out, _ = run("reproduce", "golden", "--quick", "--draw")
    assert code == 0
    text = " ".join(out.split())
    whole = len({cell.key for own in cells(TINY, "numpy").values() for cell in own}) + MODELS
    there = (
        len(
            {cell.key for own in cells(TINY, "numpy").values() for cell in own if cell["seed"] != 1}
        )
        + MODELS
    )
    assert trained.calls == 0 and f"cells and trainings: {there} of {whole}, 0 of them run" in text
    assert f"Not complete: {there} of {whole} cells and trainings are there" in text
    (tmp_path / "golden" / "golden.sqlite").rename(tmp_path / "golden" / "other.sqlite")
    code, _, err = run("reproduce", "golden", "--quick", "--draw")
    assert code == 2 and "holds no part" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "goldn"], "unknown paper 'goldn'; did you mean 'golden'? Known: golden"),
        (["reproduce", "golden", "--engine", "cuda"], "--engine 'cuda': use numpy or xla"),
        (["reproduce", "golden", "--jobs", "0"], "--jobs 0: give 1 or more"),
    ],
)
def test_bad_usage(run, words, message, tmp_path):
    """Catches a traceback, and a folder that is made for nothing."""
    code, out, err = run(*words)
    assert (code, out) == (2, "") and message in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
