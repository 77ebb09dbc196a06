"""`Engine`: the functions that a module of this folder has if it runs heads, and the four of them.

Arrays are of all heads, with heads as the first axis: those of query heads, or, for k, v, dK and
dV, of key heads. `plans` are the plans of batch entries or of heads, in the form in which the
engine made them (`prepare`, `by_head`), or None if the plan of the setup is that of all heads.
"""

from typing import Any, Literal, Protocol, TypeAlias

from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals, Results
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import Rounding
from roundscope.events.recorder import Seen

Name = Literal["numpy", "xla", "pallas"]
Plans: TypeAlias = Any  # its type belongs to the engine


class Engine(Protocol):
    """What runs the heads of a call; all engines give the same bits."""

    def enter(self, x: AnyArray, block: int, /) -> Array:
        """Return (B, T, N, H) converted exactly to binary64: (B N, T in whole tiles, H)."""

    def leave(self, x: Array, batch: int, rows: int, dtype: Any, /) -> AnyArray:
        """Return arrays of heads as (B, T, N, ...), in a type that holds them or in float32."""

    def round_inputs(
        self, setup: Setup, site: Site, x: Array, plans: Plans = None, /
    ) -> tuple[Array, Seen]:
        """Return an input (heads, rows, features) after its event, and what was recorded."""

    def forward(
        self, setup: Setup, inputs: Inputs, plans: Plans = None, /
    ) -> tuple[Results, dict[str, Seen]]:
        """Return the results, and what was recorded of "tiles" and of the "whole"."""

    def backward(
        self, setup: Setup, given: Residuals, do: Array, plans: Plans = None, /
    ) -> tuple[Gradients, dict[str, Seen]]:
        """Return gradients, and what was recorded of "tiles", of the "whole" and of "keys".

        do: (heads, T, Hv), rounded. dK and dV are the gradients of key heads.
        """

    def sink_gradients(
        self, setup: Setup, sinks: Array, lse: Array, delta: Array, plans: Plans = None, /
    ) -> tuple[Array, Seen]:
        """Return the gradients of the sinks of all heads, (heads,), and what was recorded."""

    def enter_sinks(self, sinks: AnyArray, batch: int, /) -> Array:
        """Return sinks (N,), converted exactly to binary64, for every batch entry: (B N,)."""

    def leave_sinks(self, x: Array, batch: int, dtype: Any, /) -> AnyArray:
        """Return gradients of sinks (B N,), added up over the batch: (N,), of the type dtype."""

    def enter_bias(self, setup: Setup, bias: AnyArray, batch: int, /) -> Array:
        """Return a bias that broadcasts to (B, N, T, S), converted exactly: (B N, T, S)."""

    def leave_bias(
        self, setup: Setup, x: Array, batch: int, shape: tuple[int, ...], dtype: Any, /
    ) -> AnyArray:
        """Return gradients (B N, T, S), added up to the shape of the bias, of the type dtype."""


class Examining(Engine, Protocol):
    """An engine that also takes plans of batch entries; `examine` needs no more."""

    def prepare(self, setups: Setup | tuple[Setup, ...], /) -> tuple[Setup, Plans]:
        """Return the setup of the calls above, and the plans of batch entries."""


class Differentiable(Engine, Protocol):
    """An engine for `attend` inside programs of JAX, which keep arrays for the backward."""

    def by_head(self, setup: Setup, plans: Any, batch: int, /) -> Plans:
        """Return the plans of query heads, a `HeadPlans`, for so many batch entries."""

    def cast(self, rounding: Rounding, x: AnyArray, /) -> AnyArray:
        """Return an input rounded, or unchanged if `round_inputs` rounds it."""

    def stored(self, setup: Setup, plans: Plans, given: Residuals, /) -> Residuals:
        """Return arrays as they are kept between the forward and the backward."""

    def loaded(self, kept: Residuals, /) -> Residuals:
        """Return the arrays that `stored` was given, in binary64."""


def examining(name: Name) -> Examining:
    """Return the engine with a name, whose module is imported now."""
    if name == "numpy":
        from roundscope.attention.engines import numpy

        return numpy
    if name == "xla":
        from roundscope.attention.engines import xla

        return xla
    from roundscope.attention.engines.kernels import engine

    return engine


def differentiable(name: Name) -> Differentiable:
    """Return the engine with a name for programs of JAX: for "numpy" that which calls it there."""
    if name == "numpy":
        from roundscope.attention.engines import host

        return host
    if name == "xla":
        from roundscope.attention.engines import xla

        return xla
    from roundscope.attention.engines.kernels import engine

    return engine
