"""Exact attention against the definition in 40 digits, and its gradients by differences."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.exact import exact

B, T, S, N, G, H = 2, 4, 5, 4, 2, 3
MASK = np.random.default_rng(8).random((B, N, T, S)) < 0.6
MASK[0, 1, 2] = False  # a row that sees no key
SINKS = np.array([0.3, -1.0, 2.0, 0.0])
OPTIONS = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"window": 2},
    "causal window": {"is_causal": True, "window": 2},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": SINKS},
    "mask": {"mask": MASK},
    "mask of all heads": {"mask": MASK[:1, :1]},
    "all": {"is_causal": True, "window": 3, "softcap": 2.0, "sinks": SINKS, "mask": MASK},
}
options = pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)


def call(**given):
    """Inputs in binary64, with key heads of two query heads."""
    rng = np.random.default_rng(3)
    shapes = {"q": (B, T, N, H), "k": (B, S, G, H), "v": (B, S, G, H), "do": (B, T, N, H)}
    tensors = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return Inputs(**tensors, scale=0.7, **{"is_causal": False} | given)


def sees(x, b, n, t, s):
    """Return true if query t sees key s, as the arguments of `attend` define it."""
    if x.mask is not None and not np.broadcast_to(x.mask, (B, N, T, S))[b, n, t, s]:
        return False
    if x.is_causal:
        return s <= t and (x.window is None or t - x.window < s)
    return x.window is None or abs(t - s) < x.window


def output(x, b, n, t):
    """A row of the output from the definition: numbers of 40 digits, no maximum subtracted."""
    group = n // (N // G)
    weights, total = {}, mpmath.mpf(0)
    for s in range(S):
        if not sees(x, b, n, t, s):
            continue
        dot = sum(mpmath.mpf(float(x.q[b, t, n, h])) * float(x.k[b, s, group, h]) for h in range(H))
        score = dot * x.scale
        if x.softcap is not None:
            score = x.softcap * mpmath.tanh(score / x.softcap)
        weights[s] = mpmath.exp(score)
        total += weights[s]
    if x.sinks is not None:
        total += mpmath.exp(float(x.sinks[n]))
    return [
        float(sum(w * float(x.v[b, s, group, h]) for s, w in weights.items()) / total)
        if weights
        else 0.0
        for h in range(H)
    ]


@options
def test_the_output_is_that_of_the_definition(given):
    """A wrong mask, window, softcap, sink, scale or key head in the judge of all kernels."""
    x = call(**given)
    got = exact(x).out
    with mpmath.workdps(40):
        for b, t, n in np.ndindex(B, T, N):
            np.testing.assert_allclose(
                got[b, t, n], output(x, b, n, t), rtol=1e-13, atol=1e-14, err_msg=f"{b} {t} {n}"
            )


@options
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gradients_are_differences_of_the_output(given, name):
    """A gradient without the factor of the scale, of the softcap, or of the sum over a group."""
    x, step = call(**given), 1e-5
    tensor = getattr(x, name)
    want = np.zeros_like(tensor)
    for i in np.ndindex(tensor.shape):
        ends = []
        for moved in (tensor[i] + step, tensor[i] - step):
            other = tensor.copy()
            other[i] = moved
            ends.append(float((exact(replace(x, **{name: other})).out * x.do).sum()))
        want[i] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(getattr(exact(x), f"d{name}"), want, rtol=1e-6, atol=1e-8)


def test_rows_are_sums_of_magnitudes_of_ds():
    """A number that measures how large a row of dS is, and is wrong or of another head."""
    x = call()
    found = exact(x)
    for b, n, t in np.ndindex(B, N, T):
        k, v = x.k[b, :, n // 2], x.v[b, :, n // 2]
        p = np.exp(x.scale * (k @ x.q[b, t, n]))
        p /= p.sum()
        dp = v @ x.do[b, t, n]
        assert found.rows[b, n, t] == pytest.approx(np.abs(p * (dp - p @ dp)).sum(), rel=1e-12)


def test_scores_of_thousands_do_not_overflow():
    """NaN in the judge where no number of the exact result is large."""
    x = call()
    found = exact(replace(x, q=x.q * 1e4))
    assert all(np.isfinite(getattr(found, n)).all() for n in ("out", "dq", "dk", "dv"))


def test_the_output_alone_is_that_with_gradients():
    """Another output where no gradients are asked for, or gradients of 0 that look like results."""
    x = call()
    whole, alone = exact(x), exact(x, backward=False)
    assert np.array_equal(alone.out, whole.out) and np.array_equal(alone.lse, whole.lse)
    assert all(np.isnan(getattr(alone, n)).all() for n in ("dq", "dk", "dv", "rows"))
