"""`PlanRecord`: the fields of a plan, what follows from them, and how they are stored.

`Plan` in `attention.plans.plan` adds how plans are made of others, and its docstring explains every
field.
"""

from dataclasses import dataclass
from typing import ClassVar

from roundscope.attention.plans.choices import (
    DeltaFrom,
    Log2E,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    Stabilizer,
)
from roundscope.attention.plans.tiles import TileChoices
from roundscope.attention.sites import (
    BLOCK_AXIS,
    FACTORS,
    OF_BIAS,
    OF_CAP_APART,
    OF_KERNELS,
    OF_NORMALIZED_LAST,
    PRODUCTS,
    Site,
)
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.events.event import precision_of
from roundscope.events.plan import BasePlan, stored_name
from roundscope.events.sites import SiteBase


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord(TileChoices):
    """The fields of a plan; see `Plan`."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = PRODUCTS
    FACTORS: ClassVar = FACTORS
    BLOCK_AXIS: ClassVar = BLOCK_AXIS

    def __post_init__(self) -> None:
        BasePlan.__post_init__(self)
        _check_random(self)

    def first_term(self, site: SiteBase | str) -> Site | None:
        """Return the event whose result the sum at a site starts from, or None if it starts from 0.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.

        Returns:
            The site of that event, or None.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> str(Plan.preset("fa2-bf16").first_term(Site.PV))  # P V goes on from alpha O
            'AO'
            >>> Plan.preset("qiu-yao").first_term(Site.PV) is None
            True
        """
        own: Site = self._product(site)
        if own is Site.PV:
            return Site.AO if self.pv_into_o else None
        if own is Site.DP:
            return Site.DELTA if self.dp_from_delta else None
        return own if own in (Site.DV, Site.DQ, Site.DK) else None

    def factors(self, site: SiteBase | str) -> tuple[Site, ...]:
        """Return the events whose results are multiplied at a site.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.

        Returns:
            Two sites, or one where the other factor is 1, as in a row sum.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> [str(s) for s in Plan.preset("fa2-bf16").factors(Site.PV)]
            ['P', 'V']
        """
        own: Site = self._product(site)
        if own is Site.ROWSUM:
            return (self.row_sum_of,)
        if own is not Site.DELTA:
            other = {Site.Q: Site.QS, Site.K: Site.KS} if self.scale_roots else {}
            if self.scaled_keys and own in (Site.S_B, Site.DQ):
                other[Site.K] = Site.KC
            if self.inputs_again and own in (Site.S_B, Site.DP, Site.DQ, Site.DK):
                other |= {Site.Q: Site.QB, Site.K: Site.KB, Site.V: Site.VB}
            if self.do_apart and own is Site.DV:
                other[Site.DO] = Site.DOV
            is_scaled = self.gradient_scale is ScaleOfGradient.OPERAND
            if (self.dp_from_delta or self.ds_apart) and own is Site.DQ:
                other[Site.DS] = Site.SDSQ if is_scaled else Site.DSQ
            elif is_scaled:
                other[Site.DS] = Site.SDS
            return tuple(other.get(factor, factor) for factor in FACTORS[own])
        if self.delta_from is DeltaFrom.P_DP:
            return Site.EXP_B, Site.DP
        # OD rounds OUT, or O, once more
        return Site.DO, (
            Site.OUT
            if self.delta_from is DeltaFrom.OUT
            and precision_of(self.event(Site.OUT)) < precision_of(self.event(Site.OD))
            else Site.OD
        )

    def in_full(self) -> str:
        """Return all fields with their values, 30 kB of text, of which keys of results are made.

        Fields and events that came later are left out of plans that do not have them, so keys that
        were made before stay.
        """
        absent = {site for site, name in LATER.items() if not getattr(self, name)}
        told = {name: getattr(self, name) for name in STORED}
        told["roundings"] = tuple(
            r for site, r in zip(Site, self.roundings, strict=True) if site not in absent
        )
        for name, own in CHOICES.items():
            if own.number > KEYED and told[name] == own.default:
                del told[name]
        return f"Plan({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def describe(self) -> dict[str, object]:
        """Return the plan as plain data for JSON, the form in which results store it.

        Returns:
            A dictionary from the names of fields to their values, which are text, numbers, True,
            False or None. Three fields hold a dictionary: "roundings" and "accumulators" go from
            the name of a site to text (a site in blocks has its block format under "roundings"),
            and a "stabiliser" that is not None has "beta" and "window". Fields and sites that only
            real kernels have are left out if all such fields have their defaults. Older results
            were stored without these fields and so keep their keys.

        Example:
            >>> from roundscope.attention import Plan
            >>> plain = Plan.preset("fa2-bf16").describe()
            >>> plain["name"], plain["roundings"]["P"], plain["pv_into_o"]
            ('fa2-bf16', 'bf16', True)
            >>> "row_sum" in plain, Plan.preset("cudnn").describe()["row_sum"]
            (False, 'tile-lanes')
        """
        has_steps = self.is_of_kernel
        names = [name for name in STORED if name in CHOICES and name not in OF_KERNEL]
        return {
            "name": stored_name(self.name),
            "roundings": {
                str(s): str(self.event(s)) for s in Site if has_steps or s not in OF_KERNELS
            },
            "accumulators": {str(s): str(self.accumulator(s)) for s in PRODUCTS},
            **{name: self._plain(name) for name in (*names, *(OF_KERNEL if has_steps else ()))},
        }

    def _plain(self, name: str) -> object:
        """Return a choice as plain data."""
        value = getattr(self, name)
        if isinstance(value, Stabilizer):
            return {"beta": value.beta, "window": value.window}
        is_plain = isinstance(value, int) or (value is None and name not in OF_KERNEL)
        return value if is_plain else str(value)

    @property
    def multiplies_by_reciprocal(self) -> bool:
        """Return True if elements of blocks are multiplied by 1 / scale, False if divided by it."""
        return self.block_reciprocal is Reciprocal.RCP

    @property
    def is_of_kernel(self) -> bool:
        """Return whether the plan has steps that only real kernels have.

        Examples are log2 e in the scores, row sums in lanes, and casts from registers. The fields
        that turn such steps on are listed in `OF_KERNEL`.

        Example:
            >>> from roundscope.attention import Plan
            >>> Plan.preset("fa2-bf16").is_of_kernel, Plan.preset("cudnn").is_of_kernel
            (False, True)
        """
        return any(getattr(self, name) != CHOICES[name].default for name in OF_KERNEL)


CHOICES = PlanRecord.choices()
"""The choices of a plan by name, in the order in which they are declared."""
_NUMBERS = {"name": 0, "roundings": 1, "accumulators": 2, "blocks": 10} | {
    name: own.number for name, own in CHOICES.items()
}
STORED = tuple(sorted(_NUMBERS, key=lambda name: _NUMBERS[name]))
"""The names of all fields in the order of the text of which the keys of stored results are made."""
OF_KERNEL = STORED[_NUMBERS["blocks"] + 1 :]
"""Names of the fields that have their defaults in plans without steps of real kernels.

`Plan.describe` leaves them out of such plans.
"""
KEYED = 43
"""The number of the last field that every key has (`PlanRecord.in_full`)."""
LATER = {
    Site.KM: "smoothed_keys",
    **dict.fromkeys((Site.SDKH, Site.DKH, Site.DVH), "rounded_heads"),
    Site.DSR: "ds_apart",
    **dict.fromkeys((Site.QB, Site.KB, Site.VB), "inputs_again"),
    Site.DOV: "do_apart",
    **dict.fromkeys(OF_CAP_APART, "cap_apart"),
    **dict.fromkeys(OF_NORMALIZED_LAST, "normalized_last"),
    **dict.fromkeys(OF_BIAS, "biased"),
}
"""The events that only some keys have, each with the field of the plans that have it."""


def _check_random(plan: PlanRecord) -> None:
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
