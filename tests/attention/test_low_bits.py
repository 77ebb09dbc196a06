"""What attention in few bits needs in its backward: operands of its own, a rotation, and shams.

Expected numbers are NumPy's in binary64, from the equations written out here; elements of MXFP4 are
ml_dtypes'.
"""

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, attend, examine, row_sums

EXACT = Plan.preset("exact")
LOW = EXACT.changed("Q=mxfp4 K=mxfp4 V=mxfp4")
T, H = 64, 32


def inputs(seed=0):
    return np.random.default_rng(seed).standard_normal((4, 1, T, 1, H))


def mxfp4(x, axis):
    """OCP MX 1.0: a scale 2^(floor log2 max - 2) for every 32 numbers, elements to nearest."""
    blocks = np.moveaxis(x, axis, -1).reshape(-1, 32)
    scale = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(1, keepdims=True))) - 2)
    clipped = np.clip(blocks / scale, -6.0, 6.0)
    rounded = clipped.astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale
    return np.moveaxis(rounded.reshape(np.moveaxis(x, axis, -1).shape), -1, axis)


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def softmax(s):
    e = np.exp(s - s.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def scores(q, k, lse=None):
    s = np.where(np.tri(T, dtype=bool), q @ k.T / np.sqrt(H), -np.inf)
    return softmax(s) if lse is None else np.exp(s - lse[:, None])


def log_sum(q, k):
    s = np.where(np.tri(T, dtype=bool), q @ k.T / np.sqrt(H), -np.inf)
    return np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1)


def by_hand(own, again, do_of_v=lambda do: do, centred=False):
    """Return dq, dk, dv of a forward that reads `own` and a backward that reads `again`."""
    (q, k, v), (qb, kb, vb), do = own, again, inputs()[3, 0, :, 0]
    p, dp = scores(qb, kb, log_sum(q, k)), do @ vb.T
    delta = (do * (scores(q, k) @ v)).sum(1)
    if centred:
        delta = (p * dp).sum(1) / p.sum(1)
    ds = p * (dp - delta[:, None])
    return ds @ kb / np.sqrt(H), ds.T @ qb / np.sqrt(H), p.T @ do_of_v(do)


def computed(plan, engine="numpy"):
    found = examine(*inputs(), plan=plan, is_causal=True, engine=engine, block_q=32, block_k=32)
    return [np.asarray(x)[0, :, 0] for x in (found.dq, found.dk, found.dv)]


def close(found, want):
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(found, want, strict=True))


def low(q, k, v):
    return mxfp4(q, 1), mxfp4(k, 1), mxfp4(v, 0)


@pytest.mark.parametrize("centred", [False, True])
def test_the_backward_reads_operands_of_its_own(centred):
    """A backward that reads what the forward read, or L of other scores; delta of another O."""
    x = inputs()[:3, 0, :, 0]
    words = "inputs_again=true QB=bf16 KB=bf16 do_apart=true DOV=mxfp4"
    plan = LOW.changed(words, *(["delta_from=CENTRED"] if centred else []))
    again = bf16(x[0]), bf16(x[1]), x[2]
    want = by_hand(low(*x), again, lambda do: mxfp4(do, 0), centred)
    assert close(computed(plan), want)
    assert not close(want, by_hand(low(*x), low(*x), centred=centred))


def test_the_backward_normalizes_by_itself():
    """An L of what the forward read, so that rows of P do not sum to 1."""
    (q, k, v), (qb, kb) = inputs()[:3, 0, :, 0], (bf16(x) for x in inputs()[:2, 0, :, 0])
    do, p = inputs()[3, 0, :, 0], scores(qb, kb)
    ds = p * (do @ v.T - (do * (scores(*low(q, k, v)[:2]) @ mxfp4(v, 0))).sum(1)[:, None])
    want = ds @ kb / np.sqrt(H), ds.T @ qb / np.sqrt(H), p.T @ do
    plan = LOW.changed("inputs_again=true QB=bf16 KB=bf16 lse_again=true")
    assert close(computed(plan), want)
    with pytest.raises(ValueError, match=r"lse_again=True.*inputs_again"):
        LOW.changed("lse_again=true")


@pytest.mark.thorough
def test_xla_and_a_gradient_have_the_same_backward():
    """An engine that keeps rounded inputs for the backward."""
    import jax

    words = "inputs_again=true QB=bf16 lse_again=true do_apart=true DOV=mxfp4 hadamard=true"
    plan = LOW.changed(words)
    want = computed(plan)
    assert close(computed(plan, "xla"), want)
    q, k, v, do = inputs().astype(np.float32)
    call = {"plan": plan, "is_causal": True, "block_q": 32, "block_k": 32}
    _, pull = jax.vjp(lambda *x: attend(*x, **call), q, k, v)
    found = examine(q, k, v, do, **call)
    for a, b in zip(pull(do), (found.dq, found.dk, found.dv), strict=True):
        assert np.allclose(a, b, rtol=1e-6, atol=1e-7)


def test_matched_operands_are_the_backward_of_the_forward():
    """A format that the backward would block along another axis than the forward."""
    again = LOW.changed("inputs_again=true QB=mxfp4 KB=mxfp4 VB=mxfp4 do_apart=true")
    for a, b in zip(computed(LOW), computed(again), strict=True):
        assert np.array_equal(a, b)


def hadamard(n):
    """Sylvester's matrix, [[W, W], [W, -W]]."""
    w = np.ones((1, 1))
    while len(w) < n:
        w = np.block([[w, w], [w, -w]])
    return w


def test_queries_and_keys_are_turned_before_their_casts():
    """A rotation after the cast, of v, or whose gradient is not turned back."""
    from roundscope.attention import rotated

    q, k, v = (x[0, :, 0] for x in inputs()[:3])
    turn = [rotated(x, x)[i] for i, x in enumerate((np.eye(H), np.eye(H)))]
    assert np.array_equal(np.abs(turn[0] * 4), np.ones((H, H)))
    assert np.array_equal(np.abs(hadamard(H) @ turn[0].T * 4).max(0), np.full(H, float(H)))
    turned = mxfp4(q @ turn[0], 1), mxfp4(k @ turn[1], 1), mxfp4(v, 0)
    dq, dk, dv = by_hand(turned, turned)
    assert close(computed(LOW.changed("hadamard=true")), (dq @ turn[0].T, dk @ turn[1].T, dv))
    with pytest.raises(ValueError, match=r"hadamard=True.*24"):
        attend(*np.zeros((3, 1, 4, 1, 24)), plan=LOW.changed("hadamard=true"))


def test_shams_correct_other_rows_or_with_random_signs():
    """A sham that is a cure, or of corrections of another size."""
    low = LOW.changed("inputs_again=true QB=bf16 KB=bf16 VB=bf16")
    own, cured, rows, signs = (
        np.asarray(examine(*inputs(), plan=low.changed(f"delta_from={how}"), is_causal=True).delta)
        for how in ("OUT", "CENTRED", "OTHER_ROWS", "RANDOM_SIGNS")
    )
    c = (cured - own).reshape(-1)
    assert np.allclose((rows - own).reshape(-1), np.roll(c, T // 2 * -1), atol=1e-12)
    coins = (signs - own).reshape(-1) / c
    assert np.allclose(np.abs(coins), 1.0, atol=1e-6)
    assert 16 < (coins > 0).sum() < 48
    sums = {
        how: np.abs(row_sums(*inputs(), plan=low.changed(f"delta_from={how}"), is_causal=True))
        for how in ("OUT", "CENTRED", "OTHER_ROWS", "RANDOM_SIGNS")
    }
    assert sums["CENTRED"].max() < 1e-12
    assert min(sums[how].mean() for how in ("OTHER_ROWS", "RANDOM_SIGNS")) > sums["OUT"].mean() / 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("unfused=true saved_p=true", "inputs_again=True.*saved_p=false"),
        ("scale_roots=true", "inputs_again=True.*scale_roots=false"),
        ("sinks=last hadamard=true", "sinks=last.*hadamard=True"),
        ("softcap=5 hadamard=true", "softcap=5.*hadamard=True"),
        ("sinks=last delta_from=OTHER_ROWS", "sinks=last.*OTHER_ROWS"),
    ],
)
def test_what_does_not_go_together_is_refused(words, told):
    with pytest.raises(ValueError, match=told):
        EXACT.changed("inputs_again=true", words)
