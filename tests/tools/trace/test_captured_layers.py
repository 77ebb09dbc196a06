"""Tracing a layer as its call was: causality, mask, window, softcap and sinks of the file."""

import json
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import examine
from roundscope.attention.models.capture_file import Captured, write_captures
from roundscope.tools.errors import UsageError
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.focus import existing
from roundscope.tools.trace.heads import of_heads
from roundscope.tools.trace.run import observe
from roundscope.tools.trace.served import plan_for, settled, visible
from roundscope.tools.trace.summary import summarise
from tests.tools.trace.inputs import asked, tensors

T, S, N, G, HV = 40, 40, 4, 2, 4
ROLES = ("q", "k", "v", "do")


def layer(**changes):
    arrays = {n.partition(".")[2]: x for n, x in tensors(t=T, s=S).items()}
    return Layer(name="a", **arrays | changes)


def random_mask(heads=1, seed=0):
    mask = np.random.default_rng(seed).random((1, heads, T, S)) < 0.3
    mask[..., 16:32, :16] = False  # a tile that no query sees
    mask[..., 5] = True
    return mask


def captured(number, x, **changes):
    """The layer as a capture has it."""
    arrays = {role: getattr(x, role).swapaxes(1, 2) for role in ROLES}
    fixed = {"number": number, "name": "attn", "scale": 0.3, "is_causal": False}
    return Captured(**fixed | arrays | changes)


@pytest.mark.parametrize("plan", ["fa2-bf16", "qiu-yao", "baseline-bf16"])
def test_keys_that_the_mask_closes_for_all_are_as_if_absent(plan):
    """Padding, which costs results if the mask is lost, and heads whose mask is another's."""
    x = layer()
    mask = np.broadcast_to(np.arange(S) < 32, (1, 1, T, S))
    short = replace(x, k=x.k[:, :32], v=x.v[:, :32])
    masked, cut = (observe(y, asked(plan=plan)) for y in (replace(x, mask=mask), short))
    for name in ("out", "lse", "delta", "dq"):
        assert np.array_equal(masked.results[name], cut.results[name]), name
    for name in ("dk", "dv"):
        assert np.array_equal(masked.results[name][:, :32], cut.results[name])
        assert not masked.results[name][:, 32:].any()
    of_all, of_cut = (y.trace.stats["P"].total() for y in (masked, cut))
    assert (of_all.n, of_all.error) == (of_cut.n, of_cut.error)


def test_each_head_has_its_own_mask_however_heads_are_split(monkeypatch):
    x = layer(mask=random_mask(heads=N))
    whole = observe(x, asked())
    monkeypatch.setattr("roundscope.tools.trace.run.CHUNK_BYTES", 1)
    split = observe(x, asked())
    exact = exactly(x, x.mask)
    assert np.array_equal(whole.results["out"], split.results["out"])
    np.testing.assert_allclose(whole.reference["out"], exact, rtol=1e-12, atol=1e-14)


def exactly(x, mask, scale=8**-0.5):
    """softmax(scale q k^T) v in binary64 under a mask."""
    q, k, v = (np.float64(a).swapaxes(1, 2) for a in (x.q, x.k, x.v))
    k, v = (a.repeat(N // G, axis=1) for a in (k, v))
    scores = np.where(mask, scale * q @ k.swapaxes(2, 3), -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e @ v / e.sum(-1, keepdims=True)).swapaxes(1, 2)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_window_is_what_its_mask_says(is_causal):
    t, s = np.indices((T, S))
    near = (s - t < 7) & (t - s < 7) & ((s <= t) | (not is_causal))
    x = layer(window=7, is_causal=is_causal)
    request = settled(asked(causal=None), x)
    assert request.causal is is_causal
    assert np.array_equal(np.broadcast_to(visible(x, request), (1, 1, T, S))[0, 0], near)
    seen = observe(x, asked(causal=None))
    np.testing.assert_allclose(seen.reference["out"], exactly(x, near), rtol=1e-12, atol=1e-14)


def test_softcap_and_sinks_take_part():
    sinks = np.linspace(-1.0, 1.0, N, dtype=np.float32)
    x = layer(softcap=2.0, sinks=sinks, is_causal=True)
    seen = observe(x, asked(plan="fa2-bf16", causal=None))
    options = {"softcap": 2.0, "sinks": sinks, "is_causal": True, "block_q": 16, "block_k": 16}
    want = examine(x.q, x.k, x.v, x.do, plan="fa2-bf16", **options)
    for name in ("out", "dq", "dk", "dv"):
        assert np.array_equal(seen.results[name], getattr(want, name)), name
    assert summarise(seen).events


def test_the_rows_of_a_tile_that_have_events():
    """The trace counts as many events as a causal call has pairs of a query and a key."""
    x = layer(mask=random_mask())
    seen = observe(x, asked(plan="qiu-yao"))
    counted = seen.trace.stats["PV"].n
    there = np.broadcast_to(seen.exists, (2, N, *seen.exists.shape[2:]))
    assert np.array_equal(there.sum((2, 3)) * HV, counted)
    tri = np.tri(T, S, dtype=bool)[None, None]
    assert np.array_equal(
        existing(T, S, 16, 8, False, tri)[0, 0], existing(T, S, 16, 8, causal=True)
    )


def test_the_running_error_sees_the_keys_of_its_row():
    x = layer(mask=random_mask())
    run = summarise(observe(x, asked())).running
    _, _, row, _ = run.where
    assert np.array_equal(run.p > 0.0, x.mask[0, 0, row])


def test_a_layer_is_causal_as_its_file_says(run, tmp_path):
    """Two layers of one file, a causal one and another; the command may say otherwise."""
    x, path = layer(), tmp_path / "a.safetensors"
    write_captures(path, [captured(0, x, is_causal=True), captured(1, x)], {})
    code, out, _ = run(path, "--out", tmp_path / "x", "--json")
    data = json.loads(out)
    assert code == 0 and not data["causal"]
    assert [y["causal"] for y in data["layers"]] == [True, False]
    assert {y["scale"] for y in data["layers"]} == {0.3}
    digests = [y["digests"]["outputs"]["out"] for y in data["layers"]]
    assert digests[0] != digests[1]
    for flag, want in (("--causal", digests[0]), ("--full", digests[1])):
        _, out, _ = run(path, flag, "--out", tmp_path / flag, "--json")
        layers = json.loads(out)["layers"]
        assert {y["digests"]["outputs"]["out"] for y in layers} == {want}


def test_the_command_shows_the_call(run, tmp_path):
    x, path = layer(), tmp_path / "a.safetensors"
    more = {"mask": random_mask(), "window": 30, "implementation": "eager", "out": x.do[..., :1]}
    write_captures(path, [captured(3, x, **more)], {})
    code, out, err = run(path, "--layer", "3", "--out", tmp_path / "x")
    text = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "layers.3: qiu-yao, tile 128 x 128, masked, window 30" in text
    assert "attn, eager" in text and "not used" not in text


def test_the_command_shows_how_a_capture_ended_and_what_ran(run, tmp_path):
    """An error in it, a CPU whose kernel has a GPU's name, and the error of the file's own output.

    That output is 1.25 times the exact one, so its relative rms error is 0.25.
    """
    x, path = layer(), tmp_path / "a.safetensors"
    exact = examine(x.q, x.k, x.v, plan="exact", scale=0.3).out
    out = (1.25 * exact).astype("f4").swapaxes(1, 2)
    about = {"torch": "2.13", "device": "x86_64", "remark": "ended by KeyError"}
    write_captures(path, [captured(0, x, implementation="sdpa flash", out=out)], about)
    text = " ".join(run(path, "--out", tmp_path / "x")[1].split())
    assert "the capture was ended by KeyError, so layers, calls and gradients may be" in text
    assert "sdpa flash captured on a CPU (x86_64): another kernel than on a GPU" in text
    assert "output in the file, against exact attention: 2.50e-01; of that of the plan" in text
    on_gpu = {"torch": "2.13", "device": "NVIDIA H100", "cuda": "13.0"}
    write_captures(path, [captured(0, x, implementation="sdpa flash")], on_gpu)
    text = run(path, "--out", tmp_path / "y")[1]
    assert "CPU" not in text and "ended" not in text and "in the file" not in text


def test_a_request_for_causality_has_a_folder_of_its_own(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_captures(tmp_path / "a.safetensors", [captured(0, layer(), is_causal=True)], {})
    for flags in ((), ("--full",), ("--causal",)):
        assert run("a.safetensors", *flags)[0] == 0
    assert len(list(tmp_path.glob("trace-a-*"))) == 3


def test_each_head_has_its_own_bias_however_heads_are_split(monkeypatch):
    """A bias of another head; a default plan that adds none, or one that drops it in silence."""
    x = layer(bias=np.random.default_rng(0).standard_normal((1, N, T, S)).astype("f4"))
    whole = observe(x, asked(plan="fa2-bf16"))
    tiles = {"block_q": 16, "block_k": 16}
    expected = examine(x.q, x.k, x.v, x.do, plan="fa2-bf16", bias=x.bias, **tiles)
    monkeypatch.setattr("roundscope.tools.trace.run.CHUNK_BYTES", 1)
    split = observe(x, asked(plan="fa2-bf16"))
    for name in ("out", "lse", "dq", "dk", "dv"):
        assert np.array_equal(whole.results[name], split.results[name])
        assert np.array_equal(whole.results[name], getattr(expected, name)), name
    one = of_heads(x, (2, 3)).bias
    assert np.array_equal(one, x.bias[:, 2:]) and one.shape[1] == 2
    assert plan_for([x], None) == "sdpa-efficient" and plan_for([x], "fa2") == "fa2"
    with pytest.raises(UsageError, match="has a bias: fa2 multiplies"):
        settled(asked(plan="fa2"), x)


def test_chosen_heads_have_the_numbers_that_they_have_among_all(run, small, tmp_path):
    """Keys, a mask, sinks or a scale of another head; a group whose dK is a part of the sum."""
    x = layer(mask=random_mask(heads=N), sinks=np.float32([0.5, 1, 2, 3]))
    x = replace(x, scales={"descale_k": np.float32([[1, 2], [3, 4]]), "scale_s": np.float32(2)})
    own, whole = of_heads(x, (2, 3)), observe(x, asked())
    alone = observe(own, asked())
    for name, heads in (("out", [2, 3]), ("dq", [2, 3]), ("dk", [1]), ("dv", [1])):
        assert np.array_equal(alone.results[name], whole.results[name][:, :, heads]), name
    assert own.scales["descale_k"].tolist() == [[2], [4]] and own.scales["scale_s"] == 2
    assert "heads 2, 3 of 4; below they are numbered from 0" in own.notes
    assert of_heads(x, None) is x
    for text, repair in {
        "2": "--heads '2': 2 query heads share a key head; give 2,3",
        "4,5": "--heads 5: layer a has 4, numbered from 0",
        "x": "--heads 'x': no whole number from 0",
    }.items():
        code, _, error = run(small(), "--heads", text, "--out", tmp_path / "out")
        assert (code, repair in error) == (2, True), error
    assert not (tmp_path / "out").exists()
