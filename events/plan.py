"""`BasePlan`: the arithmetic of one operation, a rounding for each site and an accumulator for each
sum of products.

An operation declares its own plan as a subclass, with its sites, its sums and its choices
(`events.choice`). Here is also how plans are made of others, and the checks of plans. A check
raises a TypeError or a ValueError whose message names the field or argument, its value and how to
fix it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT
from roundscope.emu.blocks.format import BlockFormat, in_words
from roundscope.emu.numbers import check_seed
from roundscope.emu.roundings.modes import BF16, FP16, Rounding, RoundingMode
from roundscope.emu.shown import shown
from roundscope.emu.sums.accumulator import Accumulator, check_accumulator
from roundscope.events.choice import Choice, choices_of
from roundscope.events.event import Event, event_to, precision_of
from roundscope.events.readers import READERS
from roundscope.events.sites import SiteBase


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePlan:
    """The arithmetic of one operation; a subclass names its sites.

    Attributes:
        SITES: The sites of the operation.
        PRODUCTS: The sites that are sums of products; a plan has an accumulator for each.
        FACTORS: The products that matrix units compute, and the events whose results are
            multiplied in each.
        BLOCK_AXIS: The operands that may round in blocks, and the axis along which the blocks lie,
            that over which the first product sums that reads the operand.

    Args:
        name: Name of the plan in traces and messages. It has no part in the arithmetic.
        roundings: One `Rounding` for each site, in their order. For a site that rounds in blocks,
            this is the rounding of the elements. The seed of such a site is kept only here; the
            block format in `blocks` has seed 0.
        accumulators: One `Accumulator` for each member of `PRODUCTS`, in that order.
        blocks: Pairs (site, `BlockFormat`) for the sites that round in blocks, in the order of the
            sites. Default (): none.

    Raises:
        ValueError: A site or product is missing, or a field has a value that is not allowed. The
            message names the field and how to fix it.
    """

    SITES: ClassVar[type[SiteBase]]
    PRODUCTS: ClassVar[tuple[SiteBase, ...]] = ()
    FACTORS: ClassVar[Mapping[Any, tuple[Any, ...]]] = {}
    BLOCK_AXIS: ClassVar[Mapping[Any, int]] = {}

    name: str
    roundings: tuple[Rounding, ...]
    accumulators: tuple[Accumulator, ...] = ()
    blocks: tuple[tuple[Any, BlockFormat], ...] = ()

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_choices(self)
        _check_blocks(self)

    @classmethod
    def choices(cls) -> dict[str, Choice]:
        """Return the choices of the operation by name, in the order in which they are declared."""
        own: Any = cls
        return _choices(own)

    @classmethod
    def everywhere(cls, name: str, r: Rounding) -> Self:
        """Return the plan in which every event and every step of a sum rounds alike."""
        sums = (Accumulator(step=r),) * len(cls.PRODUCTS)
        return cls(name=name, roundings=(r,) * len(cls.SITES), accumulators=sums)

    def __getitem__(self, site: SiteBase | str) -> Rounding:
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
        return self.roundings[self.SITES.named(site).ordinal]

    def block(self, site: SiteBase | str) -> BlockFormat | None:
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
        site = self.SITES.named(site)
        return next((block for blocked, block in self.blocks if blocked is site), None)

    def event(self, site: SiteBase | str) -> Event:
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

    def accumulator(self, site: SiteBase | str) -> Accumulator:
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
        return self.accumulators[self.PRODUCTS.index(self._product(site))]

    def factors(self, site: SiteBase | str) -> tuple[Any, ...]:
        """Return the events whose results are multiplied at a site.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.

        Returns:
            Two sites, or one where the other factor is 1.
        """
        return self.FACTORS[self._product(site)]

    def first_term(self, site: SiteBase | str) -> Any:
        """Return the event whose result the sum at a site starts from, or None if it starts from 0.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.
        """
        self._product(site)
        return None

    def product_bits(self, site: SiteBase | str) -> int:
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

    def core_reads(self, product: Any, factor: Any) -> bool:
        """Return whether the tensor core of a product may read a factor in blocks."""
        return False

    @property
    def multiplies_by_reciprocal(self) -> bool:
        """Return True if elements of blocks are multiplied by 1 / scale, False if divided by it."""
        return False

    def at(
        self,
        site: SiteBase | str,
        format: str | Rounding | BlockFormat,
        mode: str | RoundingMode | None = None,
        *,
        overflow: str | None = None,
        seed: int | None = None,
    ) -> Self:
        """Return the plan with another rounding at one site.

        Args:
            site: A member of `Site`, or its name in upper or lower case.
            format: A format of numbers ("bf16", "e4m3fn", "e8m3") or of blocks ("mxfp8_e4m3"), a
                rounding in words ("bf16:toward-zero"), a `Rounding` or a `BlockFormat`. Blocks lie
                along the axis over which the first product that reads the operand sums
                (`sites.BLOCK_AXIS`).
            mode: A `RoundingMode` or its name. Default: the mode of `format`, or ties-to-even if
                `format` has none.
            overflow: "inf", "nan" or "saturate". Default: what `format` says, or the usual overflow
                of the format.
            seed: Seed of stochastic rounding, from 0 to 2^32 - 1. Default: the seed of `format`, or
                0 if it has none.

        Returns:
            The new plan, whose name ends in the change. This plan is not changed.

        Raises:
            ValueError: A name is unknown, or `format` is a block format and the site is not an
                operand of a product.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> plan = Plan.preset("fa2-bf16").at(Site.O, "bf16", mode="toward-zero")
            >>> plan.name, str(plan[Site.O])
            ('fa2-bf16; O=bf16:toward-zero', 'bf16:toward-zero')
        """
        site = self.SITES.named(site)
        event = event_to(format, mode, overflow=overflow, seed=seed)
        return self.rounded(
            {site: event},
            renamed(self.name, f"{site}={_spelled(event)}"),
        )

    def rounded(self, events: Mapping[Any, Event], name: str | None = None) -> Self:
        """Return the plan with other roundings at some sites.

        Args:
            events: The new `Rounding` or `BlockFormat` of each site that changes. A key may also be
                the name of a site.
            name: Name of the new plan; None keeps the name of this one.

        Returns:
            The new plan. This plan is not changed.

        Raises:
            TypeError: `events` is not a mapping, or a value is neither a `Rounding` nor a
                `BlockFormat`.
            ValueError: A site is unknown, or a `BlockFormat` is given for a site that is not an
                operand of a product.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> from roundscope.emu import rounding
            >>> bf16 = rounding("bf16")
            >>> plan = Plan.preset("fp32").rounded({Site.P: bf16, Site.P_B: bf16}, "cast P")
            >>> plan.name, str(plan[Site.P_B])
            ('cast P', 'bf16')
        """
        events = _events_given(self.SITES, events)
        new_roundings = list(self.roundings)
        for site, event in events.items():
            own = event.element if isinstance(event, BlockFormat) else event
            new_roundings[site.ordinal] = own
        roundings, blocks = tuple(new_roundings), self.blocks
        if blocks or any(isinstance(event, BlockFormat) for event in events.values()):
            new = {**dict(blocks), **events}
            blocks = tuple(
                (site, replace(f, element=replace(f.element, seed=0)))
                for site in self.SITES
                if isinstance(f := new.get(site), BlockFormat)
            )
        return replace(self, name=name or self.name, roundings=roundings, blocks=blocks)

    def adding(self, site: SiteBase | str, accumulator: Accumulator) -> Self:
        """Return the plan with another accumulator for one sum of products.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.
            accumulator: How the products are added.

        Returns:
            The new plan, whose name ends in the change.

        Raises:
            TypeError: `accumulator` is not an `Accumulator`.
            ValueError: The event at the site is not a sum of products.

        Example:
            >>> from roundscope.attention import Plan
            >>> from roundscope.emu import Accumulator
            >>> plan = Plan.preset("fa2-bf16").adding("PV", Accumulator(order="pairwise"))
            >>> str(plan.accumulator("PV").order)
            'pairwise'
        """
        check_accumulator(accumulator)
        new = list(self.accumulators)
        site = self._product(site)
        new[self.PRODUCTS.index(site)] = accumulator
        words = READERS["accumulator words"](accumulator)
        name = renamed(self.name, f"{site}.sum={words}")
        return replace(self, name=name, accumulators=tuple(new))

    def changed(self, *changes: str, seed: int | None = None) -> Self:
        """Return the plan with changes given in words (docs/reference/grammar.md), as on the
        command line.

        Args:
            changes: Changes, which are applied from left to right. One string may hold several,
                separated by blanks. SITE=FORMAT[:MODE[:OVERFLOW]] and
                SITE=BLOCK_FORMAT[:RULE][:MODE] set the rounding of a site; in place of SITE, the
                words inputs, forward and backward mean all sites of that stage.
                SITE.sum=ACCUMULATOR sets the accumulator of a sum. The words mode= exp= delta_from=
                stabilizer= key_order= unfused= only= but= plan= and the others of
                docs/reference/grammar.md change everything else.
            seed: Seed of every stochastic rounding, including the steps of sums, from 0 to
                2^32 - 1. None keeps the seeds of the plan.

        Returns:
            The new plan. Its name is that of this plan, a semicolon and the words of all changes
            but the seed; of changes of the same thing, the last one.

        Raises:
            ValueError: A word is unknown, or names a site that the plan never reaches. The message
                names the word and how to fix it.
            TypeError: A change is not a string.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> plan = Plan.preset("fa2-bf16").changed(
            ...     "O=bf16:stochastic PV.sum=hopper:bf16", "delta_from=P_DP", seed=7
            ... )
            >>> str(plan[Site.O].mode), plan[Site.O].seed, str(plan.delta_from)
            ('stochastic', 7, 'P_DP')
            >>> plan.name
            'fa2-bf16; O=bf16:stochastic PV.sum=hopper:bf16 delta_from=P_DP'
        """
        plan: Self = READERS["changes"](self, changes, seed)
        return plan

    def seeded(self, seed: int) -> Self:
        """Return the plan with one seed in every stochastic rounding, including the steps of sums.

        Args:
            seed: A whole number from 0 to 2^32 - 1.

        Returns:
            The new plan, under the same name.

        Raises:
            ValueError: The seed is out of its range.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> plan = Plan.preset("fp32").at("O", "bf16", "stochastic").seeded(3)
            >>> plan[Site.O].seed, plan[Site.P].seed
            (3, 0)
        """
        check_seed("seed", seed)

        def reseeded(r: Rounding) -> Rounding:
            return replace(r, seed=seed) if r.mode is RoundingMode.STOCHASTIC else r

        sums = tuple(replace(a, step=reseeded(a.step)) for a in self.accumulators)
        return replace(self, roundings=tuple(map(reseeded, self.roundings)), accumulators=sums)

    def _product(self, site: SiteBase | str) -> Any:
        """Return the site of that name, whose event must be a sum of products.

        Raises:
            ValueError: The name is not a site, or the site is not in `PRODUCTS`.
        """
        site = self.SITES.named(site)
        if site not in self.PRODUCTS:
            known = " ".join(self.PRODUCTS)
            raise ValueError(f"site={site}: not a sum of products; those are {known}")
        return site


P = TypeVar("P", bound=BasePlan)


def half(plan: P) -> P:
    """Return a plan with FP16 in place of BF16 everywhere, on tensor cores of FP16.

    Modes of rounding stay; block formats with BF16 elements do too.
    """
    halved = plan.rounded(
        {
            site: replace(plan[site], format=FP16.format)
            for site in plan.SITES
            if plan.block(site) is None and plan[site].format == BF16.format
        }
    )
    for site in plan.FACTORS:
        kept = halved.accumulator(site)
        if kept.alignment is not None and kept.alignment.operand.name == "bf16":
            core = replace(Accumulator.tensor_core("hopper", "fp16"), chunk=kept.chunk)
            halved = halved.adding(site, core)
    return replace(halved, name=plan.name)


def _check_lengths(plan: BasePlan) -> None:
    """Raise ValueError unless every site has a rounding and every product an accumulator."""
    if len(plan.roundings) != len(plan.SITES):
        raise ValueError(
            f"roundings: {len(plan.roundings)} given, a plan names all {len(plan.SITES)} sites"
        )
    if len(plan.accumulators) != len(plan.PRODUCTS):
        raise ValueError(
            f"accumulators: {len(plan.accumulators)} given, a plan names all {len(plan.PRODUCTS)}"
            " products"
        )


def _check_choices(plan: BasePlan) -> None:
    """Raise ValueError for a choice that the rest of the plan does not allow."""
    for name, own in plan.choices().items():
        value = getattr(plan, name)
        if own.refused is None or (value == own.default and type(value) is type(own.default)):
            continue
        if told := own.refused(plan):
            raise ValueError(f"{name}={value}: {told}")


def _check_blocks(plan: BasePlan) -> None:
    """Raise ValueError for blocks at a site that is not an operand, or that contradict its
    rounding.
    """
    for site, block in plan.blocks:
        if site not in plan.BLOCK_AXIS:
            raise ValueError(
                f"{block} at {site}: blocks need a sum to lie along; the operands of products"
                f" are {' '.join(plan.BLOCK_AXIS)}"
            )
        if block.element != replace(plan[site], seed=0):
            raise ValueError(
                f"roundings: {site} is in blocks of {block}, not of {plan[site]}; change it by"
                " Plan.at or Plan.rounded"
            )


def check_factors(plan: BasePlan) -> None:
    """Raise ValueError where a product runs on a tensor core that cannot read its factors."""
    for site in plan.PRODUCTS:
        kept = plan.accumulator(site).alignment
        if kept is None:
            continue
        if site not in plan.FACTORS:
            raise ValueError(
                f"accumulator of {site}: no matrix unit computes it; use a preset@architecture, or"
                f" give it to {' '.join(plan.FACTORS)}"
            )
        for factor, operand in zip(plan.factors(site), kept.operands, strict=False):
            fits = (
                plan.core_reads(site, factor)
                if plan.block(factor) is not None
                else operand.holds(plan[factor].format)
            )
            if not fits:
                raise ValueError(
                    f"accumulator of {site}: a tensor core of {kept.factors} cannot read"
                    f" {factor} in {plan.event(factor)}; round {factor} to {operand.name}, or"
                    f" give {site} another accumulator"
                )


def _events_given(sites: type[SiteBase], events: Mapping[Any, Event]) -> dict[Any, Event]:
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
    by_site = {sites.named(site): event for site, event in events.items()}
    for site, event in by_site.items():
        if not isinstance(event, (Rounding, BlockFormat)):
            raise TypeError(
                f"events: {site}={shown(event)}: give a rounding, such as rounding('bf16'), or use"
                " Plan.at, which takes names"
            )
    return by_site


def renamed(name: str, *words: str) -> str:
    """Return the name of a plan after changes in words WHAT=VALUE: NAME; WHAT=VALUE ...

    A word takes the place of an earlier one of the same WHAT.

    Example:
        >>> renamed(renamed("fa2-bf16", "O=fp16", "P=fp32"), "O=bf16")
        'fa2-bf16; P=fp32 O=bf16'
    """
    base, _, before = name.partition("; ")
    new = {word.partition("=")[0] for word in words}
    kept = [word for word in before.split() if word.partition("=")[0] not in new]
    return f"{base}; {' '.join([*kept, *words])}"


def base_name(name: str) -> str:
    """Return the name of the plan that the one of this name was changed from."""
    return name.partition("; ")[0]


def stored_name(name: str) -> str:
    """Return the name under which results store a plan: one with changes ends in a star there."""
    base = base_name(name)
    return base if base == name else f"{base}*"


def _spelled(event: Event) -> str:
    return in_words(event) if isinstance(event, BlockFormat) else str(event)


@cache
def _choices(cls: Any) -> dict[str, Choice]:
    return choices_of(cls)
