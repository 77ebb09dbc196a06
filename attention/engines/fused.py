"""Tiles of the NumPy engine as compiled programs, which give the same bits; and heads in step.

A step of a tile is traced once for a setup and compiled (`emu.backends.fused`). Calls that a
program does not cover run as before: injections, random bits, formats in blocks, samples of a
trace, sums in other orders, and tiles with infinities or NaN in a sum on tensor cores.

The heads of a call run in step: a loop over tiles is Python's once for all of them, and a program
computes a tile of each head in one call. The loops slice, stack and compare arrays, and `Heads`
does that for every head; what a step computes is done by programs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from roundscope.attention.plans.record import CHOICES
from roundscope.attention.sites import SPECIAL_IF_MISSING, Site
from roundscope.attention.tiles.loops import (
    PROGRAMS_FROM,
    Setup,
    Step,
    TileArrays,
    computed,
)
from roundscope.attention.tiles.tile import Tile
from roundscope.attention.trace.parts import summaries
from roundscope.emu.backends.fused.graph import Untraceable
from roundscope.emu.backends.fused.program import program
from roundscope.emu.backends.numba.ops import numpy_ops, stack
from roundscope.emu.backends.ops import Ops, mapped, rebuilt
from roundscope.emu.backends.threads import thread_count
from roundscope.emu.stats.summary import records_type
from roundscope.events.recorder import Seen

EXISTING = ("mask", "rows", "rescaled", "keys")  # which entries of a tile's events exist
# by name, the values that programs run, of the choices that they do not run with every value
RUNS = {name: own.programs for name, own in CHOICES.items() if own.programs is not None}


@contextmanager
def from_scores(least: float) -> Iterator[None]:
    """Use programs in calls with at least so many scores: 0 for all, `math.inf` for none.

    By default it is `PROGRAMS_FROM`: with fewer scores, a call ends before a program is compiled.
    Tests and benchmarks compare calls with and without programs.
    """
    token = PROGRAMS_FROM.set(least)
    try:
        yield
    finally:
        PROGRAMS_FROM.reset(token)


def as_for(scores: float) -> AbstractContextManager[None]:
    """Use programs in all calls if they are used in calls with so many scores."""
    return from_scores(0 if scores >= (least := PROGRAMS_FROM.get()) else least)


def is_covered(setup: Setup, scores: int) -> bool:
    """Return whether programs may cover the tiles of a call with so many scores."""
    if scores < setup.programs_from:
        return False
    record = setup.record
    recorded = record is None or (record.every == 1 and not record.steps)
    runs = all(getattr(setup.plan, name) in values for name, values in RUNS.items())
    return recorded and runs and not setup.inject


class Programs:
    """The programs of a setup: one for each step, and for tiles that are whole or cut."""

    def __init__(self, setup: Setup) -> None:
        """Begin without programs."""
        self.setup = setup
        self.known: dict[Any, Any] = {}
        self.lock = threading.Lock()

    def __call__(self, step: Step, tile: Tile, arrays: TileArrays, sites: Any) -> Any:
        """Return what `computed` returns for a tile, of one head or of `Heads`.

        The result is None if no program covers the tile of one head. The summaries of the events of
        `Heads` are one array of records, which loops over tiles stack at once (`heads.apart`).
        """
        existing = tuple(getattr(tile, name) for name in EXISTING)
        given = [x for group in (existing, *arrays) for x in group]
        made = self._known(step, tile, (existing, *arrays), given, sites)
        heads = count(given)

        def plain(h: int) -> Any:
            own = {name: of_head(getattr(tile, name), h) for name in EXISTING}
            one = replace(tile, head=tile.head + h, **own)
            result, seen = computed(numpy_ops(), self.setup, one, step, of_head(arrays, h))
            return result, _packed(seen)

        if made is None:
            return together(on_threads(plain, heads)) if heads else None
        run, form = made
        results, void = run(
            heads or 1, [x.each if isinstance(x, Heads) else x[None] for x in given]
        )
        if not heads:
            return None if void[0] else apart(form([x[0] for x in results]))
        found = form([Heads(x) for x in results])
        if void.any():
            again = [h for h in range(heads) if void[h]]
            new = dict(zip(again, on_threads(lambda n: plain(again[n]), len(again)), strict=True))
            found = together([new[h] if h in new else of_head(found, h) for h in range(heads)])
        return found

    def _known(
        self, step: Step, tile: Tile, groups: TileArrays, given: list[Any], sites: Any
    ) -> Any:
        """Return what `_made` returns, made once for arrays of these shapes."""
        is_whole = bool(tile.mask.all())
        key = step, is_whole, bool(tile.is_cut), tuple(x.shape for x in given)
        if key not in self.known:
            with self.lock:
                if key not in self.known:
                    existing, *arrays = of_head(groups, 0)
                    self.known[key] = self._made(step, tile, is_whole, existing, arrays, sites)
        return self.known[key]

    def _made(
        self, step: Step, tile: Tile, is_whole: bool, existing: Any, arrays: Any, sites: Any
    ) -> Any:
        """Return the program of a step, and the form of its results; None if there is none."""
        setup = self.setup
        keeps_events = setup.record is not None and bool(setup.record.events)

        def function(ops: Ops, existing: Any, *arrays: Any) -> Any:
            there = dict(zip(EXISTING, existing, strict=True))
            if is_whole:
                whole = ("mask", "rows", "keys")
                there |= {name: ops.xp.ones(there[name].shape, bool) for name in whole}
            own = replace(
                tile,
                **dict.fromkeys(("head", "i", "j", "row0", "key0"), NOWHERE),
                **there,
                is_whole=is_whole,
                anywhere=SPECIAL_IF_MISSING if keeps_events else frozenset(Site),
            )
            return computed(ops, setup, own, step, arrays)

        narrow = ((False,) * len(existing), *(tuple(map(self._is_narrow, g)) for g in sites))
        try:
            return program(function, (existing, *arrays), narrow)
        except Untraceable:
            return None

    def _is_narrow(self, sites: Site | tuple[Site, ...]) -> bool:
        """Return whether binary32 holds the results of events; of none, that is not known."""
        plan = self.setup.plan
        own = sites if isinstance(sites, tuple) else (sites,)
        fit = (plan.block(s) is None and plan[s].format.fits_binary32 for s in own)
        return bool(own) and all(fit)


def _packed(seen: Seen) -> dict[Any, Any]:
    """Return what was recorded of a tile with its summaries as one record, as programs do."""
    own = summaries(seen)
    if not own:
        return seen
    record = np.array(tuple(own.values()), records_type([len(rows) for *_, rows in own.values()]))
    others = {name: part for name, part in seen.items() if name not in own}
    return {tuple(own): record} | others


class _Nowhere:
    """The position of a tile in a program, which all tiles share."""

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"the position of a tile ({name})")


NOWHERE: Any = _Nowhere()


@lru_cache(maxsize=256)
def programs(setup: Setup) -> Programs:
    """Return the programs of a setup."""
    return Programs(setup)


Result = TypeVar("Result")


class Heads(NDArrayOperatorsMixin):
    """Arrays of equal shapes, one of each head, that look like the array of one head.

    Functions of NumPy return what they return for each head, in another `Heads`. An argument that
    is no `Heads` is the same for every head.

    Example:
        >>> import numpy as np
        >>> x = Heads(np.arange(6).reshape(2, 3))
        >>> x.shape, x[0].each.tolist(), (x > np.array([0, 4, 4])).each.tolist()
        ((3,), [0, 3], [[False, False, False], [True, False, True]])
        >>> np.stack([x, x]).each.shape
        (2, 2, 3)
    """

    def __init__(self, each: np.ndarray) -> None:
        """Take arrays (heads, ...)."""
        self.each = each

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of one head."""
        return self.each.shape[1:]

    @property
    def ndim(self) -> int:
        """The number of axes of the array of one head."""
        return self.each.ndim - 1

    def __getitem__(self, where: Any) -> "Heads":
        own = where if isinstance(where, tuple) else (where,)
        return Heads(self.each[(slice(None), *own)])

    def reshape(self, *shape: int) -> "Heads":
        """Return the entries of each head, in the same order, in another shape."""
        return Heads(self.each.reshape(len(self.each), *shape))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        axes = max(x.ndim if isinstance(x, Heads) else np.ndim(x) for x in inputs)
        return Heads(getattr(ufunc, method)(*(_widened(x, axes) for x in inputs), **kwargs))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> "Heads":
        count = len(self.each)
        if function is np.stack and len(args) == 1 and not kwargs:  # what loops do most
            parts = [x.each if isinstance(x, Heads) else x for x in args[0]]
            first = parts[0].dtype
            dtype = first if first.names else np.result_type(*parts)
            plain = f"V{dtype.itemsize}" if dtype.names else dtype  # not copied field by field
            stacked = np.empty((count, len(parts), *self.shape), plain)
            for n, part in enumerate(parts):
                stacked[:, n] = part.view(plain) if dtype.names else part
            return Heads(stacked.view(dtype))
        return Heads(np.stack([function(*of_head(args, h), **kwargs) for h in range(count)]))


def _widened(x: Any, axes: int) -> Any:
    """Return the arrays of heads with so many axes after the first, as NumPy would add them."""
    if not isinstance(x, Heads):
        return x
    return x.each.reshape(len(x.each), *(1,) * (axes - x.ndim), *x.shape)


def count(xs: Sequence[Any]) -> int:
    """Return how many heads the arrays of `Heads` have; 0 if none is a `Heads`."""
    return next((len(x.each) for x in xs if isinstance(x, Heads)), 0)


def of_head(x: Any, h: int) -> Any:
    """Return an array or a structure of arrays of head h; what is no `Heads` as it is."""
    return mapped(lambda part: part.each[h] if isinstance(part, Heads) else part, x)


def together(xs: Sequence[Any]) -> Any:
    """Return structures of arrays, one of each head, as a structure of `Heads`."""
    return mapped(lambda x: None if x is None else Heads(x), stack(list(xs)))


def arrays(x: Any, count: int) -> Any:
    """Return a structure of `Heads` of so many heads as one of arrays (heads, ...); None stays
    None.

    Sums of NumPy depend on the order of axes in memory, so it is the usual one. Records are taken
    `apart`.
    """

    def one(part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, Heads):
            return part.each if part.each.dtype.names else np.ascontiguousarray(part.each)
        return np.ascontiguousarray(np.broadcast_to(part, (count, *np.shape(part))))

    return apart(mapped(one, x))


def apart(x: Any) -> Any:
    """Return a structure with a tuple of fields for each event of the records in its dicts.

    The name of records in a dict is the tuple of the events' names; no field has gaps.
    """
    if isinstance(x, dict):
        found: dict[Any, Any] = {}
        for name, part in x.items():
            if isinstance(name, tuple):
                for n, own in enumerate(name):
                    fields = (part[str(n)][of] for of in part[str(n)].dtype.names)
                    found[own] = tuple(np.ascontiguousarray(x).reshape(x.shape) for x in fields)
            else:
                found[name] = apart(part)
        return found
    return rebuilt(x, map(apart, x)) if isinstance(x, tuple) else x


def on_threads(function: Callable[[int], Result], count: int) -> list[Result]:
    """Return function(0) to function(count - 1), computed on several threads if there are many."""

    def quietly(n: int) -> Result:
        # overflow, inf - inf and NaN are results here, counted by the trace
        with np.errstate(all="ignore"):
            return function(n)

    if count == 1:  # a thread takes longer to start than many a call of one head
        return [quietly(0)]
    with ThreadPoolExecutor(min(count, thread_count())) as pool:
        return list(pool.map(quietly, range(count)))
