"""The addition of a residual, a + b."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.operation import Operation, Value, in_bf16, published


class Site(SiteBase):
    """The events of an addition."""

    A = "A", "a", Axes.RF, "inputs", 0
    B = "B", "b", Axes.RF, "inputs", 1
    OUT = "OUT", "A + B", Axes.RF, "forward", 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of an addition."""

    SITES: ClassVar = Site


def forward(
    at: Events[Plan, Rows], settings: Mapping[str, Any], a: Array, b: Array
) -> tuple[Array, ...]:
    """Return (out,), for a and b of shape (R, F)."""
    return (at(Site.OUT, at(Site.A, a) + at(Site.B, b)),)


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, ...],
    gradients: tuple[Array, ...],
) -> dict[str, Array]:
    """Return the gradients of a and b, both that of the sum."""
    return dict.fromkeys(("a", "b"), gradients[0])


def torch_cpu() -> Plan:
    """Return torch's addition of two tensors of one type, which every implementation has: the sum
    rounded once.

    Equal in every bit in BF16, FP16 and FP32 (tests/operations/test_gated.py).
    """
    return in_bf16(Plan, "torch-cpu", *Site)


ADD = Operation(
    name="add",
    number=8,
    plan=Plan,
    inputs=(Value("a", Site.A), Value("b", Site.B)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    published=published(Plan, torch_cpu),
)
