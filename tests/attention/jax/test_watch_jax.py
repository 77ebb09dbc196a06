"""`watch` of tapped attention: its numbers by formula, on a kernel whose fault is known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention.models.log import read
from roundscope.jax import corrected, tap, watch
from tests.attention.jax import exact

Q, K, V, W = np.random.default_rng(0).standard_normal((4, 3, 16, 4, 8))


def loss_of(attention):
    return lambda q, k, v: (W * attention(q, k, v)).sum()


def numbers(size, is_causal):
    """Return the share, and the rms of r over that of rowsum |dS|, of heads; of batch entry 0."""
    q, k, v, do = (x[:1] for x in (Q, K, V, W))
    scale = 8**-0.5
    p = exact.probabilities(q, k, scale, is_causal)
    dp = np.einsum("btnh,bsnh->bnts", do, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    r = -np.asarray(exact.error_of(do, size))
    u = v.reshape(16, 32)
    pk = np.einsum("bnts,bsnh->bnth", p, k)[0]
    made = np.einsum("tc,nth->nch", u, scale * r[0, :, :, None] * pk)
    error = np.asarray(exact.error_of(do, size))
    dq = exact.attention(q, k, v, do, is_causal=is_causal, error=error)[1]
    whole = np.einsum("tc,tnh->nch", u, dq[0])
    of = partial(np.linalg.norm, axis=(1, 2))
    rms = np.sqrt((r[0] ** 2).sum(-1) / (abs(ds[0]).sum(-1) ** 2).sum(-1))
    return of(made).sum() / of(whole).sum(), rms.mean()


@pytest.mark.parametrize("size", [1e-2, 1e-9])
@pytest.mark.parametrize("kernel", ["scale", "no scale"])
@pytest.mark.parametrize("wrap", ["plain", "jit", "scan", "vmap"])
def test_a_known_error_of_delta_is_measured(size, kernel, wrap):
    """Row sums that are not those of the kernel, or of another batch entry, layer or scale."""
    if kernel == "scale":
        own = partial(tap(exact.faulty(size)), is_causal=True)
    else:
        own = tap(exact.faulty_without_scale(size), is_causal=True)
    loss = loss_of(partial(own, layer=0))
    if wrap == "jit":
        loss = jax.jit(loss)
    elif wrap == "vmap":
        one = lambda q, k, v, w: (w[None] * own(q[None], k[None], v[None], layer=0)).sum()  # noqa: E731
        loss = lambda *x: jax.vmap(one)(*x, jnp.asarray(W)).sum()  # noqa: E731
    elif wrap == "scan":

        def loss(q, k, v):
            def layer(total, number):
                return total + (W * own(q, k, v, layer=number)).sum(), None

            return jax.lax.scan(layer, 0.0, jnp.arange(2))[0]

    with jax.enable_x64(True):
        found = watch(loss, threshold=None).look(0, *map(jnp.asarray, (Q, K, V)))
    share, row_sums = numbers(size, True)
    tolerance = 1e-14 / size + 1e-12  # of r, whose rounding errors are those of delta
    layers = [0, 1] if wrap == "scan" else [0]
    for name in ("attention", *(f"attention/layers.{n}" for n in layers)):
        assert found[f"{name}/drift"] == pytest.approx(share, rel=tolerance)
        assert found[f"{name}/row_sums"] == pytest.approx(row_sums, rel=tolerance)
    assert ("attention/layers.1/drift" in found) == (wrap == "scan")
    assert found["attention/gain"] == pytest.approx(0.0, abs=1e-14)


def test_heads_are_chosen(tmp_path):
    """Of grouped queries, those that share the second key head."""
    log = tmp_path / "watch.jsonl"
    own = partial(tap(exact.faulty(1e-2)), layer=0)
    w = watch(loss_of(own), heads=[2, 3], log=log)
    with jax.enable_x64(True):
        w.look(0, *map(jnp.asarray, (Q, K[:, :, :2], V[:, :, :2])))
        whole = watch(loss_of(own), log=tmp_path / "whole.jsonl")
        whole.look(0, *map(jnp.asarray, (Q, K[:, :, :2], V[:, :, :2])))
    (look,), (of_all,) = read(log), read(tmp_path / "whole.jsonl")
    assert look.layers[0].heads == (2, 3) and of_all.layers[0].heads == (0, 1, 2, 3)
    for some, every in zip(look.layers[0].numbers, of_all.layers[0].numbers, strict=True):
        np.testing.assert_allclose(some, every[2:], rtol=1e-12, atol=1e-14)


def test_a_window_and_a_mask_are_part_of_exact_attention():
    """gain is 0 only if the exact output sees the keys that the kernel sees."""
    mask = np.random.default_rng(4).random((3, 1, 16, 16)) < 0.6
    mask |= np.eye(16, dtype=bool)
    q, k, v = (jnp.asarray(x, "float32") for x in (Q, K, V))
    for options in (
        {"local_window_size": 3},
        {"local_window_size": (3, 0), "is_causal": True},
        {"mask": mask},
        {"mask": mask, "local_window_size": 5},
        {"bias": np.asarray(W.swapaxes(1, 2)[:, :, :, :1], "f4") * np.ones(16, "f4")},
    ):
        own = partial(tap(jax.nn.dot_product_attention), layer=0, **options)
        w = watch(lambda *x, own=own: (W.astype("f4") * own(*x)).sum())
        assert abs(w.look(0, q, k, v)["attention/gain"]) < 1e-6, options


def test_looks_are_at_every_so_many_steps_and_compile_once():
    own, traces = tap(exact.faulty(1e-2), "own"), []

    def loss(q, k, v):
        traces.append(1)
        return (W.astype("f4") * own(q, k, v)).sum()

    w = watch(loss, every=5)
    x = [jnp.asarray(x, "float32") for x in (Q, K, V)]
    looks = [w.look(step, *x) for step in range(11)]
    assert [n for n, look in enumerate(looks) if look] == [0, 5, 10] and len(traces) == 1


def test_the_alarm_is_that_of_a_fault_and_not_of_binary32(capsys):
    """An error of 0.3 of delta, and attention of the library."""
    x, told = [jnp.asarray(x, "float32") for x in (Q, K, V)], []
    for attention, is_faulty in ((exact.faulty(0.3), True), (jax.nn.dot_product_attention, False)):
        own = tap(attention, "own")
        w = watch(lambda *x, own=own: (W.astype("f4") * own(*x)).sum(), 1, on_alarm=told.append)
        looks = [w.look(step, *x)["attention/alarm"] for step in range(4)]
        assert (w.alarm is not None) == is_faulty
        assert looks == ([0, 0, 1, 1] if is_faulty else [0, 0, 0, 0])
    assert len(told) == 1 and told[0].layer.name == "own" and told[0].step == 2


def test_a_corrected_kernel_has_rows_that_sum_to_zero():
    own = tap(corrected(exact.faulty(0.3)), "own")
    with jax.enable_x64(True):
        look = watch(loss_of(own)).look(0, *map(jnp.asarray, (Q, K, V)))
    assert look["attention/drift"] < 1e-14


def test_has_aux():
    own = tap(exact.faulty(1e-2), "own")
    loss = loss_of(own)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(x) for x in (Q, K, V)]
        aux = watch(lambda *x: (loss(*x), {"more": x[0]}), has_aux=True).look(0, *arguments)
        assert aux == watch(loss).look(0, *arguments)


def test_a_scale_that_is_not_known_is_found_out():
    """A kernel whose scale stands nowhere is another function of more features."""

    def fixed(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, scale=2.0)

    own = tap(fixed, "own", is_causal=False)
    w = watch(lambda *x: (W.astype("f4") * own(*x)).sum())
    with pytest.raises(ValueError, match=r"layer 0 \(own\): with more features, fixed returns"):
        w.look(0, *(jnp.asarray(x, "float32") for x in (Q, K, V)))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="loss=3: give the function"):
        watch(3)
    with pytest.raises(TypeError, match=r"every=0\.5: give a whole number"):
        watch(len, 0.5)
    with pytest.raises(ValueError, match="every=0: must be 1 or more"):
        watch(len, 0)
    with pytest.raises(ValueError, match="threshold=-1"):
        watch(len, threshold=-1)
    with pytest.raises(RuntimeError, match="step=0: the gradient of this loss"):
        watch(lambda x: x * x).look(0, 1.0)


def test_a_function_that_swallows_every_option_is_probed_at_its_scale():
    """`**options` that are ignored: a scale that is given is no scale that is used."""
    size = 1e-2

    def swallowing(q, k, v, is_causal=True, **options):
        return exact.faulty_without_scale(size)(q, k, v)

    own = tap(swallowing, "own")
    with jax.enable_x64(True):
        found = watch(loss_of(own), threshold=None).look(0, *map(jnp.asarray, (Q, K, V)))
    assert found["attention/row_sums"] == pytest.approx(numbers(size, True)[1], rel=1e-11)
