"""Packed sequences, as the varlen functions of FlashAttention take them: each is a separate call.

The tokens of all sequences stand one behind the other, without padding: sequence i has the queries
cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1 and the keys cu_seqlens_k[i] to cu_seqlens_k[i + 1] - 1.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from roundscope.attention.api import attend
from roundscope.attention.arguments import check_floats
from roundscope.attention.plans.plan import Plan
from roundscope.emu.arrays import Array, Result, is_traced
from roundscope.emu.errors import known_arguments
from roundscope.emu.shown import shown

OF_ONE_CALL = ("mask", "delta_error")  # arguments with the tokens of one call


class Packed(NamedTuple):
    """One sequence of packed tensors: the arrays of a call of one batch entry.

    Attributes:
        q: Queries (1, T, N, H).
        k: Keys (1, S, G, H).
        v: Values (1, S, G, Hv).
        do: The gradient of the output, (1, T, N, Hv), or None.
    """

    q: Array
    k: Array
    v: Array
    do: Array | None


@known_arguments
def packed_sequences(
    q: Array,
    k: Array,
    v: Array,
    do: Array | None = None,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
) -> list[Packed]:
    """Return the sequences of packed tensors, for a call of `examine` or of any other each.

    Args:
        q: The queries of all sequences, (tokens, N, H).
        k: The keys of all sequences, (tokens, G, H).
        v: The values of all sequences, (tokens, G, Hv).
        do: The gradient of the output, (tokens, N, Hv), if there is one.
        cu_seqlens_q: Where each sequence begins among the queries, and where the last one ends:
            0, then the sums of the numbers of queries, such as [0, 3, 8] for 3 and 5.
        cu_seqlens_k: The same for the keys; those of `cu_seqlens_q` if it is left out.

    Returns:
        The arrays of each sequence. A sequence may be without tokens, which no call takes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Tensors have other axes or numbers of tokens than these.

    Example:
        >>> import numpy as np
        >>> from roundscope import examine, packed_sequences
        >>> q, k, v = np.random.default_rng(0).standard_normal((3, 8, 2, 16), "f4")
        >>> for own in packed_sequences(q, k, v, cu_seqlens_q=[0, 3, 8]):
        ...     print(examine(*own, plan="fa2-bf16", is_causal=True).lse.shape)
        (1, 3, 2)
        (1, 5, 2)
    """
    given = {"q": q, "k": k, "v": v} | ({} if do is None else {"do": do})
    for name, x in given.items():
        check_floats(name, x)
        if len(x.shape) != 3:
            raise ValueError(
                f"{name}: shape {tuple(x.shape)}, must be (tokens, heads, features): the tokens of"
                " all sequences, one behind the other"
            )
    for name, like in (("v", "k"), ("do", "q")):
        if name in given and given[name].shape[0] != given[like].shape[0]:
            raise ValueError(
                f"{name}: {given[name].shape[0]} tokens, must have the {given[like].shape[0]} of"
                f" {like}"
            )
    of_queries = lengths_given("cu_seqlens_q", cu_seqlens_q, "q", q.shape[0])
    if cu_seqlens_k is None:
        cu_seqlens_k = of_queries
    of_keys = lengths_given("cu_seqlens_k", cu_seqlens_k, "k", k.shape[0])
    if len(of_queries) != len(of_keys):
        raise ValueError(
            f"cu_seqlens_k: {len(of_keys)} numbers, must be as many as cu_seqlens_q has,"
            f" {len(of_queries)}, one more than there are sequences"
        )
    ends = zip(itertools.pairwise(of_queries), itertools.pairwise(of_keys), strict=True)
    return [
        Packed(
            q[None, t:to_t],
            k[None, s:to_s],
            v[None, s:to_s],
            None if do is None else do[None, t:to_t],
        )
        for (t, to_t), (s, to_s) in ends
    ]


def attend_packed(
    q: Array,
    k: Array,
    v: Array,
    *,
    plan: Plan | str,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    **call: Any,
) -> Result:
    """Return the attention of packed sequences, each with the bits of a separate call of `attend`.

    The sequences do not see each other. Tiles begin at the first token of each, as in
    FlashAttention's varlen functions, and every sequence draws the random bits of a call of its
    own. FlashAttention aligns causal calls at the bottom right, for which `alignment` stands. Under
    JAX the call is differentiable.

    Args:
        q: The queries of all sequences, (tokens, N, H).
        k: The keys of all sequences, (tokens, G, H).
        v: The values of all sequences, (tokens, G, Hv).
        plan: As for `attend`.
        cu_seqlens_q: Where each sequence begins among the queries, and where the last one ends, as
            for `packed_sequences`. Under `jax.jit` it must not be traced.
        cu_seqlens_k: The same for the keys; those of `cu_seqlens_q` if it is left out.
        call: The other arguments of `attend`, for all sequences, except `mask` and `delta_error`.

    Returns:
        The output (tokens, N, Hv), of the type that `attend` returns. Queries of a sequence without
        keys have 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or arguments do not fit together.

    Example:
        >>> import numpy as np
        >>> from roundscope import attend, attend_packed
        >>> q, k, v = np.random.default_rng(0).standard_normal((3, 8, 2, 16), "f4")
        >>> call = {"plan": "fa2-bf16", "is_causal": True}
        >>> out = attend_packed(q, k, v, cu_seqlens_q=[0, 3, 8], **call)
        >>> bool((out[3:] == attend(q[None, 3:], k[None, 3:], v[None, 3:], **call)[0]).all())
        True
    """
    for name in OF_ONE_CALL:
        if call.get(name) is not None:
            raise ValueError(
                f"{name}: it has the tokens of one call; give each of packed_sequences(...) its own"
            )
    own = packed_sequences(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    found = [
        attend(*x[:3], plan=plan, **call)[0] if x.q.shape[1] and x.k.shape[1] else None for x in own
    ]
    like = next((x for x in found if x is not None), None)
    if like is None:
        raise ValueError(
            f"cu_seqlens_q={shown(cu_seqlens_q)}: no sequence has both queries and keys; give one"
        )
    xp = like.__array_namespace__()
    empty = (xp.zeros((x.q.shape[1], q.shape[1], v.shape[2]), like.dtype) for x in own)
    whole: Result = xp.concatenate(
        [z if x is None else x for x, z in zip(found, empty, strict=True)]
    )
    return whole


def lengths_given(name: str, lengths: Any, of: str, tokens: int) -> list[int]:
    """Return cumulative lengths of sequences as whole numbers.

    Args:
        name: The argument that they are.
        lengths: One more than there are sequences.
        of: The name of the packed tensor.
        tokens: How many tokens it has.

    Raises:
        TypeError: They are not whole numbers, or are traced.
        ValueError: They do not go from 0 up to the number of tokens.
    """
    if is_traced(lengths):
        raise TypeError(
            f"{name}: a traced array, must be known, since each sequence has a shape of its own;"
            " give it as a list, or call attend_packed outside jit"
        )
    try:
        found = np.asarray(lengths)
    except ValueError:
        found = np.zeros(0)
    if found.ndim != 1 or found.dtype.kind not in "iu" or found.size < 2:
        raise TypeError(
            f"{name}={shown(lengths)}: give whole numbers, one more than there are sequences, such"
            f" as [0, {tokens}] for one"
        )
    ends: list[int] = found.tolist()
    if ends[0] != 0 or ends[-1] != tokens or any(b < a for a, b in itertools.pairwise(ends)):
        raise ValueError(
            f"{name}={shown(lengths)}: must begin with 0, never fall, and end with the {tokens}"
            f" tokens of {of}"
        )
    return ends
