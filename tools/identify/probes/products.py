"""Probes of sums of products: M, -M and ones where a kernel multiplies them by the same number.

* P V over keys: q is 0, so every P is 1, and v has the terms; out is their sum over the number of
  keys.
* Q K^T over features: q has the terms, and a key is all ones or all zeros. The softmax has then two
  values, and out = 1 / (1 + exp(score)) tells the score.
* dV over queries: P is 1 over the number of keys, and dO has the terms.
* dK over queries and dQ over keys: v is 1 and -1 in turn, so the output and delta are 0, and dS is
  1 and -1. The terms are in q, and in k with the same signs.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from roundscope.attention.testing.calls import Inputs
from roundscope.emu import round_to
from roundscope.tools.identify.candidates import narrowest
from roundscope.tools.identify.orders import Probe, Tree, folded, tree_of
from roundscope.tools.identify.probes.calls import WIDE, Calls, Range, in_calls

Product = Callable[[Calls, Range], tuple[Probe, int, int]]
"""(calls, range) -> a probe, how many rows one call has, and how many terms the sum has."""


def tree_of_product(product: Product, run: Calls, r: Range) -> Tree | None:
    """Return the tree of one of the sums below, as `orders.tree_of` does."""
    ask, capacity, n = product(run, r)
    return tree_of(in_calls(ask, capacity), n, large=r.large, most=r.most)


def confirmed(product: Product, run: Calls, r: Range, tree: Tree) -> tuple[int, int] | None:
    """Return how many random sums of one call a tree gives, added in binary32, and of how many.

    The terms are numbers of BF16 of many magnitudes and their negatives, in random places, so that
    a sum is nothing but the roundings of its additions. They are compared in the format of the
    results, bit for bit. None for trees whose additions are of several terms at once, which round
    in their own way, and for FP16, which has no such terms.
    """
    ask, capacity, n = product(run, r)
    is_fused = folded(tree, lambda _: False, lambda parts: len(parts) > 2 or any(parts))
    if r is not WIDE or is_fused or n < 2:
        return None
    draw = np.random.default_rng(0)
    half = np.asarray(round_to(draw.standard_normal((capacity, n // 2), np.float32), "bf16"))
    half = np.ldexp(half, draw.integers(-12, 13, half.shape))
    rows = draw.permuted(np.concatenate([half, -half], axis=1), axis=1)
    got = np.asarray(ask(rows), np.float32)
    want = folded(tree, lambda k: rows[:, k], lambda parts: parts[0] + parts[1])
    equal = np.equal(np.asarray(round_to(want, narrowest(got))), got)
    return int(equal.sum()), len(got)


def pv(run: Calls, r: Range) -> tuple[Probe, int, int]:
    """Return the probe of P V."""
    x, keys = run.x, run.x.k.shape[1]

    def ask(rows: np.ndarray) -> np.ndarray:
        out = run(replace(x, v=run.columns(rows * r.unit, x.v))).out
        return np.asarray(run.read(out, -1) * (keys / r.unit))

    return ask, _cells(x.v), keys


def scores(run: Calls, r: Range) -> tuple[Probe, int, int]:
    """Return the probe of Q K^T."""
    step = 2.0**-4  # a one in the exponent of the softmax
    unit = step / run.x.scale if r is WIDE else r.unit
    x = replace(run.x, scale=step / unit)
    k, v = np.zeros_like(x.k), np.zeros_like(x.v)
    k[:, ::2], v[:, 1::2] = 1.0, 1.0

    def ask(rows: np.ndarray) -> np.ndarray:
        q = np.zeros_like(x.q)
        q.reshape(-1, q.shape[-1])[: len(rows)] = rows * unit
        out = run(replace(x, q=q, k=k, v=v)).out[..., 0].reshape(-1).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(1.0 / out - 1.0) / step)

    return ask, int(np.prod(x.q.shape[:3])), x.q.shape[3]


def dv(run: Calls, r: Range) -> tuple[Probe, int, int]:
    """Return the probe of dV."""
    x, keys = run.x, run.x.k.shape[1]

    def ask(rows: np.ndarray) -> np.ndarray:
        got = run(replace(x, do=run.columns(rows * r.unit, x.do))).dv
        return np.asarray(run.read(got, 0) * (keys / r.unit))

    return ask, _cells(x.v), x.q.shape[1]


def dk(run: Calls, r: Range) -> tuple[Probe, int, int]:
    """Return the probe of dK."""
    x, _ = _signed(run)

    def ask(rows: np.ndarray) -> np.ndarray:
        got = run(replace(x, q=run.columns(rows * r.unit, x.q))).dk
        return run.read(got, 0) / (x.scale * r.unit)

    return ask, _cells(x.k), x.q.shape[1]


def dq(run: Calls, r: Range) -> tuple[Probe, int, int]:
    """Return the probe of dQ."""
    x, signs = _signed(run)

    def ask(rows: np.ndarray) -> np.ndarray:
        got = run(replace(x, k=run.columns(rows * signs * r.unit, x.k))).dq
        return run.read(got, -1) / (x.scale * r.unit)

    return ask, _cells(x.k), x.k.shape[1]


def _cells(a: np.ndarray) -> int:
    """Return how many probes the tokens of v or k carry."""
    return int(a.shape[0] * a.shape[2] * a.shape[3])


def _signed(run: Calls) -> tuple[Inputs, np.ndarray]:
    """Return a call in which dS is 1 and -1 at the keys in turn, and these signs."""
    x, keys = run.x, run.x.k.shape[1]
    signs = np.where(np.arange(keys) % 2, -1.0, 1.0).astype(np.float32)
    v, do = np.zeros_like(x.v), np.zeros_like(x.do)
    v[..., 0], do[:, :, :: run.share, 0] = signs[:, None], keys
    return replace(x, v=v, do=do), signs
