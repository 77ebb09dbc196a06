"""delta in a fused kernel, interpreted, against the equations of the other engines: every bit."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site
from roundscope.attention.engines.kernels.backward import delta_fits, deltas
from roundscope.attention.grammar.injections import injection_of
from roundscope.attention.tiles import backward
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Inputs, Residuals, Results
from roundscope.emu import Accumulator, Order, round_to, rounding
from roundscope.emu.backends.numba.ops import numpy_ops

HEADS, ROWS = 2, 64


def setup_of(plan, **changes):
    setup = Setup(
        plan=Plan.preset(plan) if isinstance(plan, str) else plan,
        queries=ROWS - 3,
        keys=ROWS,
        block_q=32,
        block_k=32,
        heads=HEADS,
        key_heads=HEADS,
        scale=0.125,
        whole_scale=0.125,
        is_causal=False,
    )
    return replace(setup, **changes)


def operands(plan, features):
    """dO and the output as their events leave them, with a NaN, an infinity and zeros."""
    rng = np.random.default_rng(features)
    x = []
    for site in (Site.DO, Site.OUT):
        own = rng.standard_normal((HEADS, ROWS, features)) * 2.0 ** rng.integers(-9, 9, features)
        own[:, 5, 1], own[0, 7, 2], own[1, 9] = np.inf, np.nan, -0.0
        own[:, ROWS - 3 :] = 0.0
        x.append(round_to(own, plan[site]))
    return x


@pytest.mark.parametrize(
    ("plan", "features"),
    [("fa2", 16), ("fa2", 128), ("cudnn", 64), ("cudnn", 128), ("fa2-bf16@hopper", 16)],
)
def test_every_bit_is_that_of_the_equations(plan, features):
    """A lane that adds in another order, a product rounded before its sum, another last event."""
    setup = setup_of(plan)
    assert delta_fits(setup, features)
    do, out = operands(setup.plan, features)
    with jax.enable_x64(True):
        found = np.asarray(deltas(setup, jnp.asarray(do), jnp.asarray(out), on_gpu=False))
    for h in range(HEADS):
        given = Residuals(Inputs(*(do[h],) * 3), Results(out[h], out[h], do[h, :, 0]))
        wanted, _ = backward.deltas(numpy_ops(), setup, h, given, do[h])
        np.testing.assert_array_equal(found[h], wanted)
        np.testing.assert_array_equal(np.signbit(found[h]), np.signbit(wanted))


FA2, FP16 = Plan.preset("fa2"), Accumulator(order=Order.OCTETS, step=rounding("fp16"))


@pytest.mark.parametrize(
    ("setup", "features"),
    [
        (setup_of("fa2-bf16@hopper"), 128),
        (setup_of("fa2"), 48),
        (setup_of("qiu-yao-eager"), 64),  # sums in pairs
        (setup_of(FA2.changed("delta_products=true")), 64),
        (setup_of("fa2", record=Record()), 64),
        (setup_of(FA2.adding(Site.DELTA, FP16)), 64),
        (setup_of(FA2.adding(Site.DELTA, Accumulator(order=Order.OCTETS, chunk=3))), 64),
        (setup_of(FA2.at("DELTA", "bf16", "stochastic")), 64),
        (setup_of("fa2", inject=(injection_of("DELTA:ulps=1"),)), 64),
        (setup_of(FA2.changed("delta_from=O")), 64),
    ],
)
def test_which_calls_do_not_have_it(setup, features):
    """Another sum than the plan's, or an event without its record or its random bits."""
    assert delta_fits(setup_of("fa2"), 64)
    assert not delta_fits(setup, features)
