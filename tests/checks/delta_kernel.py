"""Attention in Triton, causal, in BF16, whose backward takes delta from one of four places.

    out        delta = rowsum(dO O), with O as it was stored in BF16
    wide       delta = rowsum(dO O), with O in binary32, which the forward stores too
    centered   delta = rowsum(P dP) / rowsum(P): a pass over the keys, two products
    corrected  delta of `out`, and then what centers it, found while dQ is made: one product

The last one: with dS = P (dP - delta), r = rowsum(dS) / rowsum(P) is what delta lacks, and dQ lacks
-scale r rowsum(P K). The kernel of dQ has dS and P at hand, so it adds up rowsum(dS), rowsum(P) and
P K beside dQ, corrects dQ, and stores delta + r for the kernel of dK and dV, which runs after it.

Arrays are (heads, T, D), contiguous; T is a multiple of every tile. c is scale log2 e.
"""

import triton
import triton.language as tl


@triton.jit
def _rows(x, at, D: tl.constexpr):
    """Load rows of a (T, D) matrix."""
    return tl.load(x + at[:, None] * D + tl.arange(0, D)[None, :])


@triton.jit
def _forward_tiles(
    acc, m, l, q, k, v, c, at, low, high, D: tl.constexpr, BN: tl.constexpr, CUT: tl.constexpr
):
    for n in range(low, high, BN):
        keys = n + tl.arange(0, BN)
        x = tl.dot(q, tl.trans(_rows(k, keys, D))) * c
        if CUT:
            x = tl.where(at[:, None] >= keys[None, :], x, -1.0e30)
        top = tl.maximum(m, tl.max(x, 1))
        p = tl.math.exp2(x - top[:, None])
        alpha = tl.math.exp2(m - top)
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype.element_ty), _rows(v, keys, D), acc * alpha[:, None])
        m = top
    return acc, m, l


@triton.jit
def forward(
    q, k, v, o, wide, lse, c, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    KEEPS: tl.constexpr,
):  # fmt: skip
    """Write O in BF16 and the logarithms of the row sums, to base 2; with KEEPS, O in binary32."""
    start, base = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64) * T
    q, k, v, o, wide = q + base * D, k + base * D, v + base * D, o + base * D, wide + base * D
    at = start + tl.arange(0, BM)
    mine = _rows(q, at, D)
    acc = tl.zeros([BM, D], tl.float32)
    m = tl.zeros([BM], tl.float32) - 1.0e30
    l = tl.zeros([BM], tl.float32)
    acc, m, l = _forward_tiles(acc, m, l, mine, k, v, c, at, 0, start, D, BN, False)
    acc, m, l = _forward_tiles(acc, m, l, mine, k, v, c, at, start, start + BM, D, BN, True)
    acc = acc / l[:, None]
    to = at[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(lse + base + at, m + tl.math.log2(l))
    tl.store(o + to, acc.to(o.dtype.element_ty))
    if KEEPS:
        tl.store(wide + to, acc)


@triton.jit
def delta_of_output(o, do, delta, T, D: tl.constexpr, BM: tl.constexpr):
    """Write delta = rowsum(dO O)."""
    base = tl.program_id(1).to(tl.int64) * T
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    product = _rows(o + base * D, at, D).to(tl.float32) * _rows(do + base * D, at, D)
    tl.store(delta + base + at, tl.sum(product, 1))


@triton.jit
def _mean_tiles(
    a, w, q, do, lse, k, v, c, at, low, high, D: tl.constexpr, BN: tl.constexpr, CUT: tl.constexpr
):
    for n in range(low, high, BN):
        keys = n + tl.arange(0, BN)
        p = tl.math.exp2(tl.dot(q, tl.trans(_rows(k, keys, D))) * c - lse[:, None])
        if CUT:
            p = tl.where(at[:, None] >= keys[None, :], p, 0.0)
        a += tl.sum(p * tl.dot(do, tl.trans(_rows(v, keys, D))), 1)
        w += tl.sum(p, 1)
    return a, w


@triton.jit
def delta_over_keys(
    q, k, v, do, lse, delta, c, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Write delta = rowsum(P dP) / rowsum(P)."""
    start, base = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64) * T
    at = start + tl.arange(0, BM)
    mine, its, log = (
        _rows(q + base * D, at, D),
        _rows(do + base * D, at, D),
        tl.load(lse + base + at),
    )
    a, w = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    k, v = k + base * D, v + base * D
    a, w = _mean_tiles(a, w, mine, its, log, k, v, c, at, 0, start, D, BN, False)
    a, w = _mean_tiles(a, w, mine, its, log, k, v, c, at, start, start + BM, D, BN, True)
    tl.store(delta + base + at, a / w)


@triton.jit
def _query_tiles(
    dq, pk, r, w, q, do, lse, d, k, v, c, at, low, high,
    D: tl.constexpr, BN: tl.constexpr, CUT: tl.constexpr, CORRECTS: tl.constexpr,
):  # fmt: skip
    for n in range(low, high, BN):
        keys = n + tl.arange(0, BN)
        tile = _rows(k, keys, D)
        p = tl.math.exp2(tl.dot(q, tl.trans(tile)) * c - lse[:, None])
        if CUT:
            p = tl.where(at[:, None] >= keys[None, :], p, 0.0)
        ds = p * (tl.dot(do, tl.trans(_rows(v, keys, D))) - d[:, None])
        dq = tl.dot(ds.to(k.dtype.element_ty), tile, dq)
        if CORRECTS:
            r += tl.sum(ds, 1)
            w += tl.sum(p, 1)
            pk = tl.dot(p.to(k.dtype.element_ty), tile, pk)
    return dq, pk, r, w


@triton.jit
def of_queries(
    q, k, v, do, lse, delta, dq, scale, c, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    CORRECTS: tl.constexpr,
):  # fmt: skip
    """Write dQ; with CORRECTS, of the centered delta, which replaces the one that was given."""
    start, base = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64) * T
    at = start + tl.arange(0, BM)
    mine, its, log = (
        _rows(q + base * D, at, D),
        _rows(do + base * D, at, D),
        tl.load(lse + base + at),
    )
    d, k, v = tl.load(delta + base + at), k + base * D, v + base * D
    acc = tl.zeros([BM, D], tl.float32)
    pk = tl.zeros([BM, D if CORRECTS else 1], tl.float32)
    r, w = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    acc, pk, r, w = _query_tiles(
        acc, pk, r, w, mine, its, log, d, k, v, c, at, 0, start, D, BN, False, CORRECTS
    )
    acc, pk, r, w = _query_tiles(
        acc, pk, r, w, mine, its, log, d, k, v, c, at, start, start + BM, D, BN, True, CORRECTS
    )
    if CORRECTS:
        acc -= (r / w)[:, None] * pk
        tl.store(delta + base + at, d + r / w)
    to = at[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq + base * D + to, (acc * scale).to(q.dtype.element_ty))


@triton.jit
def _key_tiles(
    dk, dv, k, v, q, do, lse, delta, c, at, low, high,
    D: tl.constexpr, BM: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    for n in range(low, high, BM):
        rows = n + tl.arange(0, BM)
        mine, its = _rows(q, rows, D), _rows(do, rows, D)
        pt = tl.math.exp2(tl.dot(k, tl.trans(mine)) * c - tl.load(lse + rows)[None, :])
        if CUT:
            pt = tl.where(rows[None, :] >= at[:, None], pt, 0.0)
        dv = tl.dot(pt.to(q.dtype.element_ty), its, dv)
        dst = pt * (tl.dot(v, tl.trans(its)) - tl.load(delta + rows)[None, :])
        dk = tl.dot(dst.to(q.dtype.element_ty), mine, dk)
    return dk, dv


@triton.jit
def of_keys(
    q, k, v, do, lse, delta, dk, dv, scale, c, T, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Write dK and dV."""
    start, base = tl.program_id(0) * BN, tl.program_id(1).to(tl.int64) * T
    at = start + tl.arange(0, BN)
    own, vs = _rows(k + base * D, at, D), _rows(v + base * D, at, D)
    q, do, lse, delta = q + base * D, do + base * D, lse + base, delta + base
    of_k, of_v = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    of_k, of_v = _key_tiles(
        of_k, of_v, own, vs, q, do, lse, delta, c, at, start, start + BN, D, BM, True
    )
    of_k, of_v = _key_tiles(
        of_k, of_v, own, vs, q, do, lse, delta, c, at, start + BN, T, D, BM, False
    )
    to = at[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dk + base * D + to, (of_k * scale).to(dk.dtype.element_ty))
    tl.store(dv + base * D + to, of_v.to(dv.dtype.element_ty))
