"""Which arithmetic gives a kernel's output, where the plan that it claims does not.

The claimed plan is tried with one event of its forward cast in another way, and beside it every
published plan. That is a quick look at one head; `roundscope identify` has the whole search.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from roundscope.attention.grammar.roundings import spelled
from roundscope.attention.places import absent
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import Site
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.gathered import gathered
from roundscope.attention.testing.reference import Reference, reference
from roundscope.emu.roundings.modes import BF16, BINARY32, E4M3, E5M2, FP16, RoundingMode
from roundscope.emu.stats.comparison import agree, share_words
from roundscope.events.plan import check_factors, half

FORMATS = (BF16, FP16, BINARY32, E4M3, E5M2)
MODES = (
    RoundingMode.TOWARD_ZERO,
    RoundingMode.AWAY_FROM_ZERO,
    RoundingMode.TIES_TO_AWAY,
    RoundingMode.TO_ODD,
)
NARROW = 24  # bits of FP32, whose cast to another mode does not explain a kernel's error
EXPLAINS = 0.95  # the share of equal bits from which a plan explains an output
FEWER = 4.0  # times: so many fewer numbers differ than from the claimed plan
NEARER = 1.5  # likewise, from which a plan is worth naming that explains only some


def of_output(x: Inputs, own: Outputs, theirs: Outputs, claimed: Reference) -> str:
    """Return why an output is not the claimed plan's, in words; "" if that is not known.

    It is that of another plan, or differs in one place.

    Args:
        x: The inputs; plans are tried on the first head of the first batch entry.
        own: The kernel's results.
        theirs: The claimed plan's.
        claimed: The plan that the kernel claims.
    """
    apart = ~agree(theirs.out, own.out)
    place = gathered(theirs.out, own.out, apart)
    if place is not None and place.factor:
        return f"{int(apart.sum()):,} numbers of the output differ from the plan's: {place.words}"
    one, want = _first_head(x), own.out[:1, :, :1]
    given = _share(one, want, claimed)
    if given is None or given >= EXPLAINS:
        return ""
    found = [
        (share, words, is_change)
        for words, other, is_change in (*_changed(claimed), *_published(claimed))
        if (share := _share(one, want, other)) is not None
    ]
    share, words, is_change = max(found, key=lambda f: (f[0], f[2]), default=(0.0, "", False))
    shares = f"{share_words(share, 4)} of the output's numbers, the claimed plan's"
    shares += f" {share_words(given, 4)}"
    if share >= EXPLAINS and (1.0 - share) * FEWER <= 1.0 - given:
        said = f"{words} explains it" if is_change else f"its numbers are those of {words}"
        return f"{said} ({shares})"
    if (1.0 - share) * NEARER <= 1.0 - given:
        return f"its numbers are nearer to those of {words} ({shares})"
    return ""


def _first_head(x: Inputs) -> Inputs:
    q, k, v, do = (a[:1, :, :1] for a in (x.q, x.k, x.v, x.do))
    return replace(
        x,
        q=q,
        k=k,
        v=v,
        do=do,
        sinks=None if x.sinks is None else x.sinks[:1],
        mask=None if x.mask is None else x.mask[:1, :1],
        scales=None
        if x.scales is None
        else {n: a[:1, :1] if a.ndim else a for n, a in x.scales.items()},
    )


def _share(x: Inputs, want: np.ndarray, plan: Reference) -> float | None:
    """Return the share of equal bits; None for a plan that does not run on these inputs."""
    try:
        check_factors(plan.plan)
        return float(agree(plan.outputs(x, backward=False).out, want).mean())
    except ValueError:
        return None


def _changed(claimed: Reference) -> Iterator[tuple[str, Reference, bool]]:
    """Yield the claimed plan with each event of its forward in another format, or in another mode.

    Events of FP32 are left as they are.
    """
    plan = claimed.plan
    for site in Site:
        if site.stage == "backward" or absent(plan, site) is not None or plan.block(site):
            continue
        r = plan[site]
        others = [replace(r, mode=mode) for mode in MODES if mode is not r.mode]
        others = others if r.format.precision < NARROW else []
        others += [f for f in FORMATS if f.format != r.format and f.format.precision < NARROW]
        if r.format.precision < NARROW:
            others.append(BINARY32)
        for other in others:
            try:
                changed = plan.rounded({site: other})
            except ValueError:
                continue
            yield f"{site}={spelled(other)}", replace(claimed, plan=changed), True


def _published(claimed: Reference) -> Iterator[tuple[str, Reference, bool]]:
    """Yield every other preset and plan of a real kernel, on its own tiles."""
    is_half = FP16 in claimed.plan.roundings
    for name in (*TWINS, *PRESETS):
        other = reference(name)
        plan: Plan = half(other.plan) if is_half else other.plan
        if plan.name != claimed.plan.name:
            yield name, replace(other, plan=plan), False
