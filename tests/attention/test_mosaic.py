"""Row sums, and P of the backward, of kernels that Pallas compiles through Mosaic, in loops over
NumPy's float32, as in their PTX code.
"""

import ml_dtypes
import numpy as np

from roundscope.attention import Plan, examine
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.instructions.approximate import ex2, lg2, rcp

KEYS, WIDTH, TILE = 80, 16, 32
SCALE = 0.25
C = np.float32(SCALE * np.log2(np.e))
LN_2 = np.float32(np.log(2.0))
LOG2_E = np.float32(np.log2(np.e))


def inputs(queries=64):
    """Multiples of 1/8, whose products any order of additions gives exactly."""
    rng = np.random.default_rng(12)
    shapes = (1, queries, 1, WIDTH), (1, KEYS, 1, WIDTH), (1, KEYS, 1, WIDTH)
    return [(rng.integers(-12, 13, s) / 8.0).astype(np.float32) for s in shapes]


def power(x):
    return np.float32(ex2(numpy_ops(), np.array([np.float32(x)], np.float64))[0])


def of_tile(terms):
    """A thread has the columns 8 n + 2 t and the next one, in four sums, two for even n."""
    threads = []
    for t in range(4):
        first = [np.float32(0.0)] * 2
        second = [np.float32(0.0)] * 2
        for n in range(0, len(terms) // 8, 2):
            for c in range(2):
                first[c] = first[c] + terms[8 * n + 2 * t + c]
                second[c] = second[c] + terms[8 * n + 8 + 2 * t + c]
        threads.append((first[0] + second[0]) + (first[1] + second[1]))
    return (threads[0] + threads[1]) + (threads[2] + threads[3])


def state_of(scores):
    """m and l, where alpha l is not rounded before the sum of a tile is added."""
    m, l = np.float32(-np.inf), np.float32(0.0)
    scores = np.append(scores, np.full(-len(scores) % TILE, -np.inf, np.float32))
    for s in scores.reshape(-1, TILE):
        new = max(m, np.float32(s.max() * C))
        x = s.astype(np.float64) * np.float64(C) - np.float64(new)
        total = of_tile([power(z) for z in x])
        l = np.float32(np.longdouble(l) * np.longdouble(power(m - new)) + np.longdouble(total))
        m = new
    return m, l


def log_of(scores):
    """m ln 2 + ln 2 log2(l)."""
    m, l = state_of(scores)
    ln_l = np.float32(lg2(numpy_ops(), np.array([l], np.float64))[0]) * LN_2
    return np.float32(np.longdouble(m) * np.longdouble(LN_2) + np.longdouble(ln_l))


def test_sixteen_lanes_are_added_thread_by_thread():
    """Columns in other threads; a lane that begins with alpha l; threads that meet crosswise."""
    q, k, v = inputs()
    found = examine(
        q, k, v, plan=Plan.preset("tokamax-mosaic"), scale=SCALE, block_q=16, block_k=TILE,
        engine="numpy", record=None,
    )  # fmt: skip
    wanted = [log_of(row) for row in q[0, :, 0] @ k[0, :, 0].T]
    assert np.asarray(found.lse, np.float32).reshape(-1).tolist() == wanted


def weights_of(scores):
    """P of the backward: m in base e and back, and 1 / l times the power."""
    m, l = state_of(scores)
    shift = np.float32(m * LN_2) * LOG2_E
    inverse = np.float32(rcp(numpy_ops(), np.array([l], np.float64))[0])
    x = scores.astype(np.float64) * np.float64(C) - np.float64(shift)
    return [ml_dtypes.bfloat16(power(z) * inverse) for z in x]


def test_the_backward_reads_m_and_l():
    """P from L, from an m that was never rounded in base e, or divided by l. dV of a single query
    whose dO is 1 in one feature is P.
    """
    q, k, v = inputs()
    do = np.zeros_like(q)
    do[..., 0] = 1.0
    of_batch = [np.repeat(x, q.shape[1], axis=0) for x in (k, v)]
    found = examine(
        *(q.swapaxes(0, 1), *of_batch, do.swapaxes(0, 1)),
        plan=Plan.preset("tokamax-mosaic"), scale=SCALE, block_q=16, block_k=TILE,
        engine="numpy", record=None,
    )  # fmt: skip
    wanted = [weights_of(row) for row in q[0, :, 0] @ k[0, :, 0].T]
    assert np.array_equal(np.asarray(found.dv)[:, :, 0, 0], np.array(wanted, np.float32))
