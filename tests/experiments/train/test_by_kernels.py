"""The drift that fused kernels give, beside that of the monitor's own emulation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import Plan
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import by_kernels, monitor
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.plans import by_arm, by_layer

CONFIG = Config(
    layers=1, heads=2, width=32, context=32, block=16, plan="qiu-yao-compiled", sums="preset"
)
LEAD = (1, 1, 1, 32, 2, 16)  # arms, layers, one sequence, T, N, H


@pytest.mark.thorough
def test_drift_is_that_of_the_emulation():
    """Sums of other rows, a scale too many, a feature that changes dS or is read at another place;
    heads that change places.
    """
    rng = np.random.default_rng(3)
    # in BF16, since what W_Q's part is made of is P K before or after q and k are rounded
    drawn = [jnp.asarray(rng.normal(size=LEAD), jnp.bfloat16).astype("float32") for _ in range(4)]
    x = jnp.asarray(rng.normal(size=(1, 1, 1, 32, 32)), "float32")
    plans = plans_of(CONFIG)
    with jax.enable_x64(True):
        found = by_kernels.drift_of(CONFIG, (plans[0][0],), drawn, x)
        whole = monitor._of_layers(CONFIG, by_arm([by_layer(plans)]), *drawn, None, x)
    assert set(by_kernels.NAMES) == set(found)
    for name in by_kernels.NAMES:  # BF16 rounds their dQ, a relative error of 2^-9 of each number
        np.testing.assert_allclose(found[name], whole[name], rtol=5e-3)
    assert found["drift"].min() > 1e-4


def test_which_fused_looks_read_nothing_of_attention():
    """A run in FP32 that compiles for a minute to find FP32's own rounding."""
    names = ("fp32", "exact", "qiu-yao", "cudnn")
    assert [by_kernels.is_wide(Plan.preset(name)) for name in names] == [True, True, False, False]
    config = replace(CONFIG, plan="fp32", engine="pallas")
    params = {"layers": {"qkv": jnp.ones((1, 1, 32, 3, 2, 16))}}
    found, seen = monitor.look(config, params, None, (), 0, sole=Plan.preset("fp32"))
    assert list(found) == ["w_q_norm"] and seen is None
