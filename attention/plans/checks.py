"""The checks of plans: which plans are refused when they are made or run, and which arguments the
methods of `Plan` refuse.

`check_plan` runs whenever a plan is made and `check_factors` when one is run; `events_given` and
`product_named` read the arguments of `Plan.rounded` and `Plan.adding`. Each raises a TypeError or a
ValueError whose message names the field or argument, its value and how to fix it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    DeltaFrom,
    Exponential,
    KeyOrder,
    Log2E,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
)
from roundscope.attention.sites import BLOCK_AXIS, FACTORS, PRODUCTS, Site, site_named
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.shown import shown

if TYPE_CHECKING:
    from roundscope.attention.plans.plan import Plan


def check_plan(plan: "Plan") -> None:
    """Raise ValueError for a plan whose fields contradict each other; see `Plan` for the rules."""
    _check_lengths(plan)
    _check_base(plan)
    _check_gradients(plan)
    _check_maximum(plan)
    _check_random(plan)
    check_served(plan)
    _check_tiles(plan)
    _check_blocks(plan)


def _check_lengths(plan: "Plan") -> None:
    """Raise ValueError unless every site has a rounding and every product an accumulator."""
    if len(plan.roundings) != len(Site):
        raise ValueError(
            f"roundings: {len(plan.roundings)} given, a plan names all {len(Site)} sites"
        )
    if len(plan.accumulators) != len(PRODUCTS):
        raise ValueError(
            f"accumulators: {len(plan.accumulators)} given, a plan names all {len(PRODUCTS)}"
            " products"
        )


def _check_base(plan: "Plan") -> None:
    """Raise ValueError for a wrong operand of the row sum, and for exponents and L of two bases."""
    if plan.row_sum_of not in (Site.EXP, Site.P):
        raise ValueError(f"row_sum_of={plan.row_sum_of}: the row sum adds EXP or P")
    if plan.log2_e is not Log2E.NONE and plan.exp not in (Exponential.BASE2, Exponential.EX2):
        raise ValueError(
            f"log2_e={plan.log2_e}: goes with exp=base2 or exp=ex2, here exp={plan.exp}"
        )
    is_base2 = plan.exp in (Exponential.BASE2, Exponential.EX2)
    for name in ("fused_exponent", "fused_without_mask"):
        if getattr(plan, name) and is_base2 and plan.log2_e is Log2E.NONE:
            raise ValueError(
                f"{name}=True: with exp={plan.exp} X is the exponent of a power of 2, and"
                " log2_e=none leaves log2 e out of it; use log2_e=scale, maximum or scores"
            )
    if plan.lse_base2 and plan.log2_e not in (Log2E.SCALE, Log2E.SCORES):
        raise ValueError(
            f"lse_base2=True: L is m + log2 l, so m has to be in base 2, here log2_e={plan.log2_e};"
            " use log2_e=scale or scores"
        )
    if plan.exponent_again is not BackwardExponent.FORWARD and plan.lse_base2:
        raise ValueError(
            f"exponent_again={plan.exponent_again}: subtracts L in base e, and lse_base2=True keeps"
            " it in base 2; use exponent_again=forward"
        )
    if plan.exponent_again is BackwardExponent.AFTER and not is_base2:
        raise ValueError(
            "exponent_again=after: P is a power of 2 in the backward; it goes with exp=base2 or"
            f" exp=ex2, here exp={plan.exp}"
        )
    if plan.normalise_first and plan.row_sum in (RowSum.LANES, RowSum.TILE_LANES):
        why = "its lanes are kept from tile to tile, and a softmax of whole rows has one"
        raise ValueError(f"row_sum={plan.row_sum}: {why}; use row_sum=plain before unfused=true")


def _check_random(plan: "Plan") -> None:
    """Raise ValueError for a stochastic event that rounds more numbers than it has random bits for.

    The event LANES also rounds the sums of pairs of lanes, and MS both maxima in alpha.
    """
    reasons = {
        Site.LANES: (plan.row_sum is not RowSum.PLAIN, f"row_sum={plan.row_sum} adds up lanes"),
        Site.MS: (
            plan.kept_state and plan.log2_e is not Log2E.MAXIMUM,
            "kept_state=True rounds both maxima in alpha",
        ),
    }
    for site, (rounds_more, why) in reasons.items():
        if rounds_more and plan[site].mode is RoundingMode.STOCHASTIC:
            raise ValueError(
                f"{site}={plan[site]}: {why}, and only the event itself has random bits; use"
                " another mode"
            )


def _check_gradients(plan: "Plan") -> None:
    """Raise ValueError for a backward that needs what the forward does not give it."""
    if plan.saved_p and not plan.normalise_first:
        raise ValueError(
            "saved_p=True: only a softmax of whole rows keeps P; it goes with normalise_first"
        )
    if plan.score_gradient is ScoreGradient.QUOTIENT and not (
        plan.saved_p and plan.delta_from is DeltaFrom.P_DP
    ):
        raise ValueError(
            "score_gradient=quotient: is of EXP and l as the forward had them; it goes with"
            " saved_p and delta_from=P_DP"
        )
    if plan.maximum_gradient and not plan.saved_p:
        raise ValueError(
            "maximum_gradient=True: the sum of dS is of whole rows, whose maximum is known; it"
            " goes with saved_p"
        )
    scale, told = plan.gradient_scale, f"gradient_scale={plan.gradient_scale}: "
    if plan.scale_roots and scale is not ScaleOfGradient.RESULT:
        raise ValueError(
            told + "with scale_roots=True the root of the scale multiplies dQ and dK at the end;"
            " use gradient_scale=result"
        )
    if scale is ScaleOfGradient.PROBABILITY:
        for is_other, name in (
            (plan.score_gradient is ScoreGradient.QUOTIENT, "score_gradient=quotient"),
            (plan.dp_from_delta, "dp_from_delta=True"),
        ):
            if is_other:
                raise ValueError(
                    told + f"{name} has no product of the scale and P; use gradient_scale=result,"
                    " register or operand"
                )
    if plan.dp_from_delta and plan.score_gradient is ScoreGradient.QUOTIENT:
        raise ValueError(
            "dp_from_delta=True: dQ's sum begins at -delta, and delta of score_gradient=quotient is"
            " divided by l; use score_gradient=difference or softmax"
        )
    if plan.scaled_keys and not (
        plan.lse_base2
        and plan.log2_e is Log2E.SCALE
        and plan.gradient_scale is ScaleOfGradient.RESULT
    ):
        raise ValueError(
            "scaled_keys=True: S_B is in base 2, as L must be; it needs log2_e=scale,"
            " lse_base2, gradient_scale=result"
        )
    for name in ("saved_p", "scale_roots"):
        if plan.scaled_keys and getattr(plan, name):
            raise ValueError(
                f"scaled_keys=True: the keys contain the scale, and {name}=True has no place for"
                f" it; use {name}=false"
            )


def _check_maximum(plan: "Plan") -> None:
    """Raise ValueError for an impossible kept state, threshold, offset or polynomial."""
    if plan.first_tile_apart and not plan.kept_state:
        raise ValueError(
            "first_tile_apart=True: only a row sum that is kept in memory is another one there;"
            " it goes with kept_state"
        )
    if plan.first_tile_apart and plan.row_sum in (RowSum.LANES, RowSum.TILE_LANES):
        raise ValueError(
            "first_tile_apart=True: lanes are not a row sum yet, and"
            f" row_sum={plan.row_sum} has them; use row_sum=plain"
        )
    if not 0.0 <= plan.stale_maximum < 64.0 or (plan.stale_maximum and plan.log2_e is Log2E.SCORES):
        allowed = (
            "a number of powers of two, of e with log2_e=none, 0 or more and below 64;"
            " log2_e=scores has none"
        )
        raise ValueError(f"stale_maximum={plan.stale_maximum}: {allowed}")
    if plan.offset and (plan.log2_e is Log2E.NONE or not 0 <= plan.offset < 64):
        raise ValueError(
            f"offset={plan.offset}: a number of powers of two, whole, from 0 to 63; it needs"
            f" log2_e=scale, maximum or scores, here log2_e={plan.log2_e}"
        )
    if plan.polynomial is not None and plan.exp not in (Exponential.BASE2, Exponential.EX2):
        raise ValueError(
            f"polynomial={plan.polynomial}: takes the place of 2^x; it goes with exp=base2 or"
            f" exp=ex2, here exp={plan.exp}"
        )


def check_served(plan: "Plan") -> None:
    """Raise ValueError for a softcap, window or choice of sinks that is not allowed.

    These are the fields that `attend` can set for one call. They are refused where their value is
    impossible and where the rest of the plan does not support them.
    """
    if not 0.0 <= plan.softcap < math.inf:
        raise ValueError(
            f"softcap={plan.softcap}: a number above 0, such as 50.0, that bounds the scores; 0 for"
            " no bound"
        )
    if plan.softcap:
        _check_softcap(plan)
    if isinstance(plan.window, bool) or plan.window < 0:
        raise ValueError(
            f"window={plan.window}: how many keys a query sees, its own included, such as 128; 0"
            " for all"
        )
    if plan.sinks is Sinks.NONE:
        return
    for name in ("split_tiles", "kept_state", "lse_base2"):
        if getattr(plan, name):
            raise ValueError(
                f"sinks={plan.sinks}: {plan.name} has {name}={getattr(plan, name)}, which knows no"
                " sinks; change it"
            )
    if plan.score_gradient is ScoreGradient.QUOTIENT:
        raise ValueError(
            f"sinks={plan.sinks}: {plan.name} has score_gradient=quotient, whose delta is divided"
            " by l, and its kernel has no sinks; use score_gradient=softmax or difference"
        )
    if plan.maximum_gradient and plan.gradient_scale in (
        ScaleOfGradient.REGISTER,
        ScaleOfGradient.PROBABILITY,
    ):
        raise ValueError(
            f"sinks={plan.sinks}: the sum of dS of maximum_gradient=True has the sink's part"
            f" without the scale; use gradient_scale=operand or result, not {plan.gradient_scale}"
        )
    if plan.delta_from is DeltaFrom.CENTERED:
        raise ValueError(
            f"sinks={plan.sinks}: rows of P do not add up to 1, which delta_from=CENTRED expects;"
            " use OUT, O or P_DP"
        )
    if plan.sinks is Sinks.KEY and not plan.normalise_first:
        raise ValueError(
            "sinks=key: of tiles, each adds up its own keys; it goes with a softmax of whole rows;"
            " use sinks=first or last"
        )
    if plan.sinks is Sinks.LAST and plan.normalise_first:
        raise ValueError(
            "sinks=last: P of a softmax of whole rows is divided before any later key; use"
            " sinks=key or sinks=first"
        )


def _check_softcap(plan: "Plan") -> None:
    """Raise ValueError for a softcap that its format does not hold, or that the plan has not.

    The kernels of the fields named here have no softcap, so there is nothing that the plan could
    imitate.
    """
    told = f"softcap={plan.softcap:g}: "
    if plan[Site.SCALED].format.precision <= 24 or plan.capped_by is CappedBy.CHAIN:
        with np.errstate(over="ignore", divide="ignore"):
            narrow = np.float32(plan.softcap)
            kept = (narrow, np.float32(1.0) / narrow)[
                : 2 if plan.capped_by is CappedBy.CHAIN else 1
            ]
        if not all(0.0 < x < math.inf for x in kept):
            raise ValueError(
                told + "0 or infinite in binary32, itself or its inverse; give a number such as"
                " 50.0"
            )
    for name, why in (
        ("dp_from_delta", "a second dS"),
        ("scaled_keys", "keys that contain scale log2 e already"),
        ("maximum_gradient", "a sum of dS that is taken away behind the tanh"),
    ):
        if getattr(plan, name):
            raise ValueError(
                told + f"{plan.name} has {name}=True, {why}, and its kernel has no softcap; use"
                f" {name}=false"
            )


def _check_tiles(plan: "Plan") -> None:
    """Raise ValueError for splits and flushes that need other tiles, and for a shift in base 2."""
    is_whole = plan.normalise_first or plan.lse_base2 or plan.key_order is KeyOrder.MASKED_FIRST
    if plan.split_tiles < 0 or (plan.split_tiles and is_whole):
        needs = "goes with a softmax in tiles, an L in base e, and key tiles that go up or down"
        raise ValueError(
            f"split_tiles={plan.split_tiles}: a number of key tiles, 0 for no split; it {needs}"
        )
    if plan.flushed_tiles < 0 or (
        plan.flushed_tiles and (plan.normalise_first or plan.split_tiles)
    ):
        allowed = (
            "a number of key tiles, 0 for never; it goes with a softmax in tiles, whose keys"
            " are not split"
        )
        raise ValueError(f"flushed_tiles={plan.flushed_tiles}: {allowed}")
    if plan.stabiliser is not None and plan.log2_e is not Log2E.NONE:
        raise ValueError(
            "stabiliser: its shift is of scores in base e; use log2_e=none, here"
            f" log2_e={plan.log2_e}"
        )


def _check_blocks(plan: "Plan") -> None:
    """Raise ValueError for blocks at a site that is not an operand, or that contradict its
    rounding.
    """
    for site, block in plan.blocks:
        if site not in BLOCK_AXIS:
            raise ValueError(
                f"{block} at {site}: blocks need a sum to lie along; the operands of products"
                f" are {' '.join(BLOCK_AXIS)}"
            )
        if block.element != replace(plan[site], seed=0):
            raise ValueError(
                f"roundings: {site} is in blocks of {block}, not of {plan[site]}; change it by"
                " Plan.at or Plan.rounded"
            )


def check_factors(plan: "Plan") -> None:
    """Raise ValueError where a product runs on a tensor core that cannot read its factors."""
    for site in PRODUCTS:
        kept = plan.accumulator(site).alignment
        if kept is None:
            continue
        if site not in FACTORS:
            raise ValueError(
                f"accumulator of {site}: no matrix unit computes it; use a preset@architecture, or"
                f" give it to {' '.join(FACTORS)}"
            )
        for factor in plan.factors(site):
            if plan.block(factor) is not None or not kept.operand.holds(plan[factor].format):
                raise ValueError(
                    f"accumulator of {site}: a tensor core of {kept.operand.name} cannot read"
                    f" {factor} in {plan.event(factor)}; round {factor} to {kept.operand.name}, or"
                    f" give {site} another accumulator"
                )


def events_given(
    events: Mapping[Site, Rounding | BlockFormat],
) -> dict[Site, Rounding | BlockFormat]:
    """Return roundings by site, as `Plan.rounded` was given them.

    A key may also be the name of a site, as text.

    Raises:
        TypeError: `events` is not a mapping, or one of its values is not a rounding.
        ValueError: A name is not a site.
    """
    if not isinstance(events, Mapping):
        raise TypeError(
            f"events={shown(events)}: give roundings by site, such as {{'P': rounding('bf16')}}"
        )
    by_site = {site_named(site): event for site, event in events.items()}
    for site, event in by_site.items():
        if not isinstance(event, (Rounding, BlockFormat)):
            raise TypeError(
                f"events: {site}={shown(event)}: give a rounding, such as rounding('bf16'), or use"
                " Plan.at, which takes names"
            )
    return by_site


def product_named(site: Site | str) -> Site:
    """Return the site of that name, whose event must be a sum of products.

    Raises:
        ValueError: The name is not a site, or the site is not in `PRODUCTS`.
    """
    site = site_named(site)
    if site not in PRODUCTS:
        raise ValueError(f"site={site}: not a sum of products; those are {' '.join(PRODUCTS)}")
    return site
