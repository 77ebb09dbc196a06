"""`roundscope diagnose RUN` on a run with planted truths: replays to the bit, sanity arms, what
must be exact, report and bad usage.

One training run of three arms: in `planted` one event of one head overflows and kills, among 17
that round; `hot` dies of its learning rate with any arithmetic; `plain` lives. The repairs' replays
compile a program each; their plans are tested in test_units.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import Site
from roundscope.experiments.cli import main as cli
from roundscope.experiments.diagnose.gpt import run as gpt_run
from roundscope.experiments.diagnose.gpt import run as run_command
from roundscope.experiments.diagnose.gpt.case import case
from roundscope.experiments.diagnose.gpt.replay import Gpt
from roundscope.experiments.diagnose.gpt.run import subjects
from roundscope.experiments.diagnose.gpt.units import Unit, exactly
from roundscope.experiments.train import checkpoint, record
from roundscope.experiments.train.gpt.plans import base
from roundscope.experiments.train.run import training
from roundscope.experiments.train.step import arm
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.replay.replayer import Clock, Trial
from roundscope.tools.diagnose.replay.start import Cause, replayed
from roundscope.tools.diagnose.replay.store import Store
from roundscope.tools.diagnose.tensors.carrier import carrier
from roundscope.tools.diagnose.tensors.measured import measure
from roundscope.tools.errors import UsageError

pytestmark = pytest.mark.thorough  # minutes of training and replays


SIZES = [
    "layers=2",
    "heads=2",
    "width=16",
    "context=16",
    "batch=4",
    "warmup=20",
    "lr=0.2",
    "min_lr=0.2",
    "steps=40",
    "data=sink",
]
WORDS = [*SIZES, "plan=fp32", "matmul=fp32", "checkpoint_every=5", "keep=20", "monitor_every=100"]
PLANTED = Unit(1, 0, Site.SCALED_B)
QUIET = "site=O,V,P,PV -> bf16"


def silent(*_):
    """No progress bar."""


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    """16 sequences are enough here."""
    monkeypatch.setattr(gpt_run, "TOKENS", 256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    arms = [
        f"planted={QUIET}; layer=1 head=0 site=SCALED_B -> e2m3",
        f"hot={QUIET}; lr=1e20",
        f"plain={QUIET}",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            training.Run, "_monitor", lambda self, batches: self._flush()
        )  # nothing here reads what monitors see
        with pytest.raises(SystemExit) as stop:
            cli.main(["train", *WORDS, *(x for a in arms for x in ("--arm", a)), "--out", str(out)])
    assert not stop.value.code
    return out


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    return of(folder, "planted", tmp_path_factory.mktemp("out"))


def of(folder, arm, out):
    """Steps 1 and 2 of an arm, with a short window."""
    chosen = case(folder, DiagnoseOptions(arm=arm))
    end = chosen.failure.seen + 10
    clock = Clock(silent)
    return replayed(
        Gpt(case=replace(chosen, until=end, longest=end), store=Store(out), clock=clock), out, clock
    )


def test_the_failure_is_that_of_the_log(folder):
    """Catches the wrong arm, a start behind the damage, and a window that ends before the failure
    is known.
    """
    rows = [r for r in record.rows(folder, "steps", "planted") if r["loss"] is None]
    chosen = case(folder, DiagnoseOptions(arm="planted"))
    assert chosen.failure.kind == "not finite" and chosen.failure.step == rows[0]["step"]
    assert (
        chosen.starts[0] < chosen.failure.step
        and chosen.starts[-1] == 0
        and chosen.until == chosen.failure.step + 100
    )
    assert case(folder, DiagnoseOptions()).own.name == "hot"
    assert case(folder, DiagnoseOptions(arm="plain")).failure is None


def test_a_run_in_fused_kernels_is_replayed_without(folder, monkeypatch):
    """Trials whose edited plans no kernel sees; a run of a GPU that no other machine can
    diagnose.
    """
    load = checkpoint.load

    def fused(*asked):
        state, meta = load(*asked)
        return state, meta | {"config": meta["config"] | {"sums": "preset", "engine": "pallas"}}

    monkeypatch.setattr(checkpoint, "load", fused)
    config = case(folder, DiagnoseOptions(arm="planted")).settings.config
    assert (config.engine, config.sums) == ("xla", "preset")


def test_the_replay_has_the_bits_of_the_run_and_fails_where_it_did(found):
    """Catches a replay on other batches, with another state, rate or plan, or judged by another
    rule than the run.
    """
    assert found.own.again and found.compared == found.equal > 5 and found.model.same_device
    assert found.failed == found.case.failure.step


def test_sanity_arms(found):
    """Catches an exact arm that is not exact, and a repeat that is the same replay once more."""
    [sanity] = found.sanity
    assert found.cause is Cause.ROUNDING and sanity.low.failures == 4 and sanity.exact.failures == 0
    one, other = (f.losses for f in sanity.exact.fates[:2])
    assert not np.array_equal(one, other) and one == pytest.approx(other, rel=0.05)


def test_the_planted_event_is_named(found):
    """Catches a search that names another layer, head or event, or more of them than the one that
    was planted.
    """
    g = found.guilty
    assert (
        g.found == {PLANTED}
        and (g.size, g.of) == (1, 17)
        and g.is_minimal
        and g.holds
        and found.holds
        and g.repeats == 1
    )
    assert len(g.controls) == 8 and not any(o.survives for o in g.controls)
    assert not g.only.survives and g.ties == () and g.turns == ()


def test_an_exact_set_is_the_run_with_that_change(found):
    """Catches edits that reach other arms of the launch: exact everywhere is plan=fp32, and as it
    was is the run.
    """
    every = found.case.units
    whole, low = found.replayer([Trial(exactly(every)), Trial(exactly(()))])
    [fp32] = found.replayer(
        [
            Trial(
                lambda plans: tuple(
                    tuple(base(found.case.settings.config) for _ in row) for row in plans
                )
            )
        ]
    )
    assert np.array_equal(fp32.losses, whole.losses) and len(whole.losses) == found.replayer.steps
    own = found.own.losses[found.replayer.first - found.own.first :]
    assert low.losses[:5] == pytest.approx(
        own[:5], rel=1e-4
    )  # another width has other last bits, which grow


def test_a_learning_rate_that_kills_exact_arithmetic_is_no_rounding(folder, tmp_path):
    """Catches rounding blamed for what the learning rate does: exact replays fail from the first
    step on.
    """
    seen = of(folder, "hot", tmp_path)
    assert seen.cause is Cause.OTHER and seen.guilty is None and seen.sanity[-1].first == 0


def test_the_carrier_of_a_run_is_the_error_of_the_gradient(folder):
    """Catches q in the place of X, and tokens of another sequence: q is X W_Q, and M the right side
    of equation 2 of arXiv 2510.04212.
    """
    chosen = case(folder, DiagnoseOptions(arm="plain"))
    state = arm(checkpoint.load(folder, 20)[0], chosen.arm)
    seen = subjects(chosen, 20, state)
    assert [s.heads for s in seen] == [["0", "1"], ["0", "1"]] and seen[0].x.shape == (16, 16, 16)
    x, q, k = (np.asarray(a, np.float64) for a in (seen[1].x, seen[1].layer.q, seen[1].layer.k))
    weights = np.asarray(state.params["layers"]["qkv"], np.float64)[1, :, 0]
    assert np.einsum("btd,dnh->btnh", x, weights) == pytest.approx(q, abs=1e-5 * np.abs(q).max())
    scores = np.where(
        np.tri(16, dtype=bool), np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(8), -np.inf
    )
    p = np.exp(scores - scores.max(-1, keepdims=True))
    pk = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), k)
    m = measure(seen[1], silent)
    sigma = np.linalg.svd(np.einsum("btd,btn,btnh->ndh", x, m.drift.error, pk), compute_uv=False)
    assert carrier(m).share == pytest.approx((sigma[:, 0] ** 2) / (sigma**2).sum(1), rel=1e-6)


def test_heads_with_plans_of_their_own_are_looked_at_apart(folder):
    """Catches a head measured under the plan of its neighbour."""
    chosen = case(folder, DiagnoseOptions(arm="planted"))
    seen = subjects(chosen, 0, arm(checkpoint.load(folder, 0)[0], chosen.arm))
    assert [(s.layer.name, s.heads) for s in seen] == [
        ("layer 0", ["0", "1"]),
        ("layer 1, plan 1", ["0"]),
        ("layer 1, plan 2", ["1"]),
    ]
    assert [s.request.plan[Site.SCALED_B].format.name for s in seen] == ["fp32", "e2m3", "fp32"]


@pytest.mark.pictures
def test_the_report_has_all_six_steps_in_order(folder, found, tmp_path, monkeypatch, capsys):
    """Catches steps out of order or without a picture, a verdict without the set, and JSON that
    tells another story.
    """
    monkeypatch.setattr(run_command, "replayed", lambda model, out, clock: found)
    monkeypatch.setattr(
        run_command, "survivals", lambda done, origins: {"O in FP32": found.sanity[0].low}
    )
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", str(folder), "--arm", "planted", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    data = json.loads((tmp_path / "diagnosis.json").read_text())
    assert (
        not stop.value.code
        and "SCALED_B in layer 1, head 0" in out
        and out.startswith("verdict: rounding in attention; ")
    )
    titles = [
        "1. Replay",
        "2. What must be exact",
        "3. Carrier",
        "4. Coherence",
        "5. Origin",
        "6. Repair",
    ]
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", page)[:6] == titles and "<script" not in page
    assert all(part.count("<svg ") for part in page.split("<h2 ")[1:7])
    assert (
        data["steps"]["2 search"]["found"] == [[1, 0, "SCALED_B"]]
        and data["steps"]["1 replay"]["cause"] == "rounding in attention"
    )
    survives = {x["arm"]: x["replay_survives"] for x in data["steps"]["6 repair"]}
    assert (
        survives["as it is"] is False
        and survives["O in FP32"] is False
        and survives["delta centred"] is None
    )
    assert data["head"]["layer"] == "layer 1, plan 1"


def test_a_run_that_never_failed_says_so(folder, tmp_path, capsys):
    """Catches a diagnosis that finds a culprit where nothing happened."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", str(folder), "--arm", "plain", "--out", str(tmp_path), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert not stop.value.code and data["verdict"]["kind"].startswith("the run never failed; ")
    assert data["steps"]["2 search"] is None and {
        x["replay_survives"] for x in data["steps"]["6 repair"]
    } == {None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arm": "planed"}, "unknown arm"),
        ({"arm": "planted", "first": 39}, "fails at step"),
        ({"arm": "planted", "until": 1}, "known at"),
        ({"arm": "plain", "first": 38, "until": 30}, "give a step after"),
    ],
)
def test_bad_windows(folder, options, words):
    """Catches windows that cannot show the failure, and names that fall back to another arm."""
    with pytest.raises(UsageError, match=words):
        case(folder, DiagnoseOptions(**options))


@pytest.mark.parametrize(
    ("args", "words"), [(("--plan", "fp32"), "own plan"), (("--causal",), "own plan")]
)
def test_options_of_tensors_are_not_for_runs(folder, args, words, capsys):
    """Catches an option that is silently ignored."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", str(folder), *args])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and words in err and err.count("\n") == 1
