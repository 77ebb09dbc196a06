"""What a plan differs in from another, in words that make the one of the other."""

from dataclasses import fields

from roundscope.attention.grammar.roundings import accumulator_words, spelled
from roundscope.attention.places import absent
from roundscope.attention.plans.choices import Log2E, ScoreGradient
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import PRODUCTS, Site


def differences(plan: Plan, base: Plan) -> list[str]:
    """The words of every change: SITE=ROUNDING, SITE.sum=ACCUMULATOR, FIELD=VALUE.

    `base.changed(*words)` has the plan's arithmetic.

    Sites that the plan never reaches have no part in it and no word.
    """
    own = [
        site for site in Site if plan.event(site) != base.event(site) and absent(plan, site) is None
    ]
    events = [f"{site}={spelled(plan.event(site))}" for site in own]
    sums = [
        f"{s}.sum={accumulator_words(plan.accumulator(s))}"
        for s in PRODUCTS
        if plan.accumulator(s) != base.accumulator(s)
    ]
    return [*_fields(plan, base), *events, *sums]


def _fields(plan: Plan, base: Plan) -> list[str]:
    skipped = ("name", "roundings", "blocks", "accumulators")
    names = [
        f.name
        for f in fields(Plan)
        if f.name not in skipped and getattr(plan, f.name) != getattr(base, f.name)
    ]
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
    # what needs another field leaves before that one does
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
    return [words.pop(name) for name in leaving] + list(words.values())
