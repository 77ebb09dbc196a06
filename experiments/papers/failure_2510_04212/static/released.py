"""The released repair of arXiv 2510.04212 as a plain function: its stabilized softmax.

The clamp is included. It is attention.py of the paper's repository at 30ef021 with STABLE=1
(36957f9 has beta = 7), in binary64, so that what deviates from softmax here is due to the algorithm
alone. Letters are as there: r_m, r_s of a tile, m, l, O of a row.
"""

from dataclasses import dataclass

import numpy as np

CLAMP = 1e-10  # EPSILON of the code: the least that a tile adds to the row sum
BUCKET = 512  # queries and keys of a tile, as released
GAP = 1e-3  # scores closer to the maximum than this count as equal to it
# what a masked score is set to, minus the largest BF16 number: it takes part in maxima and ties
MASKED = -3.3895313892515355e38


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The output (T, H), L = m + ln l (T,), and the rows (T,) that count as tied.

    A row is tied if a tile counted several scores at its maximum, masked ones left out.
    """

    out: np.ndarray
    lse: np.ndarray
    tied: np.ndarray


def released(
    s: np.ndarray,
    v: np.ndarray,
    *,
    beta: float,
    clamp: float = CLAMP,
    skip_masked: bool = False,
    bucket: int = BUCKET,
) -> Released:
    """Return the forward on causal scores s (T, T) with v (T, H), float64.

    skip_masked   whether to leave out tiles in which no query sees a key, as kernels do; the
                  released code computes them
    """
    t = s.shape[0]
    seen = np.tri(t, dtype=bool)
    s = np.where(seen, s, MASKED)
    m, l, o = np.full(t, MASKED), np.zeros(t), np.zeros_like(v)
    tied = np.zeros(t, dtype=bool)
    for rows in _tiles(t, bucket):
        for keys in _tiles(t, bucket):
            if skip_masked and not seen[rows, keys].any():
                continue
            m[rows], l[rows], o[rows], several = _tile(
                s[rows, keys], v[keys], m[rows], l[rows], o[rows], beta, clamp
            )
            tied[rows] |= several & seen[rows, keys].any(1)
    return Released(out=o / l[:, None], lse=m + np.log(l), tied=tied)


def _tile(
    s: np.ndarray,
    v: np.ndarray,
    m_old: np.ndarray,
    l: np.ndarray,
    o: np.ndarray,
    beta: float,
    clamp: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (m, l, O, which rows have several scores at the maximum) after one tile."""
    r_m = s.max(1)
    several = (s >= r_m[:, None] - GAP).sum(1) > 1  # r_s > 1
    r_m = np.where(several & (r_m > 0.0), beta * r_m, r_m)
    r_m = np.where(several & (r_m < 0.0), 0.0, r_m)
    m = np.maximum(r_m, m_old)
    p, alpha = np.exp(s - m[:, None]), np.exp(m_old - m)
    return m, alpha * l + np.maximum(p.sum(1), clamp), alpha[:, None] * o + p @ v, several


def softmax(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return causal softmax(s) v, (T, H)."""
    s = np.where(np.tri(s.shape[0], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    out: np.ndarray = p @ v / p.sum(1, keepdims=True)
    return out


def _tiles(t: int, bucket: int) -> list[slice]:
    return [slice(lo, min(lo + bucket, t)) for lo in range(0, t, bucket)]
