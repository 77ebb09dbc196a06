"""FlashAttention written once over named rounding events: `attend`, `examine`, plans, sites, injections, traces."""

from attention.attend import Examined, attend, examine
from attention.events import Record
from attention.injection import AddUlps, Bias, Exact, FlipBit, Injection, Noise, SetTo
from attention.plan import DeltaFrom, Plan, Stabiliser
from attention.presets import PRESETS
from attention.rotation import rotated
from attention.sites import PRODUCTS, Axes, Site
from attention.trace import Trace

__all__ = [
    "PRESETS", "PRODUCTS", "AddUlps", "Axes", "Bias", "DeltaFrom", "Exact", "Examined", "FlipBit", "Injection",
    "Noise", "Plan", "Record", "SetTo", "Site", "Stabiliser", "Trace", "attend", "examine", "rotated",
]  # fmt: skip
