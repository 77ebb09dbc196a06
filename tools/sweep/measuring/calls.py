"""Calls of `examine` for cells of one group, and the results that they are compared with.

These are golden and unfused results, which are kept in memory. Under xla all results stay on the
device: batches of `Arrays` with the cells, and what pads them, along the first axis.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import lru_cache
from itertools import count
from os import cpu_count
from threading import Lock
from typing import Any

import numpy as np

from roundscope.attention import Examined, Plan, Record, Site, examine
from roundscope.attention.plans.choices import KeyOrder, RowSum
from roundscope.attention.sites import BACKWARD, PRODUCTS, RESCALES
from roundscope.emu.roundings.modes import BINARY64
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.tools.compile_cache import keep_compilations
from roundscope.tools.results.machine import has_gpu
from roundscope.tools.sweep.conditions.cell import OF_CALL, Cell, entries
from roundscope.tools.sweep.conditions.inputs import Inputs, draw
from roundscope.tools.sweep.measuring.sums import Arrays

CALLED = ("scale", "alignment", "window", "softcap", "mask", "sinks")  # of `Inputs`
RESULTS = ("out", "lse", "dq", "dk", "dv", "delta")
EXACT = Plan.preset("exact")
# the query tile of golden and unfused calls, which changes no bit: these were fastest
REFERENCE_ROWS = {"numpy": 32, "xla": 128}
REFERENCES = 128  # entries of such a call at most: many cells share few
NO_SAY = BACKWARD | RESCALES | {Site.LSE}  # events without effect on unfused attention's output


class Kept:
    """Values up to a total number of bytes, each under one or more keys.

    When there are more, the least recently used are dropped; the newest always stays. Threads may
    share it.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes, self._numbers = limit, 0, count()
        self._kept: OrderedDict[int, tuple[Any, int, tuple[Hashable, ...]]] = OrderedDict()
        self._number: dict[Hashable, int] = {}
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Return the value under a key, or None."""
        with self._lock:
            if key not in self._number:
                return None
            self._kept.move_to_end(self._number[key])
            return self._kept[self._number[key]][0]

    def put(self, keys: Sequence[Hashable], value: Any, size: int) -> None:
        """Keep a value of `size` bytes under these keys, and drop what they held before."""
        with self._lock:
            for old in {self._number[key] for key in keys if key in self._number}:
                self._drop(old)
            number = next(self._numbers)
            self._kept[number] = value, size, tuple(keys)
            self._number |= dict.fromkeys(keys, number)
            self.bytes += size
            while self.bytes > self.limit and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))

    def _drop(self, number: int) -> None:
        _, size, keys = self._kept.pop(number)
        self.bytes -= size
        for key in keys:
            del self._number[key]


HOST, DEVICE = 64 << 20, 4 << 30  # bytes of one `Kept`, and of one on a GPU
_NUMBERS = count()
_INPUTS = Kept(HOST)
_GOLDEN, _UNFUSED = (
    {"numpy": Kept(HOST), "xla": Kept(DEVICE if has_gpu() else HOST)} for _ in range(2)
)


def inputs_of(cells: Sequence[Cell]) -> list[Inputs]:
    """Return the tensors of cells; those not kept are drawn, on all cores. Raises as `draw`."""
    keys = [_input_key(cell) for cell in cells]
    inputs = {key: _INPUTS.get(key) for key in keys}
    missing = {key: cell for key, cell in zip(keys, cells, strict=True) if inputs[key] is None}
    if len(missing) > 1:
        with ThreadPoolExecutor(cpu_count()) as pool:
            drawn = list(pool.map(draw, missing.values()))
    else:
        drawn = [draw(cell) for cell in missing.values()]
    for key, x in zip(missing, drawn, strict=True):
        inputs[key] = x
        size = sum(part.nbytes for part in (x.q, x.k, x.v, x.do) if part is not None)
        _INPUTS.put([key], x, size)
    return [inputs[key] for key in keys]


class Group:
    """Cells that may share a call, and what calls of `size` entries give for them.

    Under xla each tensor is copied to the device once, however many cells and calls share it.
    """

    def __init__(self, cells: Sequence[Cell], size: int) -> None:
        """Draw the inputs of the cells; raises as `draw`."""
        inputs = inputs_of(cells)
        own = {id(x): x for x in inputs}
        number = {key: n for n, key in enumerate(own)}
        self.cells, self.size, self.engine = cells, size, str(cells[0]["engine"])
        self._own, self._places = [*own.values()], np.array([number[id(x)] for x in inputs])
        self._sent: dict[str, Any] = {}

    def attention(self) -> Examined:
        """Run the cells in one call of `size` entries; the ones of P and ALPHA are counted."""
        cell, plans = self.cells[0], [c.plan for c in self.cells]
        blocks = int(cell["block_q"]), int(cell["block_k"])
        more = {"record": Record(ones=(Site.P, Site.ALPHA)), "inject": cell.inject}
        every = range(len(plans))
        return self._examine(every, plans, self.size, blocks, bool(cell["backward"]), **more)

    def golden(self) -> Arrays:
        """Return the results of unfused attention in binary64 throughout, on the cells' engine."""
        keys = [golden_key(c) for c in self.cells]
        return self._shared(_GOLDEN, keys, [EXACT] * len(keys), bool(self.cells[0]["backward"]))

    def unfused(self) -> Arrays:
        """Return the output under `unfused_plan`, without injections and backward."""
        plans = [unfused_plan(c.plan) for c in self.cells]
        keys = [(golden_key(c), _number(p)) for c, p in zip(self.cells, plans, strict=True)]
        return self._shared(_UNFUSED, keys, plans, False)

    def _shared(
        self,
        kept: dict[str, Kept],
        keys: Sequence[Hashable],
        plans: Sequence[Plan],
        backward: bool,
    ) -> Arrays:
        """Return results by key, in a batch of `size`.

        They are those that are kept already, and for all others those of calls of 1 or `REFERENCES`
        entries (two executables).
        """
        mine, first = kept[self.engine], {key: i for i, key in reversed(list(enumerate(keys)))}
        found = {key: mine.get(key) for key in first}
        missing = [i for key, i in first.items() if found[key] is None]
        entries = min(self.size, REFERENCES)
        blocks = REFERENCE_ROWS[self.engine], int(self.cells[0]["S"])
        for lo in range(0, len(missing), entries):
            some = missing[lo : lo + entries]
            called = 1 if len(missing) == 1 else entries
            examined = self._examine(some, [plans[i] for i in some], called, blocks, backward)
            arrays, places = results_of(examined), {keys[i]: n for n, i in enumerate(some)}
            found |= dict.fromkeys(places, (arrays, places))
            mine.put(list(places), (arrays, places), sum(x.nbytes for x in arrays.values()))
        if self.engine == "numpy":
            from roundscope.tools.sweep.measuring.sums import chosen
        else:
            from roundscope.tools.sweep.measuring.on_device import chosen
        return chosen([(found[key][0], found[key][1][key]) for key in keys], self.size)

    def _examine(
        self,
        some: Sequence[int],
        plans: Sequence[Plan],
        size: int,
        blocks: tuple[int, int],
        backward: bool,
        **options: Any,
    ) -> Examined:
        """Call `examine` once for some cells, in the shapes of the first one."""
        cell, x = self.cells[0], self._own[0]  # cells share all of their inputs but the tensors
        if self.engine == "xla":
            keep_compilations()
        more = size - len(plans)
        every, plans = [*some, *[some[-1]] * more], [*plans, *[plans[-1]] * more]
        # entries of one cell are numbered together, as for anybody who calls `examine` on the file
        one = self.engine == "numpy" or plans[0] is EXACT or entries(cell) > 1
        options |= {name: getattr(x, name) for name in CALLED} | {"engine": self.engine}
        q, k, v = (self._tensor(role, every) for role in "qkv")
        found = examine(
            q,
            k,
            v,
            self._tensor("do", every) if backward and x.do is not None else None,
            plan=plans[0] if one else plans,
            block_q=blocks[0],
            block_k=blocks[1],
            is_causal=bool(cell["causal"]),
            **options,
        )
        return found if entries(cell) == 1 else _of_one(found)

    def _tensor(self, role: str, chosen: Sequence[int]) -> Any:
        """Return a tensor of the cells chosen, along the first axis; several cells need xla."""
        if len(chosen) == 1:
            return getattr(self._own[self._places[chosen[0]]], role)
        import jax

        from roundscope.tools.sweep.measuring.on_device import taken

        with jax.enable_x64(True):
            if role not in self._sent:
                parts = [getattr(x, role) for x in self._own]
                # padded to a power of two: few shapes need few compilations
                missing = (1 << (len(parts) - 1).bit_length()) - len(parts)
                self._sent[role] = jax.device_put(np.concatenate([*parts, *parts[-1:] * missing]))
            return taken(self._sent[role], self._places[list(chosen)])


@lru_cache(4096)
def unfused_plan(plan: Plan) -> Plan:
    """Return the plan of unfused attention, softmax first, in the formats of a plan.

    What has no effect on the output is set alike, so that more cells share a result. That includes
    how a kernel adds up a row in the lanes of a tile, and how it splits the keys.
    """
    effective = plan.rounded(dict.fromkeys(NO_SAY, BINARY64))
    accumulators = tuple(
        Accumulator(step=BINARY64) if site in NO_SAY else plan.accumulator(site)
        for site in PRODUCTS
    )
    return replace(
        effective,
        name="unfused",
        accumulators=accumulators,
        normalise_first=True,
        pv_into_o=False,
        key_order=KeyOrder.ASCENDING,
        row_sum=RowSum.PLAIN,
        split_tiles=0,
        flushed_tiles=0,
        normalized_last=False,
        backward_keys=0,
        row_sum_of=EXACT.row_sum_of,
        delta_from=EXACT.delta_from,
    )


@lru_cache(4096)
def _number(plan: Plan) -> int:
    """Return a number that stands for a plan in keys, whose hash takes a hundred times as long."""
    return next(_NUMBERS)


def results_of(examined: Examined) -> Arrays:
    """Return the results by name, with gradients and delta where there are any."""
    found = {name: getattr(examined, name) for name in RESULTS}
    return {name: x for name, x in found.items() if x is not None}


def _input_key(cell: Cell) -> Hashable:
    """Return everything that a cell's tensors depend on."""
    names = ("input", "T", "S", "N", "H", "backward", *OF_CALL)
    return cell.content or cell["seed"], *(cell[name] for name in names)


def golden_key(cell: Cell) -> Hashable:
    """Return everything that a cell's golden results depend on, but for the engine."""
    return _input_key(cell), cell["causal"]


def _of_one(found: Examined) -> Examined:
    """Return what a call found with the batch entries of one cell, rows and heads, as one entry."""

    def together(x: Any) -> np.ndarray:
        return np.asarray(x).reshape(1, -1, *np.shape(x)[2:])

    results: dict[str, Any] = {name: together(x) for name, x in results_of(found).items()}
    stats = {
        name: replace(s, **{f.name: together(getattr(s, f.name)) for f in fields(s)})
        for name, s in found.trace.stats.items()
    }
    by_site: dict[str, Any] = {
        part: {name: together(x) for name, x in getattr(found.trace, part).items()}
        for part in ("rows", "ones", "away", "hits")
    }
    return replace(found, **results, trace=replace(found.trace, stats=stats, **by_site))
