"""The sums of the rows of dS, 0 in exact arithmetic, and their part in the gradient of W_Q.

They are as in `experiments.papers.failure_2510_04212`, in its module `training`.

    r[t] = sum_s dS[t,s];   R = sum_t r[t] X[t]^T (PK)[t];
    share = |R| / |dW_Q|,   |.| Frobenius, of every head

r comes out of the emulated backward itself: a feature of ones after K and of zeros after Q, V and
dO changes no other number, and its dQ is alpha r (rounded as dQ is). X is what W_Q reads; where it
is not known, q stands in for it.
"""

import numpy as np

from roundscope.attention import Plan
from roundscope.tools.diagnose.tensors.measured import Measured, by_head
from roundscope.tools.trace.run import call


def shares(m: Measured, plan: Plan) -> np.ndarray | None:
    """Return |R| / |dW_Q| of every head of a layer under a plan, (heads,), NaN where dW_Q is 0.

    None for plans in blocks, whose scales a further feature would change.
    """
    if plan.blocks:
        return None
    x = m.layer
    assert x.do is not None
    q, k, v, do = (_wider(a, last) for a, last in ((x.q, 0.0), (x.k, 1.0), (x.v, 0.0), (x.do, 0.0)))
    dq = by_head(call(q, k, v, do, m.request, plan, m.scale, None).dq)
    k = x.k.astype(np.float64)
    pk = by_head(
        call(x.q.astype(np.float64), k, k, None, m.request, m.request.against, m.scale, None).out
    )
    read = by_head(
        x.q if m.x is None else np.broadcast_to(m.x[:, :, None], (*x.q.shape[:3], m.x.shape[-1]))
    )
    rest = np.einsum("nt,ntd,nth->ndh", dq[..., -1], read, pk)
    gradient = np.einsum("ntd,nth->ndh", read, dq[..., :-1])
    size = np.linalg.norm(gradient, axis=(1, 2))
    found: np.ndarray = np.linalg.norm(rest, axis=(1, 2)) / np.where(size > 0.0, size, np.nan)
    return found


def _wider(x: np.ndarray, last: float) -> np.ndarray:
    return np.concatenate([x, np.full_like(x[..., :1], last)], axis=-1)
