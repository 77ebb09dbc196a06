"""Reading attention's tensors: layouts, types, and one line for every way that a file can be
wrong.
"""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.tools.errors import UsageError
from roundscope.tools.tensors.layers import read_layers, sample_path

B, T, S, N, G, H, HV = 1, 3, 4, 4, 2, 2, 5


def tensors(dtype=np.float32, **changes):
    """q, k, v, do in BTNH with grouped heads and a value dim of their own."""
    shapes = {
        "q": (B, T, N, H),
        "k": (B, S, G, H),
        "v": (B, S, G, HV),
        "do": (B, T, N, HV),
    } | changes
    g = np.random.default_rng(7)
    return {
        name: g.standard_normal(shape).astype(dtype)
        for name, shape in shapes.items()
        if shape is not None
    }


@pytest.fixture
def write(tmp_path):
    """Writes arrays to a file of either kind and returns its path."""

    def to(arrays, kind="safetensors", **metadata):
        path = tmp_path / f"file.{kind}"
        if kind == "npz":
            np.savez(path, **arrays, **metadata)
        else:
            save_file(arrays, path, metadata=metadata or None)
        return path

    return to


def test_sample_is_the_model_s_two_layers():
    layers = read_layers(sample_path())
    assert [layer.name for layer in layers] == ["layer1", "layer4"]
    for layer in layers:
        assert {a.shape for a in (layer.q, layer.k, layer.v, layer.do)} == {(1, 512, 12, 32)}
        assert {a.dtype for a in (layer.q, layer.k, layer.v, layer.do)} == {np.dtype(np.float32)}
        assert layer.nan_count == 0 and layer.scale == pytest.approx(32**-0.5, rel=1e-15)
        assert np.array_equal(layer.q, layer.q.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_round_trip(write, kind, dtype):
    arrays = tensors(dtype)
    (layer,) = read_layers(write(arrays, kind, layout="BTNH", scale="0.25"))
    for name, array in arrays.items():
        assert np.array_equal(getattr(layer, name), array.astype(np.float32))
    assert (layer.name, layer.scale) == ("attention", 0.25)


def test_bnth_becomes_btnh(write):
    arrays = tensors()
    turned = {name: np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for name, a in arrays.items()}
    (layer,) = read_layers(write(turned), layout="bnth")
    assert np.array_equal(layer.k, arrays["k"]) and layer.k.flags.c_contiguous


def test_argument_wins_over_metadata(write):
    assert read_layers(write(tensors(), layout="BNTH"), layout="BTNH")[0].q.shape == (B, T, N, H)


def test_layers_in_natural_order_and_one_of_them(write):
    path = write(
        {f"h.{i}.{n}": a for i in (10, 2) for n, a in tensors(do=None).items()}, layout="BTNH"
    )
    assert [layer.name for layer in read_layers(path)] == ["h.2", "h.10"]
    (layer,) = read_layers(path, layer="h.10")
    assert layer.name == "h.10" and layer.do is None


def test_other_tensors_are_left_alone(write):
    assert (
        len(read_layers(write(tensors() | {"mlp.weight": np.zeros(2, np.int32)}), layout="BTNH"))
        == 1
    )


WRONG = [
    (
        "k and v",
        tensors(v=(B, S + 1, G, HV)),
        r"k, v \(\(1, 4, 2, 2\), \(1, 5, 2, 5\)\): batch, keys",
    ),
    ("head dim", tensors(k=(B, S, G, H + 1)), "batch or head dim differ"),
    ("batch", tensors(q=(B + 1, T, N, H)), "batch or head dim differ"),
    ("heads", tensors(q=(B, T, 3, H), do=None), "query heads 3: no multiple of the 2"),
    ("do", tensors(do=(B, T, N, H)), r"must have the output's shape \(1, 3, 4, 5\)"),
    ("rank", tensors(q=(T, N, H)), r"tensor q \(3, 4, 2\): needs four axes"),
    ("empty", tensors(q=(B, 0, N, H)), "none of them empty"),
    ("missing v", tensors(v=None), "no v; it has do, k, q"),
    ("nothing", {"weight": np.zeros(2, np.float32)}, "no q, k, v; it has weight"),
    ("integers", tensors(np.int32), "tensor q 'int32': not a floating-point type"),
]


@pytest.mark.parametrize(("arrays", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_tensors(write, arrays, message):
    with pytest.raises(UsageError, match=message) as error:
        read_layers(write(arrays), layout="BTNH")
    assert "\n" not in str(error.value)


def test_a_capture_of_operations_is_told(write):
    with pytest.raises(UsageError, match=r"no q, k, v: it is a capture of operations.*compare"):
        read_layers(write({"v.0": np.zeros(2, np.float32)}, tape="{}"))


def test_wrong_layout(write):
    path = write(tensors())
    with pytest.raises(UsageError, match=r"^give --layout BNTH .*BTNH .*: the file's metadata"):
        read_layers(path)
    with pytest.raises(UsageError, match=r"layout 'NHWC'.*BNTH.*BTNH"):
        read_layers(path, layout="NHWC")


def test_unknown_layer_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown layer 'layer5'; did you mean 'layer[14]'"):
        read_layers(sample_path(), layer="layer5")


def test_scale_that_is_no_number(write):
    with pytest.raises(UsageError, match="metadata scale 'big'"):
        read_layers(write(tensors(), layout="BTNH", scale="big"))


def test_nan_is_named_counted_and_allowed_on_demand(write):
    arrays = tensors()
    arrays["q"][0, 1, 2, 0] = np.nan
    arrays["do"][0, 0, 0, :2] = np.inf
    path = write(arrays, layout="BTNH")
    with pytest.raises(UsageError, match="1 in q, 2 in do"):
        read_layers(path)
    assert read_layers(path, allow_nan=True)[0].nan_count == 3


def test_float64_beyond_float32_counts_as_infinite(write):
    arrays = tensors(np.float64)
    arrays["v"][0, 0, 0, 0] = 1e300
    assert read_layers(write(arrays, layout="BTNH"), allow_nan=True)[0].nan_count == 1


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
@pytest.mark.parametrize("keep", [0, 4, 60, 0.5, 0.9])
def test_cut_files(write, kind, keep):
    path = write(tensors(), kind, layout="BTNH")
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(UsageError, match=r"FILE .*(truncated|neither safetensors nor npz)"):
        read_layers(path)


def test_damaged_npz(write):
    path = write(tensors(), "npz", layout="BTNH")
    data = bytearray(path.read_bytes())
    data[data.index(b"NUMPY") + 200] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="truncated or damaged"):
        read_layers(path)


def test_no_file(tmp_path):
    for path, words in ((tmp_path / "none.npz", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=words):
            read_layers(path)


def test_another_kind_of_file(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("q, k and v are in the other file\n" * 9)
    with pytest.raises(UsageError, match="neither safetensors nor npz"):
        read_layers(path)
