"""Every type, scale, note and overruling of files of tensors, in every verb that reads them."""

import json
import zipfile

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file as save_torch

from roundscope.attention import Plan, attend, error_budget, examine
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.reading import whole_of_file
from roundscope.tools.options import CallOptions
from roundscope.tools.sweep.conditions.cell import Cell
from roundscope.tools.tensors.files import TYPES, open_tensors
from roundscope.tools.tensors.layers import read_layers
from roundscope.tools.tensors.overrides import Overrides, overrides_of

B, N, T, S, H = 2, 2, 3, 5, 4
# codes of one byte and their values, by hand from the formats' definitions: 1.0, 0.5, the largest
BYTES = {
    "F8_E4M3": ([0x38, 0x30, 0x7E, 0x81], [1.0, 0.5, 448.0, -(2.0**-9)]),
    "F8_E5M2": ([0x3C, 0x38, 0x7B, 0x81], [1.0, 0.5, 57344.0, -(2.0**-16)]),
    "F8_E8M0": ([0x7F, 0x7E, 0x80, 0x00], [1.0, 0.5, 2.0, 2.0**-127]),
    "F8_E4M3FNUZ": ([0x40, 0x38, 0x7F, 0x81], [1.0, 0.5, 240.0, -(2.0**-10)]),
    "F8_E5M2FNUZ": ([0x40, 0x3C, 0x7F, 0x81], [1.0, 0.5, 57344.0, -(2.0**-17)]),
}
FLOATS = {
    "F64": np.array([1.0, 0.5, 3.0, -0.25], "<f8"),
    "F32": np.array([1.0, 0.5, 3.0, -0.25], "<f4"),
    "F16": np.array([0x3C00, 0x3800, 0x4200, 0xB400], "<u2"),
    "BF16": np.array([0x3F80, 0x3F00, 0x4040, 0xBE80], "<u2"),
}
INTEGERS = {"I8": "i1", "U8": "u1", "I16": "<i2", "U16": "<u2"}
REFUSED = {
    "F6_E2M3": (b"\0" * 3, "packed numbers whose order in memory nothing defines.*F8_E4M3 holds"),
    "F6_E3M2": (b"\0" * 3, "packed numbers.*F8_E5M2"),
    "C64": (b"\0" * 32, "complex numbers"),
    "BOOL": (b"\1" * 4, "bool': not a floating-point type; save float64"),
    "I32": (b"\0" * 16, "int32': not a floating-point type"),
    "U32": (b"\0" * 16, "uint32': not a floating-point type"),
    "I64": (b"\0" * 32, "int64': not a floating-point type"),
    "U64": (b"\0" * 32, "uint64': not a floating-point type"),
    "I8": (b"\0" * 4, "integers without a scale; add k_scale"),
}
ORDER = [0, 1, 2, 3] * (B * N * S * H // 4)


def written(path, tensors, **metadata):
    """A safetensors file written by hand: tensors are (type, shape, bytes)."""
    header, at = {"__metadata__": {"layout": "BNTH", **metadata}}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    data = b"".join(data for *_, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def f32(*shape):
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype("<f4")
    return "F32", shape, x.tobytes()


def file_of(path, kind, codes, more=None, **metadata):
    """A file whose k has a type, its numbers repeated from four codes, or from all of them."""
    data = np.resize(np.asarray(codes), B * N * S * H)
    data = (data[::2] | data[1::2] << 4).astype(np.uint8) if kind == "F4" else data
    tensors = {"q": f32(B, N, T, H), "k": (kind, (B, N, S, H), data.tobytes())}
    tensors |= {"v": f32(B, N, S, H), "out": f32(B, N, T, H)} | (more or {})
    said = {"is_causal": "true", "alignment": "bottom-right"}
    return written(path / f"{kind}.safetensors", tensors, **said | metadata)


def by_hand(kind):
    """The codes of a type, and the numbers that they are."""
    if kind in BYTES:
        codes, values = BYTES[kind]
        return np.array(codes, np.uint8), values
    if kind == "F4":  # two in a byte, the first in the low bits
        return np.array([1, 2, 7, 15], np.uint8), [0.5, 1.0, 6.0, -6.0]
    return FLOATS[kind], [1.0, 0.5, 3.0, -0.25]


@pytest.mark.parametrize("kind", [*FLOATS, *BYTES, "F4"])
def test_every_type_in_every_reader(tmp_path, kind):
    """Catches a type that a verb's reader does not know, or reads as other numbers.

    `trace` and `diagnose` read by `read_layers`, `identify` and `check` by `whole_of_file`.
    """
    codes, values = by_hand(kind)
    path = file_of(tmp_path, kind, codes)
    want = np.resize(values, (B, N, S, H)).swapaxes(1, 2).astype(np.float32)
    (layer,) = read_layers(path)
    np.testing.assert_array_equal(layer.k, want)
    np.testing.assert_array_equal(whole_of_file(path)[2].k, want)
    from roundscope.tools.sweep.conditions import inputs

    sizes = {"input": str(path), "T": T, "S": S, "N": N, "H": H, "backward": False}
    cell = Cell(parameters=tuple(sizes.items()), plan=Plan.preset("fp32"))
    np.testing.assert_array_equal(inputs.draw(cell).k, want[:1])


def test_list_of_types_is_that_of_the_library(tmp_path):
    """Catches a type that a newer safetensors writes: its error lists all that it has."""
    from safetensors import SafetensorError, safe_open

    path = written(tmp_path / "x.safetensors", {"x": ("NONE", (1,), b"\0")})
    with pytest.raises(SafetensorError) as error:
        safe_open(str(path), framework="numpy")
    known = str(error.value).partition("expected one of ")[2].split(" at ")[0]
    named = {name.strip(" `") for name in known.split(",")}
    assert named - {"F4", "F6_E2M3", "F6_E3M2"} <= set(TYPES)
    assert {*FLOATS, *BYTES, *INTEGERS, *REFUSED, "F4"} >= named


def test_pytorch_writes_these_types(tmp_path):
    """Catches bytes of PyTorch's own writer that are read as other numbers."""
    numbers = torch.linspace(-4, 4, B * N * S * H).reshape(B, N, S, H)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "bfloat16", "float16"):
        k = numbers.to(getattr(torch, name))
        x = {"q": numbers[:, :, :T].contiguous(), "k": k, "v": numbers.clone()}
        save_torch(x, tmp_path / "x.safetensors", metadata={"layout": "BNTH"})
        (layer,) = read_layers(tmp_path / "x.safetensors")
        np.testing.assert_array_equal(layer.k, k.float().numpy().swapaxes(1, 2))
        assert layer.types == ("float32", name, "float32")


@pytest.mark.parametrize("kind", REFUSED)
def test_types_that_are_refused(tmp_path, roundscope, kind):
    """Catches a traceback, or a dropped imaginary part, where one line names the tensor."""
    data, message = REFUSED[kind]
    count = 4
    tensors = {"q": f32(1, 1, 2, 2), "k": (kind, (1, 1, 2, 2), data[: len(data) // 4 * count])}
    path = written(tmp_path / "x.safetensors", tensors | {"v": f32(1, 1, 2, 2)})
    if kind.startswith("F6"):
        path = written(path, tensors | {"k": (kind, (1, 1, 2, 2), data)} | {"v": f32(1, 1, 2, 2)})
    with pytest.raises(UsageError, match=rf"tensor k '.*{message}") as error:
        read_layers(path)
    assert "\n" not in str(error.value)
    code, out, err = roundscope("trace", path, "--out", tmp_path / "o")
    assert (code, out, err) == (2, "", f"roundscope: {error.value}\n")


@pytest.mark.parametrize("verb", ["trace", "identify", "check", "diagnose"])
def test_commands_read_fp8(tmp_path, roundscope, verb):
    """Catches `module 'numpy' has no attribute 'float8_e4m3fn'` in any verb."""
    g = np.random.default_rng(0)
    tensors = {n: f32(1, 1, 32, 16) for n in ("do", "out")}
    for name in "qkv":
        x = g.standard_normal((1, 1, 32, 16)).astype(ml_dtypes.float8_e4m3fn)
        tensors[name] = "F8_E4M3", x.shape, x.tobytes()
    path = written(tmp_path / "x.safetensors", tensors, is_causal="true", k_scale="0.5")
    more = {"trace": ["--no-budget"], "identify": ["--budget", 0]}
    more["check"] = ["--only", "envelope", "--forward"]
    code, out, err = roundscope(verb, path, "--out", tmp_path / "o", *more.get(verb, []))
    assert code in (0, 1) and "Traceback" not in err
    if verb != "diagnose":
        assert "k is its float8_e4m3fn numbers times k_scale 0.5" in " ".join(out.split())


# scales


def scaled(tmp_path, more=None, kind="I8", **metadata):
    codes = np.array([1, -2, 3, 100], np.int8)
    return file_of(tmp_path, kind, codes, more, **metadata)


CODES = np.resize([1.0, -2.0, 3.0, 100.0], (B, N, S, H))


def number(*shape):
    x = (np.arange(np.prod(shape)).reshape(shape) + 1).astype("<f4") / 8
    return ("F32", shape, x.tobytes()), x


SHAPES = {  # of a tensor k_scale -> how it broadcasts to (B, N, S, H), by the letters of einsum
    (): ",bnsh->bnsh",
    (1,): None,
    (N,): "n,bnsh->bnsh",
    (B, N): "bn,bnsh->bnsh",
    (B, N, S): "bns,bnsh->bnsh",
    (B, N, S, H): "bnsh,bnsh->bnsh",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["k_scale", "k_descale", "scale_k", "kv_scale", "k_cache_scale"])
def test_scales_that_are_read(tmp_path, name, shape):
    """Catches a scale that is ignored, or one that multiplies along another axis."""
    tensor, x = number(*shape)
    (layer,) = read_layers(scaled(tmp_path, {name: tensor}))
    want = CODES * x.item() if SHAPES[shape] is None else np.einsum(SHAPES[shape], x, CODES)
    np.testing.assert_array_equal(layer.k, want.swapaxes(1, 2).astype(np.float32))
    assert f"k is its int8 numbers times {name}" in layer.notes[0]
    v = [note for note in layer.notes if note.startswith("v is")]
    assert len(v) == name.startswith("kv")


def test_scales_of_channels_blocks_and_the_other_layout(tmp_path):
    """Catches axes that are taken in the order of the other layout, and blocks of keys."""
    tensor, x = number(1, 1, 1, H)
    (layer,) = read_layers(scaled(tmp_path, {"k_scale": tensor}))
    np.testing.assert_array_equal(layer.k, (CODES * x).swapaxes(1, 2))
    tensor, x = number(1, N, 1, 2)  # two blocks of two features
    (layer,) = read_layers(scaled(tmp_path, {"k_scale": tensor}))
    np.testing.assert_array_equal(layer.k, (CODES * x.repeat(2, -1)).swapaxes(1, 2))
    tensor, x = number(B, N)
    codes = np.array([1, -2, 3, 100], np.int8)
    data = np.resize(codes, B * S * N * H).tobytes()
    q, v = f32(B, T, N, H), f32(B, S, N, H)
    more = {"q": q, "v": v, "k": ("I8", (B, S, N, H), data), "k_scale": tensor}
    path = written(tmp_path / "y.safetensors", more, layout="BTNH")
    (layer,) = read_layers(path)
    own = np.resize(codes, (B, S, N, H)).astype(np.float64)
    np.testing.assert_array_equal(layer.k, own * x[:, None, :, None])


def test_scale_of_metadata_is_binary32_and_products_round_once(tmp_path):
    """Catches a scale taken in binary64, and a product that is rounded twice or not said to be."""
    from fractions import Fraction

    path = scaled(tmp_path, k_scale="0.1")
    (layer,) = read_layers(path)
    scale = Fraction(float(np.float32(0.1)))
    for code, got in zip(CODES.reshape(-1)[:4], layer.k[0, 0, 0], strict=True):
        assert got == np.float32(float(scale * Fraction(code)))
    assert "products rounded to float32" in layer.notes[0]
    (raw,) = read_layers(path, overrides=Overrides(has_scales=False))
    np.testing.assert_array_equal(raw.k, CODES.swapaxes(1, 2))
    assert "k as it is stored, as asked, although the file has k_scale" in raw.notes


@pytest.mark.parametrize(
    ("more", "metadata", "message"),
    [
        ({}, {"k_scale_inv": "2"}, "metadata 'k_scale_inv': a scale that is not read"),
        ({}, {"p_scale": "2"}, "metadata 'p_scale': a scale that is not read"),
        ({}, {"softmax_scale": "0.1"}, "metadata 'softmax_scale'.*the scores are as scale"),
        ({"k_zero_point": f32(N)}, {"k_scale": "1"}, "tensor 'k_zero_point': a scale that is not"),
        ({"k_scale": f32(3)}, {}, r"scale k_scale \(3,\): fits no tensor \(2, 2, 5, 4\), BNTH"),
        ({}, {"k_scale": "nan"}, "metadata k_scale 'nan': write a finite number"),
        ({}, {"k_scale": "1e39"}, "metadata k_scale '1e39': beyond binary32"),
        ({}, {"k_scale": "0"}, "scale 'k_scale': has a number that is not finite, or 0"),
        ({}, {"k_scale": "1", "kv_scale": "1"}, "two scales of one tensor"),
    ],
)
def test_scales_that_are_refused(tmp_path, more, metadata, message):
    """Catches a scale that is ignored, since its name or its shape is not known."""
    with pytest.raises(UsageError, match=message) as error:
        read_layers(scaled(tmp_path, more, **metadata))
    assert "\n" not in str(error.value)


# npz


def npz(path, **more):
    g = np.random.default_rng(0)
    x = {n: g.standard_normal((1, 4, 2, 3)).astype(np.float32) for n in "qkv"}
    np.savez(path, **x | {"layout": "BTNH"} | more)
    return path


def test_npz_of_ml_dtypes(tmp_path):
    """Catches words of two bytes of another type, and words of one byte without a repair."""
    k = np.arange(24).reshape(1, 4, 2, 3)
    path = npz(tmp_path / "x.npz", k=k.astype(ml_dtypes.float8_e5m2))
    with pytest.raises(UsageError, match=r"tensor 'k': .*'<f1': NumPy has no such type; np.savez"):
        read_layers(path)
    k = k.astype(ml_dtypes.float8_e4m3fn)
    path = npz(tmp_path / "x.npz", k=k)
    with pytest.raises(UsageError, match=r"tensor k '\|V1': np.savez writes no types.*k\.dtype"):
        read_layers(path)
    (layer,) = read_layers(npz(path, **{"k": k, "k.dtype": "float8_e4m3fn"}))
    np.testing.assert_array_equal(layer.k, k.astype(np.float32))
    for wrong in ("bfloat16", "float8", "finfo"):
        with pytest.raises(UsageError, match=f"k.dtype '{wrong}': no type of ml_dtypes with 1"):
            read_layers(npz(path, **{"k": k, "k.dtype": wrong}))


def test_npz_from_outside(tmp_path):
    """Catches tracebacks, and messages without the tensor, of what somebody else wrote."""
    path = tmp_path / "x.npz"

    def refused(message):
        with pytest.raises(UsageError, match=message) as error:
            read_layers(path, layout="BTNH")
        assert "\n" not in str(error.value)

    with zipfile.ZipFile(path, "w") as file:
        for name in ("q", "k", "v"):
            file.writestr(name, "text")
    refused("tensor 'q': a file that is no array")
    npz(path, q=np.array([None, 1]))
    refused("tensor 'q': an array of Python objects")
    npz(path, layout=np.array(["BNTH", None], object))
    refused("tensor 'layout': an array of Python objects")
    npz(path, k=np.zeros((1, 4, 2, 3), complex))
    refused("tensor k 'complex128': complex numbers")
    npz(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    for old, new, message in (
        (b"(1, 4, 2, 3)", b"(1, 4, 2, 3" + b"0" * 12 + b")", r"more than it has"),
        (b"(1, 4, 2, 3)", b"(-1, 4, 2, 3)", "cannot be read"),
        (b"'descr'", b"'d-scr'", "cannot be read"),
    ):
        with zipfile.ZipFile(path, "w") as file:
            for name, data in members.items():
                is_q = name == "q.npy"
                data = data.replace(old.ljust(len(new)), new) if is_q else data
                data = data.replace(old + b" " * (len(new) - len(old)), new) if is_q else data
                if is_q and new not in data:  # the padding of the header takes what is longer
                    at = data.index(old)
                    end = data.index(b"\n")
                    text = (data[:at] + new + data[at + len(old) : end]).rstrip()
                    data = text.ljust(end)[:end] + data[end:]
                file.writestr(name, data)
        refused(f"tensor 'q': .*{message}")
    raw = bytearray(npz(path).read_bytes())
    for at in (raw.index(b"PK\x03\x04") + 6, raw.index(b"PK\x01\x02") + 8):
        raw[at] |= 1  # the flag of an encrypted member
    path.write_bytes(raw)
    refused("tensor 'q': cannot be read .*encrypted")
    raw = bytearray(npz(path).read_bytes())
    for at in (raw.index(b"PK\x03\x04") + 8, raw.index(b"PK\x01\x02") + 10):
        raw[at] = 97  # a compression that Python does not have
    path.write_bytes(raw)
    refused("tensor 'q': cannot be read .*compression")


def test_names_of_layers_that_are_no_numbers(tmp_path):
    """Catches int() of a digit that is none, and of thousands of them."""
    g = np.random.default_rng(0)
    names = ("x²", "x" + "9" * 5000, "x10", "x2")
    x = {f"{p}.{n}": g.standard_normal((1, 2, 1, 2)).astype("f4") for p in names for n in "qkv"}
    np.savez(tmp_path / "x.npz", **{n: a for n, a in x.items() if len(n) < 99}, layout="BTNH")
    assert [each.name for each in read_layers(tmp_path / "x.npz")] == ["x2", "x10", "x²"]
    from roundscope.tools.tensors.layers import natural

    assert sorted(names[1:], key=natural) == ["x2", "x10", names[1]]
    with pytest.raises(UsageError, match="unknown layer"):
        read_layers(tmp_path / "x.npz", layer="9" * 5000)


# what a file says, and what overrules it


def said(tmp_path, **metadata):
    more = {"mask": ("BOOL", (T, S), b"\1" * (T * S)), "sinks": f32(N)}
    usual = {"window": "2", "softcap": "30", "scale": "0.25"}
    return file_of(tmp_path, "F32", FLOATS["F32"], more, **usual | metadata)


def test_everything_can_be_overruled(tmp_path, roundscope):
    """Catches metadata that 0 or none cannot switch off, in the readers and in each verb."""
    path = said(tmp_path)
    (own,) = read_layers(path)
    assert (own.window, own.softcap, own.scale, own.is_causal) == (2, 30.0, 0.25, True)
    assert own.alignment == "bottom-right" and own.mask is not None and own.sinks is not None
    none = {"window": "0", "softcap": "none", "scale": "none", "sinks": "none", "mask": "none"}
    given = overrides_of(CallOptions(causal=False, alignment="top-left", **none))
    (layer,) = read_layers(path, overrides=given)
    x = whole_of_file(path, overrides=given)[2]
    for each in (layer, x):
        assert (each.window, each.softcap, each.mask, each.sinks) == (None,) * 4
        assert (each.is_causal, each.alignment) == (False, "top-left")
    assert layer.scale is None and x.scale == H**-0.5
    text = "; ".join(layer.notes)
    for what in ("window none", "softcap none", "scale none", "is_causal false", "no mask"):
        assert f"{what} as asked, although the file" in text
    given = overrides_of(CallOptions(window="4", softcap="1", scale="2.0"))
    (other,) = read_layers(path, overrides=given)
    assert (other.window, other.softcap, other.scale) == (4, 1.0, 2.0)
    flags = [f"--{name}={value}" for name, value in none.items()] + ["--full"]
    for verb, more in {"trace": ["--no-budget"], "identify": ["--budget=0"]}.items():
        code, out, _ = roundscope(verb, path, "--out", tmp_path / verb, *flags, *more)
        assert code == 0 and "window none as asked" in " ".join(out.split())
    code, _, err = roundscope("diagnose", path, "--out", tmp_path / "o")
    assert code == 2 and "has a mask" in err
    code, _, err = roundscope(
        "diagnose", path, "--out", tmp_path / "o", *flags
    )  # too few tokens, but no mask or window
    assert code == 2 and "mask" not in err and "window" not in err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("window", "-1", "above 0"),
        ("window", "1.5", "at most"),
        ("window", "1e30", "at most"),
        ("softcap", "-2", "above 0"),
        ("softcap", "1e39", "beyond binary32"),
        ("scale", "0", "other than 0"),
        ("scale", "1e-50", "beyond binary32"),
        ("sinks", "1", "write none"),
        ("mask", "all", "write none"),
        ("scales", "all", "write none"),
        ("alignment", "bottom", "did you mean 'bottom-right'|Known: top-left"),
    ],
)
def test_wrong_overruling(option, value, message):
    """Catches a value that is taken for another one."""
    with pytest.raises(UsageError, match=rf"--{option} .*({message})"):
        overrides_of(CallOptions(**{option: value}))


@pytest.mark.parametrize(
    ("name", "value"), [("softcap", "1e39"), ("scale", "1e39"), ("scale", "1e-50")]
)
def test_metadata_beyond_binary32(tmp_path, name, value):
    """Catches results that are all NaN since a softcap or a scale is infinite in binary32."""
    with pytest.raises(UsageError, match=f"metadata {name} '{value}': beyond binary32"):
        read_layers(said(tmp_path, **{name: value}))


def test_window_beyond_all_integers(tmp_path):
    """Catches `Python int too large to convert to C long`."""
    with pytest.raises(UsageError, match=r"metadata window 1e\+30: write how many keys"):
        read_layers(said(tmp_path, window="1e30"))
    x = np.zeros((1, 2, 1, 2), "f4")
    with pytest.raises(ValueError, match="window=1000"):
        attend(x, x, x, plan="fp32", window=10**30)
    with pytest.raises(ValueError, match="softcap=1e"):
        attend(x, x, x, plan="fp32", softcap=1e39)


def test_what_is_not_read_is_named(tmp_path):
    """Catches metadata and tensors that are dropped in silence, and captures that are scolded."""
    path = file_of(
        tmp_path,
        "F32",
        FLOATS["F32"],
        {"beta": f32(1)},
        sliding_window="3",
        format="pt",
        causal="1",
    )
    (layer,) = read_layers(path)
    assert layer.notes == (
        "not used: beta",
        "metadata that are not read: causal, sliding_window",
    )


def test_alignment_of_files(tmp_path, roundscope):
    """Catches fewer queries than keys without a word on their alignment, in each verb."""
    g = np.random.default_rng(0)
    x = {n: g.standard_normal((1, s, 1, 8)).astype("f4") for n, s in (("q", 4), ("k", 9), ("v", 9))}
    sees = np.tri(4, 9, 5, dtype=bool)
    for name, call in (("top", {"is_causal": True}), ("bottom", {"mask": sees})):
        out = attend(x["q"], x["k"], x["v"], plan="fa2-bf16", **call)
        np.savez(tmp_path / name, **x, out=out, layout="BTNH", is_causal="true")
    (layer,) = read_layers(tmp_path / "top.npz")
    note = layer.notes[0]
    assert "causal call of 4 queries and 9 keys, aligned at the top left" in note
    check = ["--only", "envelope", "--forward"]
    for verb, more in {
        "trace": ["--no-budget"],
        "identify": ["--budget=0"],
        "check": check,
    }.items():
        _, out, _ = roundscope(verb, tmp_path / "top.npz", "--out", tmp_path / verb, *more)
        assert "aligned at the top left" in " ".join(out.split()), verb
    assert "aligned at the top left" in (tmp_path / "trace" / "report.html").read_text()
    assert "aligned at the top left" in (tmp_path / "check" / "report.html").read_text()
    how = ["--alignment", "bottom-right", "--budget=200", "--out", tmp_path / "b"]
    _, out, _ = roundscope("identify", tmp_path / "bottom.npz", *how)
    assert "These are the numbers" in out and "aligned bottom-right" in " ".join(out.split())
    assert "aligned at the top left" not in " ".join(out.split())


# FP16


def test_plans_follow_fp16(tmp_path, roundscope):
    """Catches BF16's error reported of FP16 tensors without a word: the default plan, the notes."""
    g = np.random.default_rng(0)
    q, k, v = g.standard_normal((3, 1, 64, 1, 16)).astype(np.float16)
    fp16, bf16 = (error_budget(q, k, v, plan=plan) for plan in ("fa2-fp16", "fa2"))
    assert error_budget(q, k, v).plan == "fa2-fp16" and not fp16.notes
    assert bf16.total["out"] > 5 * fp16.total["out"]
    (note,) = bf16.notes
    assert note.startswith("q is float16, and the plan fa2 rounds it to bf16")
    assert examine(q, k, v, plan="fa2").notes == (note,)
    np.savez(tmp_path / "x.npz", q=q, k=k, v=v, layout="BTNH")
    for more, expected in (
        ((), "fa2-fp16, tile"),
        (("--plan", "fa2"), note),
        (("--set", "O=bf16"), "fa2-fp16 with O=bf16"),
    ):
        _, out, _ = roundscope(
            "trace", tmp_path / "x.npz", "--no-budget", "--out", tmp_path / "o", *more
        )
        assert expected in " ".join(out.split())
    wide = [x.astype(ml_dtypes.bfloat16) for x in (q, k, v)]
    assert error_budget(*wide).plan == "fa2" and error_budget(*wide).notes == ()
    assert "rounds it to fp16" in examine(*wide, plan="fa2-fp16").notes[0]


def test_names_of_plans_in_fp16():
    """Catches a suffix that changes other formats, or that is accepted where it means nothing."""
    own, plain = Plan.preset("fa3-fp8-fp16"), Plan.preset("fa3-fp8")
    assert own["P"] == plain["P"] and (str(plain["OUT"]), str(own["OUT"])) == ("bf16", "fp16")
    assert own.accumulator("S") == plain.accumulator("S") and own.name == "fa3-fp8-fp16"
    with pytest.raises(ValueError, match="preset 'fp32-fp16': fp32 has no event in BF16"):
        Plan.preset("fp32-fp16")


def test_use_warns_of_fp16():
    """Catches `use(model, "fa2")` that rounds an FP16 model to BF16 without a word."""
    from roundscope.torch import use

    class Attention(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model, x = Attention(), torch.randn(1, 1, 4, 8).half()
    with use(model, "fa2"), pytest.warns(UserWarning, match="q is float16, and the plan fa2"):
        model(x)
    with use(model, "fa2-fp16"):
        assert model(x).dtype is torch.float16


def test_complex_and_masked_arrays_are_refused():
    """Catches an imaginary part, or a mask, that is dropped."""
    x = np.zeros((1, 2, 1, 2), "f4")
    with pytest.raises(TypeError, match=r"q: dtype complex64, must be real"):
        attend(x.astype("c8"), x, x, plan="fp32")
    with pytest.raises(TypeError, match="v: a masked array, whose mask would be lost"):
        attend(x, x, np.ma.masked_array(x, x == 0), plan="fp32")


def test_open_tensors_gives_types(tmp_path):
    """Catches arrays that lose their type before anybody looks at it."""
    with open_tensors(file_of(tmp_path, "F8_E4M3", np.array([0x38], np.uint8))) as file:
        assert file.array("k").dtype == ml_dtypes.float8_e4m3fn
