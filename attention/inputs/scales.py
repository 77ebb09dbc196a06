"""The scales of a call in FP8: what stored numbers of q, k and v stand for, and those of P and O.

They are data of a call, as kernels take them, by the names of cuDNN and FlashAttention-3. Where
they enter is a choice of the plan, `Descales`.
"""

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roundscope.attention.plans.choices import Descales
from roundscope.attention.plans.plan import Plan
from roundscope.attention.tiles.records import Inputs
from roundscope.emu.arrays import Array, is_of_jax, is_traced
from roundscope.emu.numbers import as_float, is_known_number
from roundscope.emu.shown import shown

OPERANDS = ("descale_q", "descale_k", "descale_v")
NAMES = (*OPERANDS, "scale_s", "scale_o")
"""The scales that a call can have, by name."""


class Scaled(NamedTuple):
    """A call after its scales.

    Attributes:
        plan: The plan, with the `offset` of scale_s.
        q: The queries that the event Q reads.
        k: The keys that the event K reads.
        v: The values that the event V reads.
        factors: Of each head, (B N,) or None: the factor of the scores beside the scale, and the
            factor of the output.
    """

    plan: Plan
    q: Array
    k: Array
    v: Array
    factors: tuple[Array | None, Array | None] = (None, None)


def scaled(plan: Plan, q: Array, k: Array, v: Array, scales: Any) -> Scaled:
    """Return a call after its scales, which are rounded to binary32, as products of them are.

    Raise TypeError or ValueError for scales that are none, or that the plan does not take.
    """
    if scales is None:
        return Scaled(plan, q, k, v)
    given = scales_given(scales, (q.shape[0], q.shape[2], k.shape[2]))
    if (scale_s := given.pop("scale_s", None)) is not None:
        plan = _with_offset(plan, scale_s)
    b, n, g = q.shape[0], q.shape[2], k.shape[2]
    if plan.descales is Descales.OPERANDS:
        q, k, v = (
            _dequantized(x, given.pop(name)) if name in given else x
            for name, x in zip(OPERANDS, (q, k, v), strict=True)
        )
    heads = {name: _of_heads(scale, b, n, g) for name, scale in given.items()}
    of_scores, of_output = (
        functools.reduce(operator.mul, own)
        if (own := [heads[x] for x in names if x in heads])
        else None
        for names in (OPERANDS[:2], ("descale_v", "scale_o"))
    )
    if of_output is not None and plan.normalise_first:
        raise ValueError(
            f"scales: scale_o: {plan.name} divides P, not the output (unfused=true); leave it out"
        )
    return Scaled(plan, q, k, v, (of_scores, of_output))


def scales_given(scales: Any, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Return the scales of a call by name, scale_s a number and the others binary32 arrays.

    Args:
        scales: The argument of a call.
        sizes: How many batch entries, query heads and key heads it has.

    Raises:
        TypeError: They are not numbers or arrays by name.
        ValueError: A name is unknown, or a scale is not positive or of another shape.
    """
    if not isinstance(scales, Mapping):
        raise TypeError(
            f"scales={shown(scales)}: give scales by name, such as {{'descale_k': 0.5}}"
        )
    found: dict[str, Any] = {}
    for name, scale in scales.items():
        if name not in NAMES:
            raise ValueError(f"scales: {shown(name)}, must be one of {', '.join(NAMES)}")
        if name == "scale_s":
            found[name] = _power_of_2(scale)
        elif scale is not None:
            found[name] = _array(name, scale, sizes)
    return found


def check_scales_of_backward(inputs: Inputs) -> None:
    """Raise ValueError for inputs with factors of the scores or of the output."""
    if inputs.of_scores is not None or inputs.of_output is not None:
        raise ValueError(
            "scales: there is no backward with scale_o or with descales=products; use a plan with"
            " descales=operands, without scale_o, or compute the output alone"
        )


def _power_of_2(scale: Any) -> float:
    """Return scale_s. Raise TypeError or ValueError unless it is a power of two from 1."""
    if not is_known_number(scale):
        raise TypeError(f"scales: scale_s={shown(scale)}, must be a number, such as 256")
    number = as_float(scale)
    if not 1.0 <= number < math.inf or math.frexp(number)[0] != 0.5:
        raise ValueError(
            f"scales: scale_s={shown(scale)}, must be a power of two from 1 to 2^63, such as 256"
        )
    return number


def _with_offset(plan: Plan, scale_s: float) -> Plan:
    try:
        return replace(plan, offset=math.frexp(scale_s)[1] - 1)
    except ValueError as error:
        raise ValueError(f"scales: scale_s={scale_s:g} is 2^offset, and {error}") from None


def _array(name: str, scale: Any, sizes: tuple[int, int, int]) -> Any:
    """Return a scale as an array of binary32. Raise TypeError or ValueError for none of a call."""
    b, n, g = sizes
    traced = is_traced(scale)
    try:
        x = scale if traced or is_of_jax(scale) else np.asarray(scale)
        kind = str(x.dtype)
        is_real = "float" in kind or x.dtype.kind in "iu"
    except (ValueError, AttributeError):
        is_real = False
    if not is_real:
        raise TypeError(f"scales: {name}={shown(scale)}, must be a number or an array of numbers")
    heads = "query or key" if name in ("descale_q", "scale_o") else "key"
    counts = {g, n} if name in ("descale_q", "scale_o") else {g}
    shape = tuple(x.shape)
    is_fitting = shape in ((), (1,)) or (shape[-1] in counts and shape[:-1] in ((), (1,), (b,)))
    if not is_fitting:
        raise ValueError(
            f"scales: {name} of shape {shape}, must be a number, one for each of the"
            f" {' or '.join(map(str, sorted(counts)))} {heads} heads, or (batch, heads)"
        )
    with np.errstate(over="ignore", under="ignore"):
        narrow = x.astype("float32")
    if not traced and not bool(((narrow > 0.0) & (narrow < math.inf)).all()):
        raise ValueError(
            f"scales: {name}={shown(scale)}, must be positive and finite in binary32, such as 0.5"
        )
    return narrow


def _dequantized(x: Array, scale: Any) -> Array:
    """Return x (B, S, G, H) times its scale, each product rounded to binary32."""
    if scale.ndim and scale.shape[-1] not in (1, x.shape[2]):
        scale = _repeated(scale, x.shape[2] // scale.shape[-1])
    own = scale if scale.ndim == 0 else scale.reshape(-1, 1, scale.shape[-1], 1)
    if is_of_jax(x) or is_of_jax(scale):
        import jax.numpy as jnp

        product: Array = jnp.asarray(x).astype("float32") * own
        return product
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wide: Array = (np.asarray(x, np.float64) * own.astype(np.float64)).astype(np.float32)
    return wide


def stored_numbers(x: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the numbers that were stored, from their products x with a scale in binary32.

    A product was rounded to 24 bits, so its quotient is off by less than 2^-23 of it. Rounded to 12
    bits, that is the stored number itself, of any type with 11 bits or fewer.

    Args:
        x: Products, (B, S, G, H), binary32.
        scale: The scale of each head, (B, G), binary32.
    """
    significand, exponent = np.frexp(x.astype(np.float64) / scale[:, None, :, None])
    whole: NDArray[np.float64] = np.ldexp(np.round(significand * 4096.0), exponent - 12)
    return whole.astype(np.float32)


def stored_operands(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scales: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and v as they were stored, from their products with these scales, (B, G)."""
    q, k, v = (
        stored_numbers(x, scales[name]) if name in scales else x
        for name, x in zip(OPERANDS, (q, k, v), strict=True)
    )
    return q, k, v


def _repeated(scale: Any, group: int) -> Any:
    """Return scales of key heads for each of the query heads that share one."""
    return scale.__array_namespace__().repeat(scale, group, axis=-1)


def _of_heads(scale: Any, batch: int, heads: int, key_heads: int) -> Any:
    """Return a scale for each query head of each batch entry, (B N,)."""
    xp = scale.__array_namespace__()
    if scale.ndim and scale.shape[-1] == key_heads != heads:
        scale = _repeated(scale, heads // key_heads)
    return xp.broadcast_to(scale, (batch, heads)).reshape(-1)
