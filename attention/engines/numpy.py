"""The NumPy engine: heads in a thread pool, tiles in Python, numbers in Numba kernels."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from roundscope.attention.engines.layout import from_heads, to_heads
from roundscope.attention.sites import Site
from roundscope.attention.tiles import backward as backward_of
from roundscope.attention.tiles import forward as forward_of
from roundscope.attention.tiles import loops
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.numba.ops import numpy_ops, stack
from roundscope.emu.rounding.modes import BINARY32

Arrays = tuple[np.ndarray, ...]


def _each(function: Any, count: int) -> Any:
    """function(0 .. count - 1), stacked."""

    def quietly(h: int) -> Any:
        with np.errstate(
            all="ignore"
        ):  # overflow, inf - inf and NaN are results here, counted by the trace
            return function(h)

    with ThreadPoolExecutor(min(count, numba.get_num_threads())) as pool:
        return stack(list(pool.map(quietly, range(count))))


Setups = tuple[Setup, ...]


def prepare(setups: Setup | Setups) -> tuple[Setup, Setups | None]:
    """What the calls below take: a setup, and those of batch entries that have one each."""
    return (setups, None) if isinstance(setups, Setup) else (setups[0], setups)


def _own(setup: Setup, each: Setups | None, head: int, heads: int) -> tuple[Setup, int]:
    """The setup of one of all `heads`, and its number: with a plan of its own, a batch entry is a
    call of its own.
    """
    if each is None:
        return setup, head
    group = heads // len(each)
    return each[head // group], head % group


def round_inputs(
    setup: Setup, site: Site, x: np.ndarray, each: Setups | None = None
) -> tuple[np.ndarray, Any]:
    """x: (heads, rows, features)."""

    def one(h: int) -> Any:
        own, number = _own(setup, each, h, x.shape[0])
        return loops.round_inputs(numpy_ops(), own, number, site, x[h])

    return _each(one, x.shape[0])


def forward(
    setup: Setup,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None,
    each: Setups | None = None,
    sinks: np.ndarray | None = None,
) -> Any:
    """q: (heads, T, H); k, v: (key heads, S, H), rounded; mask: (heads, T, S) or None; sinks:
    (heads,) or None.
    """
    group = q.shape[0] // k.shape[0]

    def one(h: int, mask: np.ndarray | None = mask) -> Any:
        own, number = _own(setup, each, h, q.shape[0])
        m, sink = (None if x is None else x[h] for x in (mask, sinks))
        return forward_of.forward(
            numpy_ops(), own, number, q[h], k[h // group], v[h // group], m, sink
        )

    results, seen = _each(one, q.shape[0])
    return results, _with_tiles(seen, q.shape[0], lambda: one(0, None)[1])


def backward(
    setup: Setup,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None,
    out: np.ndarray,
    wide: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    each: Setups | None = None,
    sinks: np.ndarray | None = None,
) -> Any:
    """Gradients of heads, and what was seen of tiles, wholes and key heads."""
    group = q.shape[0] // k.shape[0]

    def one(h: int, mask: np.ndarray | None = mask) -> Any:
        g = h // group
        m, sink = (None if x is None else x[h] for x in (mask, sinks))
        own, number = _own(setup, each, h, q.shape[0])
        return backward_of.backward(
            numpy_ops(), own, number, q[h], k[g], v[g], m, out[h], wide[h], lse[h], do[h], sink
        )

    def rounded(g: int) -> Any:
        own, number = _own(setup, each, g, k.shape[0])
        return backward_of.round_key_gradients(numpy_ops(), own, number, dk[g], dv[g])

    (dq, dk, dv, delta), seen = _each(one, q.shape[0])
    dk, dv = (x.reshape(-1, group, *x.shape[1:]) for x in (dk, dv))
    (dk, dv), seen_keys = _each(rounded, k.shape[0])
    seen = _with_tiles(seen, q.shape[0], lambda: one(0, None)[1])
    return (dq, dk, dv, delta), seen | {"keys": seen_keys}


def sink_gradients(
    setup: Setup, sinks: np.ndarray, lse: np.ndarray, delta: np.ndarray, each: Setups | None = None
) -> Any:
    """The gradients of sinks (heads,), and what was seen."""

    def one(h: int) -> Any:
        own, number = _own(setup, each, h, lse.shape[0])
        return backward_of.sink_gradients(numpy_ops(), own, number, sinks[h], lse[h], delta[h])

    return _each(one, lse.shape[0])


def enter_sinks(sinks: np.ndarray, batch: int) -> np.ndarray:
    """Sinks (N,) as the carrier, exactly: (B N,)."""
    return np.tile(np.asarray(sinks).astype(np.float64), batch)


def leave_sinks(x: np.ndarray, batch: int, dtype: Any) -> np.ndarray:
    """Gradients of sinks (B N,) added over the batch: (N,), in float64, or in float32 by one
    rounding.
    """
    total = backward_of.by_halves(np, x.reshape(batch, -1))
    return (
        total
        if dtype == np.float64
        else numpy_ops().round(total, BINARY32, None).astype(np.float32)
    )


def _with_tiles(seen: Any, heads: int, of_a_head: Callable[[], Any]) -> Any:
    """What was seen; of calls in which no score exists, where no tile was met, with zeros like
    those of a head whose tiles are.
    """
    if seen["tiles"] is not None:
        return seen
    with np.errstate(all="ignore"):
        like = of_a_head()["tiles"]
    return seen | {"tiles": _zeros(like, heads)}


def _zeros(like: Any, heads: int) -> Any:
    if isinstance(like, dict):
        return {name: _zeros(part, heads) for name, part in like.items()}
    if isinstance(like, tuple):
        return tuple(_zeros(part, heads) for part in like)
    return np.zeros((heads, *like.shape), like.dtype)


def enter(x: np.ndarray, block: int) -> np.ndarray:
    """Any float array (B, T, N, H) as the carrier, exactly, head by head in whole tiles."""
    return to_heads(np, np.asarray(x).astype(np.float64), block)


def leave(x: np.ndarray, batch: int, rows: int, dtype: Any) -> np.ndarray:
    """Heads as (B, T, N, ...), in float64, or in float32 by one rounding."""
    x = from_heads(x, batch, rows)
    return x if dtype == np.float64 else numpy_ops().round(x, BINARY32, None).astype(np.float32)
