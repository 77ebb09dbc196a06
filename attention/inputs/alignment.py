"""Where a query stands among the keys of a causal or windowed call with other numbers of the two.

Query t of T stands at key t + shift of S: a causal call lets it see the keys up to there, and a
window lies around it. `top-left` counts queries and keys from the first, so the shift is 0, as in
`jax.nn.dot_product_attention` and PyTorch's `scaled_dot_product_attention`. `bottom-right` counts
both from the last, so the shift is S - T, as in FlashAttention since version 2.1, in MLX, and in
PyTorch's `causal_lower_right`; queries then are the last tokens of the keys.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from roundscope.emu.errors import unknown
from roundscope.emu.shown import shown

Alignment = Literal["top-left", "bottom-right"]
ALIGNMENTS: tuple[Alignment, ...] = get_args(Alignment)


def alignment_given(alignment: Any) -> Alignment | None:
    """Return an alignment, or None where nobody has said any.

    Raise TypeError if it is not a string, and ValueError with the nearest word if it is unknown.
    """
    if alignment is not None and not isinstance(alignment, str):
        raise TypeError(f"alignment={shown(alignment)}: give 'top-left' or 'bottom-right'")
    if alignment is None:
        return None
    for known in ALIGNMENTS:
        if alignment == known:
            return known
    raise ValueError(f"alignment={shown(alignment)}: {unknown('alignment', alignment, ALIGNMENTS)}")


def shift_of(alignment: Alignment | None, queries: int, keys: int) -> int:
    """Return the number of the key at which query 0 stands; None is top-left.

    It is below 0 if there are more queries than keys, and queries before the first key see none.
    """
    return keys - queries if alignment == "bottom-right" else 0


def visible_keys(
    queries: int, keys: int, *, is_causal: bool, window: int | None, alignment: Alignment | None
) -> NDArray[np.bool_]:
    """Return which keys each query sees by causality and by a window, (T, S).

    Example:
        >>> call = {"is_causal": True, "window": None}
        >>> visible_keys(2, 3, alignment="bottom-right", **call).astype(int).tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    gap = np.arange(queries)[:, None] + shift_of(alignment, queries, keys) - np.arange(keys)
    sees = np.ones(gap.shape, bool)
    if is_causal:
        sees &= gap >= 0
    if window:
        sees &= np.abs(gap) < window
    return sees


def note_on(
    alignment: Alignment | None, queries: int, keys: int, *, is_causal: bool, window: int | None
) -> str | None:
    """Return what to say of a call of which nobody has said how it is aligned, or None.

    None is returned where the two alignments are the same, or where somebody chose one.
    """
    if alignment is not None or queries == keys or not (is_causal or window):
        return None
    what = "causal" if is_causal else "windowed"
    return (
        f"a {what} call of {queries} queries and {keys} keys, aligned at the top left, as nothing"
        " says how: query t stands at key t, as in PyTorch's SDPA and jax.nn; FlashAttention since"
        f" 2.1 puts it at key t {keys - queries:+d}, which alignment bottom-right says"
    )
