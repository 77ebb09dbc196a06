"""The plan that a kernel claims, with the tiles on which it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.attention import examine
from roundscope.attention.arguments import block_given, plan_given
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.twins import TWINS, Tiles, always
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import RESULTS
from roundscope.events.plan import half

TILE = 128  # of plans that are no twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A plan with the tiles on which it runs: those of its kernel, where no others are given."""

    plan: Plan
    tiles: Tiles
    block_q: int | None = None
    block_k: int | None = None

    def outputs(self, x: Inputs, backward: bool) -> Outputs:
        """Return what the plan gives on some inputs; without L, where that is in base 2."""
        do = x.do if backward else None
        block_q, block_k = self.tiles(x.q.shape[-1], x.is_cut)
        how: Any = {
            "plan": self.plan,
            "record": None,
            "engine": "numpy",
            "block_q": self.block_q or block_q,
            "block_k": min(self.block_k or block_k, x.k.shape[1]),
        }
        with np.errstate(all="ignore"):
            results = examine(x.q, x.k, x.v, do, **how, **x.options)
        names = RESULTS if backward else ("out",)
        lse = None if self.plan.lse_base2 else np.asarray(results.lse).swapaxes(1, 2)
        found = {n: np.asarray(getattr(results, n), np.float32) for n in names}
        return Outputs(lse=lse, **found)


def reference(
    plan: Plan | str,
    dtype: str = "bfloat16",
    block_q: int | None = None,
    block_k: int | None = None,
    changes: Sequence[str] = (),
) -> Reference:
    """Return a plan with its tiles: those given, or a twin's own, also where words change it, or
    128.

    `changes` are changes of the plan in words (docs/reference/grammar.md).

    In FP16 a plan that is given by its name has FP16 in place of BF16.
    """
    twin = TWINS.get(plan.partition(";")[0].strip()) if isinstance(plan, str) else None
    chosen = plan_given(plan)
    if dtype == "float16" and isinstance(plan, str):
        chosen = half(chosen)
    if changes:
        chosen = chosen.changed(*changes)
    return Reference(
        plan=chosen,
        tiles=twin.tiles if twin else always(TILE, TILE),
        block_q=None if block_q is None else block_given("block_q", block_q),
        block_k=None if block_k is None else block_given("block_k", block_k),
    )
