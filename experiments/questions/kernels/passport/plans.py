"""The plan that gives a kernel's numbers, as a record keeps it: in words, and word by word.

Two records are compared by these words alone, whatever the plans are called then.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
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

BUDGET = 300  # plans of attention that are tried
TIES = 4  # plans that give every bit as well, of which the arithmetic is kept
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
        arithmetic: The plan word by word, and those of up to `TIES` of its ties.
        tried: How many plans were compared.
    """

    plan: str
    equal: Mapping[str, float]
    ties: int = 0
    arithmetic: list[dict[str, Words]] = field(default_factory=list)
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
        own = found["backward" if site.stage == "backward" else "forward"]
        own[str(site)] = spelled(plan.event(site))
        if site in plan.PRODUCTS:
            own[f"{site}.sum"] = accumulator_words(plan.accumulator(site))
    for name, choice in plan.choices().items():
        is_late = choice.moves.follows or (choice.moves.backward and not choice.moves.forward)
        value = str(getattr(plan, name)).lower()
        found["backward" if is_late else "forward"][name] = value
    return found


def twin_of_attention(x: Inputs, outputs: Outputs, tell: Callable[[str], None]) -> Twin | None:
    """Return the plan that is nearest to the outputs; None if the search found none that is near.

    x is the call that the kernel was given.
    """
    with np.errstate(all="ignore"):
        found = identify(x, outputs, tell, BUDGET)
    if found.kind not in (Kind.SAME, Kind.NEAR, Kind.NOT_FOUND):
        return None
    ties = (found.backward or found.forward).ties
    return Twin(
        plan=found.plan,
        equal={name: counted.equal for name, counted in found.whole.counts.items()},
        ties=len(found.ties),
        arithmetic=[words_of(c.plan) for c in (found.best, *ties[:TIES])],
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
        depth=2,
        tell=tell,
    )
    # other signs of zeros are other bits, and so are the numbers of another eps
    share = found.share if found.is_found else min(found.share, math.nextafter(1.0, 0.0))
    kept = (found.plan, *found.ties[:TIES])
    return Twin(
        plan=found.plan,
        equal={"out": share},
        ties=len(found.ties),
        arithmetic=[words_of(plan_of(own, name)) for name in kept],
        tried=found.tried,
    )


def changed(old: Twin, new: Twin, results: Collection[str]) -> list[str]:
    """Return the words in which two plans differ, `NAME: OLD -> NEW`; of ties, of the nearest two.

    Words that one plan alone has are "none" in the other. Where `out` alone is among the results
    that changed, words of the backward are left out.
    """
    stages = ("forward",) if {*results} == {"out"} else ("forward", "backward")
    told = [
        [
            f"{name}: {a[stage].get(name, 'none')} -> {b[stage].get(name, 'none')}"
            for stage in stages
            for name in dict.fromkeys((*a[stage], *b[stage]))
            if a[stage].get(name) != b[stage].get(name)
        ]
        for a in old.arithmetic
        for b in new.arithmetic
    ]
    return min(told, key=len, default=[])
