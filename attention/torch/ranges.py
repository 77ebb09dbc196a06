"""What a plan's formats lose of the numbers of a call, because their range is too small for them.

`use` looks once at each layer that runs on such a plan: at one batch entry and the query heads of
one key head, in the first step.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from roundscope.attention.api import examine
from roundscope.attention.inputs.float_masks import parted
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.attention.torch.arrays import numpy_of
from roundscope.attention.torch.call import Call
from roundscope.emu.blocks.format import BlockFormat

WEIGHTS = ("P", "P_B")  # of which most are near 0, and whose loss changes little
TOO_MANY = 0.25  # the share of an event's numbers that are lost or have lost bits
LARGE = 127  # the largest exponent of BF16 and FP32; others have a smaller range


def narrow_events(plan: Plan) -> list[str]:
    """Return the names of a plan's events whose format has a smaller range than BF16, unscaled."""
    found = []
    for site in Site:
        event = plan.event(site)
        is_scaled = isinstance(event, BlockFormat) or str(site) in WEIGHTS
        if not is_scaled and plan[site].format.emax < LARGE:
            found.append(str(site))
    return found


def lost_range(call: Call, plan: Plan, do: Tensor | None, how: Mapping[str, Any]) -> str:
    """Return which events of a call lose numbers, in words; "" if none does.

    Args:
        call: The call.
        plan: Its plan.
        do: The gradient of its output (B, N, T, Hv); None without a backward.
        how: The other arguments of `examine`.
    """
    group = call.q.shape[1] // call.k.shape[1]

    def array(x: Tensor, heads: int) -> np.ndarray:
        return numpy_of(x.detach()[:1, :heads].transpose(1, 2).contiguous().cpu())

    given = [array(call.q, group), array(call.k, 1), array(call.v, 1)]
    own: dict[str, Any] = {n: x for n, x in how.items() if n not in ("mask", "sinks", "plan")}
    if (mask := how.get("mask")) is not None:
        part = mask.expand(*call.q.shape[:3], call.k.shape[2])[:1, :group]
        table = numpy_of(part.detach().contiguous().cpu())
        own["mask"], own["bias"] = parted(table) if mask.is_floating_point() else (table, None)
    if (sinks := how.get("sinks")) is not None:
        own["sinks"] = numpy_of(sinks.detach()[:group].cpu())
    gradient = None if do is None else array(do.to(call.q.dtype), group)
    q, k, v = given
    stats = examine(q, k, v, gradient, plan=plan, **own).trace.stats
    words = []
    for name in narrow_events(plan):
        if name not in stats:
            continue
        s = stats[name].total()
        count = max(int(s.n), 1)
        small, large = int(s.underflow + s.subnormal) / count, int(s.overflow)
        to = plan[Site[name]].format.name
        if large:
            words.append(f"{large:,} of {count:,} numbers of {name} are too large for {to}")
        if small > TOO_MANY:
            zero = int(s.underflow) / count
            words.append(
                f"{small:.0%} of {name} are below the normal numbers of {to} ({zero:.0%} become 0)"
            )
    return "; ".join(words)
