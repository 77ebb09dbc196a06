"""`Plan`: the whole arithmetic of one attention computation, as a hashable record.

A site is a named place of the algorithm where a result is rounded, and each rounding there is an
event. A plan gives every site a rounding and every sum of products an accumulator. It also fixes
the few further choices in which published kernels differ. Here is how plans are made of others;
what follows from a plan is in `attention.plans.record`, and published plans, each with its source,
in `attention.plans.presets` and `attention.plans.twins`.
"""

import textwrap
from dataclasses import dataclass
from typing import Any

from roundscope.attention.plans.record import CHOICES, STORED, PlanRecord
from roundscope.events.readers import READERS


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
        (False, 'apart; O=bf16')
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
