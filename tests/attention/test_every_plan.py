"""Every plan that is accepted computes attention, with every argument of the call that it takes.

The reference is attention in binary64 with gradients by hand (`tests.checks.every_plan`), which
takes thousands of plans; here are all presets and twins, each word of the grammar, and some random
plans.
"""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import PRESETS, Plan, attend, examine
from roundscope.attention.plans.twins import TWINS
from tests.checks.every_plan import TOLERANCE, Call, plan_of, reference, tensors, tried, wrong

DRAW = np.random.Generator(np.random.PCG64(5))
PLAIN = Call(**tensors(DRAW, 9, 11), tiles=(4, 4))
MASK = DRAW.random((9, 11)) < 0.6
MASK[3] = False  # a row that sees no key
ARGUMENTS = {
    "nothing": {},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": np.array([0.7, -0.9])},
    "bias": {"bias": DRAW.standard_normal((2, 9, 11))},
    "window": {"window": 3},
    "mask": {"mask": MASK},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.9},
    "negative": {"scale": -0.6, "tiles": (4, 11)},
    "all": {
        "softcap": 1.5,
        "sinks": np.array([0.7, -0.9]),
        "window": 5,
        "is_causal": True,
        "mask": MASK,
        "scale": -0.8,
    },
}
REFUSED = {  # the kernels of these plans have no such feature, or cannot take the argument
    "softcap": {"triton-tutorial", "gpt-oss", "pallas-mha", "sage-int8"},
    "sinks": {
        *("fa2-split", "cudnn-split", "flex", "triton-tutorial", "pallas-mha"),
        *("qiu-yao-eager", "qiu-yao-compiled", "jax-xla", "sage-int8", "flashinfer-split"),
    },
    "negative": {"sdpa-math"},
    "bias": {
        *("fa2", "fa2-split", "fa3", "fa3-e4m3", "fa4-hopper", "fa4-bf16", "fa4-fp8"),
        *("fa4-fp8-offset4", "fa4-fp8-threshold0", "cudnn", "cudnn-split", "cudnn-fp8"),
        *("cudnn-fp8-s256", "qiu-yao-eager", "qiu-yao-compiled", "pallas-mha", "sage-int8"),
        *("tokamax-mosaic", "tokamax-mosaic-stale", "triton-tutorial", "aiter-ck", "aiter-asm"),
        *("mlx-sdpa", "flash-mla", "flashinfer-split"),
    },
}
REFUSED["all"] = set().union(*(names for n, names in REFUSED.items() if n != "bias"))


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_presets_and_twins_compute_attention(argument):
    """A factor that is missing in one gradient, of a plan with one argument: the softcap of
    triton-tutorial and gpt-oss, the sinks of jax-xla, fa2 with a negative scale.
    """
    refused, failures = set(), []
    for name in (*PRESETS, *TWINS):
        try:
            told = wrong(Plan.preset(name), replace(PLAIN, **ARGUMENTS[argument]))
        except ValueError:
            refused.add(name)
            continue
        failures += [f"{name}: {x}" for x in told]
    assert failures == []
    assert refused == REFUSED.get(argument, set())


def test_random_plans_compute_attention():
    """Words of the grammar that together leave a factor out."""
    counts = Counter()
    assert list(tried(1000, 7, counts, accepted=150)) == []
    assert counts["accepted"] == 150


TOGETHER = [
    "fp32 exp=base2 log2_e=maximum unfused=true",
    "fp32 exp=base2 log2_e=maximum sinks=first",
    "fa4-fp8 unfused=true saved_p=true",
    "fa4-fp8-offset4 sinks=first",
    "cudnn gradient_scale=operand SDS=bf16",
    "gpt-oss gradient_scale=result",
    "fp32 softcap=2 capped_by=chain gradient_scale=probability",
    "fp32 exponent_again=natural delta_from=CENTRED",
    "fp32 exponent_again=state",
    "fp32 exp=base2 log2_e=maximum offset=8 exponent_again=state",
    "fp32 exp=base2 log2_e=scores exponent_again=state unfused=true delta_from=P_DP",
    "fp32 scale_roots=true",
    "fp32 scaled_queries=true",
    "fp32 exp=base2 log2_e=scale scaled_queries=true fused_exponent=true lse_base2=true",
    "fp32 exp=base2 log2_e=scores scaled_queries=true unfused=true saved_p=true",
    "fp32 smoothed_keys=true unfused=true",
    "fp32 inputs_again=true lse_again=true do_apart=true hadamard=true",
]


@pytest.mark.parametrize("words", TOGETHER)
def test_words_compute_attention_together(words):
    """A sink in the units of the scaled scores where m is of the others; one without the offset;
    a scale that a gradient lacks.
    """
    plan, told = plan_of(iter(words.split(" ", 1)))
    assert told == words
    calls = [PLAIN, replace(PLAIN, scale=0.3, is_causal=True)]
    if not any(word in words for word in ("CENTRED", "lse_base2", "smoothed", "hadamard")):
        calls.append(replace(PLAIN, scale=1.7, sinks=np.array([0.7, -0.9])))
    assert [x for call in calls for x in wrong(plan, call)] == []


def test_a_factor_that_is_missing_is_noticed():
    """A tolerance that a factor of 1.001 passes."""
    plan = Plan.preset("fa2")
    other = replace(PLAIN, q=PLAIN.q * 1.001)
    want, found = reference(other, plan), reference(PLAIN, plan)
    off = max(np.abs(want[n] - found[n]).max() for n in want)
    assert off > 20 * TOLERANCE


WORDS_REFUSED = [
    ("fp32", "exp=base2 log2_e=maximum lse_base2=true", "lse_base2=True.*log2_e=scale or scores"),
    ("qiu-yao", "lse_base2=true", "lse_base2=True.*log2_e=none"),
    ("fp32", "exponent_again=after", "exponent_again=after.*exp=base2"),
    ("fa2-split", "exponent_again=state", "exponent_again=state: reads m.*split_tiles=1"),
    ("qiu-yao-eager", "exponent_again=state", "exponent_again=state: reads m.*kept_state=True"),
    ("flex", "exponent_again=natural", "exponent_again=natural.*lse_base2"),
    ("triton-tutorial", "exponent_again=after", "exponent_again=after.*lse_base2"),
    ("fp32", "exp=base2 fused_exponent=true", "fused_exponent=True.*log2_e=scale"),
    ("fp32", "exp=base2 fused_without_mask=true", "fused_without_mask=True.*log2_e=scale"),
    ("flex", "lse_base2=false log2_e=none", "fused_exponent=True"),
    ("fp32", "scale_roots=true gradient_scale=register", "gradient_scale=register.*result"),
    ("fp32", "scale_roots=true gradient_scale=operand", "gradient_scale=operand.*result"),
    ("jax-xla", "gradient_scale=probability", "gradient_scale=probability.*quotient"),
    ("fp32", "dp_from_delta=true gradient_scale=probability", "gradient_scale.*dp_from_delta"),
    ("jax-xla", "dp_from_delta=true", "dp_from_delta=True.*quotient"),
    ("gpt-oss", "softcap=2", "softcap=2.*maximum_gradient=True.*no softcap"),
    ("triton-tutorial", "softcap=2", "softcap=2.*scaled_keys=True.*no softcap"),
    ("triton-tutorial", "scale_roots=true", "scaled_keys=True.*scale_roots"),
    ("triton-tutorial", "unfused=true saved_p=true", "scaled_keys=True.*saved_p"),
    ("triton-tutorial", "scaled_queries=true", "scaled_queries=True.*scaled_keys"),
    ("cudnn", "scaled_queries=true", "scaled_queries=True.*exponent_again=forward, here after"),
    ("fa2", "scaled_queries=true", "scaled_queries=True.*log2_e=none, scale or scores"),
    ("pallas-mha", "scaled_queries=true", "scaled_queries=True.*gradient_scale=result"),
    ("fp32", "key_scales=true", "key_scales=True.*scaled_queries"),
    ("sage-int8", "softcap=2", "softcap=2.*True.*no softcap"),
    ("sage-int8", "sinks=last", "sinks=last.*smoothed_keys=True.*no sinks"),
    ("gpt-oss", "gradient_scale=register", "sinks=key.*gradient_scale|sinks=key.*not register"),
    ("fp32", "softcap=1e39", "softcap=1e[+]39.*binary32"),
    ("fp32", "softcap=1e-46", "softcap=1e-46.*binary32"),
    ("eager", "softcap=1e-39", "softcap=1e-39.*inverse"),
]


@pytest.mark.parametrize(("name", "words", "told"), WORDS_REFUSED)
def test_what_computes_something_else_is_refused(name, words, told):
    """Words that are accepted in silence and whose gradients are wrong by a factor."""
    with pytest.raises(ValueError, match=told):
        Plan.preset(name).changed(words)


def test_sinks_of_a_quotient_are_refused():
    """dsinks of jax-xla, which lacked the factor l."""
    with pytest.raises(ValueError, match=r"score_gradient=quotient.*no sinks"):
        attend(PLAIN.q, PLAIN.k, PLAIN.v, plan="jax-xla", sinks=np.ones(2))


@pytest.mark.parametrize(
    "given", [{"is_causal": True}, {"mask": MASK}, {"window": 3}, {"block_k": 4}]
)
def test_a_negative_scale_of_raw_maxima_has_no_masked_scores(given):
    """A result of fa2 where FlashAttention-2 itself returns NaN."""
    sizes = {"block_q": 4, "block_k": 11} | given
    with pytest.raises(ValueError, match=r"scale=-0.5.*unscaled.*positive scale"):
        attend(PLAIN.q, PLAIN.k, PLAIN.v, plan="fa2", scale=-0.5, **sizes)


def lost(plan, is_causal, **changes):
    """The keys whose dV is NaN, with one inf in q, in tiles of 8."""
    q, k, v, do = (np.ones((1, 16, 1, 2), np.float32) for _ in range(4))
    k[0, ::2, 0, 0] = -1.0  # so that S is -inf there, and inf at odd keys
    q[0, 4, 0, 0] = np.inf
    found = examine(
        q, k, v, do, plan=plan, block_q=8, block_k=8, is_causal=is_causal, record=None, **changes
    )
    return set(np.flatnonzero(np.isnan(found.dv[0, :, 0]).all(axis=-1)))


ODD = set(range(1, 16, 2))
NANS = {  # keys that get a NaN in dV: in a full call, in a causal one whose query sees keys 0 to 4
    "fa2": (ODD, {1, 3}),  # L = inf: P is 0 but where S is inf, as FlashAttention-2 has it
    "cudnn": (set(range(16)), set(range(5))),  # a masked P is 0
    "flex": (set(range(16)), set(range(8))),  # fma(-inf, c, -NaN) is NaN, masked or not
    "sdpa-efficient": (set(range(16)), set(range(8))),
    "fa2-bf16": (set(range(16)), set(range(8))),
    "qiu-yao": (set(range(16)), set(range(8))),
    "eager": (set(range(16)), set(range(8))),  # keys that no query of the tile sees keep their sum
}


@pytest.mark.parametrize("engine", ["numpy", pytest.param("xla", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", NANS)
def test_no_nan_is_lost(name, engine):
    """A P of 0 where L is NaN: the places are those that kernels on an H100 returned, row for row
    (tests/checks/gpu_strange.py), and IEEE 754's for the plans of papers.
    """
    for is_causal, keys in zip((False, True), NANS[name], strict=True):
        assert lost(name, is_causal, engine=engine) == keys


@pytest.mark.parametrize("second", ["hessian", "jacrev", "grad", "jvp", "jacfwd"])
def test_a_second_derivative_is_refused_in_words(second):
    """A RecursionError, a message that blames a missing reverse mode, JAX's own words for jvp."""
    x = jnp.ones((1, 4, 1, 4))

    def loss(q):
        return attend(q, x, x, plan="fp32").sum()

    twice = {
        "hessian": jax.hessian(loss),
        "jacrev": jax.jacrev(jax.grad(loss)),
        "grad": jax.grad(lambda q: jax.grad(loss)(q).sum()),
        "jvp": lambda q: jax.jvp(loss, (q,), (q,)),
        "jacfwd": jax.jacfwd(loss),
    }
    with pytest.raises(TypeError, match=r"attend: .*no derivative; use jax.grad"):
        twice[second](x)


def test_a_plan_in_words():
    """attend(plan="fa2-bf16; OD=fp32") that is an unknown preset, and no word of what to use."""
    x = PLAIN.q, PLAIN.q, PLAIN.q
    plan = Plan.preset("fa2-bf16").changed("P=fp32 P_B=fp32")
    given = attend(*x, plan="fa2-bf16; P=fp32 P_B=fp32")
    assert np.array_equal(given, attend(*x, plan=plan))
    with pytest.raises(ValueError, match=r"Plan.preset\('fa2-bf16'\).changed"):
        attend(*x, plan="fa2-bf16 P=fp32")
    with pytest.raises(ValueError, match=r"offset=8.*log2_e=scale.*here log2_e=none"):
        Plan.preset("fp32").changed("offset=8")
