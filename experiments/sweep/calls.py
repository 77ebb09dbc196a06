"""Calls of `examine` for cells of one group, and what they are compared with: golden and unfused results, kept in memory."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention import Examined, Injection, Plan, Record, Site, examine
from attention.events import RESCALES
from attention.plan import KeyOrder
from attention.sites import PRODUCTS
from emu.accumulate import Accumulator
from emu.rounding import BINARY64
from experiments.compile_cache import keep_compilations
from experiments.sweep.cell import Cell
from experiments.sweep.inputs import FAMILIES, Inputs, draw

Arrays = dict[str, np.ndarray]
RESULTS = ("out", "lse", "dq", "dk", "dv", "delta")
EXACT = Plan.preset("exact")
REFERENCE_ROWS = {"numpy": 32, "xla": 128}  # query tile of golden and unfused calls: it changes no bit, and these were fastest
REFERENCES = 128  # entries of such a call at most: many cells share few
NO_SAY = frozenset(s for s in Site if s.stage == "backward") | RESCALES | {Site.DO, Site.LSE}  # in the output of unfused attention


class Kept:
    """Results of one process, up to a number of bytes; the least recently used go first, the newest always stays."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value of `size` bytes."""
        self.bytes += size - self._kept.pop(key, (None, 0))[1]
        self._kept[key] = value, size
        while self.bytes > self.limit and len(self._kept) > 1:
            self.bytes -= self._kept.popitem(last=False)[1][1]


_INPUTS, _GOLDEN, _UNFUSED = Kept(64 << 20), Kept(64 << 20), Kept(64 << 20)


def inputs_of(cell: Cell) -> Inputs:
    """The cell's tensors. Raises as `draw`."""
    key = _input_key(cell)
    found: Inputs | None = _INPUTS.get(key)
    if found is None:
        found = draw(cell)
        _INPUTS.put(key, found, sum(x.nbytes for x in (found.q, found.k, found.v, found.do) if x is not None))
    return found


def attention_of(cells: Sequence[Cell], inputs: Sequence[Inputs], size: int) -> Examined:
    """Cells of one group in one call, the last repeated up to `size` of them, with the ones of P and ALPHA counted."""
    plans, record = [c.plan for c in cells], Record(ones=(Site.P, Site.ALPHA))
    blocks = int(cells[0]["block_q"]), int(cells[0]["block_k"])
    return _examine(cells[0], inputs, plans, size, record, blocks, cells[0].inject)


def golden_of(cells: Sequence[Cell], inputs: Sequence[Inputs], size: int) -> list[Arrays]:
    """Unfused attention in binary64 throughout, on the cells' engine, by cell."""
    keys = [(c["engine"], _input_key(c), c["causal"]) for c in cells]
    return _shared(_GOLDEN, keys, cells, inputs, size, lambda chosen: [EXACT] * len(chosen))


def unfused_of(cells: Sequence[Cell], inputs: Sequence[Inputs], size: int) -> list[Arrays]:
    """The output of `unfused_plan`, without injections and backward, by cell."""
    plans = [unfused_plan(c.plan) for c in cells]
    keys = [(c["engine"], _input_key(c), c["causal"], plan) for c, plan in zip(cells, plans, strict=True)]
    forward = [replace(x, do=None) for x in inputs]
    return _shared(_UNFUSED, keys, cells, forward, size, lambda chosen: [plans[i] for i in chosen])


def unfused_plan(plan: Plan) -> Plan:
    """Softmax first, in the formats of a plan; what has no say in the output is set alike, so that more cells share it."""
    roundings = tuple(BINARY64 if site in NO_SAY else plan[site] for site in Site)
    accumulators = tuple(Accumulator(step=BINARY64) if site in NO_SAY else plan.accumulator(site) for site in PRODUCTS)
    return replace(
        plan, name="unfused", roundings=roundings, accumulators=accumulators, normalise_first=True, pv_into_o=False,
        key_order=KeyOrder.ASCENDING, row_sum_of=EXACT.row_sum_of, delta_from=EXACT.delta_from,
    )  # fmt: skip


def results_of(examined: Examined, count: int) -> Arrays:
    """The results of the first `count` batch entries; gradients and delta where there are any."""
    found = {name: getattr(examined, name) for name in RESULTS}
    return {name: np.ascontiguousarray(np.asarray(x)[:count]) for name, x in found.items() if x is not None}


def _input_key(cell: Cell) -> Hashable:
    """What a cell's tensors depend on."""
    drawn = cell["seed"] if cell["input"] in FAMILIES else cell.content
    return drawn, *(cell[name] for name in ("input", "T", "S", "N", "H", "backward"))


def _shared(
    kept: Kept, keys: Sequence[Hashable], cells: Sequence[Cell], inputs: Sequence[Inputs], size: int,
    plans: Callable[[list[int]], list[Plan]],
) -> list[Arrays]:  # fmt: skip
    """Each cell's results, by key: those that are kept already, and calls of 1 or `REFERENCES` entries (two executables) for all others."""
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    found = {key: kept.get(key) for key in first}
    missing = [i for key, i in first.items() if found[key] is None]
    entries = min(size, REFERENCES)
    for lo in range(0, len(missing), entries):
        some = missing[lo : lo + entries]
        count = 1 if len(missing) == 1 else entries
        blocks = REFERENCE_ROWS[str(cells[0]["engine"])], int(cells[0]["S"])
        seen = _examine(cells[0], [inputs[i] for i in some], plans(some), count, None, blocks)
        arrays = results_of(seen, len(some))
        for place, i in enumerate(some):
            found[keys[i]] = {name: x[place].copy() for name, x in arrays.items()}
            kept.put(keys[i], found[keys[i]], sum(x.nbytes for x in found[keys[i]].values()))
    return [found[key] for key in keys]


def _examine(
    cell: Cell, inputs: Sequence[Inputs], plans: Sequence[Plan], size: int, record: Record | None, blocks: tuple[int, int],
    inject: tuple[Injection, ...] = (),
) -> Examined:  # fmt: skip
    """One call of `examine` in the shapes of a cell. One plan is given as such where one is enough."""
    if cell["engine"] == "xla":
        keep_compilations()
    every = [*range(len(plans)), *[len(plans) - 1] * (size - len(plans))]
    joined = lambda role: _joined([getattr(inputs[i], role) for i in every])  # noqa: E731
    one = cell["engine"] == "numpy" or plans[0] is EXACT
    more: dict[str, Any] = {"engine": cell["engine"], "record": record, "inject": inject}
    return examine(
        joined("q"), joined("k"), joined("v"), None if inputs[0].do is None or not cell["backward"] else joined("do"),
        plan=plans[0] if one else [plans[i] for i in every], block_q=blocks[0], block_k=blocks[1],
        scale=inputs[0].scale, is_causal=bool(cell["causal"]), **more,
    )  # fmt: skip


def _joined(parts: list[np.ndarray]) -> Any:
    """Batch entries in one array. More than one are for xla: each tensor travels to the device once, however many share it."""
    if len(parts) == 1:
        return parts[0]
    import jax
    import jax.numpy as jnp

    own = {id(x): x for x in parts}
    places = {key: n for n, key in enumerate(own)}
    padded = [*own.values(), *[parts[-1]] * ((1 << (len(own) - 1).bit_length()) - len(own))]  # few shapes, few compilations
    with jax.enable_x64(True):
        return jnp.take(jnp.asarray(np.concatenate(padded)), np.array([places[id(x)] for x in parts]), axis=0)
