"""Attention in a differentiated loop, as over the layers of a model: what its turns are handed."""

import jax
import jax.numpy as jnp
from jax import lax

from roundscope import attend, head_plans
from roundscope.attention import Plan

TOKENS = 128  # a tile of scores is larger than the table of a plan


def test_a_loop_over_layers_hands_its_turns_no_constants_of_the_size_of_a_tile():
    """Arrays of zeros as large as all scores, made before the loop and read in every turn."""
    plans = head_plans([Plan.preset("qiu-yao")])
    x = jnp.zeros((1, TOKENS, 1, 4), jnp.float32)

    def layer(x, _):
        return attend(x, x, x, plan=plans, is_causal=True), None

    def total(x):
        return lax.scan(layer, x, None, length=2)[0].sum()

    program = jax.make_jaxpr(jax.grad(total))(x)
    before = [v.aval for e in program.eqns if e.primitive.name != "scan" for v in e.outvars]
    assert max(aval.size for aval in before) < TOKENS**2
