"""Row sums of kernels that Pallas compiles through Mosaic, in loops over NumPy's float32, in the
order of the additions of its PTX code.
"""

import numpy as np

from roundscope.attention import Plan, examine
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.instructions.approximate import ex2, lg2

KEYS, WIDTH, TILE = 80, 16, 32
SCALE = 0.25
C = np.float32(SCALE * np.log2(np.e))
LN_2 = np.float32(np.log(2.0))


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


def log_of(scores):
    """m ln 2 + ln 2 log2(l), where alpha l is not rounded before the sum of a tile is added."""
    m, l = np.float32(-np.inf), np.float32(0.0)
    scores = np.append(scores, np.full(-len(scores) % TILE, -np.inf, np.float32))
    for s in scores.reshape(-1, TILE):
        new = max(m, np.float32(s.max() * C))
        x = s.astype(np.float64) * np.float64(C) - np.float64(new)
        total = of_tile([power(z) for z in x])
        l = np.float32(np.longdouble(l) * np.longdouble(power(m - new)) + np.longdouble(total))
        m = new
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
