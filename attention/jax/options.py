"""What a call of an attention function says beside q, k and v: its arguments read by their names.

The names are those of `jax.nn.dot_product_attention`, of flax and of `roundscope.attend`. An
argument that changes what is computed and is not understood is refused, never ignored.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from roundscope.emu.arrays import is_of_jax, is_traced
from roundscope.emu.shown import shown

Attention: TypeAlias = Callable[..., Any]

UNDERSTOOD = ("mask", "bias", "is_causal", "scale", "local_window_size", "window")
# change at most how the call is computed, or nothing without dropout
HARMLESS = (
    *("implementation", "precision", "dtype", "promote_dtype", "deterministic"),
    *("broadcast_dropout", "dropout_rng"),
    *("plan", "block_q", "block_k", "engine", "inject"),  # of `roundscope.attend`
)
NONE = (None, False, 0)  # a value of another argument that asks for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a call of attention before it runs.

    Attributes:
        is_causal: Whether query t sees only keys s <= t, both counted from the start.
        scale: The factor of the scores.
        takes_scale: Whether the function has an argument `scale`.
        window: How many keys a query sees, its own included; None for all.
        implementation: The function's name, and its argument `implementation` if it is given.
    """

    is_causal: bool
    scale: float
    takes_scale: bool
    window: int | None
    implementation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of one call: q, k and v, and all others by name, data apart from the rest.

    Attributes:
        q: Queries, (..., T, N, H).
        k: Keys, (..., S, G, H).
        v: Values, (..., S, G, Hv).
        arrays: The other arguments that are arrays, such as a mask.
        others: The other arguments that are not; part of the program.
        all: Both, and the defaults of arguments that are not given.
    """

    q: Any
    k: Any
    v: Any
    arrays: dict[str, Any]
    others: dict[str, Any]
    all: dict[str, Any]


def given(attention: Attention, args: tuple[Any, ...], options: Mapping[str, Any]) -> Given:
    """Return the arguments of a call `attention(*args, **options)`.

    Raises:
        TypeError: The function does not take them.
    """
    if (signature := _signature(attention)) is None:
        named, (q, k, v) = dict(options), args
    else:
        bound = signature.bind(*args, **options)
        named, keywords = {}, {}
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                keywords = value
            elif signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                raise TypeError(f"{_name(attention)}: takes *{name}; give arguments by their names")
            else:
                named[name] = value
        q, k, v = (named.pop(name) for name in list(named)[:3])
        named |= keywords
    named = {name: x.item() if _is_number(x) else x for name, x in named.items()}
    arrays = {name: x for name, x in named.items() if is_of_jax(x) or isinstance(x, np.ndarray)}
    others = {name: x for name, x in named.items() if name not in arrays}
    known = defaults(attention) | others | arrays
    return Given(q=q, k=k, v=v, arrays=arrays, others=others, all=known)


def facts_of(
    attention: Attention, call: Given, *, is_causal: bool | None = None, scale: float | None = None
) -> Facts:
    """Return what is known of a call.

    Args:
        attention: The function.
        call: Its arguments.
        is_causal: What whoever tapped the function says of it, where its arguments do not.
        scale: The same.

    Raises:
        ValueError: An argument is not understood, or it is not known whether the call is causal.
    """
    check_understood(attention, call)
    named = call.all
    if is_causal is None and "is_causal" not in named:
        raise ValueError(
            f"{_name(attention)}: it has no argument is_causal, so that it is not known which keys"
            " a query sees; say so, as in tap(attention, is_causal=True)"
        )
    causal = named["is_causal"] if is_causal is None else is_causal
    if is_traced(causal):
        raise ValueError(f"is_causal={shown(causal)}: must be True or False, and no traced value")
    implementation = named.get("implementation")
    return Facts(
        is_causal=bool(causal),
        scale=scale_of(call) if scale is None else float(scale),
        takes_scale=takes_scale(attention, call),
        window=_window(named.get("local_window_size"), bool(causal)) or named.get("window"),
        implementation=" ".join(x for x in (_name(attention), implementation) if x),
    )


def check_understood(attention: Attention, call: Given) -> None:
    """Raise ValueError for an argument that changes what is computed and is not modelled.

    Among them are softcaps, sinks and dropout, with which the rows of dS need not sum to zero.
    """
    for name, value in call.all.items():
        is_array = is_of_jax(value) or isinstance(value, np.ndarray)
        asks_nothing = not is_array and value in NONE
        is_off = name == "dropout_rate" and call.all.get("deterministic", False)
        if name in UNDERSTOOD or name in HARMLESS or asks_nothing or is_off:
            continue
        is_short = isinstance(value, (bool, int, float, str, tuple))
        raise ValueError(
            f"{name}={repr(value) if is_short else type(value).__name__}: an argument of"
            f" {_name(attention)} that changes what is computed and is not modelled here; leave it"
            f" out to capture, watch or correct the call, or use only {', '.join(UNDERSTOOD)}"
        )


def scale_of(call: Given) -> float:
    """Return the factor of the scores of a call: its argument, or 1 / sqrt(H)."""
    scale = call.all.get("scale")
    if scale is None:
        return 1.0 / math.sqrt(call.q.shape[-1])
    if is_traced(scale):
        raise ValueError(f"scale={shown(scale)}: must be a number, and no traced value")
    return float(scale)


def takes_scale(attention: Attention, call: Given) -> bool:
    """Return whether a function has an argument `scale`, by its signature or since it was given.

    One that takes any argument (`**options`) may ignore this one.
    """
    signature = _signature(attention)
    return "scale" in call.others or (signature is not None and "scale" in signature.parameters)


def scores_bias(arrays: Mapping[str, Any]) -> Any:
    """Return one mask for a call's mask and bias: bool, or floats added to the scores, or None."""
    mask, bias = arrays.get("mask"), arrays.get("bias")
    mask = mask if mask is None or mask.dtype == bool else mask != 0  # flax has masks of floats
    if bias is None or mask is None:
        return mask if bias is None else bias
    lowest = float(jnp.finfo(bias.dtype).min)  # type: ignore[no-untyped-call]  # no annotations
    closed: Array = jnp.where(mask, bias, lowest)
    return closed


def defaults(attention: Attention) -> dict[str, Any]:
    """Return the defaults of a function's arguments, by name; those of q, k and v left out."""
    if (signature := _signature(attention)) is None:
        return {}
    behind = list(signature.parameters.values())[3:]
    return {p.name: p.default for p in behind if p.default is not inspect.Parameter.empty}


def _window(size: Any, is_causal: bool) -> int | None:
    """Return how many keys a query sees, its own included, of JAX's window (left, right)."""
    if size is None:
        return None
    left, right = (size, size) if isinstance(size, int) else size
    if not is_causal and left != right:
        raise ValueError(
            f"local_window_size={size}: of a call that is not causal, only as many keys to the left"
            " as to the right are modelled; give one number, or is_causal=True"
        )
    return int(left) + 1


def _is_number(x: Any) -> bool:
    is_array = is_of_jax(x) or isinstance(x, np.ndarray)
    return is_array and not is_traced(x) and x.shape == () and isinstance(x.dtype, np.dtype)


def _signature(attention: Attention) -> inspect.Signature | None:
    try:
        return inspect.signature(attention)
    except ValueError:
        return None


def _name(attention: Any) -> str:
    own = getattr(attention, "func", attention)  # of a partial
    return str(getattr(own, "__name__", type(own).__name__))
