"""From the command to the report, over runs that were made up: what is kept, what runs again, what
is written.
"""

import json
from dataclasses import replace

import pytest

from roundscope.experiments import reproduce
from roundscope.experiments.cli.main import main
from roundscope.experiments.options import ReproduceOptions
from roundscope.experiments.papers.microscaling_2506_20752 import code, study
from roundscope.experiments.papers.microscaling_2506_20752 import measurements as arms
from roundscope.experiments.papers.microscaling_2506_20752.measurements import (
    QUICK,
    Setting,
    varied,
)
from roundscope.experiments.train.student.arms import UNCHANGED, Config
from roundscope.tools.signals import INTERRUPTED
from tests.experiments.papers.microscaling_2506_20752.made import looks, of_arm

TINY = replace(
    QUICK,
    settings=varied(
        Setting(
            name="base", config=Config(depth=4, width=32, batch=32, steps=1000), rates=(0.05, 0.1)
        ),
        no_LN=({"norm": False}, (0.01, 0.02)),
    ),
    seeds=tuple(range(6)),
    parted=5,
    leads=(100, 20),
    shams=4,
    looks=100,
)


def made(scale, part, out, progress):
    """MXFP4 fails at the upper rates from step 500 on, FP32 never with LN; FP32 cures, LN delays,
    ties to away hasten; frozen shifts hasten.
    """
    return [result(part, arm) for arm in part.arms]


def result(part, arm):
    low = any("mxfp4" in text for _, text in arm.changes)
    if part.first is not None:
        usual = 500 + arm.seed + (3 if arm.name.startswith(arms.SHAM) else 0)
        return of_arm(
            arm, {"all FP32": None, "LN in FP32": 700, "ties to away": 450}.get(arm.name, usual)
        )
    if "beta frozen" in arm.name:
        return of_arm(arm, 450)
    if arm.name == "mxfp4, backward BF16":
        return of_arm(arm)
    fails = (low and arm.lr >= 0.1) or (not part.config.norm and arm.lr > 0.01)
    measures = looks(0.3, 1.2) if part.config.measure_every and arm.name == UNCHANGED else ()
    return of_arm(arm, 500 + arm.seed if fails else None, measures)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(study, "QUICK", TINY)
    monkeypatch.setattr(code, "arithmetic", lambda: [])
    monkeypatch.setattr(code, "BLOCKS", 40)
    code.stats.cache_clear()
    monkeypatch.setattr(
        "roundscope.experiments.papers.microscaling_2506_20752.measurements.ran", made
    )
    yield
    code.stats.cache_clear()


def called(out, capsys):
    """What the command prints as JSON, and its exit code."""
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "su", "--quick", "--out", str(out), "--json"])
    return json.loads(capsys.readouterr().out), end.value.code or 0


def words(data, figure):
    return {(v["claim"], v["case"]): v["word"] for v in data["verdicts"] if v["figure"] == figure}


@pytest.mark.pictures
def test_command_writes_and_goes_on(tiny, tmp_path, capsys):
    """A second call that trains again, verdicts that do not follow from the runs, a page that does
    not open with a picture.
    """
    first, code = called(tmp_path, capsys)
    assert code == 0 and first["run"]["ran"] == first["run"]["launches"] > 10
    assert (
        words(first, "1")[
            "diverges where FP32 on the same rows does not", "mxfp4, lr 0.1, 1000 steps"
        ]
        == "agrees"
    )
    assert (
        words(first, "1")[
            "diverges where FP32 on the same rows does not", "mxfp8_e4m3, lr 0.1, 1000 steps"
        ]
        == "contradicts"
    )
    four = {case: word for (_, case), word in words(first, "4").items()}
    assert (
        four["all FP32 (no_mx_inject), 100 steps before"]
        == four["LN in FP32 (no_ln_q), 20 steps before"]
        == "agrees"
    )
    assert (
        four["ties to away, 20 steps before"] == "contradicts"
        and four["RCEIL, 20 steps before"] == "undecided"
    )
    assert (
        words(first, "epsilon")[
            "epsilon of two trainings is the formats' error (3.5 e)", "mxfp4, lr 0.1"
        ]
        == "contradicts"
    )
    recipes = {case: word for (_, case), word in words(first, "recipe").items()}
    assert recipes == {"backward BF16": "agrees", "activations BF16, LN in FP32": "contradicts"}
    code_words = {
        v["figure"]: v["word"] for v in first["verdicts"] if v["figure"].startswith("3.5 ")
    }
    assert (
        code_words["3.5 b"] == code_words["3.5 b'"] == "agrees"
    )  # LN does nothing alone; against a frozen shift it seems to
    assert (
        code_words["3.5 d"] == "contradicts"
        and code_words["3.5 a"] == "undecided"
        and code_words["3.5 g"] == "agrees"
    )
    assert "all FP32 averted" in first["answer"] and "LN in FP32 delayed" in first["answer"]
    second, _ = called(tmp_path, capsys)
    assert (
        second["run"]["ran"] == 0
        and second["verdicts"] == first["verdicts"]
        and second["answer"] == first["answer"]
    )
    page = (tmp_path / "report.html").read_text()
    assert page.index("<svg") < page.index("<h2 ") and page.count("<svg") == 4
    assert json.loads((tmp_path / "su.json").read_text())["verdicts"] == second["verdicts"]


def test_interrupted_run_tells_what_is_there(tiny, tmp_path, monkeypatch, capsys):
    """A launch that is lost with the one after it, a page of a part that does not say so or speaks
    of what is missing, a page that is drawn again and trains.
    """
    calls = []

    def dying(scale, part, out, progress):
        calls.append(part)
        if len(calls) == 10:  # the base is there, and one launch of the first parting
            raise KeyboardInterrupt
        return made(scale, part, out, progress)

    monkeypatch.setattr(
        "roundscope.experiments.papers.microscaling_2506_20752.measurements.ran", dying
    )
    part, code = called(tmp_path, capsys)
    assert code == INTERRUPTED and part["run"]["there"] == 9
    assert words(part, "1") and not words(part, "epsilon") and "No interventions" in part["answer"]
    assert "Not complete" in (tmp_path / "report.html").read_text()
    drawn = ReproduceOptions(paper="su", out=tmp_path, quick=True, json=True, draw=True)
    assert reproduce.run(drawn) == 0 and len(calls) == 10  # --draw trains nothing
    again = json.loads(capsys.readouterr().out)
    assert again["run"] == part["run"] | {
        n: again["run"][n] for n in ("command", "interrupted", "ran", "seconds")
    }
    assert (
        again["run"]["ran"] == 0
        and again["run"]["command"] == "roundscope reproduce su --quick --draw"
    )
    assert (
        again["verdicts"] == part["verdicts"]
        and "Not complete" in (tmp_path / "report.html").read_text()
    )
    whole, code = called(tmp_path, capsys)
    assert (
        code == 0
        and whole["run"]["ran"] == whole["run"]["launches"] - 9
        and words(whole, "epsilon")
    )
    assert "Not complete" not in (tmp_path / "report.html").read_text()


def test_a_file_in_place_of_the_folder(tmp_path, capsys):
    """A traceback, or hours of training before the folder is looked at."""
    (tmp_path / "f").write_text("")
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "su", "--quick", "--out", str(tmp_path / "f")])
    assert end.value.code == 2 and "--out" in capsys.readouterr().err
