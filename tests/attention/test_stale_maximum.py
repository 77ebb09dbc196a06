"""FlashAttention-4: a maximum that stays as it is up to a threshold, an offset of P that clips for
it, eight lanes, a polynomial 2^x.
"""

import math

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, Record, attend, examine
from roundscope.attention.plans.choices import Polynomial
from roundscope.attention.plans.presets import B200
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.instructions.polynomials import poly_ex2
from tests.checks.engines import differences, normal

TILE, WIDTH = 32, 16


def qkv(tokens=96):
    return [normal(900 + i, 1, tokens, 2, WIDTH) * (2.0 if i == 0 else 1.0) for i in range(3)]


def reference(q, k, v, threshold, offset):
    """One head by the public code's lines, in binary64 but for P: m old unless it grows by more
    than the threshold.
    """
    c = WIDTH**-0.5 * np.log2(np.e)
    m, l, o, kept = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros((len(q), WIDTH)), 0
    for lo in range(0, len(k), TILE):
        s = q @ k[lo : lo + TILE].T
        new = np.maximum(m, s.max(1))
        stays = (new - np.where(m == -np.inf, -1e30, m)) * c <= threshold
        kept += int((stays & (new > m)).sum())
        new = np.where(stays, m, new)
        p, alpha = np.exp2(s * c + ((offset or 0) - new * c)[:, None]), np.exp2((m - new) * c)
        cast = (
            p
            if offset is None
            else np.minimum(p, 448.0).astype(ml_dtypes.float8_e4m3fn).astype(float)
        )
        m, l, o = new, alpha * l + p.sum(1), alpha[:, None] * o + cast @ v[lo : lo + TILE]
    return o / l[:, None], kept


@pytest.mark.parametrize(("threshold", "offset"), [(1.0, None), (4.0, 8), (4.0, 4), (0.5, 0)])
def test_it_is_the_public_code(threshold, offset):
    """A threshold in the wrong units, a maximum that never or always stays, a row sum that clips
    with P.
    """
    x = qkv()
    wide = Plan.preset("exact").changed(
        "exp=base2", "log2_e=maximum", f"stale_maximum={threshold:g}"
    )
    plan = wide if offset is None else wide.changed(f"offset={offset}", "P=e4m3fn")
    out = np.asarray(
        examine(*x, plan=plan, block_q=TILE, block_k=TILE, record=None).out, np.float64
    )
    for head in range(2):
        want, kept = reference(
            *(np.asarray(a[0, :, head], np.float64) for a in x), threshold, offset
        )
        assert kept > 0 and np.abs(out[0, :, head] - want).max() < (
            1e-6 if offset is None else 2e-3
        )


@pytest.mark.parametrize(("score", "kept"), [(4.0, True), (4.0 + 2.0**-20, False)])
def test_growth_by_the_threshold_itself_keeps_the_maximum(score, kept):
    """A comparison by < in place of <=. FlashAttention-4 keeps m where acc_scale >= -threshold."""
    q, v = np.ones((1, 1, 1, 1), np.float32), np.ones((1, 2, 1, 1), np.float32)
    k = np.array([0.0, score], np.float32).reshape(1, 2, 1, 1)
    plan = Plan.preset("exact").changed("exp=base2", "log2_e=maximum", "stale_maximum=4")
    sizes = {"block_q": 1, "block_k": 1, "scale": math.log(2.0)}  # so that scale log2 e is 1
    trace = examine(q, k, v, plan=plan, record=Record(events=("M",)), **sizes).trace
    assert trace.events["M"][1].reshape(-1).tolist() == [0.0, 0.0 if kept else score]


@pytest.mark.parametrize(
    "words",
    [
        "log2_e=maximum stale_maximum=6",
        "log2_e=scale stale_maximum=6 offset=8",
        "log2_e=maximum offset=4 row_sum=eights",
    ],
)
def test_without_rounding_it_changes_nothing(words):
    """A state that is not rescaled by what m was; an offset that L, the output or a gradient
    keeps.
    """
    x, do = qkv(), normal(951, 1, 96, 2, WIDTH)
    wide = Plan.preset("exact").changed("exp=base2", words)
    sizes = {"block_q": TILE, "block_k": TILE, "record": None}
    for sinks in (None, np.array([0.5, 2.0])):
        ours, exact = (examine(*x, do, plan=p, sinks=sinks, **sizes) for p in (wide, "exact"))
        for name in ("out", "lse", "dq", "dk", "dv"):
            assert np.abs(getattr(ours, name) - getattr(exact, name)).max() < 1e-5, name


def test_a_row_is_summed_in_eight_lanes():
    """The order of `fadd_reduce` of the public code: packed additions of binary32, the first lane
    from alpha l.
    """
    x = qkv(64)
    plan = Plan.preset("fp32").changed("row_sum=eights")
    events = examine(
        *x, plan=plan, block_q=64, block_k=TILE, record=Record(events=("EXP", "AL", "L"))
    ).trace.events
    exp, al, l = (np.asarray(events[name][1], np.float32) for name in ("EXP", "AL", "L"))
    exp, al, l = (a.reshape(2, -1, *a.shape[-2:]) if a.ndim > 4 else a for a in (exp, al, l))
    for head, tile, row in np.ndindex(2, 2, 64):
        e = exp.reshape(2, 64, 64)[head, row, tile * TILE : (tile + 1) * TILE]
        begin = al.reshape(2, 2, 64)[head, tile, row] if tile else np.float32(0.0)
        own = [begin + e[0], *e[1:8]]
        for n in range(8, TILE):
            own[n % 8] += e[n]
        own = [own[0] + own[2], own[1] + own[3], own[4] + own[6], own[5] + own[7]]
        assert (own[0] + own[2]) + (own[1] + own[3]) == l.reshape(2, 2, 64)[head, tile, row]


def test_columns_of_the_polynomial():
    """The loop of `apply_exp2_convert`, and that EXP is the polynomial there and 2^X elsewhere."""
    for p, count in (
        (B200, 128),
        (Polynomial(16, 4, 1), 128),
        (Polynomial(14, 6), 128),
        (Polynomial(1, 1), 64),
    ):
        found, fragments = [False] * count, count // 32
        for j in range(fragments):
            for k in range(0, 32, 2):
                if not (k % p.every < p.every - p.share or j >= fragments - 1 or j < p.first):
                    found[32 * j + k] = found[32 * j + k + 1] = True
        assert p.columns(count) == tuple(found) and Polynomial.parse(str(p)) == p
    assert 0 < sum(B200.columns(128)) < 64
    plan = Plan.preset("fp32").changed("exp=base2 log2_e=scale polynomial=4:2:0")
    events = examine(
        *qkv(64), plan=plan, block_q=64, block_k=64, record=Record(events=("X", "EXP"))
    ).trace.events
    x, e = (np.asarray(events[name][1], np.float64).reshape(-1, 64) for name in ("X", "EXP"))
    is_own = np.array(Polynomial(4, 2, 0).columns(64))
    assert 0 < is_own.sum() < 32 and np.array_equal(
        e[:, is_own], poly_ex2(numpy_ops(), x[:, is_own])
    )
    assert np.array_equal(e[:, ~is_own], np.exp2(x[:, ~is_own]).astype(np.float32))


@pytest.mark.parametrize("name", ["fa4-fp8", pytest.param("fa4-bf16", marks=pytest.mark.thorough)])
def test_engines_agree(name):
    """Bits that XLA fuses."""
    x, do = qkv(128), normal(950, 1, 128, 2, WIDTH)
    sizes = {
        "plan": name,
        "block_q": 64,
        "block_k": 2 * TILE if name == "fa4-fp8" else 96,
        "record": None,
        "is_causal": True,
    }
    assert (
        differences(*(examine(*x, do, engine=engine, **sizes) for engine in ("numpy", "xla"))) == []
    )


def test_bad_thresholds():
    """A threshold that is taken and does nothing."""
    for words, told in (
        (["stale_maximum=-1"], "0 or more"),
        (["exp=base2", "log2_e=maximum", "stale_maximum=64"], "below 64"),
        (["exp=base2", "log2_e=scores", "stale_maximum=4"], "log2_e"),
        (["offset=8"], "log2_e"),
        (["exp=base2", "log2_e=maximum", "offset=64"], "0 to 63"),
        (["exp=base2", "log2_e=maximum", "offset=2.5"], "whole number"),
        (["polynomial=10:4:1"], "exp=base2"),
        (["exp=base2", "polynomial=4:10:1"], "EVERY:SHARE:FIRST"),
        (["exp=base2", "polynomial=many"], "EVERY:SHARE:FIRST"),
    ):
        with pytest.raises(ValueError, match=told):
            Plan.preset("fa2-bf16").changed(*words)
    with pytest.raises(ValueError, match="engine='xla'"):
        attend(*qkv(64), plan="fa4-bf16", engine="pallas", block_q=TILE, block_k=TILE)


def mxfp8(x, axis):
    """x in MXFP8 E4M3 with scales that are rounded up to powers of two, blocks of 32 along an axis,
    by ml_dtypes.
    """
    moved = np.moveaxis(x, axis, -1)
    blocks = moved.reshape(*moved.shape[:-1], -1, 32)
    unit = 2.0 ** np.ceil(np.log2(np.abs(blocks).max(-1, keepdims=True) / 448.0))
    own = (blocks / unit).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * unit
    return np.moveaxis(own.reshape(moved.shape), -1, axis)


def loop_of_cudnn(q, k, v, scale, block):
    """O of one head in float64 by the loop of cuDNN's test: a threshold of 4, 16 P in E4M3, which
    saturates.
    """
    q, k, v = mxfp8(q, 1), mxfp8(k, 1), mxfp8(v, 0)
    m, l, o = np.full((len(q), 1), -np.inf), np.zeros((len(q), 1)), np.zeros((len(q), v.shape[1]))
    for n in range(0, len(k), block):
        s = scale * q @ k[n : n + block].T
        top = s.max(1, keepdims=True)
        new = np.where(np.isinf(m) | (top - m > 4.0), top, m)
        o, l = (np.where(np.isinf(m), 0.0, np.exp(m - new)) * x for x in (o, l))
        p, m = np.exp(s - new), new
        l = l + p.sum(1, keepdims=True)
        cast = np.minimum(16.0 * p, 448.0).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) / 16.0
        o = o + cast @ v[n : n + block]
    return o / l


def test_cudnn_s_constants_are_those_of_its_reference():
    """Another threshold, another scale of P, or a maximum that is never stale: here P clips, which
    no other constant would give.
    """
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(tokens, 64)) for tokens in (32, 512, 512))
    scale = 2.5 / 8
    want = loop_of_cudnn(q, k, v, scale, 128)
    call = {"scale": scale, "block_q": 32, "block_k": 128, "engine": "numpy"}
    plan = Plan.preset("cudnn-mxfp8").changed("OUT=fp32")
    x = [array[None, :, None] for array in (q, k, v)]
    outputs = (
        np.asarray(attend(*x, plan=p, **call), np.float64)[0, :, 0]
        for p in (plan, plan.changed("stale_maximum=3"))
    )
    off, changed = (np.abs(out - want).max(1) for out in outputs)
    assert (off < 1e-5).mean() > 0.9 and np.median(off) < 1e-6 < 1e-3 < changed.max()
