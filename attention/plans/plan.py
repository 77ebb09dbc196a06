"""`Plan`: the whole experimental condition of an attention computation, hashable and printable.

A plan gives every site a rounding and every sum of products an accumulator, and fixes the few choices in
which published kernels differ. Presets, each with its source, are in `attention.plans.presets`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from roundscope.attention.plans.checks import events_given, product_named
from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    DeltaFrom,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    Logarithm,
    Polynomial,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
    Stabiliser,
    Tanh,
)
from roundscope.attention.sites import BLOCK_AXIS, FACTORS, OF_KERNELS, PRODUCTS, Site, site_named
from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT
from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat, block_format
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.rounding.modes import Rounding, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator, check_accumulator

Event = Rounding | BlockFormat  # how one site rounds


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
    log2_e             where log2 e enters the scores
    fused_exponent     X is one multiply-add: its product with scale, c or log2 e is not rounded before m is taken away
    unfused_if_cut     but not in tiles that causality or a window cuts: there the product rounds, as it does in flex attention
    fused_without_mask fused_exponent, but only in calls that have no mask and are not causal
    row_sum            how threads add up a row
    reciprocal         how 1 / l is computed
    exponent_again     how the backward gets P again
    ds_from_p          dS multiplies P_B, the cast one, not EXP_B
    log                how ln l is computed
    query_order        the order of the tiles in dK, dV and dQ
    gradients_apart    whose parts of a tile are sums of their own, DQP, DKP and DVP, which DQ, DK and DV add
    scale_roots        q and k are multiplied with the root of the scale, QS and KS, and so are their gradients; the scores with nothing
    scaled_keys        the backward multiplies K with scale log2 e and rounds it, KC, for S_B and dQ, which ln 2 multiplies at the end
    dp_from_delta      of dQ, the sum dO v begins at -delta, DPQ, and dS is another one, DSQ; of dK, delta is taken from DP as ever
    split_tiles         so many key tiles are a softmax of their own, whose results are combined, SW and SO; 0: all are one
    flushed_tiles       O is flushed every so many key tiles into a sum of its own, OA, in binary32 unless OA rounds otherwise; 0: never
    offset             P is 2^offset exp(S - m), in X, in EXP, in the row sum and in O: the cast of P has it, L has not
    polynomial         the columns in which EXP is computed by a polynomial, or None
    softcap            c > 0: scores are c tanh(scale S / c), SS, CAP and TANH, as in Gemma 2; 0: they are scale S
    capped_by, tanh    how a softcap divides, in plans and calls that have one, and how its tanh is computed
    window             query t sees keys t - window < s <= t of a causal call, |t - s| < window of any other; 0: all
    sinks              how sinks enter, in calls that have them
    stale_maximum      m stays where it would grow by so many powers of two (of e: log2_e=none) or fewer; 0: m is the maximum
    lse_base2          L is log2 of the row sum, in base 2: m + log2 l
    first_tile_apart   with kept_state: of several query tiles, the first divides by l as it is, not as memory keeps it
    kept_state         code that keeps m and l in memory: alpha and L have m as it is kept, MS; 1 / l and L have l as it is kept, LANES
    delta_products     the products dO O round, DOO, before delta adds them
    saved_p            the backward reads P as the forward had it, not exp(S - L); needs normalise_first
    score_gradient     how dS is computed
    maximum_gradient   m has a gradient too: the first key that has m gives up the sum of dS, DMAX and DSM; goes with saved_p
    gradient_scale     where the scale enters dQ and dK
    registers          casts are of binary32 registers, two roundings: OI before OUT, PD before DS, SDQ and SDK before DQ_OUT and DK_OUT

    Raises ValueError for missing sites, operands that are not among these, blocks at what is no operand of a product,
    log2 e in an exponential of base e.
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
    log2_e: Log2E = Log2E.NONE
    fused_exponent: bool = False
    unfused_if_cut: bool = False
    fused_without_mask: bool = False
    row_sum: RowSum = RowSum.PLAIN
    reciprocal: Reciprocal = Reciprocal.CORRECT
    exponent_again: BackwardExponent = BackwardExponent.FORWARD
    ds_from_p: bool = False
    log: Logarithm = Logarithm.CORRECT
    registers: bool = False
    query_order: QueryOrder = QueryOrder.ASCENDING
    gradients_apart: GradientsApart = GradientsApart.NONE
    scale_roots: bool = False
    dp_from_delta: bool = False
    split_tiles: int = 0
    flushed_tiles: int = 0
    stale_maximum: float = 0.0
    offset: int = 0
    polynomial: Polynomial | None = None
    softcap: float = 0.0
    capped_by: CappedBy = CappedBy.QUOTIENT
    tanh: Tanh = Tanh.CORRECT
    window: int = 0
    sinks: Sinks = Sinks.NONE
    lse_base2: bool = False
    kept_state: bool = False
    first_tile_apart: bool = False
    delta_products: bool = False
    saved_p: bool = False
    maximum_gradient: bool = False
    score_gradient: ScoreGradient = ScoreGradient.DIFFERENCE
    gradient_scale: ScaleOfGradient = ScaleOfGradient.RESULT
    scaled_keys: bool = False

    def __post_init__(self) -> None:
        if len(self.roundings) != len(Site):
            raise ValueError(f"roundings: {len(self.roundings)} given, a plan names all {len(Site)} sites")
        if len(self.accumulators) != len(PRODUCTS):
            raise ValueError(f"accumulators: {len(self.accumulators)} given, a plan names all {len(PRODUCTS)} products")
        if self.row_sum_of not in (Site.EXP, Site.P):
            raise ValueError(f"row_sum_of={self.row_sum_of}: the row sum adds EXP or P")
        if self.log2_e is not Log2E.NONE and self.exp not in (Exponential.BASE2, Exponential.EX2):
            raise ValueError(f"log2_e={self.log2_e}: goes with exp=base2 or exp=ex2, here exp={self.exp}")
        if self.normalise_first and self.row_sum in (RowSum.LANES, RowSum.TILE_LANES):
            told = "its lanes are kept from tile to tile, and a softmax of whole rows has one"
            raise ValueError(f"row_sum={self.row_sum}: {told}; use row_sum=plain before unfused=true")
        if self.saved_p and not self.normalise_first:
            raise ValueError("saved_p=True: only a softmax of whole rows keeps P; it goes with normalise_first")
        if self.score_gradient is ScoreGradient.QUOTIENT and not (self.saved_p and self.delta_from is DeltaFrom.P_DP):
            raise ValueError("score_gradient=quotient: is of EXP and l as the forward had them; it goes with saved_p and delta_from=P_DP")
        if self.maximum_gradient and not self.saved_p:
            raise ValueError("maximum_gradient=True: the sum of dS is of whole rows, whose maximum is known; it goes with saved_p")
        if self.scaled_keys and not (self.lse_base2 and self.log2_e is Log2E.SCALE and self.gradient_scale is ScaleOfGradient.RESULT):
            raise ValueError("scaled_keys=True: S_B is in base 2, as L must be; it needs log2_e=scale, lse_base2, gradient_scale=result")
        if self.first_tile_apart and not self.kept_state:
            raise ValueError("first_tile_apart=True: only a row sum that is kept in memory is another one there; it goes with kept_state")
        if self.first_tile_apart and self.row_sum in (RowSum.LANES, RowSum.TILE_LANES):
            raise ValueError(f"first_tile_apart=True: lanes are no row sum yet, and row_sum={self.row_sum} has them; use row_sum=plain")
        if not 0.0 <= self.stale_maximum < 64.0 or (self.stale_maximum and self.log2_e is Log2E.SCORES):
            told = "a number of powers of two, of e with log2_e=none, 0 or more and below 64; log2_e=scores has none"
            raise ValueError(f"stale_maximum={self.stale_maximum}: {told}")
        if self.offset and (self.log2_e is Log2E.NONE or not 0 <= self.offset < 64):
            raise ValueError(
                f"offset={self.offset}: a whole number from 0 to 63, of powers of two; it goes with log2_e=scale, maximum or scores"
            )
        if self.polynomial is not None and self.exp not in (Exponential.BASE2, Exponential.EX2):
            raise ValueError(
                f"polynomial={self.polynomial}: takes the place of 2^x; it goes with exp=base2 or exp=ex2, here exp={self.exp}"
            )
        check_served(self)
        is_whole = self.normalise_first or self.lse_base2 or self.key_order is KeyOrder.MASKED_FIRST
        if self.split_tiles < 0 or (self.split_tiles and is_whole):
            told = "goes with a softmax in tiles, an L in base e, and key tiles that go up or down"
            raise ValueError(f"split_tiles={self.split_tiles}: a number of key tiles, 0 for no split; it {told}")
        if self.flushed_tiles < 0 or (self.flushed_tiles and (self.normalise_first or self.split_tiles)):
            told = "a number of key tiles, 0 for never; it goes with a softmax in tiles, whose keys are not split"
            raise ValueError(f"flushed_tiles={self.flushed_tiles}: {told}")
        if self.stabiliser is not None and self.log2_e is not Log2E.NONE:
            raise ValueError(f"stabiliser: its shift is of scores in base e; use log2_e=none, here log2_e={self.log2_e}")
        for site, block in self.blocks:
            if site not in BLOCK_AXIS:
                raise ValueError(f"{block} at {site}: blocks need a sum to lie along; the operands of products are {' '.join(BLOCK_AXIS)}")
            if block.element != replace(self[site], seed=0):
                raise ValueError(f"roundings: {site} is in blocks of {block}, not of {self[site]}; change it by Plan.at or Plan.rounded")

    @staticmethod
    def preset(name: str) -> "Plan":
        """A published condition by name: see `attention.plans.presets`. Raises ValueError with the nearest name."""
        from roundscope.attention.plans.presets import preset

        return preset(name)

    def __getitem__(self, site: Site) -> Rounding:
        return self.roundings[_ORDINAL[site if site in _ORDINAL else site_named(site)]]

    def block(self, site: Site) -> BlockFormat | None:
        """The block format of a site, its element without a seed; None where numbers round one by one."""
        return next((block for own, block in self.blocks if own is site), None)

    def event(self, site: Site) -> Event:
        """How a site rounds: its block format if it has one, else its rounding."""
        block = self.block(site)
        return self[site] if block is None else replace(block, element=self[site])

    def accumulator(self, site: Site) -> Accumulator:
        """How the sum of products at a site is added up."""
        return self.accumulators[PRODUCTS.index(product_named(site))]

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
        events = events_given(events)
        roundings = tuple(_element(events[site]) if site in events else self[site] for site in Site)
        new = {**dict(self.blocks), **events}
        blocks = tuple((site, _seedless(f)) for site in Site if isinstance(f := new.get(site), BlockFormat))
        return replace(self, name=name or self.name, roundings=roundings, blocks=blocks)

    def adding(self, site: Site | str, accumulator: Accumulator) -> "Plan":
        """The plan with one sum of products added up otherwise."""
        check_accumulator(accumulator)
        new = list(self.accumulators)
        new[PRODUCTS.index(product_named(site))] = accumulator
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
        if site is Site.DP:
            return Site.DELTA if self.dp_from_delta else None
        return site if site in (Site.DV, Site.DQ, Site.DK) else None

    def product_bits(self, site: Site) -> int:
        """The most significand bits of a product in the sum at a site, by the formats of its factors. Up to 24, the products and what the
        sum starts from are binary32 numbers; up to 53, products are exact in binary64; else ANY_PRODUCT.
        """
        factors = self.factors(site)
        bits = sum(self._bits(factor) for factor in factors)
        first = self.first_term(site)
        own = [self[s].format for s in (*factors, *([first] if first else []))]
        if not all(f.fits_binary32 for f in own) or any(self.block(factor) for factor in factors):
            bits = max(bits, EXACT_PRODUCT)
        return bits if bits <= EXACT_PRODUCT else ANY_PRODUCT

    def factors(self, site: Site) -> tuple[Site, ...]:
        """The events whose results are multiplied at a site; ones have no event."""
        if site is Site.ROWSUM:
            return (self.row_sum_of,)
        if site is not Site.DELTA:
            own = {Site.Q: Site.QS, Site.K: Site.KS} if self.scale_roots else {}
            if self.scaled_keys and site in (Site.S_B, Site.DQ):
                own[Site.K] = Site.KC
            if self.dp_from_delta and site is Site.DQ:
                own[Site.DS] = Site.DSQ
            return tuple(own.get(factor, factor) for factor in FACTORS[site])
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
        of_kernels = {name: getattr(self, name) for name in OF_KERNEL}
        of_kernels = {name: x if isinstance(x, int) else str(x) for name, x in of_kernels.items()}
        own = self.is_of_kernel
        return {
            "name": self.name,
            "roundings": {str(s): str(self.event(s)) for s in Site if own or s not in OF_KERNELS},
            "accumulators": {str(s): str(self.accumulator(s)) for s in PRODUCTS},
            "pv_into_o": self.pv_into_o,
            "normalise_first": self.normalise_first,
            "row_sum_of": str(self.row_sum_of),
            "delta_from": str(self.delta_from),
            "stabiliser": None if self.stabiliser is None else {"beta": self.stabiliser.beta, "window": self.stabiliser.window},
            "exp": str(self.exp),
            "key_order": str(self.key_order),
        } | (of_kernels if own else {})

    @property
    def is_of_kernel(self) -> bool:
        """Whether it has steps that only real kernels have: log2 e in the scores, lanes, registers and what stands beside them."""
        return any(getattr(self, name) != _DEFAULTS[name] for name in OF_KERNEL)


def check_served(plan: Plan) -> None:
    """Raises ValueError for a softcap, a window or a way of sinks that is none, or that does not go with the rest of the plan."""
    if not 0.0 <= plan.softcap < math.inf:
        raise ValueError(f"softcap={plan.softcap}: a number above 0, such as 50.0, that bounds the scores; 0 for no bound")
    if plan.softcap and plan.dp_from_delta:
        raise ValueError(f"softcap={plan.softcap:g}: a second dS, of dp_from_delta=true, knows no softcap; use dp_from_delta=false")
    if isinstance(plan.window, bool) or plan.window < 0:
        raise ValueError(f"window={plan.window}: how many keys a query sees, its own included, such as 128; 0 for all")
    if plan.sinks is Sinks.NONE:
        return
    for name in ("split_tiles", "kept_state", "lse_base2"):
        if getattr(plan, name):
            raise ValueError(f"sinks={plan.sinks}: {plan.name} has {name}={getattr(plan, name)}, which knows no sinks; change it")
    if plan.delta_from is DeltaFrom.CENTRED:
        raise ValueError(f"sinks={plan.sinks}: rows of P do not add up to 1, which delta_from=CENTRED expects; use OUT, O or P_DP")
    if plan.sinks is Sinks.KEY and not plan.normalise_first:
        raise ValueError("sinks=key: of tiles, each adds up its own keys; it goes with a softmax of whole rows; use sinks=first or last")
    if plan.sinks is Sinks.LAST and plan.normalise_first:
        raise ValueError("sinks=last: P of a softmax of whole rows is divided before any later key; use sinks=key or sinks=first")


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
        for factor in plan.factors(site):
            if plan.block(factor) is not None or not kept.operand.holds(plan[factor].format):
                raise ValueError(
                    f"accumulator of {site}: a tensor core of {kept.operand.name} cannot read {factor} in {plan.event(factor)}; "
                    f"round {factor} to {kept.operand.name}, or give {site} another accumulator"
                )


OF_KERNEL = (
    "log2_e", "fused_exponent", "unfused_if_cut", "fused_without_mask",
    "row_sum", "log", "reciprocal", "registers", "query_order", "gradients_apart", "lse_base2", "kept_state",
    "delta_products", "saved_p", "exponent_again",
    "ds_from_p", "score_gradient", "maximum_gradient", "gradient_scale", "scale_roots", "scaled_keys", "dp_from_delta", "split_tiles",
    "flushed_tiles", "first_tile_apart", "stale_maximum", "offset", "polynomial", "softcap", "capped_by", "tanh", "window", "sinks",
)  # fmt: skip
"""Fields of a plan in which only the twins of real kernels differ from the presets."""

_DEFAULTS = {f.name: f.default for f in fields(Plan)}
_ORDINAL = {site: i for i, site in enumerate(Site)}


def ordinal(site: Site) -> int:
    """The position of a site in Site: where a plan, and a table of plans, has its rounding."""
    return _ORDINAL[site]


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
