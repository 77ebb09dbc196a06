"""A plan for each layer, also where layers differ in more than is data: another kernel, sum or
delta.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from roundscope.attention import Plan
from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.train import groups
from roundscope.experiments.train.gpt import engines, model, monitor, plans, step
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.groups import replayed
from roundscope.experiments.train.settings import settings
from roundscope.tools.errors import UsageError
from tests.experiments.train.two_layers import CONFIG, MIXED, same, tokens_of, trained


def apart(tables, axis=0):
    """One table of all layers as a table for each."""
    count = tables.table.shape[axis]
    return tuple(HeadPlans(tables.like, tables.table.take(n, axis)) for n in range(count))


@pytest.mark.thorough
def test_the_same_plan_in_every_layer_is_the_one_plan():
    """A layer that has another plan, or another loop that changes bits."""
    one = plans.uniform(CONFIG)
    each = plans_of(replace(CONFIG, plan="fp32"), [f"layer={n} -> plan=qiu-yao" for n in range(2)])
    assert isinstance(plans.by_layer(each), HeadPlans) and each == plans_of(CONFIG)
    runs = [trained(CONFIG, own) for own in (one, plans.by_layer(each), apart(one))]
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


def test_a_plan_holds_in_its_layer():
    """A plan of layer 1 that changes what enters layer 1, or one of layer 0 that does not."""
    params = step.arm(step.start(CONFIG, 1), 0).params
    run = jax.jit(lambda own: model.run(params, tokens_of(0), own, CONFIG))
    words = (MIXED, (*MIXED, "layer=1 -> P=e4m3fn"), (*MIXED, "layer=0 -> P=e4m3fn"))
    base, last, first = (run(plans.by_layer(plans_of(CONFIG, w))) for w in words)
    assert same(base[1], last[1]) and not same(base[0], last[0])
    x, y = base[1].q, first[1].q  # those of layer 0 are of the weights alone
    assert same(x[0], y[0]) and not same(x[1], y[1])


@pytest.mark.thorough
def test_a_plan_holds_in_the_backward_of_its_layer():
    """Gradients of a layer under its neighbor's plan."""
    params = step.arm(step.start(CONFIG, 1), 0).params
    run = jax.jit(lambda own: jax.grad(model.loss)(params, tokens_of(0), own, CONFIG))
    words = (MIXED, (*MIXED, "layer=0 -> DK_OUT=e4m3fn"), (*MIXED, "layer=1 -> DK_OUT=e4m3fn"))
    base, first, last = (run(plans.by_layer(plans_of(CONFIG, w)))["layers"] for w in words)

    def differ(one, two):
        """The weights and layers whose gradients are not the same."""
        return {(name, n) for name in one for n in (0, 1) if not same(one[name][n], two[name][n])}

    before_k = {("norm1", 0), ("qkv", 0)}
    assert differ(base, first) == before_k
    assert differ(base, last) == {(name, 0) for name in base} | {("norm1", 1), ("qkv", 1)}


@pytest.mark.thorough
def test_random_bits_and_monitors_know_the_layer():
    """Layers that draw the same bits, or whose numbers are another layer's."""
    config = replace(CONFIG, changes=("site=O -> bf16:stochastic",))
    shared = plans.by_layer(plans_of(config, seed=5))
    now, each = step.plans_at(shared, 3).table, step.plans_at(apart(shared), 3)
    assert all(np.array_equal(now[n], own.table) for n, own in enumerate(each))
    state, one = step.start(CONFIG, 2), plans.by_arm([plans.uniform(CONFIG)] * 2)
    found, seen = monitor.look(CONFIG, state.params, tokens_of(0)[:1], one, 0)
    again, _ = monitor.look(CONFIG, state.params, tokens_of(0)[:1], apart(one, 1), 0)
    assert found.keys() == again.keys() and all(same(found[k], again[k]) for k in found)
    mixed = plans_of(CONFIG, MIXED)
    sites = monitor.sites(CONFIG, seen, [mixed] * 2, 0)
    first, last = (monitor._site_means([row[0]] * 2, *_rows(seen)) for row in mixed)
    assert sites[0].keys() == first.keys() | last.keys() != last.keys()
    assert sites[0]["OUT"] != first["OUT"] != last["OUT"]


def _rows(seen):
    q, k, v, do = (np.asarray(x[0, :, 0, :, 0])[:, :, None] for x in seen)
    mask = np.tri(q.shape[1], dtype=bool)[None, None]
    return mask, CONFIG.tile, q, k, v, do


@pytest.mark.thorough
def test_an_offset_is_where_delta_reads_an_output():
    """An offset of one layer that another layer's plan forbids."""
    own = settings_of("layer=0 -> delta_from=P_DP ; layer=1 -> offset=16:bias")
    assert groups.numbers(own) == [[0]]
    group = groups.Group(own, [0], step.start(own.config, 1))
    assert np.isfinite(group.advance(0, {0: tokens_of(0, own.config)})[0]).all()
    with pytest.raises(UsageError, match="delta_from=P_DP reads no output"):
        groups.numbers(settings_of("layer=0 -> delta_from=P_DP offset=16:bias"))


@pytest.mark.thorough
def test_a_layer_changes_its_plan_at_a_step():
    """A change that comes too early, in all layers, or otherwise in a run that goes on."""
    first, at = "layer=0 -> plan=fp32", ["1: layer=1 -> plan=fa2-bf16"]
    own, other = settings_of(first, at=at), settings_of(first)
    begin = step.start(own.config, 1)
    one, two = (replayed(own, begin, 0, n) for n in (1, 2))
    assert same(one, replayed(other, begin, 0, 1)) and same(two, replayed(own, one, 1, 2))
    assert not same(two, replayed(other, begin, 0, 2))


def settings_of(change, *more, **options):
    words = [f"{name}={getattr(CONFIG, name)}" for name in ("layers", "heads", "width", "context")]
    return settings(
        [*words, "data=repeat", "batch=2", "plan=qiu-yao", f"changes={change}", *more], **options
    )


def test_fused_kernels_have_the_plans_of_layers(monkeypatch):
    """One plan for all, or a layer that is computed by another engine."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    more = "sums=preset", "engine=pallas", "width=32", "context=24", "block=16"
    words = ["layers=3", "heads=2", "data=repeat", "batch=2", "plan=fa2-bf16", *more]
    own = settings([*words, "changes=layer=1 -> plan=qiu-yao"])
    group = groups.Group(own, [0], step.start(own.config, 1))
    outer, inner = map(Plan.preset, ("fa2-bf16", "qiu-yao"))
    assert group.fused(0) == (outer, inner, outer)
    lr, tokens = np.float32([1e-3]), np.zeros((2, 25), np.int32)
    traced = group._executable(0)[0].trace(group.state, tokens, None, lr, None, None)
    one = engines.fused_plan(
        replace(own.config, changes=()), plans_of(replace(own.config, changes=())), None
    )
    alone = step.advance(own.config, one).trace(group.state, tokens, None, lr, None, None)
    count = [str(t.jaxpr).count("pallas_call") for t in (traced, alone)]
    assert count[0] > count[1] > 1
