"""How a fused kernel is called: its grid of (heads, tiles), and the memory of its programs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from roundscope.attention.engines.kernels.call import Call, Input, Work, block, whole_array
from roundscope.attention.engines.kernels.record import Kept, Memory, Recorder
from roundscope.attention.engines.kernels.tiles import Reader, reading
from roundscope.attention.engines.layout import from_heads, to_heads
from roundscope.attention.plans.choices import Exponential, RowSum
from roundscope.attention.sites import Axes, Site
from roundscope.emu.backends.kernels.exp import AT_ONCE, BYTES, table
from roundscope.emu.backends.kernels.held import FP32, FP64, WITHIN_FP32
from roundscope.emu.backends.kernels.ops import COLUMNS, kernel_machine, types
from roundscope.emu.backends.xla.ops import opaque_zero
from roundscope.emu.roundings.modes import BINARY32
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.injection import Exact

LANES = 32  # threads of a warp
ROWS_OF_A_WARP = 16  # a matrix unit gives four warps 64 rows: no row of scores is in two units
NUMBERS = 256  # that a thread with 255 registers can hold and still be fast, as measured
SHARED = 227 * 1024  # bytes of a multiprocessor's shared memory
FOUR = 4  # lanes of a row
# of a program that summarizes events by row: with fewer entries of a tile, a thread has fewer
# instructions, which must fit a cache
WARPS_BY_ROW = 16
AHEAD = 128 * 1024  # of those, for tiles that are read ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel and what it needs to know before it is traced.

    body          (call, work, what it sees of the inputs, and of the results) -> None
    sums          the sites whose accumulators it runs on whole tiles
    turn          rows of a tile that a program walks over
    exps_at_once  how many exponentials a thread computes at once
    exponent      the event whose results it takes exp of, if bfloat16 ones are worth a table
    in_batches    whether arrays with features are passed in the layout of the caller, (B, rows, N,
                  features). They are transposed here, which cancels the transposition to heads, so
                  no data moves
    """

    body: Callable[..., None]
    sums: tuple[Site, ...]
    turn: int
    exps_at_once: int = AT_ONCE
    exponent: Site | None = None
    in_batches: bool = False


def _seen_shape(x: Input) -> tuple[Any, ...]:
    """Return the shape that a program sees of an input, None for an axis that it does not see."""
    return tuple(x[1].block_shape or ())


def _own(x: Any) -> pl.BlockSpec:
    """Return the block that gives a program its part of an array (heads, tiles, ...)."""
    return pl.BlockSpec((None, None, *x.shape[2:]), lambda h, i: (h, i, *(0 for _ in x.shape[2:])))


class _Given(NamedTuple):
    """The arrays that a kernel reads, or what a program sees of each.

    zero     an int64 0 that no compiler knows, (1,)
    numbers  the numbers of own tiles and of samples (`Recorder.numbers`); None without a recorder
    """

    inputs: list[Any]
    masks: list[Any]
    zero: Any
    numbers: Any


class _Made(NamedTuple):
    """The arrays that a kernel writes, or what a program sees of each.

    Sums pass through `buffers`, events through `scratch` (None without a recorder); `kept` is
    recorded.
    """

    results: list[Any]
    buffers: list[Any]
    scratch: Any
    kept: list[Kept]


def run(
    kernel: Kernel,
    call: Call,
    grid: tuple[int, int],
    inputs: Sequence[Input],
    results: Sequence[tuple[tuple[int, ...], Site | None]],
    watch: tuple[Recorder, Array] | None = None,
    mask: Reader | None = None,
) -> tuple[list[Array], list[Kept]]:
    """Return the results of a kernel over a grid of (heads, tiles), and what it kept of events.

    inputs   arrays, and what a program sees of each
    results  the shape and the site of each result, of which every program writes its tile's rows
    watch    the recorder of events, and the numbers of the tiles that programs own, (heads, tiles).
             None if nothing is recorded; the tiles are then 0, 1, 2 ...
    mask     what programs read of the call's mask, if it has one
    """
    dtypes, passed = types(call.on_gpu), _passed(call, kernel)
    shapes = [jax.ShapeDtypeStruct(shape, dtypes[call.left(site)]) for shape, site in results]
    by_row = watch is not None and watch[0].summarizes
    # the interpreter is XLA, which would fold constants
    zero = jnp.int64(0) if call.on_gpu else opaque_zero(inputs[0][0])
    masks = mask.inputs if mask else []
    given = _Given(
        inputs=[x for x, _ in inputs],
        masks=[x for x, _ in masks],
        zero=zero[None],
        numbers=watch and watch[0].numbers(watch[1]),
    )
    made = _Made(
        results=shapes,
        buffers=_buffers(call, passed, grid, inputs),
        scratch=watch and watch[0].scratch(grid),
        kept=watch[0].shapes(grid) if watch else [],
    )
    _check_counts(jax.tree.leaves((given.inputs, given.masks, made)), grid[0], watch is not None)

    rows, features = shapes[0].shape[1] // grid[1], shapes[0].shape[-1]
    warps = _warps(call, kernel, rows, features, is_watched=watch is not None)
    if by_row:
        warps = max(warps, WARPS_BY_ROW)
    # a load of a later turn runs ahead of stores, to memory of the program too: where it reads what
    # it wrote, one turn at a time
    stages = 1 if passed or by_row else _stages(call, kernel, inputs, [site for _, site in results])
    batch = grid[0] // call.setup.heads if kernel.in_batches else None
    read = [_by_batch(x, spec, batch) for x, spec in inputs]
    written = [
        _by_batch(x, block(x, x.shape[1] // grid[1], lambda h, i: (h, i)), batch) for x in shapes
    ]
    given = given._replace(inputs=[x for x, _ in read])
    made = made._replace(results=[x for x, _ in written])
    seen = given._replace(
        inputs=[spec for _, spec in read],
        masks=[spec for _, spec in masks],
        zero=whole_array(given.zero),
        numbers=jax.tree.map(_own, given.numbers),
    )
    filled = jax.tree.map(_own, made)._replace(results=[spec for _, spec in written])
    tree = jax.tree.structure((given, made))
    found = pl.pallas_call(
        _program(kernel, call, passed, LANES * warps, tree, watch and watch[0], mask),
        grid=grid,
        in_specs=jax.tree.leaves(seen),
        out_specs=jax.tree.leaves(filled),
        out_shape=jax.tree.leaves(made),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=not call.on_gpu,
        name=kernel.body.__name__.strip("_"),
    )(*jax.tree.leaves(given))
    made = jax.tree.unflatten(jax.tree.structure(made), found)
    return [to_heads(jnp, x, 1) if x.ndim == 4 else x for x in made.results], made.kept


def _program(
    kernel: Kernel,
    call: Call,
    passed: list[str],
    threads: int,
    tree: Any,
    recorder: Recorder | None,
    mask: Reader | None,
) -> Callable[..., None]:
    """Return what Pallas traces: the kernel's body, given what it sees of the arrays.

    tree: the tree of (`_Given`, `_Made`), whose leaves are the arrays
    """

    def program(*refs: Any) -> None:
        given, made = jax.tree.unflatten(tree, refs)
        exps = table(given.zero[0], threads) if _has_table(call, kernel) else None
        memory = Memory(made.kept, made.scratch, call.on_gpu, {})
        watch = (recorder, given.numbers[1], memory) if recorder else None
        tile = given.numbers[0] if recorder else pl.program_id(1)
        pairs = zip(made.buffers[::2], made.buffers[1::2], strict=True)
        buffers = dict(zip(passed, pairs, strict=True))
        work = Work(
            machine=kernel_machine(given.zero[0], buffers, call.on_gpu, kernel.exps_at_once, exps),
            setup=call.setup,
            head=pl.program_id(0),
            own=tile,
            watch=watch,
            exists=reading(mask, given.masks),
        )
        kernel.body(call, work, given.inputs, made.results)

    return program


def _check_counts(arrays: Sequence[Any], heads: int, is_watched: bool) -> None:
    """Raise ValueError for arrays too large for the 32 bits in which programs find their part."""
    repair = "call it for fewer batch entries or heads at a time" + (
        ", or record a sample of the tiles (every)" if is_watched else ""
    )
    for x in arrays:
        if math.prod(x.shape) >= 2**31:
            told = (
                f"q: {heads} heads need an array of shape {tuple(x.shape)}, 2^31 elements or more,"
                " which a fused kernel does not count"
            )
            raise ValueError(f"{told}; {repair}")


def _passed(call: Call, kernel: Kernel) -> list[str]:
    """Return the names of the formats of the arrays that a kernel passes through memory.

    These arrays are the factors of ascending sums, including the sums for Exact() injections. Rows
    that four lanes add up are short enough for registers.
    """
    is_exact = any(isinstance(injection.what, Exact) for injection in call.setup.inject)
    is_ascending = any(
        call.setup.plan.accumulator(site).order is Order.ASCENDING and not _in_registers(call, site)
        for site in kernel.sums
    )
    return [FP32, FP64] if is_exact or is_ascending else []


def _in_registers(call: Call, site: Site) -> bool:
    """Return whether a program adds up the rows of a site without memory, column by column."""
    plan = call.setup.plan
    in_lanes = site is Site.ROWSUM and plan.row_sum in (RowSum.LANES, RowSum.TILE_LANES)
    return (
        in_lanes
        and plan.accumulator(site) == Accumulator()
        and call.format(plan.row_sum_of) in WITHIN_FP32
        and call.setup.block_k // FOUR <= COLUMNS
    )


def _has_table(call: Call, kernel: Kernel) -> bool:
    """Return whether exps are read from a table: those of bfloat16 numbers, rounded to binary32."""
    plan = call.setup.plan
    is_narrow = kernel.exponent is not None and call.format(kernel.exponent) == "bf16"
    return (
        call.on_gpu and is_narrow and plan[Site.EXP] == BINARY32 and plan.exp is Exponential.CORRECT
    )


def _buffers(
    call: Call, passed: list[str], grid: tuple[int, int], inputs: Sequence[Input]
) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the memory of programs.

    For each format that is passed through memory there are two squares, as large as any array that
    a program has.
    """
    side = max(
        call.setup.block_q, call.setup.block_k, *(n for x in inputs for n in _seen_shape(x)[2:])
    )
    dtypes = types(call.on_gpu)
    return [
        jax.ShapeDtypeStruct((*grid, side, side), dtypes[name]) for name in passed for _ in range(2)
    ]


def _warps(call: Call, kernel: Kernel, rows: int, features: int, is_watched: bool) -> int:
    """Return how many warps a program has that owns a tile of `rows` rows.

    If exps come from a table and nothing is recorded, a warp has twice the rows, provided that a
    thread has room for their scores, P V and O. The operands that are read for the products then
    serve twice as many rows.
    """
    warps = max(4, rows // ROWS_OF_A_WARP)
    half, of_o = max(4, warps // 2), features * call.dtype(Site.O).itemsize // 4
    numbers = rows * (call.setup.block_k + features + of_o) // (LANES * half)
    return half if _has_table(call, kernel) and not is_watched and numbers <= NUMBERS else warps


def _stages(
    call: Call, kernel: Kernel, inputs: Sequence[Input], results: Sequence[Site | None]
) -> int:
    """Return how many of the tiles that a program walks over are in shared memory at once."""
    walked = [x for x in inputs if x[0].ndim > 1 and _seen_shape(x)[1] == x[0].shape[1]]
    turn: int = kernel.turn * sum(
        math.prod(_seen_shape(x)[2:]) * x[0].dtype.itemsize for x in walked
    )
    table = BYTES if _has_table(call, kernel) else 0
    # two if a table leaves too little memory for two programs with three tiles each
    wanted = 3 if 3 * turn + 2 * table < AHEAD else 2
    size = call.setup.block_q * call.setup.block_k
    written: list[int] = [
        size * call.dtype(site).itemsize
        for site in results
        if site is not None and site.axes is Axes.TS
    ]
    if not written:
        return wanted
    own: int = sum(
        math.prod(_seen_shape(x)[1:]) * x[0].dtype.itemsize
        for x in inputs
        if x[0].ndim == 3 and _seen_shape(x)[1] != x[0].shape[1]
    )
    # scores on their way to memory take a tile, too
    return max(1, min(wanted, (SHARED - own - max(written)) // turn))


def _by_batch(x: Any, spec: pl.BlockSpec, batch: int | None) -> tuple[Any, pl.BlockSpec]:
    """Return (heads, rows, features) as (B, rows, N, features), and what a program sees of that.

    The array may be a shape without numbers. Where `batch` is None nothing is changed.
    """
    if batch is None or len(x.shape) != 3:
        return x, spec
    (_, rows, features), at = spec.block_shape or (), spec.index_map
    heads, turned = np.int32(x.shape[0] // batch), partial(from_heads, batch=batch, rows=x.shape[1])

    def own(h: Any, i: Any) -> tuple[Any, ...]:
        head, tile, _ = at(h, i)  # type: ignore[misc]
        return lax.div(head, heads), tile, lax.rem(head, heads), 0

    array = turned(x) if isinstance(x, Array) else jax.eval_shape(turned, x)
    return array, pl.BlockSpec((None, rows, None, features), own)
