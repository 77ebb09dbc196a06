"""The log of a watched training: what is written is read, and every wrong file is told in words."""

import json
import math

import numpy as np
import pytest

from roundscope.attention.models import log
from roundscope.attention.models.drift import HeadNumbers
from roundscope.attention.models.selection import Layer
from roundscope.attention.models.watcher import Watcher

A, B = Layer(name="blocks.0", number=0), Layer(name="blocks.1", number=1)


def numbers(drift, gradient=(10.0, 10.0)):
    two = np.array([0.5, -0.25])
    return HeadNumbers(np.array(drift), np.array(gradient), two, two * 8, two, two)


def watched(path, looks=4, **options):
    """A log of looks at two layers, every one with a share of 3 / 40."""
    watcher = Watcher(log=path, on_alarm=lambda alarm: None, **options)
    for n in range(looks):
        watcher.look(n * 100, {A: ([0, 3], numbers([1.0, 0.0])), B: ([0, 3], numbers([0.0, 2.0]))})
    return watcher


def test_what_is_written_is_read(tmp_path):
    watcher = watched(tmp_path / "log", threshold=0.05)
    looks = log.read(tmp_path / "log")
    assert [look.step for look in looks] == [0, 100, 200, 300]
    assert [look.share for look in looks] == pytest.approx([3 / 40] * 4)
    assert [look.alarm for look in looks] == [None, None, watcher.alarm, None]
    assert looks[0].threshold == 0.05 and watcher.alarm.layer == B
    own = looks[3].layers[1]
    assert (own.layer, own.heads, own.share) == (B, (0, 3), pytest.approx(0.1))
    assert own.numbers == HeadNumbers(*(x.tolist() for x in numbers([0.0, 2.0])))


def test_a_second_run_appends(tmp_path):
    watched(tmp_path / "log", looks=2)
    watched(tmp_path / "log", looks=1)
    assert [look.step for look in log.read(tmp_path / "log")] == [0, 100, 0]


@pytest.mark.parametrize("kept", [1, 70000])
def test_a_line_that_a_crash_cut_is_not_read_and_not_continued(tmp_path, kept):
    """Long lines as well: the newline before the cut may be far away."""
    path = tmp_path / "log"
    watched(path, looks=2)
    with path.open("a") as file:
        file.write('{"watch": 1, "step":' + " " * kept)
    assert len(log.read(path)) == 2
    watched(path, looks=1)
    assert [look.step for look in log.read(path)] == [0, 100, 0]


def test_numbers_that_are_not_finite_are_null(tmp_path):
    watcher = Watcher(log=tmp_path / "log")
    found = watcher.look(7, {A: ([0, 1], numbers([np.inf, 1.0]))})
    assert math.isnan(found["attention/drift"]) and found["attention/alarm"] == 0.0
    assert next(iter(found)) == "attention/not_finite" and found["attention/not_finite"] == 1.0
    line = json.loads((tmp_path / "log").read_text(), parse_constant=pytest.fail)
    assert line["share"] is None and line["layers"][0]["drift"] == [None, 1.0]
    (look,) = log.read(tmp_path / "log")
    assert math.isnan(look.share) and math.isnan(look.layers[0].numbers.drift[0])


def test_flat_numbers(tmp_path):
    found = Watcher().look(0, {A: ([0, 3], numbers([1.0, 0.0])), B: ([0, 3], numbers([0.0, 2.0]))})
    expected = {
        "not_finite": 0.0,
        "drift": 3 / 40,
        "drift_history": 3 / 40,
        "row_sums": 0.125,
        "several_ones": 0.125,
        "gain": 0.125,
    }
    per_layer = {name: x for name, x in expected.items() if "drift" not in name} | {"bias": 4.0}
    expected |= {"bias": 4.0, "alarm": 0.0, "gain_alarm": 0.0}
    assert found == pytest.approx(
        {f"attention/{name}": x for name, x in expected.items()}
        | {f"attention/layers.{n}/{name}": x for n in (0, 1) for name, x in per_layer.items()}
        | {f"attention/layers.0/{name}": 0.05 for name in ("drift", "drift_history")}
        | {f"attention/layers.1/{name}": 0.1 for name in ("drift", "drift_history")}
    )
    assert {type(x) for x in found.values()} == {float}


def test_the_alarm_is_told_once(capsys):
    told, watcher = [], None
    for on_alarm in (told.append, None):
        watcher = Watcher(threshold=0.05, on_alarm=on_alarm)
        found = [watcher.look(n, {A: ([0, 3], numbers([1.0, 1.0]))}) for n in range(5)]
        assert [x["attention/alarm"] for x in found] == [0, 0, 1, 1, 1]
    assert told == [watcher.alarm]
    assert capsys.readouterr().err.count("\n") == 1


def test_after_a_cure_the_last_look_is_told(tmp_path):
    """A cure that seems to fail: the share over all looks stays far above the threshold when the
    row sums are 0, and `attention/alarm` stayed 1.
    """
    drifts = [5.0, 5.0, 5.0, 0.0, 0.0]  # of 10, in one head of two layers
    watcher = Watcher(threshold=0.1, log=tmp_path / "log", on_alarm=lambda alarm: None)
    found = [
        watcher.look(n, {x: ([0, 1], numbers([d, 0.0])) for x in (A, B)})
        for n, d in enumerate(drifts)
    ]
    assert [x["attention/drift"] for x in found] == [d / 20 for d in drifts]
    fading = [0.9**n for n in range(4, -1, -1)]
    history = sum(w * d / 20 for w, d in zip(fading, drifts, strict=True)) / sum(fading)
    assert found[-1]["attention/drift_history"] == pytest.approx(history) and history > 0.1
    assert [x["attention/alarm"] for x in found] == [0, 0, 1, 0, 0]
    looks = log.read(tmp_path / "log")
    assert [look.now for look in looks] == [d / 20 for d in drifts]
    assert log.over_since(looks) == 3 and log.over_since(looks[:3]) is None
    assert watcher.alarm.step == 2


def test_an_alarm_is_not_over_while_a_look_is_loud_or_not_finite(tmp_path):
    """A look of NaN, which says nothing, taken for a quiet one, or for one that is loud."""
    watcher = Watcher(threshold=0.1, log=tmp_path / "log", on_alarm=lambda alarm: None)
    drifts = [5.0, 5.0, 5.0, math.nan, 0.0, math.nan, 5.0, math.nan, 0.0]
    found = [watcher.look(n, {A: ([0, 1], numbers([d, 0.0]))}) for n, d in enumerate(drifts)]
    assert [x["attention/alarm"] for x in found] == [0, 0, 1, 1, 0, 0, 1, 1, 0]
    assert [x["attention/not_finite"] for x in found] == [0, 0, 0, 1, 0, 1, 0, 1, 0]
    looks = log.read(tmp_path / "log")
    assert looks[3].lost == ((A, 0),) and math.isnan(looks[3].now)
    over = [log.over_since(looks[:n]) for n in range(1, 10)]
    assert over == [None, None, None, None, 4, 4, None, None, 8]


def test_a_bias_that_is_not_known_hides_behind_no_other():
    """The largest of 4 and NaN is not 4, in whatever order the heads come."""
    for bias in ([4.0, math.nan], [math.nan, 4.0]):
        own = numbers([1.0, 1.0])._replace(bias=np.array(bias))
        assert math.isnan(Watcher().look(0, {A: ([0, 1], own)})["attention/bias"])


@pytest.mark.parametrize(("text", "message"), [
    ("", "empty"),
    ("step,loss\n1,2\n", "line 1 is no look"),
    ("[1]\n", "line 1 is no look"),
    ("{}\n", "line 1 is no look"),
    ('{"watch": 2}\n', "line 1 has version 2, this is version 1"),
    ('{"watch": 1, "step": 3}\n', "line 1 is spoiled: share is missing"),
])  # fmt: skip
def test_wrong_files(tmp_path, text, message):
    (tmp_path / "log").write_text(text)
    with pytest.raises(ValueError, match=f"log: {message}"):
        log.read(tmp_path / "log")


def test_a_binary_file(tmp_path):
    (tmp_path / "log").write_bytes(b"\x80\xff\x00")
    with pytest.raises(ValueError, match="log: no text; give the log"):
        log.read(tmp_path / "log")


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*; make it first"):
        Watcher(log=tmp_path / "no folder" / "log")
    with pytest.raises(TypeError, match="on_alarm=3: give a function"):
        Watcher(on_alarm=3)
