"""The numbers of a layer against their equations in binary64, in every library."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from roundscope.attention.models.drift import (
    HeadNumbers,
    HeadTensors,
    head_numbers,
    head_sums,
    numbers_of_sums,
)
from tests.some import some

N, G, T, S, H, HV, D = 6, 2, 24, 24, 8, 5, 40


def rng(seed=0):
    return np.random.default_rng(seed)


def tensors(queries=T, keys=S, seed=0):
    """q, k, v, dO, r, dq and out that have nothing to do with each other."""
    x = rng(seed).standard_normal
    return {
        "q": 2.0 * x((N, queries, H)),
        "k": x((G, keys, H)),
        "v": x((G, keys, HV)),
        "do": x((N, queries, HV)),
        "r": x((N, queries)) + 0.25,
        "dq": x((N, queries, H)),
        "out": x((N, queries, HV)),
    }


def reference(q, k, v, do, r, dq, out, *, scale, seen, added=0.0, u=None):
    """Every number by its equation, head by head and row by row, with all of P at once."""
    numbers = []
    if u is None:
        u = np.concatenate(list(v), axis=1) if v.shape[1] == q.shape[1] else np.ones((len(q[0]), 1))
    for n in range(N):
        key, value = k[n * G // N], v[n * G // N]
        s = np.where(seen[n], scale * q[n] @ key.T + np.broadcast_to(added, seen.shape)[n], -np.inf)
        e = np.exp(s - s.max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True)
        dp = do[n] @ value.T
        ds = p * (dp - (p * dp).sum(1, keepdims=True))
        exact = p @ value
        made = sum(scale * r[n, t] * np.outer(u[t], p[t] @ key) for t in range(len(p)))
        whole = sum(np.outer(u[t], dq[n, t]) for t in range(len(p)))
        numbers.append(
            (
                np.sqrt((made**2).sum()),
                np.sqrt((whole**2).sum()),
                np.sqrt((r[n] ** 2).mean() / (np.abs(ds).sum(1) ** 2).mean()),
                r[n].mean() / (r[n].std(ddof=1) / np.sqrt(len(p))),
                ((e == 1).sum(1) > 1).mean(),
                (out[n] * exact).sum() / (exact**2).sum() - 1,
            )
        )
    return HeadNumbers(*np.array(numbers).T)


def causal(queries=T, keys=S):
    return np.broadcast_to(np.tril(np.ones((queries, keys), bool)), (N, queries, keys))


def everything(queries=T, keys=S):
    return np.ones((N, queries, keys), bool)


def agree(found, expected, tolerance):
    for name, x, y in zip(HeadNumbers._fields, found, expected, strict=False):
        np.testing.assert_allclose(np.asarray(x), y, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("elements", [1, 7 * N * S, 10**9])
def test_equations(elements):
    """A block of rows that is lost or counted twice, or a head with another head's keys."""
    x = tensors()
    found = head_numbers(HeadTensors(**x, scale=0.3), elements)
    agree(found, reference(**x, scale=0.3, seen=everything()), 1e-12)


@pytest.mark.parametrize("elements", [1, 5 * N * S, 10**9])
def test_causal_equations(elements):
    x = tensors()
    found = head_numbers(HeadTensors(**x, scale=0.3, is_causal=True), elements)
    agree(found, reference(**x, scale=0.3, seen=causal()), 1e-12)


@pytest.mark.parametrize("elements", [1, 14 * N * S, 10**9])
def test_equations_of_several_layers(elements):
    """A layer that is given another's keys or inputs."""
    layers, mask = [tensors(seed=n) for n in range(2)], rng(1).random((N, T, S)) < 0.6
    mask[..., 0] = True
    x = {name: np.stack([y[name] for y in layers]) for name in layers[0]}
    sums = head_sums(HeadTensors(**x, scale=0.3, is_causal=True, mask=mask), elements)
    found = numbers_of_sums(sums, T)
    for n, own in enumerate(layers):
        expected = reference(**own, scale=0.3, seen=causal() & mask)
        agree([y[n] for y in found], expected, 1e-12)


@pytest.mark.parametrize("shape", [(T, S), (1, S), (N, T, S), (N, 1, S), (1, T, S)])
def test_masks_of_every_shape(shape):
    """A mask's head that is taken for another, where queries share key heads."""
    x, mask = tensors(), rng(1).random(shape) < 0.6
    mask[..., 0] = True
    found = head_numbers(HeadTensors(**x, scale=0.3, mask=mask, is_causal=True), 5 * N * S)
    agree(found, reference(**x, scale=0.3, seen=causal() & mask), 1e-12)


def test_a_mask_of_floats_is_added_to_the_scores():
    x, mask = tensors(), rng(1).standard_normal((N, 1, S))
    found = head_numbers(HeadTensors(**x, scale=0.3, mask=mask))
    agree(found, reference(**x, scale=0.3, seen=everything(), added=mask), 1e-12)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_window_is_the_mask_of_its_keys(is_causal):
    """A window that counts from elsewhere, or that a causal call or a mask makes forgotten."""
    x, mask = tensors(), rng(1).random((N, T, S)) < 0.8
    near = abs(np.arange(T)[:, None] - np.arange(S)) < 4
    how = {"scale": 0.3, "is_causal": is_causal}
    found = head_numbers(HeadTensors(**x, **how, window=4, mask=mask), 5 * N * S)
    expected = head_numbers(HeadTensors(**x, **how, mask=mask & near), 5 * N * S)
    np.testing.assert_array_equal(found, expected)


def test_other_numbers_of_queries_and_keys_measure_a_bias_of_queries():
    x = tensors(keys=31)
    found = head_numbers(HeadTensors(**x, scale=0.3))
    agree(found, reference(**x, scale=0.3, seen=everything(keys=31)), 1e-12)
    np.testing.assert_allclose(found.gradient, np.linalg.norm(x["dq"].sum(1), axis=1), 1e-12)


def test_rows_that_see_no_key_make_nothing():
    x, mask = tensors(), np.ones((T, S), bool)
    mask[3] = False
    moved = dict(x, r=x["r"] + 100.0 * (np.arange(T) == 3))
    one, two = (head_numbers(HeadTensors(**y, scale=0.3, mask=mask)).drift for y in (x, moved))
    np.testing.assert_array_equal(one, two)


def test_drift_of_a_linear_layer():
    """The values are x W_V: R here is W_V^T times that of W_Q, and with inputs=x it is that."""
    x = rng(2).standard_normal((T, D))
    w_q, w_k, w_v = (rng(s).standard_normal((D, n, h)) / D**0.5
                     for s, n, h in ((3, N, H), (4, G, H), (5, G, HV)))  # fmt: skip
    q, k, v = (np.einsum("td,dnh->nth", x, w) for w in (w_q, w_k, w_v))
    given = tensors() | {"q": q, "k": k, "v": v}
    p = np.einsum("nth,nsh->nts", q, np.repeat(k, N // G, 0)) * 0.3
    p = np.exp(p) / np.exp(p).sum(-1, keepdims=True)
    pk = np.einsum("nts,nsh->nth", p, np.repeat(k, N // G, 0))
    made = np.einsum("nt,td,nth->ndh", 0.3 * given["r"], x, pk)  # of W_Q, head by head
    whole = np.einsum("td,nth->ndh", x, given["dq"])
    exact = head_numbers(HeadTensors(**given, scale=0.3, inputs=x))
    np.testing.assert_allclose(exact.drift, np.linalg.norm(made, axis=(1, 2)), 1e-12)
    np.testing.assert_allclose(exact.gradient, np.linalg.norm(whole, axis=(1, 2)), 1e-12)
    through, image = head_numbers(HeadTensors(**given, scale=0.3)), w_v.reshape(D, -1)
    np.testing.assert_allclose(
        through.drift, np.linalg.norm(np.einsum("dc,ndh->nch", image, made), axis=(1, 2)), 1e-12
    )
    np.testing.assert_allclose(
        through.gradient, np.linalg.norm(np.einsum("dc,ndh->nch", image, whole), axis=(1, 2)), 1e-12
    )


def test_exact_gradients_have_no_drift_and_gain():
    """dQ and the output of exact attention, from autograd."""
    x = {name: torch.tensor(y) for name, y in tensors().items()}
    q = x["q"].requires_grad_()
    out = torch.nn.functional.scaled_dot_product_attention(
        q[None], x["k"][None], x["v"][None], is_causal=True, scale=0.3, enable_gqa=True
    )[0]
    (dq,) = torch.autograd.grad(out, q, x["do"])
    x |= {"q": q.detach(), "out": out.detach(), "dq": dq, "r": torch.zeros(N, T).double()}
    found = head_numbers(HeadTensors(**x, scale=0.3, is_causal=True))
    assert found.drift.tolist() == [0.0] * N and found.bias.tolist() == [0.0] * N
    assert found.gain.abs().max() < 1e-14 and (found.gradient > 0.1).all()


@pytest.mark.parametrize(("type_name", "top", "several"), [
    (np.float64, 1 - 2**-30, 1), (np.float32, 1 - 2**-26, 1), (np.float32, 1 - 2**-23, 0),
    (np.float16, 1 - 2**-13, 1), (np.float16, 1 - 2**-10, 0),
    (ml_dtypes.bfloat16, 1 - 2**-10, 1), (ml_dtypes.bfloat16, 1 - 2**-7, 0),
])  # fmt: skip
def test_several_ones_are_those_of_the_type_of_q(type_name, top, several):
    """Two keys whose P are 1 and `top`, of which the second rounds to 1 or does not."""
    q = np.ones((1, 3, 1), type_name)
    mask = np.array([[0.0, np.log(top), -2.0]])
    given = {name: np.ones((1, 3, 1), type_name) for name in ("k", "v", "do", "dq", "out")}
    found = head_numbers(HeadTensors(q=q, **given, r=np.ones((1, 3), "f4"), scale=1.0, mask=mask))
    assert found.several_ones.tolist() == [several]


def as_torch(x):
    return torch.tensor(np.asarray(x, np.float32)).to(getattr(torch, str(x.dtype)))


@pytest.mark.parametrize("type_name", some(["bfloat16", "float32"]))
def test_libraries_agree(type_name):
    x = {name: np.asarray(y, np.dtype(type_name)) for name, y in tensors().items()}
    wide = {name: np.asarray(y, float) for name, y in x.items()}
    mask = rng(1).random((N, 1, S)) < 0.8
    mask[..., 0] = True

    def measured(x, mask):
        return head_numbers(HeadTensors(**x, scale=0.3, is_causal=True, mask=mask), 5 * N * S)

    expected, in_jax = measured(wide, mask), {n: jnp.asarray(y) for n, y in x.items()}
    for found in (
        measured(x, mask),
        measured({n: as_torch(y) for n, y in x.items()}, torch.tensor(mask)),
        measured(in_jax, mask),
        jax.jit(measured)(in_jax, mask),
    ):
        assert {str(y.dtype).removeprefix("torch.") for y in found} == {"float32"}
        agree(found[:4], expected[:4], 2e-5)
        agree(found[5:], expected[5:], 2e-5)
