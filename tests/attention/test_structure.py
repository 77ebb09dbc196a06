"""Which plans share a compilation, and what a refusal says of two that do not."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roundscope import emu
from roundscope.attention import PRODUCTS, DeltaFrom, Plan, Site
from roundscope.attention.plans.traced import common_structure
from roundscope.emu.roundings.modes import RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order

FA2 = Plan.preset("fa2-bf16")
TENSOR_CORE = Accumulator.tensor_core("hopper", "bf16")
MODES = [str(mode) for mode in RoundingMode]
DIRECTED = [mode for mode in MODES if mode not in ("stochastic", "ties-to-even")]


def stepping(mode, **options):
    return FA2.adding("DQ", Accumulator(step=rounding("fp32", mode), **options))


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_events_are_data_but_for_stochastic_ones(mode):
    other = FA2.at("O", "bf16", mode=mode)
    if mode != "stochastic":
        assert common_structure([FA2, other, FA2.at("O", "e5m2", mode="to-odd")])
        return
    with pytest.raises(
        ValueError,
        match=(
            r"entries 0 and 1 differ in more than is data, O: fp32 and bf16:stochastic.*, of which"
            r" one draws"
        ),
    ):
        common_structure([FA2, other])


@pytest.mark.parametrize("mode", DIRECTED)
def test_steps_to_nearest_even_stay_among_themselves(mode):
    """A refusal that names what is data."""
    assert common_structure([stepping(mode), stepping("toward-zero")])
    with pytest.raises(
        ValueError, match=f"the sum of DQ: steps fp32 and fp32:{mode}; both to nearest even"
    ):
        common_structure([FA2, FA2, stepping(mode)])


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (FA2.at("P", "mxfp8_e4m3"), "P: bf16 and mxfp8_e4m3, and blocks are no data"),
        (FA2.adding("S", Accumulator(order=Order.PAIRWISE)), "the sum of S: .*pairwise"),
        (replace(FA2, delta_from=DeltaFrom.CENTRED), "delta_from: OUT and CENTRED"),
        (replace(FA2, row_sum_of=Site.P), "row_sum_of: EXP and P"),
    ],
)
def test_what_is_no_data_is_named(other, told):
    with pytest.raises(ValueError, match=f"entries 0 and 1 differ in more than is data, {told}"):
        common_structure([FA2, other])


def test_every_site_and_sum_is_compared():
    """A difference that is found at no place, where the search ends in an error of its own."""
    for site in Site:
        with pytest.raises(ValueError, match=f"is data, {site}: "):
            common_structure([FA2, FA2.at(site, "bf16", mode="stochastic")])
    for site in PRODUCTS:
        with pytest.raises(ValueError, match=f"is data, the sum of {site}: "):
            common_structure([FA2, FA2.adding(site, Accumulator(order=Order.HALVES))])


@pytest.mark.parametrize("order", Order)
def test_chunks_are_no_data(order):
    """A sum in lanes or chunks of another size than the plan's: `warps` ran with 16 numbers."""
    options = {"order": order} | (
        {"alignment": TENSOR_CORE.alignment} if order is Order.ALIGNED else {}
    )
    sums = [Accumulator(chunk=chunk, **options) for chunk in (4, 8)]
    x = np.random.default_rng(0).normal(size=(64, 320)) * 2.0 ** np.arange(-20, 44)[:, None] % 7.0
    x = x.astype(ml_dtypes.bfloat16).astype("float32")
    ones = np.ones((320, 1), np.float32)
    depends = not np.array_equal(*(emu.dot(x, ones, s) for s in sums))
    made = [FA2.adding("DQ", s) for s in sums]
    assert depends == order.has_chunk
    if not depends:
        assert common_structure(made)
        return
    with pytest.raises(ValueError, match="the sum of DQ"):
        common_structure(made)
