"""`Config`, and `Arm`: one run among several on the same rows, and what it rounds where, in words.

    -> mx=mxfp8_e4m3                          the six operands in MX, everything else BF16, as the
                                              paper's emulator does
    site=backward -> mxfp8_e5m2:rceil
    layer=0-1 matrix=up site=W,X -> bf16
    site=norm -> fp32
    site=operands -> mxfp8_e4m3:stochastic
    -> beta=0

left     layer= numbers and ranges; matrix= up, down, gate or all; site= events, or names of several
         (`mx.GROUPS`). What is left out means all
right    FORMAT[:RULE][:MODE], a block format or a plain one; SITE=FORMAT, without site=;
         mx=FORMAT...; beta=0 or 1: whether LayerNorm's shift is trained
;        between changes, which apply in turn. Before the first, everything is FP32
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np

from roundscope.attention.grammar.changes import Change, changes
from roundscope.attention.grammar.ranges import numbers
from roundscope.emu.blocks.format import block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import BINARY32
from roundscope.experiments.train import mx
from roundscope.experiments.train.config import Config as Optimiser
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.results.run import key_of

PHI = ("relu", "gelu", "swiglu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of a student that learns a teacher, as in arXiv 2506.20752.

    A_k = A_{k-1} + W2_k phi(W1_k LN(A_{k-1})), with a mean squared error.

    depth, width, ratio   layers, features d, hidden features / d
    phi                   relu, gelu (by erf) or swiglu: silu(gate) times up, a third matrix
    norm                  whether the student has LayerNorm (scale gamma and shift beta); the
                          teacher never has
    batch, steps          fresh rows x ~ N(0, I) in every step, none twice
    noise                 standard deviation of the noise of the targets
    lr, min_lr, warmup    peak and end of the cosine, steps of linear warm-up; Adam with beta1,
                          beta2, no decay, no clipping
    block                 numbers of a block
    seed                  that of the first arm's weights, teacher and rows
    measure_every         steps between gradients measured against FP32 at the same weights and
                          rows; 0: never

    Raises UsageError naming the field, its value and the repair.
    """

    depth: int = 4
    width: int = 512
    ratio: int = 4
    phi: str = "gelu"
    norm: bool = True
    batch: int = 2048
    steps: int = 9000
    noise: float = 1e-3
    lr: float = 6e-4
    min_lr: float = 6e-4
    warmup: int = 0
    beta1: float = 0.9
    beta2: float = 0.999
    block: int = 32
    seed: int = 0
    measure_every: int = 0

    def __post_init__(self) -> None:
        for name in ("depth", "width", "ratio", "batch", "steps", "block"):
            if getattr(self, name) < 1:
                raise bad(name, getattr(self, name), "give a whole number of at least 1")
        for name in ("width", "batch"):
            if getattr(self, name) % self.block:
                repair = f"must be a multiple of the block of {self.block} numbers"
                raise bad(name, getattr(self, name), repair)
        if self.phi not in PHI:
            raise bad("phi", self.phi, f"use {', '.join(PHI[:-1])} or {PHI[-1]}")
        if not 0.0 <= self.noise < float("inf"):
            raise bad("noise", self.noise, "a standard deviation is 0 or more")
        if self.measure_every < 0:
            raise bad("measure_every", self.measure_every, "give 0 for never, or a number of steps")
        if not 0 <= self.seed < 2**32:
            raise bad("seed", self.seed, "a seed is a whole number from 0 to 2^32 - 1")
        _ = self.optimiser

    @property
    def hidden(self) -> int:
        """The number of features between the two matrices."""
        return self.width * self.ratio

    @property
    def optimiser(self) -> Optimiser:
        """The optimizer's numbers as the trainer's Adam and rate read them; checked there."""
        names = ("lr", "min_lr", "warmup", "steps", "beta1", "beta2")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        end = max(self.steps, self.warmup, 1)
        return Optimiser(**own, decay_steps=end, clip=None, weight_decay=0.0)


EXACT, UNCHANGED = "fp32", "as it was"
# pairs of (step, text): the text holds from this step on, after all texts of earlier steps
Changes = tuple[tuple[int, str], ...]


class Matrix(StrEnum):
    """The matrices of a layer: A + DOWN phi(UP LN(A)); only SwiGLU has GATE."""

    UP = "up"
    DOWN = "down"
    GATE = "gate"


MATRICES = tuple(Matrix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(mx.Formats):
    """The formats of every layer, matrix and event, and whether beta is trained.

    An event without a matrix has the formats of `up`.
    """

    beta: bool = True


@lru_cache(1024)
def plan_of(config: Config, texts: tuple[str, ...]) -> Plan:
    """Return the plan of some changes. Raises UsageError naming the text and the repair."""
    formats = np.full((config.depth, len(MATRICES), len(mx.Site)), BINARY32, dtype=object)
    beta = True
    for text in texts:
        try:
            for change in changes(text, ("layer", "matrix", "site")):
                beta = _apply(formats, change, config, beta)
        except ValueError as error:
            raise UsageError(f"change '{text}': {error}") from None
    return Plan(formats=mx.as_formats(formats), beta=beta)


def _apply(formats: np.ndarray, change: Change, config: Config, beta: bool) -> bool:
    layers: Sequence[int] = range(config.depth)
    if "layer" in change.where:
        layers = numbers(change.where["layer"])
        if max(layers) >= config.depth:
            raise ValueError(f"layer {max(layers)} of {config.depth}, counted from 0")
    named = mx.matrices_of(change.where.get("matrix", mx.ALL), Matrix)
    switches = [value for name, value in change.what if name == "beta"]
    if wrong := next((value for value in switches if value not in ("0", "1")), None):
        raise ValueError(f"beta={wrong}: give 1, trained, or 0, left as it is")
    rest = replace(change, what=tuple(pair for pair in change.what if pair[0] != "beta"))
    matrices = [MATRICES.index(m) for m in named]
    mx.put_written(formats, layers, matrices, mx.written(rest, config.block))
    return switches[-1] == "1" if switches else beta


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run.

    changes   as `plan_of` reads them, each from its step on
    lr        the peak;  seed: added to the config's
    """

    name: str
    changes: Changes = ()
    lr: float
    seed: int = 0

    def texts(self, step: int) -> tuple[str, ...]:
        """Return the changes that hold at a step."""
        return tuple(text for first, text in self.changes if first <= step)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The steps from which something changes, 0 among them, in ascending order."""
        return tuple(sorted({0, *(first for first, _ in self.changes)}))


def arm_of(config: Config, text: str, first: int = 0, before: Changes = ()) -> Arm:
    """Return the arm of NAME=CHANGE[;CHANGE], after `before`, from `first` on. UsageError."""
    name, given, rest = text.partition("=")
    if not given or not name.strip() or "->" in name:
        raise bad("--arm", text, "write NAME=CHANGE, such as  floor='-> mx=mxfp8_e4m3'")
    parts = [part.strip() for part in rest.split(";") if part.strip()]
    rates = [part for part in parts if part.startswith("lr=")]
    changes = tuple((first, part) for part in parts if part not in rates)
    lr = _rate(rates[-1]) if rates else config.lr
    arm = Arm(name=name.strip(), changes=(*before, *changes), lr=lr)
    plans_of(config, arm)
    return arm


def _rate(text: str) -> float:
    try:
        rate = float(text.removeprefix("lr="))
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < float("inf"):
        raise UsageError(f"{text}: give a positive number, such as lr=1e-3")
    return rate


def plans_of(config: Config, arm: Arm) -> list[Plan]:
    """Return the plans of an arm, in the order of their steps. Raises UsageError as `plan_of`."""
    return [plan_of(config, arm.texts(step)) for step in arm.firsts]


def how_of(config: Config, arms: Sequence[Arm]) -> mx.How:
    """Return what all arms need of an executable."""
    return mx.how_of(config.block, [plan for arm in arms for plan in plans_of(config, arm)])


def groups(config: Config, arms: Sequence[Arm]) -> list[list[Arm]]:
    """Return the arms by executable: the same events round and draw random bits, at all times."""
    needs: dict[Changes, mx.How] = {}  # arms that differ in seed and rate have one plan
    found: dict[mx.How, list[Arm]] = {}
    for arm in arms:
        if arm.changes not in needs:
            needs[arm.changes] = how_of(config, [arm])
        found.setdefault(needs[arm.changes], []).append(arm)
    return list(found.values())


def key(config: Config, arm: Arm) -> str:
    """Return a result's name, by all that decides it but versions, device and the arm's name."""
    own = {k: v for k, v in asdict(arm).items() if k != "name"}
    return key_of(asdict(config) | {"lr": 1.0, "min_lr": config.min_lr / config.lr}, own)


def formats() -> dict[str, str]:
    """Return MX formats for all six operands, one mixture of two, and BF16, as changes by name."""
    return {
        "bf16": "-> bf16",
        "e4m3": "-> mx=mxfp8_e4m3",
        "e5m2": "-> mx=mxfp8_e5m2",
        "e4m3 / e5m2": "-> mx=mxfp8_e4m3; site=backward -> mxfp8_e5m2",
        "e2m3": "-> mx=mxfp6_e2m3",
        "e3m2": "-> mx=mxfp6_e3m2",
        "fp4": "-> mx=mxfp4",
    }


def interventions(mx: str) -> dict[str, str]:
    """Return the arms of figure 4 of arXiv 2506.20752, and some that separate their changes."""
    e = block_format(mx).element.format
    bump = {"bump": f"site=operands -> {mx}:bump"} if e.max_finite == 1.75 * 2.0**e.emax else {}
    return {
        UNCHANGED: "",
        "all FP32": "-> fp32",
        **bump,
        "RCEIL": f"site=operands -> {mx}:{ScaleRule.RCEIL}",
        "LN in FP32": "site=norm -> fp32",
        "beta frozen": "-> beta=0",
        "LN in FP32, beta frozen": "site=norm -> fp32 beta=0",
        "activations BF16 forward": "site=X -> bf16",
        "activations BF16": "site=activations -> bf16",
        "backward BF16": "site=backward -> bf16",
        "phi in FP32": "site=phi -> fp32",
        "weights BF16": "site=weights -> bf16",
        "activations BF16, LN in FP32": "site=activations -> bf16; site=norm -> fp32",
        "stochastic": f"site=operands -> {mx}:stochastic",
        "ties to away": f"site=operands -> {mx}:ties-to-away",
    }
