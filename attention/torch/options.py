"""The arguments of a call of the operator that are no tensors."""

from typing import Any, NamedTuple

from roundscope.attention.alignment import Alignment
from roundscope.attention.grammar.text import plan_of


class Options(NamedTuple):
    """The arguments of a call that are no tensors, as the operators take them.

    Attributes:
        plan: The text of the plan.
        is_causal: See `attention`, as for the rest.
        scale: See `attention`.
        block_q: See `attention`.
        block_k: See `attention`.
        window: See `attention`.
        softcap: See `attention`.
        engine: "numpy", "xla" or "pallas".
        alignment: See `attention`.
    """

    plan: str
    is_causal: bool
    scale: float | None
    block_q: int
    block_k: int
    window: int | None
    softcap: float | None
    engine: str
    alignment: Alignment | None

    def of_attend(self) -> dict[str, Any]:
        """Return the arguments of `attend` and `examine`."""
        return self._asdict() | {"plan": plan_of(self.plan)}
