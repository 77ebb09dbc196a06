"""`Cell`, one complete condition of a sweep, and `Result`, what was measured of it.

Both are sent between processes. Cells that differ only in a seed without effect are left out.
"""

import functools
import hashlib
import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from roundscope.attention.injection import Injection
from roundscope.attention.plans.plan import Plan
from roundscope.emu.numerics import NUMERICS

Value = str | int | float | bool

# every parameter of a cell that is no axis of one site, and its default; a cell, its key and its
# row have all of them, so that a new default makes other cells and changes none that is stored
DEFAULTS: dict[str, Value] = {
    "preset": "fa2",
    "format": "preset",
    "mode": "preset",
    "accumulator": "preset",
    "exp": "preset",
    "stabiliser": "preset",
    "key_order": "preset",
    "only": "all",
    "but": "none",
    "injection": "none",
    "unfused": False,
    "block_q": 64,
    "block_k": 64,
    "T": 256,
    "S": 256,
    "N": 4,
    "H": 64,
    "causal": False,
    "input": "gaussian",
    "seed": 0,
    "engine": "numpy",
    "backward": False,
}
# what a call has beside tensors and plan, and what a cell without it has: as the file says
# (`default`), which is nothing for a drawn input
OF_CALL = {
    "scale": "default",
    "alignment": "default",
    "window": "none",
    "softcap": "none",
    "mask": "none",
    "sinks": "none",
    "batch": "1",
}
# axes that a cell has only where they have an effect, so older cells keep their keys
OPTIONAL = ("delta_from", *OF_CALL)
PER_SITE = ("format", "mode", "accumulator")  # axes that may end in .SITE


def is_extra(name: str) -> bool:
    """Return whether a column is a parameter that a cell may lack: of OPTIONAL, or of one site."""
    return name in OPTIONAL or ("." in name and name.partition(".")[0] in PER_SITE)


def lacking(name: str) -> str:
    """Return in words what a cell does that lacks a parameter (`is_extra`)."""
    return OF_CALL.get(name, "preset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One condition of a sweep.

    parameters  all of DEFAULTS, then those given of OPTIONAL and of single sites, in that order
    plan        the plan that they make;  inject: the injections that they make
    content     the digest of the input file; empty for a drawn input
    note        what the file says of the call, and what was asked otherwise, in words
    key         the hash of everything that determines the numbers: parameters, plan, input file and
                the version of the numeric core
    """

    parameters: tuple[tuple[str, Value], ...]
    plan: Plan
    inject: tuple[Injection, ...] = ()
    content: str = ""
    note: str = field(default="", compare=False)
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep each parameter once for all cells that have it, and hash the whole once."""
        object.__setattr__(self, "parameters", tuple(_shared(*p) for p in self.parameters))
        object.__setattr__(self, "key", self._hash())

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the key out of what is sent: a worker has it from its own numeric core."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return functools.partial(Cell, **given), ()

    def __getitem__(self, name: str) -> Value:
        """Return the value of a parameter; None for one that this cell does not have."""
        # None is for parameters that the caller knows may be missing
        return dict(self.parameters).get(name)  # type: ignore[return-value]

    def _hash(self) -> str:
        parameters = dict(self.parameters)
        told: dict[str, Any] = {
            "content": self.content,
            "numerics": NUMERICS,
            "parameters": parameters,
        }
        if masks := [each.mask.digest for each in self.inject if each.mask is not None]:
            told["masks"] = masks  # a file of the same name may hold another one
        start = json.dumps(told, sort_keys=True)
        # the plan comes last in the order of names
        whole = f'{start[:-1]}, "plan": {_written(_This(self.plan))}}}'
        return hashlib.sha256(whole.encode()).hexdigest()[:32]


class _This:
    """A plan that equals itself alone.

    Plans that are equal may be written otherwise: 1 equals 1.0.
    """

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and self.plan is other.plan


@functools.lru_cache(maxsize=4096)
def _written(this: _This) -> str:
    """Return a plan as JSON, without its name. Most cells of a sweep share their plan."""
    plan = {name: value for name, value in this.plan.describe().items() if name != "name"}
    return json.dumps(plan, sort_keys=True)


@functools.lru_cache(maxsize=4096, typed=True)  # typed: True is no 1 here
def _shared(name: str, value: Value) -> tuple[str, Value]:
    """Return the parameter, the same object each time: a million cells have few different ones."""
    return name, value


def entries(cell: Cell) -> int:
    """Return how many batch entries the tensors of a cell have."""
    return int(cell["batch"] or 1)


def without_repeats(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells in their order, without those that repeat one but for a seed without effect.

    A file's tensors are the same for every seed, and so are results that no random number enters.
    Of such cells the first stays. A plan with a stochastic rounding and an injection of noise
    contain the seed, so they stay apart.
    """
    first: dict[Hashable, Cell] = {}
    for cell in cells:
        parameters = tuple(p for p in cell.parameters if p[0] != "seed")
        same = parameters, cell.plan, cell.inject, cell.content
        first.setdefault(same if cell.content else cell.key, cell)
    return list(first.values())


def left_out(count: int) -> str:
    """Return how many cells `without_repeats` left out, and why, in words."""
    cells = "1 cell is" if count == 1 else f"{count} cells are"
    return (
        f"{cells} left out: a file's tensors are the same for every seed, and nothing random enters"
        " there"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured of one cell, or why it failed.

    metrics   name -> number (tools.sweep.measuring.metrics explains each); NaN where there is
              none
    sites     site name -> {name -> number}
    error     the message of a cell that failed, else None
    seconds   spent on this cell (its share, where cells run together)
    parts     the same by kind of work
    device    where it was measured;  versions: with which packages
    """

    key: str
    metrics: dict[str, float] = field(default_factory=dict)
    sites: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
