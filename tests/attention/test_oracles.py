"""Closed forms of biases, from published work and by hand, against the emulated attention.

A note on published numbers: +0.220, +0.110, +0.055 ulp "for a residual U(0, ulp/4)". With ulp(v) =
2^(1-p), the distance of neighbours, a residual U(0, ulp/4) gives 3/16, 3/32, 3/64; the quoted
numbers are 7/32, 7/64, 7/128, those of U(0, ulp/8): there ulp meant 2^-p. Both are checked against
the formula.
"""

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from roundscope.attention import (
    AddUlps,
    DeltaFrom,
    Injection,
    Plan,
    Record,
    Site,
    Stabilizer,
    examine,
)
from roundscope.attention.plans.choices import REAL_DELTAS
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.formats.format import format_named
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import BINARY64, rounding
from roundscope.emu.roundings.random import event_bits
from roundscope.emu.sums.accumulator import Accumulator, accumulate
from tests.checks.engines import bits31, normal

OPS = numpy_ops()


def rounded(x, format, mode=None):
    return float(OPS.round(np.array([x]), rounding(format, mode), None)[0])


def test_oracle_1_the_papers_sum_rounds_away():
    """Ties rounded without looking at the sticky bits."""
    assert rounded(-4.703990459442139, "bf16") == -4.71875
    assert rounded(-4.703990459442139, "bf16") - -4.703990459442139 == -0.014759540557861328


def test_oracle_2_the_exact_tie():
    """Ties to even and ties away confused."""
    assert rounded(-4.703125, "bf16") == -4.6875
    assert rounded(-4.703125, "bf16", "ties-to-away") == -4.71875


# --- 3: k unit weights and a residual
# -------------------------------------------------------------------------

DRAWS = 200_000


def uniform(seed, *shape):
    return bits31(seed, *shape) / 2.0**31


def moments(k, width, sign):
    """Mean and variance of the error in ulps of the result: k numbers on a grid of 1 in [n, 2n), a
    residual sign * U(0, width), and one rounding to the grid of k (the sum's binade is log2 k
    above).

    m = sum mod k is uniform, so the error is c - r with c = -m or k - m, r of mean width / 2:
    exact, no draws.
    """
    m = np.arange(k)
    up = m > k / 2 if sign < 0 else m >= k / 2  # a tie goes to the side of the residual
    c = np.where(up, k - m, -m)
    mean_r, mean_r2 = sign * width / 2, width**2 / 3
    mean = (c - mean_r).mean() / k
    return mean, ((c**2).mean() - 2 * c.mean() * mean_r + mean_r2) / k**2 - mean**2


def stochastic_variance(k, width):
    """Variance of a stochastic rounding, f (1 - f) averaged over the discarded fraction f = (m + r)
    / k.
    """
    f = (np.arange(k)[:, None] + np.linspace(0, width, 1001)) / k
    return (f * (1 - f)).mean()


def unit_grid(seed, p, *shape):
    """Uniform p-bit numbers in [1, 2)."""
    return 1.0 + (bits31(seed, *shape) % 2 ** (p - 1)) * 2.0 ** (1 - p)


def sums(p, k, width, sign, seed=1):
    """k unit weights times p-bit values, plus a residual: the accumulator's sum, (DRAWS,)."""
    v = np.vstack(
        [unit_grid(seed, p, k, DRAWS), sign * width * 2.0 ** (1 - p) * uniform(seed + 1, 1, DRAWS)]
    )
    return accumulate(
        OPS, Accumulator(step=BINARY64), np.ones((k + 1, 1)), v, np.zeros((1, DRAWS))
    )[0]


def bias(x, format, k, mode=None):
    """Mean error in ulps of the result, which lies in [k, 2k)."""
    random = (
        event_bits(np, 11, 5, np.zeros(1, np.int64), np.arange(DRAWS))
        if mode == "stochastic"
        else None
    )
    after = OPS.round(x, rounding(format, mode), random)
    return ((after - x) / (k * 2.0 ** (1 - format_named(format).precision))).mean()


@pytest.mark.parametrize("format", ["bf16", "fp16", "e4m3fn"])
@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("width", [1 / 8, 1 / 4])
def test_oracle_3_sticky_ties_lean(format, k, width):
    """Round and sticky bits lost between accumulator and cast: the bias of the paper would vanish
    or change sign.
    """
    p = format_named(format).precision
    for sign in (1, -1):
        expected, variance = moments(k, width, sign)
        measured = bias(sums(p, k, width, sign), format, k)
        assert abs(measured - expected) < 5 * np.sqrt(variance / DRAWS), sign
        assert np.isclose(
            expected, sign * (1 - width) / (2 * k)
        )  # half an ulp(v) less the residual's own mean
    even = bias(sums(p, k, 0.0, 1), format, k)
    assert abs(even) < 5 * np.sqrt(
        moments(k, 0.0, 1)[1] / DRAWS
    )  # no residual: ties to even, no bias
    stochastic = bias(sums(p, k, width, 1), format, k, "stochastic")
    assert abs(stochastic) < 5 * np.sqrt(stochastic_variance(k, width) / DRAWS)


def test_oracle_3_has_the_quoted_numbers():
    """The formula itself."""
    assert [round(moments(k, 1 / 8, 1)[0], 6) for k in (2, 4, 8)] == [7 / 32, 7 / 64, 0.054688]
    assert moments(2, 1 / 8, -1)[0] == -7 / 32


@pytest.mark.parametrize("k", [2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mode", ["ties-to-even", "stochastic"])
def test_oracle_3_through_attention(k, sign, mode):
    """k scores that share the maximum (P = 1) and one of weight 2^-10: the bias as a user's trace
    reports it.
    """
    batch, width = 50, 4096  # 204,800 sums of one row each
    plan = replace(Plan.preset("qiu-yao"), name="oracle").at(Site.PV, "bf16", mode)
    q = np.ones((batch, 1, 1, 1), np.float32)
    key = np.zeros((batch, k + 1, 1, 1), np.float32)
    key[:, k] = -6.9375  # exp is 2^-10.009: a little less than ulp(v) / 8
    v = np.empty((batch, k + 1, 1, width), np.float32)
    v[:, :k] = unit_grid(40 + k, 8, batch, k, 1, width)
    # weight times residual is U(0, ulp(v) / 8), on a grid that is fine enough
    v[:, k] = sign * (1.0 + bits31(3, batch, 1, width) % 128) / 128.0
    seen = examine(q, key, v, plan=plan, scale=1.0, engine="numpy", record=Record(events=(Site.P,)))
    assert np.all(seen.trace.events["P"][1][..., :k] == 1.0)
    weight = seen.trace.events["P"][1][0, 0, 0, k]
    assert weight == 2.0**-10 * (1 - 2.0**-7)
    pv = seen.trace.stats["PV"].total()
    expected, variance = (
        moments(k, weight * 2**7, sign)
        if mode == "ties-to-even"
        else (0.0, stochastic_variance(k, 1 / 8))
    )
    grid = weight * 2**7 / 256 / k  # the residual's grid leaves out half a step
    assert abs(pv.mean_ulps - expected) < 5 * np.sqrt(variance / pv.n) + (
        grid if mode == "ties-to-even" else 0.0
    )
    assert pv.n == batch * width


# --- 4: tie windows
# -------------------------------------------------------------------------------------------

WINDOWS = {"bf16": 1.95503e-3, "fp16": 2.4417e-4, "e4m3fn": 3.17487e-2, "e5m2": 6.45385e-2}


@pytest.mark.parametrize(("name", "quoted"), WINDOWS.items())
def test_oracle_4_largest_gap_whose_exp_rounds_to_one(name, quoted):
    """An exp or a cast that moves the boundary; the stabiliser would then miss ties or invent
    them.
    """
    f = format_named(name)
    with mpmath.workdps(40):
        window = -mpmath.log(1 - mpmath.mpf(2) ** -(f.precision + 1))
    assert abs(float(window) - quoted) < 1e-5 * quoted
    assert np.isclose(f.tie_window, float(window), rtol=1e-15)
    center = np.float32(float(window)).view(np.int32)
    gaps = (
        np.arange(center - 50_000, center + 50_000, dtype=np.int32)
        .view(np.float32)
        .astype(np.float64)
    )
    one = OPS.round(exp64(OPS, -gaps), rounding(name), None) == 1.0
    with mpmath.workdps(40):
        largest = gaps[np.flatnonzero(gaps <= float(window))[-1]]
        assert mpmath.exp(-mpmath.mpf(largest)) >= 1 - mpmath.mpf(2) ** -(f.precision + 1)
    assert np.array_equal(one, gaps <= largest)


# --- 5: delta
# -------------------------------------------------------------------------------------------------


def float64_inputs(tokens=24, keys=40, width=16):
    shapes = (1, tokens, 2, width), (1, keys, 2, width), (1, keys, 2, width), (1, tokens, 2, width)
    return [normal(70 + i, *s).astype(np.float64) for i, s in enumerate(shapes)]


def exact(*arrays, changes=None, **options):
    plan = replace(Plan.preset("exact"), **(changes or {}))
    return examine(*arrays, plan=plan, engine="numpy", **{"block_q": 8, "block_k": 8} | options)


def probabilities(q, k, scale):
    s = np.einsum("btnh,bsnh->bnts", q, k) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def test_oracle_5_delta_identity():
    """rowsum(dO O) = rowsum(P dP): wrong operands of either."""
    arrays = float64_inputs()
    first, *others = (
        exact(*arrays, changes={"delta_from": source}).delta for source in REAL_DELTAS
    )
    assert len(others) == 3
    for other in others:
        assert np.abs(first - other).max() < 1e-14


def test_centred_delta_makes_the_rows_of_ds_sum_to_zero():
    """P that lost its sum (scores recomputed in other bits than the forward's): OUT and P dP leave
    a rest, CENTRED must not.
    """
    arrays = float64_inputs()
    plan = Plan.preset("exact").at(Site.S_B, "e8m3")
    rests = {}
    for source in DeltaFrom:
        seen = examine(
            *arrays,
            plan=replace(plan, delta_from=source),
            scale=0.25,
            engine="numpy",
            block_q=8,
            block_k=64,
            record=Record(events=(Site.DS,)),
        )
        ds = seen.trace.events["DS"][1]
        rests[source] = np.abs(ds.sum(-1)).max()
    assert rests[DeltaFrom.CENTRED] < 1e-13
    assert min(rest for source, rest in rests.items() if source is not DeltaFrom.CENTRED) > 1e-4


@pytest.mark.parametrize("error", ["bf16", "injected"])
def test_oracle_5_equation_1(error):
    """dQ_hp - dQ_lp = scale diag(delta_lp - delta_hp) P K: a delta that reaches dQ by another way,
    or a lost scale.
    """
    q, k, v, do = float64_inputs()
    scale = 0.25
    high = exact(q, k, v, do, scale=scale)
    if error == "bf16":
        low = examine(
            q,
            k,
            v,
            do,
            plan=Plan.preset("exact").at(Site.DELTA, "bf16"),
            scale=scale,
            engine="numpy",
            block_q=8,
            block_k=8,
        )
    else:
        low = exact(
            q,
            k,
            v,
            do,
            scale=scale,
            inject=[Injection(site=Site.DELTA, what=AddUlps(ulps=2.0**40), rows=(3, 11))],
        )
    gap = low.delta - high.delta
    assert np.count_nonzero(gap) == (48 if error == "bf16" else 4)
    pk = np.einsum("bnts,bsnh->btnh", probabilities(q, k, scale), k)
    assert np.abs((high.dq - low.dq) - scale * gap[..., None] * pk).max() < 1e-12
    assert np.array_equal(high.dv, low.dv)


# --- 6 and 7: the stabiliser
# ----------------------------------------------------------------------------------


def with_row_maxima(maxima, tokens=32, keys=32):
    """q, k, v, do of one feature of which scores are q k: row t has its maximum maxima[t % len] at
    every fourth key exactly.
    """
    r = np.resize(np.asarray(maxima, np.float64), tokens)
    s = r[:, None] - 0.5 - 4 * uniform(8, tokens, keys)
    s[:, 1::4] = r[:, None]
    q = np.eye(tokens).reshape(1, tokens, 1, tokens)
    k = np.ascontiguousarray(s.T).reshape(1, keys, 1, tokens)  # q k = s, exactly
    v, do = (normal(60 + i, 1, n, 1, 8).astype(np.float64) for i, n in enumerate((keys, tokens)))
    return (q, k, v, do), s


def softmax_output(s, v):
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("ts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)


MAXIMA = (30.0, -30.0, 20.0, 12.0, 5.0, 0.01, 0.0, -0.01, -5.0)


@pytest.mark.parametrize("beta", [1.5, 2.0, 7.0])
@pytest.mark.parametrize("window", [None, 1e-3])
def test_oracle_6_shift_invariance(beta, window):
    """A shift that does not cancel: clamps, underflow, an alpha or L without it."""
    (q, k, v, do), s = with_row_maxima(MAXIMA)
    options = {"scale": 1.0, "block_q": 32, "block_k": 8, "record": Record(events=(Site.P,))}
    plain = exact(q, k, v, do, **options)
    moved = exact(
        q, k, v, do, changes={"stabiliser": Stabilizer(beta=beta, window=window)}, **options
    )
    assert np.all(plain.trace.events["P"][1].max(-1) == 1.0)
    assert np.all(moved.trace.events["P"][1].max(-1) < 1.0)  # it fired in every row
    assert np.abs(moved.out - softmax_output(s, v)).max() < 1e-14
    assert np.abs(moved.out - plain.out).max() < 1e-14
    assert np.abs(moved.lse - plain.lse).max() < 1e-13  # |L| up to 32: an ulp is 7e-15
    for name in ("dq", "dk", "dv"):
        x, y = getattr(moved, name), getattr(plain, name)
        assert np.abs(x - y).max() < 1e-12 * max(1.0, np.abs(y).max()), name


@pytest.mark.parametrize(
    ("beta", "maximum"),
    [(7.0, 5.0), (7.0, 12.0), (2.0, 20.0), (2.0, 30.0), (2.0, 200.0), (7.0, -30.0)],
)
@pytest.mark.parametrize("preset", ["exact", "fp32", "fa2-bf16", "qiu-yao"])
def test_oracle_7_no_clamp_switches_rows_off(preset, beta, maximum):
    """The released clamp: rows with (beta - 1) r_m > 23.026 scaled towards zero, with their
    gradients.
    """
    (q, k, v, do), s = with_row_maxima([maximum])
    plan = Plan.preset(preset)
    tolerance = {"exact": 1e-13, "fp32": 2e-6, "fa2-bf16": 2e-2, "qiu-yao": 4e-2}[preset]
    with_it, without = (
        examine(
            q,
            k,
            v,
            do,
            plan=replace(plan, stabiliser=stabiliser),
            scale=1.0,
            block_q=32,
            block_k=8,
            engine="numpy",
        )
        for stabiliser in (Stabilizer(beta=beta), None)
    )
    rows = s if preset in ("exact", "fp32") else None
    if rows is not None:
        assert np.abs(with_it.out - softmax_output(rows, v)).max() < tolerance * max(
            1.0, abs(maximum)
        )
    assert np.abs(with_it.out - without.out).max() < tolerance * max(1.0, abs(maximum))
    lengths = [np.linalg.norm(x.dv) for x in (with_it, without)]
    assert 0.9 < lengths[0] / lengths[1] < 1.1


@pytest.mark.parametrize(
    ("preset", "beta"),
    [
        *(
            (preset, beta)
            for preset in ("qiu-yao", "fa2-bf16", "fa3-fp8", "all:bf16", "all:e4m3fn")
            for beta in (2.0, 7.0)
        ),
        ("fa2-bf16", 1.001),
        ("qiu-yao", 1.001),
        ("all:e4m3fn", 1.01),
    ],
)
def test_stabiliser_leaves_no_weight_of_one(preset, beta):
    """A shift that P's, M's or X's format rounds back: also at r_m = 0 and below, where the paper's
    rule does nothing.
    """
    maxima = (16.0, 5.0, 1.0, 0.0625, 0.0, -0.0625, -1.0, -5.0, -16.0)
    (q, k, v, do), _ = with_row_maxima(maxima)
    options = {
        "scale": 1.0,
        "block_q": 32,
        "block_k": 32,
        "engine": "numpy",
        "record": Record(events=(Site.P,)),
    }
    plan = Plan.preset(preset)
    without = examine(q, k, v, do, plan=plan, **options).trace.events["P"][1]
    assert np.all((without == 1.0).sum(-1) >= 8)
    seen = examine(
        q, k, v, do, plan=replace(plan, stabiliser=Stabilizer(beta=beta)), **options
    ).trace.events["P"][1]
    assert not np.any(seen == 1.0)
    assert np.all(seen.max(-1) > 0.0)


def test_stabiliser_leaves_single_maxima_alone():
    """A shift of every row, which the paper's appendix C says brings the bias back."""
    q, k, v, do = (x.astype(np.float32) for x in float64_inputs())
    plan = Plan.preset("fa2-bf16")
    a, b = (
        examine(
            q, k, v, do, plan=replace(plan, stabiliser=s), engine="numpy", block_q=24, block_k=40
        )
        for s in (None, Stabilizer(beta=2.0, window=0.0))
    )
    assert np.array_equal(a.out, b.out)
    assert np.array_equal(a.dq, b.dq)


def test_stabiliser_treats_rows_without_keys():
    """Fully masked rows taken for repeated maxima (the released code moves them to m = 0); NaN from
    inf - inf.
    """
    q, k, v, do = float64_inputs()
    mask = np.ones((1, 1, 24, 40), bool)
    mask[..., 5, :] = False  # no key at all
    mask[..., 9, :8] = False  # none in the first tile
    mask[..., 11, 8:] = False  # none after the first tile
    plain = exact(q, k, v, do, mask=mask)
    moved = exact(q, k, v, do, mask=mask, changes={"stabiliser": Stabilizer(beta=7.0, window=0.5)})
    assert np.all(moved.out[:, 5] == 0.0)
    assert np.all(np.isneginf(moved.lse[:, 5]))
    for name in ("out", "dq", "dk", "dv", "delta"):
        assert np.abs(getattr(moved, name) - getattr(plain, name)).max() < 1e-12, name


def test_stabiliser_with_padded_rows():
    """Rows that only pad the last tile."""
    q, k, v, do = float64_inputs(tokens=21)
    plain = exact(q, k, v, do)
    moved = exact(q, k, v, do, changes={"stabiliser": Stabilizer(beta=2.0, window=0.5)})
    assert np.abs(moved.out - plain.out).max() < 1e-13
