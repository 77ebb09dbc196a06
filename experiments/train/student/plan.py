"""What is rounded where, in words, and the table of numbers that comes of it.

    -> mx=mxfp8_e4m3                          the six operands in MX, everything else BF16, as the
                                              paper's emulator does
    site=backward -> mxfp8_e5m2:rceil
    layer=0-1 matrix=up site=W,X -> bf16
    site=norm -> fp32
    site=operands -> mxfp8_e4m3:stochastic
    -> beta=0

left     layer= numbers and ranges; matrix= up, down, gate or all; site= events, or names of several
         (`sites.GROUPS`). What is left out means all
right    FORMAT[:RULE][:MODE], a block format or a plain one; SITE=FORMAT, without site=;
         mx=FORMAT...; beta=0 or 1: whether LayerNorm's shift is trained
;        between changes, which apply in turn. Before the first, everything is FP32
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from roundscope.attention.grammar.changes import Change, changes
from roundscope.attention.grammar.ranges import numbers
from roundscope.emu.roundings.modes import BINARY32
from roundscope.experiments.train.mx.formats import (
    Formats,
    as_formats,
    kept,
    matrices_of,
    put_written,
    sites_named,
    written,
)
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.sites import MATRICES, Matrix, Site
from roundscope.tools.errors import UsageError

__all__ = ["Plan", "kept", "plan_of", "sites_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Formats):
    """The formats of every layer, matrix and event, and whether beta is trained.

    An event without a matrix has the formats of `up`.
    """

    beta: bool = True


@lru_cache(1024)
def plan_of(config: Config, texts: tuple[str, ...]) -> Plan:
    """Return the plan of some changes. Raises UsageError naming the text and the repair."""
    formats = np.full((config.depth, len(MATRICES), len(Site)), BINARY32, dtype=object)
    beta = True
    for text in texts:
        try:
            for change in changes(text, ("layer", "matrix", "site")):
                beta = _apply(formats, change, config, beta)
        except ValueError as error:
            raise UsageError(f"change '{text}': {error}") from None
    return Plan(formats=as_formats(formats), beta=beta)


def _apply(formats: np.ndarray, change: Change, config: Config, beta: bool) -> bool:
    layers: Sequence[int] = range(config.depth)
    if "layer" in change.where:
        layers = numbers(change.where["layer"])
        if max(layers) >= config.depth:
            raise ValueError(f"layer {max(layers)} of {config.depth}, counted from 0")
    matrices = matrices_of(change.where["matrix"], Matrix) if "matrix" in change.where else MATRICES
    switches = [_switch(value) for name, value in change.what if name == "beta"]
    rest = replace(change, what=tuple(pair for pair in change.what if pair[0] != "beta"))
    put_written(formats, layers, [MATRICES.index(m) for m in matrices], written(rest, config.block))
    return (beta, *switches)[-1]


def _switch(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError(f"beta={value}: give 1, trained, or 0, left as it is")
    return value == "1"
