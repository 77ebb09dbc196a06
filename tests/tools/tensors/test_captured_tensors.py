"""Reading what a file says of a layer's call: causality, mask, scale, window, softcap, sinks."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.attention.models.capture_file import Captured, write_captures
from roundscope.tools.errors import UsageError
from roundscope.tools.tensors.layers import read_layers
from roundscope.tools.tensors.overrides import Overrides

B, N, G, T, S, H, HV = 2, 4, 2, 5, 7, 8, 3


def call(number=0, **changes):
    g = np.random.default_rng(number)
    shapes = {"q": (B, N, T, H), "k": (B, G, S, H), "v": (B, G, S, HV), "out": (B, N, T, HV)}
    shapes |= {"do": (B, N, T, HV), "dq": (B, N, T, H), "dk": (B, G, S, H), "dv": (B, G, S, HV)}
    arrays = {n: g.standard_normal(x).astype(ml_dtypes.bfloat16) for n, x in shapes.items()}
    fixed = {"number": number, "name": f"h.{number}", "scale": 0.25, "is_causal": False}
    return Captured(**fixed | arrays | changes)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "captured.safetensors"


def test_a_captured_file_is_read_as_it_is(path):
    """Every layer with its own call; no note that results were not used."""
    mask = np.random.default_rng(0).random((B, 1, T, S)) < 0.5
    sinks = np.arange(N, dtype=np.float32)
    first = call(0, mask=mask, implementation="eager", notes=("a note", "another"))
    second = call(1, is_causal=True, scale=0.1, window=3, softcap=30.0, sinks=sinks)
    write_captures(path, [first, second], {"torch": "2"})
    one, two = read_layers(path)
    for layer, made in ((one, first), (two, second)):
        for role in ("q", "k", "v", "do"):
            want = getattr(made, role).astype(np.float32).swapaxes(1, 2)
            assert np.array_equal(getattr(layer, role), want)
    assert (one.name, one.is_causal, one.scale, one.window) == ("layers.0", False, 0.25, None)
    assert np.array_equal(one.mask, mask) and one.sinks is None and one.softcap is None
    assert one.notes == ("h.0, eager", "a note; another")
    assert (two.is_causal, two.scale, two.window, two.softcap) == (True, 0.1, 3, 30.0)
    assert two.mask is None and np.array_equal(two.sinks, sinks)
    assert two.notes == ("h.1, unknown",)


def test_dropout_is_a_note(path):
    write_captures(path, [call(dropout=0.1)], {})
    assert read_layers(path)[0].notes[-1].startswith("the model dropped weights with probability")


def test_npz_says_it_by_layer_too(tmp_path):
    arrays = {f"a.{n}": getattr(call(), n).astype(np.float32) for n in ("q", "k", "v")}
    path = tmp_path / "x.npz"
    said = {"layout": "BNTH", "a.is_causal": "true", "is_causal": "false", "a.scale": "0.5"}
    np.savez(path, **arrays, **said)
    (layer,) = read_layers(path)
    assert (layer.is_causal, layer.scale) == (True, 0.5)
    assert len(layer.notes) == 1 and "nothing says how" in layer.notes[0]


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (None, ["step.0.layers.0", "step.0.layers.1", "step.4.layers.0", "step.4.layers.1"]),
        ("step.4.layers.1", ["step.4.layers.1"]),
        ("step.4.*", ["step.4.layers.0", "step.4.layers.1"]),
        ("*.layers.1,step.0.layers.0", ["step.0.layers.0", "step.0.layers.1", "step.4.layers.1"]),
    ],
)
def test_layers_and_steps_by_name_and_pattern(path, layer, names):
    write_captures(path, [call(n, step=s) for s in (0, 4) for n in (0, 1)], {})
    assert [x.name for x in read_layers(path, layer=layer)] == names


def test_layers_by_number(path):
    write_captures(path, [call(n) for n in (0, 1, 10)], {})
    assert [x.name for x in read_layers(path, layer="10,1")] == ["layers.1", "layers.10"]
    with pytest.raises(UsageError, match="unknown layer '2'"):
        read_layers(path, layer="0,2")


WRONG_TENSORS = [
    ("bias", np.zeros((T, S), bool), r"'bool': give floats, added to the scores"),
    ("bias", np.zeros((T, S + 1), np.float32), r"\(5, 8\): must broadcast"),
    ("mask", np.zeros((T, S), np.uint8), r"'uint8': give bool"),
    ("mask", np.ones((T, S + 1), bool), r"\(5, 8\): must broadcast to .* = \(2, 4, 5, 7\)"),
    ("mask", np.ones((3, 1, T, S), bool), r"\(3, 1, 5, 7\): must broadcast"),
    ("sinks", np.zeros(G, np.float32), r"\(2,\): must be \(4,\), a logit for each query head"),
]


@pytest.mark.parametrize(("name", "array", "message"), WRONG_TENSORS)
def test_wrong_tensors(path, name, array, message):
    arrays = {n: getattr(call(), n) for n in ("q", "k", "v")} | {name: array}
    save_file(arrays, path, {"layout": "BNTH"})
    with pytest.raises(UsageError, match=message) as error:
        read_layers(path)
    assert "\n" not in str(error.value) and f"tensor {name} " in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("window", "0", "metadata window 0: write how many keys"),
        ("window", "2.5", "metadata window 2.5"),
        ("softcap", "-1", "metadata softcap -1.0: write a number above 0"),
        ("softcap", "nan", "metadata softcap 'nan': write a finite number"),
        ("is_causal", "maybe", "metadata is_causal 'maybe': write true or false"),
        ("scale", "inf", "metadata scale 'inf': write a finite number"),
    ],
)
def test_wrong_metadata(path, name, text, message):
    arrays = {f"a.{n}": getattr(call(), n) for n in ("q", "k", "v")}
    save_file(arrays, path, {"layout": "BNTH", f"a.{name}": text})
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        read_layers(path)


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_a_bias_is_read_with_what_it_hides(path, name):
    """A bias that is lost, read under another name only, or whose -inf stays a number."""
    bias = np.random.default_rng(0).standard_normal((N, T, S)).astype(ml_dtypes.bfloat16)
    bias[1, 2, 3] = -np.inf
    arrays = {n: getattr(call(), n) for n in ("q", "k", "v")} | {name: bias}
    save_file(arrays, path, {"layout": "BNTH", "is_causal": "false"})
    (layer,) = read_layers(path)
    assert np.argwhere(~layer.mask).tolist() == [[0, 1, 2, 3]]
    expected = np.where(layer.mask, bias.astype(np.float32)[None], 0)
    assert layer.bias.dtype == np.float32 and np.array_equal(layer.bias, expected)
    without = read_layers(path, overrides=Overrides(**{f"has_{name}": False}))[0]
    assert without.bias is None and f"no {name} as asked" in without.notes[-1]
