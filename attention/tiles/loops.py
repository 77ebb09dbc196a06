"""What the forward and the backward of an attention head share: the setup of a call, and tiles.

The modules `tiles.forward` and `tiles.backward` loop over the tiles of a head. Arrays are padded to
whole tiles. A head has T queries and S keys; entries beyond them are masked, and no event counts
them.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from roundscope.attention.hook import Events
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.hadamard import gathered, halvings, spread
from roundscope.attention.plans.choices import Log2E, Sinks
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import KEY_SITES, Site
from roundscope.attention.softmax.exponents import in_base2
from roundscope.attention.tiles import sample
from roundscope.attention.tiles.orders import Bounds, Flag, cut_by
from roundscope.attention.tiles.records import Inputs
from roundscope.attention.tiles.tile import Tile
from roundscope.emu.backends.ops import Array, Ops, mapped
from roundscope.emu.functions import LOG2_E
from roundscope.emu.instructions.polynomials import LN_2
from roundscope.emu.roundings.modes import BINARY32, BINARY64
from roundscope.emu.sums.accumulator import Accumulator, accumulate
from roundscope.events import hook
from roundscope.events.place import Index
from roundscope.events.recorder import Recorder, Seen

# what the setups of calls in this context have
PROGRAMS_FROM: ContextVar[float] = ContextVar("programs_from", default=2**18)
ONLY_TRITON: ContextVar[bool] = ContextVar("only_triton", default=False)
ROOTED = {Site.Q: Site.QS, Site.K: Site.KS}  # events of q and k multiplied by the root of the scale
TURNED = (Site.Q, Site.K, Site.QB, Site.KB)  # events of q and k, which `hadamard` turns before
State = TypeVar("State")
Out = TypeVar("Out")
TileArrays: TypeAlias = tuple[tuple[Any, ...], ...]  # the arguments of a step, in groups
Step: TypeAlias = Callable[..., Any]  # (hook, setup, *groups of arrays) -> results


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeHeads:
    """Which heads of a call a fused kernel computes: the same ones of every batch entry.

    own    the numbers of the heads in the first batch entry
    heads  how many heads a batch entry of the call has
    step   how much larger the numbers are in the next batch entry: `heads`, or 0 if each entry
           counts as a separate call
    """

    own: tuple[int, ...]
    heads: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is fixed for a whole call: sizes, tiles, plan, injections and record.

    plan              the plan, with its mask-dependent choices already made
    queries, keys     rows of q and of k in a head, without padding
    block_q, block_k  rows of a query tile and of a key tile
    heads, key_heads  query heads and key heads of a batch entry
    scale             the factor of the scores, rounded to binary32 unless site SCALED has a wider
                      format
    whole_scale       the scale before that rounding
    is_causal         whether a query sees the keys up to its own position only
    shift             the key at which query 0 stands in a causal or windowed call: 0, or keys -
                      queries if both are counted from the last (`attention.inputs.alignment`)
    inject, record    the injections, and what a trace keeps (None for no trace)
    some              the heads that a fused kernel computes; None for all. If it is given, `heads`
                      and `key_heads` count only the heads of the kernel's arrays
    programs_from     the least scores of a call whose tiles the NumPy engine computes by programs
                      (`engines.fused`)
    only_triton       whether the kernels for Hopper are left out, which have the same bits
    of_output         the factor of a head's output, or None
    """

    plan: Plan
    queries: int
    keys: int
    block_q: int
    block_k: int
    heads: int
    key_heads: int
    scale: float
    whole_scale: float
    is_causal: bool
    shift: int = 0
    inject: tuple[Injection, ...] = ()
    record: Record | None = None
    some: SomeHeads | None = None
    of_output: Any = None
    programs_from: float = field(default_factory=lambda: PROGRAMS_FROM.get())
    only_triton: bool = field(default_factory=lambda: ONLY_TRITON.get())

    @property
    def of_scores(self) -> float:
        """The factor of the scores: the scale, or 1 if q or k contain it."""
        return 1.0 if self.plan.scale_roots or self.plan.scaled_queries else self.scale

    @property
    def factor(self) -> float:
        """The factor by which the final dQ and dK are multiplied.

        It is the scale, or its root in binary32 if q and k are multiplied by that root.
        """
        return (
            float(np.float32(math.sqrt(self.whole_scale))) if self.plan.scale_roots else self.scale
        )

    @property
    def factor_of_queries(self) -> float:
        """The factor of the final dQ: `factor`, or ln 2 if the keys contain scale log2 e."""
        return LN_2 if self.plan.scaled_keys else self.factor

    @property
    def factor_of_keys(self) -> float:
        """The factor of the final dK: `factor`, or ln 2 or 1 if the queries contain c or scale."""
        if not self.plan.scaled_queries:
            return self.factor
        return LN_2 if self.plan.log2_e is Log2E.SCALE else 1.0

    @property
    def has_structure(self) -> bool:
        """Whether scores are missing without a mask: above the diagonal, or outside a window."""
        return self.is_causal or self.plan.window > 0

    @property
    def query_tiles(self) -> int:
        """How many query tiles a head has; the last one is padded if necessary."""
        return -(-self.queries // self.block_q)

    @property
    def key_tiles(self) -> int:
        """How many key tiles a head has; the last one is padded if necessary."""
        return -(-self.keys // self.block_k)

    @property
    def every(self) -> int:
        """`Record.every`: the n of a trace that summarizes one query tile and one key tile in n."""
        return 1 if self.record is None else self.record.every


def with_scales(ops: Ops, setup: Setup, inputs: Inputs) -> Setup:
    """Return the setup of a head whose inputs have factors of the scores or of the output.

    In plans that multiply the scores by c = binary32(scale log2 e), c times the factor is rounded
    to binary32, as in FlashAttention-3 (`softmax_scale_log2 *= q_descale * k_descale`), and the
    scale is that over log2 e; in others the scale times the factor is.
    """
    if inputs.of_scores is None and inputs.of_output is None:
        return setup
    scale: Any = setup.scale
    if inputs.of_scores is not None:
        plan = setup.plan
        in_c = plan.log2_e in (Log2E.SCALE, Log2E.MAXIMUM) and not plan.softcap
        factor = in_base2(ops, plan, scale) if in_c else scale
        own = ops.multiply(ops.xp.reshape(inputs.of_scores, (1,)), factor)
        if plan[Site.SCALED].format.precision <= BINARY32.format.precision:
            own = ops.round(own, BINARY32, None)
        own = ops.divide(own, ops.xp.full_like(own, LOG2_E)) if in_c else own
        scale = float(own[0]) if isinstance(own, np.ndarray) else own[0]
    return replace(setup, scale=scale, of_output=inputs.of_output)


def events_at(
    ops: Ops,
    setup: Setup,
    tile: Tile,
    *,
    silent: bool = False,
    sink: Array | None = None,
    bias: Array | None = None,
) -> Events:
    """Return the hook of a tile's events.

    silent  whether nothing is recorded, although the call has a record
    sink    the logit of the head's sink, a scalar, or None
    bias    the tile of the head's bias, (block_q, block_k), or None
    """
    recorder = None if silent or setup.record is None else Recorder(ops, tile, setup.record)
    return hook.Events(ops, setup.plan, tile, setup.inject, recorder, sink, bias)


def whole_events(
    ops: Ops, setup: Setup, head: Index, mask: Array | None, sink: Array | None = None
) -> Events:
    """Return the hook of the events that a head has once: inputs, normalization, outputs.

    mask: (T, S) of bool, or None; sink: the logit of the head's sink, or None.
    """
    return events_at(ops, setup, whole_head(ops, setup, head, mask), sink=sink)


def whole_head(
    ops: Ops, setup: Setup, head: Index, mask: Array | None, heads: int | None = None
) -> Tile:
    """Return the head as one tile, for events that are not repeated by tile.

    These are the events of inputs, of the normalization and of outputs. The `rows` of the tile are
    the rows that see some key. In a call with sinks they are all rows except padding, since every
    row sees its sink.

    heads: how many heads a batch entry has, if not its query heads; None for the query heads.
    """
    xp = ops.xp
    t = xp.arange(setup.query_tiles * setup.block_q)
    s = xp.arange(setup.key_tiles * setup.block_k)
    rows, keys = _before(xp, t, setup.queries), _before(xp, s, setup.keys)
    if mask is not None and setup.is_causal:
        mask = mask & (t[:, None] + setup.shift >= s[None, :])
    seeing = rows if mask is None else rows & mask.any(axis=1)
    if setup.is_causal and setup.shift < 0:
        seeing = seeing & (t + setup.shift >= 0)
    if setup.plan.window:
        near = _in_window(setup, t, s) & keys
        seeing = rows & (near if mask is None else near & mask).any(axis=1)
    if setup.plan.sinks is not Sinks.NONE:  # a sink is there for every row
        seeing = rows
    nothing = xp.zeros((1, 1), dtype=bool)
    tiles, sizes = (setup.query_tiles, setup.key_tiles), (setup.block_q, setup.block_k)
    return Tile(
        head=head,
        heads=heads or setup.heads,
        i=0,
        j=0,
        row0=0,
        key0=0,
        mask=nothing,
        rows=seeing,
        rescaled=rows,
        keys=keys,
        sample=sample.of_head(xp, setup.every, tiles, sizes, head) if setup.every > 1 else None,
    )


def _before(xp: Any, numbers: Array, end: int) -> Array:
    """Return which of the numbers 0, 1, 2 ... are below an end, a constant if all are."""
    return xp.ones(numbers.shape, dtype=bool) if len(numbers) <= end else numbers < end


def _in_window(setup: Setup, t: Array, s: Array) -> Array:
    """Return whether each key is in each query's window, (queries, keys) of bool.

    A window has the nearest `window` keys on each side of the query, each side including the
    query's own key. A causal call hides the later side.
    """
    gap = t[:, None] + setup.shift - s[None, :]
    return (gap < setup.plan.window) & (gap > -setup.plan.window)


def tile_at(
    ops: Ops,
    setup: Setup,
    head: Index,
    i: Index,
    j: Index,
    mask: Array | None,
    before: Array | None,
) -> Tile:
    """Return tile (i, j) of a head, with its scores, rows and keys that exist.

    mask    the tile's part of the caller's mask, (block_q, block_k) of bool, or None
    before  (block_q,) of bool: rows that had a visible key in an earlier tile. None in the
            backward, which does not rescale, and where only rows with a visible key in this tile
            exist
    """
    xp = ops.xp
    row0, key0 = i * setup.block_q, j * setup.block_k
    t, s = row0 + xp.arange(setup.block_q), key0 + xp.arange(setup.block_k)
    here, keys = t < setup.queries, s < setup.keys
    exists = here[:, None] & keys[None, :]
    active = row0 < setup.queries  # and it has some key, since every tile has one
    if setup.is_causal:
        at = t + setup.shift
        exists = exists & (s[None, :] <= at[:, None])
        last = xp.minimum(row0 + setup.block_q, setup.queries) - 1 + setup.shift
        here, keys, active = here & (key0 <= at), keys & (s <= last), key0 <= last
    if mask is not None:
        exists = exists & mask
    if setup.plan.window:
        exists = exists & _in_window(setup, t, s)
    if mask is not None or setup.plan.window:
        here, keys = exists.any(axis=1), exists.any(axis=0)
        active = here.any()
    before = here if before is None else before
    if setup.plan.sinks in (Sinks.FIRST, Sinks.KEY):
        before = before & (t < setup.queries)  # all rows except padding begin with a sink
    tiles, cut = (setup.query_tiles, setup.key_tiles), cut_by(setup.is_causal, setup.plan.window)
    return Tile(
        head=head,
        heads=setup.heads,
        i=i,
        j=j,
        row0=row0,
        key0=key0,
        mask=exists,
        rows=(before | here) & active,
        rescaled=before & active,
        keys=keys,
        sample=sample.of_tile(xp, setup.every, tiles, head, i, j) if setup.every > 1 else None,
        is_cut=False if cut is None else cut(*bounds(setup, i, j)),
    )


def if_any(
    ops: Ops,
    setup: Setup,
    tile: Tile,
    masks: Array | None,
    compute: Callable[[], tuple[State, Out]],
    state: State,
    taken: Flag | None = None,
) -> tuple[State, Out]:
    """Return what a tile computes, or the unchanged state if there is nothing to compute.

    There is nothing to compute if none of the tile's scores exists, which only a mask, a window or
    causality can cause, or if the tile is not taken. The state is then returned unchanged, and what
    was recorded is zeros, or None under NumPy.

    masks    the masks of the tiles, or None in a call without a mask
    compute  () -> (the new state, what was recorded)
    state    the state before the tile
    taken    whether this pass of the backward takes the tile; None for always
    """
    if setup.has_structure or masks is not None:
        exists = tile.mask.any()
        exists = exists if taken is None else exists & taken
    elif taken is None:
        return compute()
    else:
        exists = taken
    found: tuple[State, Out] = ops.when(exists, compute, state)
    return found


def computed(
    ops: Ops,
    setup: Setup,
    tile: Tile,
    step: Step,
    arrays: TileArrays,
    sites: Any = None,
    sink: Array | None = None,
    bias: Array | None = None,
) -> tuple[Any, Seen]:
    """Return what a step computes in a tile, and what was recorded, by a program if there is one.

    step    a function of a module, since programs are kept by it
    arrays  the arguments of the step after its hook and the setup
    sites   for each array, the event or the events whose results it has; () if none are known
    sink    the logit of the head's sink, a scalar, or None
    bias    the tile of the head's bias, or None
    """
    if bias is not None:  # as data, which programs take
        step, arrays, sites = _with_bias(step), (*arrays, (bias,)), (*sites, ((),))
    if ops.programs is not None and sink is None:
        found: tuple[Any, Seen] | None = ops.programs(step, tile, arrays, sites)
        if found is not None:
            return found
    at = events_at(ops, setup, tile, sink=sink)
    return step(at, setup, *arrays), at.seen()


@cache
def _with_bias(step: Step) -> Step:
    """Return the step whose last group of arrays is the bias of the tile."""

    def own(at: Events, setup: Setup, *groups: tuple[Any, ...]) -> Any:
        *others, (bias,) = groups
        return step(replace(at, bias=bias), setup, *others)

    return own


def of_backward(setup: Setup) -> Setup:
    """Return the setup of the backward, with key tiles of the plan's `backward_keys`."""
    keys = setup.plan.backward_keys
    return replace(setup, block_k=keys) if 0 < keys < setup.block_k else setup


def in_whole_tiles(xp: Any, setup: Setup, inputs: Inputs) -> Inputs:
    """Return the inputs of all heads with the keys of whole tiles of this setup.

    Keys beyond the last one, by which other tiles were filled, are dropped, and zeros are added.
    """
    rows = setup.key_tiles * setup.block_k

    def filled(x: Array | None, axis: int) -> Array | None:
        if x is None or x.shape[axis] == rows:
            return x
        cut = x[(*(slice(None),) * axis, slice(rows))]
        pad = [(0, 0)] * x.ndim
        pad[axis] = (0, rows - cut.shape[axis])
        return xp.pad(cut, pad)

    return inputs._replace(
        k=filled(inputs.k, 1),
        v=filled(inputs.v, 1),
        mask=filled(inputs.mask, 2),
        bias=filled(inputs.bias, 2),
    )


def bounds(setup: Setup, i: Index, j: Index) -> tuple[Bounds, Bounds]:
    """Return the bounds of query tile i and of key tile j.

    The bounds of a tile are its first row and the row after its last. A query is counted as the key
    at which it stands.
    """
    return (i * setup.block_q + setup.shift, (i + 1) * setup.block_q + setup.shift), (
        j * setup.block_k,
        (j + 1) * setup.block_k,
    )


def in_tiles(x: Array, block: int) -> Array:
    """Return an array (rows, ...) as (tiles, block, ...)."""
    return x.reshape(-1, block, *x.shape[1:])


def mask_tiles(setup: Setup, mask: Array | None) -> Array | None:
    """Return a mask or a bias (T, S) as (query tiles, key tiles, block_q, block_k); None stays."""
    if mask is None:
        return None
    parts = mask.reshape(setup.query_tiles, setup.block_q, setup.key_tiles, setup.block_k)
    return parts.transpose(0, 2, 1, 3)


def backwards(x: Any) -> Any:
    """Return a structure of arrays with their first axis reversed."""
    return mapped(lambda part: None if part is None else part[::-1], x)


def round_inputs(ops: Ops, setup: Setup, head: Index, site: Site, x: Array) -> tuple[Array, Seen]:
    """Return one input tensor of a head after its event, and what was recorded.

    In plans that multiply q and k by the root of the scale, the event QS or KS follows. In plans
    with `scaled_queries` q is multiplied before its event, with `smoothed_keys` k loses its
    mean, and with `hadamard` q and k are turned.

    site  Q, K, V or DO; KC, the scaled keys of the backward, for which x is K after its event; or
          QB, KB or VB, for which x is q, k or v
    x     (rows, features), padded to whole tiles
    """
    heads = setup.key_heads if site in KEY_SITES else setup.heads
    whole = whole_head(ops, setup, head, None, heads)
    return computed(ops, setup, whole, _rounds(site), ((x,),), (((),),))


@cache
def _rounds(site: Site) -> Step:
    """Return the step of an input's events, which is the same function for each site."""

    def step(at: Events, setup: Setup, inputs: tuple[Array, ...]) -> Array:
        (x,), ops, plan = inputs, at.ops, setup.plan
        if site is Site.KC or (site is Site.Q and plan.scaled_queries):  # a product in binary32
            factor = in_base2(ops, plan, setup.scale)
            x = ops.round(ops.multiply(x, factor), BINARY32, None)
        if site in (Site.K, Site.KB) and plan.smoothed_keys:
            x = _smoothed(at if site is Site.K else replace(at, recorder=None), setup, x)
        if plan.hadamard and site in TURNED:
            x = spread(x, halvings(x.shape[1], of_keys=site in KEY_SITES), 0)
        rounded = at(site, x)
        if plan.scale_roots and site in ROOTED:
            rounded = at(ROOTED[site], ops.multiply(rounded, setup.factor))
        return rounded

    return step


def turned_back(setup: Setup, x: Array, *, of_keys: bool) -> Array:
    """Return the sums dQ or dK, (rows, features), as gradients of q or k before `hadamard`."""
    if not setup.plan.hadamard:
        return x
    return gathered(x, halvings(x.shape[1], of_keys=of_keys), 0)


def _smoothed(at: Events, setup: Setup, k: Array) -> Array:
    """Return k less its mean over the keys, rounded as the mean is; rows of padding are 0.

    The keys are added up in ascending order in binary64. The mean is rounded to binary32 and then
    as by the event KM. A GPU adds in binary32, in an order of its own, so a mean near the middle of
    two numbers of KM may become the other one there.

    k: (rows, features), padded to whole tiles
    """
    xp, ops = at.ops.xp, at.ops
    ones, zeros = xp.ones((setup.keys, 1)), xp.zeros((1, k.shape[1]))
    total = accumulate(ops, Accumulator(step=BINARY64), ones, k[: setup.keys], zeros)
    mean = ops.round(ops.divide(total, xp.full_like(total, setup.keys)), BINARY32, None)
    less = k - ops.round(mean, setup.plan[Site.KM], None)
    return at(Site.KM, xp.where(at.tile.keys[:, None], less, 0.0))
