"""The rounding events of a tile, summarized by row inside a kernel.

A row's summary takes 128 bytes, the events of 64 columns 1,024, and memory limits the speed of a
trace. (An event of one column takes less than its summary; there are few of those.)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from roundscope.emu.backends.kernels.ops import barrier
from roundscope.emu.backends.ops import Event
from roundscope.emu.backends.xla.ops import judged_events
from roundscope.emu.stats.classify import COUNTS, SUMS, Judged, judged

BITS, IN_A_WORD = 10, 3  # of a count, and counts in a word
LONG = 2**BITS  # columns of which a count has no number
FLAGS = (*COUNTS, "ones")  # `ones` counts the results that equal 1
WORDS = -(-len(FLAGS) // IN_A_WORD)
# the summary of a row: counts in words, sums, that of errors counted away from zero, the largest
# error in ulps and its first column; as many numbers as a power of two, in one array, since each
# store to memory takes long to compile
FIELDS = 16
AWAY = WORDS + len(SUMS)  # the sum of the errors in ulps, counted away from zero
PEAK, COLUMN = AWAY + 1, AWAY + 2
TOGETHER = FIELDS  # columns that are summarized at a time: no thread gives a field to another
THREADS = 256  # of a program that summarizes events in memory
LAST = np.int32(np.iinfo(np.int32).max)


class Scratch(NamedTuple):
    """Memory of a program, through which an event passes on its way to its summary.

    before, after  by type: a square that holds the numbers before and after the rounding
    exists         which entries exist
    """

    before: dict[str, Any]
    after: dict[str, Any]
    exists: Any


def scratch(grid: tuple[int, int], side: int) -> Scratch:
    """Return the shapes and types of the memory of all programs of a grid; side: of a square."""
    square = *grid, side, side

    def numbers() -> dict[str, jax.ShapeDtypeStruct]:
        return {name: jax.ShapeDtypeStruct(square, name) for name in ("float32", "float64")}

    return Scratch(numbers(), numbers(), jax.ShapeDtypeStruct(square, jnp.int8))


def write_by_row(
    to: Any, at: tuple[Any, ...], event: Event, own: Scratch, on_gpu: bool, with_ones: bool
) -> None:
    """Write the summaries of the rows of an event, inside a kernel.

    The event goes through memory, which a multiprocessor keeps near, and a loop reads some columns
    at a time: a thread lacks the registers for more, and the same instructions for all entries of a
    tile would not fit a multiprocessor's cache. What a thread has seen is added up over the columns
    first, and over the threads of a row once, since threads exchange numbers slowly.

    to, at  an array, and where in it the summaries (rows, FIELDS) belong
    event   the numbers before and after the rounding, their format, and which entries exist, (rows,
            columns)
    """
    before, after, f, exists = event
    (rows, columns), x, y = before.shape, own.before[before.dtype.name], own.after[after.dtype.name]
    x[:rows, :columns], y[:rows, :columns] = before, after
    own.exists[:rows, :columns] = exists.astype(jnp.int8)
    barrier(on_gpu)  # every thread reads what others wrote

    def read(here: Any, _: Array) -> tuple[Array, ...]:
        return x[:rows, here], y[:rows, here], own.exists[:rows, here] != np.int8(0)

    some = min(TOGETHER, columns)
    to[*at, :, :] = _by_row(read, (rows, columns), some, judged(f), with_ones, f.is_deep)
    barrier(on_gpu)  # before the memory is written again


def summarized_by_row(
    before: Array, after: Array, valid: Array, formats: Sequence[Any], on_gpu: bool
) -> Array:
    """Return the summaries of the rows of events that are in memory, by a kernel of its own.

    The result is (tiles, sites, rows, FIELDS). XLA would write an array with a number for every
    event on the way.

    before, after  (tiles, sites, rows, columns), float64
    valid          (tiles, sites, rows), int32: how many columns of each row exist, the first ones
    formats        of the sites
    on_gpu         whether the kernel is compiled, not interpreted
    """
    tiles, sites, *shape = before.shape
    each = jnp.array([judged(f) for f in formats], jnp.int64)

    def own(*size: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, *size), lambda n, site: (n, site, *(0 for _ in size)))

    of_site = pl.BlockSpec((None, len(Judged._fields)), lambda n, site: (site, 0))
    made = jax.ShapeDtypeStruct((tiles, sites, shape[0], FIELDS), jnp.float64)
    found: Array = pl.pallas_call(
        partial(_summarize, deep=any(f.is_deep for f in formats)),
        grid=(tiles, sites),
        in_specs=[own(*shape), own(*shape), own(shape[0]), of_site],
        out_specs=own(shape[0], FIELDS),
        out_shape=made,
        compiler_params=triton.CompilerParams(num_warps=THREADS // 32, num_stages=1),
        interpret=not on_gpu,
        name="summarize",
    )(before, after, valid, each)
    return found


def _summarize(before: Any, after: Any, valid: Any, each: Any, to: Any, *, deep: bool) -> None:
    """Write the summaries of the rows of the events that a program sees."""
    exists = valid[...][:, None]
    f = Judged(*(each[n] for n in range(len(Judged._fields))))

    def read(here: Any, column: Array) -> tuple[Array, ...]:
        return before[:, here], after[:, here], column < exists

    some = max(1, THREADS // before.shape[0])  # a thread has one event: more programs at once
    to[...] = _by_row(read, before.shape, min(some, before.shape[1]), f, True, deep)


def _by_row(
    read: Callable[[Any, Array], tuple[Array, ...]],
    shape: tuple[int, int],
    some: int,
    f: Judged,
    with_ones: bool,
    deep: bool,
) -> Array:
    """Return the summaries (rows, FIELDS) of an event of a shape, read `some` columns at a time.

    read: a function from some columns and their numbers to the event before and after the rounding,
    and which entries exist, each (rows, some).
    """
    rows, columns = shape

    def part(n: Array, so_far: list[Array]) -> list[Array]:
        column = lax.broadcasted_iota(jnp.int32, (rows, some), 1) + n * some
        x, y, exists = read(pl.ds(n * some, some), column)
        return _added(so_far, _fields(x, y, f, exists, with_ones, column, deep))

    own = rows, some
    counts = [jnp.zeros(own, jnp.int32) for _ in range(WORDS)]
    sums = [jnp.zeros(own, jnp.float64) for _ in (*SUMS, "away")]
    nothing = jnp.full(own, -1.0, jnp.float64), jnp.zeros(own, jnp.int32)
    fields = _over_columns(lax.fori_loop(0, columns // some, part, [*counts, *sums, *nothing]))
    return _in_columns([x[:, None] for x in fields], (rows, FIELDS))


def write_columns(to: Any, place: Any, events: Sequence[Event], with_ones: bool) -> None:
    """Write the summaries of events of one column each, inside a kernel, all events at once.

    to, place  an array, and where in it the fields of the summaries belong: (FIELDS, rows, events),
               with as many events as a power of two
    events     as for `write_by_row`, each (rows, 1)
    """
    shape = events[0][0].shape[0], to.shape[-1]
    befores, afters, formats, existing = zip(*events, strict=True)
    before, after = (_in_columns([_wide(y) for y in x], shape) for x in (befores, afters))
    exists, parameters = _in_columns(existing, shape), zip(*map(judged, formats), strict=True)
    each = Judged._make(_in_columns([*map(np.int64, x)], (1, shape[1])) for x in parameters)
    column, deep = jnp.zeros(shape, jnp.int32), any(f.is_deep for f in formats)
    fields = _fields(before, after, each, exists, with_ones, column, deep)
    for n, x in enumerate(fields[:-1]):
        to[place, n, :, :] = _wide(x)


def _in_columns(x: Sequence[Any], shape: tuple[int, int]) -> Array:
    """Return numbers, each of which fits (rows, 1), as the columns of an array; the rest is 0."""
    which = lax.broadcasted_iota(jnp.int32, shape, 1)
    found = jnp.zeros(shape, jnp.asarray(x[0]).dtype)
    for n, column in enumerate(x):
        found = jnp.where(which == n, column, found)
    return found


def _fields(
    before: Array,
    after: Array,
    f: Judged,
    exists: Array,
    with_ones: bool,
    column: Array,
    deep: bool,
) -> list[Array]:
    """Return the fields of the summaries of single events (rows, columns).

    f has the parameters of the format, numbers or arrays that fit the events, `column` the numbers
    of the columns; deep: whether a format is deep.
    """
    before, after = _wide(before), _wide(after)
    flags, terms = judged_events(before, after, f, exists, has_deep=deep)
    flags.append(exists & (after == 1.0) if with_ones else jnp.zeros_like(exists))
    words = [_word(flags[n : n + IN_A_WORD]) for n in range(0, len(flags), IN_A_WORD)]
    size = jnp.where(exists, terms[SUMS.index("abs_ulps")], -1.0)
    ulps = terms[SUMS.index("ulps")]
    return [*words, *terms, jnp.where(before < 0.0, -ulps, ulps), size, column]


def _wide(x: Array) -> Array:
    return x.astype(jnp.float64)


def _word(flags: Sequence[Array]) -> Array:
    """Return up to three flags in separate bits of a number, so that one sum counts them all."""
    parts = [jnp.where(flag, np.int32(1 << BITS * k), np.int32(0)) for k, flag in enumerate(flags)]
    return sum(parts[1:], parts[0])


def _added(x: Sequence[Array], y: Sequence[Array]) -> list[Array]:
    """Return the fields of two sets of events together, of which y has the larger columns."""
    *sums, peak, column = x
    *others, size, place = y
    is_larger = size > peak
    worst = jnp.where(is_larger, size, peak), jnp.where(is_larger, place, column)
    return [*(a + b for a, b in zip(sums, others, strict=True)), *worst]


def _over_columns(fields: Sequence[Array]) -> list[Array]:
    """Return the fields of rows, each (rows,), of float64, from those of (rows, columns)."""
    *sums, size, column = fields
    peak = size.max(axis=1)
    worst = jnp.where(size == peak[:, None], column, LAST).min(axis=1)
    return [*(_wide(x.sum(axis=1, dtype=x.dtype)) for x in sums), peak, _wide(worst)]


class Written:
    """The fields of the summaries of rows, as a kernel wrote them, each (..., events, rows).

    Each is an array of its own, so that XLA reads them where they lie.
    """

    def __init__(self, array: Array, events: int, in_columns: bool) -> None:
        """Take what `write_by_row` wrote, (..., events, rows, FIELDS), or else `write_columns`."""
        self.array, self.events, self.in_columns = array, events, in_columns

    def _field(self, n: int) -> Array:
        if self.in_columns:
            return self.array[..., n, :, : self.events].swapaxes(-1, -2)
        return self.array[..., n]

    def flag(self, name: str) -> Array:
        """Return a count of FLAGS, of int64."""
        word, place = divmod(FLAGS.index(name), IN_A_WORD)
        found: Array = (self._field(word).astype(jnp.int64) >> BITS * place) & (2**BITS - 1)
        return found

    def sum(self, name: str) -> Array:
        """Return a sum of SUMS; in a row without an event it means nothing."""
        return self._field(WORDS + SUMS.index(name))

    def away(self) -> Array:
        """Return the sum of errors counted away from zero; without an event it means nothing."""
        return self._field(AWAY)

    def worst(self) -> tuple[Array, Array]:
        """Return the largest error in ulps, and its first column; they mean nothing, too."""
        peak = self._field(PEAK)
        return peak, jnp.zeros_like(peak) if self.in_columns else self._field(COLUMN)
