"""`roundscope watch`: what it prints and draws of a log, and how it refuses other files."""

import io
import json

import numpy as np
import pytest

from roundscope.attention.models import log
from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.selection import Layer
from roundscope.attention.models.watcher import Watcher
from roundscope.experiments.cli.main import main
from roundscope.tools.watch.command import RED, draw, last_course

PNG = b"\x89PNG\r\n\x1a\n"


def watched(path, steps=range(0, 500, 100), *, layers=3, threshold=0.05):
    """A log whose share grows by 0.03 from look to look in the last layer, and is 0 elsewhere."""
    watcher = Watcher(log=path, threshold=threshold, on_alarm=lambda alarm: None)
    for n, step in enumerate(steps):
        watcher.look(
            step,
            {
                Layer(name=f"blocks.{m}", number=m): (
                    [0, 1],
                    HeadNumbers(
                        drift=np.array([0.0, 0.03 * (n + 1) * layers * (m == layers - 1)]),
                        gradient=np.array([0.5, 0.5]),
                        row_sums=np.array([1e-3, 3e-3]) * (m + 1),
                        bias=np.array([1.0, -2.0]),
                        several_ones=np.zeros(2),
                        gain=np.zeros(2),
                    ),
                )
                for m in range(layers)
            },
        )
    return path


def test_text_and_picture(tmp_path, capsys):
    main_of("watch", watched(tmp_path / "run.jsonl"))
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("drift at the last look, step 400: 0.15 of the queries' gradient is")
    assert (
        "5 looks, steps 0 to 400; over all, a look counting 0.9 times the next one: 0.096" in told
    )
    assert "alarm: since step 200:" in told and "head 1 of layer 2 (blocks.2)" in told
    assert "layer 2 (blocks.2): 0.45, over all looks 0.29 layer 0 (blocks.0): 0," in told
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_json(tmp_path, capsys):
    main_of("watch", watched(tmp_path / "log"), "--json", "--out", tmp_path / "a.png")
    found = json.loads(capsys.readouterr().out)
    weights = 0.9 ** np.arange(4, -1, -1)
    history = weights @ (0.03 * np.arange(1, 6)) / weights.sum()
    assert found["drift_history"] == pytest.approx(history)
    assert found["drift"] == pytest.approx(0.15) == found["drifts"][-1]
    assert found["not_finite"] == {"looks": 0, "first": None}
    assert found["alarm"]["over_since"] is None
    assert found["steps"] == [0, 100, 200, 300, 400] and found["looks"] == 5
    assert (found["alarm"]["step"], found["alarm"]["name"]) == (200, "blocks.2")
    assert found["alarm"]["share"] == found["drift_histories"][2] > found["threshold"] == 0.05
    assert found["picture"] == str(tmp_path / "a.png") and (tmp_path / "a.png").exists()


@pytest.mark.parametrize(("threshold", "told"), [(0.5, "none (threshold 0.5)"),
                                                 (None, "there is no threshold")])  # fmt: skip
def test_no_alarm(tmp_path, capsys, threshold, told):
    main_of("watch", watched(tmp_path / "log", threshold=threshold))
    assert f"alarm: {told}" in capsys.readouterr().out


@pytest.mark.parametrize("layers", [1, 3, 12])
@pytest.mark.parametrize("looks", [1, 60])
def test_what_is_drawn(tmp_path, layers, looks):
    path = watched(tmp_path / "log", range(looks), layers=layers)
    figure = draw(log.read(path))
    shares, sizes = figure.axes[:2]
    lines = {str(line.get_label()): line for line in shares.lines}
    for label, name in (("all layers", "now"), ("over all looks", "share")):
        data = np.array([getattr(look, name) for look in log.read(path)])
        np.testing.assert_allclose(np.asarray(lines[label].get_ydata(), float), data)
    np.testing.assert_allclose(lines["threshold 0.05"].get_ydata(), 0.05)
    alarms = [line for name, line in lines.items() if name.startswith("alarm, step 2\n")]
    assert len(alarms) == (looks > 2) and all(line.get_color() == RED for line in alarms)
    own = [line for line in sizes.lines if len(line.get_xdata()) == looks]
    means = sorted(np.asarray(line.get_ydata(), float)[0] for line in own)
    np.testing.assert_allclose(means, 2e-3 * np.arange(1, layers + 1))
    assert ("layer 0" in lines) == (layers <= 6)


def test_a_training_that_was_resumed(tmp_path):
    """Steps that go back: what came after them the first time is no part of the course."""
    path = watched(watched(tmp_path / "log", [0, 100, 200, 300]), [200, 300, 400])
    looks = last_course(log.read(path))
    assert [look.step for look in looks] == [0, 100, 200, 300, 400]
    assert [look.share for look in looks[2:]] == [x.share for x in log.read(path)[4:]]


@pytest.mark.parametrize(("earlier", "told"), [
    ([[0, 1, 2, 3, 4]], "an earlier run of 5 looks is in this log, not shown"),
    ([[0, 1], [0]], "earlier runs, 3 looks in all, are in this log, not shown"),
    ([[-2, -1, 0]], "the steps of this log go back: 1 look from before that are not shown"),
])  # fmt: skip
def test_earlier_runs_are_told(tmp_path, capsys, earlier, told):
    for steps in [*earlier, [0]]:
        path = watched(tmp_path / "log", steps)
    main_of("watch", path)
    assert told in " ".join(capsys.readouterr().out.split())


def test_numbers_that_are_missing(tmp_path, capsys):
    watcher = Watcher(log=tmp_path / "log")
    bad = np.array([np.nan, np.inf])
    watcher.look(0, {Layer(name="a", number=0): ([0, 1], HeadNumbers(*[bad] * 6))})
    main_of("watch", tmp_path / "log", "--json")
    assert json.loads(capsys.readouterr().out)["drift"] == "nan"


def of(drift):
    """The numbers of two heads of one layer."""
    one = np.ones(2)
    return HeadNumbers(np.array([drift, 0.0]), 5 * one, one, one, one, one)


def test_what_is_not_finite_comes_first(tmp_path, capsys):
    """Looks of NaN that nobody hears of: they are not in the share, and no line said so."""
    watcher = Watcher(log=tmp_path / "log")
    for step, drift in enumerate([1e-3, np.nan, np.inf, 1e-3]):
        quiet, loud = Layer(name="a", number=0), Layer(name="b", number=4)
        watcher.look(10 * step, {quiet: ([0, 3], of(1e-3)), loud: ([0, 3], of(drift))})
    main_of("watch", tmp_path / "log")
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith(
        "NaN or infinite: numbers of 2 of 4 looks, first at step 10 in head 0 of layer 4 (b), 1"
        " heads there; last at step 20."
    )
    main_of("watch", tmp_path / "log", "--json")
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "not_finite" and found["not_finite"] == {
        "looks": 2, "first": {"step": 10, "layer": 4, "name": "b", "head": 0},
    }  # fmt: skip
    assert found["drifts"][1] == "nan" and found["drift"] == pytest.approx(1e-4)
    figure = draw(log.read(tmp_path / "log"))
    (crosses,) = [x for x in figure.axes[0].lines if "NaN or infinite" in str(x.get_label())]
    assert list(crosses.get_xdata()) == [10, 20]


def test_after_a_cure(tmp_path, capsys):
    """A cure read as a failure: "drift: 0.53" where the row sums of the last look are 0."""
    watcher = Watcher(log=tmp_path / "log", on_alarm=lambda alarm: None)
    for step, drift in enumerate([5.0, 5.0, 5.0, 0.0, 0.0]):
        watcher.look(step, {Layer(name="a", number=0): ([0, 1], of(drift))})
    main_of("watch", tmp_path / "log")
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("drift at the last look, step 4: 0 of the queries' gradient")
    assert "alarm: over since step 3, 2 looks not above 0.1; it began at step 2: rows" in told
    main_of("watch", tmp_path / "log", "--json")
    assert json.loads(capsys.readouterr().out)["alarm"]["over_since"] == 3
    labels = [str(line.get_label()) for line in draw(log.read(tmp_path / "log")).axes[0].lines]
    assert any("over since 3" in label for label in labels)


@pytest.mark.parametrize(("text", "message"), [
    ("", "empty; `watch` writes a line at its first look"),
    ("loss 1.0\n", "line 1 is no look; give the log that `watch(log=...)` wrote"),
    ('{"watch": 7}\n', "line 1 has version 7"),
])  # fmt: skip
def test_other_files(tmp_path, capsys, text, message):
    (tmp_path / "log").write_text(text)
    refused(capsys, message, tmp_path / "log")
    assert not (tmp_path / "log.png").exists()


def test_other_pictures(tmp_path, capsys):
    path = watched(tmp_path / "log.png")
    refused(capsys, "is the log itself", path)
    refused(capsys, "the picture is a PNG file", path, "--out", tmp_path / "a.jpg")
    refused(capsys, "no such file", tmp_path / "nothing")


def main_of(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert not end.value.code


def refused(capsys, message, *words):
    with pytest.raises(SystemExit) as end:
        main(["watch", *(str(word) for word in words)])
    told = capsys.readouterr()
    assert end.value.code == 2 and message in told.err and told.err.count("\n") == 1
    assert not told.out


def test_the_picture_of_another_program_is_kept(tmp_path, capsys):
    """`watch w.jsonl` writes over a user's w.png."""
    path = watched(tmp_path / "w.jsonl")
    (tmp_path / "w.png").write_bytes(b"mine")
    with pytest.raises(SystemExit) as stop:
        main(["watch", str(path)])
    assert stop.value.code == 2 and (tmp_path / "w.png").read_bytes() == b"mine"
    assert "exists and is no picture of this command" in capsys.readouterr().err
    (tmp_path / "w.png").unlink()
    for _ in range(2):  # it replaces its own
        main_of("watch", path)


@pytest.mark.parametrize("threshold", [0.05, None])
def test_a_log_without_a_number_is_drawn(tmp_path, threshold):
    """matplotlib's error of an axis whose values are all missing, in place of a picture."""
    watcher = Watcher(log=tmp_path / "log", threshold=threshold, on_alarm=lambda alarm: None)
    for step in range(3):
        nothing = HeadNumbers(*[np.full(2, np.nan)] * 6)
        watcher.look(step, {Layer(name="a", number=0): ([0, 3], nothing)})
    figure = draw(log.read(tmp_path / "log"))
    figure.savefig(io.BytesIO(), format="png")  # limits are computed where it is drawn
    assert all(np.isfinite(ax.get_ylim()).all() for ax in figure.axes)


@pytest.mark.parametrize(
    ("gains", "told"),
    [
        ([-0.0026, -0.003], "-0.0028 of it, heads from -0.003 to -0.0026: more than rounding"),
        ([0.004, 0.002], "All are too long."),
        ([-0.0002, -0.0001], "-0.00015 of it, heads from -0.0002 to -0.0001\n"),
        ([-0.01, 0.001], "-0.0045 of it, heads from -0.01 to +0.001\n"),
        ([np.nan, np.nan], None),
    ],
)
def test_the_length_of_outputs(gains, told, tmp_path, capsys):
    """Outputs are called too short or too long if the gains of all heads have one sign and are
    beyond half an ulp of BF16; not if signs differ, gains are small, or they are not known.
    """
    ones = np.full(2, 1e-3)
    numbers = HeadNumbers(ones, np.ones(2), ones, ones, np.zeros(2), np.array(gains))
    watcher = Watcher(log=tmp_path / "log")
    watcher.look(0, {Layer(name="a", number=0): ([0, 1], numbers)})
    main_of("watch", tmp_path / "log")
    out = capsys.readouterr().out
    if told is None:
        assert "length of the output" not in out
    else:
        flat = " ".join(out.split())
        assert told.strip() in flat and ("more than rounding" in flat) == ("\n" not in told)
    main_of("watch", tmp_path / "log", "--json")
    found = json.loads(capsys.readouterr().out)["gain"]
    assert found is None if told is None else found == pytest.approx(np.mean(gains))
