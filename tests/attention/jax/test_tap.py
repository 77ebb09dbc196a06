"""`tap`: the plain function unless something listens, and then every call once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention.jax.tapping import listening
from roundscope.jax import capture, tap

Q, K, V, W = np.random.default_rng(0).standard_normal((4, 3, 8, 2, 8), "f4")
attention = jax.nn.dot_product_attention


def stack(attend, w, x, *, scanned=False, remat=False, mask=None):
    """Return a loss through three layers that share a tap without a name."""

    def layer(h, own):
        weights, number = own
        q, k, v = (jnp.einsum("...nh,hg->...ng", h, weights[i]) for i in range(3))
        return h + attend(q, k, v, is_causal=True, mask=mask, layer=number), None

    layer = jax.checkpoint(layer) if remat else layer
    if scanned:
        x, _ = jax.lax.scan(layer, x, (w, jnp.arange(3)))
    else:
        for n in range(3):
            x, _ = layer(x, (w[n], n))
    return (x**2).mean()


WEIGHTS = np.random.default_rng(1).standard_normal((3, 3, 8, 8), "f4") / 3
MASK = np.random.default_rng(2).random((1, 1, 8, 8)) < 0.8
MASK |= np.eye(8, dtype=bool)


@pytest.mark.parametrize(("wrap", "scanned", "remat"), [
    pytest.param(
        wrap, scanned, remat, id=f"{name}-{'scan' if scanned else 'loop'}-{remat}",
        # every pair of choices; `make thorough`: all three
        marks=[pytest.mark.thorough] if (name == "jit") ^ scanned ^ remat else [],
    )
    for name, wrap in (("eager", lambda f: f), ("jit", jax.jit))
    for scanned in (False, True) for remat in (False, True)
])  # fmt: skip
def test_each_layer_counts_once_and_no_bit_changes(tmp_path, wrap, scanned, remat):
    """Forwards that are repeated for rematerialization; layers of a scan, whose number is data."""
    loss = partial(stack, tap(attention), scanned=scanned, remat=remat, mask=MASK)
    run = wrap(jax.value_and_grad(loss, argnums=(0, 1)))
    before = run(WEIGHTS, Q)
    with capture(tmp_path / "qkv.safetensors", batch=None, steps=None) as calls:
        inside = run(WEIGHTS, Q)
    assert [(call.number, call.step) for call in calls] == [(0, 0), (1, 0), (2, 0)]
    assert all(call.dq is not None for call in calls)
    bits = [jax.tree.map(lambda x: np.asarray(x).tobytes(), x) for x in (before, inside)]
    assert bits[0] == bits[1]


@pytest.mark.parametrize("order", ["gradient of a map", "map of gradients"])
def test_mapped_entries_are_entries_of_the_batch(tmp_path, order):
    """A loss for one sequence, mapped over the batch, as much code in JAX has it."""
    loss = partial(stack, tap(attention), mask=MASK)
    if order == "gradient of a map":
        own = jax.grad(lambda w, x: jax.vmap(loss, (None, 0))(w, x).mean())
    else:
        own = lambda w, x: jax.vmap(jax.grad(loss), (None, 0))(w, x).mean(0)  # noqa: E731
    with capture(tmp_path / "mapped.safetensors", batch=None) as mapped:
        jax.jit(own)(WEIGHTS, Q)
    with capture(tmp_path / "whole.safetensors", batch=None) as whole:
        jax.grad(loss)(WEIGHTS, Q)
    assert len(mapped) == len(whole) == 3
    factor = 1 if order == "gradient of a map" else 3  # the whole mean has 1/3 for each sequence
    for a, b in zip(mapped, whole, strict=True):
        assert a.mask.shape == b.mask.shape == (1, 1, 8, 8)
        for name in ("q", "k", "v", "out"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-5)
        for name in ("do", "dq", "dk", "dv"):
            np.testing.assert_allclose(
                getattr(a, name), factor * getattr(b, name), rtol=0, atol=1e-6
            )


def test_a_mask_for_each_mapped_entry_stays_with_it(tmp_path):
    masks = np.stack([np.tri(8, k=k, dtype=bool) for k in (1, 2, 3)])[:, None]  # (3, 1, T, S)
    own = tap(attention, "own")
    loss = lambda q, mask: own(q, q, q, mask=mask).sum()  # noqa: E731
    with capture(tmp_path / "qkv.safetensors", batch=None) as calls:
        jax.vmap(jax.grad(loss))(jnp.asarray(Q), jnp.asarray(masks[:, None]))
    assert np.array_equal(calls[0].mask, masks)


def test_nothing_listens_and_the_program_is_that_of_the_plain_function():
    """A tap that costs something although nobody listens."""
    plain = jax.make_jaxpr(jax.grad(lambda q: attention(q, q, q).sum()))(Q)
    tapped = jax.make_jaxpr(jax.grad(lambda q: tap(attention)(q, q, q, layer=0).sum()))(Q)
    assert str(plain) == str(tapped)


def test_a_jitted_function_is_compiled_for_a_listener_and_kept_for_afterwards(tmp_path):
    """A program that keeps calling a capture that has ended, or one that it does not reach."""
    traces = []

    @jax.jit
    def run(q):
        traces.append(1)
        return own(q, q, q)

    own = tap(attention, "own")
    run(Q)
    with capture(tmp_path / "a.safetensors", steps=None) as calls:
        run(Q), run(Q)
    assert len(calls) == 2 and len(traces) == 2
    run(Q)
    assert len(calls) == 2 and len(traces) == 2


def test_captures_nest(tmp_path):
    own = tap(attention, "own")
    with capture(tmp_path / "a.safetensors") as a, capture(tmp_path / "b.safetensors") as b:
        own(Q, K, V)
    assert np.array_equal(a[0].q, b[0].q)


def test_gradients_of_a_bias_stay(tmp_path):
    """An option that is data has a gradient too."""
    own, bias = tap(attention, "own"), np.zeros((1, 2, 8, 8), "f4")
    loss = lambda f: lambda b: (W * f(Q, K, V, bias=b)).sum()  # noqa: E731
    expected = jax.grad(loss(attention))(bias)
    with capture(tmp_path / "qkv.safetensors"):
        assert np.array_equal(jax.grad(loss(own))(bias), expected)


class Nobody:
    """A listener that hears nothing."""

    def __init__(self):
        self.names = {}

    def wants(self, layer):
        return True

    def hear(self, call):
        pass


def hidden(q, k, v):
    return attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tap(attention)(Q, K, V), "layer=None: a tap with a name"),
        (lambda: tap(attention, "own")(Q, K, V, layer=0), "layer=0: a tap with a name"),
        (
            lambda: tap(attention, "own")(Q, K, V, key_value_seq_lengths=np.full(3, 4, "i4")),
            "key_value_seq_lengths=ndarray: an argument of dot_product_attention that changes",
        ),
        (
            lambda: tap(attention, "own")(Q, K, V, local_window_size=(3, 2)),
            "local_window_size=\\(3, 2\\): of a call that is not causal",
        ),
        (
            lambda: tap(lambda q, k, v, causal=False: q, "own")(Q, K, V, causal=True),
            "causal=True: an argument of <lambda> that changes what is computed",
        ),
        (lambda: tap(hidden, "own")(Q, K, V), "hidden: it has no argument is_causal"),
        (
            lambda: jax.jit(lambda s: tap(attention, "own")(Q, K, V, scale=s))(0.5),
            "scale=.*: must be a number, and no traced value",
        ),
        (
            lambda: tap(attention, "own", is_causal=False)(Q[0, 0], K[0, 0], V[0, 0]),
            "q: shape \\(2, 8\\), must be \\(batch, tokens, heads, features\\)",
        ),
    ],
)
def test_what_is_not_modelled_is_refused_in_words(call, message):
    """An option that is ignored, or a causality that is guessed."""
    with listening(Nobody()), pytest.raises(ValueError, match=message):
        call()


def test_a_tap_is_of_a_function():
    with pytest.raises(TypeError, match="attention=3: give a function"):
        tap(3)


def test_what_the_function_does_by_itself_can_be_said(tmp_path):
    """Causality and scale that stand in no argument."""
    own = tap(hidden, "own", is_causal=True, scale=0.25)
    with capture(tmp_path / "qkv.safetensors") as calls:
        own(Q, K, V)
    assert calls[0].is_causal and calls[0].scale == 0.25


def test_arguments_of_a_partial_and_defaults_are_read(tmp_path):
    def own(q, k, v, is_causal=True, scale=0.5):
        return attention(q, k, v, is_causal=is_causal, scale=scale)

    a = tap(partial(attention, is_causal=True, scale=0.125, local_window_size=3), "a")
    b = tap(own, "b")
    with capture(tmp_path / "qkv.safetensors") as calls:
        a(Q, K, V), b(Q, K, V)
    assert [(c.name, c.is_causal, c.scale, c.window) for c in calls] == [
        ("a", True, 0.125, 4),
        ("b", True, 0.5, None),
    ]
