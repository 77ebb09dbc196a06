"""The command check-cast: exit codes, the printed sentence, and the files."""

import importlib
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from roundscope.emu.testing.casts import block_probes
from roundscope.experiments.cli.main import main
from roundscope.tools.report.deliver import write_junit
from roundscope.tools.report.model import Case

SOURCE = """
import ml_dtypes
import numpy as np

from roundscope import emu

def good(x):
    return x.astype(ml_dtypes.float8_e4m3fn)

def floor(x):
    return emu.round_blocks(x, "mxfp8_e4m3")

def broken(x):
    raise RuntimeError("no device")

def turned(x):
    h = np.array([[1, 1], [1, -1]], np.float32) * np.array([[1], [-1]], np.float32)
    return emu.round_blocks((x.reshape(-1, 2) @ h).reshape(x.shape), "nvfp4", tensor_scale=0.5)
"""


OF_JAX = """
import jax.numpy as jnp

def cast(x):
    return x.at[...].get().astype(jnp.bfloat16)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "users_casts.py").write_text(SOURCE)
    (tmp_path / "users_jax.py").write_text(OF_JAX)
    importlib.invalidate_caches()
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("users_casts", "users_jax"):
        sys.modules.pop(name, None)


def exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["check-cast", *words])
    return int(stopped.value.code or 0)


def test_a_good_cast_passes(capsys):
    """A cast that does what is asked, reported as wrong or with an exit code other than 0."""
    assert exit_code("users_casts:good", "--format", "e4m3fn:nan") == 0
    assert capsys.readouterr().out.startswith("e4m3fn:nan as asked")


def test_a_wrong_rule_is_named_in_every_report(capsys, tmp_path):
    """A failure that the exit code, the page, the data or JUnit's file does not tell."""
    words = ("--format", "mxfp8_e4m3:rceil", "--out", "out", "--junit", "out/junit.xml")
    assert exit_code("users_casts:floor", *words) == 1
    printed = capsys.readouterr().out
    sentence = "mxfp8_e4m3 with rule floor, not rule rceil"
    assert printed.startswith(sentence)
    assert all(len(line) <= 100 for line in printed.splitlines() if not line.startswith("written"))
    data = json.loads((tmp_path / "out/check-cast.json").read_text())
    assert data["sentence"].startswith(sentence) and not data["passed"]
    assert [row["name"] for row in data["rows"] if row["status"] == "fail"] == ["scales"]
    assert data["scale_rules"][0]["name"] == "rule floor"
    page = (tmp_path / "out/report.html").read_text()
    assert sentence in page
    worst = page.partition(": the worst</h3>")[2].partition("</table>")[0]
    assert worst.count("<td>1<td>") == 1 and " below'>e8m0fnu 0" in worst
    suite = ElementTree.parse(tmp_path / "out/junit.xml").getroot()[0]
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["scales"] and suite.get("failures") == "1"
    assert suite.get("tests") == str(len(data["rows"]))


def test_json_is_the_document(capsys):
    """Words around the JSON, or an answer that it lacks."""
    assert exit_code("users_casts:good", "--format", "e4m3fn", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["behaves_as"] == "e4m3fn:ties-to-even:nan" and data["library"] == "numpy"
    overflow = next(row for row in data["rows"] if row["name"] == "overflow")
    assert overflow["examples"][0]["expected_hex"].lstrip("-") == "0x1.cp+8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("users_casts:none", "--format", "bf16"), "unknown function 'none'"),
        (("users_nothing:none", "--format", "bf16"), "No module named"),
        (("users_casts:good", "--format", "bf61"), "did you mean 'bf16'"),
        (("users_casts:good", "--format", "int9[token]"), "did you mean 'int8[token]'? write"),
        (("users_casts:good", "--format", "int8[toke]"), "did you mean 'int8[token]'? write"),
        (("users_casts:good", "--format", "fp8[token]"), "did you mean 'e4m3fn' or 'e5m2'?"),
        (("users_casts:good", "--format", "int8[token]:rne"), "did you mean 'ties-to-even'?"),
        (("users_casts:good", "--format", "e4m3fn[row]*e8m0fnu:rceil"), "[token] or [channel]"),
        (("users_casts:good", "--format", "bf16", "--library", "cupy"), "--library 'cupy'"),
        (("users_casts:broken", "--format", "bf16"), "RuntimeError"),
        (("users_casts:good", "--format", "fp64"), "fewer significand bits"),
    ],
)
def test_bad_usage_is_one_line(words, message, capsys):
    """A traceback, or an exit code that looks like a failed check."""
    assert exit_code(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_function_of_another_library(capsys):
    """A function of JAX arrays that is given NumPy arrays."""
    assert exit_code("users_jax:cast", "--format", "bf16", "--json") in (0, 1)
    data = json.loads(capsys.readouterr().out)
    assert data["library"] == "jax" and data["rows"][1]["status"] == "pass"


def test_junit(tmp_path):
    """Counts that are wrong, and characters that XML does not have."""
    cases = [
        Case(name="a", seconds=0.5),
        Case(name="b", failure="first\x00 line\nsecond <line>"),
        Case(name="c", skipped="no device"),
    ]
    write_junit(tmp_path / "new/junit.xml", "suite", cases)
    suite = ElementTree.parse(tmp_path / "new/junit.xml").getroot()[0]
    counts = {k: suite.get(k) for k in ("tests", "failures", "skipped", "errors", "time")}
    assert counts == {"tests": "3", "failures": "1", "skipped": "1", "errors": "0", "time": "0.500"}
    failure = suite[1].find("failure")
    assert failure is not None and failure.get("message") == "first? line"
    assert failure.text == "first? line\nsecond <line>"
    skipped = suite[2].find("skipped")
    assert skipped is not None and skipped.get("message") == "no device"


def test_a_transform_and_a_given_scale_are_told(capsys, monkeypatch):
    """Options of the command that do not reach the judgment, or a next step without them."""
    monkeypatch.setattr(block_probes, "BUDGET", 1 << 13)
    words = ("--format", "nvfp4", "--tensor-scale", "0.5", "--hadamard", "2:unnormalized")
    assert exit_code("users_casts:turned", *words, "--signs=+-", "--out", "found") == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Hadamard 2 with signs, unnormalized, then nvfp4 under 0.5 with rule near"
    )
    page = re.sub("</?span>", "", Path("found/report.html").read_text())
    assert "--tensor-scale 0.5 --hadamard 2:unnormalized --signs=+-" in page


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--hadamard", "3"), "a power of two"),
        (("--hadamard", "16", "--signs", "abc"), "--signs 'abc': write + and -"),
        (("--signs=+-",), "give hadamard"),
        (("--tensor-scale", "x"), "--tensor-scale 'x': give a number"),
    ],
)
def test_other_transforms_are_refused_in_one_line(words, found, capsys):
    """A transform in words that nobody reads."""
    assert exit_code("users_casts:floor", "--format", "mxfp8_e4m3", *words) == 2
    assert found in capsys.readouterr().err
