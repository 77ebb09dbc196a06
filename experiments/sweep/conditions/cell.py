"""`Cell`, one complete condition of a sweep, and `Result`, what was measured of it.

Both are sent between processes.
"""

import hashlib
import json
from dataclasses import dataclass, field

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
PRESET_BEFORE = "qiu-yao"  # the default until version 0.2
# axes of a whole plan: a cell has them only where they are given, so older cells keep their keys
OPTIONAL = ("delta_from",)
PER_SITE = ("format", "mode", "accumulator")  # axes that may end in .SITE


def is_extra(name: str) -> bool:
    """Return whether a column is a parameter that a cell may lack: of OPTIONAL, or of one site."""
    return name in OPTIONAL or ("." in name and name.partition(".")[0] in PER_SITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One condition of a sweep.

    parameters  all of DEFAULTS, then those given of OPTIONAL and of single sites, in that order
    plan        the plan that they make;  inject: the injections that they make
    content     the digest of the input file; empty for a drawn input
    """

    parameters: tuple[tuple[str, Value], ...]
    plan: Plan
    inject: tuple[Injection, ...] = ()
    content: str = ""

    def __getitem__(self, name: str) -> Value:
        """Return the value of a parameter; None for one that this cell does not have."""
        # None is for parameters that the caller knows may be missing
        return dict(self.parameters).get(name)  # type: ignore[return-value]

    @property
    def key(self) -> str:
        """The hash of everything that determines the numbers.

        That is parameters, plan, input file and the version of the numeric core.
        """
        plan = {k: v for k, v in self.plan.describe().items() if k != "name"}
        whole = {
            "parameters": dict(self.parameters),
            "plan": plan,
            "content": self.content,
            "numerics": NUMERICS,
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was measured of one cell, or why it failed.

    metrics   name -> number (experiments.sweep.measuring.metrics explains each); NaN where there is
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
