"""`capture` of tapped attention: the file that the commands read, and what it refuses."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from roundscope.jax import capture, tap
from roundscope.tools.tensors.layers import read_layers
from tests.attention.jax import exact

Q, K, V, W = np.random.default_rng(0).standard_normal((4, 2, 8, 4, 8))
attention = jax.nn.dot_product_attention
mixing = partial(
    jax.numpy_dtype_promotion, "standard"
)  # which jax.nn needs for other than binary32


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_what_is_captured_is_attention_and_its_gradients(tmp_path, is_causal, has_mask):
    """Tensors of one layer by the formula, from the captured q, k, v and do."""
    mask = np.random.default_rng(3).random((2, 1, 8, 8)) < 0.7
    mask |= np.eye(8, dtype=bool)
    mask = mask if has_mask else None
    own = tap(attention)

    def loss(q, k, v):
        return (W * own(q, k, v, is_causal=is_causal, mask=mask, scale=0.5, layer=7)).sum()

    path = tmp_path / "qkv.safetensors"
    with jax.enable_x64(True), mixing(), capture(path, batch=None) as calls:
        jax.jit(jax.grad(loss))(Q, K, V)
    (call,) = calls
    assert (call.number, call.name, call.scale, call.is_causal) == (7, "layers.7", 0.5, is_causal)
    named = {name: getattr(call, name).swapaxes(1, 2) for name in ("q", "k", "v", "do")}
    for name, x in zip(named, (Q, K, V, W), strict=True):
        assert np.array_equal(named[name], x), name
    expected = exact.attention(*named.values(), scale=0.5, is_causal=is_causal, mask=mask)
    for name, x in zip(("out", "dq", "dk", "dv"), expected, strict=True):
        assert getattr(call, name).dtype == np.float64
        # jax.nn computes the softmax in binary32 whatever its inputs are
        np.testing.assert_allclose(getattr(call, name), x.swapaxes(1, 2), rtol=0, atol=2e-6)
    assert (call.mask is None) == (mask is None)
    assert mask is None or np.array_equal(np.broadcast_to(call.mask, mask.shape), mask)


def test_the_commands_read_the_file(tmp_path):
    path, own = tmp_path / "qkv.safetensors", tap(attention, "blocks.0.attention")
    q, k, v, w = (jnp.asarray(x, "bfloat16") for x in (Q, K[:, :, :2], V[:, :, :2], W))
    with mixing(), capture(path, heads=1):
        jax.grad(lambda q: (w * own(q, k, v, is_causal=True)).astype("float32").sum())(q)
    (layer,) = read_layers(path)
    assert layer.q.shape == layer.do.shape == (1, 8, 2, 8) and layer.k.shape == (1, 8, 1, 8)
    assert np.array_equal(layer.q, np.asarray(q[:1, :, 2:], "f4"))  # of key head 1: 2 and 3
    assert np.array_equal(layer.do, np.asarray(w[:1, :, 2:], "f4"))
    with safe_open(path, "np") as file:
        about = file.metadata()
        assert file.get_tensor("layers.0.q").dtype == ml_dtypes.bfloat16
    assert about["layout"] == "BNTH" and about["is_causal"] == "true"
    assert float(about["scale"]) == 1 / math.sqrt(8) and about["jax"] == jax.__version__
    assert about["implementation"] == "dot_product_attention"


def test_layers_steps_and_tokens_are_chosen(tmp_path):
    path, taps = tmp_path / "qkv.safetensors", [tap(attention, f"h.{n}") for n in range(3)]
    with capture(path, layers="0-1", steps=[0, 2], tokens=5) as calls:
        for step in range(3):
            for own in taps:
                own(jnp.asarray(Q, "f4") + step, K.astype("f4"), V.astype("f4"), is_causal=True)
    assert [(c.step, c.number, c.name) for c in calls] == [
        (0, 0, "h.0"), (0, 1, "h.1"), (2, 0, "h.0"), (2, 1, "h.1")
    ]  # fmt: skip
    assert all(c.q.shape == (1, 4, 5, 8) and c.do is None for c in calls)
    assert np.array_equal(calls[2].q[0, 0], Q.astype("f4")[0, :5, 0] + 2)


def test_a_layer_of_a_scan_is_chosen_by_its_number(tmp_path):
    own = tap(attention)

    def layer(x, number):
        return own(x, x, x, layer=number), None

    with capture(tmp_path / "qkv.safetensors", layers=[1]) as calls:
        jax.lax.scan(layer, Q.astype("f4"), jnp.arange(3))
    assert [(c.number, c.name) for c in calls] == [(1, "layers.1")]


def test_an_exception_writes_what_there_is(tmp_path):
    path = tmp_path / "qkv.safetensors"

    def interrupted():
        tap(attention, "own")(Q.astype("f4"), K.astype("f4"), V.astype("f4"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), capture(path):
        interrupted()
    assert len(read_layers(path)) == 1


def test_nothing_captured_is_an_error_that_says_what_was_heard(tmp_path):
    path = tmp_path / "qkv.safetensors"
    unheard = pytest.raises(RuntimeError, match="no function that `tap` returned was called")
    with unheard, capture(path):
        attention(Q.astype("f4"), K.astype("f4"), V.astype("f4"))
    others = pytest.raises(RuntimeError, match="but heard were 0 own: 0 calls")
    with others, capture(path, layers=[5]):
        tap(attention, "own")(Q.astype("f4"), K.astype("f4"), V.astype("f4"))
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"heads": 4}, ValueError, "heads"),
        ({"batch": 2}, ValueError, "batch"),
        ({"tokens": 0}, ValueError, "tokens=0"),
        ({"steps": -1}, ValueError, "steps"),
        ({"heads": "all"}, TypeError, "heads='all'"),
    ],
)
def test_wrong_choices(tmp_path, options, error, message):
    with pytest.raises(error, match=message), capture(tmp_path / "a.safetensors", **options):
        tap(attention, "own")(Q.astype("f4"), K.astype("f4"), V.astype("f4"))


def test_a_wrong_path_is_told_before_anything_runs(tmp_path):
    wrong = capture(tmp_path / "none" / "a.safetensors")
    with pytest.raises(ValueError, match="there is no folder"), wrong:
        raise AssertionError
