"""P in FP8: how often it vanishes by order of keys and scale, its wider ties, and the bias of P V
that needs a residual.
"""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.plans.choices import KeyOrder
from roundscope.attention.plans.presets import P_256
from roundscope.emu.blocks.format import block_format
from roundscope.emu.roundings.modes import BF16, E4M3
from tests.checks.engines import normal

EXACT = Plan.preset("exact")


def sink(tokens=256, h=64, score=10.0):
    """The first key's score lies 10 above N(0, 1)."""
    q, k, v = (normal(20 + i, 1, tokens, 1, h).astype(np.float64) for i in range(3))
    q[..., 0], k[..., 0] = np.sqrt(h), 0.0
    k[0, 0, 0] = 0.0
    k[0, 0, 0, 0] = score
    return q, k, v


def vanished(f, order):
    """The share of P that rounds to 0, in causal attention with tiles of 32."""
    plan = replace(EXACT.rounded({Site.P: f}), key_order=order)
    s = examine(
        *sink(), plan=plan, is_causal=True, block_q=32, block_k=32, engine="numpy"
    ).trace.stats["P"]
    return float(s.underflow.sum() / s.n.sum())


def phi(x):
    """Of the normal distribution, without a library: by its density."""
    grid = np.linspace(-8.0, x, 20_001)
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    return float(((density[1:] + density[:-1]) / 2 * np.diff(grid)).sum())


@pytest.mark.parametrize(("f", "scale"), [(E4M3, 1.0), (P_256, 256.0)])
def test_a_sink_met_first_makes_p_vanish_as_predicted(f, scale):
    """arXiv 2606.06521: P of a score s below a sink at D is 0 in E4M3 if s < D - 10 ln 2 -
    ln(scale): half of 2^-9.

    Catches a P that is not scaled, and subnormals lost.
    """
    assert vanished(f, KeyOrder.ASCENDING) == pytest.approx(
        phi(10.0 - 10 * np.log(2) - np.log(scale)), abs=0.02
    )


def test_the_other_order_and_blocks_help():
    """Catches an order of keys without effect, and a block that takes its scale from the row's
    maximum.
    """
    first, last = (vanished(E4M3, order) for order in (KeyOrder.ASCENDING, KeyOrder.DESCENDING))
    assert last < first / 2
    assert vanished(block_format("mxfp8_e4m3"), KeyOrder.ASCENDING) < 0.02


def test_ties_are_sixteen_times_as_wide():
    """PAPERS oracle 4: P rounds to 1 below a gap of -ln(1 - 2^-(p+1)); gaps uniform in (0, 0.1).

    Catches a window by another precision.
    """
    gaps = (np.arange(1, 1001) / 10_000.0)[None, :, None, None]
    q, k = np.ones((1, 1, 1, 1)), np.concatenate([np.zeros((1, 1, 1, 1)), -gaps], axis=1)
    ones = {}
    for f in (BF16, E4M3):
        plan = EXACT.rounded({Site.P: f})
        seen = examine(
            q,
            k,
            k,
            plan=plan,
            scale=1.0,
            block_k=2000,
            engine="numpy",
            record=Record(ones=(Site.P,)),
        )
        ones[f.format.name] = int(seen.trace.ones["P"].sum()) - 1
    assert ones == {"bf16": 19, "e4m3fn": 317}


@pytest.mark.parametrize(
    ("f", "p", "ulps"),
    [
        (BF16, BF16, -0.5),
        (E4M3, BF16, -0.5),
        (E4M3, P_256, -0.5),
        (E4M3, block_format("mxfp8_e4m3"), -0.5),
        (E4M3, E4M3, 0.0),
    ],
    ids=["bf16", "e4m3", "256 P", "mxfp8", "no residual"],
)
def test_bias_of_p_v(f, p, ulps):
    """PAPERS 1.8: two P = 1 and a residual of V's sign bias P V, rounded to V's format, by half an
    ulp of V: 16 times as much in E4M3 as in BF16.

    Where the residual's P vanishes, as a plain E4M3 P does, ties stay ties. Catches a bias of
    another size or sign.
    """
    draws, n = 4000, 2 ** (f.format.precision - 1)
    v = (
        -2.0 - 2.0 * (np.abs(np.floor(normal(5, 3, draws).astype(np.float64) * 1e4)) % n) / n
    )  # on V's grid in (-4, -2]
    k = np.array([0.0, 0.0, -12.0])[None, :, None, None]
    plan = EXACT.rounded({Site.V: f, Site.P: p, Site.PV: f})
    seen = examine(
        np.ones((1, 1, 1, 1)),
        k,
        v[None, :, None, :],
        plan=plan,
        scale=1.0,
        engine="numpy",
        record=Record(events=(Site.PV,)),
    )
    before, after = seen.trace.events["PV"]
    assert (after - before).mean() / (2.0 / n) == pytest.approx(ulps, abs=0.04)
