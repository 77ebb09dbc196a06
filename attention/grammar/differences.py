"""The differences of two plans in words: the changes that make one of the other."""

from roundscope.attention.grammar.roundings import accumulator_words, spelled
from roundscope.attention.places import absent
from roundscope.attention.plans.choices import Log2E, ScoreGradient
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import CHOICES, STORED
from roundscope.attention.sites import PRODUCTS, Site


def differences(plan: Plan, base: Plan) -> list[str]:
    """Return the changes that make the arithmetic of `plan` of `base`, in an order that works.

    Args:
        plan: The plan to describe.
        base: The plan to start from.

    Returns:
        Words FIELD=VALUE, SITE=ROUNDING and SITE.sum=ACCUMULATOR, such that `base.changed(*words)`
        computes what `plan` does. Sites that `plan` never reaches have no word.
    """
    fields, changed, added = _apart(plan, base)
    events = [f"{site}={spelled(plan.event(site))}" for site in changed]
    sums = [f"{s}.sum={accumulator_words(plan.accumulator(s))}" for s in added]
    return [*_fields(plan, base, fields), *events, *sums]


def count_of_differences(plan: Plan, base: Plan) -> int:
    """Return how many changes `differences` returns, much sooner: without their order."""
    fields, changed, added = _apart(plan, base)
    is_one = {"normalise_first", "pv_into_o"} <= {*fields}
    return len(fields) - is_one + len(changed) + len(added)


def _apart(plan: Plan, base: Plan) -> tuple[list[str], list[Site], list[Site]]:
    """Return the fields, the events and the sums that differ."""
    fields = [
        name for name in STORED if name in CHOICES and getattr(plan, name) != getattr(base, name)
    ]
    blocks = plan.blocks != base.blocks
    changed = [
        site
        for site, own, other in zip(Site, plan.roundings, base.roundings, strict=True)
        if (own != other or (blocks and plan.event(site) != base.event(site)))
        and absent(plan, site) is None
    ]
    sums = zip(PRODUCTS, plan.accumulators, base.accumulators, strict=True)
    return fields, changed, [site for site, own, other in sums if own != other]


def _fields(plan: Plan, base: Plan, names: list[str]) -> list[str]:
    """Return the words of the fields that differ; those that free others to change come first."""
    words = {name: f"{name}={getattr(plan, name)}" for name in names}
    if "normalise_first" in words:
        words.pop("pv_into_o", None)
        words["normalise_first"] = f"unfused={str(plan.normalise_first).lower()}"
    for name in {n for n in words if isinstance(getattr(plan, n), bool)}:
        words[name] = words[name].lower()
    if "stabiliser" in words:
        words["stabiliser"] = (
            f"stabiliser={plan.stabiliser.beta:g}" if plan.stabiliser else "stabiliser=none"
        )
    # a field that needs another one changes before that one; where the order is another, `_taken`
    # finds one, so that no further field need be named here
    leaving: list[str] = [
        name
        for name in (
            "scaled_keys",
            "fused_exponent",
            "log2_e",
            "first_tile_apart",
            "maximum_gradient",
        )
        if name in words and getattr(plan, name) in (False, Log2E.NONE)
    ]
    if base.score_gradient is ScoreGradient.QUOTIENT and "score_gradient" in words:
        leaving.append("score_gradient")
    return _taken(base, [words.pop(name) for name in leaving] + list(words.values()))


def _taken(base: Plan, words: list[str]) -> list[str]:
    """Return words in an order in which every plan on the way takes the next one.

    It is the given order, in which a word that is refused is tried again after the others.
    """
    taken: list[str] = []
    while words:
        refused = []
        for word in words:
            try:
                base = base.changed(word)
            except ValueError:
                refused.append(word)
                continue
            taken.append(word)
        if len(refused) == len(words):
            return taken + refused
        words = refused
    return taken
