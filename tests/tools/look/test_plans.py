"""The command `plans`: every plan, with what was compared and where, as its source says."""

import json
import re
from pathlib import Path

import pytest

from roundscope.attention import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.operations import OPERATIONS
from roundscope.tools.look import plans
from roundscope.tools.report import terminal

GOLDEN = Path(__file__).parents[2] / "golden/operations"


def test_every_plan_is_listed_once(roundscope):
    """A preset, a twin or a plan of an operation that nobody finds."""
    code, out, _ = roundscope("plans", "--json")
    found = [(r["operation"], r["name"]) for r in json.loads(out)]
    own = [(o.name, n) for o in OPERATIONS.values() for n in o.published]
    wanted = {x for x in own if x[1] not in ("exact", "fp32")}
    wanted |= {("attention", n) for n in (*PRESETS, *TWINS)}
    assert code == 0 and len(found) == len(set(found)) and set(found) == wanted


def test_what_is_compared_says_where():
    """A plan that no hardware has seen and that claims to have; one that hides where it was."""
    for r in plans.rows():
        name = r["operation"], r["name"]
        assert r["what"] and r["compared"] == bool(r["on"]) and not (r["on"] and not r["bits"]), (
            name
        )
        if r["operation"] == "attention":
            assert r["compared"] == (r["name"] in TWINS), name
            assert not r["compared"] or all(f"one {x}" in r["source"] for x in r["on"]), name
        elif re.search("cuda|liger|hopper|inductor", r["name"]):
            assert {"H100", "H200"} & {*r["on"]}, name
    assert {
        r["name"] for r in plans.rows() if not r["compared"] and r["operation"] == "linear"
    } == {
        "mxfp8",
        "mxfp4",
        "nvfp4",
        "nvfp4-training",
    }


def test_the_machine_of_a_test_is_that_of_its_records():
    """Outputs that another GPU wrote than `plans` says."""
    told = {path.stem.upper() for path in (GOLDEN / "training").glob("*.json")}
    assert told == {*plans.RECORDED["test_gradients_on_a_gpu"]}
    tests = Path(__file__).parents[2] / "operations"
    for name, machines in plans.RECORDED.items():
        first = (tests / f"{name}.py").read_text().splitlines()[0]
        assert [x for x in ("H100", "H200") if x in first] == machines


def test_words_choose_plans(roundscope):
    """A user who looks for the plan in FP8, or for those of an operation."""
    names = {r["name"] for r in plans.chosen(["fp8"])}
    assert {"fa3-fp8", "cudnn-fp8", "mxfp8-attention", "fa3-e4m3"} <= names and "fa2" not in names
    assert {r["operation"] for r in plans.chosen(["rope_table"])} == {"rope_table"}
    assert {r["name"] for r in plans.chosen(["Tokamax"])} == {
        "tokamax-mosaic",
        "tokamax-mosaic-stale",
    }
    assert {"fa3", "cudnn-fp8"} <= {r["name"] for r in plans.chosen(["h100"])}
    code, _, err = roundscope("plans", "nonsense")
    assert code == 2 and "nonsense" in err and "rms_norm" in err and err.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("linear",)])
def test_the_table_fits(roundscope, words):
    out = roundscope("plans", *words)[1]
    assert all(r["name"] in out for r in plans.chosen(words))
    assert max(map(len, out.splitlines())) <= terminal.WIDTH
