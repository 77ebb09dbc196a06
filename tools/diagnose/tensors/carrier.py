"""Step 3: is there a direction along which the errors of all tokens can add?

It is computed from factors, without a d x d matrix per token.

The error of dW_Q is  alpha sum_T c_T X[T]^T (P K)[T],  c = delta's error (arXiv 2510.04212, eq. 2).
For a run X is known, and M = sum_T c_T X[T]^T (P K)[T] is that error, up to alpha. X is not in a
file of tensors; q = X W_Q is what this head reads of it and stands in for it: M is then W_Q^T times
the error (if q has no bias, position rotation or norm after W_Q), and what X has outside the row
space of W_Q is not seen.

Atoms a_T = X[T]^T (P K)[T] have cos(a_T, a_T') = cos(X_T, X_T') cos(P K_T, P K_T'), so means over
pairs come from one small matrix. There are two null hypotheses: tokens permuted against c (keeps
sum c), and c with signs flipped (keeps |c|).

`shares` (of step 4) has the sums of the rows of dS, 0 in exact arithmetic, and their part in the
gradient of W_Q, as in `experiments.papers.failure_2510_04212`, in its module `training`:

    r[t] = sum_s dS[t,s];   R = sum_t r[t] X[t]^T (PK)[t];
    share = |R| / |dW_Q|,   |.| Frobenius, of every head

r comes out of the emulated backward itself: a feature of ones after K and of zeros after Q, V and
dO changes no other number, and its dQ is alpha r (rounded as dQ is).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.attention import Plan
from roundscope.tools.diagnose.tensors.measured import Measured, by_head
from roundscope.tools.trace.run import call

DRAWS = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """The results of step 3 for one layer, by head.

    pk, q, atoms     mean cosine over pairs of tokens: rows of P K, of X (or q in its place), and
                     their atoms
    flipped_atoms    99th percentile of the atoms' mean cosine when their signs are flipped
    share            sigma_1^2 / sum sigma^2 of M
    permuted, flipped   (heads, 3): 5 %, 50 % and 95 % of it under the null hypotheses
    growth           ||M||_F / sqrt(sum_T ||c_T a_T||^2): about 1 if errors met in random directions
                     or with random signs
    """

    pk: np.ndarray
    q: np.ndarray
    atoms: np.ndarray
    flipped_atoms: np.ndarray
    share: np.ndarray
    permuted: np.ndarray
    flipped: np.ndarray
    growth: np.ndarray

    def common(self, head: int) -> bool:
        """Return whether the atoms of a head have a common direction more than flipped ones do."""
        return bool(self.atoms[head] > self.flipped_atoms[head])


def carrier(m: Measured) -> Carrier:
    """Run step 3 for one layer."""
    heads = [_head(*rows) for rows in zip(*_factors(m), by_head(m.drift.error), strict=True)]
    return Carrier(**{name: np.array([h[name] for h in heads]) for name in heads[0]})


def _factors(m: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Return P K, and what W_Q reads (q where it is not known), by head."""
    q, k = m.layer.q.astype(np.float64), m.layer.k.astype(np.float64)
    # with k in the place of v the output is P K
    pk = by_head(call(q, k, k, None, m.request, m.request.against, m.scale).out)
    if m.x is None:
        return pk, by_head(m.layer.q)
    return pk, by_head(np.broadcast_to(m.x[:, :, None], (*q.shape[:3], m.x.shape[-1])))


def _head(pk: np.ndarray, q: np.ndarray, c: np.ndarray) -> dict[str, Any]:
    rng = np.random.Generator(np.random.Philox(key=1))
    u, w = _unit(pk), _unit(q)
    signs = rng.integers(0, 2, (DRAWS, c.size)) * 2.0 - 1.0
    weighted = (c * np.linalg.norm(pk, axis=1) * np.linalg.norm(q, axis=1)) ** 2
    m = _sum(pk, q, c)

    def of(weights: np.ndarray) -> np.ndarray:
        return np.array([_leading(_sum(pk, q, x)) for x in weights])

    def spread(shares: np.ndarray) -> np.ndarray:
        return np.asarray(np.quantile(shares, (0.05, 0.5, 0.95)))

    return {
        "pk": _mean_cosine(np.linalg.norm(u.sum(0)), c.size),
        "q": _mean_cosine(np.linalg.norm(w.sum(0)), c.size),
        "atoms": _mean_cosine(np.linalg.norm(u.T @ w), c.size),
        "flipped_atoms": np.quantile(
            [_mean_cosine(np.linalg.norm(_sum(u, w, s)), c.size) for s in signs], 0.99
        ),
        "share": _leading(m),
        "permuted": spread(of(rng.permuted(np.tile(c, (DRAWS, 1)), axis=1))),
        "flipped": spread(of(signs * c)),
        "growth": np.linalg.norm(m) / np.sqrt(weighted.sum() or np.inf),
    }


def _unit(x: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(norm > 0.0, norm, 1.0))


def _sum(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return sum_T weights_T b_T^T a_T, (H, H) or (D, H)."""
    return np.asarray((b * weights[:, None]).T @ a)


def _mean_cosine(norm: Any, tokens: int) -> float:
    """Return the mean over pairs of different tokens, from the norm of the sum of unit vectors."""
    return float((norm**2 - tokens) / max(tokens * (tokens - 1), 1))


def _leading(m: np.ndarray) -> float:
    total = float((m**2).sum())
    return float(np.linalg.eigvalsh(m.T @ m)[-1]) / total if total else 0.0


def shares(m: Measured, plan: Plan) -> np.ndarray | None:
    """Return |R| / |dW_Q| of a layer's heads, NaN for dW_Q = 0; None for plans in blocks."""
    if plan.blocks:
        return None
    x = m.layer
    assert x.do is not None
    q, k, v, do = (_wider(a, last) for a, last in ((x.q, 0.0), (x.k, 1.0), (x.v, 0.0), (x.do, 0.0)))
    dq = by_head(call(q, k, v, do, m.request, plan, m.scale).dq)
    pk, read = _factors(m)
    rest = np.einsum("nt,ntd,nth->ndh", dq[..., -1], read, pk)
    gradient = np.einsum("ntd,nth->ndh", read, dq[..., :-1])
    size = np.linalg.norm(gradient, axis=(1, 2))
    found: np.ndarray = np.linalg.norm(rest, axis=(1, 2)) / np.where(size > 0.0, size, np.nan)
    return found


def _wider(x: np.ndarray, last: float) -> np.ndarray:
    return np.concatenate([x, np.full_like(x[..., :1], last)], axis=-1)
