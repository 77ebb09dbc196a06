"""`roundscope diagnose DIR` of a proxy with a planted truth: replays, what must be exact, repairs,
report, and bad input.

One study: from step 8 on a value above 3.5 becomes infinite in one event of one matrix, X of up in
layer 1, among 8 that round. It kills by what the rows hold, whatever the last bits are.
"""

import json
import re

import numpy as np
import pytest

from roundscope.experiments.cli import main as cli
from roundscope.experiments.diagnose.student import errors as proxy_errors
from roundscope.experiments.diagnose.student import replay as proxy_replay
from roundscope.experiments.diagnose.student import run as proxy_findings
from roundscope.experiments.diagnose.student.case import case
from roundscope.experiments.diagnose.student.run import diagnose
from roundscope.experiments.diagnose.student.units import Unit
from roundscope.experiments.train.mx import Site
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.replay import replayer as replaying
from roundscope.tools.diagnose.replay.replayer import Clock, Replayer, Trial
from roundscope.tools.diagnose.replay.start import Cause
from tests.tools.databases import database

WORDS = ["depth=2", "width=32", "ratio=1", "batch=32", "steps=26", "lr=1e-4"]
QUIET = "site=X,W -> mxfp8_e4m3"
PLANTED = Unit(1, "up", Site.X)
REPAIRS = {"activations BF16": "site=X -> bf16", "weights BF16": "site=W -> bf16"}


def silent(*_):
    """No progress bar."""


def quick(folder, out):
    """The diagnosis with one executable for all replays: two arms in a launch, and two repairs that
    need no other.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy_findings, "texts", lambda case: REPAIRS)
        patch.setattr(proxy_errors, "STEPS", 3)
        patch.setattr(replaying, "limit", lambda: 2)
        patch.setattr(proxy_replay, "limit", lambda: 2)
        return diagnose(folder, DiagnoseOptions(), out, silent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("proxy") / "study"
    arms = [
        "--arm",
        f"planted={QUIET}",
        "--arm",
        f"fast={QUIET}; lr=2e-4",
        "--at",
        "8:layer=1 matrix=up site=X -> e2m1",
    ]
    with pytest.raises(SystemExit) as stop:
        cli.main(["proxy", *WORDS, *arms, "--seeds", "0", "--out", str(out)])
    assert not stop.value.code
    return out


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    return quick(folder, tmp_path_factory.mktemp("out"))


def test_the_replay_has_the_bits_of_the_file_and_diverges_where_it_did(found):
    """Catches a replay on other rows, weights, rate or formats, or judged by another rule than the
    study.
    """
    r = found.replayed
    assert (
        r.own.again
        and r.compared == r.equal >= 1
        and r.failed == found.case.failed
        and r.cause is Cause.ROUNDING
    )
    [sanity] = r.sanity
    assert (sanity.first, sanity.low.failures, sanity.exact.failures) == (0, 4, 0)
    one, other = (f.losses for f in sanity.exact.fates[:2])
    assert not np.array_equal(one, other) and one == pytest.approx(other, rel=0.05)


def test_the_planted_event_is_named(found):
    """Catches a search that names another layer, matrix or event or more of them, shams that are
    not the run, and a set without support.
    """
    r, g = found.replayed, found.replayed.guilty
    assert (
        found.guilty == g.found == {PLANTED}
        and len(g.all_units) == 8
        and g.is_minimal
        and not g.only.survives
    )
    assert len(g.controls) == 7 and not any(o.survives for o in g.controls)
    n = len(r.shams.fates)
    assert r.shams.failures == n >= 8 and r.holds
    draws = 1.0
    for k in range(8):  # all eight that survive among n + 8 alike
        draws *= (8 - k) / (n + 8 - k)
    assert r.p == pytest.approx(draws, rel=1e-6)


def test_repairs_that_reach_the_event_avert_it_and_no_others(found):
    """Catches a repair or a sham whose change does not reach the replay, and a verdict that does
    not look at shams.
    """
    words = {t.name: t.word for t in found.tried}
    averts, not_ = "averts it", "does not avert it"
    assert words["activations BF16"] == words[proxy_findings.FOUND] == averts
    assert (
        words["weights BF16"] == words[proxy_findings.RANDOM] == words[proxy_findings.BASE] == not_
    )


def test_without_anything_left_to_do_nothing_is_replayed(found, monkeypatch):
    """Catches replays that are not kept, or kept under a name that another replay has."""
    r = found.replayed.replayer
    again = Replayer(window=r.window, until=r.until, store=r.store, clock=Clock(silent))
    monkeypatch.setattr(replaying, "limit", lambda: 2)
    monkeypatch.setattr(proxy_replay, "limit", lambda: 2)
    trials = [Trial(text, n) for text in ("", "-> fp32") for n in range(4)]
    monkeypatch.setattr(proxy_replay, "advance", None)
    fates = again(trials)
    [sanity] = found.replayed.sanity
    assert all(
        np.array_equal(a.losses, b.losses, equal_nan=True)
        for a, b in zip(fates, (*sanity.low.fates, *sanity.exact.fates), strict=True)
    )
    with pytest.raises(TypeError):
        again([Trial("site=X -> bf16", 77)])


@pytest.mark.pictures
def test_the_report_has_all_steps_in_order(folder, found, tmp_path, monkeypatch, capsys):
    """Catches steps out of order or without a picture, a verdict without the set, and JSON that
    tells another story.
    """
    monkeypatch.setattr(proxy_findings, "diagnose", lambda *args, **more: found)
    (tmp_path / "o").mkdir()
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", str(folder), "--out", str(tmp_path / "o"), "--json"])
    printed = json.loads(capsys.readouterr().out)
    page = (tmp_path / "o" / "report.html").read_text()
    data = json.loads((tmp_path / "o" / "diagnosis.json").read_text())
    assert not stop.value.code and printed == data
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", page)[:5] == [
        "1. Replay",
        "2. What must be exact",
        "3. The gradient&#39;s error",
        "4. Origin",
        "5. Repair",
    ]
    assert all(part.count("<svg ") for part in page.split("<h2 ")[1:6]) and "<script" not in page
    assert data["steps"]["2 search"]["found"] == [[1, "up", "X"]] and data["verdict"][
        "kind"
    ].startswith("rounding; a set")
    assert (
        "X of up in layer 1 is exact, 1 of 8 events: 8 of 8 replays" in data["verdict"]["sentence"]
    )
    assert {x["name"]: x["holds"] for x in data["verdict"]["links"]}.items() >= {
        "replay": True,
        "set": True,
        "repair": True,
    }.items()


def test_the_first_divergence_is_taken_and_its_own_twin(folder):
    """Catches an FP32 run at another rate beside the diverged one, and a divergence that is not the
    first.
    """
    c, named = (case(folder, DiagnoseOptions(arm=arm)) for arm in (None, "fast"))
    query = (
        "SELECT diverged, json_extract(condition, '$.name') FROM runs WHERE diverged IS NOT NULL"
    )
    with database(folder / "proxy.sqlite") as file:
        rows = file.execute(query).fetchall()
    assert (
        c.failed == min(rows)[0]
        and (c.failed, c.own.name) in rows
        and named.own.name == "fast"
        and (named.own.lr, c.own.lr) == (2e-4, 1e-4)
    ), rows
    assert c.twin.arm.name == named.twin.arm.name == "fp32" and (
        c.twin.arm.lr,
        named.twin.arm.lr,
    ) == (1e-4, 2e-4)
    assert c.origin == 0 and c.starts == (0,) and c.until == 26


def ended(capsys, *args):
    """(exit code, stderr) of the verb."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", *map(str, args)])
    return stop.value.code, capsys.readouterr().err


def test_bad_input_ends_in_one_line(folder, tmp_path, capsys):
    """Catches tracebacks, an arm or a step that falls back to another, and a file that is changed
    by reading it.
    """
    calm, alien, torn, empty = (tmp_path / name for name in ("calm", "alien", "torn", "empty"))
    for path in (calm, alien, torn, empty):
        path.mkdir()
    whole = (folder / "proxy.sqlite").read_bytes()
    (calm / "proxy.sqlite").write_bytes(whole)
    with database(calm / "proxy.sqlite") as file:
        file.execute("UPDATE runs SET diverged = NULL")
    (torn / "proxy.sqlite").write_bytes(b"no database" + whole[11:])
    with database(alien / "proxy.sqlite") as file:
        file.execute("CREATE TABLE t (x)")
    cases = [
        ((empty,), 2, "roundscope proxy"),
        ((calm,), 2, "diverged"),
        ((alien,), 2, "another program"),
        ((torn,), 2, "proxy.sqlite"),
        ((folder, "--arm", "plantd"), 2, "planted"),
        ((folder, "--arm", "fp32"), 2, "diverged"),
        ((folder, "--from", "25"), 2, "--from"),
        ((folder, "--until", "5"), 2, "--until"),
        ((folder, "--plan", "fp32"), 2, "own plan"),
    ]
    for args, code, word in cases:
        got, err = ended(capsys, *args, "--out", tmp_path / "out")
        assert got == code and word in err and err.count("\n") == 1, (args, err)
    with database(calm / "proxy.sqlite") as file:
        file.execute('UPDATE runs SET diverged = 9, config = \'{"depth": 2, "colour": 1}\'')
    got, err = ended(capsys, calm, "--out", tmp_path / "out")
    assert got == 1 and "colour" in err and err.count("\n") == 1
    assert (folder / "proxy.sqlite").read_bytes() == whole
