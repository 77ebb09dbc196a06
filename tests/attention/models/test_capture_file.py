"""Files of captured calls: what is in them, which part of a call, and masks in plain words."""

import json
import resource
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from roundscope.attention.models import capture_file
from roundscope.attention.models.capture_file import (
    Captured,
    Choice,
    choice_given,
    finished,
    numbers_given,
    write_captures,
)

B, N, G, T, S, H, HV = 3, 4, 2, 5, 6, 8, 3
SHAPES = {
    "q": (B, N, T, H),
    "k": (B, G, S, H),
    "v": (B, G, S, HV),
    "out": (B, N, T, HV),
    "do": (B, N, T, HV),
    "dq": (B, N, T, H),
    "dk": (B, G, S, H),
    "dv": (B, G, S, HV),
}


def call(dtype=np.float32, **changes):
    g = np.random.default_rng(3)
    arrays = {name: g.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}
    return Captured(
        **{"number": 0, "name": "attn", "scale": 0.3, "is_causal": False} | arrays | changes
    )


def metadata(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size])["__metadata__"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_tensors_come_back_in_their_types(tmp_path, dtype):
    made = call(dtype)
    write_captures(tmp_path / "a.safetensors", [made], {})
    read = load_file(tmp_path / "a.safetensors")
    assert set(read) == {f"layers.0.{name}" for name in SHAPES}
    for name in SHAPES:
        array = getattr(made, name)
        assert read[f"layers.0.{name}"].dtype == array.dtype
        assert read[f"layers.0.{name}"].tobytes() == array.tobytes()


def test_transposed_arrays_are_written_as_they_read(tmp_path):
    """safetensors writes the memory of a transposed array untransposed."""
    q = np.arange(B * N * T * H, dtype=np.float32).reshape(B, T, N, H).swapaxes(1, 2)
    assert not q.flags.c_contiguous
    write_captures(tmp_path / "a.safetensors", [call(q=q)], {})
    assert load_file(tmp_path / "a.safetensors")["layers.0.q"][1, 2, 3, 4] == q[1, 2, 3, 4]


def test_metadata_stand_once_where_calls_agree(tmp_path):
    first = call(window=4, implementation="eager")
    second = call(number=7, name="h.7", scale=0.1, is_causal=True, notes=("one", "two"))
    write_captures(tmp_path / "a.safetensors", [first, second], {"torch": "9.9"})
    assert metadata(tmp_path / "a.safetensors") == {
        "format": "roundscope-capture-1",
        "torch": "9.9",
        "layout": "BNTH",
        "alignment": "top-left",
        "step": "0",
        "layers.0.scale": "0.3",
        "layers.7.scale": "0.1",
        "layers.0.is_causal": "false",
        "layers.7.is_causal": "true",
        "layers.0.implementation": "eager",
        "layers.7.implementation": "unknown",
        "layers.0.window": "4",
        "layers.7.notes": "one; two",
        "layers.0.name": "attn",
        "layers.7.name": "h.7",
    }


def test_several_steps_have_their_numbers_in_the_names(tmp_path):
    write_captures(tmp_path / "a.safetensors", [call(step=2), call(step=10)], {})
    names = {name.rpartition(".")[0] for name in load_file(tmp_path / "a.safetensors")}
    assert names == {"step.2.layers.0", "step.10.layers.0"}


def test_a_file_is_replaced_by_a_whole_one_only(tmp_path, monkeypatch):
    """Ctrl-C while a file is written: the one that was there stays, and nothing lies beside it."""
    path = tmp_path / "a.safetensors"
    write_captures(path, [call()], {})
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(capture_file.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_captures(path, [call(scale=9.0)], {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_wrong_files(tmp_path):
    with pytest.raises(ValueError, match="is a folder; name a file"):
        write_captures(tmp_path, [call()], {})
    with pytest.raises(ValueError, match=r"there is no folder .*missing"):
        write_captures(tmp_path / "missing" / "a.safetensors", [call()], {})
    with pytest.raises(ValueError, match="nothing to write"):
        write_captures(tmp_path / "a.safetensors", [], {})
    with pytest.raises(ValueError, match=r"two of layer 0 \(attn\) in step 0"):
        write_captures(tmp_path / "a.safetensors", [call(), call()], {})


def test_a_key_head_comes_with_the_query_heads_that_share_it():
    made, choice = call(), Choice(batch=(2,), heads=(1,))
    assert np.array_equal(choice.entries(made.q, G), made.q[[2]][:, [2, 3]])
    assert np.array_equal(choice.entries(made.k, G), made.k[[2]][:, [1]])
    assert np.array_equal(choice.of_sinks(np.arange(N), G), [2, 3])
    whole = Choice(batch=None)
    assert whole.entries(made.q, G) is made.q


def test_the_mask_of_a_choice():
    choice, shape = Choice(batch=(2,), heads=(1,)), (B, N, T, S)
    full = np.random.default_rng(0).random(shape) < 0.5
    assert np.array_equal(choice.of_mask(full, shape, G), full[[2]][:, [2, 3]])
    of_batch = full[:, :1, :1]
    assert np.array_equal(choice.of_mask(of_batch, shape, G), of_batch[[2]])
    assert choice.of_mask(full[0, 0], shape, G).shape == (1, 1, T, S)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(heads=(2,)), r"heads=\[2\]: there are 2 key heads, numbered from 0 to 1"),
        (Choice(batch=(0, 3)), r"batch=\[0, 3\]: there are 3 entries, numbered from 0 to 2"),
    ],
)
def test_entries_that_are_not_there(choice, message):
    with pytest.raises(ValueError, match=message):
        choice.entries(call().q, G)


def test_numbers():
    assert numbers_given("heads", 3) == (3,)
    assert numbers_given("heads", range(2)) == (0, 1)
    assert numbers_given("heads", [2, 0, 2]) == (0, 2)
    assert numbers_given("heads", None) is None
    for wrong in ("0", True, 1.5, [1.5]):
        with pytest.raises(TypeError, match=r"heads=.*give whole numbers"):
            numbers_given("heads", wrong)
    for wrong in ([], -1):
        with pytest.raises(ValueError, match=r"heads=\[.*give numbers from 0"):
            numbers_given("heads", wrong)
    with pytest.raises(ValueError, match="tokens=0: give 1 or more"):
        choice_given(heads=None, tokens=0, batch=0)


FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lowest", ["-inf", "finfo"])
def test_a_float_mask_that_only_opens_and_closes_is_a_mask(dtype, lowest):
    is_open = np.random.default_rng(0).random((B, 1, T, S)) < 0.5
    is_open[..., 0] = True
    closed = dtype(-np.inf) if lowest == "-inf" else ml_dtypes.finfo(dtype).min
    made = finished(call(mask=np.where(is_open, dtype(0), closed)), Choice())
    assert made.mask.dtype == bool and np.array_equal(made.mask, is_open)
    assert made.notes == (
        "its mask, which was added to the scores as 0 and lowest numbers, is written as bool",
    )


@pytest.mark.parametrize("hidden", [-np.inf, float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)])
def test_a_bias_stays_a_bias_and_what_it_hides_a_mask(hidden):
    """A bias in another type, or one that also hides keys, as T5 adds both, read as numbers."""
    bias = np.zeros((T, S), ml_dtypes.bfloat16)
    bias[0, 0] = -4.0
    made = finished(call(mask=bias), Choice())
    assert made.mask is None and made.bias.dtype == ml_dtypes.bfloat16
    assert np.array_equal(made.bias, bias[None, None]) and not made.notes
    bias[1, 2] = hidden
    made = finished(call(mask=bias), Choice())
    assert np.argwhere(~made.mask).tolist() == [[0, 0, 1, 2]]
    assert made.bias[0, 0, 1, 2] == 0.0 and made.bias[0, 0, 0, 0] == -4.0
    assert "the lowest numbers of a bias" in made.notes[0]


def test_masks_that_are_causal_or_open():
    causal = finished(call(mask=np.tri(T, S, dtype=bool)), Choice())
    assert causal.mask is None and causal.is_causal
    almost = np.tri(T, S, dtype=bool)[None, None].repeat(B, 0)
    almost[2, 0, 4, 1] = False
    kept = finished(call(mask=almost), Choice())
    assert not kept.is_causal and np.array_equal(kept.mask, almost)
    full = finished(call(mask=np.ones((B, 1, 1, S), bool)), Choice())
    assert full.mask is None and not full.is_causal


def test_a_mask_of_keys_alone_gets_its_rows():
    padding = np.arange(S)[None, None, None] < np.array([S, 4, 2])[:, None, None, None]
    made = finished(call(mask=padding), Choice())
    assert made.mask.shape == (B, 1, T, S) and not made.mask[2, 0, :, 2:].any()


def test_rows_without_keys_are_counted():
    mask = np.ones((B, 1, T, S), bool)
    mask[1, 0, :2] = False
    assert finished(call(mask=mask), Choice()).notes[0].startswith("2 rows of the mask see no key")


def test_a_mask_that_does_not_fit():
    with pytest.raises(ValueError, match=r"mask: shape \(7, 6\), must broadcast to .*3, 4, 5, 6"):
        finished(call(mask=np.ones((7, 6), bool)), Choice())


def attention(q, k, v, mask):
    """Return softmax(q k^T) v in binary64, each query head with its key head."""
    k, v = (x.repeat(N // G, axis=1) for x in (k, v))
    scores = np.where(mask, np.einsum("bnth,bnsh->bnts", q, k), -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e @ v / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_first_tokens_are_a_call_of_their_own(is_causal):
    """The output of the tokens that are kept needs no key that is left out."""
    made = call(np.float64, is_causal=is_causal)
    tri = np.tri(T, S, dtype=bool) if is_causal else np.ones((T, S), bool)
    part = finished(made, Choice(tokens=3))
    assert part.q.shape[2] == part.dq.shape[2] == 3
    assert part.k.shape[2] == part.v.shape[2] == (3 if is_causal else S)
    assert part.dk is None and part.dv is None
    got = attention(part.q, part.k, part.v, tri[:3, : part.k.shape[2]])
    np.testing.assert_allclose(got, attention(made.q, made.k, made.v, tri)[:, :, :3], rtol=1e-13)
    keys = 3 if is_causal else S
    assert part.notes == (
        f"the first 3 of 5 queries and {keys} of 6 keys, without dk and dv, which sum over all"
        " queries",
    )


def test_all_tokens_leave_a_call_as_it_is():
    made = call(is_causal=True)
    assert finished(made, Choice(tokens=5)) is made
    assert finished(call(), Choice(tokens=6)).dk is not None


def test_the_first_tokens_of_a_call_that_counts_from_the_last():
    """Catches keys that the kept queries see and that are cut, and an alignment that changes."""
    made = call(np.float64, is_causal=True, alignment="bottom-right")
    sees = np.tri(T, S, S - T, dtype=bool)
    part = finished(made, Choice(tokens=3))
    assert (part.k.shape[2], part.alignment) == (3 + S - T, "bottom-right")
    got = attention(part.q, part.k, part.v, np.tri(3, 3 + S - T, S - T, dtype=bool))
    np.testing.assert_allclose(got, attention(made.q, made.k, made.v, sees)[:, :, :3], rtol=1e-13)
    window = call(is_causal=False, window=2, alignment="bottom-right")
    with pytest.raises(ValueError, match="tokens=3: of 5 queries of a window"):
        finished(window, Choice(tokens=3))
    few = {n: made.k[:, :, :2] if n == "k" else made.v[:, :, :2] for n in ("k", "v")}
    with pytest.raises(ValueError, match="tokens=2: the first 3 of 5 queries see none of the 2"):
        finished(call(is_causal=True, alignment="bottom-right", **few), Choice(tokens=2))


def test_a_disk_that_is_full_is_named_with_the_file(tmp_path):
    """An error of safetensors that names no file, or half a file that is left."""
    path, (_, hard) = tmp_path / "a.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as error:
            capture_file.save_tensors(path, {"q": np.zeros(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(path) and not any(tmp_path.iterdir())
