"""`roundscope report RUN`: a page of a training run, from a log that is written here."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from roundscope.experiments.cli.main import main
from roundscope.experiments.train import record
from roundscope.experiments.train import report as page
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.run import training
from roundscope.experiments.train.settings import plain
from roundscope.experiments.train.spikes import Alarm
from roundscope.tools.errors import UsageError

NAMES = ["calm/0", "calm/1", "<low>/0"]
CONFIG = Config(
    layers=2, heads=2, width=8, steps=40, warmup=4, plan="fp32", changes=("site=OD -> e8m1",)
)


def made(folder, drift=True, config=CONFIG):
    """A log of 30 steps of three arms, the last of which grows, drifts and is lost at step 25."""
    folder.mkdir(parents=True)
    arms = [{"name": name, "lr": 1e-3, "seed": int(name[-1]), "plans": []} for name in NAMES]
    alarms = [
        Alarm(step=21, arm=2, series="gradient norm", kind="growth", value=20.0, limit=10.0),
        Alarm(step=25, arm=2, series="loss", kind="not finite", value=math.nan, limit=math.inf),
        Alarm(step=20, arm=2, series="layer 1, head 0", kind="drift", value=0.5, limit=0.02),
    ]
    with record.writing(folder) as log:
        log.begin(
            0,
            config=plain(config),
            arms={"arms": arms, "at": []},
            data={},
            versions={},
            device="a machine",
            origin={},
        )
        for step in range(30):
            losses = np.array([5.0, 5.1, 5.0]) * 0.98**step
            losses[2] = math.nan if step >= 25 else losses[2]
            log.add(
                "steps",
                training.step_rows(
                    NAMES, step, losses, np.array([1.0, 1.0, 1.3**step]), np.full(3, 1e-3)
                ),
            )
            if step % 10 == 0:
                seen = {"w_q_norm": np.ones((3, 2, 2))} | (
                    {"drift": np.full((3, 2, 2), 1e-7)} if drift else {}
                )
                if drift:
                    seen["drift"][2, 1, 0] = 0.25 + step / 80
                log.add("heads", training.head_rows(NAMES, step, seen, {}))
        log.add("alarms", training.alarm_rows(NAMES, alarms))
    return folder


def test_what_the_log_says_comes_back(tmp_path):
    """Heads or looks in another order, seeds that are taken for arms, a divergence dated by a norm
    or a drift.
    """
    found = record.training(made(tmp_path / "run"))
    assert [arm.name for arm in found.arms] == NAMES and found.groups == ["calm", "<low>"]
    low = found.arms[2]
    assert low.diverged == 25 and found.arms[0].diverged is None and low.worst == (1, 0, 0.5)
    assert (
        low.drift.shape == (3, 2, 2)
        and low.drift[:, 1, 0].tolist() == [0.25, 0.375, 0.5]
        and low.looks.tolist() == [0, 10, 20]
    )
    assert (
        np.isnan(low.loss[25:]).all()
        and low.norm[10] == pytest.approx(1.3**10)
        and low.changes is None
    )


def test_the_page_says_what_happened_and_stands_alone(tmp_path):
    """A page that needs the network or other files, is broken by a name, or leaves an alarm out."""
    folder = made(tmp_path / "run")
    text = page.write(folder).read_text()
    assert (
        "Diverged: &lt;low&gt;/0 at step 25. Without any alarm: calm/0 and calm/1." in text
        and "<low>" not in text
    )
    assert f"roundscope diagnose {folder}" in re.sub("</?span>", "", text)
    for said in (
        "growth of gradient norm",
        "not finite of loss",
        "drift of layer 1, head 0",
        "changes=[&#34;site=OD -&gt; e8m1&#34;]",
    ):
        assert said in text, said
    assert text.count("<svg ") == 4 and "http" not in text and "<script" not in text


def test_drift_that_was_measured_once_is_no_figure(tmp_path):
    """A run of 30 steps whose drift was measured at its beginning alone."""
    found = record.training(made(tmp_path / "run"))
    arms = [
        replace(arm, looks=arm.looks[:1], drift=arm.drift[:1], w_q=arm.w_q[:1])
        for arm in found.arms
    ]
    once = replace(found, arms=tuple(arms))
    assert page.drifts(once) is None and page.query_norms(once) is None
    assert "(<low>/0, layer 1, head 0), measured once, at step 0." in page._opening(once, 30).number


def test_a_sentence_of_many_arms_can_be_read(tmp_path):
    """A hundred names in the first sentence, or an "and 1 more" where the name is as short."""
    found = record.training(made(tmp_path / "run"))
    assert "calm/0, calm/0, calm/0, calm/0 and 3 more." in page.sentence(
        replace(found, arms=found.arms[:1] * 7)
    )
    assert "calm/0, calm/0, calm/0, calm/0 and calm/0." in page.sentence(
        replace(found, arms=found.arms[:1] * 5)
    )


def test_alarms_are_drawn_where_they_are(tmp_path):
    """A mark at a value that is not there, on the other series, or an arm in another's colour."""
    found = record.training(made(tmp_path / "run"))
    marks = set(page.MARKS.values())

    def of(figure):
        return [
            line
            for line in figure.axes[0].lines
            if line.get_marker() in marks and len(line.get_xdata()) == 1
        ]

    [lost] = of(page.losses(found))
    assert lost.get_xdata()[0] == 25 and lost.get_ydata()[0] == pytest.approx(
        5.0 * 0.98**24
    )  # the last that was finite
    [grown] = of(page.norms(found))
    assert (grown.get_xdata()[0], grown.get_ydata()[0]) == (21, pytest.approx(1.3**21))
    panels = page.drifts(found).axes
    assert [ax.get_title(loc="left") for ax in panels] == NAMES and panels[0].get_ylim() == panels[
        2
    ].get_ylim()
    assert (
        max(max(line.get_ydata()) for line in panels[2].lines if len(line.get_xdata()) == 3) == 0.5
    )


def test_a_run_without_emulated_attention(tmp_path):
    """A page that cannot be without drift, or sends to a diagnosis that refuses the run."""
    folder = made(tmp_path / "run", drift=False, config=Config(plan="jax", layers=2, heads=2))
    assert page.drifts(record.training(folder)) is None
    text = page.write(folder).read_text()
    assert text.count("<svg ") == 3 and "roundscope diagnose" not in text


def command(capsys, *asked):
    with pytest.raises(SystemExit) as end:
        main([*map(str, asked)])
    out, err = capsys.readouterr()
    return end.value.code, out + err


def test_the_command_takes_the_folder_and_its_log(tmp_path, capsys):
    """'is an SQLite file of another program', of Roundscope's own; a traceback for a folder that is
    none, or a log without steps.
    """
    folder = made(tmp_path / "run")
    assert command(capsys, "report", folder) == (0, f"written: {folder / 'report.html'}\n")
    code, said = command(capsys, "report", folder / record.NAME, "--out", tmp_path / "own.html")
    assert (
        code == 0
        and (tmp_path / "own.html").read_text() == (folder / "report.html").read_text()
        and "own.html" in said
    )
    code, said = command(capsys, "export", folder / record.NAME, tmp_path / "x.csv")
    assert code == 2 and "log of a training run" in said and f"roundscope report {folder}" in said
    code, said = command(capsys, "report", tmp_path)
    assert code == 2 and said.count("\n") == 1
    with record.writing(folder) as log:
        log.begin(0, config={}, arms={"arms": []}, data={}, versions={}, device="", origin={})
    with pytest.raises(UsageError, match="no step in its log yet"):
        record.training(folder)
