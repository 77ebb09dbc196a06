"""What a sweep answers on the terminal, and what it refuses before it computes anything."""

import json

import numpy as np
import pytest
from scipy import stats

from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.cell import Result
from roundscope.tools.sweep.conditions.condition import CannotRunError, cell_of
from roundscope.tools.sweep.measuring.measure import measure
from roundscope.tools.sweep.report.answers import answer, as_data
from roundscope.tools.sweep.report.gains import gains
from roundscope.tools.sweep.report.levels import Level, OfResult, levels, words
from roundscope.tools.sweep.storage.frames import Axis, frame_of
from roundscope.tools.sweep.storage.store import writing

SMALL = {"T": 16, "N": 2, "H": 16}


def stored(path, points, numbers):
    """Return the frame of a file with made-up metrics of points."""
    pairs = [
        (cell := cell_of(SMALL | p), Result(key=cell.key, metrics=m))
        for p, m in zip(points, numbers, strict=True)
    ]
    with writing(path) as store:
        store.save(pairs)
    return frame_of(path)


@pytest.fixture
def made(tmp_path):
    """Two formats by two tiles by five seeds: the seeds shift all, E5M2 is 8 times as far off."""
    random, points, numbers = np.random.default_rng(0), [], []
    shift = random.uniform(0.5, 2.0, 5)
    for fmt, times, gain in (("bf16", 1.0, 0.0), ("e5m2", 8.0, -0.01)):
        for tile, more in ((8, 1.0), (16, 1.25)):
            for seed in range(5):
                own = gain + 1e-4 * random.standard_normal()
                points.append({"format.P": fmt, "tile": tile, "seed": seed, "preset": "fa2-bf16"})
                numbers.append(
                    {"rms": 1e-3 * times * more * shift[seed], "gain": own, "gain_z": own / 1e-4}
                )
    return stored(tmp_path / "a.sqlite", points, numbers)


def test_effects_are_ratios_within_a_seed(made):
    """An interval with the scatter of seeds in it, which all values share; the wrong end."""
    found = answer(made)
    assert [e.axis.label for e in found.effects] == ["format.P", "tile"]
    by_value = {x.value: x for x in levels(made, made.axis("format.P"))}
    least, far = by_value["bf16"], by_value["e5m2"]
    assert least.times is None and far.times == pytest.approx((8.0, 8.0, 8.0))
    assert far.rms / least.rms == pytest.approx(8.0) and far.gain == pytest.approx(-0.01, abs=1e-4)
    assert found.least.endswith("at tile=8 format.P=bf16")
    assert found.most.endswith("at tile=16 format.P=e5m2")


def test_the_bias_is_that_of_the_gain(made):
    """A mean of both signs that says nothing, a threshold of one test, the wrong condition."""
    assert "out in 2 of 4 conditions is too short by" in answer(made).bias
    assert "format.P=e5m2" in answer(made).bias and "bf16" not in answer(made).bias
    own = gains(made, "out")
    y, z = made.metric("gain"), made.metric("gain_z")
    for i, c in enumerate(own.condition):
        mine = made.condition == c
        assert own.mean[i] == pytest.approx(y[mine].mean())
        half = stats.t.ppf(0.975, 4) * stats.sem(y[mine])
        assert own.half[i] == pytest.approx(half) and own.z[i] == pytest.approx(
            z[mine].sum() / np.sqrt(5)
        )


def test_no_result_is_called_biased_by_chance(tmp_path):
    """False alarms: 40 conditions of unbiased cells, each with a z of its own."""
    random = np.random.default_rng(2)
    points = [{"T": 16 + i, "seed": s, "preset": "fa2-bf16"} for i in range(40) for s in range(2)]
    numbers = [{"rms": 1e-3, "gain": 1e-4 * z, "gain_z": z} for z in random.standard_normal(80)]
    said = answer(stored(tmp_path / "a.sqlite", points, numbers)).bias
    assert said.startswith("No result is too long or too short by more than chance")


@pytest.fixture
def of_file(tmp_path):
    """One seed of four heads, as a file has it: P in E5M2 is worse than E4M3 in out, not in dq."""
    points, numbers = [], []
    for fmt, out, dq in (("bf16", 1.0, 1.0), ("e4m3fn", 4.0, 12.0), ("e5m2", 8.0, 6.0)):
        points.append({"format.P": fmt, "N": 4, "preset": "fa2-bf16", "backward": True})
        numbers.append({"rms": out, "dq_rms": dq, "dk_rms": out, "dv_rms": 1.0, "log_rms_se": 0.1})
    return stored(tmp_path / "a.sqlite", points, numbers)


def test_each_gradient_has_an_answer(of_file):
    """A sweep with gradients that answers for out alone, where dq says the opposite."""
    found = answer(of_file)
    assert "The order reverses in dq: at format.P=e4m3fn, against e5m2" in found.text
    of = as_data(found)["results"]
    assert [of[name]["most"] for name in ("out", "dq", "dk")] == ["e5m2", "e4m3fn", "e5m2"]
    assert of["dq"]["least"] == "bf16" and len(words(found.results)) == 4


def test_one_seed_has_the_interval_of_its_heads(of_file):
    """Advice to take more seeds of a file, whose tensors are the same for each."""
    (far,) = (x for x in levels(of_file, of_file.axis("format.P")) if x.value == "e5m2")
    half = stats.t.ppf(0.975, 3) * np.hypot(0.1, 0.1)
    assert far.times == pytest.approx((8.0, 8.0 * np.exp(-half), 8.0 * np.exp(half)))
    chances = [axis["chance"] for axis in as_data(answer(of_file))["axes"]]
    assert chances == [None] and "nan" not in json.dumps(as_data(answer(of_file)))


def test_errors_are_relative_where_every_cell_has_that(tmp_path):
    """Absolute errors of out, dq and dv side by side, whose tensors have other sizes; no unit."""
    points = [{"format.P": f, "preset": "fa2-bf16", "backward": True} for f in ("bf16", "e5m2")]
    numbers = [
        {"rms": 1e-4 * n, "rel_rms": 0.5 * n, "dv_rms": 1e-5, "dv_rel_rms": 0.25} for n in (1, 3)
    ]
    found = answer(stored(tmp_path / "a.sqlite", points, numbers))
    assert found.metric == "rel_rms" and "and relative rms is 3 times" in found.text
    assert found.most.startswith("relative rms 1.5 at") and found.effects[0].share == 1.0
    (dv,) = (x for x in words(found.results) if x.startswith("dv"))
    assert dv == (
        "dv: no axis changes its relative rms, 0.25, by 2 %: P is the forward's operand; dV reads"
        " P_B."
    )
    del numbers[1]["rel_rms"]
    found = answer(stored(tmp_path / "b.sqlite", points, numbers))
    assert found.metric == "rms" and "and absolute rms is 3 times" in found.text


def test_numbers_that_become_0_are_counted(tmp_path):
    """A format that is worse than one of fewer bits, and no word that it loses the small ones."""
    pairs = []
    for name, lost in (("bf16", 0.0), ("e4m3fn", 30.0), ("e5m2", 0.5)):
        cell = cell_of(SMALL | {"format.P": name, "preset": "fa2-bf16"})
        sites = {"P": {"n": 100.0, "underflow": lost}, "OUT": {"n": 100.0, "underflow": 50.0}}
        pairs.append((cell, Result(key=cell.key, metrics={"rms": 1.0 + lost}, sites=sites)))
    with writing(tmp_path / "a.sqlite") as store:
        store.save(pairs)
    found = answer(frame_of(tmp_path / "a.sqlite"))
    assert found.zeros == "Numbers of P that become 0: 30 % at e4m3fn."


@pytest.mark.parametrize(("above", "digits"), [(0.03, 2), (0.004, 3), (2.0, 1)])
def test_a_z_has_the_digits_that_tell_it_from_its_limit(tmp_path, above, digits):
    """z = 2.6 that is beyond 2.6."""
    limit = float(stats.norm.isf(0.005))  # of one test, two-sided: 1 % of false alarms
    numbers = [{"rms": 1.0, "gain": -0.01, "gain_z": -limit - above}]
    said = answer(stored(tmp_path / "a.sqlite", [{"preset": "fa2-bf16"}], numbers)).bias
    assert f"|z| > {limit:.{digits}f}, 1 test" in said
    assert f"(z = {-limit - above:.{digits}f})" in said


class TestRefusals:
    def test_what_cannot_run_is_refused_before_anything_is_computed(self, roundscope, tmp_path):
        """Cells that fail after minutes, and a preview that counts them as good."""
        out = tmp_path / "x.sqlite"
        words = ["P=bf16,fp16", "T=16", "N=1", "H=16", "seed=0:3", "--out", out]
        for more in ([], ["--dry-run"]):
            code, _, told = roundscope("sweep", *words, *more)
            assert code == 2 and not out.exists()
            assert "3 of 6 cells cannot run, so nothing was computed" in told
            assert "format.P=fp16" in told and "cannot read P in fp16; round P to bf16" in told
            again = "roundscope sweep preset=fa2-bf16 P=bf16,fp16 T=16 N=1 H=16 seed=0:3"
            assert f"{again} --out {out}" in told
        assert cell_of(SMALL | {"format.P": "fp16", "preset": "fa2-bf16"})

    @pytest.mark.parametrize("preset", ["fa2", "qiu-yao", "fa3-fp8", "mxfp8-attention", "fa4-fp8"])
    def test_a_cell_is_refused_if_and_only_if_attention_refuses_it(self, preset):
        """A check of its own that differs from that of the call."""
        for event in ("P=fp16", "V=fp32", "K=e5m2", "block_k=24", "Q=mxfp8_e4m3"):
            name, _, value = event.partition("=")
            point = {name if name == "block_k" else f"format.{name}": value}
            point |= {"preset": preset, "T": 64, "N": 1, "H": 32}
            try:
                cell = cell_of(point)
            except CannotRunError:
                continue
            except UsageError:
                continue
            assert measure([cell])[0].error is None, (preset, event)


def test_the_terminal_prints_the_answer(roundscope, tmp_path):
    """`report` and `sweep` that say only which file they wrote; JSON without the answer."""
    out = tmp_path / "x.sqlite"
    words = ["preset=fa2-bf16", "P=bf16,e5m2", "T=16", "N=2", "H=16", "seed=0:2", "--out", out]
    hurt = "P:ulps=1:share=0.5"
    cells = [
        cell_of(SMALL | {"preset": "fa2-bf16", "format.P": f, "seed": s, "injection": i})
        for f in ("bf16", "e5m2")
        for s in (0, 1)
        for i in ("none", hurt)
    ]
    with writing(out) as store:  # so that the command starts no workers
        store.save(list(zip(cells, measure(cells), strict=True)))
    _, told, _ = roundscope("sweep", *words, f"injection=none,{hurt}")
    assert "0 cells done, 0 failed, 8 skipped" in told
    for text in (told, roundscope("report", out)[1]):
        text = " ".join(text.split())
        assert "times the least [95 %]" in text and "least error: relative rms" in text
        assert "most error: relative rms" in text and "chance (|z| >" in text
        assert "Entries that an injection hit" in text
    data = json.loads(roundscope("sweep", *words, "--json")[1])["findings"]
    assert {x["axis"] for x in data["axes"]} == {"format.P"} and data["least_error"]


def test_a_share_and_a_mask_belong_to_the_cell(tmp_path, monkeypatch):
    """A seed that does not reach the share, and a mask that changes under the same key."""
    point = SMALL | {"preset": "fa2-bf16", "injection": "P:ulps=1:share=0.5"}
    assert cell_of(point | {"seed": 3}).inject[0].seed == 3
    monkeypatch.chdir(tmp_path)
    keys = set()
    for mask in (np.eye(16, dtype=bool), ~np.eye(16, dtype=bool)):
        np.save("hits.npy", mask)
        cell = cell_of(point | {"injection": "P:ulps=1:mask=hits.npy"})
        keys.add(cell.key)
        assert measure([cell])[0].sites["P"]["hits"] == 2 * mask.sum()
    assert len(keys) == 2
    with pytest.raises(UsageError, match="mask of shape"):
        cell_of(point | {"injection": "P:ulps=1:mask=hits.npy", "T": 8})


def test_an_error_above_100_percent_is_called_that():
    """dq of which nothing is left, told as 1.73 among other numbers."""
    level = {"value": "e4m3fn", "times": (9.0, 8.0, 10.0), "gain": np.nan}
    least = Level(**level | {"value": "bf16", "times": None}, rms=0.1)
    axis = Axis(name="format", label="format", values=("bf16", "e4m3fn"))
    for rms, is_told in ((0.99, False), (1.73, True)):
        own = OfResult(
            result="dq",
            axis=axis,
            share=0.9,
            levels=[least, Level(**level, rms=rms)],
            metric="dq_rel_rms",
        )
        (line,) = words([own])
        assert ("An error above 100 % leaves nothing of dq at e4m3fn" in line) == is_told
