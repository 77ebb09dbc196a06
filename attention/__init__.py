"""FlashAttention written once over named rounding events: `attend`, `examine`, plans, sites,
injections, traces.
"""

from typing import TYPE_CHECKING, Any

from roundscope.attention.api import Examined, attend, examine
from roundscope.attention.budget.measure import error_budget
from roundscope.attention.budget.table import ErrorBudget
from roundscope.attention.grammar.changes import changed
from roundscope.attention.grammar.injections import injection_of
from roundscope.attention.grammar.roundings import accumulator_words
from roundscope.attention.grammar.text import expression_of
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.packed import Packed, attend_packed, packed_sequences
from roundscope.attention.inputs.rotation import rotated
from roundscope.attention.plans.choices import DeltaFrom, Stabiliser, Stabilizer
from roundscope.attention.plans.named import preset
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.sizes import plan_of_call
from roundscope.attention.recording import Record
from roundscope.attention.rows import row_sums
from roundscope.attention.sites import PRODUCTS, Axes, Site
from roundscope.attention.trace.summary import Trace
from roundscope.events.injection import AddUlps, Bias, Exact, FlipBit, Noise, SetTo
from roundscope.events.readers import READERS

if TYPE_CHECKING:
    from roundscope.attention.plans.traced import head_plans, reseeded

__all__ = [
    "PRESETS",
    "PRODUCTS",
    "AddUlps",
    "Axes",
    "Bias",
    "DeltaFrom",
    "ErrorBudget",
    "Exact",
    "Examined",
    "FlipBit",
    "Injection",
    "Noise",
    "Packed",
    "Plan",
    "Record",
    "SetTo",
    "Site",
    "Stabiliser",
    "Stabilizer",
    "Trace",
    "attend",
    "attend_packed",
    "error_budget",
    "examine",
    "head_plans",
    "packed_sequences",
    "plan_of_call",
    "reseeded",
    "rotated",
    "row_sums",
]

READERS.update(preset=preset, changes=changed, expression=expression_of, injection=injection_of)
READERS["accumulator words"] = accumulator_words


def __getattr__(name: str) -> Any:
    """Return `head_plans` or `reseeded`, whose module imports JAX, when it is first used."""
    if name in ("head_plans", "reseeded"):
        from roundscope.attention.plans import traced

        return getattr(traced, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
