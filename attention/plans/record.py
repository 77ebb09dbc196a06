"""`PlanRecord`: the fields of a plan, what follows from them, and how they are stored.

`Plan` in `attention.plans.plan` adds how plans are made of others, and its docstring explains every
field.
"""

from dataclasses import dataclass, replace

from roundscope.attention.plans.checks import check_plan, product_named
from roundscope.attention.plans.choice import choices_of
from roundscope.attention.plans.choices import DeltaFrom, ScaleOfGradient, Stabilizer
from roundscope.attention.plans.events import Event, precision_of
from roundscope.attention.plans.tiles import TileChoices
from roundscope.attention.sites import (
    FACTORS,
    OF_CAP_APART,
    OF_KERNELS,
    OF_NORMALIZED_LAST,
    PRODUCTS,
    Site,
    site_named,
)
from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.sums.accumulator import Accumulator


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord(TileChoices):
    """The fields of a plan; see `Plan`."""

    name: str
    roundings: tuple[Rounding, ...]
    accumulators: tuple[Accumulator, ...]
    blocks: tuple[tuple[Site, BlockFormat], ...] = ()

    def __post_init__(self) -> None:
        check_plan(self, CHOICES)

    def __getitem__(self, site: Site | str) -> Rounding:
        """Return the rounding of a site.

        Args:
            site: A member of `Site`, or its name in upper or lower case.

        Returns:
            The rounding. For a site that rounds in blocks this is the rounding of the elements;
            `Plan.event` returns the block format.

        Raises:
            ValueError: There is no site of that name.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> Plan.preset("fa2-bf16")[Site.P].format.precision
            8
        """
        return self.roundings[_ORDINAL[site_named(site)]]

    def block(self, site: Site | str) -> BlockFormat | None:
        """Return the block format of a site, or None where numbers round one by one.

        Args:
            site: A member of `Site`, or its name in upper or lower case.

        Returns:
            The block format, or None. Its element has seed 0; the seed of the site is in
            `plan[site]`.

        Raises:
            ValueError: There is no site of that name.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> Plan.preset("mxfp8-attention").block("P").size
            32
            >>> Plan.preset("fa2-bf16").block(Site.P) is None
            True
        """
        site = site_named(site)
        return next((block for blocked, block in self.blocks if blocked is site), None)

    def event(self, site: Site | str) -> Event:
        """Return how a site rounds: its block format with the seed, or its rounding.

        Args:
            site: A member of `Site`, or its name in upper or lower case.

        Returns:
            A `BlockFormat` for a site that rounds in blocks, and a `Rounding` otherwise.

        Raises:
            ValueError: There is no site of that name.

        Example:
            >>> from roundscope.attention import Plan
            >>> str(Plan.preset("mxfp8-attention").event("V"))
            'mxfp8_e4m3'
        """
        block = self.block(site)
        return self[site] if block is None else replace(block, element=self[site])

    def accumulator(self, site: Site | str) -> Accumulator:
        """Return how the sum of products at a site is added up.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.

        Returns:
            The accumulator of that sum.

        Raises:
            ValueError: The event at the site is not a sum of products.

        Example:
            >>> from roundscope.attention import Plan
            >>> str(Plan.preset("fa2-bf16").accumulator("PV").order)
            'ascending'
        """
        return self.accumulators[PRODUCTS.index(product_named(site))]

    def first_term(self, site: Site | str) -> Site | None:
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
        site = product_named(site)
        if site is Site.PV:
            return Site.AO if self.pv_into_o else None
        if site is Site.DP:
            return Site.DELTA if self.dp_from_delta else None
        return site if site in (Site.DV, Site.DQ, Site.DK) else None

    def product_bits(self, site: Site | str) -> int:
        """Return the most significand bits that a product in the sum at a site can have.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.

        Returns:
            The sum of the precisions of the two factors, with two exceptions. It is at least 53 if
            a factor is in blocks, or if binary32 does not hold a factor or the number that the sum
            starts from. It is 106, the bits of a product of two binary64 numbers, if the sum of the
            precisions exceeds 53. So with 24 or less, all these numbers are binary32 numbers, and
            with 53 or less, the products are exact in binary64.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> Plan.preset("fa2-bf16").product_bits(Site.S)  # two factors in BF16
            16
        """
        factors = self.factors(site)
        bits = sum(precision_of(self.event(factor)) for factor in factors)
        first = self.first_term(site)
        formats = [self[s].format for s in (*factors, *([first] if first else []))]
        if not all(f.fits_binary32 for f in formats) or any(
            self.block(factor) for factor in factors
        ):
            bits = max(bits, EXACT_PRODUCT)
        return bits if bits <= EXACT_PRODUCT else ANY_PRODUCT

    def factors(self, site: Site | str) -> tuple[Site, ...]:
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
        site = product_named(site)
        if site is Site.ROWSUM:
            return (self.row_sum_of,)
        if site is not Site.DELTA:
            other = {Site.Q: Site.QS, Site.K: Site.KS} if self.scale_roots else {}
            if self.scaled_keys and site in (Site.S_B, Site.DQ):
                other[Site.K] = Site.KC
            is_scaled = self.gradient_scale is ScaleOfGradient.OPERAND
            if (self.dp_from_delta or self.ds_apart) and site is Site.DQ:
                other[Site.DS] = Site.SDSQ if is_scaled else Site.DSQ
            elif is_scaled:
                other[Site.DS] = Site.SDS
            return tuple(other.get(factor, factor) for factor in FACTORS[site])
        if self.delta_from is DeltaFrom.P_DP:
            return Site.EXP_B, Site.DP
        # OD rounds OUT, or O, once more
        return Site.DO, (
            Site.OUT
            if self.delta_from is DeltaFrom.OUT
            and precision_of(self.event(Site.OUT)) < precision_of(self.event(Site.OD))
            else Site.OD
        )

    @property
    def is_reproducible(self) -> bool:
        """Return whether the same inputs give the same bits on every machine.

        It is False if an accumulator is native, since such a sum is added in the order that the
        device chooses.

        Example:
            >>> from roundscope.attention import Plan
            >>> plan = Plan.preset("fa2-bf16")
            >>> plan.is_reproducible, plan.changed("PV.sum=native").is_reproducible
            (True, False)
        """
        return all(a.order != "native" for a in self.accumulators)

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
            "name": self.name,
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


CHOICES = choices_of(PlanRecord)
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
    **dict.fromkeys(OF_CAP_APART, "cap_apart"),
    **dict.fromkeys(OF_NORMALIZED_LAST, "normalized_last"),
}
"""The events that only some keys have, each with the field of the plans that have it."""
_ORDINAL = {site: i for i, site in enumerate(Site)}


def ordinal(site: Site) -> int:
    """Return the position of a site in `Site`.

    A plan and a table of plans hold the rounding of the site at that position.
    """
    return _ORDINAL[site]
