"""A bias that is added to the scores: judged by binary64, by fractions, by PyTorch on a CPU."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from roundscope import Plan, Record, attend, error_budget, examine, row_sums
from roundscope.attention.engines.fused import from_scores
from roundscope.attention.sites import OF_BIAS
from tests.checks.kernel_biases import shares

BF16 = ml_dtypes.bfloat16
RESULTS = ("out", "lse", "dq", "dk", "dv", "dbias")


def drawn(seed=0, batch=2, tokens=6, keys=6, heads=2, features=8):
    """Return q, k, v, do (B, T, N, H) and a bias (B, N, T, S), binary32 numbers."""
    rng = np.random.default_rng(seed)
    q, do = rng.standard_normal((2, batch, tokens, heads, features), np.float32)
    k, v = rng.standard_normal((2, batch, keys, heads, features), np.float32)
    return q, k, v, do, rng.standard_normal((batch, heads, tokens, keys), np.float32)


def textbook(q, k, v, do, bias):
    """Return the output, its gradients and that of B of softmax(scale Q K^T + B) V, in binary64."""
    q, k, v, do = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v, do))
    scale = q.shape[-1] ** -0.5
    s = scale * q @ k.swapaxes(-1, -2) + bias
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = p @ v
    ds = p * (do @ v.swapaxes(-1, -2) - (do * out).sum(-1, keepdims=True))
    turned = ds.swapaxes(-1, -2)
    found = (out, scale * ds @ k, scale * turned @ q, p.swapaxes(-1, -2) @ do)
    return *(x.swapaxes(1, 2) for x in found), ds


@pytest.mark.parametrize("shape", [(2, 2, 6, 6), (1, 2, 6, 6), (2, 1, 1, 6), (6, 1), ()])
def test_the_exact_plan_is_the_textbook(shape):
    """A bias or a gradient that a tile drops, turns, or adds up along the wrong axes."""
    q, k, v, do, bias = drawn()
    whole = (1,) * (4 - len(shape)) + shape
    bias = bias[tuple(slice(n) for n in whole)].reshape(shape)
    found = examine(
        *(x.astype(np.float64) for x in (q, k, v, do)),
        plan="exact", bias=bias, block_q=4, block_k=4,
    )  # fmt: skip
    *expected, ds = textbook(q, k, v, do, bias)
    axes = tuple(n for n, size in enumerate(whole) if size == 1)
    for name, x in zip(("out", "dq", "dk", "dv"), expected, strict=True):
        np.testing.assert_allclose(getattr(found, name), x, rtol=0, atol=3e-14)
    assert found.dbias.shape == shape
    np.testing.assert_allclose(
        found.dbias, ds.sum(axes, keepdims=True).reshape(shape), rtol=0, atol=3e-14
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "plan", ["fa2-bf16; biased=true BIASED=bf16:stochastic", "eager", "flex", "fa2-bf16; softcap=2"]
)
def test_engines_have_the_same_bits(plan):
    """An engine that pads a bias wrongly, or recomputes another one in the backward."""
    q, k, v, do, bias = drawn(1)
    bias[0, 1, 2, 3] = -np.inf
    bias[1, 0, 5] = -np.inf  # a row that sees no key
    call = {"plan": plan, "bias": bias, "block_q": 4, "block_k": 4}
    numpy, xla = (examine(q, k, v, do, engine=e, **call) for e in ("numpy", "xla"))
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(numpy, name), np.asarray(getattr(xla, name)))
    for site, stats in numpy.trace.stats.items():
        assert int(stats.total().n) == int(xla.trace.stats[site].total().n)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["xla", "numpy"])
def test_the_derivative_under_jax_has_the_bits_of_examine(engine):
    """A derivative of the bias that is lost, of another type, or of another order."""
    import jax

    q, k, v, do, bias = drawn(2)
    bias = bias[:1]
    bias[0, 1, 2, 3] = -np.inf

    def loss(bias):
        return (attend(q, k, v, plan="fa2-bf16", bias=bias, engine=engine) * do).sum()

    found = np.asarray(jax.jit(jax.grad(loss))(bias))
    expected = examine(q, k, v, do, plan="fa2-bf16", bias=bias).dbias
    np.testing.assert_array_equal(found, expected)
    assert found[0, 1, 2, 3] == 0.0


@pytest.mark.parametrize("fused", [False, True])
def test_the_sum_is_rounded_once(fused):
    """A product that is rounded before the sum, or twice; a bias that its own event does not round,
    by exact fractions.
    """
    q, k, v, _, bias = drawn(3, batch=1)
    bias *= 2.0**-9
    plan = Plan.preset("fp32").changed(
        "biased=true BIAS=bf16", "SCALED=fp64" if fused else "SCALED=bf16"
    )
    sites = ("S", "SCALED", "BIAS", "BIASED")
    events = examine(q, k, v, plan=plan, bias=bias, record=Record(events=sites)).trace.events
    s, scaled, own, total = (events[site][1] for site in sites)
    np.testing.assert_array_equal(own, bias.astype(BF16).astype(np.float64))
    factor = Fraction(float(np.float32(8**-0.5)))
    for x, rounded, b, y in zip(*(z.ravel() for z in (s, scaled, own, total)), strict=True):
        product = Fraction(x) * factor if fused else Fraction(rounded)
        exact = product + Fraction(b)
        below, above = np.nextafter(np.float32(y), [-np.inf, np.inf], dtype=np.float32)
        off = abs(exact - Fraction(y))
        assert off <= min(abs(exact - Fraction(float(z))) for z in (below, above))
    if not fused:
        assert np.any(scaled != s * float(factor))


def test_minus_infinity_hides_a_key():
    """A bias of -inf that makes NaN, or is counted among the events, or is not told."""
    q, k, v, do, bias = drawn(4)
    seen = np.tri(6, dtype=bool)
    seen[0] = False
    hidden = examine(q, k, v, do, plan="fa2-bf16", bias=np.where(seen, bias, -np.inf))
    masked = examine(q, k, v, do, plan="fa2-bf16", bias=bias, mask=seen)
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(hidden, name), getattr(masked, name))
    assert hidden.notes == ("64 of 144 entries of the bias are -inf: they count as masked",)
    assert int(hidden.trace.stats["BIASED"].total().n) == 4 * int(seen.sum())
    assert not np.asarray(hidden.out)[:, 0].any()


def test_a_bias_of_zero_changes_no_bit():
    """A factor of the scores that is applied twice, or not at all, once there is a bias."""
    q, k, v, do, bias = drawn(5)
    for plan in ("eager", "sdpa-math", "sdpa-efficient", "flex", "fa2-bf16"):
        plain = examine(q, k, v, do, plan=plan, record=None)
        with_zeros = examine(q, k, v, do, plan=plan, bias=0 * bias, record=None)
        for name in ("out", "dq", "dk", "dv"):
            np.testing.assert_array_equal(getattr(plain, name), getattr(with_zeros, name), plan)


def test_events_can_be_injected_and_budgeted():
    """An error at an event of the bias that nothing reads; a budget that leaves the bias out."""
    q, k, v, do, bias = drawn(6)
    plain = examine(q, k, v, do, plan="exact", bias=bias)
    moved = examine(q, k, v, do, plan="exact", bias=bias, inject="BIASED:set=0:rows=2:heads=0")
    is_other = (moved.out != plain.out).any(axis=(0, 3))
    assert is_other[2, 0] and is_other.sum() == 1
    scaled = examine(q, k, v, do, plan="exact", bias=bias, inject="DBIAS:set=1")
    np.testing.assert_array_equal(scaled.dbias, np.ones_like(bias))
    budget = error_budget(q, k, v, do, plan="fp32; biased=true BIAS=e4m3fn", bias=bias)
    assert budget.largest("dq").part.name == "BIAS"
    assert abs(row_sums(q, k, v, do, plan="exact", bias=bias)).max() < 1e-14


@pytest.mark.parametrize(
    ("plan", "why"),
    [("fa2", "log2_e=maximum"), ("cudnn", "log2_e=scale"), ("qiu-yao-eager", "the scale in dS")],
)
def test_plans_that_add_no_bias_say_so(plan, why):
    """A plan that takes a bias which its arithmetic has no place for, or refuses it unsaid."""
    q, k, v, _, bias = drawn()
    with pytest.raises(ValueError, match=f"bias: {plan} .*{why}.*give a plan that adds one"):
        attend(q, k, v, plan=plan, bias=bias)
    with pytest.raises(ValueError, match="BIASED"):
        attend(q, k, v, plan="fa2-bf16", inject="BIASED:ulps=1")
    assert not OF_BIAS & {*examine(q, k, v, plan="eager").trace.stats}


def on_a_grid(shape, seed):
    """Return q, k, v, do (B, N, T, H) in quarters and a bias (1, N, T, T) in BF16.

    All products of two of them add up exactly in binary32, in any order.
    """
    import torch

    rng = np.random.default_rng(seed)
    q, k, v, do = rng.integers(-4, 5, (4, *shape)) / 4.0
    bias = rng.standard_normal((1, shape[1], shape[2], shape[2]))
    return [torch.tensor(x, dtype=torch.bfloat16) for x in (q, k, v, do, bias)]


def by_hand(q, k, v, bias):
    import torch

    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5 + bias
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def by_math(q, k, v, bias):
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@pytest.mark.parametrize(("plan", "kernel"), [("eager", by_hand), ("sdpa-math", by_math)])
def test_pytorch_on_a_cpu_has_the_same_bits(plan, kernel):
    """A cast of the bias, of the sum or of its gradient that PyTorch has elsewhere."""
    import torch

    *inputs, do, bias = on_a_grid((2, 2, 16, 16), 0)
    own = [x.requires_grad_() for x in (*inputs, bias)]
    out = kernel(*own)
    expected = (out, *torch.autograd.grad(out, own, do))
    arrays = (x.detach().float().numpy().astype(BF16) for x in (*inputs, do, bias))
    *arrays, bias = arrays
    found = examine(*(x.swapaxes(1, 2) for x in arrays), plan=plan, bias=bias)
    for name, x in zip(("out", "dq", "dk", "dv", "dbias"), expected, strict=True):
        mine = np.asarray(getattr(found, name)).astype(BF16)
        mine = mine if name == "dbias" else mine.swapaxes(1, 2)
        np.testing.assert_array_equal(mine, x.detach().float().numpy().astype(BF16), name)


def test_kernels_of_a_gpu_have_the_same_bits():
    """A plan whose name is a kernel's that adds the bias elsewhere, or casts its gradient there."""
    for what, plan, found in shares():
        for part, share in found.items():
            is_flex = plan == "flex" and part == "dv"  # one of 8,192 numbers
            assert share >= (0.9998 if is_flex else 1.0), (what, part)


@pytest.mark.thorough  # it compiles
@pytest.mark.parametrize("plan", ["fa2-bf16", "eager", "flex"])
def test_programs_have_the_bits_of_loops(plan):
    """A program that has the bias of another tile, or the bias of the tile it was traced with."""
    q, k, v, do, bias = drawn(7, tokens=20, keys=20)
    bias[0, 1, 3, 4] = bias[1, 0, 7] = -np.inf
    call = {"plan": plan, "bias": bias, "block_q": 8, "block_k": 8}
    with from_scores(0):
        programs = examine(q, k, v, do, **call)
    loops = examine(q, k, v, do, **call)
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(programs, name), getattr(loops, name))
