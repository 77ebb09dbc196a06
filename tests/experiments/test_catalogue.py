"""The catalogue: every study once, as the command line knows it; `roundscope studies`."""

import json

import pytest
from rich.console import Console

from roundscope.experiments import reproduce
from roundscope.experiments.catalogue import (
    ALARM,
    DOSES,
    FP4_RULES,
    GOLDEN,
    LOWBIT,
    MXFP8,
    PAPERS,
    PROXIES,
    QIU_YAO,
    STUDIES,
    SU,
    TRUNCATION,
    named,
    names,
)
from roundscope.experiments.framework.study import Study
from roundscope.experiments.papers.failure_2510_04212 import trials as failure
from roundscope.experiments.papers.microscaling_2506_20752 import measurements as microscaling
from roundscope.experiments.papers.mxfp8_2506_08027 import measurements as mxfp8
from roundscope.experiments.papers.stability_2405_02803 import measuring as stability
from roundscope.tools.report import terminal as view


def test_every_study_is_there_once():
    """Two of one name, or one that no verb runs."""
    assert (
        len({entry.name for entry in STUDIES})
        == len({entry.command for entry in STUDIES})
        == len(STUDIES)
        == 23
    )
    assert all(
        entry.command == f"reproduce {entry.name}"
        and entry.number.startswith(
            ("arXiv 2", "flash-attention #", "vllm-project/flash-attention #")
        )
        for entry in PAPERS
        # claims of our own, or of several papers
        if entry not in (ALARM, FP4_RULES, LOWBIT, TRUNCATION)
    )
    assert all(entry.command.split()[:3] == ["dose", "--study", entry.name] for entry in DOSES)
    assert all(entry.command.split()[:3] == ["proxy", "--study", entry.name] for entry in PROXIES)
    assert all(isinstance(reproduce.study_of(e.name, quick=True), Study) for e in PAPERS)
    assert named("golden") is GOLDEN and names(PROXIES) == "formats or interventions"


@pytest.mark.parametrize(
    ("entry", "module"),
    [(GOLDEN, stability), (QIU_YAO, failure), (SU, microscaling), (MXFP8, mxfp8)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_seeds_are_those_of_the_scales(entry, module):
    """Numbers of a version before."""

    def count(seeds):
        return seeds if isinstance(seeds, int) else len(seeds)

    assert entry.seeds == (count(module.QUICK.seeds), count(module.FULL.seeds))


@pytest.mark.parametrize("verb", ["reproduce", "dose", "proxy"])
def test_help_names_the_studies(roundscope, verb):
    """A study that help forgets, a name that is none."""
    text = " ".join(roundscope(verb, "--help")[1].split())
    known = {"reproduce": PAPERS, "dose": DOSES, "proxy": PROXIES}[verb]
    assert all(entry.name in text for entry in known)
    assert all(entry.number.split()[1] in text for entry in known if entry.paper)


@pytest.mark.parametrize(
    "words",
    [("reproduce", "qiu-yoa"), ("dose", "--study", "identitty"), ("proxy", "--study", "fromats")],
)
def test_a_name_that_is_none(roundscope, words, tmp_path):
    """A traceback, or no repair."""
    code, out, err = roundscope(*words, "--quick", "--out", tmp_path / "x")
    assert (code, out) == (2, "") and "did you mean" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits(roundscope, monkeypatch, width):
    """Lines that a terminal breaks, a study or a time that is not shown."""
    monkeypatch.setattr(view, "console", lambda: Console(width=width, highlight=False, _environ={}))
    code, out, err = roundscope("studies")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= width
    words = out.split()
    for entry in STUDIES:
        assert set(entry.command.split()) <= set(words)
        assert all(f"{x} s" in out for x in (entry.quick, entry.full) if x is not None)
    assert "not measured" in " ".join(words)


def test_json(roundscope):
    """A table in front of the JSON, times as text."""
    rows = {row["name"]: row for row in json.loads(roundscope("studies", "--json")[1])}
    assert rows.keys() == {entry.name for entry in STUDIES}
    golden = rows["golden"]
    assert golden["command"] == "roundscope reproduce golden" and golden["seeds"] == {
        "quick": 8,
        "full": 30,
    }
    assert (golden["quick"], golden["full"]) == (283, 467) and rows["qiu-yao"]["quick"] is None
