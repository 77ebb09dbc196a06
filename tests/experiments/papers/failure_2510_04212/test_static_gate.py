"""The sham of the released clamp: leaks against equation 1 in plain NumPy, and the verdicts."""

import ml_dtypes
import numpy as np
import pytest

from roundscope.experiments.framework.verdicts import Word
from roundscope.experiments.papers.failure_2510_04212.static import gate
from roundscope.experiments.papers.failure_2510_04212.static.gate import (
    NONE,
    RELEASED,
    SHAM,
    SHIFT,
    Head,
    judged,
    leaks,
)


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.fixture(scope="module")
def head():
    rng = np.random.default_rng(2)
    q, k, v, do = (bf16(rng.standard_normal((24, 8))) for _ in range(4))
    k[1] = k[0]  # ties where these are the largest
    q[:, 0], k[:2, 0], k[2:, 0] = 12.0, 1.0, 0.0
    return Head(q=q, k=k, v=v, do=do, scale=1.0, causal=True)


def test_a_leak_is_the_error_of_delta(head):
    """A leak of rows that are not tied, with another scale, or with P K of rounded P: equation 1
    has rowsum(dS) = -scale rowsum(dO (O_low - O)) where only the output is wrong.
    """
    s = bf16(bf16(head.q @ head.k.T))
    s = np.where(np.tri(len(s), dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    out = bf16(bf16(bf16(p) @ head.v) / p.sum(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    r = -(head.do * (out - p @ head.v)).sum(1)
    tied = (s >= s.max(1, keepdims=True) - 1e-3).sum(1) > 1
    found = leaks(head, 2.0)
    assert 3 < tied.sum() < len(s)
    assert found[NONE] == pytest.approx(np.linalg.norm(r[tied] @ (p @ head.k)[tied]), rel=1e-9)
    assert found[RELEASED] == pytest.approx(found[SHIFT]) and found["off"] == 0.0  # 12 < 23.03


def test_rows_past_the_clamp_leak_nothing(head):
    """A sham that leaves P or the output, and a repair that leaks with a clamp as without."""
    found = leaks(head, 7.0)
    assert found["off"] == 1.0 and found[SHAM] == 0.0
    assert found[RELEASED] < 1e-3 * found[NONE] < found[SHIFT]


@pytest.mark.parametrize(
    ("shift", "released", "sham", "wanted"),
    [
        (0.1, 0.1, 1.0, Word.AGREES),
        (1.0, 0.1, 0.1, Word.CONTRADICTS),
        (0.1, 0.1, 0.1, Word.UNDECIDED),  # either would do
        (1.0, 1.0, 1.0, Word.CONTRADICTS),  # nothing is repaired
    ],
)
def test_a_repair_that_the_gate_explains_is_the_gate_s(shift, released, sham, wanted):
    """The sham's words for the repair's, and a repair that repairs nothing."""
    own = [{NONE: 1.0 + n, SHIFT: shift * (1 + n), RELEASED: released * (1 + n),
            SHAM: sham * (1 + n), "off": 1.0} for n in range(4)]  # fmt: skip
    [verdict] = judged({(gate.REAL, 7.0): own})
    assert verdict.word is wanted
