"""A study that measures in a way of its own: what the command, the page and the terminal make of
it.
"""

import json
from dataclasses import replace

import pytest

from roundscope.experiments.framework import command
from roundscope.experiments.framework.study import Outcome, Study, Table
from roundscope.experiments.framework.verdicts import Verdict, Word
from roundscope.tools.errors import UsageError

WHOLE = Outcome(launches=3, there=3, ran=2, devices=["a device"])
VERDICT = Verdict(
    figure="Fig. 1",
    claim="it falls",
    case="a < b",
    sizes="",
    word=Word.AGREES,
    measured="2x",
    queries=("SELECT a FROM cells WHERE b < 1",),
)


def study(outcome, results=7, **more):
    """One that has measured this; what it was asked is in `study.asked`."""
    study.asked = []

    def measure(out, draw):
        study.asked.append((out, draw))
        return outcome, results

    return Study(
        name="own",
        question="How many?",
        measure=measure,
        unit="cells",
        answer=lambda r: f"There are {r}.",
        claims=lambda r: [VERDICT],
        **more,
    )


def test_it_is_told_as_any_other(tmp_path, capsys):
    """Results or an outcome that are dropped on the way, a results file that is named and is not
    there.
    """
    asked = study(WHOLE, caution="Mind this.")
    assert command.run(asked, out=tmp_path / "x", command="roundscope own") == 0
    out = capsys.readouterr().out
    assert out.startswith("There are 7.\n") and "Mind this." in out
    assert "cells: 3 of 3, 2 of them run by the last command" in out and ".sqlite" not in out
    data = json.loads((tmp_path / "x" / "own.json").read_text())
    assert data["answer"] == "There are 7." and data["verdicts"][0]["word"] == "agrees"
    assert data["run"]["devices"] == ["a device"] and "failure" not in data["run"]
    page = (tmp_path / "x" / "report.html").read_text()
    assert "Mind this." in page and "SELECT a FROM cells WHERE b &lt; 1;" in page
    assert study.asked == [(tmp_path / "x", False)]


def test_a_results_file_of_its_own_is_named(tmp_path, capsys):
    """A reader who looks for the numbers in a file of another name."""
    (tmp_path / "cells.sqlite").write_text("")
    command.run(study(WHOLE, file="cells"), out=tmp_path, command="")
    assert str(tmp_path / "cells.sqlite") in capsys.readouterr().out.replace("\n", "")
    assert "SQL over cells.sqlite" in (tmp_path / "report.html").read_text()


def test_a_failure_exits_1_and_is_named(tmp_path, capsys):
    """A failure that passes for a result."""
    failed = replace(WHOLE, there=2, failure="too <unlucky>")
    assert command.run(study(failed), out=tmp_path, command="") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "Not complete: 2 of 3 cells are there" in out
        and "The first that failed: too <unlucky>." in out
    )
    assert "too &lt;unlucky&gt;" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "own.json").read_text())["run"]["failure"] == "too <unlucky>"


def test_ctrl_c_without_results_tells_nothing(tmp_path, capsys):
    """A page of half of the measurements, and an exit code that says that all is well."""
    stopped = study(replace(WHOLE, there=1, interrupted=True), results=None)
    assert command.run(stopped, out=tmp_path, command="") == 130
    out, err = capsys.readouterr()
    assert out == "" and "cells that were done are kept" in err and not list(tmp_path.iterdir())


def test_a_drawing_is_asked_for_as_one(tmp_path):
    """A drawing that measures, or of nothing."""
    with pytest.raises(UsageError, match="holds no results"):
        command.run(study(WHOLE), out=tmp_path, command="", draw=True)
    assert study.asked == []
    (tmp_path / "cells.sqlite").write_text("")
    assert command.run(study(WHOLE), out=tmp_path, command="", draw=True) == 0
    assert study.asked == [(tmp_path, True)]
    with pytest.raises(UsageError, match="holds no part"):
        command.run(study(WHOLE, results=None), out=tmp_path, command="", draw=True)


def test_a_first_cell_that_repeats_is_left_out_on_the_terminal(tmp_path, capsys):
    """A table whose groups cannot be told from its lines."""
    lines = [["one", "a"], ["one", "b"], ["two", "c"]]
    table = Table(
        name="lines",
        title="",
        heads=("group", "line"),
        rows=lambda r: lines,
        records=lambda r: [],
        shown=(0, 1),
    )
    command.run(study(WHOLE, tables=[table]), out=tmp_path, command="")
    words = capsys.readouterr().out.split()
    assert words[words.index("group") :][:7] == ["group", "line", "one", "a", "b", "two", "c"]
    assert (tmp_path / "report.html").read_text().count("<td>one") == 2


def test_the_verdicts_fit_the_terminal(tmp_path, capsys):
    """A verdict that folds since cases or places are long."""
    long = replace(
        VERDICT,
        figure="a long place",
        case="a case of many words, longer than its column",
        word=Word.NOT_TESTABLE,
    )
    for verdict in (VERDICT, long):
        command.run(
            replace(study(WHOLE), claims=lambda r, v=verdict: [v]), out=tmp_path, command=""
        )
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= 100 for line in lines[:-1]) and any(
            verdict.word in line for line in lines
        )
