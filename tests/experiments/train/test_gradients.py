"""One step of the proxy against the same network written by hand in NumPy, event by event."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.emu.blocks.api import round_blocks
from roundscope.experiments.train.mx import How, Site
from roundscope.experiments.train.student import model
from roundscope.experiments.train.student.arms import Arm, Config, plan_of
from roundscope.experiments.train.student.measure import measure
from roundscope.experiments.train.student.run import data_of, fresh

CONFIG = Config(depth=2, width=32, ratio=2, batch=64, steps=4, phi="relu", noise=0.0)
HOW = How(32, frozenset(Site))
# the axis of a block: features of a vector or of rows, and of an operand the one that its product
# sums over
ALONG = {
    "GAMMA": -1,
    "LN": -1,
    "X": 1,
    "W": 0,
    "Y": -1,
    "PHI": -1,
    "G_X": 1,
    "W_X": 1,
    "DX": -1,
    "G_W": 0,
    "X_W": 0,
    "DW": 0,
    "DPHI": -1,
    "DLN": -1,
}


def by_hand(params, x, y, site):
    """Gradients of the mean squared error with one event in MXFP4, in binary64 otherwise; site
    None: none.
    """

    def q(name, v):
        return (
            round_blocks(v.astype(np.float32), "mxfp4", axis=ALONG[name]).astype(np.float64)
            if name == site
            else v
        )

    a, kept = x, []
    for p in params:
        centred = a - a.mean(1, keepdims=True)
        root = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        hat, gamma = centred / root, q("GAMMA", p["gamma"])
        ln = q("LN", hat * gamma + p["beta"])
        h = q("Y", q("X", ln) @ q("W", p["up"]))
        inner = q("PHI", np.maximum(h, 0.0))
        kept.append((hat, root, gamma, ln, h, inner))
        a = a + q("Y", q("X", inner) @ q("W", p["down"]))
    g, found = 2.0 * (a - y) / a.size, []
    for p, (hat, root, gamma, ln, h, inner) in zip(reversed(params), reversed(kept), strict=True):
        d_down = q("DW", q("X_W", inner).T @ q("G_W", g))
        d_h = q("DPHI", q("DX", q("G_X", g) @ q("W_X", p["down"]).T) * (h > 0))
        d_up = q("DW", q("X_W", ln).T @ q("G_W", d_h))
        d_ln = q("DX", q("G_X", d_h) @ q("W_X", p["up"]).T)
        d_hat = d_ln * gamma
        d_a = (
            d_hat - d_hat.mean(1, keepdims=True) - hat * (d_hat * hat).mean(1, keepdims=True)
        ) / root
        found.insert(
            0, {"up": d_up, "down": d_down, "gamma": (d_ln * hat).sum(0), "beta": d_ln.sum(0)}
        )
        g = g + q("DLN", d_a)
    return found


def flat(layers):
    return np.concatenate(
        [
            np.asarray(p[name], float).ravel()
            for p in layers
            for name in ("up", "down", "gamma", "beta")
        ]
    )


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    d, hidden = CONFIG.width, CONFIG.hidden
    layers = [
        {
            "up": rng.normal(size=(d, hidden)) / 6,
            "down": rng.normal(size=(hidden, d)) / 8,
            "gamma": 1 + rng.normal(size=d) / 10,
            "beta": rng.normal(size=d) / 10,
        }
        for _ in range(CONFIG.depth)
    ]
    layers = [{k: v.astype(np.float32).astype(float) for k, v in p.items()} for p in layers]
    x, y = (rng.normal(size=(CONFIG.batch, d)).astype(np.float32).astype(float) for _ in range(2))
    stacked = {k: jnp.asarray(np.stack([p[k] for p in layers]), jnp.float32) for k in layers[0]}
    run = jax.jit(
        lambda t: jax.grad(model.loss)(
            stacked, CONFIG, HOW, jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), t
        )
    )
    return layers, x, y, run


def gradient(case, text):
    found = jax.device_get(case[3](plan_of(CONFIG, (text,)).table()))
    return flat([{k: v[i] for k, v in found.items()} for i in range(CONFIG.depth)])


def test_without_rounding_it_is_the_gradient(case):
    """A wrong derivative, of LayerNorm or of a product written by hand."""
    exact = flat(by_hand(*case[:3], None))
    assert np.linalg.norm(gradient(case, "-> fp32") - exact) < 1e-5 * np.linalg.norm(exact)


@pytest.mark.parametrize("site", Site)
def test_an_event_rounds_what_its_formula_says_along_its_axis(case, site):
    """An operand that is rounded along the wrong axis, twice, from its rounded copy, in the other
    direction, or not at all.
    """
    exact, wanted = flat(by_hand(*case[:3], None)), flat(by_hand(*case[:3], str(site)))
    size = np.linalg.norm(wanted - exact)
    assert size > 1e-3 * np.linalg.norm(exact)
    assert np.linalg.norm(gradient(case, f"site={site} -> mxfp4") - wanted) < 0.05 * size


def test_the_error_of_the_gradient_is_at_the_same_state(case):
    """zeta of two trainings that have drifted apart, an event's own zeta with others rounded too, a
    cosine of the wrong pair.
    """
    arm = Arm(name="a", changes=((0, "site=W,DX -> mxfp4"),), lr=1e-3)
    layers, x, y, _ = case
    begin = fresh(CONFIG, [arm])
    stacked = {
        k: jnp.asarray(np.stack([p[k] for p in layers])[None], jnp.float32) for k in layers[0]
    }
    state = begin.state.__class__(
        params=stacked, opt_state=begin.state.opt_state, step=begin.state.step
    )
    rows = [jnp.asarray(v[None], jnp.float32) for v in (x, y)]
    how = How(32, frozenset({Site.W, Site.DX}))
    found = {
        k: float(v[0])
        for k, v in measure(CONFIG, how)(
            state, data_of(CONFIG, [arm], 0), *rows, jnp.zeros(1, int)
        ).items()
    }
    exact, low = flat(by_hand(*case[:3], None)), flat(by_hand(*case[:3], "W"))
    assert found["zeta_W"] == pytest.approx(
        np.linalg.norm(low - exact) / np.linalg.norm(exact), rel=0.02
    )
    both = gradient(case, "site=W,DX -> mxfp4")
    assert found["zeta"] == pytest.approx(
        np.linalg.norm(both - exact) / np.linalg.norm(exact), rel=0.02
    )
    assert found["cosine"] == pytest.approx(
        both @ exact / np.linalg.norm(both) / np.linalg.norm(exact), abs=1e-3
    )
    assert found["zeta_DX"] < found["zeta"] and found["gamma_ratio"] > 1.0
