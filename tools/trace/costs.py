"""Which parts of an error budget matter, and what more bits for them would cost a kernel."""

from roundscope.attention.budget.parts import Part
from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import BLOCK_AXIS, FACTORS, Axes, Site
from roundscope.tools.tensors.layers import Layer

# dense rates of products on an H100 SXM in 10^12 operations per second, from NVIDIA's data sheet
RATES = {8: 1979, 16: 989, 32: 495}
INPUTS = (Site.Q, Site.K, Site.V, Site.DO)
VISIBLE = 1e-3  # share of the squared error below which a part has no line
WRITTEN = (Site.OUT, Site.DQ_OUT, Site.DK_OUT, Site.DV_OUT, Site.LSE)


def visible(budget: ErrorBudget) -> list[Line]:
    """Return the lines of a budget that matter to some result."""
    return [x for x in budget.lines if x.weight(budget.total) >= VISIBLE]


def cost(plan: Plan, part: Part, layer: Layer) -> str:
    """Return the cost of a part's promotion to binary32, or of what is in binary32 to binary64."""
    if not part.places:
        return "an injected error"
    if len(part.places) > 1:
        return "several events"
    ((site, is_sum),) = part.places
    bits = plan[site].format.bits
    if is_sum:
        core = plan.accumulator(site).alignment is not None
        return "additions outside the tensor core" if core else "additions in binary64"
    if bits >= 32:
        return "arithmetic in binary64"
    if site in WRITTEN:
        return f"{_size(_count(site, layer) * (32 - bits) / 8)} more to write"
    if site in BLOCK_AXIS:
        products = " and ".join(str(p) for p in FACTORS if site in plan.factors(p))
        factor = RATES[8 if bits <= 8 else 16] / RATES[32]
        rate = f"{products} in TF32, 1/{factor:.0f} of the rate"
        more = _size(_count(site, layer) * (32 - bits) / 8)
        return f"{rate}; {more} more to read" if site in INPUTS else rate
    return f"{(32 - bits) // 8} bytes of register more per value"


def _count(site: Site, layer: Layer) -> int:
    """Return how many numbers an event has in all heads."""
    (b, t, n, h), (_, s, g, hv) = layer.q.shape, layer.v.shape
    features = hv if site in (Site.V, Site.DO, Site.OUT, Site.DV_OUT) else h
    if site.axes is Axes.SH:
        return int(b * s * g * features)
    return int(b * t * n * (features if site.axes is Axes.TH else 1))


def _size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
