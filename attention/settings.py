"""The settings of a call: from the arguments of `attend` and `examine` to its `Setup`, checked.

`attention.arguments` checks each argument for itself; here they are checked together, with what an
engine runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roundscope.attention.arguments import (
    bias_given,
    block_given,
    causal_given,
    check_like_output,
    check_scores_shape,
    check_shapes,
    engine_given,
    injections_given,
    mask_given,
    plan_given,
    record_given,
    scale_given,
    served_given,
)
from roundscope.attention.engines.layout import SIXTEEN_BITS, scores_to_heads
from roundscope.attention.engines.protocol import Name
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.alignment import Alignment, alignment_given, note_on, shift_of
from roundscope.attention.places import (
    Sizes,
    check_injection,
    check_place,
    check_record,
    of_groups,
)
from roundscope.attention.plans.choices import DeltaFrom, Log2E
from roundscope.attention.plans.named import note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import BLOCK_AXIS, Axes, Site
from roundscope.attention.softmax.bias import has_wide_scores
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.arrays import Array, is_of_jax, is_traced
from roundscope.emu.blocks.format import BlockFormat
from roundscope.events.injection import FlipBit

if TYPE_CHECKING:
    from roundscope.attention.plans.traced import HeadPlans


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of a call that are neither tensors nor the plan, as for `attend`."""

    block_q: int = 128
    block_k: int = 128
    scale: float | None = None
    is_causal: bool = False
    mask: Any = None
    inject: Any = ()
    record: Record | None = None
    engine: Name | None = None
    alignment: Alignment | None = None


def setup_of(
    q: Any, k: Any, v: Any, plan: Any, options: Options, batch: int | None = None
) -> tuple[Setup, Name]:
    """Return the setup of a call after all checks, and the engine that runs it.

    batch: how many batch entries are numbered together, for random bits and places; None for all
    """
    check_shapes(q, k, v)
    plan, mask = plan_given(plan), options.mask
    block_q = block_given("block_q", options.block_q)
    block_k = block_given("block_k", options.block_k)
    if plan.fused_without_mask and mask is None and not options.is_causal and not plan.window:
        plan = replace(plan, fused_exponent=True)
    plan = of_groups(plan, q.shape[2], k.shape[2])
    if plan.normalise_first:
        block_k = max(block_k, k.shape[1])  # softmax before P V needs the whole row
    inject, record = injections_given(options.inject), record_given(options.record)
    scale, whole_scale = scale_given(options.scale, q.shape[3], is_wide=has_wide_scores(plan))
    alignment, is_causal = alignment_given(options.alignment), causal_given(options.is_causal)
    is_placed = is_causal or plan.window > 0
    setup = Setup(
        plan=plan,
        queries=q.shape[1],
        keys=k.shape[1],
        block_q=min(block_q, q.shape[1]),
        block_k=min(block_k, k.shape[1]),
        heads=q.shape[2],
        key_heads=k.shape[2],
        scale=scale,
        whole_scale=whole_scale,
        is_causal=is_causal,
        shift=shift_of(alignment, q.shape[1], k.shape[1]) if is_placed else 0,
        inject=inject,
        record=record,
    )
    engine_given(options.engine)
    check_blocks(setup)
    _check_asked(setup, batch or q.shape[0], (q.shape[3], v.shape[3]), mask is not None)
    return setup, _engine_of(setup, q, k, v, mask, options.engine)


def _check_asked(setup: Setup, batch: int, features: tuple[int, int], has_mask: bool) -> None:
    """Raises ValueError for injections and records of what the call does not have, and for a
    negative scale that the plan does not take.
    """
    if setup.plan.scale_roots and setup.whole_scale < 0.0:
        raise ValueError(
            f"scale={setup.whole_scale:g}: {setup.plan.name} multiplies q and k with its root; give"
            " a positive scale"
        )
    if setup.of_scores < 0.0 and setup.plan.log2_e is Log2E.MAXIMUM and not setup.plan.softcap:
        is_missing = has_mask or setup.has_structure or setup.keys % setup.block_k
        if is_missing:
            raise ValueError(
                f"scale={setup.whole_scale:g}: {setup.plan.name} keeps the maximum of unscaled"
                " scores (log2_e=maximum), and a masked score, or one that pads a tile, -inf, is"
                " inf after a negative scale: its kernel returns NaN; give -q and a positive scale,"
                " or a plan with log2_e=scale"
            )
    _check_key_scales(setup, features[0])
    if setup.plan.hadamard and features[0] & (features[0] - 1):
        raise ValueError(
            f"plan: {setup.plan.name} multiplies q and k by a Hadamard matrix (hadamard=True) of"
            f" {features[0]} rows, their features; give a power of two, or hadamard=false"
        )
    sizes = Sizes(
        batch,
        setup.queries,
        setup.keys,
        setup.heads,
        setup.key_heads,
        *features,
        setup.block_q,
        setup.block_k,
    )
    for injection in setup.inject:
        check_injection(injection, setup.plan)
        try:
            check_place(injection, sizes)
        except ValueError as error:
            raise ValueError(f"inject {error}") from None
    if setup.record is not None:
        check_record(setup.record, setup.plan)


def _check_key_scales(setup: Setup, features: int) -> None:
    """Raise ValueError where a key has not one scale for all its features."""
    block = setup.plan.block(Site.K)
    if not setup.plan.key_scales or block is None:
        return
    if block.size < features:
        raise ValueError(
            f"plan: {setup.plan.name} multiplies scores by the scales of K (key_scales=True), and K"
            f" in {block} has several for the {features} features of a key; give blocks of"
            f" {features} features or more"
        )


def _engine_of(setup: Setup, q: Any, k: Any, v: Any, mask: Any, engine: Name | None) -> Name:
    """The engine asked for, or that of the arrays. Raises ValueError for what it does not run."""
    traced = any(map(is_traced, (q, k, v, mask)))
    if setup.record is not None and traced:
        raise ValueError(
            "record: inside jit, grad or vmap there are no numbers to look at; call examine"
            " outside, or attend, which records nothing"
        )
    if engine == "pallas":
        from roundscope.attention.engines.kernels.fit import check

        check(setup, (q.shape[3], v.shape[3]), mask, traced)
    return engine or ("xla" if traced or any(map(is_of_jax, (q, k, v))) else "numpy")


def check_blocks(setup: Setup) -> None:
    """Raise ValueError where the blocks of a site's format do not divide a tile.

    P, P_B and dS are rounded tile by tile. V and dO are rounded once for the whole head, but sums
    over their rows are computed tile by tile. Q and K are summed over features, which tiles do not
    split. The last block of a tensor may be shorter (`emu.BlockFormat`).
    """
    for site, block in setup.plan.blocks:
        if site.axes is Axes.TS:
            sizes = (block.size, block.rows) if BLOCK_AXIS[site] == 0 else (block.rows, block.size)
            for size, extent in zip(sizes, _extents(setup), strict=True):
                _check(site, block, size, *extent, inside=True)
        elif BLOCK_AXIS[site] == 0:
            _check(site, block, block.size, *_extents(setup)[site.axes is Axes.SH], inside=False)


def _extents(setup: Setup) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    """Return (argument's name, rows of a tile, rows in total) for queries and for keys."""
    return ("block_q", setup.block_q, setup.queries), ("block_k", setup.block_k, setup.keys)


def _check(
    site: Site, block: BlockFormat, size: int, name: str, tile: int, total: int, *, inside: bool
) -> None:
    """Raise ValueError unless blocks of `size` rows fit tiles of `tile` rows.

    name    the argument that gives the rows of a tile
    total   how many rows there are in total
    inside  whether every block must lie inside one tile; otherwise a block may also consist of
            several whole tiles
    """
    several = not inside and (size >= total or size % tile == 0)  # blocks of several whole tiles
    if tile < total and tile % size and not several:
        raise ValueError(
            f"{name}={tile}: {site} in {block} has blocks of {size}, which must divide the tile;"
            f" give a multiple of {size}"
        )


def heads_given(plan: Any) -> HeadPlans | None:
    """The argument if it is `attention.plans.traced.HeadPlans`: who has made any has imported
    them.
    """
    module = sys.modules.get("roundscope.attention.plans.traced")
    made = getattr(module, "HeadPlans", None)  # another thread may just be importing it
    return plan if made is not None and isinstance(plan, made) else None


def plan_of_heads(plans: HeadPlans, q: Array, k: Array, v: Array, engine: Name | None) -> Plan:
    """Return the plan that stands for all plans of heads while the program is compiled."""
    check_shapes(q, k, v)
    engine_given(engine)
    if plans.table.shape[0] != q.shape[2]:
        raise ValueError(
            f"plan: {plans.table.shape[0]} plans, must be one for each of the {q.shape[2]} heads"
            " of q"
        )
    if engine == "numpy":
        raise ValueError(
            "plan: a plan per head runs under xla or pallas, without a record; use examine with a"
            " single plan to trace"
        )
    return plans.like


def fused_heads(
    setup: Setup, plans: HeadPlans, q: Any, k: Any, v: Any, mask: Any
) -> Literal["pallas"]:
    """Return the fused engine. Raises ValueError unless its kernels run the plans of all heads."""
    from roundscope.attention.engines.kernels.engine import check_heads

    traced = any(map(is_traced, (q, k, v, mask)))
    check_heads(setup, plans, (q.shape[3], v.shape[3]), mask, traced)
    return "pallas"


def setup_of_heads(
    q: Any, k: Any, v: Any, plans: HeadPlans, block_q: int, block_k: int, is_causal: bool
) -> Setup:
    """Return the setup of a call whose plans per head are data."""
    like = served_given(plan_of_heads(plans, q, k, v, None), None, None, None, q.shape[2])
    options = Options(block_q=block_q, block_k=block_k, is_causal=is_causal, engine="xla")
    setup, _ = setup_of(q, k, v, like, options)
    return replace(setup, scale=setup.whole_scale)


def notes_of(
    setup: Setup, alignment: Alignment | None, qkv: tuple[Array, ...], bias: Any
) -> tuple[str, ...]:
    """Return what is to be said of a call before its numbers (`Examined.notes`)."""
    call: dict[str, Any] = {"is_causal": setup.is_causal, "window": setup.plan.window}
    aligned = note_on(alignment, setup.queries, setup.keys, **call)
    notes = aligned, note_on_types(setup.plan, (str(x.dtype) for x in qkv)), note_on_bias(bias)
    return tuple(note for note in notes if note is not None)


def note_on_bias(bias: Any) -> str | None:
    """Return what is to be said of a bias that hides keys; None if it hides none."""
    if bias is None or is_traced(bias):
        return None
    count = int((np.asarray(bias) == -np.inf).sum())
    if not count:
        return None
    return f"{count:,} of {np.size(bias):,} entries of the bias are -inf: they count as masked"


def check_many(q: Any, plans: Sequence[Plan], inject: Sequence[Injection], engine: Name) -> None:
    """Raise ValueError for plans of batch entries that one call cannot have together."""
    if len(plans) != q.shape[0]:
        raise ValueError(
            f"plan: {len(plans)} plans, must be one for each of the {q.shape[0]} batch entries of q"
        )
    for n, p in enumerate(plans):
        if (p.pv_into_o, p.normalise_first) != (plans[0].pv_into_o, plans[0].normalise_first):
            raise ValueError(
                f"plan: entries 0 and {n} have different events (pv_into_o, normalise_first); call"
                " them separately"
            )
    if engine in ("xla", "pallas") and any(isinstance(i.what, FlipBit) for i in inject):
        raise ValueError("inject: FlipBit needs one format; give a single plan, or engine='numpy'")


def check_delta_error(error: Any, setup: Setup, engine: Name, q: Any, v: Any) -> None:
    """Raise ValueError for an error of delta that is given as data where nothing reads it."""
    if engine != "xla":
        raise ValueError(
            "delta_error: an error as data needs engine='xla'; to trace an error, inject at OD"
        )
    if setup.plan.delta_from not in (DeltaFrom.OUT, DeltaFrom.WIDE_O):
        raise ValueError(
            f"delta_error: delta_from={setup.plan.delta_from} reads no output; use delta_from=OUT"
            " or O"
        )
    check_like_output("delta_error", error, (*q.shape[:3], v.shape[3]))


def output_type(plan: Plan, inject: Sequence[Injection], q: Array, k: Array, v: Array) -> Any:
    """Return the dtype of `attend`'s output: that of 16-bit q, k, v where nothing is lost."""
    holder, made = SIXTEEN_BITS.get(np.dtype(q.dtype)), plan[Site.OUT].format
    is_kept = (
        holder is not None
        and k.dtype == q.dtype == v.dtype
        and holder.holds(made)
        and plan.block(Site.OUT) is None
        and all(injection.site is not Site.OUT for injection in inject)
    )
    return np.dtype(q.dtype) if is_kept else result_type(q, k, v)


def result_type(*arrays: Array) -> Any:
    """Return float64 if any input is, else float32."""
    return np.float64 if any(x.dtype == np.float64 for x in arrays) else np.float32


def mask_to_heads(setup: Setup, mask: Any, batch: int, heads: int) -> Any:
    """A mask broadcastable to (B, N, T, S) -> (B N, T, S), padded to whole tiles with False: NumPy,
    or JAX where it is traced.
    """
    if mask is None:
        return None
    mask = mask_given(mask)
    xp = mask.__array_namespace__()
    check_scores_shape("mask", mask, (batch, heads, setup.queries, setup.keys))
    return scores_to_heads(xp, mask, setup, batch)


def mask_and_bias(mask: Any, bias: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the mask and the bias of a call: where the bias is -inf it hides the key, and is 0.

    Both are checked, and are NumPy arrays, or JAX arrays where they are traced; shape: (B, N, T, S)
    """
    if bias is None:
        return mask, None
    bias = bias_given(bias, shape)
    xp = bias.__array_namespace__()
    sees = bias != -xp.inf
    if not is_traced(bias) and sees.all():
        return mask, bias
    bias = xp.where(sees, bias, xp.zeros((), bias.dtype))
    return (sees if mask is None else mask_given(mask) & sees), bias
