"""Scales of a call in FP8: where they enter, on every engine, and scales that are none."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, attend, examine
from roundscope.attention.engines.fused import from_scores
from roundscope.attention.inputs.scales import stored_numbers

FP8 = ml_dtypes.float8_e4m3fn
G = np.random.default_rng(9)
Q, K, V = (
    G.standard_normal(shape).astype(FP8) for shape in ((2, 5, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8))
)
OF_HEADS = np.array([[0.3, 1.7], [0.9, 0.2]], np.float32)
SCALES = {"descale_q": 0.7, "descale_k": OF_HEADS, "descale_v": np.array([1.9, 0.4], np.float32)}
PRODUCTS = Plan.preset("fa3-fp8").changed("descales=products")


def wide(x):
    return np.asarray(x, np.float32)


def test_a_cache_is_dequantized_as_vllm_s_triton_kernel_does():
    """A product that is rounded once, to BF16, or whose scale is BF16: (K.to(float32) * k_scale)
    .to(Q.dtype).
    """
    q = wide(Q).astype(ml_dtypes.bfloat16)
    scales = {"descale_k": 0.0371, "descale_v": 1.23}
    got = attend(q, K, V, plan="fa2", scales=scales)
    k, v = (wide(x) * np.float32(s) for x, s in zip((K, V), scales.values(), strict=True))
    k, v = (x.astype(ml_dtypes.bfloat16) for x in (k, v))
    assert np.array_equal(got, wide(attend(q, k, v, plan="fa2")))
    once = (wide(K).astype(np.float64) * np.float32(0.0371)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(once, k)  # E4M3 times binary32 has 28 bits, so it may differ elsewhere


def in_fa3(q, k, v, of_q, of_k, of_v):
    """Return the output and L of a head of small whole numbers: FlashAttention-3's hopper/softmax.h
    and mainloop in FP8, with one tile, in NumPy's binary32.
    """
    f32 = np.float32
    c = f32(f32(8**-0.5) * np.log2(np.e)) * (f32(of_q) * f32(of_k))
    s = wide(q) @ wide(k).T
    m = s.max(1)
    less = f32(m * c) - f32(8.0)
    x = (s.astype(np.float64) * c - less[:, None]).astype(f32)  # fma
    e = np.exp2(x.astype(np.float64)).astype(f32)
    l = np.zeros(len(s), f32)
    for column in e.T:
        l = l + column
    o = wide(e.astype(FP8)) @ wide(v)
    scale = (f32(1.0) / l) * f32(of_v)
    lse = m.astype(np.float64) * c * np.log(2.0) + np.log(l.astype(np.float64) / 256.0)
    return o * scale[:, None], lse


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_products_are_those_of_flash_attention_3(engine):
    """A scale in the operands, one that multiplies before log2 e, the scale of another head, a
    scale of V that multiplies the output after its division.
    """
    q, k, v = (G.integers(-4, 5, x.shape).astype(FP8) for x in (Q, K, V))
    plan = PRODUCTS.changed(
        "exp=base2 log2_e=maximum fused_exponent=true offset=8 OUT=fp32 S.sum=ascending"
    )
    got = examine(q, k, v, plan=plan, scales=SCALES, engine=engine)
    for b, n in np.ndindex(2, 4):
        of_k, of_v = OF_HEADS[b, n // 2], SCALES["descale_v"][n // 2]
        keys = k[b, :, n // 2], v[b, :, n // 2]
        out, lse = in_fa3(q[b, :, n], *keys, 0.7, of_k, of_v)
        assert np.array_equal(got.out[b, :, n], out)
        np.testing.assert_allclose(got.lse[b, :, n], lse, rtol=3e-7)
    moved = examine(q, k, v, plan=plan.changed("descales=operands"), scales=SCALES, engine=engine)
    assert not np.array_equal(got.out, moved.out)


@pytest.mark.parametrize("plan", ["cudnn", "fa2-split", "flex"])
def test_scales_that_are_powers_of_two_are_exact_anywhere(plan):
    """A scale that is rounded at another place, in plans whose factor is scale, c or a score."""
    scales = {"descale_q": 2.0, "descale_k": 0.25, "descale_v": np.array([0.5, 8.0])}
    call = {"block_q": 8, "block_k": 4}
    plans = [Plan.preset(plan).changed(f"descales={x}") for x in ("operands", "products")]
    first, second = (examine(Q, K, V, plan=p, scales=scales, **call) for p in plans)
    want = examine(wide(Q) * 2, wide(K) / 4, V, plan=plan, **call).out
    want = want * np.array([0.5, 0.5, 8.0, 8.0], np.float32)[:, None]
    assert np.array_equal(first.out, want) and np.array_equal(second.out, want)
    np.testing.assert_allclose(second.lse, first.lse, rtol=2e-7)  # m times c / log2 e, or the scale


@pytest.mark.parametrize("descales", ["operands", "products"])
def test_engines_agree(descales):
    """Scales of the first head for all; scales that a program of JAX was compiled with."""
    plan = PRODUCTS.changed(f"descales={descales}")
    want = attend(Q, K, V, plan=plan, scales=SCALES | {"scale_o": 3.0}, engine="numpy")

    @jax.jit
    def out(of_k, of_o):
        scales = SCALES | {"descale_k": of_k, "scale_o": of_o}
        return attend(jnp.asarray(Q), K, V, plan=plan, scales=scales, engine="xla")

    assert np.array_equal(out(jnp.asarray(OF_HEADS), 3.0), want)
    assert not np.array_equal(out(jnp.asarray(2 * OF_HEADS), 3.0), want)
    with from_scores(0):
        assert np.array_equal(
            attend(Q, K, V, plan=plan, scales=SCALES | {"scale_o": 3.0}, engine="numpy"), want
        )


def test_scale_s_is_an_offset_and_scale_o_of_the_output_before_its_cast():
    """A scale of P that the output keeps; a scale of the output that multiplies E4M3 numbers."""
    call = {"block_q": 8, "block_k": 16}
    assert np.array_equal(
        attend(Q, K, V, plan="cudnn-fp8", scales={"scale_s": 256}, **call),
        attend(Q, K, V, plan="cudnn-fp8-s256", **call),
    )
    fine = attend(Q, K, V, plan=Plan.preset("cudnn-fp8").changed("OUT=fp32"), **call)
    got = attend(Q, K, V, plan="cudnn-fp8", scales={"scale_o": 48.0}, **call)
    near = np.abs(got - 48.0 * fine) <= 48.0 * np.abs(fine) / 15 + 2**-10
    assert near.all() and np.array_equal(got, wide(got.astype(FP8)))
    assert not np.array_equal(got, 48.0 * attend(Q, K, V, plan="cudnn-fp8", **call))


def test_the_gradient_of_stored_numbers_has_their_scale():
    """A gradient of the dequantized numbers."""

    def total(q, k, v, scales):
        return attend(q, k, v, plan="fa2-bf16", scales=scales).sum()

    q, k, v = (jnp.asarray(wide(x)) for x in (Q, K, V))
    scales = {"descale_q": 0.5, "descale_v": np.array([2.0, 4.0], np.float32)}
    got = jax.grad(total, argnums=(0, 1, 2))(q, k, v, scales)
    of_v = scales["descale_v"][:, None]
    want = jax.grad(total, argnums=(0, 1, 2))(q * 0.5, k, v * of_v, None)
    for x, y, scale in zip(got, want, (0.5, 1.0, of_v), strict=True):
        assert np.array_equal(x, y * scale)
    for scales in (SCALES, {"scale_o": 2.0}):
        with pytest.raises(ValueError, match=r"scales: there is no backward.*descales=operands"):
            jax.grad(lambda q, s=scales: attend(q, K, V, plan=PRODUCTS, scales=s).sum())(q)
        with pytest.raises(ValueError, match="there is no backward"):
            examine(Q, K, V, wide(Q), plan=PRODUCTS, scales=scales)


def test_stored_numbers_come_back_from_their_products():
    """A quotient that is rounded to another number: every number of E4M3 and of FP16."""
    scales = np.array([[0.1, 3.0, 1 / 3, 1e-3, 448.0, 0.77]], np.float32)
    for dtype, codes in ((FP8, np.arange(256, dtype=np.uint8)), (np.float16, np.arange(2**16))):
        kind = np.uint8 if dtype == FP8 else np.uint16
        x = wide(codes.astype(kind).view(dtype))
        x = x[np.isfinite(x)]
        whole = np.broadcast_to(x[None, :, None, None], (1, x.size, 6, 1))
        products = whole * scales[:, None, :, None]
        assert np.array_equal(stored_numbers(products, scales), whole)


WRONG = [
    (0.5, TypeError, "scales=0.5: give scales by name"),
    ({"k_scale": 0.5}, ValueError, "scales: 'k_scale', must be one of descale_q"),
    ({"descale_k": "0.5"}, TypeError, "scales: descale_k='0.5', must be a number or an array"),
    ({"descale_k": 0.0}, ValueError, "scales: descale_k=0.0, must be positive and finite"),
    ({"descale_k": -1.0}, ValueError, "scales: descale_k=-1.0, must be positive"),
    ({"descale_k": np.nan}, ValueError, "must be positive and finite"),
    ({"descale_v": 1e60}, ValueError, "finite in binary32"),
    (
        {"descale_k": np.ones(4)},
        ValueError,
        r"descale_k of shape \(4,\).*one for each of the 2 key",
    ),
    ({"descale_q": np.ones(3)}, ValueError, r"descale_q of shape \(3,\).*2 or 4 query or key"),
    ({"descale_v": np.ones((3, 2))}, ValueError, r"descale_v of shape \(3, 2\)"),
    ({"scale_s": 3}, ValueError, "scale_s=3, must be a power of two from 1"),
    ({"scale_s": 0.5}, ValueError, "scale_s=0.5, must be a power of two"),
    ({"scale_s": np.ones(2)}, TypeError, "scale_s=.*must be a number"),
    ({"scale_s": 4}, ValueError, r"scale_s=4 is 2\^offset, and offset=2.*log2_e"),
]


@pytest.mark.parametrize(("scales", "error", "message"), WRONG)
def test_wrong_scales(scales, error, message):
    """A scale that is left out or taken for another."""
    with pytest.raises(error, match=message):
        attend(Q, K, V, plan="fa2-bf16", scales=scales)


def test_plans_and_engines_that_take_no_scales():
    """A scale that a plan or a kernel ignores."""
    with pytest.raises(ValueError, match=r"descales=products.*unfused=false"):
        Plan.preset("eager").changed("descales=products")
    with pytest.raises(ValueError, match=r"scale_o: eager divides P.*leave it out"):
        attend(Q, K, V, plan="eager", scales={"scale_o": 2.0})
    x = np.ones((1, 16, 1, 16), np.float32)
    plan = Plan.preset("fa2-bf16").changed("descales=products")
    with pytest.raises(ValueError, match=r"scales: the fused kernel.*engine='xla'"):
        attend(x, x, x, plan=plan, scales={"descale_k": 0.5}, engine="pallas")
    with pytest.raises(ValueError, match="scales: several plans"):
        examine(Q, K, V, plan=["fp32", "fp32"], scales={"descale_k": 0.5})
