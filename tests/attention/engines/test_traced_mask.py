"""A mask as data of a jitted function: padding and packed sequences of a training step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan, attend, examine
from roundscope.attention.settings import mask_to_heads
from roundscope.attention.tiles.loops import Setup
from tests.checks.engines import bits, normal

SHAPES = (2, 20, 4, 8), (2, 24, 2, 8), (2, 24, 2, 8), (2, 20, 4, 8)
Q, K, V, DO = (normal(140 + i, *s) for i, s in enumerate(SHAPES))
ALL = 2, 4, 20, 24
OPTIONS = {"plan": "fa2-bf16", "block_q": 8, "block_k": 8}


def drawn(*shape):
    return np.random.default_rng(3).random(shape) < 0.6


def with_an_empty_tile():
    """No score in the second tile of keys for the first queries, nor anywhere in row 13, nor of key
    5.
    """
    mask = drawn(*ALL)
    mask[:, :, :8, 8:16] = mask[:, :, 13] = mask[..., 5] = False
    return mask


MASKS = {
    "an empty tile": with_an_empty_tile(),
    "nothing": np.zeros(ALL, bool),
    "everything": np.ones(ALL, bool),
    "lengths": np.broadcast_to(np.arange(24) < np.array([9, 24])[:, None, None, None], ALL),
}


def same(x, y):
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and np.array_equal(bits(x), bits(y))


def pulled(mask, **options):
    """The output and the gradients of q, k and v."""
    out, pull = jax.vjp(
        lambda *x: attend(*x, mask=mask, **OPTIONS, **options), *map(jnp.asarray, (Q, K, V))
    )
    return out, *pull(jnp.asarray(DO))


@pytest.mark.parametrize("causal", [False, True])
def test_a_traced_mask_gives_the_bits_of_a_concrete_one(causal):
    """A tile that is met although no score in it exists; a row without keys that is not 0; a mask
    of another head.
    """
    traced = jax.jit(lambda mask: pulled(mask, is_causal=causal))
    for name, mask in MASKS.items():
        want = examine(
            Q, K, V, DO, mask=mask, is_causal=causal, engine="numpy", record=None, **OPTIONS
        )
        for ours, theirs in zip(traced(mask), (want.out, want.dq, want.dk, want.dv), strict=True):
            assert same(ours, theirs), name


def test_a_mapped_mask_gives_the_bits_of_single_ones():
    """`jax.vmap` over masks alone, the tensors shared."""
    stacked = np.stack([MASKS["an empty tile"], MASKS["lengths"]])
    found = jax.vmap(lambda mask: attend(*map(jnp.asarray, (Q, K, V)), mask=mask, **OPTIONS))(
        stacked
    )
    for ours, mask in zip(found, stacked, strict=True):
        assert same(ours, attend(Q, K, V, mask=mask, engine="numpy", **OPTIONS))


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (24,),
        (1, 1),
        (20, 1),
        (20, 24),
        (4, 1, 24),
        (1, 1, 20, 24),
        (2, 1, 1, 24),
        (2, 4, 20, 24),
        (2, 1, 20, 1),
    ],
)
def test_every_broadcastable_shape(shape):
    """A traced mask whose axes are taken for others."""
    setup = Setup(
        plan=Plan.preset("fa2-bf16"),
        queries=20,
        keys=24,
        block_q=16,
        block_k=16,
        heads=4,
        key_heads=2,
        scale=1.0,
        whole_scale=1.0,
        is_causal=False,
    )
    mask = drawn(*shape)
    want = np.zeros((2, 4, 32, 32), bool)
    want[:, :, :20, :24] = mask
    assert np.array_equal(
        jax.jit(lambda m: mask_to_heads(setup, m, 2, 4))(mask), want.reshape(8, 32, 32)
    )


def test_numpy_reads_a_traced_mask():
    mask = MASKS["lengths"]
    found = jax.jit(lambda m: attend(Q, K, V, mask=m, engine="numpy", **OPTIONS))(mask)
    assert same(found, attend(Q, K, V, mask=mask, engine="numpy", **OPTIONS))


def test_what_cannot_read_a_traced_mask_refuses_it():
    """JAX's own words of tracers, which do not say what to do."""
    with pytest.raises(ValueError, match="record: inside jit"):
        jax.jit(lambda mask: examine(Q, K, V, mask=mask, **OPTIONS).out)(MASKS["lengths"])


@pytest.mark.parametrize(
    ("mask", "told"),
    [(np.ones(24, np.int8), "dtype int8, must be bool"), (np.ones(23, bool), r"shape \(23,\)")],
)
def test_a_traced_mask_is_checked(mask, told):
    """A message of JAX's, or a mask of numbers."""
    with pytest.raises(ValueError, match=f"mask: {told}"):
        jax.jit(lambda m: attend(Q, K, V, mask=m, **OPTIONS))(mask)
