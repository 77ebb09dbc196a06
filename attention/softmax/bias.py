"""A bias B that is added to the scaled scores: T5 (arXiv 1910.10683), ALiBi (arXiv 2108.12409).

The events are SCALED = scale S (or c TANH under a softcap), BIAS, the bias as its own cast leaves
it, and BIASED = SCALED + BIAS, each rounded. Where SCALED is in binary64, which holds the product,
BIASED is one multiply-add. The gradient of B is dS without the scale, as its register
has it, event DBIAS.
"""

from dataclasses import replace

from roundscope.attention.hook import Events
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.backends.ops import Array
from roundscope.emu.sums.odd import sum_to_round

FORWARD = (Site.SCALED, Site.BIASED)
BACKWARD = (Site.SCALED_B, Site.BIASED_B)


def biased(
    at: Events, scale: Array | float, s: Array, sites: tuple[Site, Site] = FORWARD
) -> tuple[Array | float, Array]:
    """Return the factor of the scores and the scores (bq, bk): 1 and scale S + B in calls with a
    bias, else the arguments.

    sites: the sites of SCALED and BIASED, in the forward or in the backward, whose BIAS is that of
    the forward and is not recorded again
    """
    if at.bias is None:
        return scale, s
    scaled = at(sites[0], at.ops.multiply(s, scale))
    own = at if sites is FORWARD else replace(at, recorder=None)
    parts = map(at.ops.hidden, (scaled, own(Site.BIAS, at.bias)))
    precision = at.plan[sites[1]].format.precision
    return 1.0, at(sites[1], sum_to_round(at.ops, precision, *parts))


def times_scale(at: Events, site: Site, s: Array, scale: Array | float) -> Array:
    """Return the event of scale S; S itself where a bias was added, which is scaled already."""
    return s if at.bias is not None else at(site, at.ops.multiply(s, scale))


def has_wide_scores(plan: Plan) -> bool:
    """Return whether the scaled scores are wider than binary32, so that the scale is not rounded to
    it. With a bias they are BIASED: SCALED may then be the product of a multiply-add.
    """
    last = Site.BIASED if plan.biased else Site.SCALED
    return plan[last].format.precision > 24
