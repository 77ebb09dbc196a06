"""flax models on chosen plans: `attention_fn`, `use` and `tap`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from roundscope import Plan, attend
from roundscope.attention.flax import attention_layers
from roundscope.flax import attention_fn, tap, use
from roundscope.jax import capture, corrected, watch
from roundscope.tools.tensors.layers import read_layers
from tests.attention.flax.transformer import Transformer, loss, step, tokens

TOKENS = tokens()
BIASED = Plan.preset("fa2-bf16").changed("OD=e8m1:toward-zero")
Q, K, V, W = np.random.default_rng(0).standard_normal((4, 2, 3, 8, 4, 8), "f4")


def test_a_model_trains_on_a_plan_for_each_layer():
    model = Transformer()
    optimizer = nnx.Optimizer(model, optax.sgd(0.3), wrt=nnx.Param)
    with use(model, {"layers.0": "fa2-bf16", "*": "fp32"}) as used:
        losses = [float(step(model, optimizer, TOKENS)) for _ in range(4)]
    assert [layer.name for layer in used.layers] == ["layers.0.attention", "layers.1.attention"]
    assert all(np.diff(losses) < 0.0)


def test_the_bits_are_those_of_attend(tmp_path):
    """Each layer's own plan, forward and backward, from what a capture of the model has."""
    model, path = Transformer(num_kv_heads=2), tmp_path / "qkv.safetensors"
    use(model, {"layers.1": BIASED, "*": "fa2-bf16; O=bf16"})
    tap(model)
    with capture(path, batch=None) as calls:
        nnx.jit(nnx.grad(loss))(model, TOKENS)
    plans = Plan.preset("fa2-bf16").changed("O=bf16"), BIASED
    for call, plan, layer in zip(calls, plans, read_layers(path), strict=True):
        assert layer.k.shape == (2, 16, 2, 8) and call.is_causal
        q, k, v, do = (jnp.asarray(x) for x in (layer.q, layer.k, layer.v, layer.do))
        out, pull = jax.vjp(partial(attend, plan=plan, is_causal=True), q, k, v)
        for name, x in zip(("out", "dq", "dk", "dv"), (out, *pull(do)), strict=True):
            assert np.array_equal(getattr(call, name).swapaxes(1, 2), x), (call.name, name)


def own_attention(query, key, value, mask=None, is_causal=False, **options):
    """Return flax's attention without the binary32 that jax.nn puts into its softmax."""
    if is_causal:
        causal = jnp.tri(query.shape[-3], dtype=bool)
        mask = causal if mask is None else mask & causal
    return linen.dot_product_attention(query, key, value, mask=mask)


@pytest.mark.parametrize("has_mask", [False, True])
def test_exact_is_the_attention_of_flax_in_binary64(has_mask):
    mask = np.random.default_rng(2).random((2, 1, 16, 16)) < 0.7
    mask |= np.eye(16, dtype=bool)
    mask = mask if has_mask else None

    def run(model):
        def value(model):
            return (model(TOKENS[:, :-1], mask) ** 2).mean()

        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return jax.tree.map(np.asarray, nnx.value_and_grad(value)(model))

    with jax.enable_x64(True):
        model = Transformer(attention_fn=own_attention)
        state = jax.tree.map(lambda x: x.astype("float64"), nnx.state(model))
        nnx.update(model, state)
    expected = run(model)
    with use(model, "exact"):
        found = run(model)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.dtype == np.float64
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (found, expected))))  # noqa: B905


@pytest.mark.parametrize(
    "wrap", [pytest.param(lambda f: f, marks=pytest.mark.thorough), nnx.jit], ids=["eager", "jit"]
)
def test_a_capture_of_its_own_attention_changes_no_bit(tmp_path, wrap):
    model = Transformer()
    run = wrap(nnx.value_and_grad(loss))
    before = run(model, TOKENS)
    with tap(model), capture(tmp_path / "qkv.safetensors", steps=None, batch=None) as calls:
        inside = run(model, TOKENS)
    bits = [[np.asarray(x).tobytes() for x in jax.tree.leaves(x)] for x in (before, inside)]
    assert bits[0] == bits[1]
    assert [(c.number, c.name, c.step, c.is_causal) for c in calls] == [
        (0, "layers.0.attention", 0, True),
        (1, "layers.1.attention", 0, True),
    ]


def drift(plan):
    """The drift of a model of one layer on a plan, or on flax's own attention."""
    model = Transformer(layers=1)
    if plan is not None:
        use(model, plan)
    tap(model)
    return watch(loss).look(0, model, TOKENS)["attention/drift"]


@pytest.mark.thorough
def test_a_model_is_watched_and_cured():
    """A plan whose delta reads two bits of O, and the cure of any kernel."""
    biased = drift(BIASED)
    assert biased > 0.05
    assert drift(corrected(attention_fn(BIASED))) < biased / 20


@pytest.mark.thorough
def test_the_cure_of_a_plan_and_attention_of_the_library_do_not_drift():
    """jax/test_gpt.py has these often, without flax."""
    assert drift(BIASED.changed("delta_from=CENTERED")) < 0.05 / 20
    assert drift(None) < 1e-5


def test_masks_of_floats_and_more_batch_axes():
    """flax makes masks of floats; and (..., T, N, H) may have several leading axes."""
    mask = linen.make_causal_mask(np.ones((2, 3, 8)))  # (2, 3, 1, 8, 8), float32
    out = attention_fn("fa2-bf16")(Q, K, V, mask=mask)
    one = attention_fn("fa2-bf16")(Q, K, V, mask=mask[:1, :1])
    causal = attention_fn("fa2-bf16", is_causal=True)(Q, K, V)
    whole = attend(*(jnp.asarray(x[1]) for x in (Q, K, V)), plan="fa2-bf16", is_causal=True)
    assert np.array_equal(out, causal) and np.array_equal(one, causal)
    assert np.array_equal(out[1], whole)


def test_a_module_of_linen():
    own = attention_fn("fp32")
    layers = [
        linen.MultiHeadDotProductAttention(2, **x) for x in ({}, {"attention_fn": own})
    ]  # fmt: skip
    params = layers[0].init(jax.random.key(0), Q[0, :, :, 0])
    expected, found = (layer.apply(params, Q[0, :, :, 0]) for layer in layers)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_the_type_is_that_of_the_query():
    """exact returns float32 for BF16; a model in BF16 stays in it."""
    q, k, v = (jnp.asarray(x[0], "bfloat16") for x in (Q, K, V))
    out = attention_fn("exact")(q, k, v)
    assert out.dtype == jnp.bfloat16
    assert np.array_equal(out, attend(q, k, v, plan="exact").astype("bfloat16"))


def test_the_first_name_that_fits_counts_and_removing_restores():
    model = Transformer(layers=3)
    own = [layer.attention.attention_fn for layer in model.layers]
    mine = lambda *args, **options: None  # noqa: E731
    used = use(model, {"layers.0-1": mine, "layers.*": "fa2-bf16"})
    now = [layer.attention.attention_fn for layer in model.layers]
    assert now[0] is now[1] is mine and now[2] not in (mine, own[2])
    tapped = tap(model)
    tapped.remove()
    assert [layer.attention.attention_fn for layer in model.layers] == now
    used.remove()
    used.remove()
    assert [layer.attention.attention_fn for layer in model.layers] == own


def test_layers_are_ordered_as_numbers():
    """layers.10 behind layers.9."""
    model = nnx.Sequential(*(nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0)) for _ in range(11)))
    assert [layer.name for layer in attention_layers(model)] == [f"layers.{n}" for n in range(11)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_rate": 0.1}, "dropout_rate=0.1: must be 0"),
        ({"module": object()}, "module=object: must be None"),
        ({"force_fp32": True}, "force_fp32=True: an option"),
    ],
)
def test_what_the_emulation_does_not_have_is_refused_in_words(options, message):
    with pytest.raises(ValueError, match=message):
        attention_fn("fa2-bf16")(Q, K, V, **options)


def test_a_bias_is_that_of_attend():
    """A bias that is dropped, or that a plan without one takes."""
    bias = np.random.default_rng(0).standard_normal((2, 3, 4, 8, 8), "f4")
    found = attention_fn("fp32")(Q, K, V, bias=bias)
    one, *others = (x.reshape(6, 8, 4, 8) for x in (Q, K, V))
    expected = attend(one, *others, plan="fp32", bias=bias.reshape(6, 4, 8, 8))
    assert np.array_equal(found, expected.reshape(Q.shape))
    with pytest.raises(ValueError, match="bias: fa2 multiplies the scores"):
        attention_fn("fa2")(Q, K, V, bias=bias)


def test_dropout_that_is_off_is_none():
    out = attention_fn("fa2-bf16")(Q, K, V, dropout_rate=0.1, deterministic=True)
    assert np.array_equal(out, attention_fn("fa2-bf16")(Q, K, V))


def test_dropout_and_sown_weights_are_refused_while_capturing(tmp_path):
    x = np.ones((1, 4, 8), "f4")
    model = nnx.MultiHeadAttention(2, 8, dropout_rate=0.1, decode=False, rngs=nnx.Rngs(0))
    tap(model)
    refused = pytest.raises(ValueError, match=r"dropout_rate=0\.1: an argument of dot_product")
    with refused, capture(tmp_path / "qkv.safetensors"):
        model(x, deterministic=False)
    refused = pytest.raises(ValueError, match="module=MultiHeadAttention: an argument of")
    with refused, capture(tmp_path / "qkv.safetensors"):
        model(x, deterministic=True, sow_weights=True)
    with capture(tmp_path / "qkv.safetensors") as calls:
        model(x, deterministic=True)
    assert calls[0].name == "attention"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: use(3, "fa2-bf16"), TypeError, "model: int, must be a flax.nnx.Module"),
        (
            lambda: use(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "fa2-bf16"),
            ValueError,
            "model: no module of this Linear has an attribute `attention_fn`",
        ),
        (
            lambda: use(Transformer(), {"layers.5": "fa2-bf16"}),
            ValueError,
            "a key of plans='layers.5': there are 2 layers, 0 to 1",
        ),
        (lambda: use(Transformer(), {}), ValueError, "plans={}"),
        (lambda: use(Transformer(), "fa22"), ValueError, "fa22"),
        (lambda: use(Transformer(), {"*": 3}), TypeError, "plan=3"),
        (lambda: attention_fn("fa2-bf16", block_q=0), ValueError, "block_q=0"),
        (lambda: attention_fn("fa2-bf16", is_causal="no"), TypeError, "is_causal='no'"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
