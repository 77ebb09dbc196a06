"""The programs of `flex_attention` as arrays: a score_mod that adds is a bias, a mask_mod a mask.

A score_mod is a function (score, b, h, q, kv) -> score of one score and its indices. It is
evaluated here on all indices at once, which broadcast: arithmetic and indexing of tensors mean the
same. What it does to a score is tried at several scores in binary64. It may add what depends on the
indices alone, hide keys by -inf, or bound the score by a softcap; anything else is refused.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

TRIED = (1.0, -0.75, 3.1415926, -17.25, 160.0)  # scores
CAPPED = 1e9  # a score that every softcap bounds
NEAR = 1e-6  # how far sums in binary32 may be apart, of 1 + their size


class Dense(NamedTuple):
    """What programs do to scores: a mask of booleans or of numbers that are added, and a softcap;
    None for none.
    """

    mask: Tensor | None = None
    softcap: float | None = None


def dense(score_mod: Any, block_mask: Any, q: Tensor, k: Tensor, where: str) -> Dense:
    """Return what a score_mod and a block mask do, as arrays that broadcast to (B, N, T, S).

    Gradients of the bias reach the tensors that the score_mod reads.

    q, k    (B, N, T, H) and (B, G, S, H), the tensors of the call
    where   the beginning of a message

    Raises:
        ValueError: The score_mod does something else, or reads its indices otherwise.

    Example:
        >>> import torch
        >>> q = k = torch.zeros(1, 2, 3, 4)
        >>> alibi = lambda score, b, h, i, j: score + 0.5 ** (h + 1) * (j - i)
        >>> dense(alibi, None, q, k, "").mask[0, 1].tolist()
        [[0.0, 0.25, 0.5], [-0.25, 0.0, 0.25], [-0.5, -0.25, 0.0]]
        >>> dense(lambda score, b, h, i, j: 2.0 * torch.tanh(score / 2.0), None, q, k, "").softcap
        2.0
    """
    sizes = (*q.shape[:3], k.shape[2])
    indices = [
        torch.arange(n, device=q.device).reshape(*(1,) * axis, -1, *(1,) * (3 - axis))
        for axis, n in enumerate(sizes)
    ]
    found = Dense() if score_mod is None else _of_scores(score_mod, indices, q, where)
    mask_mod = None if block_mask is None else block_mask.mask_mod
    if mask_mod is None:
        return found
    sees = _evaluated(mask_mod, indices, where)
    if found.mask is None:
        return found._replace(mask=sees)
    return found._replace(mask=torch.where(sees, found.mask, -torch.inf))


def _of_scores(score_mod: Any, indices: list[Tensor], q: Tensor, where: str) -> Dense:
    """Return what a score_mod adds, or its softcap."""
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    zero = torch.zeros(1, 1, 1, 1, dtype=wide, device=q.device)
    bias = _evaluated(score_mod, [zero, *indices], where)
    with torch.no_grad():
        at = {
            s: _evaluated(score_mod, [(zero + s).double(), *indices], where).double()
            for s in (*TRIED, CAPPED)
        }
        own = bias.double()
        size = own.abs().nan_to_num(posinf=0.0, neginf=0.0) + 1.0

        def is_like(found: Tensor, expected: Tensor | float) -> bool:
            off = (found - expected).nan_to_num(nan=0.0)  # -inf less -inf
            return bool((off.abs() <= NEAR * size).all())

        if all(is_like(at[s] - s, own) for s in TRIED):
            return Dense(mask=None if bool((own == 0.0).all()) and not bias.requires_grad else bias)
        cap = float(at[CAPPED].reshape(-1)[0])
        bounded = {s: cap * torch.tanh(torch.tensor(s / cap).double()) for s in TRIED if cap > 0.0}
        if bounded and all(is_like(at[s], float(x)) for s, x in bounded.items()):
            return Dense(softcap=cap)
    first, second = (float((at[s] - s).reshape(-1)[0]) for s in TRIED[:2])
    raise ValueError(
        f"{where}: its score_mod is neither score + f(b, h, q, kv) nor a softcap: to a score of"
        f" {TRIED[0]:g} it adds {first:.3g}, to {TRIED[1]:g} {second:.3g}, and plans do not model"
        " it; give what scales the scores as scale=, or choose other layers"
    )


def _evaluated(mod: Callable[..., Any], arguments: list[Tensor], where: str) -> Tensor:
    """Return what a function of scores or of masks returns for all indices together."""
    try:
        found = mod(*arguments)
        if isinstance(found, Tensor) and found.ndim == 4:
            return found
        told = f"returned {type(found).__name__}"
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        told = str(error).partition("\n")[0]
    name = getattr(mod, "__name__", "a function")
    raise ValueError(
        f"{where}: {name} cannot be evaluated on all indices at once ({told}); write it by"
        " arithmetic and indexing of tensors, without if and float(), or give the dense mask by"
        " mask= of attention_function"
    )
