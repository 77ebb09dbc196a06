"""AdamW: torch's and optax's bits on a CPU, a judge in exact fractions, and updates that vanish."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from roundscope import emu
from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from tests.operations.by_torch import every_type, torch_of
from tests.operations.by_torch import numbers as in_numpy
from tests.operations.exactly import numbers, root, to

ADAMW = OPERATIONS["adamw"]
SETTINGS = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
STATES = ("parameter", "exp_avg", "exp_avg_sq")


def step_of(plan, states, gradient, step, **settings):
    """One step from three arrays; new ones."""
    given = dict(zip(STATES, states, strict=True)) | {"gradient": gradient}
    found = run(ADAMW, plan, given, settings=SETTINGS | settings | {"step": step}).outputs
    return tuple(found[name] for name in STATES)


def same(a, b):
    return (a.astype(np.float32) == b) | (np.isnan(a.astype(np.float32)) & np.isnan(b))


def torch_steps(dtype, mode, count=3):
    """Steps of torch: the states and the gradient before each, and the states after it."""
    import torch

    generator = torch.Generator().manual_seed(7)
    own = torch.nn.Parameter(torch.randn(1027, generator=generator).to(dtype))
    betas = SETTINGS["beta1"], SETTINGS["beta2"]
    more = {"eps": SETTINGS["eps"], "weight_decay": SETTINGS["weight_decay"]}
    how = {"foreach": mode == "foreach", "fused": mode == "fused"}
    optimizer = torch.optim.AdamW([own], lr=SETTINGS["lr"], betas=betas, **more, **how)
    before = (in_numpy(own.data).copy(), *np.zeros((2, 1027), np.float32))
    for _ in range(count):
        own.grad = (0.02 * torch.randn(1027, generator=generator)).to(dtype)
        gradient = in_numpy(own.grad).copy()
        optimizer.step()
        state = optimizer.state[own]
        after = tuple(in_numpy(x).copy() for x in (own.data, state["exp_avg"], state["exp_avg_sq"]))
        yield before, gradient, after
        before = after


@every_type
@pytest.mark.parametrize("mode", ["", "-foreach", "-fused"])
def test_every_bit_of_torch(suffix, mode):
    """A factor in another type, a product that rounds, an average in registers; in FP32 all bits
    where torch's root is correctly rounded.
    """
    torch, dtype = torch_of(suffix, "AVX512")
    for n, (before, gradient, after) in enumerate(torch_steps(dtype, mode.strip("-")), 1):
        found = step_of(f"torch-cpu{mode}{suffix}", before, gradient, n)
        equal = [same(x, wanted) for x, wanted in zip(found, after, strict=True)]
        assert equal[1].all() and equal[2].all()
        if suffix == "-fp32" and mode != "-fused":
            correct = np.sqrt(after[2]) == in_numpy(torch.from_numpy(after[2]).sqrt())
            assert equal[0][correct].all() and equal[0].mean() > 0.99
        else:
            assert equal[0].all()


@pytest.mark.parametrize("suffix", ["", "-fp32"])
def test_every_bit_of_optax(suffix):
    """A correction by division, a decay elsewhere, a number of the settings in another type."""
    optax = pytest.importorskip("optax")
    import jax
    import jax.numpy as jnp

    kind, rng = {"": jnp.bfloat16, "-fp32": jnp.float32}[suffix], np.random.default_rng(5)
    own = optax.adamw(
        SETTINGS["lr"], SETTINGS["beta1"], SETTINGS["beta2"], weight_decay=SETTINGS["weight_decay"]
    )
    p = jnp.asarray(rng.normal(size=1027), kind)
    state: Any = own.init(p)
    for n in (1, 2):
        gradient = jnp.asarray(0.02 * rng.normal(size=1027), kind)
        before = [np.asarray(x) for x in (p, state[0].mu, state[0].nu)]
        with jax.numpy_dtype_promotion("standard"):
            updates, state = own.update(gradient, state, p)
            p = optax.apply_updates(p, updates)
        found = step_of(f"optax-adamw{suffix}", before, np.asarray(gradient), n)
        for x, wanted in zip(found, (p, state[0].mu, state[0].nu), strict=True):
            assert np.array_equal(x, np.asarray(wanted))


def judged(kind, states, gradient, step, of):
    """The step of torch in fractions: `of` has the type of eps, of beta2 and 1 - lr decay, and
    whether the results in between are stored.
    """
    lr, b1, b2, eps, decay = SETTINGS.values()
    narrow = kind if of["stored"] else "fp32"
    k = {
        "decay": to(1 - lr * decay, of["list"]),
        "b2": to(b2, of["list"]),
        "k1": to(1 - b1, "fp32"),
        "k2": to(1 - b2, "fp32"),
        "root": to((1 - b2**step) ** 0.5, "fp32"),
        "size": to(lr / (1 - b1**step), "fp32"),
        "eps": to(eps, of["eps"]),
    }
    p, m, v, g = (Fraction(float(x)) for x in (*states, gradient))
    p = to(to(p * k["decay"], "fp32"), narrow)
    mn = to(m + to(g - m, "fp32") * k["k1"], "fp32")
    vn = to(to(to(v * k["b2"], "fp32"), narrow) + to(g * k["k2"], "fp32") * g, "fp32")
    m, v = (to(mn, kind), to(vn, kind)) if of["stored"] else (mn, vn)
    dn = to(to(to(root(v), narrow) / k["root"], "fp32"), narrow)
    dn = to(to(dn + k["eps"], "fp32"), narrow)
    update = to(to(m * k["size"], "fp32") / dn, "fp32")
    return to(to(p - update, "fp32"), kind), to(mn, kind), to(vn, kind)


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("mode", ["", "-foreach", "-fused"])
def test_the_judge_agrees(mode, kind):
    """A step size of another step, a root of another average, two roundings in a multiply-add."""
    rng, step = np.random.default_rng(3), 4
    p, m, v, g = (numbers(rng, (24,), kind) for _ in range(4))
    of = {"stored": mode != "-fused", "eps": "fp32", "list": "fp32"}
    of |= {"eps": kind} if of["stored"] else {}
    of |= {"list": kind} if mode == "-foreach" else {}
    plan = f"torch-cpu{mode}" + {"bf16": "", "fp32": "-fp32"}[kind]
    found = step_of(plan, (p, m, abs(v)), g, step)
    for n in range(24):
        wanted = judged(kind, (p[n], m[n], abs(v[n])), g[n], step, of)
        assert [Fraction(float(x[n])) for x in found] == list(wanted)


@pytest.mark.parametrize("engine", ["numpy", pytest.param("xla", marks=pytest.mark.thorough)])
def test_stochastic_rounding_repairs_what_vanishes(engine):
    """Bits that repeat from step to step, or are those of another event; a bias."""
    rng = np.random.default_rng(2)
    p = emu.round_to(1.0 + rng.random(4000), "bf16").astype(np.float32)
    gradient = np.full(4000, 0.02, np.float32)
    given = {"parameter": p, "gradient": gradient, "exp_avg": gradient}
    given["exp_avg_sq"] = gradient**2
    told = SETTINGS | {"lr": 1e-5, "weight_decay": 0.0}
    exact = run(ADAMW, "exact", given, settings=told | {"step": 30}).outputs["parameter"] - p
    moved = {}
    for mode, steps in {"ties-to-even": [30], "stochastic": [30, 31]}.items():
        for step in steps:
            found = run(
                ADAMW,
                f"torch-cpu-fused; PO=bf16:{mode}",
                given,
                settings=told | {"step": step},
                engine=engine,
            )
            moved[mode, step] = found.outputs["parameter"].astype(float) - p
    assert not moved["ties-to-even", 30].any()
    own = moved["stochastic", 30]
    assert 0.0005 < (own != 0).mean() < 0.01
    assert abs(own.mean() - exact.mean()) < 5 * own.std() / 4000**0.5
    assert (own != moved["stochastic", 31]).any()


def test_a_master_in_fp32():
    """A copy that is not the master's, a master that is rounded."""
    rng = np.random.default_rng(4)
    p, m, g = rng.normal(size=(3, 64)).astype(np.float32)
    plan = plan_of(ADAMW, "torch-cpu-fused-fp32; COPY=bf16")
    given = {"parameter": p, "gradient": g, "exp_avg": m, "exp_avg_sq": m**2}
    found, fp32 = (run(ADAMW, own, given).outputs for own in (plan, "torch-cpu-fused-fp32"))
    assert found["copy"].dtype == "bfloat16" and found["parameter"].dtype == np.float32
    assert np.array_equal(found["parameter"], fp32["parameter"])
    assert np.array_equal(found["copy"], found["parameter"].astype(found["copy"].dtype))


def test_states_in_blocks():
    """Blocks along another axis, or of the numbers before the step."""
    rng = np.random.default_rng(4)
    p, m, g = rng.normal(size=(3, 4, 64))
    given = {"parameter": p, "gradient": g, "exp_avg": m, "exp_avg_sq": m**2}
    plan = plan_of(ADAMW, "torch-cpu-fused-fp32")
    blocks = plan.at("MO", "mxfp8_e4m3").at("VO", "mxfp8_e4m3")
    found, fp32 = (run(ADAMW, own, given).outputs for own in (blocks, plan))
    for name in ("exp_avg", "exp_avg_sq"):
        wanted = emu.from_blocks(emu.to_blocks(fp32[name], "mxfp8_e4m3", axis=1))
        assert np.array_equal(found[name], wanted)


def test_what_is_refused():
    """A step that is not counted from 1; a correction that the step size leaves out."""
    zero = np.zeros(2)
    with pytest.raises(ValueError, match="step=0: give the number of the step, 1 or more"):
        step_of("fp32", (zero, zero, zero), zero, 0)
    plan = plan_of(ADAMW, "torch-cpu")
    with pytest.raises(ValueError, match="needs update=quotient-first"):
        plan.changed("correction=averages")
    with pytest.raises(ValueError, match="needs update=quotient-first"):
        replace(plan_of(ADAMW, "optax-adamw"), update=plan.update)
