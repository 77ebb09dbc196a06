"""Where a trace says that nothing is wrong, so that nobody repairs what is as good as it can be."""

from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.tools.report.wording import factor, listed, many
from roundscope.tools.trace.biased import few_heads, hints
from roundscope.tools.trace.results import EVENT, unchanged
from roundscope.tools.trace.summary import Summary


def stop(s: Summary) -> str:
    """Return why there is nothing to repair in a layer; "" where there may be.

    The output is hardly worse than the exact one rounded once to its format, each gradient has at
    most twice the error of its own last rounding, and nothing is biased, infinite or injected. A
    result that a change of the plan leaves in FP32 is held against its format before the change.
    """
    is_sound = not (
        s.not_finite
        or s.strange
        or s.biased_results
        or s.biased_events
        or hints(s)
        or s.request.inject
        or (s.drift is not None and (s.drift.leans or s.drift.lost))
    )
    out, *others = s.results
    gradients = [r for r in others if r.unit]
    known = [r for r in others if r.gain is not None and r.error]  # not lse and delta
    if not (is_sound and s.request.against.name == "exact" and out.unit) or len(gradients) < len(
        known
    ):
        return ""
    times = {r.name: r.times for r in gradients}
    if out.is_far or any(r.is_far for r in gradients):
        return ""
    plan = s.request.plan if out.least else unchanged(s.request.plan)
    name = plan[EVENT["out"]].format.name
    more = ""
    if times:
        most = max(times.values())
        more = f", and {listed([*times])} at most {factor(most)} times as much as one makes"
    heads = few_heads(s)
    nothing = f"Nothing that {many(heads, 'key head')} can show" if heads else "Nothing"
    said = _no_longer_narrow(s.request.plan)
    right = f"{nothing} is wrong here, and you can stop"
    if said:
        right = f"{said}; n{nothing[1:]} is wrong with what is left"
    return f"{right}: out has hardly more error than one rounding to {name} makes{more}."


def _no_longer_narrow(plan: Plan) -> str:
    """Return that changes widened events of 8 bits or fewer, or "" where they widened none.

    A layer that is right then shows nothing of the published plan, whose kernel rounds there.
    """
    base = unchanged(plan)
    narrow = [site for site in Site if base[site].format.bits <= 8]
    wide = [site for site in narrow if plan[site].format.bits > base[site].format.bits]
    if not wide:
        return ""
    kinds = dict.fromkeys(
        f"{'INT' if base[site].format.name.startswith('int') else 'FP'}{base[site].format.bits}"
        for site in wide
    )
    names, own = listed([str(site) for site in wide]), base.name
    left = [site for site in Site if plan[site].format.bits <= 8]
    lost = f"No {' or '.join(kinds)} rounding of this plan is left, since " if not left else ""
    verb = "are" if len(wide) > 1 else "is"
    return f"{lost}{names} {verb} wider than in {own}, of which this says nothing"
