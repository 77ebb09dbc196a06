"""The plan of a kernel in a call of given sizes.

Where heads and queries are few, kernels and cuBLAS share the keys of one head among the processors
of a GPU, and add in another order then.
"""

import math
from dataclasses import replace
from typing import Any

from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.twins import TWIN_OF, TWINS
from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.numbers import is_whole
from roundscope.emu.shown import shown

PROCESSORS = 132  # of an H100 or H200
MOST_SPLITS = 128
ALONE = "PV.sum=chunked64 DQ.sum=chunked64 DK.sum=chunked64 DV.sum=chunked64"


@known_arguments
def plan_of_call(
    kernel: str,
    q_shape: tuple[int, int, int, int],
    k_shape: tuple[int, int, int, int],
    *,
    processors: int = PROCESSORS,
    is_cut: bool = False,
) -> dict[str, Any]:
    """Return the plan and the tiles of a kernel in a call of these sizes, as arguments of `attend`.

    * sdpa-flash is `fa2`, or `fa2-split` with as many splits of the keys as FlashAttention-2's
      source takes (`num_splits_heuristic`): some where batch entries times heads times blocks of 64
      queries are fewer than 0.8 times twice the processors.
    * sdpa-cudnn and jax-cudnn are `cudnn`, and `cudnn-split` with one query.
    * sdpa-math is `sdpa-math`, with sums over keys in chunks of 64 where there is one head, as
      cuBLAS adds 512 tokens; of 128, 256 and 1,024 tokens a few numbers differ.
    * Other kernels have the plan of their twin in every call.

    Args:
        kernel: The name of a kernel in `roundscope identify`, such as "sdpa-flash".
        q_shape: The shape of the queries, (B, T, N, H).
        k_shape: The shape of the keys, (B, S, G, H).
        processors: How many multiprocessors the GPU has; an H100 or H200 has 132.
        is_cut: Whether the call is causal or has a window, on which the tiles of `fa3` depend.

    Returns:
        The arguments plan, block_q and block_k.

    Raises:
        TypeError: `processors` is not a whole number.
        ValueError: No kernel with a twin has this name, or sizes are wrong.

    Example:
        >>> from roundscope import plan_of_call
        >>> for heads in (48, 1):
        ...     call = plan_of_call("sdpa-flash", (1, 512, heads, 64), (1, 512, heads, 64))
        ...     print(call["plan"].name, call["block_k"])
        fa2 128
        fa2-split 256
    """
    if kernel not in TWIN_OF:
        raise ValueError(
            f"kernel={shown(kernel)}: {unknown('kernel', str(kernel), sorted(TWIN_OF))}"
        )
    for name, shape in (("q_shape", q_shape), ("k_shape", k_shape)):
        if len(shape) != 4 or not all(is_whole(n) and n > 0 for n in shape):
            raise ValueError(
                f"{name}={shown(shape)}: give (batch, tokens, heads, features), whole numbers"
            )
    if not is_whole(processors):
        raise TypeError(f"processors={shown(processors)}: give a whole number, such as 132")
    if processors < 1:
        raise ValueError(f"processors={shown(processors)}: a GPU has one or more, such as 132")
    (batch, queries, heads, features), (_, keys, key_heads, _) = q_shape, k_shape
    twin, words = TWINS[TWIN_OF[kernel]], ""
    plan: Plan = twin.plan
    if twin.name == "fa2":
        few = TWINS["fa2-split"]
        blocks = -(-keys // few.tiles(features, is_cut)[1])
        rows = heads * -(-queries // 64)
        if queries == 1 and heads > key_heads:  # query heads of a key head are rows of one block
            rows = key_heads * -(-(heads // key_heads) // 64)
        splits = splits_of(batch * rows, 2 * processors, blocks)
        if splits > 1:
            twin, plan = few, replace(few.plan, split_tiles=-(-blocks // splits))
    elif twin.name == "cudnn" and queries == 1:
        twin = TWINS["cudnn-split"]
        plan = twin.plan
    elif twin.name == "sdpa-math" and batch * heads == 1:
        words = ALONE
    block_q, block_k = twin.tiles(features, is_cut)
    return {
        "plan": plan.changed(words) if words else plan,
        "block_q": block_q,
        "block_k": min(block_k, keys),
    }


def splits_of(rows: int, slots: int, blocks: int) -> int:
    """Return into how many splits FlashAttention-2 parts the keys of a head.

    It is the fewest splits whose last wave of thread blocks is at least 0.85 times as full as that
    of the best number (csrc/flash_attn/flash_api.cpp, `num_splits_heuristic`, in binary32 there).

    Args:
        rows: Blocks of queries of all heads and batch entries.
        slots: How many thread blocks run at a time.
        blocks: Blocks of keys of a head.
    """
    if rows >= 0.8 * slots:
        return 1
    full = {}
    for splits in range(1, min(MOST_SPLITS, slots, blocks) + 1):
        if splits > 1 and -(-blocks // splits) == -(-blocks // (splits - 1)):
            continue  # the last split would be empty
        waves = rows * splits / slots
        full[splits] = waves / math.ceil(waves)
    return next(n for n, share in full.items() if share >= 0.85 * max(full.values()))
