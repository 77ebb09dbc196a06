"""Packed sequences: the bits of separate calls, and lengths that are none."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope import attend, attend_packed, examine, packed_sequences
from tests.checks.engines import normal

QUERIES, KEYS = [0, 3, 3, 20, 24], [0, 5, 9, 26, 26]  # without queries, without keys
Q, K, V = (
    normal(n, 1, tokens, heads, 16)[0]
    for n, (tokens, heads) in enumerate(((24, 4), (26, 2), (26, 2)))
)
CALL = {"block_q": 8, "block_k": 8, "is_causal": True, "alignment": "bottom-right"}
PLANS = ("fa2", "eager", "fa2-bf16; P=bf16:stochastic", "cudnn-split")


@pytest.mark.parametrize("plan", PLANS)
def test_each_sequence_has_the_bits_of_a_separate_call(plan):
    """Tiles that begin where the last sequence ended, keys of the next sequence, random bits that
    go on, a sequence that is left out.
    """
    packed = {"cu_seqlens_q": QUERIES, "cu_seqlens_k": np.array(KEYS, np.int32)}
    got = attend_packed(Q, K, V, plan=plan, **packed, **CALL)
    assert got.shape == (24, 4, 16) and got.dtype == np.float32
    for n in (0, 2):
        t, s = slice(QUERIES[n], QUERIES[n + 1]), slice(KEYS[n], KEYS[n + 1])
        want = attend(Q[None, t], K[None, s], V[None, s], plan=plan, **CALL)
        assert np.array_equal(got[t], want[0]) and np.abs(want).min() < np.abs(want).max()
    assert not got[20:].any()  # they see no key
    theirs = packed_sequences(Q, K, V, Q, **packed)
    assert [x.k.shape[1] for x in theirs] == [5, 4, 17, 0]
    assert np.array_equal(examine(*theirs[2], plan=plan, **CALL).out[0], got[3:20])


def test_types_and_gradients_are_those_of_calls():
    """A type that is widened where outputs are joined, and a sequence without a gradient."""
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in (Q, K, V))

    def total(q, k, v):
        out = attend_packed(
            *(q, k, v), plan="fa2-bf16", cu_seqlens_q=QUERIES, cu_seqlens_k=KEYS, **CALL
        )
        assert out.dtype == jnp.bfloat16
        return (out.astype("f4") * Q).sum()

    got = jax.grad(total, argnums=(0, 1, 2))(q, k, v)
    want = [np.zeros_like(np.asarray(x, np.float32)) for x in (q, k, v)]
    for n in (0, 2):
        t, s = slice(QUERIES[n], QUERIES[n + 1]), slice(KEYS[n], KEYS[n + 1])
        own = examine(Q[None, t], K[None, s], V[None, s], Q[None, t], plan="fa2-bf16", **CALL)
        for whole, part, at in zip(want, (own.dq, own.dk, own.dv), (t, s, s), strict=True):
            whole[at] = part[0]
    for x, y in zip(got, want, strict=True):
        assert np.array_equal(np.asarray(x, np.float32), y.astype(ml_dtypes.bfloat16).astype("f4"))


WRONG = [
    ({"cu_seqlens_q": [0, 3]}, "cu_seqlens_q=.*end with the 24 tokens of q"),
    ({"cu_seqlens_q": [1, 24]}, "cu_seqlens_q=.*begin with 0"),
    ({"cu_seqlens_q": [0, 9, 3, 24]}, "cu_seqlens_q=.*never fall"),
    ({"cu_seqlens_q": [0.0, 24.0]}, "cu_seqlens_q=.*whole numbers"),
    ({"cu_seqlens_q": 24}, "cu_seqlens_q=24: give whole numbers"),
    ({"cu_seqlens_q": [[0, 24]]}, "cu_seqlens_q=.*give whole numbers"),
    ({"cu_seqlens_q": [0, 24]}, "cu_seqlens_k=.*end with the 26 tokens of k"),
    ({"cu_seqlens_q": [0, 3, 24], "cu_seqlens_k": [0, 26]}, "cu_seqlens_k: 2 numbers.*3"),
    ({"cu_seqlens_q": [0, 24, 24], "cu_seqlens_k": [0, 0, 26]}, "no sequence has both"),
    ({"cu_seqlens_q": QUERIES, "cu_seqlens_k": KEYS, "mask": np.ones((1, 1), bool)}, "mask: "),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_lengths(changes, message):
    """Lengths that leave tokens out or count some twice."""
    with pytest.raises((TypeError, ValueError), match=message):
        attend_packed(Q, K, V, plan="fp32", **changes)


def test_wrong_tensors():
    """A batch that is taken for tokens; lengths that are data of a program."""
    lengths = {"cu_seqlens_q": QUERIES, "cu_seqlens_k": KEYS}
    with pytest.raises(ValueError, match=r"q: shape .*\(tokens, heads, features\)"):
        packed_sequences(Q[None], K[None], V[None], **lengths)
    with pytest.raises(ValueError, match="v: 25 tokens, must have the 26 of k"):
        packed_sequences(Q, K, V[1:], **lengths)
    with pytest.raises(ValueError, match="do: 23 tokens"):
        packed_sequences(Q, K, V, Q[1:], **lengths)
    with pytest.raises(TypeError, match="cu_seqlens_q: a traced array"):
        jax.jit(lambda n: attend_packed(Q, K, V, plan="fp32", cu_seqlens_q=n))(jnp.array(QUERIES))
