"""How far a layer of a model is from rows of dS that sum to zero: the numbers of its heads.

In exact arithmetic every row of dS = P (dP - delta) sums to zero. In low precision the sums r[t] do
not, and dQ has a part that the loss did not ask for:

    dQ[t] = scale * sum_s dS[t, s] K[s],   of which   scale * r[t] (P K)[t]   comes from r

W_Q's gradient is sum_t x[t]^T dQ[t], where x is what the layer reads. The part that r makes in it,
and the whole, are measured here without x and without a weight, from what any attention is given:

    R = scale * sum_t r[t] u[t]^T (P K)[t]      G = sum_t u[t]^T dQ[t]

with u[t] = the values of all key heads of token t, side by side. Since u[t] = x[t] W_V, R is W_V^T
times the part of W_Q's gradient, and G is W_V^T times that gradient.

* This needs self-attention, where query t and key t are the same token. Where the numbers of
  queries and keys differ, u[t] = 1, and R and G are those of a bias that is added to the queries.
* With rotary positions the queries that attention is given are rotated, and dQ with them: R and G
  are then those of a weight that acts after the rotation.
* Give `inputs=x` where the layer's input is at hand, and R and G are those of W_Q itself.

Written once for NumPy, JAX (under jit as well) and PyTorch.
"""

import math
import sys
from typing import Any, NamedTuple

ELEMENTS = 1 << 25  # scores held at a time: 128 MiB of float32, and about five such arrays
HALF_ULP = {"float16": 2.0**-12, "bfloat16": 2.0**-9}  # below 1; of wider types, that of binary32


class HeadNumbers(NamedTuple):
    """The numbers of each head of one layer, one batch entry; arrays (N,).

    Attributes:
        drift: |R|, the part of the gradient that row sums of dS make, in the Frobenius norm.
        gradient: |G|, the whole in the same norm. A share is the sum of drifts over the sum of
            gradients: the ratio of one head says little where its gradient is small.
        row_sums: The rms of r over the rms of rowsum |dS|, over the rows.
        bias: The mean of r over its standard error. Of random signs it is about 1 in size; rows
            that err the same way make it as large as the square root of their number, or larger.
        several_ones: The share of rows in which several P = exp(s - max) are 1 once they are
            rounded to the type of q.
        gain: <out, exact> / <exact, exact> - 1: how much too long the output is, along the exact
            one. 0 where the exact output is 0.
    """

    drift: Any
    gradient: Any
    row_sums: Any
    bias: Any
    several_ones: Any
    gain: Any


def head_numbers(
    q: Any,
    k: Any,
    v: Any,
    do: Any,
    *,
    r: Any,
    dq: Any,
    out: Any,
    scale: float,
    is_causal: bool = False,
    mask: Any = None,
    inputs: Any = None,
    elements: int = ELEMENTS,
) -> HeadNumbers:
    """Return the numbers of each head of one layer, from one batch entry of its attention.

    P, P K and dS are computed from q, k, v and dO as they are given, in binary32, or in binary64 if
    q is float64. They are held for some rows at a time, so that memory grows as T and not as T^2.

    Args:
        q: Queries (N, T, H), of any float type: an array of NumPy or JAX, or a tensor of PyTorch.
        k: Keys (G, S, H), where G divides N.
        v: Values (G, S, Hv).
        do: The gradient of the output, (N, T, Hv).
        r: The row sums of dS, (N, T), without the scale.
        dq: The gradient of q, (N, T, H), as the kernel returned it.
        out: The output, (N, T, Hv), as the kernel returned it.
        scale: The factor of the scores.
        is_causal: Whether query t sees only keys s <= t, both counted from the start.
        mask: True where a query sees a key, or floats that are added to the scores; broadcasts to
            (N, T, S).
        inputs: What W_Q reads, (T, D). By default the values of all key heads, side by side, stand
            for it, or ones where T is not S.
        elements: How many scores are held at a time.

    Returns:
        The numbers, (N,) each, in binary32 or binary64, on the device of q.

    Example:
        Rows that sum to zero make no drift:

        >>> import numpy as np
        >>> q, k, v, do = np.random.default_rng(0).standard_normal((4, 2, 16, 8))
        >>> found = head_numbers(q, k, v, do, r=np.zeros((2, 16)), dq=q, out=v, scale=0.5)
        >>> found.drift.tolist(), found.several_ones.tolist()
        ([0.0, 0.0], [0.0, 0.0])
    """
    xp, ones_above = _namespace(q), 1.0 - HALF_ULP.get(_type_name(q), 2.0**-25)
    kept = _type_name(q) if _type_name(q) == "float64" else "float32"
    q, k, v, do, r, dq, out = (_cast(xp, x, kept) for x in (q, k, v, do, r, dq, out))
    heads, queries, keys, groups = q.shape[0], q.shape[1], k.shape[1], k.shape[0]
    u = _stand_in(xp, v, queries) if inputs is None else _cast(xp, inputs, kept)
    q, do, r, dq, out = (_by_key_head(x, groups) for x in (q, do, r, dq, out))
    einsum, rows = _einsum(xp), max(1, elements // (heads * keys))
    sums = None
    for start in range(0, queries, rows):
        t = slice(start, min(start + rows, queries))
        s = slice(0, min(t.stop, keys) if is_causal else keys)
        seen = _seen(xp, q, is_causal, t, s)
        bias = None if mask is None else _part(mask, groups, heads, t, s)
        scores = einsum("gmth,gsh->gmts", q[:, :, t], k[:, s]) * scale
        terms = _terms(xp, einsum, scores, seen, bias, ones_above, k[:, s], v[:, s], do[:, :, t])
        size, several, exact, pk = terms
        part = (
            einsum("tc,gmth->gmch", u[t], pk * (r[:, :, t, None] * scale)),
            (size * size).sum(-1),
            several.sum(-1),
            (out[:, :, t] * exact).sum((-2, -1)),
            (exact * exact).sum((-2, -1)),
        )
        sums = part if sums is None else tuple(x + y for x, y in zip(sums, part, strict=True))
    assert sums is not None
    made, sizes, several, along, whole = sums
    found = (
        _norm(xp, made),
        _norm(xp, einsum("tc,gmth->gmch", u, dq)),
        _quotient(xp, xp.sqrt((r * r).sum(-1)), xp.sqrt(sizes)),
        _in_standard_errors(xp, r),
        several / queries,
        _quotient(xp, along - whole, whole),
    )
    return HeadNumbers(*(x.reshape(heads) for x in found))


def _terms(
    xp: Any,
    einsum: Any,
    scores: Any,
    seen: Any,
    mask: Any,
    ones_above: float,
    k: Any,
    v: Any,
    do: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return rowsum |dS|, whether several P are 1, the exact output and P K, of some rows."""
    if mask is not None and "bool" in str(mask.dtype):
        seen = mask if seen is None else seen & mask
    elif mask is not None:
        scores = scores + _cast(xp, mask, _type_name(scores))
    if seen is not None:
        scores = xp.where(seen, scores, -math.inf)
    top = xp.amax(scores, -1, keepdims=True)
    e = xp.exp(scores - xp.where(xp.isfinite(top), top, 0.0))
    total = e.sum(-1)[..., None]
    p = e / xp.where(total > 0.0, total, 1.0)
    dp = einsum("gmtv,gsv->gmts", do, v)
    ds = p * (dp - (p * dp).sum(-1)[..., None])
    several = _cast(xp, (_cast(xp, e >= ones_above, _type_name(e))).sum(-1) > 1.5, _type_name(e))
    exact, pk = einsum("gmts,gsv->gmtv", p, v), einsum("gmts,gsh->gmth", p, k)
    return abs(ds).sum(-1), several, exact, pk


def _stand_in(xp: Any, v: Any, queries: int) -> Any:
    """Return what stands for the layer's input: (T, G Hv), or ones (T, 1) where T is not S."""
    if queries != v.shape[1]:
        return xp.ones((queries, 1), dtype=v.dtype, **_place(xp, v))
    return xp.moveaxis(v, 0, 1).reshape(queries, -1)


def _seen(xp: Any, like: Any, is_causal: bool, t: slice, s: slice) -> Any:
    """Return which of some keys each of some queries sees; None for all."""
    if not is_causal:
        return None
    place = _place(xp, like)
    return xp.arange(t.start, t.stop, **place)[:, None] >= xp.arange(s.start, s.stop, **place)


def _part(mask: Any, groups: int, heads: int, t: slice, s: slice) -> Any:
    """Return some rows and keys of a mask that broadcasts to (N, T, S), as (G, N / G, T, S)."""
    mask = mask.reshape((1,) * (3 - len(mask.shape)) + tuple(mask.shape))
    if mask.shape[0] == heads:
        mask = mask.reshape(groups, heads // groups, *mask.shape[1:])
    else:
        mask = mask[None]
    mask = mask if mask.shape[2] == 1 else mask[:, :, t]
    return mask if mask.shape[3] == 1 else mask[..., s]


def _in_standard_errors(xp: Any, r: Any) -> Any:
    """Return the mean of r over its standard error, and 0 where r has no spread."""
    n = r.shape[-1]
    mean = r.sum(-1) / n
    off = r - mean[..., None]
    return _quotient(xp, mean, xp.sqrt((off * off).sum(-1) / (max(n - 1, 1) * n)))


def _norm(xp: Any, x: Any) -> Any:
    return xp.sqrt((x * x).sum((-2, -1)))


def _quotient(xp: Any, x: Any, y: Any) -> Any:
    """Return x / y, and 0 where y is 0."""
    return xp.where(y != 0.0, x / xp.where(y != 0.0, y, 1.0), 0.0)


def _by_key_head(x: Any, groups: int) -> Any:
    """Return (N, ...) as (G, N / G, ...)."""
    return x.reshape(groups, x.shape[0] // groups, *x.shape[1:])


def _namespace(x: Any) -> Any:
    """Return the module whose functions take x: numpy, jax.numpy or torch."""
    name = type(x).__module__.partition(".")[0]
    if name == "torch":
        return sys.modules["torch"]
    return x.__array_namespace__()


def _einsum(xp: Any) -> Any:
    """Return einsum without TF32 in JAX. (PyTorch has none unless a program asks for it.)"""
    if xp.__name__ != "jax.numpy":
        return xp.einsum
    return lambda *args: xp.einsum(*args, precision="highest")


def _type_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _cast(xp: Any, x: Any, name: str) -> Any:
    return x.to(getattr(xp, name)) if xp.__name__ == "torch" else x.astype(name)


def _place(xp: Any, x: Any) -> dict[str, Any]:
    """Return the device of x as an argument, for PyTorch; the others find theirs."""
    return {"device": x.device} if xp.__name__ == "torch" else {}
