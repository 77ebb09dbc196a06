"""`Operation`: what is said of one operation, in the file that has its equations.

An operation reads arrays of rows (tokens) and parameters, and its equations run on two-dimensional
arrays of numbers in binary64, in NumPy and in JAX. Each result that a kernel may round is an event
(`at(site, value)`), and each sum of products is added up by the plan's accumulator
(`at.product(site, a, b)`), as in attention.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64
from roundscope.events.plan import BasePlan
from roundscope.events.sites import SiteBase


class Shape(StrEnum):
    """How an array of a call is shaped, and how the equations get it."""

    ROWS = "(..., F)"
    """One row per token, whose leading axes are flattened: (R, F)."""
    NUMBERS = "(...)"
    """One number per token, such as a class or a position: (R,)."""
    SHARED = "(F,) or (F, G)"
    """The same for all tokens, as a parameter: as it is."""


class Value(NamedTuple):
    """An input or an output of an operation.

    Attributes:
        name: Its name.
        site: The event that rounds it; None for whole numbers, which are not rounded.
        shape: How it is shaped.
        optional: Whether a call may leave it out, an input that is then None, or may not return it.
    """

    name: str
    site: SiteBase | None
    shape: Shape = Shape.ROWS
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """An operation of a transformer step.

    Args:
        name: Its name, such as "rms_norm".
        number: Its number among operations, from 1 to 255, which never changes: random bits of
            stochastic rounding depend on it.
        plan: Its class of plans, which has its sites, sums and choices.
        inputs: What it reads, in the order in which `forward` takes it.
        outputs: What it returns, in the order of `forward`.
        forward: The equations: a function `(at, settings, *inputs) -> outputs`, with an
            `events.hook.Events` of its plan as `at`, on arrays of binary64. Behind the outputs it
            may return what `backward` reads.
        backward: The equations of the gradients: a function (at, settings, what `forward` returns
            behind the outputs, gradients of the outputs) -> a dictionary of gradients by the name
            of the input; None if it has none. `at` is the same.
        settings: What a call says beside arrays and has no arithmetic, such as eps, with defaults.
        by_result: Inputs of which entry g along the first axis is read by feature g of the outputs
            alone, such as the weight of a linear layer.
        published: Functions that make its plans, by name: "exact", "fp32" and those of
            implementations, each with its source in its docstring.
    """

    name: str
    number: int
    plan: type[BasePlan]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    forward: Callable[..., tuple[Array, ...]]
    backward: Callable[..., dict[str, Array]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_result: tuple[str, ...] = ()
    published: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


P = TypeVar("P", bound=BasePlan)


def in_bf16(plan: type[P], name: str, *sites: SiteBase) -> P:
    """Return the plan in which these events round to BF16, and all others to binary32."""
    return plan.everywhere(name, BINARY32).rounded(dict.fromkeys(sites, BF16), name)


def published(plan: type[P], *makers: Callable[[], P]) -> dict[str, Callable[[], P]]:
    """Return functions that make the plans of an operation, by name.

    makers: functions whose name, with - in place of _, is that of their plan. Before them come
        "exact", which is in binary64, and "fp32", in which every event and every step of a sum
        rounds to binary32.
    """
    return {
        "exact": partial(plan.everywhere, "exact", BINARY64),
        "fp32": partial(plan.everywhere, "fp32", BINARY32),
        **{make.__name__.replace("_", "-"): make for make in makers},
    }


class Call(NamedTuple):
    """One call of an operation, captured or made up, in the types of the caller.

    operation  its name
    inputs     arrays by name
    settings   what differs from the operation's defaults
    outputs    arrays by name, of a call that was captured
    """

    operation: str
    inputs: Mapping[str, Any]
    settings: Mapping[str, Any] = {}
    outputs: Mapping[str, Any] = {}
