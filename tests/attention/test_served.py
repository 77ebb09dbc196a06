"""What served models add to attention: sliding windows, softcaps and sinks, against a formula that
JAX differentiates in binary64.
"""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import AddUlps, Injection, Plan, Record, Site, attend, examine
from roundscope.attention.tiles.orders import cut_by
from tests.checks.engines import differences, normal

B, T, N, G, H = 2, 24, 4, 2, 8
INPUTS = [
    normal(300 + i, *shape)
    for i, shape in enumerate([(B, T, N, H), (B, T, G, H), (B, T, G, H), (B, T, N, H)])
]
SINKS = np.array([0.75, -1.5, 3.0, -8.0], np.float32)
SIZES = {"block_q": 8, "block_k": 8, "scale": 0.5}
ALL = {"window": 7, "softcap": 1.5, "sinks": SINKS}


def formula(q, k, v, sinks, *, window=None, softcap=None, is_causal=False):
    """softmax over the keys and the sink, from the definition; (B, T, N, H)."""
    s = jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, N // G, axis=2)) * SIZES["scale"]
    s = s if softcap is None else softcap * jnp.tanh(s / softcap)
    t, u = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None, :]
    sees = (u <= t) | (not is_causal)
    if window is not None:
        sees = sees & (u > t - window) & (u < t + window)
    e = jnp.where(sees, jnp.exp(s), 0.0)
    whole = e.sum(-1, keepdims=True) + (
        0.0 if sinks is None else jnp.exp(sinks)[None, :, None, None]
    )
    return jnp.einsum("bnts,bsnh->btnh", e / whole, jnp.repeat(v, N // G, axis=2))


@cache
def expected(window, softcap, has_sinks, is_causal):
    """The output, dq, dk, dv, and with sinks their gradients."""
    with jax.enable_x64(True):
        q, k, v, do = (jnp.asarray(x, "float64") for x in INPUTS)
        sinks = jnp.asarray(SINKS, "float64") if has_sinks else None

        def function(*x):
            return formula(*x, window=window, softcap=softcap, is_causal=is_causal)

        out, pull = jax.vjp(function, q, k, v, sinks)
        return [np.asarray(x) for x in (out, *pull(do)) if x is not None]


WORDS = {
    "tiles": "",
    "P dP": "delta_from=P_DP",
    "descending": "key_order=descending",
    "unfused": "unfused=true",
    "saved P": "unfused=true saved_p=true",
    "softmax": "score_gradient=softmax gradient_scale=operand",
    "maximum": "exp=base2 log2_e=maximum",
    "fused": "exp=base2 log2_e=scale fused_exponent=true",
    "lanes": "exp=base2 log2_e=scores row_sum=lanes",
    "stale": "exp=base2 log2_e=maximum stale_maximum=4",
    "masked first": "key_order=masked-first query_order=masked-first",
}


EVERY = list(itertools.product((None, 7), (None, 1.5), ("", "sinks=first", "sinks=last")))
PAIRS = [c for n, c in enumerate(EVERY) if n in (0, 2, 4, 7, 9, 11)]


def test_the_chosen_calls_have_every_pair():
    for a, b in itertools.combinations(range(3), 2):
        assert {(c[a], c[b]) for c in PAIRS} == {(c[a], c[b]) for c in EVERY}


@pytest.mark.parametrize(
    "chosen", [PAIRS, pytest.param(EVERY, marks=pytest.mark.thorough)], ids=["pairs", "every"]
)
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_it_is_the_formula(words, is_causal, chosen):
    """A window that is off by one, a derivative of the softcap that is missing, a sink in the wrong
    units; gradients too.
    """
    tolerance = 1e-5 if "base2" in words else 1e-12  # c = binary32(scale log2 e)
    base = Plan.preset("exact").changed(words) if words else Plan.preset("exact")
    for window, softcap, sinks in chosen:
        if sinks == "sinks=last" and "unfused" in words:
            continue
        plan = base.changed(sinks) if sinks else base
        given = {"window": window, "softcap": softcap, "sinks": SINKS if sinks else None}
        x = [np.asarray(a, np.float64) for a in INPUTS]
        found = examine(*x, plan=plan, is_causal=is_causal, record=None, **SIZES, **given)
        want = expected(window, softcap, bool(sinks), is_causal)
        results = zip(
            ("out", "dq", "dk", "dv", "dsinks"),
            (found.out, found.dq, found.dk, found.dv, found.dsinks),
            want,
            strict=False,
        )
        for name, ours, theirs in results:
            assert np.abs(ours - theirs).max() < tolerance * max(1.0, np.abs(theirs).max()), (
                name,
                given,
            )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("plan", "is_causal"),
    [
        pytest.param("fa2", True, marks=pytest.mark.thorough),
        ("eager", False),
        pytest.param("flex", True, marks=pytest.mark.thorough),
    ],
)
def test_engines_agree(plan, is_causal):
    """Events that XLA fuses or reorders: bits of results, counts and sums of every event."""
    asked = {"plan": plan, "is_causal": is_causal, **SIZES, **ALL} | (
        {"sinks": None} if plan == "flex" else {}
    )  # its L is in base 2
    ours, theirs = (examine(*INPUTS, engine=engine, **asked) for engine in ("numpy", "xla"))
    assert differences(ours, theirs) == []
    if plan == "flex":
        return
    assert np.array_equal(np.asarray(ours.dsinks), np.asarray(theirs.dsinks))
    assert {"SS", "CAP", "TANH", "SINK", "DTANH", "DSC", "PSINK", "DSINK"} <= set(ours.trace.stats)
    assert ours.trace.stats["DSINK"].n.sum() == B * T * N
    assert ("SL" in ours.trace.stats) == (plan != "eager")


def test_jax_differentiates_it():
    """A gradient of sinks that attend forgets, or gives in another type."""
    q, k, v, do = (jnp.asarray(x, "float32") for x in INPUTS)
    asked = {"plan": "fa2-bf16", "is_causal": True, **SIZES, **ALL}

    def loss(q, k, v, sinks):
        return (attend(q, k, v, **(asked | {"sinks": sinks})) * do).sum()

    found = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, v, jnp.asarray(SINKS, "bfloat16"))
    assert found[3].dtype == jnp.bfloat16
    want = examine(*INPUTS, record=None, **asked)
    for ours, theirs in zip(found[:3], (want.dq, want.dk, want.dv), strict=True):
        assert np.array_equal(np.asarray(ours), theirs)
    assert np.array_equal(
        np.asarray(found[3]), np.asarray(jnp.asarray(want.dsinks).astype("bfloat16"))
    )


def test_words_and_arguments_are_the_same():
    """A plan's own window or softcap that is ignored, or that wins over the argument."""
    q, k, v, _ = INPUTS
    given = attend(q, k, v, plan="fa2-bf16", window=7, softcap=1.5, **SIZES)
    assert np.array_equal(
        given,
        attend(q, k, v, plan=Plan.preset("fa2-bf16").changed("window=7 softcap=1.5"), **SIZES),
    )
    assert np.array_equal(
        given,
        attend(
            q,
            k,
            v,
            plan=Plan.preset("fa2-bf16").changed("window=3 softcap=9"),
            window=7,
            softcap=1.5,
            **SIZES,
        ),
    )


def test_every_event_is_the_rounded_operation():
    """An event of another formula than it says."""
    names = (
        "SS",
        "CAP",
        "TANH",
        "SCALED",
        "SINK",
        "SX",
        "SE",
        "L",
        "SL",
        "DSC",
        "TT",
        "DTANH",
        "DCAP",
        "DS",
        "PSINK",
        "DSINK",
    )
    sinks = SINKS.astype(np.float64)
    found = examine(
        *INPUTS,
        plan="fa2-bf16",
        block_q=T,
        block_k=T,
        scale=0.5,
        softcap=1.5,
        sinks=sinks,
        record=Record(events=names),
    )
    after = {name: np.asarray(found.trace.events[name][1], np.float64) for name in names}

    def single(x):
        return np.asarray(x, np.float32).astype(np.float64)

    def same(name, x):
        return np.array_equal(after[name].reshape(-1), single(x).reshape(-1))

    assert (
        same("CAP", after["SS"] / 1.5)
        and same("TANH", np.tanh(after["CAP"]))
        and same("SCALED", 1.5 * after["TANH"])
    )
    assert same("SINK", np.broadcast_to(sinks[None, :, None], (B, N, T))) and same(
        "SE", np.exp(after["SX"])
    )
    assert same("SL", after["L"].reshape(-1) + after["SE"].reshape(-1))
    assert (
        same("TT", np.square(after["TANH"]))
        and same("DTANH", 1.0 - after["TT"])
        and same("DCAP", after["DSC"] * after["DTANH"])
    )
    lse, delta = (np.moveaxis(np.asarray(x, np.float64), 1, 2) for x in (found.lse, found.delta))
    assert same("PSINK", np.exp(sinks[None, :, None] - lse)) and same(
        "DSINK", -after["PSINK"].reshape(-1) * delta.reshape(-1)
    )
    rows = after["DSINK"].reshape(B, N, T)
    assert np.allclose(found.dsinks, rows.sum(axis=(0, 2)), rtol=1e-6)


def test_an_error_at_a_new_event_reaches_the_output():
    """An event that injections do not meet."""
    q, k, v, _ = INPUTS
    asked = {"plan": "fa2-bf16", "softcap": 1.5, "sinks": SINKS, **SIZES}
    plain = attend(q, k, v, **asked)
    for site in (Site.SS, Site.CAP, Site.TANH, Site.SINK, Site.SX, Site.SE, Site.SL):
        moved = attend(
            q, k, v, inject=Injection(site=site, what=AddUlps(ulps=2.0**15), rows=3), **asked
        )
        rows = np.any(moved != plain, axis=(0, 2, 3))
        assert rows[3] and rows.sum() == 1, site


def test_a_row_without_keys_has_its_sink():
    """A logarithm of zero, or an output that is not 0."""
    q, k, v, do = INPUTS
    mask = np.arange(T)[:, None] % 5 != 0
    for words in ("sinks=last", "sinks=first", "exp=base2 log2_e=maximum sinks=last"):
        plan = Plan.preset("exact").changed(words)
        found = examine(q, k, v, do, plan=plan, mask=mask, sinks=SINKS, record=None, **SIZES)
        assert np.all(found.out[:, ::5] == 0.0) and np.allclose(found.lse[:, ::5], SINKS, rtol=1e-6)
        assert all(np.all(np.isfinite(x)) for x in (found.dq, found.dk, found.dv, found.dsinks))
    far = attend(
        np.repeat(q, 2, axis=1), k, v, plan="fa2-bf16", window=4, **SIZES
    )  # twice as many queries as keys
    assert np.all(far[:, T + 3 :] == 0.0) and np.all(np.any(far[:, : T + 3] != 0.0, axis=-1))


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("window", [0, 1, 5, 8, 16, 17, 40])
def test_tiles_that_an_edge_cuts(window, is_causal):
    """A tile whose scores exist in part that counts as whole, or the other way round."""
    t, s = np.arange(40)[:, None], np.arange(40)[None, :]
    sees = ((s <= t) | (not is_causal)) & ((abs(t - s) < window) | (window == 0))
    cut = cut_by(is_causal, window)
    for i, j in itertools.product(range(5), range(5)):
        part = sees[8 * i : 8 * i + 8, 8 * j : 8 * j + 8]
        wanted = part.any() and not part.all()
        assert (cut is not None and bool(cut((8 * i, 8 * i + 8), (8 * j, 8 * j + 8)))) == wanted, (
            i,
            j,
        )


REFUSED = [
    ({"window": 0}, "1 or more"),
    ({"window": -3}, "1 or more"),
    ({"window": 2.5}, "whole number"),
    ({"window": True}, "whole number"),
    ({"softcap": 0.0}, "above 0"),
    ({"softcap": float("nan")}, "above 0"),
    ({"softcap": "50"}, "give a number"),
    ({"sinks": SINKS[:3]}, r"each of the 4 heads"),
    ({"sinks": np.arange(4)}, "float"),
    ({"sinks": [1.0] * 4}, "array of floats"),
    ({"engine": "pallas", "window": 7}, "engine='xla'"),
    ({"engine": "pallas", "softcap": 2.0}, "engine='xla'"),
    ({"engine": "pallas", "sinks": SINKS}, "engine='xla'"),
    ({"plan": "fa2-split", "sinks": SINKS}, "split_tiles"),
    ({"plan": "qiu-yao-eager", "sinks": SINKS}, "kept_state"),
    ({"plan": "pallas-mha", "softcap": 2.0}, "dp_from_delta"),
    ({"plan": "flex", "sinks": SINKS}, "lse_base2"),
    ({"plan": Plan.preset("fa2-bf16").changed("delta_from=CENTRED"), "sinks": SINKS}, "CENTRED"),
]


@pytest.mark.parametrize(("given", "told"), REFUSED, ids=lambda x: str(x)[:40])
def test_refusals(given, told):
    """A feature that a plan or an engine drops in silence."""
    q, k, v, _ = INPUTS
    with pytest.raises((ValueError, TypeError), match=told):
        attend(q, k, v, **({"plan": "fa2-bf16"} | SIZES | given))


def test_a_chain_multiplies_with_the_inverse():
    """1 / c that is not rounded, as automatic differentiation has it; a c that the gradient does
    not meet.
    """
    names = ("SS", "CAP", "DSC", "DCT", "DTANH", "DCAP", "DCQ", "DS")
    plan = Plan.preset("fp32").changed("softcap=1.7 capped_by=chain")
    found = examine(
        *INPUTS, plan=plan, block_q=T, block_k=T, scale=0.5, record=Record(events=names)
    ).trace.events
    after = {name: np.asarray(found[name][1], np.float32) for name in names}
    inverse = np.float32(1.0 / float(np.float32(1.7)))
    for name, product in (
        ("CAP", after["SS"] * inverse),
        ("DCT", after["DSC"] * np.float32(1.7)),
        ("DCAP", after["DCT"] * after["DTANH"]),
        ("DCQ", after["DCAP"] * inverse),
        ("DS", after["DCQ"]),
    ):
        assert np.array_equal(after[name], product), name


def test_a_sum_of_ds_that_the_maximum_gives_up():
    """DMAX without the sink's part, or taken from another key: rows of dS that do not add up to 0
    in binary64.
    """
    sinks = SINKS.astype(np.float64)
    plan = Plan.preset("baseline-bf16").changed(
        "saved_p=true sinks=key maximum_gradient=true X=bf16"
    )
    names = ("DS", "DMAX", "DSM", "X", "DSINK")
    found = examine(
        *INPUTS,
        plan=plan,
        block_q=T,
        block_k=T,
        is_causal=True,
        sinks=sinks,
        record=Record(events=names),
    ).trace.events
    ds, dmax, dsm, x = (np.asarray(found[name][1], np.float64) for name in names[:4])
    changed = ds != dsm
    first = np.where(np.tri(T, dtype=bool), x, -np.inf).argmax(axis=-1)[..., None] == np.arange(T)
    assert (changed & ~(first & (x == 0.0))).sum() == 0 and changed.any()
    sums = ds.sum(axis=-1) + np.asarray(found["DSINK"][1], np.float64).reshape(ds.shape[:-1])
    assert np.allclose(dmax.reshape(sums.shape), sums, rtol=2.0**-7, atol=1e-5)


def test_softcaps_of_plans_that_differ_by_their_scores_format():
    """A softcap that asks a traced format whether it is wide: of arms trained side by side; a c
    that binary32 does not have.
    """
    q, k, v, _ = INPUTS
    plans = [
        Plan.preset("fp32").changed(f"softcap=1.7 SCALED={f} CAP={f}") for f in ("fp32", "fp64")
    ]
    for engine in ("numpy", "xla"):
        both = examine(q, k, v, plan=plans, engine=engine, record=None, **SIZES).out
        for i, plan in enumerate(plans):
            assert np.array_equal(
                both[i],
                attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], plan=plan, engine=engine, **SIZES)[
                    0
                ],
            )


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_a_sink_s_gradient_leaves_rows_of_padding_out(engine):
    """NaN: a row that pads the last tile has no L, and its DSINK was added to the others."""
    sizes = {"block_q": 7, "block_k": 8, "scale": 0.5}
    arrays = [x.astype("float64") for x in INPUTS]
    with jax.enable_x64(True):
        found = examine(
            *arrays, plan="exact", sinks=SINKS, engine=engine, is_causal=True, record=None, **sizes
        )
    want = expected(None, None, True, True)[4]
    assert np.allclose(found.dsinks, want, rtol=1e-12)


def test_a_capped_score_of_its_own_has_no_scale():
    """A softcap that multiplies the exponents again, or the derivative of the score in place of
    that of tanh.
    """
    names = ("TANH", "CT", "M", "CM", "X", "TANH_B", "CT_B", "TT")
    words = "exp=ex2 log2_e=maximum fused_exponent=true softcap=1.7 cap_apart=true"
    found = examine(
        *INPUTS,
        plan=Plan.preset("fa2-bf16").changed(words),
        block_q=T,
        block_k=T,
        scale=0.5,
        record=Record(events=names),
    ).trace.events
    after = {name: np.asarray(found[name][1], np.float32) for name in names}
    log2_e, cap = np.float32(np.log2(np.e)), np.float32(1.7)
    assert np.array_equal(after["CT"], cap * after["TANH"])
    assert np.array_equal(after["CT_B"], cap * after["TANH_B"])
    assert np.array_equal(after["M"].reshape(B, N, T), after["CT"].max(axis=-1))
    assert np.array_equal(after["CM"], log2_e * after["M"])
    shift = after["CM"].reshape(B, N, T, 1)
    exact = after["CT"].astype(np.longdouble) * np.longdouble(log2_e) - shift
    assert np.array_equal(after["X"], exact.astype(np.float32))
    assert np.array_equal(after["TT"], after["TANH_B"] ** 2)
