"""What a call may have meant: the meanings that `identify` tries before roundings.

A kernel may compute another attention than the one its call says: a window of 129 keys and not 128,
a causal mask that is aligned at the other corner, another scale. `trial` tries each of them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import product, visible

TILES = (16, 32, 64, 96, 128, 192, 256)  # keys of a tile that may be missing
CAPS = (50.0, 30.0, 20.0, 15.0, 10.0, 5.0)  # softcaps of published models, and others
LOG2_E = math.log2(math.e)
HEADS = 32  # at most so many other key heads are tried
Change = Callable[[Inputs, Outputs], tuple[Inputs, Outputs]]


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What a meaning does that no argument of a call says.

    masked     the score that a masked key has, in place of -inf
    factor     a factor of the output
    undivided  whether the output is not divided by the row sum
    over       "queries" if the softmax runs over the queries of a key
    """

    masked: float | None = None
    factor: float = 1.0
    undivided: bool = False
    over: str = "keys"


CALLED = How()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One meaning of a call.

    words    what is so, as in "window = 129"
    of       the call as this meaning has it, of all heads, with its outputs
    how      what it does beyond that
    """

    words: str
    of: Change
    how: How = CALLED


def scores(x: Inputs, rows: np.ndarray, masked: float | None = None) -> np.ndarray:
    """Return the scores of some rows in binary64, (B, N, rows, S), of a call of one key head."""
    q = np.asarray(x.q[:, rows], np.float64)
    k = np.asarray(x.k[:, :, 0], np.float64)
    s = x.scale * _products(q.swapaxes(1, 2), k.swapaxes(1, 2))
    if x.softcap:
        s = x.softcap * np.tanh(s / x.softcap)
    sees = visible(x)
    sees = sees[:, :, rows] if sees.shape[2] > 1 else sees
    return np.where(sees, s, -np.inf if masked is None else masked)


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product of the matrices of every head, (B, N, T, S), with one of each entry."""
    return np.stack([np.stack([product(head, m) for head in e]) for e, m in zip(a, b, strict=True)])


def exact_rows(x: Inputs, rows: np.ndarray, how: How = CALLED) -> np.ndarray:
    """Return the output of some rows in binary64, (B, rows, N, H), of a call of one key head."""
    if how.over == "queries":
        s = scores(x, np.arange(x.q.shape[1]), how.masked)
        with np.errstate(invalid="ignore"):
            e = np.exp(s - s.max(2, keepdims=True))
        e = np.nan_to_num(e / e.sum(2, keepdims=True))[:, :, rows]
        v = np.asarray(x.v[:, :, 0], np.float64)
        return _products(e, v).swapaxes(1, 2) * _scale_o(x)
    e, total = weights(x, rows, how)
    out = _products(e, np.asarray(x.v[:, :, 0], np.float64)).swapaxes(1, 2)
    if not how.undivided:
        out = out / np.where(total > 0.0, total, 1.0).swapaxes(1, 2)
    return np.asarray(out * how.factor) * _scale_o(x)


def _scale_o(x: Inputs) -> np.ndarray | float:
    """Return the factor of the output of a call of one key head."""
    scale = (x.scales or {}).get("scale_o")
    return 1.0 if scale is None else np.float64(scale.item())


def weights(x: Inputs, rows: np.ndarray, how: How = CALLED) -> tuple[np.ndarray, np.ndarray]:
    """Return exp(S - m) of some rows and its sums, with the sinks."""
    s = scores(x, rows, how.masked)
    peak = s.max(3, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    sink = None if x.sinks is None else np.asarray(x.sinks, np.float64)[None, :, None, None]
    if sink is not None:
        peak = np.maximum(peak, sink)
    e = np.exp(s - peak)
    total = e.sum(3, keepdims=True) + (0.0 if sink is None else np.exp(sink - peak))
    return e, total


def but(words: str, how: How = CALLED, **changes: object) -> Meaning:
    """Return the meaning that some arguments of the call are others."""

    def changed(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
        return replace(x, **changes), outputs  # type: ignore[arg-type]

    return Meaning(words=words, of=changed, how=how)


def _seen(words: str, sees: Callable[[Inputs], np.ndarray]) -> Meaning:
    """Return the meaning that a mask says which keys a query sees, (T, S) or (B, N, T, S)."""

    def changed(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
        mask = np.asarray(sees(x), bool)
        mask = np.broadcast_to(mask, (1, 1, *mask.shape)) if mask.ndim == 2 else mask
        return replace(x, mask=mask, is_causal=False, window=None), outputs

    return Meaning(words=words, of=changed)


def _places(x: Inputs, first: int = 0) -> np.ndarray:
    """Return how far before its query each key stands, where query 0 stands at key `first`."""
    return np.arange(x.q.shape[1])[:, None] + first - np.arange(x.k.shape[1])


def _causal(x: Inputs, first: int) -> np.ndarray:
    """Return which keys a causal call sees whose query 0 sees the keys up to `first`."""
    apart = _places(x, first)
    sees = (apart >= 0) & (apart < (x.window or 2**40))
    return sees if x.mask is None else sees & x.mask


def meanings(x: Inputs) -> Iterator[Meaning]:
    """Yield the meanings that a call can have, likely ones first."""
    queries, keys = x.q.shape[1], x.k.shape[1]
    yield from _of_causality(x, queries, keys)
    if x.window is not None:
        for size in (x.window + 1, x.window - 1, 2 * x.window, x.window // 2):
            if size >= 1:
                yield but(f"window = {size}", window=size)
        yield but("the call has no window", window=None)
    if x.softcap is not None:
        yield but("the call has no softcap", softcap=None)
    for cap in CAPS:
        if cap != x.softcap:
            yield but(f"softcap = {cap:g}", softcap=cap)
    if x.sinks is not None:
        yield but("the call has no sinks", sinks=None)
    else:
        zeros = np.zeros(x.q.shape[2], np.float32)
        yield but("every row has a sink of score 0 (one is added to its sum)", sinks=zeros)
    for words, scale in _scales(x).items():
        if abs(scale / x.scale - 1.0) > 1e-5:
            yield but(f"scale = {words}", scale=scale)
    for factor in (0.5, 2.0, 0.25, 4.0, -1.0):
        yield but(f"the output is multiplied by {factor:g}", How(factor=factor))
    yield but("the output is not divided by the row sum", How(undivided=True))
    yield but("the softmax runs over the queries of a key", How(over="queries"))
    sees = visible(x)
    if not sees.all():
        for score in (0.0, -1.0, -100.0, -1e4, -5e4):
            yield but(f"masked scores are {score:g} and not -inf", How(masked=score))
    if x.mask is not None:
        yield _seen("the mask is inverted", lambda x: _inverted(x))
        if queries == keys:
            yield _seen("the mask is transposed", lambda x: np.swapaxes(visible(x), 2, 3))
        yield but("the call has no mask", mask=None)
    yield from _of_keys(x, keys)
    yield from _of_heads(x)


def _of_causality(x: Inputs, queries: int, keys: int) -> Iterator[Meaning]:
    if x.is_causal:
        if queries != keys:
            for corner in ("bottom-right", "top-left"):
                yield but(f"the causal mask is aligned {corner}", alignment=corner)
        begin = first_key(x)
        for words, first in (
            ("a query sees one key more than its own position allows", 1),
            ("a query does not see the key at its own position", -1),
        ):
            yield _seen(words, partial(_causal, first=begin + first))
        yield but("the call is full, not causal", is_causal=False)
        if queries == keys:
            yield _seen("the causal mask is transposed", lambda x: _places(x) <= 0)
    else:
        yield but("the call is causal, not full", is_causal=True)
        if queries != keys:
            words = "the call is causal, not full, and aligned bottom-right"
            yield but(words, is_causal=True, alignment="bottom-right")


def first_key(x: Inputs) -> int:
    """Return the last key that query 0 of a causal call sees."""
    sees = visible(replace(x, mask=None, window=None))
    return int(sees[0, 0, 0].sum()) - 1


def _inverted(x: Inputs) -> np.ndarray:
    assert x.mask is not None
    others = visible(replace(x, mask=None))
    return np.asarray(~x.mask & others)


def _scales(x: Inputs) -> dict[str, float]:
    """Return the scales that code may have taken, by their words."""
    h, hv, n = x.q.shape[3], x.v.shape[3], x.q.shape[2]
    scales = {
        f"1 / sqrt(H) = 1/sqrt({h})": h**-0.5,
        f"1 / H = 1/{h}": 1.0 / h,
        "1": 1.0,
        f"1/sqrt({hv})": hv**-0.5,
        f"1/sqrt({n * h}), of all heads": (n * h) ** -0.5,
        "the call's times log2 e": x.scale * LOG2_E,
        "the call's times ln 2": x.scale * np.log(2.0),
        "the call's with the other sign": -x.scale,
        "the call's squared": x.scale**2,
        "the root of the call's": abs(x.scale) ** 0.5,
    }
    for k in range(3, 11):
        scales.setdefault(f"1/sqrt({2**k})", 2.0 ** (-k / 2))
        scales.setdefault(f"1/sqrt({3 * 2**k})", (3 * 2**k) ** -0.5)
    scales.setdefault("1/sqrt(576)", 1 / 24)
    return scales


def _of_keys(x: Inputs, keys: int) -> Iterator[Meaning]:
    """Yield the meanings in which keys are missing, or K and V are changed."""
    yield missing(0, 1, "the first key is missing")
    yield missing(keys - 1, keys, "the last key is missing")
    for size in TILES:
        if keys % size and keys > size:
            begin = keys - keys % size
            words = f"the last keys from {begin} on, not a whole tile of {size}, are missing"
            yield missing(begin, keys, words)
    if x.q.shape == x.k.shape:
        yield Meaning(
            words="q and k are exchanged",
            of=lambda x, o: (replace(x, q=x.k, k=x.q), replace(o, dq=o.dk, dk=o.dq)),
        )
    if x.k.shape == x.v.shape:
        yield Meaning(
            words="k and v are exchanged",
            of=lambda x, o: (replace(x, k=x.v, v=x.k), replace(o, dk=o.dv, dv=o.dk)),
        )


def missing(begin: int, end: int, words: str) -> Meaning:
    """Return the meaning that no query sees the keys from `begin` to `end`."""

    def sees(x: Inputs) -> np.ndarray:
        keys = np.arange(x.k.shape[1])
        return visible(x) & ((keys < begin) | (keys >= end))

    def changed(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
        return replace(x, mask=_with_queries(sees(x), x), is_causal=False, window=None), outputs

    return Meaning(words=words, of=changed)


def _with_queries(mask: np.ndarray, x: Inputs) -> np.ndarray:
    shape = (*mask.shape[:2], x.q.shape[1], x.k.shape[1])
    return np.ascontiguousarray(np.broadcast_to(mask, shape))


def _of_heads(x: Inputs) -> Iterator[Meaning]:
    """Yield the meanings in which query heads have other key heads."""
    heads, groups = x.q.shape[2], x.k.shape[2]
    if groups == 1:
        return
    if 1 < groups < heads:
        order = np.argsort(np.arange(heads) % groups, kind="stable")
        yield Meaning(
            words=f"query head n has key head n mod {groups}",
            of=lambda x, o: _of_query_heads(x, o, order),
        )
    yield Meaning(
        words="the key heads are in reverse order", of=lambda x, o: _of_keys_from(x, o, -1)
    )
    for by in range(1, min(groups, HEADS)):
        yield Meaning(
            words=f"query heads have k and v of {by} key head{'s' * (by > 1)} further on",
            of=partial(_of_keys_from, by=by),
        )


def _of_query_heads(x: Inputs, o: Outputs, order: np.ndarray) -> tuple[Inputs, Outputs]:
    mask = x.mask if x.mask is None or x.mask.shape[1] == 1 else x.mask[:, order]
    sinks = None if x.sinks is None else x.sinks[order]
    moved = replace(x, q=x.q[:, :, order], do=x.do[:, :, order], mask=mask, sinks=sinks)
    dq = None if o.dq is None else o.dq[:, :, order]
    return moved, replace(o, out=o.out[:, :, order], dq=dq, lse=None)


def _of_keys_from(x: Inputs, o: Outputs, by: int) -> tuple[Inputs, Outputs]:
    """Return the call with the key heads moved on, or in reverse order for by = -1."""
    groups = x.k.shape[2]
    order = np.arange(groups)[::-1] if by == -1 else (np.arange(groups) + by) % groups
    dk, dv = (None if a is None else a[:, :, order] for a in (o.dk, o.dv))
    return replace(x, k=x.k[:, :, order], v=x.v[:, :, order]), replace(o, dk=dk, dv=dv)
