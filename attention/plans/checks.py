"""The checks of plans: which plans are refused when they are made or run, and which arguments the
methods of `Plan` refuse.

`check_plan` runs whenever a plan is made and `check_factors` when one is run; `events_given` and
`product_named` read the arguments of `Plan.rounded` and `Plan.adding`. Each raises a TypeError or a
ValueError whose message names the field or argument, its value and how to fix it. What a choice
needs of other fields stands where the choice is declared (`attention.plans.forward` and others).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from roundscope.attention.plans.choice import Choice
from roundscope.attention.plans.choices import Log2E, RowSum
from roundscope.attention.sites import BLOCK_AXIS, FACTORS, PRODUCTS, Site, site_named
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.shown import shown

if TYPE_CHECKING:
    from roundscope.attention.plans.record import PlanRecord


def check_plan(plan: "PlanRecord", choices: Mapping[str, Choice]) -> None:
    """Raise ValueError for a plan whose fields contradict each other; see `Plan` for the rules."""
    _check_lengths(plan)
    for name, own in choices.items():
        value = getattr(plan, name)
        if own.refused is None or (value == own.default and type(value) is type(own.default)):
            continue
        if told := own.refused(plan):
            raise ValueError(f"{name}={value}: {told}")
    _check_random(plan)
    _check_blocks(plan)


def _check_lengths(plan: "PlanRecord") -> None:
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


def _check_random(plan: "PlanRecord") -> None:
    """Raise ValueError for a stochastic event that rounds more numbers than it has random bits for.

    The event LANES also rounds the sums of pairs of lanes, MS both maxima in alpha, and KM the mean
    of k.
    """
    reasons = {
        Site.LANES: (plan.row_sum is not RowSum.PLAIN, f"row_sum={plan.row_sum} adds up lanes"),
        Site.MS: (
            plan.kept_state and plan.log2_e is not Log2E.MAXIMUM,
            "kept_state=True rounds both maxima in alpha",
        ),
        Site.KM: (plan.smoothed_keys, "smoothed_keys=True rounds the mean too"),
    }
    for site, (rounds_more, why) in reasons.items():
        if rounds_more and plan[site].mode is RoundingMode.STOCHASTIC:
            raise ValueError(
                f"{site}={plan[site]}: {why}, and only the event itself has random bits; use"
                " another mode"
            )


def _check_blocks(plan: "PlanRecord") -> None:
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


def check_factors(plan: "PlanRecord") -> None:
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
