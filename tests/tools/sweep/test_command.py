"""The verbs sweep and export: what is printed, exit codes, dry runs.

The loop is replaced by one that saves what a test says.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roundscope.attention.testing.families import FAMILIES
from roundscope.tools.errors import ExecutorError, UsageError
from roundscope.tools.sweep.conditions.cell import DEFAULTS, OPTIONAL, Result
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.sweep.measuring import measure as measuring
from roundscope.tools.sweep.running import dry_run
from roundscope.tools.sweep.running import run as loop
from roundscope.tools.sweep.running.dry_run import COMPILING, START
from roundscope.tools.sweep.running.run import Outcome
from roundscope.tools.sweep.storage.store import read_cells

TINY = ("N=1", "T=8", "H=4")


@pytest.fixture
def run(roundscope, monkeypatch, tmp_path):
    """Runs the command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    return roundscope


@pytest.fixture
def fake(monkeypatch):
    """Replaces the loop: cells whose parameters are in `failing` fail, all others give
    `metrics`.
    """

    def install(failing=(), interrupted=False, metrics=None):
        def run(cells, store, *, jobs, executor, retry_failed, progress):
            held = store.statuses()
            new = [
                c for c in cells if c.key not in held or (retry_failed and held[c.key] == "failed")
            ]
            bad = [c for c in new if c["seed"] in failing]

            def error(c):
                return f"seed {c['seed']} is unlucky" if c in bad else None

            store.save([(c, Result(key=c.key, metrics=metrics or {}, error=error(c))) for c in new])
            counts = {
                "done": len(new) - len(bad),
                "failed": len(bad),
                "skipped": len(cells) - len(new),
            }
            return Outcome(
                seconds=2.0,
                interrupted=interrupted,
                parts={"golden": 1.0, "attention": 3.0},
                **counts,
            )

        monkeypatch.setattr(loop, "run", run)

    return install


@pytest.fixture
def clock(monkeypatch):
    """Replaces measuring: a cell takes 1 ms and 1 us per operation, the first half of it for its
    inputs; seen cells are kept.
    """
    seen = []

    def measure(cells):
        seen.extend(cells)
        each = [1e-3 + 1e-6 * dry_run.work(c) for c in cells]
        return [
            Result(key=c.key, seconds=s, parts={"golden": s / 2, "attention": s / 2})
            for c, s in zip(cells, each, strict=True)
        ]

    monkeypatch.setattr(measuring, "measure", measure)
    return seen


def test_a_sweep_and_the_same_again(run, fake):
    """Catches counts that are mixed up, and a second run that says it did something."""
    fake()
    code, out, err = run("sweep", *TINY, "seed=0:4")
    assert (code, err) == (0, "")
    assert "4 cells done, 0 failed, 0 skipped (in the file already), 2 cells per second" in out
    assert (
        "time: attention 75 %, binary64 reference 25 %" in out
        and "roundscope report sweep.sqlite" in out
    )
    assert "0 cells done, 0 failed, 4 skipped" in run("sweep", *TINY, "seed=0:4")[1]
    out = run("sweep", *TINY, "seed=0:4", "--fresh")[1]
    assert "4 cells done" in out and "--fresh threw away 4 cells" in out
    assert "1 cell done" in run("sweep", *TINY, "seed=4")[1]


def test_failures_exit_1_and_say_how_to_go_on(run, fake):
    """Catches a failure that is hidden, the wrong one shown first, and --retry-failed that is not
    passed on.
    """
    fake(failing={1, 2})
    code, out, _ = run("sweep", *TINY, "seed=0:4")
    assert code == 1 and "2 cells done, 2 failed" in out
    assert "first failure: seed 1 is unlucky" in out and "--retry-failed" in out
    fake()
    code, out, _ = run("sweep", *TINY, "seed=0:4", "--retry-failed")
    assert code == 0 and "2 cells done, 0 failed, 2 skipped" in out and "first failure" not in out


def test_an_interrupted_sweep_exits_130(run, fake, monkeypatch):
    """Catches 0 for a sweep that is not complete, and a traceback when Ctrl-C comes outside of the
    loop.
    """
    fake(interrupted=signal.SIGINT)
    code, out, _ = run("sweep", *TINY, "seed=0:4")
    assert code == 130 and "the same command goes on" in out

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "run", stop)
    assert run("sweep", *TINY)[0] == 130


def test_not_finite_cells_are_counted(run, fake):
    """Catches deviations over the finite entries only, shown as if they were over all."""
    fake(metrics={"not_finite": 3.0})
    told = run("sweep", *TINY, "seed=0,1")[1]
    assert told.startswith("2 of 2 cells have NaN or infinite results, and their errors are infin")
    fake(metrics={"not_finite": 0.0})
    assert "NaN" not in run("sweep", *TINY, "seed=0,1", "--fresh")[1]


def test_json(run, fake):
    """Catches text between the JSON, and shares that do not add up."""
    fake(failing={0})
    code, out, _ = run("sweep", *TINY, "seed=0:3", "--out", "a b.sqlite", "--json")
    data = json.loads(out)
    assert code == 1 and data["parts"] == {"golden": 0.25, "attention": 0.75}
    assert (data["cells"], data["done"], data["failed"], data["first_error"]) == (
        3,
        2,
        1,
        "seed 0 is unlucky",
    )


def test_workers_that_cannot_be_reached_exit_1(run, monkeypatch):
    """Catches a fault outside of the user's words that exits as bad usage."""

    def fail(*_, **__):
        raise ExecutorError("no scheduler")

    monkeypatch.setattr(loop, "run", fail)
    assert (
        run("sweep", *TINY) == (1, "", "roundscope: no scheduler\n")
        and list(Path().iterdir()) == []
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "AXES is missing"),
        (("presett=qiu-yao",), "did you mean 'preset'"),
        (("T=8", "--jobs", "0"), "--jobs 0: give 1 or more"),
        (("T=8", "--zip", "T"), "--zip 'T': name two axes"),
        (("only=PV", "preset=qiu-yao,fa2-bf16"), "only 'PV': fa2-bf16; only=PV accumulates P V"),
        (("T=8", "--out", "none/such.sqlite"), "none/such.sqlite"),
        (
            ("T=8", "--out", "a.csv"),
            "end it in .sqlite, and make tables of it with roundscope export",
        ),
        (("T=8", "--executor", "nothing"), "--executor 'nothing': use dask:"),
    ],
)
def test_bad_usage_exits_2_and_writes_nothing(run, args, said):
    """Catches usage that is checked only after the file is made, and tracebacks."""
    code, out, err = run("sweep", *args)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_dry_run_computes_nothing_and_counts(run, fake, clock):
    """Catches equal points counted twice, cells of the file forgotten, parameters that do not vary,
    and a file that is made.
    """
    code, out, _ = run(
        "sweep", *TINY, "seed=0,1,1", "preset=qiu-yao,fp32", "--dry-run", "--jobs", "1"
    )
    assert code == 0 and list(Path().iterdir()) == []
    assert "4 cells (6 points; equal ones are one cell), 4 to compute" in out
    assert [line.split() for line in out.splitlines()[1:6]] == [
        ["preset", "seed"],
        ["qiu-yao", "0"],
        ["fp32", "0"],
        ["qiu-yao", "1"],
        ["fp32", "1"],
    ]
    fake(failing={1})
    run("sweep", *TINY, "seed=0,1")
    out = run("sweep", *TINY, "seed=0:3", "--dry-run")[1]
    assert (
        "3 cells, 1 to compute" in out
        and "sweep.sqlite holds 2 of them: 1 ok, 1 failed (--retry-failed" in out
    )
    assert (
        "3 cells, 2 to compute" in run("sweep", *TINY, "seed=0:3", "--dry-run", "--retry-failed")[1]
    )
    assert "--fresh starts it anew" in run("sweep", *TINY, "seed=0:3", "--dry-run", "--fresh")[1]
    assert "nothing to compute" in run("sweep", *TINY, "seed=0", "--dry-run")[1]


def test_a_dry_run_s_estimate(run, clock):
    """Catches an estimate not scaled by operations, a backward taken as cheap, inputs counted for
    each of the cells that share them, and workers forgotten.

    By hand: N T S H is 8 * 8 * 4 and 32 * 32 * 4; each input serves two presets.
    """
    args = (
        "sweep",
        "N=1",
        "H=4",
        "T=8,32",
        "seed=0:5",
        "preset=qiu-yao,fp32",
        "--dry-run",
        "--json",
    )
    small, large = 1e-3 + 1e-6 * 256, 1e-3 + 1e-6 * 4096
    data = json.loads(run(*args, "--jobs", "1")[1])
    assert data["seconds"] == pytest.approx(START + 10 * 0.75 * (small + large))
    assert (
        len({c["seed"] for c in clock}) == len(clock) == 4
    )  # warm and timed, each with inputs that nothing kept
    assert json.loads(run(*args, "--jobs", "4")[1])["seconds"] == pytest.approx(
        START + (data["seconds"] - START) / 4
    )
    backward = json.loads(
        run("sweep", *TINY, "seed=0,1", "--backward", "--dry-run", "--json", "--jobs", "1")[1]
    )
    assert backward["seconds"] == pytest.approx(START + 2 * (1e-3 + 3.5e-6 * 256))


def test_a_dry_run_never_tries_a_huge_cell(run, clock):
    """Catches a dry run that takes as long as the sweep."""
    data = json.loads(
        run("sweep", "N=1", "H=4", "T=8,65536", "--dry-run", "--json", "--jobs", "1")[1]
    )
    assert {c["T"] for c in clock} == {8, 256} and data["seconds"] == pytest.approx(
        START + 2e-3 + 1e-6 * (4 * 64 + 4 * 65536**2)
    )
    out = run(
        "sweep",
        "N=16",
        "T=65536",
        "injection=O:ulps=1:rows=60000:heads=9",
        "--dry-run",
        "--jobs",
        "1",
    )[1]
    assert {(c["N"], c["injection"]) for c in clock if c["N"] != 1} == {
        (4, "none")
    } and "about 356 GB per cell" in out


def test_a_dry_run_of_xla_compiles_nothing(run, clock):
    """Catches an estimate that takes longer than a small sweep, and compiling forgotten."""
    data = json.loads(
        run("sweep", *TINY, "engine=xla", "T=8,16", "seed=0:3", "--dry-run", "--json")[1]
    )
    assert {c["engine"] for c in clock} == {"numpy"} and data["seconds"] == pytest.approx(
        START + 2 * COMPILING, abs=0.1
    )


def test_seeds_of_a_file_are_one_cell(run, fake):
    """Catches seeds that change nothing reported as a spread of 0, and those left out where they do
    change something.
    """
    fake()
    out = run("sweep", "T=8", "N=1", "input=sample,gaussian", "H=32", "seed=0:4")[1]
    assert (
        "5 cells done" in out
        and "3 cells are left out: a file's tensors are the same for every seed" in out
    )
    data = json.loads(
        run(
            "sweep",
            "T=8",
            "N=1",
            "input=sample",
            "injection=none,O:noise=1",
            "seed=0:4",
            "--dry-run",
            "--json",
        )[1]
    )
    assert (data["cells"], data["same"]) == (5, 3)
    assert (
        json.loads(
            run(
                "sweep",
                "T=8",
                "N=1",
                "input=sample",
                "mode.O=stochastic",
                "seed=0:4",
                "--dry-run",
                "--json",
            )[1]
        )["same"]
        == 0
    )


def test_an_axis_that_changed_nothing_is_named(run):
    """Catches an axis without effect that nobody notices, and one with an effect that is called
    idle.
    """
    code, out, _ = run(
        "sweep",
        *TINY,
        "preset=fp32",
        "format=bf16,e4m3fn",
        "key_order=ascending,descending",
        "--jobs",
        "1",
    )
    assert (
        code == 0
        and "key_order changed nothing: all metrics are equal" in out
        and "format changed nothing" not in out
    )
    code, out, _ = run("report", "sweep.sqlite")
    assert (
        "written: sweep.html" in out
        and "key_order changed nothing" in Path("sweep.html").read_text()
    )


def test_axes_prints_every_name(run):
    """Catches an axis, an input or a metric without a line, and an example that no sweep takes."""
    code, out, _ = run("sweep", "--axes")
    data = json.loads(run("sweep", "--axes", "--json")[1])
    assert (
        code == 0
        and set(data["axes"]) == {*DEFAULTS, *OPTIONAL, "tile"}
        and set(FAMILIES) < set(data["inputs"])
    )
    assert all(
        name in out for part in ("axes", "inputs", "metrics", "site_metrics") for name in data[part]
    )
    Path("axes.toml").write_text(data["example"])
    assert "160 cells" in run("sweep", "axes.toml", "--dry-run")[1]


def has_cells(path):
    """Whether a sweep has kept something; its file is there a moment before its tables are."""
    try:
        return bool(read_cells(path))
    except UsageError:
        return False


@pytest.mark.thorough
def test_sigterm_ends_a_sweep_as_ctrl_c_does(tmp_path):
    """Catches results that are lost, workers that live on, and semaphores that leak, where a batch
    system ends a sweep.
    """
    command = [
        sys.executable,
        "-m",
        "roundscope",
        "sweep",
        "T=128",
        "N=1",
        "seed=0:2000",
        "--jobs",
        "2",
        "--out",
        str(tmp_path / "x.sqlite"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for = time.monotonic() + 60
    while time.monotonic() < wait_for and not has_cells(tmp_path / "x.sqlite"):
        time.sleep(0.2)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "") and "the same command goes on" in out


def test_an_estimate_that_fails_says_why(run, monkeypatch):
    """Catches a dry run that ends with the error of one cell."""
    monkeypatch.setattr(
        measuring, "measure", lambda cells: [Result(key=c.key, error="out of luck") for c in cells]
    )
    code, out, _ = run("sweep", *TINY, "--dry-run")
    assert code == 0 and "no estimate, the cell that was tried fails: out of luck" in out


def test_what_varies():
    """Catches S in the table where it only follows T, and a table without columns."""
    short, long = cell_of({"T": 8}), cell_of({"T": 16})
    assert dry_run.varying([short, long]) == ["T"]
    assert dry_run.varying([short, cell_of({"T": 16, "S": 8})]) == ["T"]
    assert dry_run.varying([short, cell_of({"T": 16, "S": 9})]) == ["T", "S"]
    assert dry_run.varying([short]) == ["T", "S"] and dry_run.varying([cell_of({})]) == ["preset"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(7.06, "7.1 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h"), (1e6, "11.6 days")],
)
def test_durations(seconds, said):
    """Catches a unit that is off."""
    assert dry_run.duration(seconds) == said


def test_for_real(run):
    """Catches parts that do not fit together: words, plan, loop, file and export, on one tiny cell
    of each of two presets.
    """
    code, out, err = run(
        "sweep", *TINY, "preset=exact,all:bf16", "--jobs", "1", "--out", "x.sqlite"
    )
    assert (code, err) == (0, "") and "2 cells done, 0 failed" in out
    assert "written: x.csv (2 rows)" in run("export", "x.sqlite", "x.csv")[1]
    head, *rows = [line.split(",") for line in Path("x.csv").read_text().splitlines()]
    found = {row[head.index("preset")]: float(row[head.index("max_abs")]) for row in rows}
    assert found["exact"] < 1e-12 < found["all:bf16"]
    assert run("export", "x.sqlite", "x.txt")[0] == 2


def test_events_that_round_as_words_say_are_stored_and_drawn(run):
    """Catches columns that only a cell with delta_from has, and formats with overflow words that a
    page cannot order.
    """
    words = [
        "T=16",
        "N=1",
        "H=8",
        "tile=8",
        "--backward",
        "O=bf16:stochastic,fp16:saturate",
        "--jobs",
        "1",
    ]
    assert (
        run("sweep", "T=16", "N=1", "H=8", "tile=8", "O=bf16", "--jobs", "1", "--out", "s.sqlite")[
            0
        ]
        == 0
    )
    assert run("sweep", *words, "delta_from=OUT,P_DP", "PV.sum=exact", "--out", "s.sqlite")[0] == 0
    cells = [{**cell} for cell in read_cells(Path("s.sqlite"))]
    assert {(c["format.O"], c["mode.O"], c["delta_from"]) for c in cells} == {
        ("bf16", None, None),
        ("bf16", "stochastic", "OUT"),
        ("bf16", "stochastic", "P_DP"),
        ("fp16:saturate", None, "OUT"),
        ("fp16:saturate", None, "P_DP"),
    }
    assert (
        run("report", "s.sqlite", "--out", "s.html")[0] == 0
        and "fp16:saturate" in Path("s.html").read_text()
    )
    assert (
        run("export", "s.sqlite", "s.csv")[0] == 0
        and "delta_from" in Path("s.csv").read_text().splitlines()[0]
    )
