"""The command line: exit codes, one-line errors, JSON, and what --help may import."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.main import get_command

from roundscope.emu.explanation.drawing import lines
from roundscope.emu.explanation.one_rounding import explain
from roundscope.emu.roundings.modes import RoundingMode, rounding
from roundscope.experiments.cli.main import SECTIONS, app
from roundscope.tools.look import doctor
from roundscope.tools.look import sites as sites_view
from roundscope.tools.report import terminal as output
from tests.checks import killed

ROOT = Path(__file__).parents[3]
HEAVY = ("jax", "numba", "numpy", "matplotlib", "rich", "ml_dtypes")


@pytest.fixture
def run(roundscope):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    return roundscope


def python(*args):
    return subprocess.run(
        [sys.executable, "-W", "error", *args], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom roundscope.experiments.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: assert not e.code\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "[]")


def test_a_process_does_not_look_for_garbage_at_its_end():
    code = (
        "import atexit, gc, sys\nfrom roundscope.__main__ import process\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"
        "sys.argv[1:] = ['--version']\nprocess()"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "True")


@pytest.mark.parametrize(
    "module",
    ["importlib", "typing", "enum", "atexit", "typer", "roundscope.tools.cli.verbs"],
)
def test_ctrl_c_during_the_imports_prints_nothing(module, tmp_path):
    """A traceback of an import, since somebody thought better of it at once."""
    code = (
        "import os, runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"for name in ({module!r}, 'signal'): sys.modules.pop(name, None)\n"
        "runpy.run_module('roundscope', run_name='__main__')"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_every_verb_that_writes_is_killed_by_the_check_of_kills():
    """A new verb that nobody has killed."""
    verbs = {verb.words[0] for verb in killed.VERBS.values()} - {"-c"} | {*killed.SILENT}
    assert verbs == {*get_command(app).commands}


def test_the_help_lists_every_verb_in_its_section():
    """A verb without a section, or a flat list in which nobody finds one."""
    out = python("-m", "roundscope", "--help").stdout
    parts = re.split(r"\n(?=\S[^\n]*:\n)", out)[1:]
    found = {p.partition(":")[0]: re.findall(r"^  ([a-z-]+)  ", p, re.M) for p in parts}
    found.pop("Options")
    assert found == {title: [*verbs] for title, verbs in SECTIONS.items()}
    assert {*get_command(app).commands} == {name for own in found.values() for name in own}


def test_help_is_quick():
    """Below half a second; the fastest of three, since the machine is shared."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert python("-m", "roundscope", "--help").returncode == 0
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5


@pytest.mark.parametrize(
    "verb", ["formats", "explain", "plans", "sites", "trace", "doctor", "bench"]
)
def test_every_verb_has_help_and_json(run, verb):
    code, out, err = run(verb, "--help")
    assert code == 0 and "--json" in out and err == ""


@pytest.mark.parametrize(
    "args",
    [
        ("--", "-4.703990459442139", "--to", "bf16"),
        ("-4.703990459442139", "--to", "bf16"),
        ("--to", "bf16", "-4.703990459442139"),
        ("--to", "bf16", "--", "-4.703990459442139"),
        ("--to=bf16", "-4.703990459442139"),
        ("--plus", "-2.296875", "--to", "bf16", "-2.407115459442139"),
        ("--plus=-2.296875", "--to", "bf16", "--", "-2.407115459442139"),
    ],
)
def test_negative_numbers_anywhere(run, args):
    code, out, err = run("explain", *args, "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["result"], data["error"], data["code"]) == (
        -4.71875,
        -0.014759540557861328,
        "0xc097",
    )


def test_explain_draws_the_paper_s_bits(run):
    code, out, _ = run("explain", "-2.407115459442139", "--plus", "-2.296875", "--to", "bf16")
    assert code == 0
    for piece in (
        "1.0011010 |",
        "10.0101101 |",
        "1.0010110   1",
        "carry +1",
        "1.0010111",
        "-4.71875",
        "-0.014759540557861328",
    ):
        assert piece in out
    assert "1 | 10000001 | 0010111" in out and "carry out into binade 2^2" in out


@pytest.mark.parametrize("mode", RoundingMode)
@pytest.mark.parametrize("name", ["bf16", "fp32", "fp64", "e4m3fn", "e8m0fnu", "e2m1fn"])
@pytest.mark.parametrize(
    "value", ["0.1", "-4.7", "1e-300", "0x1.fffffffffffffp9", "inf", "nan", "0", "448.5"]
)
def test_drawings_fit_100_columns(capsys, value, name, mode):
    for line in lines(explain(value, rounding(name, mode))):
        output.console().print(line)
    assert all(len(line) <= output.WIDTH for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("explode",), "No such command"),
        (("explain", "--to", "bf16"), "Missing argument"),
        (("compare", "a", "b", "--out", "demo.html"), "'demo.html': is a folder, with report.html"),
        (("compare", "a.safetensors"), "Missing argument 'B': the second run, on the same tokens"),
        (("explain", "1"), "--to"),
        (("explain", "1", "--to", "bf61"), "did you mean 'bf16'"),
        (("explain", "1", "--to", "bf16", "--mode", "toward-zer"), "did you mean 'toward-zero'"),
        (("explain", "four", "--to", "bf16"), "VALUE 'four': not a number"),
        (("explain", "-four", "--to", "bf16"), "VALUE '-four': not a number"),
        (("explain", "1", "--to", "e4m3fn", "--overflow", "inf"), "e4m3fn has no infinity"),
        (("explain", "1", "--to", "bf16", "--seed", "-1"), "seed=-1"),
        (("explain", "1", "--to", "bf16", "--seed", "x"), "--seed"),
        (("explain", "1", "--to", "bf16", "--plus", "-1"), "--plus -1"),
        (("explain", "1", "2", "--to", "bf16"), "unexpected extra argument"),
        (("explain", "1", "--two", "bf16"), "--two"),
        (("formats", "bf61"), "unknown format 'bf61'"),
        (("formats", "e1m9"), "exponent bits run from 2 to 11"),
    ],
)
def test_bad_usage_exits_2_without_a_traceback(run, args, words):
    code, out, err = run(*args)
    assert (code, out) == (2, "") and words in err and "Traceback" not in err


def test_our_own_errors_are_one_line(run):
    code, _, err = run("explain", "four", "--to", "bf16")
    assert code == 2 and err.count("\n") == 1 and err.startswith("roundscope: VALUE 'four'")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("a\n  b"), 2), (OSError("disk"), 2), (ArithmeticError("rule"), 1)],
    ids=lambda v: str(v),
)
def test_errors_become_exit_codes(run, monkeypatch, error, code):
    def fail(**_):
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert run("doctor") == (code, "", f"roundscope: {' '.join(str(error).split())}\n")


@pytest.mark.parametrize("words", [("bench", "round"), ("diagnose", "--sample"), ("train",)])
def test_a_folder_that_cannot_be_made_is_named_without_a_number(run, tmp_path, words):
    """[Errno 20], after minutes of work or at once."""
    (tmp_path / "file").write_text("")
    code, out, err = run(*words, "--out", tmp_path / "file" / "x")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "[Errno" not in err
    assert f"'{tmp_path / 'file'}" in err and "not a directory; choose another" in err


def test_formats(run):
    rows = {r["name"]: r for r in json.loads(run("formats", "--json")[1])}
    assert rows["bf16"] == {
        "name": "bf16",
        "bits": 16,
        "precision": 8,
        "emin": -126,
        "max": (2 - 2**-7) * 2.0**127,
        "min_normal": 2.0**-126,
        "min_subnormal": 2.0**-133,
        "epsilon": 2.0**-7,
        "inf": True,
        "nan": True,
        "tie_window": pytest.approx(1.955e-3, rel=1e-3),
    }
    assert rows["e4m3fn"]["max"] == 448 and rows["e4m3fn"]["tie_window"] == pytest.approx(
        3.17e-2, rel=2e-3
    )
    assert (
        rows["e5m2"]["tie_window"] == pytest.approx(6.45e-2, rel=2e-3)
        and rows["e8m0fnu"]["min_subnormal"] is None
    )
    table = run("formats")[1]
    assert all(name in table for name in rows) and max(map(len, table.splitlines())) <= output.WIDTH


def test_formats_of_any_layout(run):
    (row,) = json.loads(run("formats", "e5m10", "--json")[1])
    assert row["max"] == 65504 and row["bits"] == 16


def test_sites(run):
    rows = json.loads(run("sites", "--json")[1])
    assert rows == sites_view.rows() and {"S", "P", "PV", "OUT", "DELTA", "DS"} <= {
        r["name"] for r in rows
    }
    table = run("sites")[1]
    assert all(r["formula"] in table for r in rows)


def test_sites_of_a_plan(run):
    """An event that the plan has not; a rounding or a sum of another plan; a name that is not
    known.
    """
    code, out, _ = run("sites", "--plan", "cudnn", "--json")
    rows = {r["name"]: r for r in json.loads(out)}
    assert code == 0 and {"LANES", "LN", "P"} <= set(rows) and not {"TANH", "CM", "SW"} & set(rows)
    assert (
        rows["P"]["rounding"] == "bf16"
        and rows["S"]["sum"] == "hopper:bf16"
        and rows["P"]["sum"] == ""
    )
    code, out, _ = run("sites", "--plan", "fa2-bf16")
    assert code == 0 and "rounding" in out and "LANES" not in out
    code, out, _ = run("sites", "--plan", "cudnn; P=fp16", "--json")
    assert {r["name"]: r for r in json.loads(out)}["P"]["rounding"] == "fp16"
    code, _, err = run("sites", "--plan", "cudn")
    assert code == 2 and "--plan 'cudn'" in err and "cudnn" in err and err.count("\n") == 1


def test_environment_does_not_matter(monkeypatch, run):
    plain = run("explain", "0.1", "--to", "bf16")
    for name, value in {
        "COLUMNS": "20",
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "JUPYTER_COLUMNS": "9",
    }.items():
        monkeypatch.setenv(name, value)
    assert run("explain", "0.1", "--to", "bf16") == plain


def test_json_writes_what_json_has_not(run):
    data = json.loads(run("explain", "-inf", "--to", "bf16", "--json")[1])
    assert (data["value"], data["result"], data["code"]) == ("-inf", "-inf", "0xff80")


def test_doctor(run):
    code, out, err = run("doctor", "--json")
    report = json.loads(out)
    assert code == 0 and report["passed"] and "probing" in err
    assert [t["name"] for t in report["traps"] if t["immune"] is not True] == []
    assert all(
        c["numbers"] > 90_000 and c["numba_wrong"] == c["xla_wrong"] == 0
        for c in report["self_check"]
    )
    assert {"python", "jax", "numba", "ml_dtypes"} <= set(report["versions"]) and len(
        report["devices"]
    ) >= 2


def test_doctor_fails_if_the_rule_is_wrong(run, monkeypatch):
    from roundscope.emu.backends.numba import rounding as kernels
    from roundscope.tools.look import probes, self_check

    monkeypatch.setattr(probes, "PROBES", ())
    monkeypatch.setattr(self_check, "JUDGES", {"bf16": self_check.JUDGES["bf16"]})
    monkeypatch.setattr(kernels, "round_array", lambda x, r: x)
    code, out, _ = run("doctor")
    assert code == 1 and "SELF-CHECK FAILED" in out


def test_a_probe_that_cannot_run_is_reported(run, monkeypatch):
    from roundscope.tools.look import probes, self_check

    def odd_one():
        raise RuntimeError("no such device")

    monkeypatch.setattr(probes, "PROBES", (odd_one,))
    monkeypatch.setattr(self_check, "JUDGES", {})
    (trap,) = json.loads(run("doctor", "--json")[1])["traps"]
    assert trap["name"] == "odd one" and "no such device" in trap["seen"] and trap["immune"] is None
