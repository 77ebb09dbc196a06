"""What is rounded where, in words, and the table of numbers that comes of it.

    -> mx=mxfp8_e4m3                          the six operands in MX, everything else BF16, as the paper's emulator does
    site=backward -> mxfp8_e5m2:rceil         layer=0-1 matrix=up site=W,X -> bf16        site=norm -> fp32
    site=operands -> mxfp8_e4m3:stochastic    -> beta=0

left     layer= numbers and ranges; matrix= up, down, gate; site= events, or names of several (`sites.GROUPS`). Left out: all of them
right    FORMAT[:RULE][:MODE], a block format or a plain one; mx=FORMAT...; beta=0 or 1: whether LayerNorm's shift is trained
;        between changes, which apply in turn. Before the first, everything is FP32
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from roundscope.emu.formats.format import unknown
from roundscope.emu.rounding.modes import BINARY32
from roundscope.experiments.errors import UsageError
from roundscope.experiments.train.gpt.interventions import numbers
from roundscope.experiments.train.mx.formats import (
    Formats,
    as_formats,
    kept,
    put,
    put_mx,
    sites_named,
)
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.sites import MATRICES, Matrix, Site

__all__ = ["Plan", "kept", "plan_of", "sites_named"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Formats):
    """The formats of every layer, matrix and event (an event without a matrix: those of `up`), and whether beta is trained."""

    beta: bool = True


@lru_cache(1024)
def plan_of(config: Config, texts: tuple[str, ...]) -> Plan:
    """The plan of some changes. Raises UsageError naming the text and the repair."""
    formats = np.full((config.depth, len(MATRICES), len(Site)), BINARY32, dtype=object)
    beta = True
    for text in texts:
        for part in (p.strip() for p in text.split(";") if p.strip()):
            try:
                beta = _apply(formats, part, config, beta)
            except ValueError as error:
                raise UsageError(f"change '{part}': {error}") from None
    return Plan(formats=as_formats(formats), beta=beta)


def _apply(formats: np.ndarray, text: str, config: Config, beta: bool) -> bool:
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError("has no '->'; write  site=W -> mxfp8_e4m3")
    layers, matrices, sites = _where(left.split(), config)
    for word in right.split():
        name, given, value = word.partition("=")
        if given and name == "beta":
            beta = _switch(value)
        elif given and name == "mx":
            put_mx(formats, layers, matrices, kept(value, config.block))
        elif given:
            raise ValueError(unknown("change", name, ("mx", "beta")))
        else:
            put(formats, layers, matrices, sites, kept(word, config.block))
    if not right.split():
        raise ValueError("nothing stands to the right of '->'; give a format, mx=FORMAT or beta=0")
    return beta


def _switch(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError(f"beta={value}: give 1, trained, or 0, left as it is")
    return value == "1"


def _where(words: Sequence[str], config: Config) -> tuple[Sequence[int], Sequence[int], Sequence[Site]]:
    layers, matrices, sites = list(range(config.depth)), list(range(len(MATRICES))), list(Site)
    for word in words:
        name, _, value = word.partition("=")
        if name == "layer":
            layers = list(numbers(value))
            if max(layers) >= config.depth:
                raise ValueError(f"layer {max(layers)} of {config.depth}, counted from 0")
        elif name == "matrix":
            matrices = [MATRICES.index(_matrix(part)) for part in value.split(",")]
        elif name == "site":
            sites = [s for part in value.split(",") for s in sites_named(part)]
        else:
            raise ValueError(unknown("place", name, ("layer", "matrix", "site")))
    return layers, matrices, sites


def _matrix(name: str) -> Matrix:
    if name not in MATRICES:
        raise ValueError(unknown("matrix", name, MATRICES))
    return Matrix(name)
