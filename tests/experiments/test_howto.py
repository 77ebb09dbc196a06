"""docs/howto/study.md: the study that stands there runs as it stands there."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from roundscope.experiments.framework import command, training
from roundscope.experiments.framework.verdicts import Word
from roundscope.tools.results.run import Run

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "study.md"


@pytest.fixture
def howto(tmp_path, monkeypatch):
    """The page's study, as a module."""
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(code.splitlines()) <= 100
    path = tmp_path / "repair.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("repair", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "repair", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
@pytest.mark.pictures
def test_it_runs_small_and_trains_nothing_twice(howto, tmp_path, monkeypatch, capsys):
    """A page whose study no longer runs, or that trains again what is there."""
    small = replace(
        howto.SMALL,
        layers=1,
        heads=1,
        width=8,
        context=8,
        batch=2,
        steps=6,
        warmup=2,
        data="repeat",
    )
    calls = []
    trained = training.trained
    monkeypatch.setattr(training, "trained", lambda *a, **k: calls.append(1) or trained(*a, **k))

    def run():
        return command.run(
            howto.study(small, seeds=2), out=tmp_path / "x", command="python repair.py"
        )

    assert run() == 0 and len(calls) == 2  # two structures
    out = capsys.readouterr().out
    assert (
        out.startswith("Diverged: 0 of 2 (to nearest)") and "launches: 2 of 2, 2 of them run" in out
    )
    data = json.loads((tmp_path / "x" / "repair.json").read_text())
    assert len(data["verdicts"]) == 2 and len(data["runs"]) == 6
    page = (tmp_path / "x" / "report.html").read_text()
    assert page.count("<svg ") == 1 and all(name in page for name in howto.CHANGES)
    assert run() == 0 and len(calls) == 2 and "0 of them run" in capsys.readouterr().out


def made(howto, name, diverged, loss):
    """Runs that were never trained."""
    own = zip(diverged, loss, strict=True)
    return [
        Run(condition=howto.Condition(name=name, seed=seed), steps=300, diverged=step, loss=x)
        for seed, (step, x) in enumerate(own)
    ]


def test_its_claims_say_what_they_claim(howto):
    """Claims whose sides are swapped."""
    calm, dead = [None] * 5, [90, 80, 70, 60, 50]
    low, high = [2.0, 2.1, 2.0, 2.1, 2.0], [3.0, 3.1, 3.2, 3.1, 3.0]

    def results(zero, repaired):
        return {
            howto.NEAREST: made(howto, howto.NEAREST, calm, low),
            howto.ZERO: made(howto, howto.ZERO, zero, high),
            howto.REPAIRED: made(howto, howto.REPAIRED, calm, repaired),
        }

    good, bad = results(dead, low), results(calm, high)
    assert howto.earlier(good).word is Word.AGREES and howto.earlier(bad).word is Word.UNDECIDED
    assert (
        howto.no_higher(good).word is Word.AGREES and howto.no_higher(bad).word is Word.CONTRADICTS
    )
