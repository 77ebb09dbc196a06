"""Packed tensors in files: each sequence is a layer with the numbers of a call of its own."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from roundscope.attention import examine
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.reading import whole_of_file
from roundscope.tools.tensors.layers import layer_names, read_layers
from tests.checks.engines import normal

QUERIES, KEYS = [0, 24, 24, 56], [0, 40, 44, 90]
HEADS = {"q": 4, "k": 2, "v": 2, "do": 4}
ARRAYS = {
    name: normal(7 + n, 1, KEYS[-1] if name in ("k", "v") else QUERIES[-1], heads, 16)[0]
    for n, (name, heads) in enumerate(HEADS.items())
}
CALL = {"plan": "fa2", "block_q": 128, "block_k": 128, "is_causal": True}
LENGTHS = {"cu_seqlens_q": np.array(QUERIES, np.int32), "cu_seqlens_k": np.array(KEYS, np.int32)}


def results():
    """What a varlen kernel with the arithmetic of `fa2` returns: a call for each sequence."""
    found = {n: np.zeros((QUERIES[-1], 4, 16), np.float32) for n in ("out", "dq")}
    found |= {n: np.zeros((KEYS[-1], 2, 16), np.float32) for n in ("dk", "dv")}
    found["lse"] = np.zeros((4, QUERIES[-1]), np.float32)
    for n in (0, 2):
        t, s = slice(*QUERIES[n : n + 2]), slice(*KEYS[n : n + 2])
        at = {"q": t, "k": s, "v": s, "do": t}
        x = examine(
            *(ARRAYS[name][None, own] for name, own in at.items()), alignment="bottom-right", **CALL
        )
        for name, own in (("out", t), ("dq", t), ("dk", s), ("dv", s)):
            found[name][own] = getattr(x, name)[0]
        found["lse"][:, t] = x.lse[0].T
    return found


def written(path, layout="BTNH", axes=3, **changes):
    arrays = {**ARRAYS, **results(), **LENGTHS} | changes
    for name in (*HEADS, "out", "dq", "dk", "dv"):
        x = arrays[name].swapaxes(0, 1) if layout == "BNTH" else arrays[name]
        arrays[name] = np.ascontiguousarray(x if axes == 3 else x[None])
    given = {n: x for n, x in arrays.items() if x is not None}
    about = {"layout": layout, "is_causal": "true", "alignment": "bottom-right"}
    save_file(given, path, about)
    return path


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
def test_each_sequence_is_a_layer(tmp_path, layout, axes):
    """One long sequence, tokens of another one, or axes of the other layout."""
    path = written(tmp_path / "x.safetensors", layout, axes)
    first, last = read_layers(path)
    assert (first.name, last.name) == ("attention.seq0", "attention.seq2")
    assert layer_names(path) == ["attention.seq0", "attention.seq2"]
    for layer, n in ((first, 0), (last, 2)):
        for role in HEADS:
            ends = KEYS if role in ("k", "v") else QUERIES
            want = ARRAYS[role][None, ends[n] : ends[n + 1]]
            assert np.array_equal(getattr(layer, role), want)
    assert "a sequence of packed tensors: queries 24 to 55, keys 44 to 89" in last.notes
    _, about, x, outputs, _ = whole_of_file(path, layer="attention.seq2")
    whole = results()
    assert "attention.seq2" in about and x.k.shape == (1, 46, 2, 16)
    assert np.array_equal(outputs.out[0], whole["out"][24:])
    assert np.array_equal(outputs.dk[0], whole["dk"][44:])
    assert np.array_equal(outputs.lse[0], whole["lse"][:, 24:])


def test_names_of_layers_and_lengths_of_the_whole_file(tmp_path):
    """Lengths that only bare tensors have; the name of a layer that means no sequence."""
    layers = {f"h.{n}.{name}": x for n in (3, 10) for name, x in ARRAYS.items()}
    spelled = {name.replace("seqlens", "seq_lens"): x for name, x in LENGTHS.items()}
    path = tmp_path / "x.safetensors"
    save_file(layers | spelled, path, {"layout": "BTNH"})
    names = ["h.3.seq0", "h.3.seq2", "h.10.seq0", "h.10.seq2"]
    assert [x.name for x in read_layers(path)] == names
    assert [x.name for x in read_layers(path, layer="h.10")] == names[2:]
    assert [x.name for x in read_layers(path, layer="*.seq2")] == names[1::2]
    assert not any("cu_seq" in note for x in read_layers(path) for note in x.notes)


def test_scales_of_heads_multiply_packed_tensors(tmp_path):
    """The scale of the first head for all."""
    path = written(tmp_path / "x.safetensors", k_scale=np.array([0.5, 4.0], np.float32))
    layer = read_layers(path)[0]
    assert np.array_equal(layer.k[0], ARRAYS["k"][:40] * np.array([0.5, 4.0])[:, None])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cu_seqlens_q": None}, "cu_seqlens_k': needs cu_seqlens_q"),
        ({"cu_seqlens_k": None}, "last number of cu_seqlens_k 56: must be the 90 tokens of k"),
        ({"cu_seqlens_q": np.array([0, 24, 50, 55])}, "cu_seqlens_q 55: must be the 56 tokens"),
        ({"cu_seqlens_k": np.array([0, 90])}, "cu_seqlens_k 2: must be 4 numbers"),
        ({"cu_seqlens_q": np.array([0, 30, 24, 56])}, r"cu_seqlens_q .0, 30, 24, 56.: must be who"),
        ({"cu_seqlens_q": np.array([0.0, 56.0])}, "cu_seqlens_q .*: must be whole numbers"),
        ({"mask": np.ones((1, 1, 56, 90), bool)}, "mask': packed sequences have no mask"),
    ],
)
def test_wrong_lengths(tmp_path, changes, message):
    """Lengths of other tensors, which leave tokens out or begin in the middle."""
    path = written(tmp_path / "x.safetensors", **changes)
    with pytest.raises(UsageError, match=message) as error:
        read_layers(path)
    assert "\n" not in str(error.value)


def test_a_batch_is_not_packed(tmp_path):
    """The second batch entry, which no sequence has."""
    twice = {name: np.stack([x, x]) for name, x in ARRAYS.items()}
    save_file(twice | LENGTHS, tmp_path / "x.safetensors", {"layout": "BTNH"})
    with pytest.raises(UsageError, match=r"tensor q .*packed sequences are one batch entry"):
        read_layers(tmp_path / "x.safetensors")


def test_commands_read_them(roundscope, tmp_path):
    """A verb that reads the layer's tensors once more, by the name of the sequence."""
    path = written(tmp_path / "x.safetensors")
    options = ("--layer", "attention.seq2", "--json", "--budget", "200", "--out", tmp_path / "i")
    code, out, err = roundscope("identify", path, *options)
    assert code == 0, err
    found = json.loads(out)
    assert found["verdict"] == "same" and "46 keys" in found["about"]
    assert not any(found["numbers"][n]["differ"] for n in ("out", "dk", "dv"))
    options = ("--plan", "fa2", "--no-budget", "--json", "--out", tmp_path / "t")
    code, out, err = roundscope("trace", path, *options)
    assert code == 0, err
    assert [x["name"] for x in json.loads(out)["layers"]] == ["attention.seq0", "attention.seq2"]
