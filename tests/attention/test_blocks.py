"""Block formats at the operands of attention, against blocks quantised in rational arithmetic, and
against what scales cannot change.
"""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import AddUlps, Injection, Plan, Record, SetTo, Site, attend, examine
from roundscope.attention.plans.presets import ALL, HEAD_FP8, P_256
from roundscope.attention.sites import BLOCK_AXIS
from roundscope.emu import round_to
from roundscope.emu.blocks.format import block_format
from roundscope.emu.roundings.modes import E4M3
from tests.checks.engines import bf16, normal
from tests.emu.blocks.block_judge import block, tensor_scale

MX, EXACT = block_format("mxfp8_e4m3"), Plan.preset("exact")
OPERANDS = tuple(BLOCK_AXIS)


def judged(x, f, axis):
    """A matrix in blocks of `f` along an axis, block by block from the definitions."""
    x = x if axis == 1 else x.T
    tensor, y = tensor_scale(x, f), np.empty_like(x)
    for i in range(0, x.shape[0], f.rows):
        for j in range(0, x.shape[1], f.size):
            part = x[i : i + f.rows, j : j + f.size]
            scale, elements = block(part.reshape(-1).tolist(), f, [0] * part.size, tensor)
            y[i : i + f.rows, j : j + f.size] = np.reshape(elements, part.shape) * (
                scale * float(tensor)
            )
    return y if axis == 1 else y.T


def inputs(t, s, h, seed=0, heads=1):
    return [
        normal(40 + 4 * seed + i, 1, n, heads, h).astype(np.float64)
        for i, n in enumerate((t, s, s, t))
    ]


def test_one_tile_is_the_papers_formula_on_block_rounded_operands():
    """Catches blocks along the wrong axis of P or V, a scale that is lost, V rounded twice."""
    q, k, v, _ = inputs(6, 32, 8)
    f = replace(MX, size=16)
    out = examine(q, k, v, plan=EXACT.at("P", f).at("V", f), engine="numpy", record=None).out[
        0, :, 0
    ]
    s = q[0, :, 0] @ k[0, :, 0].T / np.sqrt(8)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    want = judged(e, f, 1) @ judged(v[0, :, 0], f, 0) / e.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=1e-13)


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "nvfp4", "tile"])
def test_every_operand_in_its_blocks(name):
    """Catches an operand blocked along another axis than its first product's, blocks that cross
    tiles, masked entries with a say.
    """
    f = replace(HEAD_FP8, size=4, rows=8) if name == "tile" else replace(block_format(name), size=4)
    plan = EXACT.rounded(dict.fromkeys(OPERANDS, f))
    x = inputs(24, 20, 8)
    seen = examine(
        *x,
        plan=plan,
        block_q=8,
        block_k=8,
        is_causal=True,
        engine="numpy",
        record=Record(events=OPERANDS),
    ).trace
    axis = {
        "Q": 1,
        "K": 1,
        "V": 0,
        "DO": 0,
        "P": 1,
        "P_B": 0,
        "DS": 1,
    }  # features, features, keys, queries, keys, queries, keys
    for site, (before, after) in seen.events.items():
        there = (
            np.tri(24, 20, dtype=bool)
            if site in ("P", "P_B", "DS")
            else np.ones((*before.shape[2:3], 8), bool)
        )
        numbers = np.where(there, before.reshape(there.shape), 0.0)
        tiles = [
            (slice(i, i + 8), slice(j, j + 8))
            for i in range(0, 24, 8)
            for j in range(0, min(i + 8, 20), 8)
        ]
        for part in tiles if site in ("P", "P_B", "DS") else [(slice(None), slice(None))]:
            want = judged(numbers[part], f, axis[site])
            np.testing.assert_array_equal(
                np.where(there[part], after.reshape(there.shape)[part], 0.0),
                np.where(there[part], want, 0.0),
            )


def test_the_backward_reads_what_the_forward_rounded():
    """Catches a backward on operands of its own: dQ of a linear functional follows the rounded K,
    and dV the P_B in blocks.
    """
    q, k, v, do = inputs(8, 8, 8)
    plan = EXACT.rounded({Site.K: MX, Site.P_B: replace(MX, size=8)})
    ours = examine(
        q, k, v, do, plan=plan, engine="numpy", record=Record(events=(Site.P_B, Site.DS))
    )
    rounded_k = judged(k[0, :, 0], replace(MX, size=8), 1)
    np.testing.assert_allclose(
        ours.dq[0, :, 0],
        ours.trace.events["DS"][1][0, 0] @ rounded_k / np.sqrt(8),
        rtol=1e-12,
        atol=1e-15,
    )
    rounded_p = judged(ours.trace.events["P_B"][0][0, 0], replace(MX, size=8), 0)
    np.testing.assert_allclose(ours.dv[0, :, 0], rounded_p.T @ do[0, :, 0], rtol=1e-12)


def test_scales_follow_the_data():
    """Catches a scale fixed in advance: with V 2^60 times as large the MXFP8 output is too, and a
    plain cast saturates.
    """
    q, k, v, _ = inputs(16, 32, 32)

    def run(name, v):
        return attend(q, k, v, plan=name, engine="numpy")

    for name in ("mxfp8-attention", "fa3-fp8-scaled"):
        np.testing.assert_array_equal(run(name, np.ldexp(v, 60)), np.ldexp(run(name, v), 60))
    assert np.abs(run("fa3-fp8", np.ldexp(v, 60))).max() <= 448.0


def test_the_presets_are_their_sources():
    """Catches a site of the presets in other blocks than published, and a head's scale that is a
    tile's.
    """
    fa3, mx = Plan.preset("fa3-fp8-scaled"), Plan.preset("mxfp8-attention")
    assert (
        dict(fa3.blocks) == dict.fromkeys((Site.Q, Site.K, Site.V), HEAD_FP8)
        and HEAD_FP8.size == ALL
    )
    assert dict(mx.blocks) == dict.fromkeys((Site.Q, Site.K, Site.V, Site.P), MX)
    assert (
        fa3.product_bits(Site.S) == 106 and mx.product_bits(Site.S) == 53
    )  # factors of 4 + 24 bits, and of 4 with any exponent
    x = inputs(64, 64, 8)
    seen = examine(
        *x[:3],
        plan=fa3,
        block_q=16,
        block_k=16,
        engine="numpy",
        record=Record(events=(Site.Q, Site.K, Site.V)),
    ).trace
    for before, after in seen.events.values():
        scale = np.float64(np.float32(np.abs(before).max() / 448.0))
        np.testing.assert_array_equal(after, round_to(before / scale, E4M3) * scale)


def test_256_p_is_e4m3_of_256_p():
    """Catches a fixed scale of P with another range: the least number, the largest, ties."""
    p = np.concatenate([np.linspace(0.0, 1.0, 100_001), 2.0 ** -np.arange(0.0, 24.0, 0.25)])
    np.testing.assert_array_equal(round_to(p, P_256), round_to(p * 256.0, E4M3) / 256.0)


def test_statistics_speak_of_elements():
    """Catches ulps that ignore the scale: V 2^40 times as large changes no count and no ulp, and
    every error by 2^40.
    """
    q, k, v, _ = inputs(8, 64, 8)
    plan = EXACT.at("V", "mxfp8_e4m3")
    small, large = (
        examine(q, k, np.ldexp(v, n), plan=plan, engine="numpy").trace.stats["V"] for n in (0, 40)
    )
    for name in (
        "n",
        "inexact",
        "ties",
        "subnormal",
        "underflow",
        "ulps",
        "abs_ulps",
        "peak",
        "place",
    ):
        np.testing.assert_array_equal(getattr(small, name), getattr(large, name), err_msg=name)
    assert small.inexact > 200 and small.peak <= 1.0 and small.overflow == 0
    np.testing.assert_array_equal(np.ldexp(small.abs_error, 40), large.abs_error)


def test_injections_in_a_block():
    """Catches an ulp without its scale, and an injection that changes its neighbours."""
    q, k, v, _ = inputs(8, 32, 8)
    plan = EXACT.at("V", MX)
    chosen = {"site": Site.V, "rows": 3, "features": 2}

    def run(*inject):
        return examine(
            q, k, v, plan=plan, engine="numpy", inject=inject, record=Record(events=(Site.V,))
        ).trace.events["V"][1]

    clean = run()
    hit = run(Injection(**chosen, what=AddUlps(ulps=1.0)))
    put = run(Injection(**chosen, what=SetTo(value=9.0)))
    moved = (hit - clean)[0, 0]
    scale, _ = block(v[0, :, 0, 2].tolist(), MX, [0] * 32)
    element = abs(clean[0, 0, 3, 2]) / scale
    assert moved[3, 2] == scale * 2.0 ** (max(np.floor(np.log2(element)), -6) - 3)
    assert np.count_nonzero(moved) == 1 and put[0, 0, 3, 2] == 9.0


def test_a_masked_score_is_no_number_of_a_block():
    """dS of a masked score that takes part in its block: it is NaN where dP overflows, and so would
    be the scale of the block.
    """
    q, k, v, do = inputs(8, 32, 8)
    do[..., 0] = 4.0
    mask = np.ones((1, 1, 8, 32), bool)
    mask[..., 5] = False
    large = v.copy()
    large[0, 5, 0, 0] = 1e308
    plan = EXACT.at("DS", MX)
    plain, beside = (examine(q, k, x, do, plan=plan, engine="numpy", mask=mask) for x in (v, large))
    others = np.arange(32) != 5
    np.testing.assert_array_equal(plain.dk[:, others], beside.dk[:, others])
    assert np.isfinite(plain.dk).all() and np.isnan(beside.dq).all()


def test_rows_without_keys_and_blocks_with_a_nan():
    """Catches NaN that leaves its block of 32 keys, and masked rows that get one."""
    q, k, v, _ = inputs(8, 64, 8)
    v[0, 40, 0, 1] = np.nan
    mask = np.zeros((1, 1, 8, 64), bool)
    mask[..., :32] = True
    mask[..., 7, :] = False
    out = attend(q, k, v, plan="mxfp8-attention", engine="numpy", mask=mask, block_k=32)
    assert np.isfinite(out).all() and np.all(out[0, 7] == 0.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, x: p.at("S", "mxfp4"), ("mxfp4 at S", "Q K V DO P P_B DS")),
        (lambda p, x: p.at("P", "mxfp8_e4m4"), ("mxfp8_e4m4", "in blocks: mxfp8_e4m3")),
        (
            lambda p, x: replace(p.at("P", MX), roundings=p.roundings),
            ("P is in blocks of mxfp8_e4m3", "Plan.rounded"),
        ),
        (
            lambda p, x: attend(*x, plan=p.at("P", MX), block_k=48),
            ("block_k=48", "P in mxfp8_e4m3", "multiple of 32"),
        ),
        (
            lambda p, x: attend(*x, plan=p.at("V", MX), block_k=24),
            ("block_k=24", "V", "multiple of 32"),
        ),
        (
            lambda p, x: attend(*x, plan=p.at("P_B", MX), block_q=16),
            ("block_q=16", "P_B", "multiple of 32"),
        ),
        (
            lambda p, x: attend(*x, plan=p.at("P", "fp8_128x128"), block_q=16, block_k=128),
            ("block_q=16", "128"),
        ),
    ],
)
def test_errors_name_the_value_and_the_repair(call, words):
    """Catches blocks that straddle tiles, a stale rounding under a block, and a message that does
    not help.
    """
    with pytest.raises(ValueError, match=r".") as caught:
        call(Plan.preset("fp32"), inputs(72, 200, 8)[:3])
    assert all(word in str(caught.value) for word in words)


def test_what_fits_runs():
    """Catches a check that refuses blocks of several tiles of V, one tile shorter than a block,
    tokens that the tile does not divide.
    """
    q, k, v, _ = inputs(20, 40, 8)
    attend(q, k, v, plan=EXACT.at("V", HEAD_FP8), engine="numpy", block_q=8, block_k=16)
    attend(q, k, v, plan=EXACT.at("V", replace(MX, size=16)), engine="numpy", block_k=8)
    attend(q, k, v, plan=EXACT.at("P", MX), engine="numpy", block_k=64)
    attend(
        bf16(q),
        bf16(k),
        bf16(v),
        plan=EXACT.at("P", replace(MX, size=8)),
        engine="numpy",
        block_k=16,
    )


def test_edits_of_a_plan():
    """Catches a block that outlives its site's next format, an element's seed that is lost, a
    description without blocks.
    """
    plan = EXACT.at("P", "mxfp8_e4m3", "stochastic", seed=5)
    assert plan.block(Site.P) == block_format("mxfp8_e4m3", "stochastic") and plan[Site.P].seed == 5
    assert plan.event(Site.P) == block_format("mxfp8_e4m3", "stochastic", seed=5)
    assert plan.at("P", "bf16").blocks == () and plan.at("O", "bf16").blocks == plan.blocks
    assert Plan.preset("mxfp8-attention").describe()["roundings"]["V"] == "mxfp8_e4m3"
    assert EXACT.at("V", MX).at("Q", MX).blocks == EXACT.at("Q", MX).at("V", MX).blocks
