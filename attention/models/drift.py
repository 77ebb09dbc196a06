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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from roundscope.attention.inputs.alignment import Alignment, shift_of

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


class HeadSums(NamedTuple):
    """The sums over the rows of each head that its numbers are made of; arrays (L, N).

    Attributes:
        drift: The sum of the squares of R.
        gradient: The sum of the squares of G.
        sums: The sum of r.
        squares: The sum of r^2.
        spread: The sum of (r - mean of r)^2.
        sizes: The sum of (rowsum |dS|)^2.
        several: The number of rows in which several P are 1.
        along: <out - exact, exact>.
        exact: <exact, exact>.
    """

    drift: Any
    gradient: Any
    sums: Any
    squares: Any
    spread: Any
    sizes: Any
    several: Any
    along: Any
    exact: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensors:
    """What a backward of attention was given and returned: one batch entry of one layer.

    Several layers that are alike have an axis of layers (L, ...) in front of every tensor but the
    mask, which they share.

    Attributes:
        q: Queries (N, T, H), of any float type: an array of NumPy or JAX, or a tensor of PyTorch.
        k: Keys (G, S, H), where G divides N.
        v: Values (G, S, Hv).
        do: The gradient of the output, (N, T, Hv).
        r: The row sums of dS, (N, T), without the scale.
        dq: The gradient of q, (N, T, H), as the kernel returned it.
        out: The output, (N, T, Hv), as the kernel returned it.
        scale: The factor of the scores.
        is_causal: Whether query t sees only keys s <= t, both counted from the start unless
            `alignment` says otherwise.
        alignment: "top-left" (None is too) or "bottom-right", as for `attend`.
        window: How many keys a query sees, its own included; None for all.
        mask: True where a query sees a key, or floats that are added to the scores; broadcasts to
            (N, T, S).
        inputs: What W_Q reads, (T, D). By default the values of all key heads, side by side, stand
            for it, or ones where T is not S.
    """

    q: Any
    k: Any
    v: Any
    do: Any
    r: Any
    dq: Any
    out: Any
    scale: float
    is_causal: bool = False
    alignment: Alignment | None = None
    window: int | None = None
    mask: Any = None
    inputs: Any = None


def head_numbers(x: HeadTensors, elements: int = ELEMENTS) -> HeadNumbers:
    """Return the numbers of each head of one layer, from one batch entry of its attention.

    P, P K and dS are computed from q, k, v and dO as they are given, in binary32, or in binary64 if
    q is float64. They are held for some rows at a time, so that memory grows as T and not as T^2.

    Args:
        x: The tensors of the layer.
        elements: How many scores are held at a time.

    Returns:
        The numbers, (N,) each, in binary32 or binary64, on the device of q.

    Example:
        Rows that sum to zero make no drift:

        >>> import numpy as np
        >>> q, k, v, do = np.random.default_rng(0).standard_normal((4, 2, 16, 8))
        >>> zeros = np.zeros((2, 16))
        >>> x = HeadTensors(q=q, k=k, v=v, do=do, r=zeros, dq=q, out=v, scale=0.5)
        >>> found = head_numbers(x)
        >>> found.drift.tolist(), found.several_ones.tolist()
        ([0.0, 0.0], [0.0, 0.0])
    """
    names = ("q", "k", "v", "do", "r", "dq", "out", "inputs")
    tensors = {n: y[None] for n in names if (y := getattr(x, n)) is not None}
    sums = head_sums(replace(x, **tensors), elements)
    return numbers_of_sums(HeadSums(*(y[0] for y in sums)), x.q.shape[1])


def head_sums(x: HeadTensors, elements: int = ELEMENTS) -> HeadSums:
    """Return the sums of each head of several layers that have the same shapes, scale and mask.

    What is held at a time does not grow with the layers.

    Args:
        x: The tensors of the layers, with an axis of layers in front.
        elements: How many scores are held at a time.

    Returns:
        The sums, (L, N) each, in binary32 or binary64, on the device of q.
    """
    xp, ones_above = _namespace(x.q), 1.0 - HALF_ULP.get(_type_name(x.q), 2.0**-25)
    kept = _type_name(x.q) if _type_name(x.q) == "float64" else "float32"
    q, k, v, do, r, dq, out = (_cast(xp, y, kept) for y in (x.q, x.k, x.v, x.do, x.r, x.dq, x.out))
    u = _stand_in(xp, v, q.shape[2]) if x.inputs is None else _cast(xp, x.inputs, kept)
    layers, heads, queries = q.shape[:3]
    attention = _Attention(xp, replace(x, q=q * x.scale, k=k, v=v, do=do), ones_above)
    rows = max(1, elements // (layers * heads * k.shape[2]))
    starts = range(0, queries, rows)
    parts = [attention.rows(slice(start, min(start + rows, queries))) for start in starts]
    whole = (y[0] if len(y) == 1 else xp.concatenate(y, 2) for y in zip(*parts, strict=True))
    sizes, several, exact, pk = whole
    off = r - (r.sum(-1) / queries)[..., None]
    return HeadSums(
        drift=_square_of_product(xp, u, pk * (r * x.scale)[..., None]),
        gradient=_square_of_product(xp, u, dq),
        sums=r.sum(-1),
        squares=(r * r).sum(-1),
        spread=(off * off).sum(-1),
        sizes=(sizes * sizes).sum(-1),
        several=_cast(xp, several, kept).sum(-1),
        along=((out - exact) * exact).sum((-2, -1)),
        exact=(exact * exact).sum((-2, -1)),
    )


def numbers_of_sums(sums: HeadSums, queries: int) -> HeadNumbers:
    """Return the numbers that sums over rows make, of any shape.

    Args:
        sums: The sums of heads.
        queries: How many rows there are.
    """
    xp, n = _namespace(sums.drift), queries
    return HeadNumbers(
        drift=xp.sqrt(sums.drift),
        gradient=xp.sqrt(sums.gradient),
        row_sums=_quotient(xp, xp.sqrt(sums.squares), xp.sqrt(sums.sizes)),
        bias=_quotient(xp, sums.sums / n, xp.sqrt(sums.spread / (max(n - 1, 1) * n))),
        several_ones=sums.several / n,
        gain=_quotient(xp, sums.along, sums.exact),
    )


class _Attention:
    """Exact attention of several layers, some rows at a time.

    What has query heads has axes (L G, N / G, T, features), the others (L G, S, features).
    """

    def __init__(self, xp: Any, x: HeadTensors, ones_above: float) -> None:
        """Arrange the tensors of layers; q is scaled."""
        self.xp, self.matmul, self.ones_above = xp, _matmul(xp), ones_above
        self.shape, self.groups, self.keys = tuple(x.q.shape[:3]), x.k.shape[1], x.k.shape[2]
        group = self.shape[1] // self.groups
        self.q, self.do = (y.reshape(-1, group, *y.shape[2:]) for y in (x.q, x.do))
        k, v = (y.reshape(-1, *y.shape[2:]) for y in (x.k, x.v))
        self.k, self.v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        self.vk, self.values = xp.concatenate((v, k), -1), v.shape[-1]
        self.mask: Any = None if x.mask is None else _by_group(x.mask, self.groups, self.shape[1])
        self.is_causal, self.window, self.places = x.is_causal, x.window, None
        if x.is_causal or x.window is not None:
            self.places = xp.arange(max(self.shape[2], self.keys), **_place(xp, x.q))
        # the key at which query 0 stands
        self.first = shift_of(x.alignment, self.shape[2], self.keys)
        # in any other call every row sees a key, of a causal one its first
        self.has_blind_rows = x.mask is not None or x.window is not None or self.first < 0

    def rows(self, t: slice) -> tuple[Any, Any, Any, Any]:
        """Return rowsum |dS|, whether several P are 1, the exact output and P K, of some rows.

        Their axes are (L, N, T) and (L, N, T, features).
        """
        last = t.stop + self.first if self.is_causal else self.keys
        s = slice(0, max(1, min(last, self.keys)))
        q, do = (x[:, :, t].reshape(x.shape[0], -1, x.shape[-1]) for x in (self.q, self.do))
        p, several = self._weights(self.matmul(q, self.k[..., s]), t, s)
        both = self.matmul(p, self.vk[:, s])
        delta = (do * both[..., : self.values]).sum(-1)
        sizes = (p * abs(self.matmul(do, self.v[..., s]) - delta[..., None])).sum(-1)
        found = (x.reshape(*self.shape[:2], -1, *x.shape[2:]) for x in (sizes, several, both))
        sizes, several, both = found
        return sizes, several, both[..., : self.values], both[..., self.values :]

    def _weights(self, scores: Any, t: slice, s: slice) -> tuple[Any, Any]:
        """Return P of some rows, and in which of them several P are 1."""
        xp, shape = self.xp, scores.shape
        by_head = (-1, self.groups, self.shape[1] // self.groups, t.stop - t.start, shape[-1])
        if self.places is not None:
            apart = self.places[t, None] + self.first - self.places[s]
            seen = apart >= 0 if self.is_causal else abs(apart) < self.window
            if self.is_causal and self.window is not None:
                seen = seen & (apart < self.window)
            scores = xp.where(seen, scores.reshape(by_head), -math.inf).reshape(shape)
        if self.mask is not None:
            scores = self._masked(scores.reshape(by_head), t, s).reshape(shape)
        top = xp.amax(scores, -1, keepdims=True)
        if self.has_blind_rows:
            top = xp.where(xp.isfinite(top), top, 0.0)
        e = xp.exp(scores - top)
        total = e.sum(-1)[..., None]
        if self.has_blind_rows:
            total = xp.where(total > 0.0, total, 1.0)
        # sums of booleans are slow in PyTorch
        ones = _cast(xp, e >= self.ones_above, _type_name(e))
        return e / total, ones.sum(-1) > 1.5

    def _masked(self, scores: Any, t: slice, s: slice) -> Any:
        mask = self.mask if self.mask.shape[2] == 1 else self.mask[:, :, t]
        mask = mask if mask.shape[3] == 1 else mask[..., s]
        if "bool" in str(mask.dtype):
            return self.xp.where(mask, scores, -math.inf)
        return scores + _cast(self.xp, mask, _type_name(scores))


def _stand_in(xp: Any, v: Any, queries: int) -> Any:
    """Return what stands for the inputs of layers: (L, T, G Hv), or ones where T is not S."""
    if queries != v.shape[2]:
        return xp.ones((v.shape[0], queries, 1), dtype=v.dtype, **_place(xp, v))
    return v.swapaxes(1, 2).reshape(v.shape[0], queries, -1)


def _square_of_product(xp: Any, u: Any, x: Any) -> Any:
    """Return the sum of squares of u^T x, (L, N), for u (L, T, C) and x (L, N, T, H)."""
    layers, heads, rows, features = x.shape
    side_by_side = x.swapaxes(1, 2).reshape(layers, rows, heads * features)
    product = _matmul(xp)(u.swapaxes(1, 2), side_by_side)
    return (product * product).sum(1).reshape(layers, heads, features).sum(-1)


def _by_group(mask: Any, groups: int, heads: int) -> Any:
    """Return a mask that broadcasts to (N, T, S) as one that broadcasts to (G, N / G, T, S)."""
    mask = mask.reshape((1,) * (3 - len(mask.shape)) + tuple(mask.shape))
    if mask.shape[0] == heads:
        return mask.reshape(groups, heads // groups, *mask.shape[1:])
    return mask[None]


def _quotient(xp: Any, x: Any, y: Any) -> Any:
    """Return x / y, and 0 where y is 0."""
    return xp.where(y != 0.0, x / xp.where(y != 0.0, y, 1.0), 0.0)


def _namespace(x: Any) -> Any:
    name = type(x).__module__.partition(".")[0]
    if name == "torch":
        return sys.modules["torch"]
    return x.__array_namespace__()


def _matmul(xp: Any) -> Any:
    """Return the product of stacks of matrices, (A, T, H) by (A, H, S), without TF32 in JAX.

    PyTorch has no TF32 unless a program asks for it.
    """
    if xp.__name__ == "torch":
        return xp.bmm
    if xp.__name__ == "jax.numpy":
        return lambda x, y: xp.matmul(x, y, precision="highest")
    return xp.matmul


def _type_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _cast(xp: Any, x: Any, name: str) -> Any:
    return x.to(getattr(xp, name)) if xp.__name__ == "torch" else x.astype(name)


def _place(xp: Any, x: Any) -> dict[str, Any]:
    """Return the device of x as an argument, for PyTorch; the others find theirs."""
    return {"device": x.device} if xp.__name__ == "torch" else {}
