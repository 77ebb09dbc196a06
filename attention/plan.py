"""`Plan`: the whole experimental condition of an attention computation, hashable and printable.

A plan gives every site a rounding and every sum of products an accumulator, and fixes the few choices in
which published kernels differ. Presets, each with its source, are in `attention.presets`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from roundscope.attention.sites import BLOCK_AXIS, FACTORS, PRODUCTS, Site
from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT
from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat, block_format
from roundscope.emu.formats.format import Format, format_named, unknown
from roundscope.emu.rounding.modes import Rounding, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator

Event = Rounding | BlockFormat  # how one site rounds


class DeltaFrom(StrEnum):
    """Where delta = rowsum(dO O) = rowsum(P dP) takes its operands: the same number in exact arithmetic, since rowsum(P) = 1."""

    OUT = "OUT"  # the rounded output, as every released kernel does
    WIDE_O = "O"  # the output before its last rounding
    P_DP = "P_DP"  # rowsum(P dP), from the recomputed probabilities
    CENTRED = "CENTRED"  # rowsum(P dP) / rowsum(P): the delta for which every row of dS = P (dP - delta) sums to 0, whatever P lost


class Exponential(StrEnum):
    """How exp(x) is computed."""

    CORRECT = "correct"  # correctly rounded to the event's format
    BASE2 = "base2"  # X = (S - m) log2 e, then 2^X: what GPU kernels do, which fold log2 e into the scale


class KeyOrder(StrEnum):
    """The order in which a query tile meets the key tiles; inside a tile keys stay ascending."""

    ASCENDING = "ascending"
    DESCENDING = "descending"  # FlashAttention-3: the last, masked tile first


@dataclass(frozen=True, slots=True, kw_only=True)
class Stabiliser:
    """The shifted maximum of arXiv 2510.04212, Algorithm 1: where several scores of a tile row share the
    maximum, m moves away from it, so that no P is 1 and no sum of P V is a sum of unrounded V.

    beta    a repeated maximum r > 0 gives m = beta r; a negative one gives m = 0. beta > 1
    window  scores closer to the maximum than this count as equal to it; None takes the gap below which
            P rounds to 1 in its format (`Format.tie_window`)

    Softmax is invariant under the shift, so the result is exact in exact arithmetic for every input. Unlike
    the released code it clamps no row sum and counts no masked score; and the shift is kept between twice the
    window plus an ulp of M (a smaller one rounds P back to 1; this also moves a maximum of 0) and half the exponent range of P
    (a larger one would underflow). docs/decisions.md says why.
    """

    beta: float = 2.0
    window: float | None = None

    def __post_init__(self) -> None:
        if not self.beta > 1.0:
            raise ValueError(f"beta={self.beta}: the shift needs beta > 1, the paper uses 2 to 8")
        if self.window is not None and not self.window >= 0.0:
            raise ValueError(f"window={self.window}: a gap between scores is 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The experimental condition.

    roundings          one Rounding per Site, in the order of Site; of a site in blocks, that of the elements
    blocks             (site, BlockFormat) of sites that round in blocks, in the order of Site; an element's seed is in roundings
    accumulators       one Accumulator per site of PRODUCTS, in that order
    pv_into_o          P V accumulates into alpha O (site O rounds the result); else PV is an event of its own
    normalise_first    P is divided by the row sum before P V (unfused attention); needs one key tile
    row_sum_of         the operand of the row sum: Site.EXP or Site.P
    delta_from         the operands of delta
    stabiliser         the shifted maximum, or None
    exp                how exp is computed, forward and backward
    key_order          the order of the key tiles in the forward

    Raises ValueError for missing sites, operands that are not among these, blocks at what is no operand of a product.
    """

    name: str
    roundings: tuple[Rounding, ...]
    accumulators: tuple[Accumulator, ...]
    pv_into_o: bool = False
    normalise_first: bool = False
    row_sum_of: Site = Site.EXP
    delta_from: DeltaFrom = DeltaFrom.OUT
    stabiliser: Stabiliser | None = None
    exp: Exponential = Exponential.CORRECT
    key_order: KeyOrder = KeyOrder.ASCENDING
    blocks: tuple[tuple[Site, BlockFormat], ...] = ()

    def __post_init__(self) -> None:
        if len(self.roundings) != len(Site):
            raise ValueError(f"roundings: {len(self.roundings)} given, a plan names all {len(Site)} sites")
        if len(self.accumulators) != len(PRODUCTS):
            raise ValueError(f"accumulators: {len(self.accumulators)} given, a plan names all {len(PRODUCTS)} products")
        if self.row_sum_of not in (Site.EXP, Site.P):
            raise ValueError(f"row_sum_of={self.row_sum_of}: the row sum adds EXP or P")
        for site, block in self.blocks:
            if site not in BLOCK_AXIS:
                raise ValueError(f"{block} at {site}: blocks need a sum to lie along; the operands of products are {' '.join(BLOCK_AXIS)}")
            if block.element != replace(self[site], seed=0):
                raise ValueError(f"roundings: {site} is in blocks of {block}, not of {self[site]}; change it by Plan.at or Plan.rounded")

    @staticmethod
    def preset(name: str) -> "Plan":
        """A published condition by name: see `attention.presets`. Raises ValueError with the nearest name."""
        from roundscope.attention.presets import preset

        return preset(name)

    def __getitem__(self, site: Site) -> Rounding:
        return self.roundings[_ORDINAL[site]]

    def block(self, site: Site) -> BlockFormat | None:
        """The block format of a site, its element without a seed; None where numbers round one by one."""
        return next((block for own, block in self.blocks if own is site), None)

    def event(self, site: Site) -> Event:
        """How a site rounds: its block format if it has one, else its rounding."""
        block = self.block(site)
        return self[site] if block is None else replace(block, element=self[site])

    def accumulator(self, site: Site) -> Accumulator:
        """How the sum of products at a site is added up."""
        return self.accumulators[PRODUCTS.index(site)]

    def at(
        self,
        site: Site | str,
        format: str | Rounding | BlockFormat,
        mode: str | RoundingMode | None = None,
        *,
        overflow: str | None = None,
        seed: int | None = None,
    ) -> "Plan":
        """The plan with one site rounded otherwise: plan.at(Site.O, "bf16", mode="stochastic"), plan.at("P", "mxfp8_e4m3").

        format  of numbers or of blocks, which lie along the sum of the first product that reads the operand (`sites.BLOCK_AXIS`)
        """
        return self.rounded({site_named(site): event_to(format, mode, overflow=overflow, seed=seed)}, _edited(self.name))

    def rounded(self, events: Mapping[Site, Event], name: str | None = None) -> "Plan":
        """The plan with some sites rounded otherwise; under its own name if no other is given."""
        roundings = tuple(_element(events[site]) if site in events else self[site] for site in Site)
        new = {**dict(self.blocks), **events}
        blocks = tuple((site, _seedless(f)) for site in Site if isinstance(f := new.get(site), BlockFormat))
        return replace(self, name=name or self.name, roundings=roundings, blocks=blocks)

    def adding(self, site: Site | str, accumulator: Accumulator) -> "Plan":
        """The plan with one sum of products added up otherwise."""
        site = site_named(site)
        if site not in PRODUCTS:
            raise ValueError(f"site={site}: not a sum of products; those are {' '.join(PRODUCTS)}")
        new = list(self.accumulators)
        new[PRODUCTS.index(site)] = accumulator
        return replace(self, name=_edited(self.name), accumulators=tuple(new))

    def changed(self, *changes: str, seed: int | None = None) -> "Plan":
        """The plan with changes in words, one after the other: the grammar of every verb (docs/grammar.md).

            Plan.preset("fa2-bf16").changed("O=bf16:stochastic", "PV.sum=hopper:bf16", "delta_from=P_DP", seed=7)

        changes  SITE=FORMAT[:MODE[:OVERFLOW]], SITE=BLOCK_FORMAT[:RULE][:MODE], SITE.sum=ACCUMULATOR,
                 mode= exp= delta_from= stabiliser= key_order= unfused= only= but= plan=; inputs, forward and
                 backward stand for their sites. A name that is given again is changed again
        seed     of every stochastic rounding, steps of sums included; None leaves those of the plan

        Raises ValueError naming the word and the repair, also for a site that the plan never reaches.
        """
        from roundscope.attention.grammar.changes import changed

        return changed(self, changes, seed)

    def seeded(self, seed: int) -> "Plan":
        """The plan with this seed in every stochastic rounding, steps of sums included."""
        own = lambda r: replace(r, seed=seed) if r.mode is RoundingMode.STOCHASTIC else r  # noqa: E731
        sums = tuple(replace(a, step=own(a.step)) for a in self.accumulators)
        return replace(self, roundings=tuple(own(r) for r in self.roundings), accumulators=sums)

    def first_term(self, site: Site) -> Site | None:
        """The event whose result a sum starts from; None where that is 0."""
        if site is Site.PV:
            return Site.AO if self.pv_into_o else None
        return site if site in (Site.DV, Site.DQ, Site.DK) else None

    def product_bits(self, site: Site) -> int:
        """The most significand bits of a product in the sum at a site, by the formats of its factors. Up to 24, the products and what the
        sum starts from are binary32 numbers; up to 53, products are exact in binary64; else ANY_PRODUCT.
        """
        factors = self._factors(site)
        bits = sum(self._bits(factor) for factor in factors)
        first = self.first_term(site)
        own = [self[s].format for s in (*factors, *([first] if first else []))]
        if not all(f.fits_binary32 for f in own) or any(self.block(factor) for factor in factors):
            bits = max(bits, EXACT_PRODUCT)
        return bits if bits <= EXACT_PRODUCT else ANY_PRODUCT

    def _factors(self, site: Site) -> tuple[Site, ...]:
        """The events whose results are multiplied at a site; ones have no event."""
        if site is Site.ROWSUM:
            return (self.row_sum_of,)
        if site is not Site.DELTA:
            return FACTORS[site]
        if self.delta_from is DeltaFrom.P_DP:
            return Site.EXP_B, Site.DP
        # OD rounds OUT, or O, once more
        return Site.DO, (Site.OUT if self.delta_from is DeltaFrom.OUT and self._bits(Site.OUT) < self._bits(Site.OD) else Site.OD)

    def _bits(self, site: Site) -> int:
        block = self.block(site)
        return self[site].format.precision if block is None else _precision(block)

    @property
    def is_reproducible(self) -> bool:
        """False if an accumulator is native: the device's own order of addition."""
        return all(a.order != "native" for a in self.accumulators)

    def describe(self) -> dict[str, object]:
        """The plan as plain data, for JSON."""
        return {
            "name": self.name,
            "roundings": {str(s): str(self.event(s)) for s in Site},
            "accumulators": {str(s): str(self.accumulator(s)) for s in PRODUCTS},
            "pv_into_o": self.pv_into_o,
            "normalise_first": self.normalise_first,
            "row_sum_of": str(self.row_sum_of),
            "delta_from": str(self.delta_from),
            "stabiliser": None if self.stabiliser is None else {"beta": self.stabiliser.beta, "window": self.stabiliser.window},
            "exp": str(self.exp),
            "key_order": str(self.key_order),
        }


def check_factors(plan: Plan) -> None:
    """Raises ValueError where a product runs on a tensor core that cannot read its factors."""
    for site in PRODUCTS:
        kept = plan.accumulator(site).alignment
        if kept is None:
            continue
        if site not in FACTORS:
            raise ValueError(
                f"accumulator of {site}: no matrix unit computes it; use a preset@architecture, or give it to {' '.join(FACTORS)}"
            )
        for factor in FACTORS[site]:
            if plan.block(factor) is not None or not kept.operand.holds(plan[factor].format):
                raise ValueError(
                    f"accumulator of {site}: a tensor core of {kept.operand.name} cannot read {factor} in {plan.event(factor)}; "
                    f"round {factor} to {kept.operand.name}, or give {site} another accumulator"
                )


_ORDINAL = {site: i for i, site in enumerate(Site)}


def ordinal(site: Site) -> int:
    """The position of a site in Site: where a plan, and a table of plans, has its rounding."""
    return _ORDINAL[site]


def site_named(name: Site | str) -> Site:
    """The site of that name, in any case. Raises ValueError with the nearest name."""
    try:
        return Site[str(name).upper()]
    except KeyError:
        raise ValueError(unknown("site", name, Site)) from None


def event_to(
    format: str | Rounding | BlockFormat, mode: str | RoundingMode | None = None, *, overflow: str | None = None, seed: int | None = None
) -> Event:
    """A `BlockFormat` where the format is one or its name is, else a `Rounding`; with the changes. Raises ValueError for unknown names."""
    if isinstance(format, BlockFormat) or (isinstance(format, str) and format in BLOCK_NAMED):
        return block_format(format, mode, overflow=overflow, seed=seed)
    return rounding(_format(format) if isinstance(format, str) else format, mode, overflow=overflow, seed=seed)


def _format(name: str) -> Format:
    try:
        return format_named(name)
    except ValueError as error:
        raise ValueError(f"{error}; in blocks: {' '.join(BLOCK_NAMED)}") from None


def _element(event: Event) -> Rounding:
    return event.element if isinstance(event, BlockFormat) else event


def _seedless(block: BlockFormat) -> BlockFormat:
    return replace(block, element=replace(block.element, seed=0))


def _precision(block: BlockFormat) -> int:
    """Significand bits of T X P."""
    scale = 0 if block.power_of_two else block.scale.precision
    return block.element.format.precision + scale + (24 if block.tensor else 0)


def _edited(name: str) -> str:
    return name if name.endswith("*") else f"{name}*"
