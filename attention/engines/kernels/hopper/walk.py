"""How a program walks over tiles: its barriers, and who does what when.

A program owns 128 rows of a head: queries, or keys. A warp group has 64 of them. Both groups walk
over the same tiles of the other side, which a third group copies to shared memory. Positions count
the tiles of a walk in the order in which they come.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.hopper import GROUPS, OWNED
from roundscope.attention.engines.kernels.hopper.tile import (
    Given,
    Memory,
    is_sixteen,
    of_tiles,
    shared,
)
from roundscope.attention.engines.kernels.tiles import (
    query_tiles_that_see,
    seen_tiles,
    whole_tiles,
)
from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.tiles.loops import Setup
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.events.place import Index

REGISTERS, FEW = 240, 24  # of a thread that computes, and of one that copies
State: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The tiles that a warp group walks over, first to last - 1, and those without a mask."""

    first: Index
    last: Index
    whole_first: Index
    whole_last: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What a kernel is made for.

    heads     heads of a batch entry, and `group` how many of them share a key head
    size      rows of a tile that is walked over
    step      tiles of the walk in a tile of the plan, which come in ascending order
    descends  whether the plan's tiles come in descending order
    is_cut    whether some tile may be masked, or seen by one warp group alone
    span      first row of a warp group -> its Span
    ahead     how many tiles are in shared memory
    """

    heads: int
    group: int
    size: int
    step: int
    descends: bool
    is_cut: bool
    span: Callable[[Array], Span]
    ahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A tile of the walk, for a warp group.

    number    which tile of the head it is
    is_whole  whether all its scores exist
    memory    each walked array's tile in shared memory
    wait      number of an array -> None, once its tile is there
    free      number of an array -> None; its tile is not needed any longer
    write     (number of a stream, scores) -> None; they go to memory
    arrive    tells the other warp group that this one is here, if they take turns
    pass_on   returns once both are here
    """

    number: Array
    is_whole: bool
    memory: list[Any]
    wait: Callable[[int], None]
    free: Callable[[int], None]
    write: Callable[[int, Array], None]
    arrive: Callable[[], None]
    pass_on: Callable[[], None]

    def turn(self) -> None:
        """Arrive and pass on."""
        self.arrive()
        self.pass_on()


# (own memory, first row, walk) -> results; walk(tile function, state, takes turns) -> state
Body: TypeAlias = Callable[[list[Any], Array, Callable[..., Any]], tuple[Array, ...]]


def run(
    walk: Walk,
    body: Body,
    own: Sequence[Given],
    walked: Sequence[Given],
    results: Sequence[jax.ShapeDtypeStruct],
    streams: Sequence[jax.ShapeDtypeStruct] = (),
) -> list[Array]:
    """Return the results of a kernel, whose shapes are (B, rows, N, features) or (B, N, rows).

    streams: 16-bit results (B, rows, N, columns), of which each tile writes some columns. What no
    tile writes has any value.
    """
    inputs = [*own, *walked]
    batch, rows = results[0].shape[:2]
    with jax.enable_x64(False):
        found = plgpu.kernel(
            partial(_program, walk, body, own, walked, len(results)),
            out_type=(*results, *streams),
            grid=(walk.heads, rows // OWNED, batch),
            grid_names=("head", "part", "entry"),
            num_threads=GROUPS + 1,
            thread_name="group",
        )(*(x.array for x in inputs))
    return list(found)


def _program(
    walk: Walk,
    body: Body,
    own: Sequence[Given],
    walked: Sequence[Given],
    count: int,
    *refs: Any,
) -> None:
    """Run a program: take its memory, then copy or compute.

    count  how many results there are; streams follow them
    refs   the arrays, first those that are read
    """
    read = len(own) + len(walked)
    mine = list(zip(own, refs[: len(own)], strict=True))
    theirs = list(zip(walked, refs[len(own) : read], strict=True))
    results, streams = refs[read : read + count], refs[read + count :]

    def with_memory(memory: Memory) -> None:
        group = lax.axis_index("group")

        @pl.when(group < GROUPS)
        def _() -> None:
            plgpu.set_max_registers(REGISTERS, action="increase")
            _compute(walk, body, memory, group, mine, results, streams)

        @pl.when(group == GROUPS)
        def _() -> None:
            plgpu.set_max_registers(FEW, action="decrease")
            _copy(walk, memory, theirs)

    pl.run_scoped(
        lambda *memory: with_memory(Memory(*memory)),
        [shared((GROUPS, ROWS), x) for _, x in mine],
        [of_tiles(walk.ahead, walk.size, given, x) for given, x in theirs],
        [shared((GROUPS, ROWS), x) for x in results if is_sixteen(x)],
        [shared((GROUPS, ROWS), x, walk.size) for x in streams],
        plgpu.Barrier(num_barriers=GROUPS, num_arrivals=max(1, len(own))),
        [plgpu.Barrier(num_barriers=walk.ahead, num_arrivals=x.copies) for x in walked],
        [plgpu.Barrier(num_barriers=walk.ahead, num_arrivals=GROUPS) for _ in walked],
        plgpu.Barrier(num_arrivals=GROUPS),
        collective_axes="group",
    )


def _part(x: Any, rows: Any, head: Any, columns: Any = slice(None)) -> Any:
    """Return some rows of a head of the program's batch entry, of matrices some columns."""
    entry = lax.axis_index("entry")
    return x.at[entry, rows, head, columns] if len(x.shape) == 4 else x.at[entry, head, rows]


def _head(walk: Walk, of_keys: bool) -> Array:
    head = lax.axis_index("head")
    own: Array = lax.div(head, np.int32(walk.group)) if of_keys else head
    return own


def _first_row(group: Any) -> Array:
    row: Array = (lax.axis_index("part") * GROUPS + group) * ROWS
    return row


def _whole_span(walk: Walk) -> tuple[Array, Array]:
    """Return the tiles that some warp group of the program walks over: first to last - 1."""
    spans = [walk.span(_first_row(group)) for group in range(GROUPS)]
    return _int32(spans[0].first), _int32(spans[-1].last)


def hidden_zero() -> Array:
    """Return an int32 0 whose value no compiler knows: there are fewer than 2^30 heads."""
    zero: Array = lax.shift_right_logical(lax.axis_index("head"), np.int32(30))
    return zero


def _int32(x: Index) -> Array:
    return jnp.asarray(x, jnp.int32)


def _number(walk: Walk, position: Array) -> Array:
    """Return the number of the tile that comes at a position of the program's walk."""
    first, last = _whole_span(walk)
    if not walk.descends:
        return first + position
    step = np.int32(walk.step)
    return last - step * (lax.div(position, step) + 1) + lax.rem(position, step)


def _copy(walk: Walk, memory: Memory, walked: Sequence[tuple[Given, Any]]) -> None:
    """Copy the tiles of the program's walk to shared memory, one after another."""
    first, last = _whole_span(walk)

    def tile(position: Array, _: None) -> None:
        slot = lax.rem(position, np.int32(walk.ahead))
        rows = pl.ds(_number(walk, position) * walk.size, walk.size)
        parts = zip(walked, memory.walked, memory.ready, memory.free, strict=True)
        for (given, source), target, ready, free in parts:
            pl.when(position >= walk.ahead)(partial(plgpu.barrier_wait, free.at[slot]))
            head = _head(walk, given.of_keys)
            if not given.of_scores:
                plgpu.copy_gmem_to_smem(_part(source, rows, head), target.at[slot], ready.at[slot])
                continue
            for group in range(GROUPS):
                part = _part(source, rows, head, pl.ds(_first_row(group), ROWS))
                plgpu.copy_gmem_to_smem(part, target.at[slot, group], ready.at[slot])

    lax.fori_loop(jnp.int32(0), last - first, tile, None)


def _compute(
    walk: Walk,
    body: Body,
    memory: Memory,
    group: Array,
    own: Sequence[tuple[Given, Any]],
    results: Sequence[Any],
    streams: Sequence[Any],
) -> None:
    """Compute the results of the rows of a warp group, and write them."""
    row = _first_row(group)
    rows = pl.ds(row, ROWS)
    mine = [x.at[group] for x in memory.own]
    for (given, source), target in zip(own, mine, strict=True):
        part = _part(source, rows, _head(walk, given.of_keys))
        plgpu.copy_gmem_to_smem(part, target, memory.arrived.at[group])
    if own:
        plgpu.barrier_wait(memory.arrived.at[group])

    def write(n: int, columns: Any, value: Array) -> None:
        place = memory.streams[n].at[group]
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the tile before is read
        _leave(value, place, _part(streams[n], rows, _head(walk, False), columns))

    found = body(mine, row, partial(_walked, walk, memory, group, row, write))
    places = iter(memory.results)
    for value, result in zip(found, results, strict=True):
        target = _part(result, rows, _head(walk, False))
        if not is_sixteen(result):
            target[...] = value
            continue
        _leave(value, next(places).at[group], target)
    plgpu.wait_smem_to_gmem(0)


def _leave(value: Array, place: Any, target: Any) -> None:
    """Write a matrix to memory by way of a place in shared memory."""
    place[...] = value
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(place, target)


def _walked(
    walk: Walk,
    memory: Memory,
    group: Array,
    row: Array,
    write: Callable[[int, Any, Array], None],
    tile: Callable[[Tile, State], State],
    state: State,
    takes_turns: bool = False,
) -> State:
    """Return the state after all tiles of the walk.

    takes_turns: whether each tile takes a turn twice, so that one group has the tensor core
    while the other computes. If not, the groups do not wait for each other.
    """

    def arrive() -> None:
        if takes_turns:
            plgpu.barrier_arrive(memory.turn)

    def pass_on() -> None:
        if takes_turns:
            plgpu.barrier_wait(memory.turn)

    def turn() -> None:
        arrive()
        pass_on()

    def own_tile(is_whole: bool, position: Array, state: State) -> State:
        slot, number = lax.rem(position, np.int32(walk.ahead)), _number(walk, position)
        return tile(
            Tile(
                number=number,
                is_whole=is_whole,
                memory=[x.at[(slot, group) if len(x.shape) == 4 else slot] for x in memory.walked],
                wait=lambda n: plgpu.barrier_wait(memory.ready[n].at[slot]),
                free=lambda n: plgpu.barrier_arrive(memory.free[n].at[slot]),
                write=lambda n, x: write(n, pl.ds(number * walk.size, walk.size), x),
                arrive=arrive,
                pass_on=pass_on,
            ),
            state,
        )

    def idle(position: Array, state: State) -> State:
        """Let a tile pass that the other warp group alone sees."""
        slot = lax.rem(position, np.int32(walk.ahead))
        for ready, free in zip(memory.ready, memory.free, strict=True):
            plgpu.barrier_wait(ready.at[slot])  # a barrier counts who has waited for it
            plgpu.barrier_arrive(free.at[slot])
        turn()
        turn()
        return state

    pl.when(group == GROUPS - 1)(turn)  # it begins when the other has the tensor core
    for f, first, last in _parts(walk, row, idle, own_tile):
        state = lax.fori_loop(first, last, f, state)
    pl.when(group == 0)(turn)
    return state


def _parts(
    walk: Walk, row: Array, idle: Callable[..., Any], tile: Callable[..., Any]
) -> list[tuple[Callable[..., Any], Array, Array]]:
    """Return (what is done, first position, last position + 1) of the parts of a walk, in order."""
    (first, last), own = _whole_span(walk), walk.span(row)
    ends = [first, *map(_int32, (own.first, own.whole_first, own.whole_last, own.last)), last]
    before, whole, after = (partial(tile, is_whole) for is_whole in (False, True, False))
    does: list[Callable[..., Any]] = [idle, before, whole, after, idle]
    parts = [(f, a, b) for f, a, b in zip(does, ends, ends[1:], strict=False)]
    if not walk.is_cut:
        parts = parts[2:3]
    if walk.descends:
        return [(f, last - b, last - a) for f, a, b in reversed(parts)]
    return [(f, a - first, b - first) for f, a, b in parts]


def over_keys(call: Call, ahead: int, *, descends: bool) -> Walk:
    """Return how programs that own queries walk over the key tiles that some query sees."""
    setup = call.setup

    def span(row: Array) -> Span:
        i = jnp.asarray(row, jnp.int32) // np.int32(setup.block_q)
        last, whole = seen_tiles(setup, i), whole_tiles(setup, i)
        return Span(first=0, last=last, whole_first=0, whole_last=whole)

    return Walk(
        heads=setup.heads,
        group=call.group,
        size=setup.block_k,
        step=1,
        descends=descends,
        is_cut=is_cut(setup),
        span=span,
        ahead=ahead,
    )


def over_queries(call: Call, ahead: int) -> Walk:
    """Return how programs that own keys walk: over 64 queries at a time, in the plan's order."""
    setup = call.setup
    step = setup.block_q // ROWS

    def span(row: Array) -> Span:
        j = jnp.asarray(row, jnp.int32) // np.int32(setup.block_k)
        tiles = *query_tiles_that_see(setup, j), setup.query_tiles
        first, whole, end, last = (jnp.asarray(x * step, jnp.int32) for x in tiles)
        if setup.is_causal and setup.keys > setup.queries:
            first = jnp.minimum(first, last)  # keys that no query sees
        return Span(first=first, last=last, whole_first=whole, whole_last=end)

    return Walk(
        heads=setup.heads,
        group=call.group,
        size=ROWS,
        step=step,
        descends=setup.plan.query_order is QueryOrder.DESCENDING,
        is_cut=is_cut(setup),
        span=span,
        ahead=ahead,
    )


def is_cut(setup: Setup) -> bool:
    """Return whether some tile has scores that do not exist."""
    return bool(setup.is_causal or setup.keys % setup.block_k or setup.queries % setup.block_q)
