"""A GPT in plain JAX on chosen plans: trained, watched, captured and cured."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope import Plan, attend
from roundscope.jax import capture, watch
from roundscope.tools.tensors.layers import read_layers
from tests.attention.jax import gpt

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, gpt.VOCABULARY, (2, 17)))
parameters = cache(lambda: gpt.init(jax.random.key(0)))
BIASED = Plan.preset("fa2-bf16").changed("OD=e8m1:toward-zero")
CURED = BIASED.changed("delta_from=CENTERED")


def test_it_trains_on_a_plan_for_each_layer():
    params, losses, attention = parameters(), [], gpt.on_plans("fa2-bf16", "fp32")
    for _ in range(5):
        params, loss = gpt.step(params, TOKENS, attention)
        losses.append(float(loss))
    assert all(np.diff(losses) < 0.0)


def test_a_captured_call_has_the_bits_of_attend(tmp_path):
    """Of each layer, with its own plan, forward and backward; read as the commands read it."""
    plans, path = ("fa2-bf16", BIASED), tmp_path / "qkv.safetensors"
    attention = gpt.on_plans(*plans)
    with capture(path, batch=None) as calls:
        gpt.step(parameters(), TOKENS, attention)
    for call, plan, layer in zip(calls, plans, read_layers(path), strict=True):
        q, k, v, do = (jnp.asarray(x) for x in (layer.q, layer.k, layer.v, layer.do))
        out, pull = jax.vjp(partial(attend, plan=plan, is_causal=True), q, k, v)
        for name, x in zip(("out", "dq", "dk", "dv"), (out, *pull(do)), strict=True):
            assert np.array_equal(getattr(call, name).swapaxes(1, 2), x), (layer.name, name)


@pytest.fixture(scope="module")
def drifts():
    """The share of the drift at the first step of one layer, by plan."""
    return {
        name: watch(partial(gpt.loss, attention=gpt.on_plans(plan))).look(0, parameters(), TOKENS)[
            "attention/drift"
        ]
        for name, plan in {"fp32": "fp32", "biased": BIASED, "cured": CURED}.items()
    }


def test_a_biased_plan_drifts_and_the_cure_ends_it(drifts):
    """OD keeps 2 bits of O, so that delta is wrong by up to half of itself; binary32 by 1e-7."""
    assert drifts["biased"] > 0.05
    assert drifts["cured"] < drifts["biased"] / 20
    assert drifts["fp32"] < 1e-5
