"""`Cell`: one condition of a sweep, complete; `Result`: what was measured of it.

Both travel between processes.
"""

import hashlib
import json
from dataclasses import dataclass, field

from roundscope.attention.injection import Injection
from roundscope.attention.plans.plan import Plan
from roundscope.emu.numerics import NUMERICS

Value = str | int | float | bool

# every parameter of a cell that is no axis of one site, and its default
DEFAULTS: dict[str, Value] = {
    "preset": "qiu-yao",
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
OPTIONAL = (
    "delta_from",
    # axes of a whole plan that a cell has only where they are given, so that older cells keep their
    # keys
)
PER_SITE = ("format", "mode", "accumulator")  # axes that may end in .SITE


def is_extra(name: str) -> bool:
    """Whether a column is a parameter that a cell may lack: an axis of one site, or of OPTIONAL."""
    return name in OPTIONAL or ("." in name and name.partition(".")[0] in PER_SITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One condition. `parameters` are all of DEFAULTS, and of OPTIONAL and single sites the axes
    that were given, in that order; `plan` and `inject` are what they amount to; `content` is the
    digest of an input file, empty for a drawn input.
    """

    parameters: tuple[tuple[str, Value], ...]
    plan: Plan
    inject: tuple[Injection, ...] = ()
    content: str = ""

    def __getitem__(self, name: str) -> Value:
        """The value of a parameter; None for one that this cell does not have."""
        return dict(self.parameters).get(name)  # type: ignore[return-value]

    @property
    def key(self) -> str:
        """The hash of everything that determines the numbers: parameters, plan, input file, version
        of the numeric core.
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

    metrics   name -> number (experiments.sweep.measuring.metrics says what each is); NaN where
              there is none
    sites     site name -> {name -> number}
    seconds   spent on this cell (its share, where cells run together);  parts: the same by kind of
              work
    """

    key: str
    metrics: dict[str, float] = field(default_factory=dict)
    sites: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
