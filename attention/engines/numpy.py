"""The NumPy engine: heads run in a thread pool, tiles in Python, and numbers in Numba kernels.

Every function takes the arrays of all heads (`attention.engines.protocol`). If each batch entry has
a plan of its own, it also takes the setups of the batch entries (`each`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from roundscope.attention.engines import fused
from roundscope.attention.engines.fused import Heads, arrays, on_threads
from roundscope.attention.engines.layout import (
    from_heads,
    scores_from_heads,
    scores_to_heads,
    to_heads,
)
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.sites import Site
from roundscope.attention.tiles import backward as backward_of
from roundscope.attention.tiles import forward as forward_of
from roundscope.attention.tiles import loops
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Gradients, Inputs, Residuals, Results
from roundscope.emu.arrays import Array as AnyArray
from roundscope.emu.backends.numba.ops import numpy_ops, stack
from roundscope.emu.backends.ops import Ops, mapped
from roundscope.emu.roundings.modes import BINARY32, RoundingMode
from roundscope.events.recorder import Seen

Floats: TypeAlias = NDArray[np.float64]
Left: TypeAlias = NDArray[np.float64] | NDArray[np.float32]
Setups: TypeAlias = tuple[Setup, ...]
Result = TypeVar("Result")


def _each(function: Callable[[int], Result], count: int) -> Result:
    """Return the results of function(0) to function(count - 1), with their arrays stacked."""
    stacked: Result = stack(on_threads(function, count))
    return stacked


def prepare(setups: Setup | Setups) -> tuple[Setup, Setups | None]:
    """Return the arguments of the calls below: a setup, and the setups of batch entries or None."""
    return (setups, None) if isinstance(setups, Setup) else (setups[0], setups)


def _own(setup: Setup, each: Setups | None, head: int, heads: int) -> tuple[Setup, int]:
    """Return the setup of a head of so many, and its number in random streams and injections.

    A batch entry with a plan of its own counts as a separate call, so its heads count from 0.
    """
    if each is None:
        return setup, head
    group = heads // len(each)
    return each[head // group], head % group


def _ops(setup: Setup, heads: int) -> Ops:
    """Return the operations of a call with so many heads, with programs if they pay."""
    scores = heads * setup.query_tiles * setup.block_q * setup.key_tiles * setup.block_k
    if not fused.is_covered(setup, scores):
        return numpy_ops()
    return replace(numpy_ops(), programs=fused.programs(setup))


def has_programs(setup: Setup, heads: int) -> bool:
    """Return whether programs compute the tiles of a call with so many heads."""
    plan = setup.plan
    is_random = any(r.mode is RoundingMode.STOCHASTIC for r in plan.roundings)
    has_steps = not (plan.split_tiles or plan.blocks or is_random)
    return has_steps and _ops(setup, heads).programs is not None


def _runs_in_step(setup: Setup, heads: int, *own: Any) -> bool:
    """Return whether so many heads run in step (`Heads`): if programs compute all of them.

    own: what a head or a batch entry has of its own: a mask, a sink, a plan; or None.
    """
    from_out = setup.plan.delta_from in (DeltaFrom.OUT, DeltaFrom.WIDE_O)
    is_same = all(x is None for x in own)
    return is_same and from_out and has_programs(setup, heads)


def _in_step(function: Callable[[None], Any], heads: int) -> Any:
    """Return the results of all heads, which run in step; function: None -> their `Heads`."""
    with np.errstate(all="ignore"):
        return arrays(function(None), heads)


def _of(x: Any, head: int | None, group: int = 1) -> Any:
    """Return the array of a head, or `Heads` of all; group: how many query heads share an array."""
    if x is None:
        return None
    if head is not None:
        return x[head // group]
    return Heads(x if group == 1 else np.repeat(x, group, axis=0))


def _inputs_of(inputs: Inputs, head: int | None) -> Inputs:
    """Return the inputs of a query head, or of all."""
    q, k, v, *own = inputs
    group = q.shape[0] // k.shape[0]
    of_group = (_of(x, head, group) for x in (k, v))
    return Inputs(_of(q, head), *of_group, *(_of(x, head) for x in own))


def round_inputs(
    setup: Setup, site: Site, x: Floats, each: Setups | None = None
) -> tuple[Floats, Seen]:
    """Return an input tensor (heads, rows, features) after its event, and what was recorded."""

    def one(h: int | None) -> tuple[Floats, Seen]:
        own, number = _own(setup, each, h or 0, x.shape[0])
        return loops.round_inputs(_ops(own, x.shape[0]), own, number, site, _of(x, h))

    over = _in_step if _runs_in_step(setup, x.shape[0], each) else _each
    return over(one, x.shape[0])


def forward(
    setup: Setup, inputs: Inputs, each: Setups | None = None
) -> tuple[Results, dict[str, Seen]]:
    """Return the results of all heads, and what was recorded."""
    heads = inputs.q.shape[0]

    def one(h: int | None, inputs: Inputs = inputs) -> tuple[Results, dict[str, Seen | None]]:
        own, number = _own(setup, each, h or 0, heads)
        mine = _inputs_of(inputs, h)
        own = loops.with_scales(numpy_ops(), own, mine)
        return forward_of.forward(_ops(own, heads), own, number, mine)

    over = _in_step if _runs_in_step(setup, heads, *inputs[3:], each) else _each
    results, seen = over(one, heads)
    return results, _with_tiles(seen, heads, lambda: one(0, inputs._replace(mask=None))[1])


def backward(
    setup: Setup, given: Residuals, do: Floats, each: Setups | None = None
) -> tuple[Gradients, dict[str, Seen]]:
    """Return dQ, dK, dV, delta and dB, and what was recorded of tiles, of heads and of key heads.

    dK and dV are the gradients of key heads. do is (heads, T, Hv), rounded.
    """
    results, heads, keys = given.results, do.shape[0], given.inputs.k.shape[0]
    setup = loops.of_backward(setup)
    inputs = loops.in_whole_tiles(np, setup, given.inputs)
    each = None if each is None else tuple(map(loops.of_backward, each))

    def one(h: int | None, inputs: Inputs = inputs) -> tuple[Gradients, dict[str, Seen | None]]:
        own, number = _own(setup, each, h or 0, heads)
        mine = Residuals(_inputs_of(inputs, h), Results(*(_of(x, h) for x in results)))
        return backward_of.backward(_ops(own, heads), own, number, mine, _of(do, h))

    def rounded(g: int | None) -> tuple[tuple[Floats, Floats], Seen]:
        own, number = _own(setup, each, g or 0, keys)
        return backward_of.round_key_gradients(
            _ops(own, heads), own, number, _of(dk, g), _of(dv, g)
        )

    own = inputs.mask, inputs.sink, inputs.bias, each
    over = _in_step if _runs_in_step(setup, heads, *own) else _each
    found, seen = over(one, heads)
    dk, dv = (x.reshape(-1, heads // keys, *x.shape[1:]) for x in (found.dk, found.dv))
    (dk, dv), seen_keys = over(rounded, keys)
    met = _with_tiles(seen, heads, lambda: one(0, inputs._replace(mask=None))[1])
    return found._replace(dk=dk, dv=dv), met | {"keys": seen_keys}


def sink_gradients(
    setup: Setup, sinks: Floats, lse: Floats, delta: Floats, each: Setups | None = None
) -> tuple[Floats, Seen]:
    """Return the gradients of the sinks of all heads, (heads,), and what was recorded."""

    def one(h: int) -> tuple[Floats, Seen]:
        own, number = _own(setup, each, h, lse.shape[0])
        return backward_of.sink_gradients(numpy_ops(), own, number, sinks[h], lse[h], delta[h])

    return _each(one, lse.shape[0])


def enter_sinks(sinks: AnyArray, batch: int) -> Floats:
    """Return sinks (N,), converted exactly to binary64, for every batch entry: (B N,)."""
    return np.tile(np.asarray(sinks).astype(np.float64), batch)


def leave_sinks(x: Floats, batch: int, dtype: Any) -> Left:
    """Return gradients of sinks (B N,) added up over the batch, (N,).

    They are in float64, or rounded once to float32, as dtype says.
    """
    with np.errstate(all="ignore"):
        return _left(backward_of.by_halves(np, x.reshape(batch, -1)), dtype)


def enter_bias(setup: Setup, bias: AnyArray, batch: int) -> Floats:
    """Return a bias that broadcasts to (B, N, T, S), converted exactly to binary64: (B N, T, S)."""
    heads: Floats = scores_to_heads(np, np.asarray(bias).astype(np.float64), setup, batch)
    return heads


def leave_bias(setup: Setup, x: Floats, batch: int, shape: tuple[int, ...], dtype: Any) -> Left:
    """Return gradients of a bias (B N, T, S), added up to the shape of the bias.

    They are in float64, or rounded once to float32, as dtype says.
    """
    with np.errstate(all="ignore"):
        return _left(scores_from_heads(np, x, setup, batch, shape), dtype)


def _with_tiles(
    seen: dict[str, Seen | None], heads: int, of_a_head: Callable[[], dict[str, Seen | None]]
) -> dict[str, Seen]:
    """Return what was recorded, with zeros for the tiles of a call in which no score exists.

    No tile was computed in such a call. The zeros have the shapes of what a head records if its
    tiles are computed.
    """
    found = {name: part for name, part in seen.items() if part is not None}
    if "tiles" in found:
        return found
    with np.errstate(all="ignore"):
        like = of_a_head()["tiles"]
    zeros = mapped(lambda x: np.zeros((heads, *x.shape), x.dtype), like)
    return found | {"tiles": zeros}


def enter(x: AnyArray, block: int) -> Floats:
    """Return an array (B, T, N, H) converted exactly to binary64, as (B N, T in whole tiles, H)."""
    heads: Floats = to_heads(np, np.asarray(x).astype(np.float64), block)
    return heads


def leave(x: Floats, batch: int, rows: int, dtype: Any) -> Left:
    """Return arrays of heads as (B, T, N, ...), in float64, or rounded once to float32."""
    return _left(from_heads(x, batch, rows), dtype)


def _left(x: Floats, dtype: Any) -> Left:
    """Return x as it is if dtype is float64, else rounded to binary32, in float32."""
    if dtype == np.float64:
        return x
    narrow: NDArray[np.float32] = numpy_ops().round(x, BINARY32, None).astype(np.float32)
    return narrow
