"""The options of a call of the operator, as PyTorch passes them on and as `attend` takes them."""

from typing import Any, NamedTuple

from roundscope.attention.grammar.text import plan_of
from roundscope.attention.inputs.alignment import Alignment


class Options(NamedTuple):
    """The arguments of a call that are no tensors, in the order in which the operators take them.

    See `attention.torch.operator.attention`; the plan is its text.
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
    learns: bool  # whether the mask is a bias that has a gradient

    def of_attend(self) -> dict[str, Any]:
        """Return the arguments of `attend` and `examine`."""
        given = self._asdict() | {"plan": plan_of(self.plan)}
        del given["learns"]
        return given
