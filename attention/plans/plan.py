"""`Plan`: the whole arithmetic of one attention computation, as a hashable record.

A site is a named place of the algorithm where a result is rounded, and each rounding there is an
event. A plan gives every site a rounding and every sum of products an accumulator. It also fixes
the few further choices in which published kernels differ. The checks of a plan are in
`attention.plans.checks`, the values of its choices in `attention.plans.choices`, and published
plans, each with its source, in `attention.plans.presets` and `attention.plans.twins`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from roundscope.attention.plans.checks import check_plan, events_given, product_named
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
    Stabilizer,
    Tanh,
)
from roundscope.attention.sites import FACTORS, OF_KERNELS, PRODUCTS, Site, site_named
from roundscope.emu.backends.ops import ANY_PRODUCT, EXACT_PRODUCT
from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat, block_format
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.numbers import check_seed
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator, check_accumulator

Event = Rounding | BlockFormat
"""How one site rounds: each number by itself, or in blocks that share a scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The arithmetic of an attention computation: one rounding per site, one accumulator per sum.

    A plan is immutable, hashable and picklable, so it can be a dictionary key or a static argument
    of `jax.jit`. Start from a published plan (`Plan.preset`) and derive others with `at`,
    `rounded`, `adding`, `changed`, `seeded` or `dataclasses.replace`.

    Names in capitals, such as EXP, are sites; `Site` says what each one rounds. The entries below
    use these letters:

    - S are the scores Q K^T, and "scale" is the factor that attention multiplies them by.
    - m is the running maximum of a row, and l is its running sum of exponentials.
    - alpha = exp(m_old - m) rescales l and O when m grows from m_old to m.
    - X is the exponent of EXP, and P is EXP after its cast to the operand of P V.
    - O is the output before the division by l.
    - L is the logarithm of the row sum, m + ln l.
    - delta is the sum over the features of dO times O, elementwise.
    - c is scale times log2 e, rounded to binary32.

    Where an entry names a preset or twin as its source, `attention.plans.presets` or
    `attention.plans.twins` cites the code or the paper.

    Args:
        name: Name of the plan in traces and messages. It has no part in the arithmetic.
        roundings: One `Rounding` for each member of `Site`, in that order. For a site that rounds
            in blocks, this is the rounding of the elements. The seed of such a site is kept only
            here; the block format in `blocks` has seed 0.
        accumulators: One `Accumulator` for each member of `PRODUCTS`, in that order.
        blocks: Pairs (site, `BlockFormat`) for the sites that round in blocks, in the order of
            `Site`. Default (): none. Only operands of products can be in blocks. The formats are
            those of OCP MX 1.0 and any other `BlockFormat`.

        pv_into_o: True adds P V to alpha O as one sum, and site O rounds the result; there is then
            no event PV. This is FlashAttention-2 (arXiv 2307.08691), preset fa2-bf16. False
            (default) makes P V an event PV of its own, and site O rounds the sum of the results of
            AO (which is alpha O) and PV. This is preset qiu-yao.
        normalise_first: True divides P by the row sum before P V. The whole row must then be one
            key tile, which `attend` ensures. Default False. True is unfused attention: presets
            baseline-bf16, eager, gpt-oss, sdpa-math, jax-xla. (The field keeps its British spelling
            because stored results contain its name.)
        row_sum_of: What the row sum adds: `Site.EXP` (default), as released kernels do, or
            `Site.P`, the operand of P V after its cast. It has no effect with normalise_first.
        row_sum: How threads add up a row, one of `RowSum`: plain (default), lanes
            (FlashAttention-2), tile-lanes (cuDNN), tiles (Triton), eights (FlashAttention-4),
            groups (CUTLASS).
        reciprocal: How 1 / l is computed, one of `Reciprocal`: correct (default), or rcp, the
            instruction rcp.approx.ftz.f32 (cuDNN, Triton).
        log: How ln l is computed, one of `Logarithm`: correct (default), lg2 (FlashAttention-2,
            cuDNN) or cuda (CUTLASS, Triton).
        lse_base2: True keeps L in base 2: m + log2 l. Default False. It needs log2_e scale or
            scores, exponent_again forward, and goes with no sinks. Source: kernels that Triton
            compiles (flex, triton-tutorial, pallas-mha).

        exp: How exp is computed, forward and backward, one of `Exponential`: correct (default),
            base2, cuda (CUDA's expf: eager frameworks) or ex2 (ex2.approx.ftz.f32: fused kernels).
        log2_e: Where log2 e enters the scores, one of `Log2E`: none (default), scale (cuDNN),
            maximum (FlashAttention-2), scores (Triton). Values other than none need exp base2 or
            ex2.
        fused_exponent: True computes X as one multiply-add. The scores are multiplied by scale, c
            or log2 e in it, and this product is not rounded before m is subtracted. Default False.
            With exp base2 or ex2 it needs log2_e other than none.
            Source: twins flex and triton-tutorial, and FlashAttention-4.
        unfused_if_cut: With fused_exponent, True rounds the product of that multiply-add in the
            tiles that causality or a window cuts, forward and backward. Default False. Source:
            twins flex and triton-tutorial.
        fused_without_mask: True sets fused_exponent in calls that have no mask and no window and
            are not causal, and needs what that needs. Default False. Source: the compiled code of
            arXiv 2510.04212.
        polynomial: The columns in which a polynomial takes the place of 2^x in EXP, a `Polynomial`,
            or None (default). It needs exp base2 or ex2. Source: FlashAttention-4.
        offset: A whole number from 0 (default) to 63, which is added to the exponent X. EXP, P, the
            row sum and O are then larger by the factor 2^offset, so P is cast in another range of
            its format. L does not have the factor. It needs log2_e other than none. Source:
            FlashAttention-4 in FP8 (8 in its first release, 4 in a later one).
        stabiliser: The shifted maximum of arXiv 2510.04212, a `Stabilizer`, or None (default). It
            needs log2_e none. (The field keeps its British spelling because stored results contain
            its name.)
        stale_maximum: A number from 0 up to, but not including, 64. m keeps its old value where it
            would grow by this many powers of two or fewer (powers of e with log2_e none). With 0
            (default), m is always the maximum. Source: FlashAttention-4 (8 in BF16; 4, later 0, in
            FP8) and cuDNN's MXFP8 reference (4).
        key_order: The order of the key tiles in the forward, one of `KeyOrder`: ascending
            (default), descending (FlashAttention-2 and -3), masked-first (flex).
        split_tiles: With a number n above 0, the keys are split into parts of n key tiles. Each
            part has a softmax of its own, and the events SW and SO combine the results. 0
            (default): no split. Source: FlashAttention-2 with few heads (fa2-split).
        flushed_tiles: With a number n above 0, O is added to a second sum after every n key tiles
            and starts again at 0. Site OA rounds the second sum, to binary32 unless the plan gives
            OA another rounding. 0 (default): there is no second sum. Source: FlashAttention-3 in
            FP8 as vLLM runs it.
        kept_state: True models code that stores m and l in memory between tiles, where the event MS
            rounds m and the event LANES rounds l. alpha then uses the stored m, 1 / l the stored l,
            and L both. Default False. Source: the released code of arXiv 2510.04212.
        first_tile_apart: With kept_state, True lets the first query tile divide by l without the
            rounding LANES, in heads that have more than one query tile. Default False. Source: the
            same code, compiled.
        registers: True casts from binary32 registers, so a cast is two roundings: first event EI
            and then P, or OI and then OUT, PD and then DS, SDQ and then DQ_OUT, SDK and then
            DK_OUT. A sum with a product that is not rounded (AL or AO in binary64) is one
            multiply-add. Default False: a cast is one rounding. Source: GPU kernels. Every twin, a
            plan that gives the bits of a real kernel (`attention.plans.twins`), has True.

        window: How many keys a query sees, its own included: query t sees keys t - window < s <= t
            of a causal call and `|t - s|` < window of any other. 0 (default): all. If the argument
            `window` of `attend` is given, it replaces this value. Source: sliding-window attention.
        softcap: A bound c > 0 of the scores, which become c tanh(scale S / c), by the events SS,
            CAP and TANH. 0.0 (default): the scores are scale S. If the argument `softcap` of
            `attend` is given, it replaces this value. Source: Gemma 2 (arXiv 2408.00118).
        capped_by: How a softcap divides, one of `CappedBy`: quotient (default; FlashAttention-4) or
            chain (automatic differentiation). It has no effect without a softcap.
        tanh: How the tanh of a softcap is computed, one of `Tanh`: correct (default) or cuda
            (tanhf: torch, Triton).
        sinks: How the sinks of a call enter, one of `Sinks`: key (eager gpt-oss), first (vLLM),
            last (FlashAttention-3 and -4), or none (default). A plan with none treats sinks like
            key with normalise_first, and like last otherwise.

        exponent_again: How the backward computes P again, one of `BackwardExponent`: forward
            (default), after (cuDNN; it needs exp base2 or ex2), natural (CUTLASS). Those two need
            an L in base e.
        saved_p: True lets the backward read P as the forward had it instead of exp(S - L). It needs
            normalise_first. Default False. Source: eager frameworks and XLA.
        delta_from: The operands of delta, one of `DeltaFrom`: OUT (default; fused kernels), O, P_DP
            (unfused softmax), or CENTRED, which keeps the row sums of dS at 0 and which no kernel
            uses.
        delta_products: With delta_from OUT or O, True rounds the products of dO and O (event DOO)
            before delta adds them. Default False. Source: pallas-mha and the eager code of
            arXiv 2510.04212.
        ds_from_p: True computes dS from P_B, which has been cast, instead of EXP_B. Default False.
            Source: CUTLASS (sdpa-efficient), gpt-oss.
        score_gradient: How dS is computed, one of `ScoreGradient`: difference (default; fused
            kernels), softmax (eager frameworks) or quotient (JAX). quotient needs saved_p and
            delta_from P_DP, and has no sinks.
        maximum_gradient: True differentiates through m too. The row sum of dS (event DMAX) is then
            subtracted from dS at the first key that has the maximum (event DSM). It needs saved_p,
            and has no softcap. Default False. Source: eager gpt-oss.
        gradient_scale: Where the scale enters dQ and dK, one of `ScaleOfGradient`: result (default;
            FlashAttention-2), probability (arXiv 2510.04212), register (cuDNN) or operand (eager
            frameworks). scale_roots has result alone; score_gradient quotient and dp_from_delta
            have no probability; sinks with maximum_gradient need result or operand.
        query_order: The order of the tiles in dK, dV and dQ, one of `QueryOrder`: ascending
            (default), descending (FlashAttention-2), masked-first (flex) or wrapped (CUTLASS).
        gradients_apart: Which gradients sum each tile separately before they add it to the total,
            one of `GradientsApart`: none (default), dq (FlashAttention-2, cuDNN) or all
            (arXiv 2510.04212). The events DQP, DKP and DVP round the sums of one tile.
        scale_roots: True multiplies q and k by the square root of the scale (events QS and KS), and
            their gradients too. The scores are then not multiplied by the scale. Default False. It
            needs gradient_scale result.
            Source: the math back end of torch's SDPA.
        scaled_keys: True multiplies K by scale times log2 e in the backward, rounds the product
            (event KC), and uses it for S_B and dQ; dQ is multiplied by ln 2 at the end. It needs
            log2_e scale, lse_base2 and gradient_scale result, and has neither saved_p, scale_roots
            nor a softcap. Default False. Source: Triton's tutorial 06.
        dp_from_delta: True computes a second dP - delta for dQ, as one sum of dO V^T that starts at
            -delta (event DPQ). It gives a second dS, the event DSQ. For dK, delta is subtracted
            from DP as usual. Default False. It goes neither with score_gradient quotient nor with a
            softcap. Source: Pallas' mha (pallas-mha).

    Raises:
        ValueError: A site or product is missing, a field has a value that is not allowed, or a
            field lacks another one that its entry above says it needs. The message names the field
            and how to fix it.

    Example:
        >>> from dataclasses import replace
        >>> from roundscope.attention import Plan, Site
        >>> plan = Plan.preset("fa2-bf16")
        >>> str(plan[Site.P]), str(plan[Site.O]), plan.pv_into_o
        ('bf16', 'fp32', True)
        >>> apart = replace(plan, name="apart", pv_into_o=False)
        >>> apart == plan, apart.at(Site.O, "bf16").name
        (False, 'apart*')
    """

    name: str
    roundings: tuple[Rounding, ...]
    accumulators: tuple[Accumulator, ...]
    pv_into_o: bool = False
    normalise_first: bool = False
    row_sum_of: Site = Site.EXP
    delta_from: DeltaFrom = DeltaFrom.OUT
    stabiliser: Stabilizer | None = None
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
        check_plan(self)

    @staticmethod
    def preset(name: str) -> "Plan":
        """Return a published plan by its name.

        Args:
            name: A name in `PRESETS` (plans that round where a paper or a release rounds) or in
                `attention.plans.twins.TWINS` (plans that give the bits of a real kernel), or
                all:FORMAT, which rounds every event and every step of a sum to one format. A preset
                or all:FORMAT may end in @ARCHITECTURE. Its products of matrices then run on the
                tensor cores of that architecture, except those whose factors are in a format that
                the tensor cores cannot read. A preset or a twin may end in -fp16: FP16 stands in
                place of BF16 everywhere, on its tensor cores too.

        Returns:
            The plan, whose `name` is the given one.

        Raises:
            ValueError: There is no such plan, format or architecture. The message names the nearest
                one.
            TypeError: The name is not a string.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> str(Plan.preset("fa2-bf16@hopper")[Site.P])
            'bf16'
            >>> str(Plan.preset("all:e4m3fn")[Site.O])
            'e4m3fn:saturate'
        """
        from roundscope.attention.plans.presets import preset

        return preset(name)

    def __repr__(self) -> str:
        """Return an expression that makes the plan, or its fields where words do not make it."""
        from roundscope.attention.grammar.text import expression_of

        return expression_of(self)

    def in_full(self) -> str:
        """Return all fields with their values, 30 kB of text, of which keys of results are made."""
        return f"Plan({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})"

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

    def at(
        self,
        site: Site | str,
        format: str | Rounding | BlockFormat,
        mode: str | RoundingMode | None = None,
        *,
        overflow: str | None = None,
        seed: int | None = None,
    ) -> "Plan":
        """Return the plan with another rounding at one site.

        Args:
            site: A member of `Site`, or its name in upper or lower case.
            format: A format of numbers ("bf16", "e4m3fn", "e8m3") or of blocks ("mxfp8_e4m3"), a
                `Rounding` or a `BlockFormat`. Blocks lie along the axis over which the first
                product that reads the operand sums (`sites.BLOCK_AXIS`).
            mode: A `RoundingMode` or its name. Default: the mode of `format`, or ties-to-even if
                `format` has none.
            overflow: "inf", "nan" or "saturate". Default: what `format` says, or the usual overflow
                of the format.
            seed: Seed of stochastic rounding, from 0 to 2^32 - 1. Default: the seed of `format`, or
                0 if it has none.

        Returns:
            The new plan, whose name ends in a star. This plan is not changed.

        Raises:
            ValueError: A name is unknown, or `format` is a block format and the site is not an
                operand of a product.

        Example:
            >>> from roundscope.attention import Plan, Site
            >>> plan = Plan.preset("fa2-bf16").at(Site.O, "bf16", mode="toward-zero")
            >>> plan.name, str(plan[Site.O])
            ('fa2-bf16*', 'bf16:toward-zero')
        """
        return self.rounded(
            {site_named(site): event_to(format, mode, overflow=overflow, seed=seed)},
            _edited(self.name),
        )

    def rounded(self, events: Mapping[Site, Event], name: str | None = None) -> "Plan":
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
        events = events_given(events)
        roundings = tuple(_element(events[site]) if site in events else self[site] for site in Site)
        new = {**dict(self.blocks), **events}
        blocks = tuple(
            (site, _seedless(f)) for site in Site if isinstance(f := new.get(site), BlockFormat)
        )
        return replace(self, name=name or self.name, roundings=roundings, blocks=blocks)

    def adding(self, site: Site | str, accumulator: Accumulator) -> "Plan":
        """Return the plan with another accumulator for one sum of products.

        Args:
            site: A member of `PRODUCTS`, or its name in upper or lower case.
            accumulator: How the products are added.

        Returns:
            The new plan, whose name ends in a star.

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
        new[PRODUCTS.index(product_named(site))] = accumulator
        return replace(self, name=_edited(self.name), accumulators=tuple(new))

    def changed(self, *changes: str, seed: int | None = None) -> "Plan":
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
            The new plan. Its name ends in a star if anything but the seed was changed.

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
        """
        from roundscope.attention.grammar.changes import changed

        return changed(self, changes, seed)

    def seeded(self, seed: int) -> "Plan":
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
        bits = sum(self._bits(factor) for factor in factors)
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
            if self.dp_from_delta and site is Site.DQ:
                other[Site.DS] = Site.SDSQ if is_scaled else Site.DSQ
            elif is_scaled:
                other[Site.DS] = Site.SDS
            return tuple(other.get(factor, factor) for factor in FACTORS[site])
        if self.delta_from is DeltaFrom.P_DP:
            return Site.EXP_B, Site.DP
        # OD rounds OUT, or O, once more
        return Site.DO, (
            Site.OUT
            if self.delta_from is DeltaFrom.OUT and self._bits(Site.OUT) < self._bits(Site.OD)
            else Site.OD
        )

    def _bits(self, site: Site) -> int:
        """Return how many significand bits the results of a site can have."""
        block = self.block(site)
        return self[site].format.precision if block is None else _precision(block)

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
        of_kernels = {name: getattr(self, name) for name in OF_KERNEL}
        of_kernels = {name: x if isinstance(x, int) else str(x) for name, x in of_kernels.items()}
        has_steps = self.is_of_kernel
        return {
            "name": self.name,
            "roundings": {
                str(s): str(self.event(s)) for s in Site if has_steps or s not in OF_KERNELS
            },
            "accumulators": {str(s): str(self.accumulator(s)) for s in PRODUCTS},
            "pv_into_o": self.pv_into_o,
            "normalise_first": self.normalise_first,
            "row_sum_of": str(self.row_sum_of),
            "delta_from": str(self.delta_from),
            "stabiliser": (
                None
                if self.stabiliser is None
                else {"beta": self.stabiliser.beta, "window": self.stabiliser.window}
            ),
            "exp": str(self.exp),
            "key_order": str(self.key_order),
        } | (of_kernels if has_steps else {})

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
        return any(getattr(self, name) != _DEFAULTS[name] for name in OF_KERNEL)


OF_KERNEL = (
    "log2_e",
    "fused_exponent",
    "unfused_if_cut",
    "fused_without_mask",
    "row_sum",
    "log",
    "reciprocal",
    "registers",
    "query_order",
    "gradients_apart",
    "lse_base2",
    "kept_state",
    "delta_products",
    "saved_p",
    "exponent_again",
    "ds_from_p",
    "score_gradient",
    "maximum_gradient",
    "gradient_scale",
    "scale_roots",
    "scaled_keys",
    "dp_from_delta",
    "split_tiles",
    "flushed_tiles",
    "first_tile_apart",
    "stale_maximum",
    "offset",
    "polynomial",
    "softcap",
    "capped_by",
    "tanh",
    "window",
    "sinks",
)
"""Names of the fields that have their defaults in plans without steps of real kernels.

`Plan.describe` leaves them out of such plans.
"""

_DEFAULTS = {f.name: f.default for f in fields(Plan)}
_ORDINAL = {site: i for i, site in enumerate(Site)}


def ordinal(site: Site) -> int:
    """Return the position of a site in `Site`.

    A plan and a table of plans hold the rounding of the site at that position.
    """
    return _ORDINAL[site]


def event_to(
    format: str | Rounding | BlockFormat,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | None = None,
    seed: int | None = None,
) -> Event:
    """Return how an event rounds to a format, as a `BlockFormat` or a `Rounding`.

    The result is a `BlockFormat` if `format` is one or the name of one.

    Args:
        format: A format by name, a `Rounding`, or a `BlockFormat`.
        mode: The rounding mode; None keeps the mode of the format, by default ties-to-even.
        overflow: "inf", "nan" or "saturate"; None keeps the overflow of the format.
        seed: Seed of stochastic rounding; None keeps the seed of the format, by default 0.

    Raises:
        ValueError: A name is unknown, or the words contradict each other.
    """
    if isinstance(format, BlockFormat) or (isinstance(format, str) and format in BLOCK_NAMED):
        return block_format(format, mode, overflow=overflow, seed=seed)
    return rounding(
        _format(format) if isinstance(format, str) else format, mode, overflow=overflow, seed=seed
    )


def _format(name: str) -> Format:
    """Return a format by its name; the error for an unknown name lists the block formats too."""
    try:
        return format_named(name)
    except ValueError as error:
        raise ValueError(f"{error}; in blocks: {' '.join(BLOCK_NAMED)}") from None


def _element(event: Event) -> Rounding:
    """Return how the numbers of an event round; in blocks, how the elements do."""
    return event.element if isinstance(event, BlockFormat) else event


def _seedless(block: BlockFormat) -> BlockFormat:
    """Return the block format with seed 0, the form in which `Plan.blocks` stores it."""
    return replace(block, element=replace(block.element, seed=0))


def _precision(block: BlockFormat) -> int:
    """Return how many significand bits a number in blocks can have.

    The number is the product of its element, the scale of its block, and, where the format has one,
    the scale of the whole tensor.
    """
    scale = 0 if block.power_of_two else block.scale.precision
    return block.element.format.precision + scale + (24 if block.tensor else 0)


def _edited(name: str) -> str:
    """Return the name of a plan that is derived from the plan of the given name."""
    return name if name.endswith("*") else f"{name}*"
