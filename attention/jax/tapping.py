"""`tap`: an attention function whose calls can be heard, and that is the plain function otherwise.

Whether somebody listens is part of the key of JAX's caches (`jax.make_user_context`). A jitted
function that was compiled before is therefore compiled again, with what listens built in, under
`capture` or `watch`, and afterwards runs its first program again. Nothing is cleared, and a program
that nobody hears has no trace of a tap.

What listens gets a call from its backward, all at once: q, k, v, out, dO, dQ, dK and dV. A forward
that is repeated for rematerialization therefore counts once. Only a call that is not differentiated
is handed over from its forward.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from roundscope.attention.arguments import causal_given, scale_given
from roundscope.attention.jax.options import Attention, Facts, Given, facts_of, given, scores_bias
from roundscope.attention.models.selection import Layer
from roundscope.emu.arrays import is_traced
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import check_count
from roundscope.emu.shown import shown

Arrays: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tapped function, as a listener is handed it while JAX traces.

    Attributes:
        layer: The layer, or None if its number is data (`number`), as under `jax.lax.scan`.
        number: The layer's number, an array ().
        facts: Scale, causality and the like.
        tensors: q (B, T, N, H), k, v and out; and do, dq, dk and dv if the call is differentiated.
            All leading axes, and those that `jax.vmap` maps over, are one: B.
        mask: None, or (B or 1, N or 1, T, S), bool or floats that are added to the scores.
        options: The arguments of the call that are arrays, with four axes each.
        run: The function itself on one entry of the batch, q (1, T, N, H) and so on, of whatever
            widths: run(q, k, v, options, **more). It is differentiable.
    """

    layer: Layer | None
    number: Array
    facts: Facts
    tensors: Arrays
    mask: Any
    options: Arrays
    run: Callable[..., Array]


class Listener(Protocol):
    """What hears the calls of tapped functions.

    Attributes:
        names: The numbers of layers that have only names, in the order in which they were heard.
    """

    names: dict[str, int]

    def hear(self, call: Call) -> None:
        """Take a call, while JAX traces; numbers leave by `jax.debug.callback`."""

    def wants(self, layer: Layer) -> bool:
        """Return whether calls of a layer are to be handed over."""


LISTENERS = jax.make_user_context(default_value=())


@contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Let these listeners, and no others, hear the calls of tapped functions in this thread."""
    with LISTENERS(listeners):
        yield


def heard_by() -> tuple[Listener, ...]:
    """Return what listens in this thread."""
    found: tuple[Listener, ...] = LISTENERS.value
    return found


@known_arguments
def tap(
    attention: Attention,
    name: str | None = None,
    *,
    number: int | None = None,
    is_causal: bool | None = None,
    scale: float | None = None,
) -> Attention:
    """Return an attention function that `capture` and `watch` can hear.

    It has the signature of `attention` and returns the same bits. Unless something listens, a call
    is the plain call. It works under `jax.jit`, `jax.grad`, `jax.lax.scan`, `jax.checkpoint` and
    `jax.vmap`, whose mapped entries count as entries of the batch. While something listens, forward
    derivatives (`jax.jvp`) are not supported, and programs that were compiled ahead of time
    (`.lower().compile()`) are not heard.

    Args:
        attention: A function of q (B, T, N, H), k (B, S, G, H) and v (B, S, G, Hv), with or
            without B, which returns (B, T, N, Hv). Its other arguments are recognized by the names
            of `jax.nn.dot_product_attention`: mask, bias, is_causal, scale, local_window_size,
            implementation. While something listens, others are refused unless they ask for nothing.
        name: The name of the layer that calls it. Without a name, every call has to say which
            layer it is, by an argument `layer`, such as `layer=3`. It may be traced, so that it
            works inside `jax.lax.scan`, where one call of the program is many layers.
        number: The number of the layer `name` among the layers of the model. By default, layers
            are numbered as their names are first heard.
        is_causal: Whether the function is causal, if it has no argument of that name.
        scale: The function's factor of the scores, if it has no argument `scale` and this factor
            is not 1 / sqrt(H).

    Returns:
        A function with the signature of `attention`, and `layer` if it has no name.

    Raises:
        TypeError: `attention` is not a function.

    Example:
        >>> import jax
        >>> from roundscope.jax import tap
        >>> attention = tap(jax.nn.dot_product_attention)
        >>> q = jax.numpy.ones((1, 4, 2, 8))
        >>> attention(q, q, q, is_causal=True, layer=0).shape
        (1, 4, 2, 8)
    """
    if not callable(attention):
        raise TypeError(f"attention={shown(attention)}: give a function of q, k and v")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise ValueError(f"name={shown(name)}: give the name of the layer, such as 'layers.0'")
    if number is not None:
        check_count("number", number, 0, "it is the number of the layer")
    if is_causal is not None:
        causal_given(is_causal)
    if scale is not None:
        scale_given(scale, 1, is_wide=False)

    @wraps(attention)
    def tapped(*args: Any, layer: Any = None, **options: Any) -> Any:
        listeners = heard_by()
        if not listeners:
            return attention(*args, **options)
        call = given(attention, args, options)
        facts = facts_of(attention, call, is_causal=is_causal, scale=scale)
        site = _Site(attention, call, facts, _layer_given(name, number, layer), listeners)
        return site.heard(layer)

    return tapped


def _layer_given(name: str | None, number: int | None, layer: Any) -> Layer | str | None:
    """Return the layer; its name, if its number is not said; None, if its number is data."""
    if (name is None) == (layer is None):
        raise ValueError(
            f"layer={layer}: a tap with a name ({name!r}) is one layer, and the calls of a tap"
            " without a name say theirs, as in attention(q, k, v, layer=0); give one of the two"
        )
    if name is not None:
        return name if number is None else Layer(name=name, number=number)
    if is_traced(layer):
        return None
    return _layer_numbered(int(layer))


def _layer_numbered(number: int) -> Layer:
    return Layer(name=f"layers.{number}", number=number)


class _Site:
    """One call of a tapped function that is heard."""

    def __init__(
        self,
        attention: Attention,
        call: Given,
        facts: Facts,
        layer: Layer | str | None,
        listeners: tuple[Listener, ...],
    ) -> None:
        self.attention, self.call, self.facts = attention, call, facts
        self.listeners = [(listener, _numbered(listener, layer)) for listener in listeners]
        if call.q.ndim < 3:
            raise ValueError(
                f"q: shape {call.q.shape}, must be (batch, tokens, heads, features); map over other"
                " axes with jax.vmap"
            )

    def heard(self, layer: Any) -> Any:
        """Return the output; what listens hears of it, or of its derivative."""

        def run(q: Any, k: Any, v: Any, arrays: Arrays) -> Any:
            return self.attention(q, k, v, **arrays, **self.call.others)

        @jax.custom_vjp
        def plain(number: Array, q: Any, k: Any, v: Any, arrays: Arrays) -> Any:
            out = run(q, k, v, arrays)
            self.hand(number, {"q": q, "k": k, "v": v, "out": out}, arrays)
            return out

        def forward(number: Array, q: Any, k: Any, v: Any, arrays: Arrays) -> Any:
            out, pull = jax.vjp(run, q, k, v, arrays)
            return out, (number, q, k, v, arrays, out, pull)

        def backward(kept: Any, do: Any) -> Any:
            number, q, k, v, arrays, out, pull = kept
            dq, dk, dv, of_arrays = pull(do)
            tensors = {"q": q, "k": k, "v": v, "out": out, "do": do, "dq": dq, "dk": dk, "dv": dv}
            self.hand(number, tensors, arrays)
            return None, dq, dk, dv, of_arrays

        plain.defvjp(forward, backward)
        number = jnp.asarray(0 if layer is None else layer, "int32")
        q, k, v = (jnp.asarray(x) for x in (self.call.q, self.call.k, self.call.v))
        return plain(number, q, k, v, self.call.arrays)

    def hand(self, number: Array, tensors: Arrays, arrays: Arrays) -> None:
        """Hand a call to those who want it."""
        tensors = {name: four_axes(x) for name, x in tensors.items()}
        own = {name: _mask_axes(x) for name, x in arrays.items()}
        for listener, layer in self.listeners:
            if layer is None or listener.wants(layer):
                self._handed(listener, layer, number, tensors, own)

    def run_entry(self, q: Any, k: Any, v: Any, arrays: Arrays, **more: Any) -> Array:
        """Return the function's output for one entry of the batch, (1, T, N, Hv)."""
        axes, of_arrays = self.call.q.ndim, self.call.arrays
        q, k, v = (x.reshape((1,) * (axes - 3) + x.shape[1:]) for x in (q, k, v))
        own = {name: _with_axes(x, of_arrays[name].ndim) for name, x in arrays.items()}
        out = self.attention(q, k, v, **own, **(self.call.others | more))
        return jnp.asarray(out).reshape(1, *out.shape[axes - 3 :])

    def _handed(self, listener: Listener, layer: Layer | None, *given: Any) -> None:
        """Hand a call to a listener; axes that `jax.vmap` maps over are a part of the batch."""

        @jax.custom_batching.custom_vmap
        def hand(number: Array, tensors: Arrays, options: Arrays) -> tuple[()]:
            own: Any = {"number": number, "tensors": tensors, "options": options}
            mask = scores_bias(options)
            listener.hear(Call(layer=layer, facts=self.facts, mask=mask, run=self.run_entry, **own))
            return ()

        @hand.def_vmap
        def mapped(size: int, is_mapped: Any, number: Array, tensors: Any, options: Any) -> Any:
            is_of_number, of_tensors, of_options = is_mapped
            if is_of_number:
                raise ValueError(
                    "layer: jax.vmap maps over it; a call is one layer, so map over other arguments"
                )
            entries = tensors["q"].shape[1 if of_tensors["q"] else 0]
            hand(
                number,
                {n: _merged(x, size, of_tensors[n]) for n, x in tensors.items()},
                {n: _merged_option(x, size, of_options[n], entries) for n, x in options.items()},
            )
            return (), ()

        hand(*given)


def _numbered(listener: Listener, layer: Layer | str | None) -> Layer | None:
    """Return a layer with its number; names are numbered as the listener first hears them."""
    if not isinstance(layer, str):
        return layer
    return Layer(name=layer, number=listener.names.setdefault(layer, len(listener.names)))


def _merged(x: Array, size: int, is_mapped: bool) -> Array:
    """Return (size, B, ...), or (B, ...) if it is not mapped, as (size B, ...)."""
    x = x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
    return x.reshape(-1, *x.shape[2:])


def _merged_option(x: Array, size: int, is_mapped: bool, entries: int) -> Array:
    """Return an argument (B or 1, ...), mapped or not, as (size B, ...), or (1, ...) for all."""
    if not is_mapped and x.shape[0] == 1:
        return x
    axis = 1 if is_mapped else 0
    shape = (*x.shape[:axis], entries, *x.shape[axis + 1 :])
    return _merged(jnp.broadcast_to(x, shape), size, is_mapped)


def four_axes(x: Any) -> Array:
    """Return (..., T, N, H) as (B, T, N, H)."""
    return jnp.asarray(x).reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _mask_axes(x: Any) -> Array:
    """Return a mask or bias that broadcasts to (..., N, T, S) as (B or 1, N or 1, T, S)."""
    if x.ndim > 4:
        return four_axes(x)
    return jnp.asarray(x).reshape((1,) * (4 - x.ndim) + x.shape)


def _with_axes(x: Array, axes: int) -> Array:
    """Return a mask (1, N, T, S) with so many axes again."""
    return x.reshape((1,) * max(axes - 4, 0) + x.shape[max(4 - axes, 0) :])


def send(
    call: Call,
    receive: Callable[[Layer, dict[str, np.ndarray]], None],
    arrays: Mapping[str, Array],
) -> None:
    """Let a program call `receive` on the host, with a call's layer and these arrays by name.

    The call may come later than the program returns; `jax.effects_barrier()` waits for it. Types
    are kept: JAX runs callbacks in a thread of its own, where `jax.enable_x64` of the caller does
    not hold and numbers of 64 bits would lose half of them, so they travel as pairs of 32 bits.
    """
    wide = {name: np.dtype(x.dtype) for name, x in arrays.items() if x.dtype.itemsize == 8}

    def received(number: Any, found: dict[str, Any]) -> None:
        own = {name: np.array(x) for name, x in found.items()}
        own |= {name: own[name].view(dtype)[..., 0] for name, dtype in wide.items()}
        receive(call.layer or _layer_numbered(int(number)), own)

    halves = {name: lax.bitcast_convert_type(arrays[name], jnp.uint32) for name in wide}
    jax.debug.callback(received, call.number, dict(arrays) | halves)
