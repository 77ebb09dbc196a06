"""The plan that gives a kernel's numbers, as a record keeps it: in words, and word by word.

Two records are compared by these words alone, whatever the plans are called then.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.grammar.roundings import accumulator_words, spelled
from roundscope.attention.places import absent
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.events.plan import BasePlan
from roundscope.events.sites import SiteBase
from roundscope.operations.catalogue import OPERATIONS
from roundscope.operations.identification.identify import identify as identify_operation
from roundscope.operations.run import plan_of
from roundscope.tools.identify.identify import Kind, identify

# plans of attention that are tried, and how many changes of a plan of an operation one after the
# other; fewer in FP32, where sums have the orders of libraries, which plans do not know
BUDGETS = {"bf16": 300, "fp16": 300, "fp32": 60}
DEPTHS = {"bf16": 2, "fp16": 2, "fp32": 1}
TIES = 256  # plans that give every bit as well, of which the arithmetic is kept
STORAGE = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
Words = dict[str, str]
"""A plan word by word: an event, a sum or a choice -> its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The nearest plan to what a kernel returned.

    Attributes:
        plan: The plan in words.
        equal: Result -> the share of equal numbers.
        ties: How many more plans give every number of every result.
        arithmetic: The plan word by word, by stage as `words_of` has it.
        others: Of each tie, up to `TIES` of them, the words that differ from those.
        tried: How many plans were compared.
    """

    plan: str
    equal: Mapping[str, float]
    ties: int = 0
    arithmetic: Mapping[str, Words] = field(default_factory=dict)
    others: Sequence[Mapping[str, Words]] = ()
    tried: int = 0

    def gives(self, result: str) -> bool:
        """Return whether the plan gives every number of a result."""
        return self.equal.get(result, 0.0) == 1.0


def words_of(plan: BasePlan) -> dict[str, Words]:
    """Return a plan word by word, without events that it never reaches: {"forward": {word: value},
    "backward": the same of what no output depends on}.

    Example:
        >>> from roundscope.attention import Plan
        >>> words = words_of(Plan.preset("fa2"))
        >>> words["forward"]["P"], words["forward"]["exp"], words["backward"]["DS"]
        ('bf16', 'ex2', 'bf16')
    """
    reached: list[SiteBase] = list(plan.SITES)
    if isinstance(plan, Plan):
        reached = [site for site in Site if absent(plan, site) is None]
    found: dict[str, Words] = {"forward": {}, "backward": {}}
    for site in reached:
        is_late = site.stage == "backward" or (site.stage == "inputs" and str(site)[0] == "D")
        own = found["backward" if is_late else "forward"]
        own[str(site)] = spelled(plan.event(site))
        if site in plan.PRODUCTS:
            own[f"{site}.sum"] = accumulator_words(plan.accumulator(site))
    for name, choice in plan.choices().items():
        moves = choice.moves
        is_late = moves.follows or bool(moves.backward and not moves.forward)
        value = str(getattr(plan, name)).lower()
        found["backward" if is_late else "forward"][name] = value
    return found


def _arithmetic(plan: BasePlan, ties: Sequence[BasePlan]) -> dict[str, Any]:
    """Return the arithmetic of a plan and of its ties, as a `Twin` has it."""
    whole = words_of(plan)
    others = [
        {stage: _differing(words, whole[stage]) for stage, words in words_of(tie).items()}
        for tie in ties[:TIES]
    ]
    return {"arithmetic": whole, "others": others}


def _differing(words: Words, base: Words) -> Words:
    """Return the words that differ from those of another plan; "none" for what it alone has."""
    names = dict.fromkeys((*base, *words))
    return {n: words.get(n, "none") for n in names if words.get(n) != base.get(n)}


def twin_of_attention(
    x: Inputs, outputs: Outputs, kind: str, tell: Callable[[str], None]
) -> Twin | None:
    """Return the plan that is nearest to the outputs; None if the search found none that is near.

    x is the call that the kernel was given, in a type.
    """
    with np.errstate(all="ignore"):
        found = identify(x, outputs, tell, BUDGETS[kind])
    if found.kind not in (Kind.SAME, Kind.NEAR, Kind.NOT_FOUND):
        return None
    ties = (found.backward or found.forward).ties
    return Twin(
        plan=found.plan,
        equal={name: counted.equal for name, counted in found.whole.counts.items()},
        ties=len(found.ties),
        **_arithmetic(found.best.plan, [c.plan for c in ties]),
        tried=found.tried,
    )


def twin_of_operation(
    operation: str,
    x: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    kind: str,
    settings: Mapping[str, Any],
    tell: Callable[[str], None],
) -> Twin:
    """Return the plan of an operation that is nearest to its outputs, which are in a type."""
    own = OPERATIONS[operation]
    found = identify_operation(
        own,
        {name: a.astype(STORAGE[kind]) for name, a in x.items()},
        {name: a.astype(STORAGE[kind]) for name, a in outputs.items()},
        settings=settings,
        depth=DEPTHS[kind],
        tell=tell,
    )
    # other signs of zeros are other bits, and so are the numbers of another eps
    share = found.share if found.is_found else min(found.share, math.nextafter(1.0, 0.0))
    return Twin(
        plan=found.plan,
        equal={"out": share},
        ties=len(found.ties),
        **_arithmetic(plan_of(own, found.plan), [plan_of(own, name) for name in found.ties]),
        tried=found.tried,
    )


def changed(old: Twin, new: Twin, results: Collection[str]) -> list[list[str]]:
    """Return the smallest changes of arithmetic that make the numbers of one plan those of another.

    Each is a list of words `NAME: OLD -> NEW`, OLD or NEW "none" where a plan has no such word.
    There are several where plans that tie differ in as few words. Where `out` alone is among the
    results that changed, words of the backward are left out.
    """
    stages = ("forward",) if {*results} == {"out"} else ("forward", "backward")
    pairs = [*product(_forms(old, stages), _forms(new, stages))]
    sizes = [sum(a.get(name) != b.get(name) for name in {**a, **b}) for a, b in pairs]
    fewest = min(sizes)
    least = [pair for pair, size in zip(pairs, sizes, strict=True) if size == fewest]
    told = {
        tuple(
            f"{name}: {a.get(name, 'none')} -> {b.get(name, 'none')}"
            for name in dict.fromkeys((*a, *b))
            if a.get(name) != b.get(name)
        ): None
        for a, b in least
    }
    return [list(words) for words in told]


def _forms(twin: Twin, stages: Sequence[str]) -> list[Words]:
    """Return the words of a plan and of its ties, of some stages."""
    own = {name: x for stage in stages for name, x in twin.arithmetic[stage].items()}
    return [own, *(own | {n: x for s in stages for n, x in o[s].items()} for o in twin.others)]
