"""Many layers and long ones: one layer in memory at a time, few pictures, and a word before."""

import re
from contextlib import nullcontext
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from roundscope.emu.formats.format import format_named
from roundscope.tools.tensors.layers import Layer, each_layer, read_layers
from roundscope.tools.trace import command, focus
from roundscope.tools.trace import run as trace_run
from roundscope.tools.trace.report import report
from roundscope.tools.trace.run import bytes_needed, observe
from roundscope.tools.trace.summary import summarise
from tests.tools.trace.inputs import asked

NAMES = ("a", "b", "c")


def held(x):
    """Return the bytes of all arrays that an object reaches; views of nothing have none."""
    if isinstance(x, np.ndarray):
        return x.nbytes if all(x.strides) or x.size < 2 else 0
    if is_dataclass(x):
        return sum(held(getattr(x, f.name)) for f in fields(x))
    if isinstance(x, dict):
        return sum(map(held, x.values()))
    return sum(map(held, x)) if isinstance(x, list | tuple) else 0


def test_a_summary_grows_with_its_rows_and_not_with_their_features():
    def summary(features):
        arrays = np.random.default_rng(0).standard_normal((4, 1, 64, 2, features))
        q, k, v, do = arrays.astype(np.float32)
        layer = Layer(name="a", q=q, k=k, v=v, do=do)
        return layer, summarise(observe(layer, asked(plan="fa2-bf16", budget=True)))

    (_, small), (layer, large) = summary(8), summary(256)
    assert large.layer.q.shape == layer.q.shape and held(large.layer) == 0
    assert held(large) - held(small) < layer.q.nbytes // 8


def test_layers_are_read_one_at_a_time(small, monkeypatch):
    path, read = small(layers=NAMES), []
    inner = np.lib.npyio.NpzFile.__getitem__
    monkeypatch.setattr(
        np.lib.npyio.NpzFile, "__getitem__", lambda f, name: (read.append(name), inner(f, name))[1]
    )
    next(iter(each_layer(path)))
    assert {name.split(".")[0] for name in read if name.endswith((".q", ".k"))} == {"a"}
    assert [x.name for x in read_layers(path)] == list(NAMES)


def test_the_least_exact_layers_are_drawn_and_the_others_say_how(run, small, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PICTURED", 2)
    folder = tmp_path / "out"
    code, _, _ = run(str(small(layers=NAMES)), "--out", str(folder), "--png")
    page = re.sub("</?span>", "", (folder / "report.html").read_text())
    each = r'<section data-layer="(\w)">(.*?)(?=<section data-layer|$)'
    sections = dict(re.findall(each, page, re.DOTALL))
    drawn = {name for name, text in sections.items() if "<svg" in text}
    [other] = set(NAMES) - drawn
    assert code == 0 and len(drawn) == 2
    assert f"--layer {other}</code>" in sections[other] and "All events" in sections[other]
    assert {p.name[0] for p in folder.glob("*.png")} == drawn


def test_each_layer_says_which_of_how_many_it_is(run, small, tmp_path, monkeypatch):
    """Twenty minutes of names, of which nobody knows how many are left."""
    told = []
    monkeypatch.setattr(command, "telling", lambda name: nullcontext(told.append))
    run(small(layers=NAMES, do=False), "--out", tmp_path / "x")
    of_layers = [x for x in told if " of 3, " in x]
    assert {x.split(", ")[1].split(":")[0] for x in of_layers if x[0] == "2"} == {"b"}
    assert of_layers[0].startswith("1 of 3, a: ") and "left" not in of_layers[0]
    assert all(x.endswith(" left") for x in of_layers if x[0] in "23")


def test_records_of_layers_are_those_of_each_alone(run, small, tmp_path):
    path = str(small(layers=NAMES))
    words = ("--record", "rows", "--record", "events:P")
    run(path, "--out", str(tmp_path / "all"), *words)
    run(path, "--out", str(tmp_path / "one"), "--layer", "b", *words)
    with np.load(tmp_path / "all/records.npz") as every, np.load(tmp_path / "one/records.npz") as b:
        assert {x.split(".")[0] for x in every.files} == set(NAMES)
        assert {"b.P.before", "b.P.after", "b.P.rows"} <= set(b.files)
        for name in b.files:
            np.testing.assert_array_equal(every[name], b[name])


def test_a_large_layer_says_its_memory_before_it_runs(run, small, monkeypatch, tmp_path):
    path = str(small(layers=NAMES))
    assert "of memory" not in run(path, "--out", str(tmp_path))[2]
    monkeypatch.setattr(trace_run, "LARGE", 1 << 20)
    assert "a needs about 0.2 GB of memory" in run(path, "--out", str(tmp_path))[2]


@pytest.mark.parametrize(("tokens", "measured"), [(2048, 0.34e9), (4096, 1.0e9), (8192, 4.5e9)])
def test_the_memory_that_is_said_is_that_which_was_measured(tokens, measured):
    """High-water marks of one head of 64 features less those of the start, on Linux."""
    x = np.broadcast_to(np.float32(0.0), (1, tokens, 1, 64))
    needed = bytes_needed(Layer(name="a", q=x, k=x, v=x, do=x), asked(block_q=128, block_k=128))
    assert measured / 1.3 < needed < 1.3 * measured


@pytest.mark.parametrize("by_error", [False, True])
def test_arguments_counted_in_parts_are_those_counted_together(monkeypatch, by_error):
    before = np.random.default_rng(1).normal(size=(2, 50)).round(1)
    after, f = before.round(0), format_named("bf16")
    values, sums = focus.by_argument(before, after, f, by_error=by_error)
    monkeypatch.setattr(focus, "AT_ONCE", 7)
    again, parts = focus.by_argument(before, after, f, by_error=by_error)
    np.testing.assert_array_equal(values, again)
    np.testing.assert_allclose(parts, sums, rtol=1e-12)


def test_large_heads_run_again_one_site_at_a_time(monkeypatch):
    arrays = np.random.default_rng(0).standard_normal((4, 1, 32, 2, 8)).astype(np.float32)
    layer = Layer(name="a", **dict(zip(("q", "k", "v", "do"), arrays, strict=True)))
    seen = observe(layer, asked(plan="fa2-bf16"))
    together = trace_run.shared_arguments(seen, ["X", "DS"])
    recorded, inner = [], trace_run.call

    def call(*words, **own):
        recorded.append(tuple(map(str, own["record"].events)))
        return inner(*words, **own)

    monkeypatch.setattr(trace_run, "call", call)
    monkeypatch.setattr(trace_run, "HEAD_BYTES", 1)
    alone = trace_run.shared_arguments(seen, ["X", "DS"])
    assert recorded == [("X",), ("DS",)]
    for site, (values, sums) in together.items():
        np.testing.assert_array_equal(alone[site][0], values)
        np.testing.assert_array_equal(alone[site][1], sums)
