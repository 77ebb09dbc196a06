"""Plans: presets as published, edits, errors that name the repair, and use as static arguments."""

import inspect
import json
import pickle
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from roundscope.attention import (
    PRESETS,
    PRODUCTS,
    AddUlps,
    DeltaFrom,
    Injection,
    Plan,
    Record,
    Site,
    Stabilizer,
)
from roundscope.attention.plans.choices import RowSum
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import OF_KERNELS
from roundscope.emu.roundings.modes import Overflow, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator, Order

NAMES = (*PRESETS, "all:bf16", "all:e4m3fn", "all:e5m10")


def sites_in(plan, format):
    return {s for s in Site if plan[s].format.name == format}


ENDS = ("Q", "K", "V", "DO", "DQ_OUT", "DK_OUT", "DV_OUT")
INPUTS_AND_GRADIENTS = {Site[name] for name in ENDS}


def test_presets_round_where_their_sources_do():
    """A site of a preset in another format than the published condition."""
    everything = set(Site)
    assert sites_in(Plan.preset("exact"), "fp64") == everything
    assert sites_in(Plan.preset("fp32"), "fp32") == everything
    fa2 = Plan.preset("fa2-bf16")
    assert sites_in(fa2, "bf16") == INPUTS_AND_GRADIENTS | {Site.P, Site.OUT, Site.P_B, Site.DS}
    assert sites_in(fa2, "fp32") == everything - sites_in(fa2, "bf16")
    assert fa2.pv_into_o
    assert (fa2.row_sum_of, fa2.delta_from) == (Site.EXP, DeltaFrom.OUT)
    released = Plan.preset("qiu-yao")
    assert {
        Site.S,
        Site.SCALED,
        Site.M,
        Site.L,
        Site.O,
        Site.AO,
        Site.PV,
        Site.OUT,
        Site.P,
    } <= sites_in(released, "bf16")
    assert {Site.EXP, Site.ROWSUM, Site.DELTA, Site.DS} <= sites_in(released, "fp32")
    assert not released.pv_into_o
    fp8 = Plan.preset("fa3-fp8")
    assert sites_in(fp8, "e4m3fn") == {Site.Q, Site.K, Site.V, Site.P}
    assert fp8[Site.P].overflow is Overflow.SATURATE
    unfused = Plan.preset("baseline-bf16")
    assert unfused.normalise_first
    assert unfused.delta_from is DeltaFrom.P_DP
    assert {Site.S, Site.P, Site.PV, Site.DP, Site.DS} <= sites_in(unfused, "bf16")
    assert {Site.EXP, Site.L, Site.INV} <= sites_in(unfused, "fp32")


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e2m1fn", "e5m10"])
def test_all_is_all(name):
    """An event, or a step of a sum, that `all:` forgets."""
    plan = Plan.preset(f"all:{name}")
    assert {plan[s].format.name for s in Site} == {name}
    assert {plan.accumulator(s).step.format.name for s in PRODUCTS} == {name}


@pytest.mark.parametrize("name", NAMES)
def test_presets_name_themselves_and_are_values(name):
    """A plan that cannot be a key, a static argument, or travel to another process."""
    plan = Plan.preset(name)
    assert plan.name == name
    assert plan == Plan.preset(name)
    assert hash(plan) == hash(Plan.preset(name))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.is_reproducible
    assert json.loads(json.dumps(plan.describe()))["name"] == name
    assert set(plan.describe()["roundings"]) == set(Site) - (
        set() if plan.is_of_kernel else OF_KERNELS
    )


PRODUCT_BITS = [
    ("fa2-bf16", "S", 8 + 8),
    ("fa2-bf16", "ROWSUM", 24),
    ("fa2-bf16", "DELTA", 8 + 8),
    ("qiu-yao", "PV", 8 + 8),
    ("qiu-yao", "DQ", 24 + 8),
    ("fp32", "S", 24 + 24),
    ("fa3-fp8", "DQ", 8 + 4),
    ("exact", "S", 106),
    ("fa3-fp8-scaled", "S", 106),
    ("mxfp8-attention", "DP", 53),
]


@pytest.mark.parametrize(("name", "site", "bits"), PRODUCT_BITS)
def test_bits_of_products(name, site, bits):
    """A factor of another site, or one more: a sum under XLA would round twice, or a compiler fuse
    what is inexact.
    """
    assert Plan.preset(name).product_bits(Site(site)) == bits


def test_sums_that_start_from_numbers_beyond_binary32():
    """The total of P V into O, wider than its products; delta from P dP, of the rounded exp."""
    fa2 = Plan.preset("fa2-bf16")
    assert fa2.at("AO", "fp64").product_bits(Site.PV) == 53
    assert replace(fa2, delta_from=DeltaFrom.P_DP).product_bits(Site.DELTA) == 24 + 24


def test_a_plan_is_a_static_argument():
    """Unhashable fields; equal plans that compile twice."""
    traced = []

    @partial(jax.jit, static_argnums=0)
    def double(plan, x):
        traced.append(plan.name)
        return x + x

    for plan in (Plan.preset("fa2-bf16"), Plan.preset("fa2-bf16"), Plan.preset("fp32")):
        double(plan, jnp.ones(3))
    assert traced == ["fa2-bf16", "fp32"]


def test_at_changes_one_site_and_nothing_else():
    """An edit that leaks, a seed or mode that is dropped."""
    plan = Plan.preset("fa2-bf16")
    new = plan.at(Site.O, "bf16", mode="stochastic", seed=4)
    assert (new[Site.O].format.name, new[Site.O].mode, new[Site.O].seed) == (
        "bf16",
        RoundingMode.STOCHASTIC,
        4,
    )
    assert all(new[s] == plan[s] for s in Site if s is not Site.O)
    assert new.accumulators == plan.accumulators
    assert new.name == "fa2-bf16; O=bf16:stochastic"
    assert new.describe()["name"] == "fa2-bf16*"  # as results have it that are stored
    saturated = new.at("p", "e5m2", overflow="saturate")
    assert saturated.name == "fa2-bf16; O=bf16:stochastic P=e5m2:saturate"
    assert saturated.at("O", "fp16").name == "fa2-bf16; P=e5m2:saturate O=fp16"
    assert new.at("p", "e4m3fn", overflow="saturate")[Site.P].overflow is Overflow.SATURATE
    assert plan[Site.O].format.name == "fp32"  # the original stays


def test_adding_changes_one_accumulator():
    plan = Plan.preset("fp32")
    new = plan.adding("pv", Accumulator(order=Order.CHUNKED, chunk=8))
    assert new.accumulator(Site.PV).chunk == 8
    assert all(new.accumulator(s) == plan.accumulator(s) for s in PRODUCTS if s is not Site.PV)
    assert not plan.adding("pv", Accumulator(order=Order.NATIVE)).is_reproducible


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda p: Plan.preset("qiu-yoa"),
            ("preset", "qiu-yoa", "did you mean 'qiu-yao'", "roundscope plans lists all"),
        ),
        (lambda p: Plan.preset("all:bf61"), ("format", "bf61", "bf16")),
        (lambda p: Plan.preset("all:e8m0fnu"), ("e8m0fnu", "scale")),
        (lambda p: p.at("DETLA", "bf16"), ("site", "DETLA", "did you mean 'DELTA'")),
        (lambda p: p.at("O", "e4m3nf"), ("format", "e4m3nf", "did you mean 'e4m3fn'")),
        (
            lambda p: p.at("O", "bf16", mode="stochastik"),
            ("rounding mode", "stochastik", "did you mean 'stochastic'"),
        ),
        (lambda p: p.at("O", "e4m3fn", overflow="inf"), ("overflow=inf", "e4m3fn", "saturate")),
        (lambda p: p.at("O", "bf16", seed=-1), ("seed=-1",)),
        (lambda p: p.adding("P", Accumulator()), ("site=P", "PV")),
        (lambda p: Accumulator(chunk=0), ("chunk=0",)),
        (lambda p: Accumulator(alignment=25), ("alignment=25",)),
        (
            lambda p: Accumulator(order=Order.EXACT, step=Plan.preset("exact")[Site.O]),
            ("step=fp64", "29"),
        ),
        (
            lambda p: Plan(name="x", roundings=p.roundings[1:], accumulators=p.accumulators),
            ("roundings", str(len(Site))),
        ),
        (
            lambda p: Plan(name="x", roundings=p.roundings, accumulators=()),
            ("accumulators", str(len(PRODUCTS))),
        ),
        (
            lambda p: Plan(
                name="x", roundings=p.roundings, accumulators=p.accumulators, row_sum_of=Site.S
            ),
            ("row_sum_of=S",),
        ),
        (
            lambda p: replace(p, row_sum=RowSum.EIGHTS).at("LANES", "bf16", mode="stochastic"),
            ("LANES=bf16:stochastic", "row_sum=eights", "another mode"),
        ),
        (
            lambda p: replace(p, kept_state=True).at("MS", "bf16", mode="stochastic"),
            ("MS=bf16:stochastic", "kept_state=True", "another mode"),
        ),
        (lambda p: Stabilizer(beta=1.0), ("beta=1.0", "beta > 1")),
        (lambda p: Stabilizer(beta=float("nan")), ("beta=nan",)),
        (lambda p: Stabilizer(window=-0.1), ("window=-0.1",)),
    ],
)
def test_errors_name_the_value_and_the_repair(call, words):
    """A typo that passes silently, or an error that does not help."""
    with pytest.raises(ValueError, match=r".") as caught:
        call(Plan.preset("fp32"))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_records_are_values():
    """An injection or record that cannot be part of a static argument."""
    one = Injection(site=Site.O, what=AddUlps(ulps=0.5), rows=slice(2, 9), heads=[1, 2])
    assert hash(one) == hash(
        Injection(site=Site.O, what=AddUlps(ulps=0.5), rows=range(2, 9), heads=(1, 2))
    )
    assert hash(Record(steps=(Site.PV,))) == hash(Record(steps=(Site.PV,)))


def methods_of_a_site():
    """Every public method of `Plan` that takes a site, with what it needs besides."""
    more = {"at": ("bf16",), "adding": (Accumulator(order=Order.PAIRWISE),)}
    found = {
        name: more.get(name, ())
        for name, method in inspect.getmembers(Plan, inspect.isfunction)
        if not (name.startswith("_") and name != "__getitem__")
        and "site" in inspect.signature(method).parameters
    }
    assert set(found) >= {"__getitem__", "block", "event", "accumulator", "first_term", "factors"}
    return found


@pytest.mark.parametrize("name", [*PRESETS, *TWINS])
def test_a_site_and_its_name_have_the_same_answer(name):
    """A method that takes a name for another site: `event("V")` was MXFP8's element, without its
    blocks, and `first_term("PV")` was None.
    """
    plan = Plan.preset(name)
    for method, more in methods_of_a_site().items():
        ask = getattr(plan, method)
        of_sums = method in ("accumulator", "first_term", "factors", "product_bits", "adding")
        for site in PRODUCTS if of_sums else Site:
            answer = ask(site, *more)
            for text in (str(site), str(site).lower()):
                assert ask(text, *more) == answer, (method, text)
        with pytest.raises(ValueError, match="unknown site 'NOWHERE'"):
            ask("NOWHERE", *more)


@pytest.mark.parametrize("name", [*PRESETS, *TWINS])
def test_an_event_is_what_the_plan_says_of_its_blocks(name):
    """An event without its block format: `Plan.describe` and `blocks` say which there are."""
    plan = Plan.preset(name)
    blocks = {str(site): str(block) for site, block in plan.blocks}
    for site in Site:
        assert str(plan.event(str(site))) == blocks.get(str(site), str(plan[site])), site
