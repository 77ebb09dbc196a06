"""Claim 2 on tensors of a healthy model: the shipped ones, with V in place of X.

X, what W_Q reads, is not among them; the values of all heads are a linear image of it, which is
what `roundscope watch` uses. The errors are those of the preset qiu-yao.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.attention import row_sums
from roundscope.experiments.framework.estimates import mean, ratio
from roundscope.experiments.framework.study import Progress, Static
from roundscope.experiments.framework.verdicts import LARGER, interval, verdict_on
from roundscope.experiments.papers.mechanism_2510_04212.looks import measured
from roundscope.tools.tensors.layers import read_layers, sample_path

ALIKE = (0.5, np.inf)
CASE = "MiniLM, V in place of X"


def heads(tokens: int | None = None) -> list[Mapping[str, float]]:
    """Return what a look measures of each head of both layers, of so many tokens or all."""
    found: list[Mapping[str, float]] = []
    for n, x in enumerate(read_layers(sample_path())):
        if x.do is None:
            continue
        q, k, v, do = (np.asarray(y[:, :tokens], np.float64) for y in (x.q, x.k, x.v, x.do))
        scale = x.scale or q.shape[3] ** -0.5
        r = row_sums(q, k, v, do, plan="qiu-yao", scale=scale)[0] * scale
        values = v[0].reshape(v.shape[1], -1)
        for head in range(q.shape[2]):
            at = (0, slice(None), head)
            pk, dq = _exact(q[at], k[at], v[at], do[at], scale)
            a, b, c, d = (
                jnp.asarray(y[None, None], jnp.float32) for y in (values, pk, r[:, head], dq)
            )
            columns, _ = measured(a, b, c, d, jax.random.key(n * q.shape[2] + head))
            found.append({name: float(y) for name, y in columns.items()})
    return found


def _exact(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, do: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return P K and dQ of one head, (T, H)."""
    s = q @ k.T * scale
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dp = do @ v.T
    ds = p * (dp - (p * dp).sum(1, keepdims=True))
    return p @ k, scale * ds @ k


def static(progress: Progress) -> Static:
    """Return the verdicts on the shipped tensors."""
    found = heads()

    def of(name: str) -> Mapping[int, float]:
        return {n: own[name] for n, own in enumerate(found)}

    def shown(name: str) -> str:
        return interval(mean(of(name)))

    count = f"; {len(found)} heads"
    atoms = f"{shown('atom')}; V permuted against P K {shown('unpaired')}{count}"
    rank = f"{shown('first')}; errors permuted {shown('shuffled')}; the gradient of W_Q"
    e = ratio(of("first"), of("shuffled"))
    claim = "ours: that rank is the errors' doing, not the atoms' alone"
    pairs = f"{interval(e, 'x')} the share with errors permuted{count}"
    told = (
        ("pk", "rows of P K are alike over tokens", f"{shown('pk')}{count}"),
        ("atom", "atoms are alike over tokens", atoms),
        ("first", "R has low rank", f"{rank} {shown('gradient')}{count}"),
    )
    own = [verdict_on("claim 2", c, CASE, ALIKE, text, mean(of(n))) for n, c, text in told]
    return Static(verdicts=[*own, verdict_on("claim 2", claim, CASE, LARGER, pairs, e)])
