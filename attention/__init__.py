"""FlashAttention written once over named rounding events: `attend`, `examine`, plans, sites,
injections, traces.
"""

from roundscope.attention.api import Examined, attend, examine
from roundscope.attention.events.recorder import Record
from roundscope.attention.injection import AddUlps, Bias, Exact, FlipBit, Injection, Noise, SetTo
from roundscope.attention.plans.choices import DeltaFrom, Stabiliser
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.rotation import rotated
from roundscope.attention.sites import PRODUCTS, Axes, Site
from roundscope.attention.trace.summary import Trace

__all__ = [
    "PRESETS",
    "PRODUCTS",
    "AddUlps",
    "Axes",
    "Bias",
    "DeltaFrom",
    "Exact",
    "Examined",
    "FlipBit",
    "Injection",
    "Noise",
    "Plan",
    "Record",
    "SetTo",
    "Site",
    "Stabiliser",
    "Trace",
    "attend",
    "examine",
    "rotated",
]
