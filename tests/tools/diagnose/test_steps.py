"""Carrier, coherence and accounts against formulas of another kind."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import Plan, Site, Stabilizer
from roundscope.attention.plans.choices import Log2E
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.emu.api import round_to
from roundscope.tools.diagnose.tensors.accounts import accounts, head_events
from roundscope.tools.diagnose.tensors.carrier import carrier
from roundscope.tools.diagnose.tensors.coherence import coherence, flips
from roundscope.tools.diagnose.tensors.measured import exact_twin, one_head
from roundscope.tools.diagnose.tensors.origin import origin
from roundscope.tools.diagnose.tensors.repairs import changes, repair
from roundscope.tools.tensors.layers import Layer
from tests.tools.diagnose.inputs import layer, measured, narrowed


def grouped(b=2, t=40, s=56, n=4, g=2, h=8, hv=4):
    rng = np.random.default_rng(5)
    shapes = {"q": (b, t, n, h), "k": (b, s, g, h), "v": (b, s, g, hv), "do": (b, t, n, hv)}
    return Layer(
        name="grouped",
        **{role: rng.standard_normal(shape).astype(np.float32) for role, shape in shapes.items()},
    )


def test_p_is_that_of_all_sign_flips():
    """Catches a one-sided p, a null centred on the mean, and a bound taken where the draws say
    otherwise.
    """
    x = np.random.default_rng(2).standard_normal((3, 11)) + np.array([[0.0], [0.4], [1.5]])
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=11)))
    exact = (np.abs(signs @ x.T) >= np.abs(x.sum(1)) * (1 - 1e-12)).mean(0)
    assert flips(x) == pytest.approx(exact, abs=0.006)


def test_far_out_p_is_hoeffdings_and_equal_errors_share_a_coin():
    """Catches a p that ends at 1 / draws, and repeated tokens counted as independent ones."""
    x = np.linspace(1.0, 1.1, 400)
    assert flips(x[None])[0] == pytest.approx(
        2.0 * math.exp(-(x.sum() ** 2) / (2.0 * (x**2).sum()))
    )
    assert flips(np.ones((1, 400)))[0] == pytest.approx(1.0)


@pytest.mark.thorough
def test_the_smallest_bias_is_seen_nine_times_in_ten():
    """Catches a power that promises more, or less, than the test of step 4 delivers."""
    m = measured(layer("gaussian", t=512, n=4))
    c, rng = coherence(m, 4), np.random.default_rng(3)
    planted = c.rms[0] * rng.standard_normal((300, 512))
    planted += c.smallest[0] * np.where(rng.random((300, 1)) < 0.5, -1.0, 1.0)
    seen = (flips(planted) < c.level).mean()
    assert 0.8 < seen < 0.96


def test_carrier_is_that_of_explicit_atoms():
    """Catches cosines that count a token with itself, a transposed M, and a share of sigma instead
    of sigma squared.
    """
    x = layer("gaussian", t=24, n=2, h=8)
    m = measured(x)
    found = carrier(m)
    scores = np.einsum("tnh,snh->nts", x.q[0], x.k[0], dtype=np.float64) / math.sqrt(8)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for head in range(2):
        pk = p[head] @ x.k[0, :, head]
        q = x.q[0, :, head].astype(np.float64)
        c = m.drift.error[0, :, head]
        atoms = np.einsum("ti,tj->tij", q, pk)
        unit = atoms.reshape(24, -1) / np.linalg.norm(atoms.reshape(24, -1), axis=1, keepdims=True)
        cosines = (unit @ unit.T)[~np.eye(24, dtype=bool)]
        total = np.einsum("t,tij->ij", c, atoms)
        sigma = np.linalg.svd(total, compute_uv=False)
        assert found.atoms[head] == pytest.approx(cosines.mean(), abs=1e-10)
        assert found.share[head] == pytest.approx(sigma[0] ** 2 / (sigma**2).sum())
        norms = np.linalg.norm(c[:, None] * atoms.reshape(24, -1), axis=1)
        assert found.growth[head] == pytest.approx(
            np.linalg.norm(total) / np.sqrt((norms**2).sum())
        )


@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16", "fa3-fp8", "fa2", "cudnn", "flex"])
@pytest.mark.parametrize("causal", [False, True])
def test_accounts_add_up_and_leave_little_over(plan, causal):
    """Catches a wrong weight of a tile, a wrong last row sum, skipped tiles counted, and the wrong
    key head.
    """
    for x in (grouped(), layer(t=320, n=1)):
        m = measured(x, plan, causal=causal, block_k=24 if x.name == "grouped" else 128, block_q=16)
        b, n = x.q.shape[0] - 1, x.q.shape[2] - 1
        parts = accounts(m, b, n, head_events(m, b, n))
        error = m.drift.error[b, :, n]
        assert np.sum(list(parts.values()), axis=0) == pytest.approx(
            error, abs=1e-12 * np.abs(error).max()
        )
        rest = parts["rest"] if x.name != "grouped" else parts["rest"] - _do_error(m, b, n)
        assert np.sqrt(np.mean(rest**2)) < 0.02 * np.sqrt(np.mean(error**2))


def _do_error(m, b, n):
    """What the rounding of dO brings: a part of `rest`, large where the file's dO is no BF16
    number.
    """
    do = m.layer.do[b, :, n].astype(np.float64)
    rounded = np.asarray(round_to(do, m.request.plan[Site.DO]))
    return ((rounded - do) * np.asarray(m.low.out, np.float64)[b, :, n]).sum(-1)


@pytest.mark.parametrize(
    ("site", "account"),
    [
        ("SCALED", "scores"),
        ("X", "scores"),
        ("L", "row sum"),
        ("P", "P"),
        ("PV", "PV"),
        ("AO", "AO"),
        ("O", "O"),
        ("OUT", "OUT"),
        ("OD", "OD"),
    ],
)
def test_one_coarse_event_fills_one_account(site, account):
    """Catches errors of one event booked under another's name."""
    m = measured(
        layer("large-logits", t=96, n=1), narrowed(**{site: "bf16"}), block_q=32, block_k=32
    )
    parts = {k: float((x**2).sum()) for k, x in accounts(m, 0, 0, head_events(m, 0, 0)).items()}
    assert parts[account] > 0.98 * sum(parts.values())


def test_the_classes_of_a_site_add_up_to_its_account():
    """Catches classes that lose events, weigh tiles otherwise than the accounts, or count rows
    without events.
    """
    m = measured(layer(t=320, n=1), causal=True)
    o = origin(m, 0)
    for c in o.classes:
        assert c.total == pytest.approx(
            o.accounts[c.site].mean, abs=1e-15 + 1e-9 * abs(o.total.mean)
        )
    assert o.features.sum(1) == pytest.approx(m.drift.error[0, :, 0], abs=1e-4)
    assert [c.events.sum() for c in o.classes if c.site == "OUT"] == [320 * 32]


def test_one_head_is_the_layers_own_bits():
    """Catches a cut that takes the wrong key head of grouped attention."""
    m = measured(grouped())
    head = head_events(m, 1, 3)
    assert one_head(m, 1, 3).k.shape == (1, 56, 1, 8)
    assert np.array_equal(np.asarray(head.low.out)[0, :, 0], np.asarray(m.low.out)[1, :, 3])


@pytest.mark.parametrize("name", [*PRESETS, *TWINS])
def test_every_repair_is_one_that_the_plan_can_have(name):
    """Catches a repair that ends a diagnosis with an error, such as the stabilizer with a maximum
    in base 2, and the production order for a kernel that has it.
    """
    plan = Plan.preset(name)
    names = [key for key, change in changes([plan], []).items() if change(plan) != plan]
    assert {"O in FP32", "stochastic rounding of O"} <= set(names) or name in ("exact", "fp32")
    assert ("stabilised softmax" in names) == (plan.log2_e is Log2E.NONE)
    if name in ("fa2-bf16", "fa2", "cudnn", "fa3-fp8", "qiu-yao"):
        assert ("production order" in names) == (name == "qiu-yao")


def test_the_repairs_of_a_real_kernel_are_tried():
    """Catches a reference with the exponential of a GPU, which rounds to binary32: no repair would
    be invariant then.
    """
    m = measured(layer(t=48), "fa2", block_q=16, block_k=16)
    base, tried = repair(m, 0, ["row sum"], 0.01, lambda text: None)
    assert base.change == 0.0 and sum(o.arm.is_sham for o in tried) == 1
    invariance = [o.invariance for o in tried if not o.arm.is_sham]
    assert len(invariance) == 4 and max(invariance) < 1e-11


def test_an_exact_twin_keeps_the_algorithm():
    """Catches a twin that drops the stabiliser's window, for then it would shift no row that the
    plan shifts.
    """
    plan = replace(Plan.preset("qiu-yao"), stabiliser=Stabilizer())
    twin = exact_twin(plan)
    assert twin.stabiliser.window == plan[Site.P].format.tie_window
    assert {r.format.precision for r in twin.roundings} == {53}
    assert not twin.pv_into_o and exact_twin(Plan.preset("fa2-bf16")).pv_into_o
