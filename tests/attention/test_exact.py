"""Against plain attention in binary64: the exact plan, exact injections at every site, and fp32's
own error.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import DeltaFrom, Exact, Injection, Plan, Site, Stabilizer, examine
from roundscope.attention.places import absent
from tests.checks.engines import normal

SCALE = 0.25  # a binary32 number, so that no plan rounds it
SHAPES = (2, 29, 4, 16), (2, 43, 2, 16), (2, 43, 2, 16), (2, 29, 4, 16)


def inputs(dtype=np.float64):
    """Not representable in binary32: the low bits of the inputs matter too."""
    return [
        (normal(50 + i, *s).astype(np.float64) * (1 + 2.0**-30)).astype(dtype)
        for i, s in enumerate(SHAPES)
    ]


def some_mask():
    mask = np.random.Generator(np.random.PCG64(3)).random((2, 4, 29, 43)) < 0.7
    mask[..., 0] = True
    return mask


def plain(q, k, v, visible):
    """softmax(scale Q K^T) V as a textbook writes it; visible: (B, N, T, S)."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    s = jnp.where(visible, jnp.einsum("btnh,bsnh->bnts", q, k) * SCALE, -jnp.inf)
    p = jax.nn.softmax(s, axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", p, v), jax.nn.logsumexp(s, axis=-1).swapaxes(1, 2)


@jax.jit
def _reference(q, k, v, do, visible):
    (out, lse), pull = jax.vjp(lambda *x: plain(*x, visible), q, k, v)
    return (out, lse, *pull((do, jnp.zeros_like(lse))), (out * do).sum(-1))


def reference(q, k, v, do, *, causal=False, mask=None):
    """out, lse, dq, dk, dv, delta by JAX's own autodiff, in the type of the inputs."""
    visible = np.broadcast_to(True if mask is None else mask, (2, 4, 29, 43))
    visible = visible & np.tri(29, 43, dtype=bool) if causal else visible
    with jax.enable_x64(q.dtype == np.float64):
        return [np.asarray(x) for x in _reference(q, k, v, do, visible)]


def results(seen):
    return [np.asarray(x) for x in (seen.out, seen.lse, seen.dq, seen.dk, seen.dv, seen.delta)]


def worst(seen, want):
    return [
        float(np.abs(np.asarray(x, np.float64) - y).max())
        for x, y in zip(results(seen), want, strict=True)
    ]


CASES = {"full": {}, "causal": {"causal": True}, "masked": {"mask": some_mask()}}


def run(*arrays, plan, case="full", blocks=(8, 8), **options):
    """One run with the case's mask, and its largest error per result against the reference."""
    given = CASES[case]
    return examine(
        *arrays,
        plan=plan,
        scale=SCALE,
        block_q=blocks[0],
        block_k=blocks[1],
        is_causal=given.get("causal", False),
        mask=given.get("mask"),
        record=None,
        **{"engine": "numpy"} | options,
    )


CHANGES = {
    "plain": {},
    "P_DP": {"delta_from": DeltaFrom.P_DP},
    "CENTRED": {"delta_from": DeltaFrom.CENTRED},
    "WIDE_O": {"delta_from": DeltaFrom.WIDE_O},
    "into-o": {"pv_into_o": True, "row_sum_of": Site.P},
    "unfused": {"normalise_first": True},
    "last": {"normalized_last": True},
    "stabilised": {"stabiliser": Stabilizer(beta=2.0, window=0.05)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("change", CHANGES)
def test_exact_plan_is_float64_attention(case, change):
    """A wrong equation anywhere: rescaling, masking, head groups, the backward, delta, the
    stabiliser's shift.
    """
    q, k, v, do = inputs()
    blocks = (
        (29, 43) if change == "stabilised" else (8, 8)
    )  # rows without keys in a tile: test_oracles
    seen = run(
        q, k, v, do, plan=replace(Plan.preset("exact"), **CHANGES[change]), case=case, blocks=blocks
    )
    out, lse, *gradients = worst(seen, reference(q, k, v, do, **CASES[case]))
    assert out < 1e-12
    assert lse < 1e-12
    assert max(gradients) < 1e-10


def test_exact_plan_on_xla():
    """The same by the other engine's own 64-bit path."""
    q, k, v, do = inputs()
    seen = run(q, k, v, do, plan=Plan.preset("exact"), engine="xla", blocks=(16, 16))
    out, lse, *gradients = worst(seen, reference(q, k, v, do))
    assert max(out, lse) < 1e-12
    assert max(gradients) < 1e-10


def exact_everywhere(plan):
    return [Injection(site=s, what=Exact()) for s in Site if absent(plan, s) is None]


@pytest.mark.parametrize(
    ("preset", "case"),
    [
        pytest.param(preset, case, marks=[pytest.mark.thorough] if (i + j) % 2 else [])
        for i, preset in enumerate(
            ("fp32", "fa2-bf16", "qiu-yao", "fa3-fp8", "baseline-bf16", "all:bf16", "all:e4m3fn")
        )
        for j, case in enumerate(CASES)
    ],
)
def test_exact_at_every_site_undoes_every_rounding(preset, case):
    """An event that Exact() does not reach: then a diagnosis by replacement blames the wrong
    site.
    """
    q, k, v, do = inputs()
    k, v = (
        np.repeat(x, 2, axis=2) for x in (k, v)
    )  # G = N; grouped heads have a test of their own
    plan = Plan.preset(preset)
    errors = worst(
        run(q, k, v, do, plan=plan, case=case, inject=exact_everywhere(plan)),
        reference(q, k, v, do, **CASES[case]),
    )
    assert max(errors) < 1e-12


def test_exact_at_every_site_causal_on_tall_tiles():
    """The first rows of a causal tile (16, 8) see none of its keys, and must keep their dQ."""
    q, k, v, do = inputs()
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    plan = Plan.preset("fp32")
    seen = run(q, k, v, do, plan=plan, case="causal", blocks=(16, 8), inject=exact_everywhere(plan))
    errors = worst(seen, reference(q, k, v, do, causal=True))
    assert max(errors) < 1e-12


def test_exact_at_every_site_with_grouped_heads():
    """The sum of dK and dV over the query heads of a key head, which rounds too."""
    q, k, v, do = inputs()
    plan = Plan.preset("fa2-bf16")
    errors = worst(
        run(q, k, v, do, plan=plan, inject=exact_everywhere(plan)), reference(q, k, v, do)
    )
    assert max(errors) < 1e-12


@pytest.mark.parametrize("source", [DeltaFrom.P_DP, DeltaFrom.CENTRED, DeltaFrom.WIDE_O])
def test_exact_at_every_site_with_other_deltas(source):
    """delta's operands, which round outside of any event of their own."""
    q, k, v, do = inputs()
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    plan = replace(Plan.preset("fp32"), delta_from=source)
    errors = worst(
        run(q, k, v, do, plan=plan, inject=exact_everywhere(plan)), reference(q, k, v, do)
    )
    assert max(errors) < 1e-12


def test_exact_at_one_site_only_undoes_that_one():
    """Exact() that replaces more than its own event: the others' roundings must stay."""
    q, k, v, do = inputs()
    want = reference(q, k, v, do)
    plan = Plan.preset("all:bf16")
    for site in (Site.O, Site.S, Site.DV):
        errors = worst(
            run(q, k, v, do, plan=plan, inject=[Injection(site=site, what=Exact())]), want
        )
        assert min(errors) > 1e-4, site


@pytest.mark.parametrize("case", CASES)
def test_fp32_errs_no_more_than_twice_plain_float32(case):
    """An event missing from fp32's chain or done twice; the rule of the flash-attention test suite,
    of root mean squares.

    The largest error of the few delta is one number, which the processor's own order of sums moves
    by a fifth.
    """
    options = CASES[case]
    narrow = inputs(np.float32)
    golden = reference(*(x.astype(np.float64) for x in narrow), **options)
    own = root_mean_squares(reference(*narrow, **options), golden)
    seen = run(*narrow, plan=Plan.preset("fp32"), case=case)
    ours = root_mean_squares(results(seen), golden)
    for name, error, plain in zip(
        ("out", "lse", "dq", "dk", "dv", "delta"), ours, own, strict=True
    ):
        assert error <= 2 * plain, name


def root_mean_squares(found, want):
    return [
        float(np.sqrt(np.mean((x.astype(np.float64) - y) ** 2)))
        for x, y in zip(found, want, strict=True)
    ]
