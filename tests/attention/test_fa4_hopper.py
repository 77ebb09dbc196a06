"""FlashAttention-4 on Hopper: L and row sums in loops over NumPy's float32, and what is refused."""

import numpy as np
import pytest

from roundscope.attention import Plan, examine
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.instructions.approximate import ex2, lg2

KEYS, WIDTH = 40, 16
SCALE = 0.25
C = np.float32(SCALE * np.log2(np.e))
LN_2 = np.float32(np.log(2.0))


def inputs(queries=64):
    """Multiples of 1/8, whose products any order of additions gives exactly."""
    rng = np.random.default_rng(11)
    shapes = (1, queries, 1, WIDTH), (1, KEYS, 1, WIDTH), (1, KEYS, 1, WIDTH)
    return [(rng.integers(-12, 13, s) / 8.0).astype(np.float32) for s in shapes]


def returned(q, k, v, plan="fa4-hopper", words=()):
    return examine(
        q, k, v, plan=Plan.preset(plan).changed(*words), scale=SCALE, block_q=16, block_k=KEYS,
        engine="numpy", record=None,
    )  # fmt: skip


def lanes_of(s):
    """The maximum and the four lanes of a row: columns 8 n and 8 n + 1 belong to the first."""
    m = s.max()
    shift = np.float64(np.float32(m * C))
    x = (s.astype(np.float64) * np.float64(C) - shift).astype(np.float32)  # exact before its cast
    e = ex2(numpy_ops(), x.astype(np.float64))
    lanes = [np.float32(0.0)] * 4
    for j, term in enumerate(e):
        lanes[j // 2 % 4] = lanes[j // 2 % 4] + np.float32(term)
    return m, lanes


def log_of(m, l):
    """Two roundings: c m + log2 l, and its product with ln 2."""
    log2 = lg2(numpy_ops(), np.array([l], np.float64))[0]
    return np.float32(np.float64(m) * np.float64(C) + log2) * LN_2


def test_l_is_in_base_2_until_the_end_and_lanes_meet_their_neighbors():
    """c m rounded before the sum, ln l computed first, lanes added as FlashAttention-2 does."""
    q, k, v = inputs()
    rows = [lanes_of(row) for row in q[0, :, 0] @ k[0, :, 0].T]
    wanted = [log_of(m, (a + b) + (c + d)) for m, (a, b, c, d) in rows]
    crossed = [log_of(m, (a + c) + (b + d)) for m, (a, b, c, d) in rows]
    assert np.asarray(returned(q, k, v).lse, np.float32).reshape(-1).tolist() == wanted
    other = returned(q, k, v, words=("row_sum=lanes",)).lse
    assert np.asarray(other, np.float32).reshape(-1).tolist() == crossed != wanted


def test_the_maximum_has_c_times_ln_2_in_flash_attention_3():
    """The scale where the kernel has binary32(c ln 2), which differs with 72 features."""
    q, k, v = inputs()
    scale = 72**-0.5
    c = np.float32(scale * np.log2(np.e))
    factor = c * LN_2
    assert factor != np.float32(scale)
    wanted = []
    for row in q[0, :, 0] @ k[0, :, 0].T:
        m = row.max()
        shift = np.float64(np.float32(m * c))
        x = (row.astype(np.float64) * np.float64(c) - shift).astype(np.float32)
        lanes = [np.float32(0.0)] * 4
        for j, term in enumerate(ex2(numpy_ops(), x.astype(np.float64))):
            lanes[j // 2 % 4] = lanes[j // 2 % 4] + np.float32(term)
        l = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
        ln_l = np.float32(lg2(numpy_ops(), np.array([l], np.float64))[0]) * LN_2
        wanted.append(np.float32(np.float64(m) * np.float64(factor) + np.float64(ln_l)))
    call = {"scale": scale, "block_q": 16, "block_k": KEYS, "record": None}
    got = examine(q, k, v, plan="fa3", engine="numpy", **call).lse
    assert np.asarray(got, np.float32).reshape(-1).tolist() == wanted
    np.testing.assert_array_equal(examine(q, k, v, plan="fa3", engine="xla", **call).lse, got)
    q[0, 3, 0, 1] = np.nan
    assert np.isneginf(np.asarray(examine(q, k, v, plan="fa3", engine="numpy", **call).lse)[0, 3])


def test_a_maximum_in_base_2_takes_no_factor():
    """The factor c, or log2 e, multiplied in twice where the scores have it already."""
    arrays = inputs()
    want = returned(*arrays, plan="exact").lse
    for place in ("scale", "scores"):
        words = ("fused_exponent=false", f"log2_e={place}")
        np.testing.assert_allclose(returned(*arrays, words=words).lse, want, rtol=0, atol=2e-5)


def test_a_row_that_is_nan_has_l_of_minus_infinity():
    """The infinity of FlashAttention-2, whose P is 0; a row beside it that is not its own."""
    q, k, v = inputs()
    q[0, 3, 0, 1] = np.nan
    found = returned(q, k, v)
    lse = np.asarray(found.lse).reshape(-1)
    assert np.isneginf(lse[3]) and np.isfinite(np.delete(lse, 3)).all()
    assert np.isnan(found.out[0, 3]).all()


@pytest.mark.parametrize(
    ("preset", "text", "said"),
    [
        ("fa2-bf16", "log=lg2-sum", "log=lg2-sum: .* use log2_e=scale, maximum or scores"),
        ("flex", "log=lg2-sum", "log=lg2-sum: .* use lse_base2=false"),
        ("flex", "log=lg2-factor", "log=lg2-factor: .* use log2_e=maximum"),
    ],
)
def test_a_sum_in_another_base_is_refused(preset, text, said):
    """log2 l added to a maximum in base e, or L left in base 2 and multiplied by ln 2."""
    with pytest.raises(ValueError, match=said):
        Plan.preset(preset).changed(text)
