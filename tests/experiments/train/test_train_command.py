"""`roundscope train`: the same bits after an interruption, in a branch and beside other arms; and
what it says.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from roundscope.emu.whole_files import write_whole
from roundscope.experiments.cli.main import main
from roundscope.experiments.diagnose.gpt.case import case
from roundscope.experiments.train import checkpoint, origins, record
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.run import command as live
from roundscope.experiments.train.run.training import View
from roundscope.experiments.train.settings import plain, settings
from roundscope.tools.errors import UsageError
from tests.tools.databases import database

SIZES = {
    "layers": 1,
    "heads": 2,
    "width": 8,
    "context": 8,
    "vocab": 16,
    "batch": 2,
    "warmup": 2,
    "data": "repeat",
}
TINY = SIZES | {"steps": 12, "checkpoint_every": 4, "monitor_every": 3, "keep": 9}
PLAIN = TINY | {"plan": "jax"}  # compiles quickly


def words(config, **changes):
    """A config as words, what is given in place of its own."""
    return [f"{name}={value}" for name, value in (config | changes).items()]


def train(capsys, *asked):
    """(what --json says, what is on stderr)."""
    with pytest.raises(SystemExit) as end:
        main(["train", *map(str, asked), "--json"])
    out, err = capsys.readouterr()
    assert not end.value.code, err
    return json.loads(out), err


def test_a_run_without_a_finished_step_is_not_diagnosed(whole, tmp_path):
    """A run that was stopped while it compiled "never failed"."""
    folder = tmp_path / "begun"
    shutil.copytree(whole, folder)
    with sqlite3.connect(folder / record.NAME) as log:
        log.execute("DELETE FROM steps")
    with pytest.raises(UsageError, match="has no step in its log yet; go on with"):
        case(folder, SimpleNamespace(arm=None, first=None, until=None))


def refused(capsys, *asked):
    """The one line of an error."""
    with pytest.raises(SystemExit) as end:
        main(["train", *map(str, asked)])
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.count("\n") == 1, err
    return err


def weights(folder, step, arm=0):
    """All bits of an arm's state."""
    import jax

    state, _ = checkpoint.load(folder, step)
    return [np.asarray(leaf)[arm].tobytes() for leaf in jax.tree.leaves(state)]


def logged(folder, table, arm, first=0):
    return [
        {k: v for k, v in row.items() if k != "arm"}
        for row in record.rows(folder, table, arm)
        if row["step"] >= first
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with emulated attention of two arms, of which one rounds delta's O toward zero."""
    folder = tmp_path_factory.mktemp("train") / "whole"
    arms = ["--arm", "a=", "--arm", "b=site=OD -> e8m2:toward-zero; lr=1e-2"]
    with pytest.raises(SystemExit, match="0"):
        main(["train", *words(TINY), "--out", str(folder), *arms, "--json"])
    return folder


def test_arms_differ_and_are_logged(whole):
    """Arms that all run the first one's plan or rate, or monitors and checkpoints that are not
    written.
    """
    a, b = logged(whole, "steps", "a"), logged(whole, "steps", "b")
    assert (
        [row["step"] for row in a] == list(range(12))
        and a[0]["loss"] == b[0]["loss"]
        and a[5]["loss"] != b[5]["loss"]
    )
    assert a[0]["gradient_norm"] != b[0]["gradient_norm"]  # same weights and batch, another delta
    assert b[4]["lr"] == pytest.approx(10 * a[4]["lr"]) and a[2]["lr"] == pytest.approx(1e-3)
    assert checkpoint.steps(whole) == [0, 4, 8, 12]
    heads = logged(whole, "heads", "a")
    assert [(row["step"], row["head"]) for row in heads] == [
        (s, h) for s in (0, 3, 6, 9) for h in (0, 1)
    ]
    assert heads[6]["running_sum"] == pytest.approx(sum(row["delta_sum"] for row in heads[0::2]))
    sites = {row["site"]: row["mean_abs_ulps"] for row in logged(whole, "sites", "b")}
    assert sites["OUT"] > 0.0 and {row["step"] for row in logged(whole, "sites", "b")} == {0}
    [run] = record.rows(whole, "runs")
    assert (
        json.loads(run["config"])["width"] == 8
        and "sums native" in run["device"]
        and json.loads(run["versions"])["jax"]
    )


def test_a_replay_has_the_same_bits(whole, tmp_path, capsys):
    """State that a checkpoint lacks, batches or rates that depend on where a run starts.

    From a step between two checkpoints.
    """
    _, told = train(capsys, "--resume", whole, "--from", 6, "--out", tmp_path / "again")
    assert "going on from step" in told
    for number in range(2):
        assert weights(tmp_path / "again", 12, number) == weights(whole, 12, number)
    for table in ("steps", "heads"):
        dropped = {"running_sum", "running_coherence"}  # these begin anew
        own, other = (
            [{k: v for k, v in r.items() if k not in dropped} for r in logged(f, table, "b", 6)]
            for f in (tmp_path / "again", whole)
        )
        assert own == other and own


def test_branches_change_from_their_step_on(whole, tmp_path, capsys):
    """An intervention that comes late or early, or arms of a branch with other batches or another
    beginning.
    """
    at = ["--at", "9", "site=OD -> fp32"]
    train(
        capsys,
        "--resume",
        whole,
        "--from",
        8,
        "--out",
        tmp_path / "new",
        "--arm",
        "a=",
        "--arm",
        "b=-> plan=fp32",
        *at,
    )
    a = logged(tmp_path / "new", "steps", "a")
    b = logged(tmp_path / "new", "steps", "b")
    before = logged(whole, "steps", "a", 8)
    assert a[0] == before[0] and a[1] == before[1] and a[0]["step"] == 8
    old = logged(whole, "steps", "b", 8)
    assert (
        b[0]["loss"] == pytest.approx(old[0]["loss"], rel=1e-3) and b[1]["loss"] != old[1]["loss"]
    )
    [run] = record.rows(tmp_path / "new", "runs")
    assert json.loads(run["origin"]) == {"folder": str(whole), "checkpoint": 8, "step": 8}


def test_a_branch_of_a_run_on_another_machine(whole, tmp_path, capsys, monkeypatch):
    """A folder that is made before it is known that the steps before the branch cannot be done
    here.
    """
    load = checkpoint.load

    def fused(*asked):
        state, meta = load(*asked)
        return state, meta | {"config": meta["config"] | {"sums": "preset", "engine": "pallas"}}

    monkeypatch.setattr(checkpoint, "load", fused)
    said = refused(capsys, "--resume", whole, "--from", 6, "--out", tmp_path / "new", "engine=xla")
    assert "engine=pallas" in said and "give --from 4" in said and not (tmp_path / "new").exists()


def command(*asked):
    return [sys.executable, "-m", "roundscope", "train", *map(str, asked)]


def wait_for(condition, process):
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)


def test_kill_9_loses_only_steps_since_the_last_checkpoint(tmp_path, capsys):
    """A run that cannot go on, goes on with other bits, or has steps twice or not at all in its
    log.
    """
    config = PLAIN | {"decay_steps": 4000, "keep": 2}
    killed = tmp_path / "killed"
    process = subprocess.Popen(command(*words(config, steps=4000), "--out", killed))
    wait_for(lambda: max(checkpoint.steps(killed), default=0) >= 40, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    last = checkpoint.steps(killed)[-1]
    assert last < 4000
    end = last + 30
    train(capsys, "--resume", killed, f"steps={end}")
    train(capsys, *words(config, steps=end), "--out", tmp_path / "whole")
    assert weights(killed, end) == weights(tmp_path / "whole", end)
    assert logged(killed, "steps", "run") == logged(tmp_path / "whole", "steps", "run")
    assert logged(killed, "heads", "run") == logged(tmp_path / "whole", "heads", "run")
    assert [row["step"] for row in record.rows(killed, "runs")] == [0, last]


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    """A traceback, a lost hour, or an exit code that a script takes for success."""
    out = tmp_path / "run"
    asked = command(*words(PLAIN, steps=100_000, monitor_every=1000), "--out", out)
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: max(checkpoint.steps(out), default=0) >= 4, process)
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert f"roundscope train --resume {out}" in said
    assert len(record.rows(out, "steps")) == checkpoint.steps(out)[-1]


def test_the_beginning_is_kept_from_its_first_write_on(tmp_path, capsys, monkeypatch):
    """A run that was killed between the two writes, whose beginning is deleted once it goes on."""
    written = []

    def write(path, content):
        written.append((path.name, content))
        write_whole(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", write)
    train(capsys, *words(PLAIN, steps=4), "--out", tmp_path / "run")
    first = next(content for name, content in written if name == "00000000.json")
    assert json.loads(first)["pinned"] == "the beginning"


def test_sigterm_saves_and_says_by_its_code_what_ended_it(tmp_path):
    """A job that a scheduler ended and that looks as if someone had pressed Ctrl-C."""
    out = tmp_path / "run"
    asked = command(*words(PLAIN, steps=100_000, monitor_every=1000), "--out", out)
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: max(checkpoint.steps(out), default=0) >= 4, process)
    process.send_signal(signal.SIGTERM)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in err
    assert f"roundscope train --resume {out}" in said


def test_a_run_from_before_parts_says_that_it_stays_on_one_device(tmp_path, capsys, monkeypatch):
    """A run of four GPUs that goes on with one of them, without a word."""
    train(capsys, *words(PLAIN, steps=6), "--out", tmp_path / "run")
    settings_of = origins.settings_of

    def before(meta):
        found = settings_of(meta)
        return replace(found, config=replace(found.config, parts=None))

    monkeypatch.setattr(origins, "settings_of", before)
    monkeypatch.setattr(origins.devices, "parts_here", lambda *_: 4)
    _, err = train(capsys, "--resume", tmp_path / "run", "steps=8")
    assert "goes on on one device" in err and "--out NEW parts=4" in err


def test_more_steps_with_the_old_schedule_are_said(tmp_path, capsys):
    """A learning rate that is at its minimum for half of the run, which nobody was told."""
    train(capsys, *words(PLAIN, steps=6), "--out", tmp_path / "run")
    _, err = train(capsys, "--resume", tmp_path / "run", "steps=8")
    assert (
        "decay_steps stays 6" in err
        and f"--resume {tmp_path / 'run'} --from 6 --out NEW steps=8 decay_steps=8" in err
    )
    _, err = train(capsys, "--resume", tmp_path / "run", "monitor_every=2")
    assert err == "going on from step 8\n"


def test_a_step_to_go_on_from_without_a_folder_says_the_whole_command(whole, capsys):
    """An error that says what a run keeps, and not which words start a branch."""
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--resume", str(whole), "--from", "0"])
    said = capsys.readouterr().err
    assert f"--resume {whole} --from 0 --out NEW; to go on in place leave --from out" in said


def test_alarms_point_to_the_diagnosis(whole, tmp_path, capsys):
    """A run that ends with an alarm and leaves its user there; a drift that no alarm tells of, or
    that cannot be switched off.
    """
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                "train",
                "--resume",
                str(whole),
                "--out",
                str(tmp_path / "loud"),
                "--from",
                "0",
                "drift_alarm=1e-9",
            ]
        )
    said = capsys.readouterr().out
    assert (
        f"roundscope diagnose {tmp_path / 'loud'}" in said
        and f"roundscope report {tmp_path / 'loud'}" in said
    )
    assert {(a["arm"], a["step"], a["kind"]) for a in record.rows(tmp_path / "loud", "alarms")} == {
        (a, 6, "drift") for a in "ab"
    }
    assert all(row["drift"] > 0.0 for row in record.rows(tmp_path / "loud", "heads"))
    found, _ = train(
        capsys, "--resume", whole, "--out", tmp_path / "quiet", "--from", "0", "drift_alarm=none"
    )
    assert [arm["alarms"] for arm in found["arms"]] == [[], []]


def test_a_log_of_an_older_version_goes_on(tmp_path, capsys):
    """A log without the column of drift, which the first row then breaks."""

    train(capsys, *words(PLAIN, steps=4), "--out", tmp_path / "run")
    with database(tmp_path / "run" / record.NAME) as log:
        log.execute("ALTER TABLE heads DROP COLUMN drift")
    train(capsys, "--resume", tmp_path / "run", "steps=8")
    assert [row["step"] for row in record.rows(tmp_path / "run", "steps")] == list(range(8))


TWO_DEVICES = """
import sys, jax
jax.config.update("jax_num_cpu_devices", 2)
from roundscope.emu.whole_files import write_whole
from roundscope.experiments.cli.main import main
out, *asked = sys.argv[1:]
for name, more in (("batch", []), ("arms", ["--seeds", "0,3"]), ("again", ["--seeds", "0,3"])):
    try:
        main(["train", *asked, "--out", out + "/" + name, *more])
    except SystemExit as end:
        assert not end.code
"""


@pytest.mark.thorough
def test_two_devices_share_a_batch(tmp_path, capsys):
    """A batch in parts whose bits depend on devices, or are others when the run goes on; arms whose
    bits are left to chance; a log that does not say where they were.
    """
    asked = words(PLAIN, monitor_every=100)
    subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, str(tmp_path), *asked],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    train(capsys, *asked, "--out", tmp_path / "one")
    train(capsys, *asked, "parts=2", "--out", tmp_path / "parts")
    train(capsys, "--resume", tmp_path / "batch", "--from", "0", "--out", tmp_path / "later")

    def losses(name, arm):
        return [row["loss"] for row in logged(tmp_path / name, "steps", arm)]

    for name, arm, place in (
        ("batch", "run", "batch in 2 parts over 2 devices"),
        ("arms", "run/0", "arms over 2 devices"),
        ("parts", "run", "batch in 2 parts over one device"),
        ("one", "run", "; one device; "),
    ):
        [run] = record.rows(tmp_path / name, "runs")
        assert place in run["device"]
        np.testing.assert_allclose(losses(name, arm), losses("one", "run"), rtol=1e-4)
    ends = [weights(tmp_path / name, 12, 0) for name in ("batch", "parts", "later", "one")]
    assert ends[0] == ends[1] == ends[2] != ends[3]
    assert losses("arms", "run/3") != losses("arms", "run/0")
    for arm in (0, 1):
        assert weights(tmp_path / "arms", 12, arm) == weights(tmp_path / "again", 12, arm)


def test_warmup_left_out_fits_the_steps():
    """A short run that is refused, a long one whose warm-up grows, a warm-up that was asked for and
    is not kept.
    """
    lengths = {50: 5, 999: 99, 1000: 100, 20000: 100, 5: 0}
    assert {steps: settings([f"steps={steps}"]).config.warmup for steps in lengths} == lengths
    assert (
        settings(["steps=5000", "decay_steps=80"]).config.warmup == 8
        and settings([]).config.warmup == 100
    )
    assert settings(["steps=50", "warmup=20"]).config.warmup == 20
    kept = plain(settings(["steps=50"]).config)
    assert settings(["steps=3000"], before=kept).config.warmup == 5  # a run that goes on


def test_a_file_and_words_mean_the_same(tmp_path):
    """Keys that only one of them knows, or types that differ."""
    file = tmp_path / "config.toml"
    file.write_text(
        'layers = 2\nlr = 1e-2\nclip = "none"\nposition = false\nchanges = ["site=O ->'
        ' fp32"]\nseeds = [1, 2]\n[arms]\na = ""\nb = "lr=1; site=P -> fp32"\n[at]\n5 = "-> fp32"\n'
    )
    given = ["layers=2", "lr=1e-2", "clip=none", "position=false", "changes=site=O -> fp32"]
    asked = settings(given, arms=["a=", "b=lr=1; site=P -> fp32"], at=["5: -> fp32"], seeds="1-2")
    assert settings([str(file)]) == asked
    assert [(a.name, a.lr, a.seed, a.changes) for a in asked.arms[2:]] == [
        ("b/1", 1.0, 1, ("site=P -> fp32",)),
        ("b/2", 1.0, 2, ("site=P -> fp32",)),
    ]
    assert settings([str(file), "layers=3"]).config.layers == 3


def test_settings_of_an_older_version():
    """A checkpoint that cannot be read since the record has a new field."""
    older = {name: value for name, value in plain(Config(layers=3)).items() if name != "engine"}
    assert settings([], before=older).config == Config(layers=3, warmup=100)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["layrs=3", "--out", "OUT"], "did you mean 'layers'"),
        (["lr=fast", "--out", "OUT"], "lr 'fast': give a finite number"),
        (["layers=1.5", "--out", "OUT"], "whole number"),
        (["steps", "--out", "OUT"], "lr=1e-2"),
        (["none.toml", "--out", "OUT"], "does not exist"),
        ([], "--out is missing"),
        (["--from", "3", "--out", "OUT"], "--resume DIR"),
        (["--resume", "OUT"], "has no checkpoint"),
        (["data=nowhere", "--out", "OUT"], "train.bin"),
        (["--arm", "x", "--out", "OUT"], "NAME=TEXT"),
        (["--at", "5000", "-> fp32", "--out", "OUT"], "from step 0 to 1999"),
        (["--at", "2000", "-> fp32", "--out", "OUT"], "from step 0 to 1999"),
        (["--at", "soon", "-> fp32", "--out", "OUT"], "whole number"),
        (["--at", "5", "layer=4 -> offset=16:bias", "--out", "OUT"], "numbered from 0 to 3"),
        (["--arm", "a=-> offset=16:bais", "--out", "OUT"], "did you mean 'bias'"),
        (
            ["changes=-> offset=16:bias delta_from=P_DP", "--out", "OUT"],
            "changes '-> offset=16:bias delta_from=P_DP'",
        ),
        (["plan=jax", "--at", "5", "-> offset=16:bias", "--out", "OUT"], "has no events"),
        (["--seeds", "1,1", "--out", "OUT"], "different"),
        (["layer=1", "--out", "OUT"], "did you mean 'layers'"),
        (["changes=head=9 -> fp32", "--out", "OUT"], "numbered from 0 to 3"),
        (
            ["layers=2", "changes=layer=2 -> plan=fp32", "--out", "OUT"],
            "change 'layer=2 -> plan=fp32': layer=2: the model has 2, numbered from 0 to 1",
        ),
        (["engine=pallas", "plan=jax", "--out", "OUT"], "no fused kernel of ours"),
        (["engine=pallas", "sums=preset", "--out", "OUT"], "needs a GPU"),
        (["engine=cudnn", "plan=jax", "--out", "OUT"], "needs a GPU"),
    ],
)
def test_bad_usage_is_one_line_and_writes_nothing(tmp_path, capsys, asked, said):
    """A traceback, or a folder left behind that the next attempt stumbles over."""
    out = tmp_path / "out"
    assert said in refused(capsys, *(str(out) if w == "OUT" else w for w in asked))
    assert not out.exists()


def test_a_run_is_never_overwritten(whole, tmp_path, capsys):
    """History lost to a repeated command, or a run that goes on as another one."""
    assert f"roundscope train --resume {whole}" in refused(capsys, *words(TINY), "--out", whole)
    assert "--out NEW" in refused(capsys, "--resume", whole, "lr=1")
    assert f"--resume {whole} --from 4 --out NEW" in refused(capsys, "--resume", whole, "--from", 4)
    assert "start a new run" in refused(
        capsys, "--resume", whole, "width=16", "--out", tmp_path / "new"
    )
    assert "ends at step 12" in refused(
        capsys, "--resume", whole, "--from", 13, "--out", tmp_path / "new"
    )
    assert "the first 12 are done" in refused(capsys, "--resume", whole, "steps=8")
    assert "the first 6 are done" in refused(
        capsys, "--resume", whole, "--from", 6, "steps=5", "--out", tmp_path / "new"
    )
    assert "from step 6 to 11" in refused(
        capsys, "--resume", whole, "--from", 6, "--at", 5, "-> fp32", "--out", tmp_path / "new"
    )
    assert "name those that go on: a b" in refused(
        capsys, "--resume", whole, "--arm", "c=", "--out", tmp_path / "new"
    )
    found, _ = train(capsys, "--resume", whole)
    assert found["step"] == 12 and checkpoint.steps(whole) == [0, 4, 8, 12]


def test_the_live_view_says_how_long():
    """A division by nothing, or arms in trouble out of sight."""
    arms = tuple((f"arm{i}", 1.0, 1e-3, i == 30) for i in range(40))
    assert live.headline(View(step=0, steps=10, rate=0.0, arms=arms)) == "step 0 of 10, compiling"
    view = View(step=100, steps=7300, rate=2.0, arms=arms)
    assert live.headline(view) == "step 100 of 7300, 2 steps/s, 1:00:00 left"
    assert next(
        iter(live.table(view).columns[0].cells)
    ) == "arm30" and os.linesep not in live.headline(view)
    early = View(step=0, steps=10, rate=0.0, arms=(("run", float("nan"), 1e-3, False),))
    assert list(live.table(early).columns[1].cells) == ["-"]  # no loss is there yet


def test_a_line_now_and_then_where_there_is_no_terminal(capsys):
    """A log file with nothing in it for an hour, or a line for every look."""
    now = [0.0]
    view = View(
        step=100, steps=400, rate=2.0, arms=(("a", 1.0, 1e-3, True), ("b", 1.0, 1e-3, False))
    )
    with live.screen(lambda: now[0]) as show:
        for now[0] in (10.0, 59.0, 61.0, 100.0, 125.0):
            show(view)
    said = "step 100 of 400, 2 steps/s, 0:02:30 left; 1 of 2 arms with an alarm\n"
    assert capsys.readouterr().err == 2 * said
