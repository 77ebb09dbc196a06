"""Step 4: does delta's error add up over tokens? Each head's sum is tested against sign flips.

The null hypothesis: each token's error keeps its size and takes its sign from a fair coin; tokens
with equal errors (repeated tokens round alike) share a coin. A = |sum x| / sqrt(sum x^2) is then
about 1 or less. p is the share of 65,536 draws (in steps 5 and 6 of 16,384) whose |sum| is as
large, or Hoeffding's bound 2 exp(-(sum x)^2 / (2 sum of squares)) where that is smaller, as it is
far out in the tail.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from roundscope.tools.diagnose.tensors.measured import Measured, by_head
from roundscope.tools.trace.analysis.bias import FALSE_ALARMS, threshold

DRAWS, AT_ONCE = 1 << 16, 1 << 12
FEW = 1 << 14  # draws where p is compared with 0.01 or 0.001 only
POWER = 0.9  # probability to detect the smallest bias that we say would have been detected


@dataclass(frozen=True, slots=True, kw_only=True)
class Coherence:
    """The results of step 4 for one layer, by head, over the tokens of all sequences.

    error       (heads, B T);  total, rms: its sum over tokens and its root mean square
    a           A;  p: under the null hypothesis above
    smallest    |mean error per token| that a head with this rms would have shown, nine times in ten
    tests       the number of heads in all layers, which sets the level
    """

    error: np.ndarray
    total: np.ndarray
    rms: np.ndarray
    a: np.ndarray
    p: np.ndarray
    smallest: np.ndarray
    tests: int

    @property
    def level(self) -> float:
        """The p that an unbiased head of the diagnosis has once in a hundred times."""
        return FALSE_ALARMS / max(self.tests, 1)

    @property
    def biased(self) -> np.ndarray:
        """The heads that are biased."""
        return np.flatnonzero(self.p < self.level)


def coherence(m: Measured, tests: int) -> Coherence:
    """Run step 4 for one layer."""
    error = by_head(m.drift.error)
    total, squares = error.sum(1), (error**2).sum(1)
    tokens = error.shape[1]
    rms = np.sqrt(squares / tokens)
    a = np.abs(total) / np.sqrt(np.where(squares > 0.0, squares, np.inf))
    needed = threshold(tests) + NormalDist().inv_cdf(POWER)
    return Coherence(
        error=error,
        total=total,
        rms=rms,
        a=a,
        p=flips(error),
        smallest=needed * rms / np.sqrt(tokens),
        tests=tests,
    )


def flips(error: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """Return p of each row's |sum| under sign flips; error: (rows, T). Rows of zeros have p = 1."""
    coins = np.stack([_shared(x) for x in error])
    observed, squares = np.abs(coins.sum(1)), (coins**2).sum(1)
    rng = np.random.Generator(np.random.Philox(key=0))
    beyond = np.zeros(error.shape[0], dtype=np.int64)
    for _ in range(draws // AT_ONCE):
        drawn = rng.integers(0, 2, (AT_ONCE, error.shape[1]), dtype=np.int8)
        signs = drawn.astype(np.float64) * 2.0 - 1.0
        beyond += (np.abs(signs @ coins.T) >= observed * (1.0 - 1e-12)).sum(0)
    bound = 2.0 * np.exp(-(observed**2) / (2.0 * np.where(squares > 0.0, squares, 1.0)))
    return np.where(squares > 0.0, np.minimum((1.0 + beyond) / (1.0 + draws), bound), 1.0)


def _shared(x: np.ndarray) -> np.ndarray:
    """Return x with equal errors added up at the first of them, and zeros at the others."""
    _, first, which = np.unique(x, return_index=True, return_inverse=True)
    coins = np.zeros_like(x)
    np.add.at(coins, first[which.reshape(-1)], x)
    return coins


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """The mean error per token of one head, its 95 % interval over tokens, A, p and rms."""

    mean: float
    low: float
    high: float
    a: float
    p: float
    rms: float


def bias(error: np.ndarray) -> Bias:
    """Return the bias of one head's errors (T,), for two tokens or more."""
    mean, half = float(error.mean()), 1.96 * float(error.std(ddof=1)) / math.sqrt(error.size)
    squares = float((error**2).sum())
    a = abs(float(error.sum())) / np.sqrt(squares) if squares else 0.0
    return Bias(
        mean=mean,
        low=mean - half,
        high=mean + half,
        a=float(a),
        p=float(flips(error[None], FEW)[0]),
        rms=math.sqrt(squares / error.size),
    )
