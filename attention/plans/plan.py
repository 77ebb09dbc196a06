"""`Plan`: the whole arithmetic of one attention computation, as a hashable record.

A site is a named place of the algorithm where a result is rounded, and each rounding there is an
event. A plan gives every site a rounding and every sum of products an accumulator. It also fixes
the few further choices in which published kernels differ. Here is how plans are made of others;
what follows from a plan is in `attention.plans.record`, its checks in `attention.plans.checks`, and
published plans, each with its source, in `attention.plans.presets` and `attention.plans.twins`.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roundscope.attention.plans.checks import events_given, product_named
from roundscope.attention.plans.events import Event, event_to
from roundscope.attention.plans.record import CHOICES, STORED, PlanRecord
from roundscope.attention.readers import READERS
from roundscope.attention.sites import PRODUCTS, Site, site_named
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.numbers import check_seed
from roundscope.emu.roundings.modes import Rounding, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator, check_accumulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanRecord):
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

        CHOICES: The fields of `TileChoices` and the groups before it.

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

    def __getstate__(self) -> list[Any]:
        """Return the values of all fields, in the order of `STORED`."""
        return [getattr(self, name) for name in STORED]

    def __setstate__(self, state: list[Any]) -> None:
        """Set all fields of a plan that was pickled."""
        for name, value in zip(STORED, state, strict=False):
            object.__setattr__(self, name, value)

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
        plan: Plan = READERS["preset"](name)
        return plan

    def __repr__(self) -> str:
        """Return an expression that makes the plan, or its fields where words do not make it."""
        expression: str = READERS["expression"](self)
        return expression

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
        roundings = tuple(
            e.element if isinstance(e := events.get(site, self[site]), BlockFormat) else e
            for site in Site
        )
        new = {**dict(self.blocks), **events}
        blocks = tuple(
            (site, replace(f, element=replace(f.element, seed=0)))
            for site in Site
            if isinstance(f := new.get(site), BlockFormat)
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
        plan: Plan = READERS["changes"](self, changes, seed)
        return plan

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


def _documented(doc: str) -> str:
    """Return the docstring with an entry for each choice, and a blank line after each group."""
    entries: dict[str, list[str]] = {}
    for name, own in CHOICES.items():
        text = f"{name}: {own.doc}" + (f" Source: {own.source}." if own.source else "")
        lines = textwrap.wrap(text, 92, subsequent_indent="    ", break_on_hyphens=False)
        entries.setdefault(own.group, []).append(textwrap.indent("\n".join(lines), " " * 8))
    before, _, after = doc.partition("        CHOICES:")
    return before + "\n\n".join(map("\n".join, entries.values())) + "\n" + after.partition("\n")[2]


Plan.__doc__ = _documented(Plan.__doc__ or "")


def _edited(name: str) -> str:
    """Return the name of a plan that is derived from the plan of the given name."""
    return name if name.endswith("*") else f"{name}*"
