"""What is rounded where, in words, and the table of numbers that comes of it.

    -> mx=mxfp8_e4m3                          the six operands in MX, everything else BF16, as the paper's emulator does
    site=backward -> mxfp8_e5m2:rceil         layer=0-1 matrix=up site=W,X -> bf16        site=norm -> fp32
    site=operands -> mxfp8_e4m3:stochastic    -> beta=0

left     layer= numbers and ranges; matrix= up, down, gate; site= events, or names of several (`sites.GROUPS`). Left out: all of them
right    FORMAT[:RULE][:MODE], a block format or a plain one; mx=FORMAT...; beta=0 or 1: whether LayerNorm's shift is trained
;        between changes, which apply in turn. Before the first, everything is FP32
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from emu.block import BLOCK_NAMED, BlockFormat, ScaleRule, block_format
from emu.block_traced import FIELDS, SEED, is_even, row_of
from emu.formats import unknown
from emu.rounding import BF16, BINARY32, Rounding, RoundingMode, mode_named, rounding
from experiments.errors import UsageError
from experiments.proxy.config import Config
from experiments.proxy.sites import GROUPS, INDEX, MATRICES, Matrix, Site
from experiments.train.interventions import numbers

Kept = BlockFormat | Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The formats of every layer, matrix and event (an event without a matrix: those of `up`), and whether beta is trained."""

    formats: tuple[tuple[tuple[Kept, ...], ...], ...]
    beta: bool = True

    @property
    def drawn(self) -> frozenset[Site]:
        """The events with a stochastic rounding somewhere."""
        return frozenset(site for row in self.formats for own in row for site in Site if _element(own[INDEX[site]]).mode is STOCHASTIC)

    @property
    def rounded(self) -> frozenset[Site]:
        """The events that are not FP32 everywhere."""
        return frozenset(site for row in self.formats for own in row for site in Site if own[INDEX[site]] != BINARY32)

    @property
    def even(self) -> bool:
        """Whether `round_even` serves."""
        return all(is_even(f) for row in self.formats for own in row for f in own)

    def table(self, seed: int = 0) -> np.ndarray:
        """As `round_row` reads it, (layers, matrices, events, FIELDS) int32; seed: of all stochastic roundings."""
        rows = [[[row_of(f) for f in own] for own in row] for row in self.formats]
        table = np.array(rows, np.int32).reshape(len(self.formats), len(MATRICES), len(Site), FIELDS)
        table[..., SEED] = np.uint32(seed).view(np.int32)
        return table


STOCHASTIC = RoundingMode.STOCHASTIC


def _element(f: Kept) -> Rounding:
    return f.element if isinstance(f, BlockFormat) else f


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
    return Plan(formats=tuple(tuple(map(tuple, row)) for row in formats), beta=beta)


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
            _set(formats, layers, matrices, tuple(INDEX.values()), BF16)
            _set(formats, layers, matrices, [INDEX[s] for s in GROUPS["operands"]], kept(value, config.block))
        elif given:
            raise ValueError(unknown("change", name, ("mx", "beta")))
        else:
            _set(formats, layers, matrices, sites, kept(word, config.block))
    if not right.split():
        raise ValueError("nothing stands to the right of '->'; give a format, mx=FORMAT or beta=0")
    return beta


def _switch(value: str) -> bool:
    if value not in ("0", "1"):
        raise ValueError(f"beta={value}: give 1, trained, or 0, left as it is")
    return value == "1"


def _set(formats: np.ndarray, layers: Sequence[int], matrices: Sequence[int], sites: Sequence[int], f: Kept) -> None:
    for index in ((layer, matrix, site) for layer in layers for matrix in matrices for site in sites):
        formats[index] = f


def _where(words: Sequence[str], config: Config) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    layers, matrices, sites = list(range(config.depth)), list(range(len(MATRICES))), list(INDEX.values())
    for word in words:
        name, _, value = word.partition("=")
        if name == "layer":
            layers = list(numbers(value))
            if max(layers) >= config.depth:
                raise ValueError(f"layer {max(layers)} of {config.depth}, counted from 0")
        elif name == "matrix":
            matrices = [MATRICES.index(_matrix(part)) for part in value.split(",")]
        elif name == "site":
            sites = [INDEX[s] for part in value.split(",") for s in sites_named(part)]
        else:
            raise ValueError(unknown("place", name, ("layer", "matrix", "site")))
    return layers, matrices, sites


def _matrix(name: str) -> Matrix:
    if name not in MATRICES:
        raise ValueError(unknown("matrix", name, MATRICES))
    return Matrix(name)


def sites_named(name: str) -> tuple[Site, ...]:
    """The events of a name or of a group's. Raises ValueError."""
    if name in GROUPS:
        return GROUPS[name]
    if name not in INDEX:
        raise ValueError(unknown("site", name, (*Site, *GROUPS)))
    return (next(site for site in Site if site == name),)


def kept(text: str, block: int) -> Kept:
    """FORMAT[:RULE][:MODE] as a format. Raises ValueError."""
    name, *words = text.split(":")
    rules = [w for w in words if w in list(ScaleRule)]
    modes = [mode_named(w) for w in words if w not in rules]
    if len(rules) > 1 or len(modes) > 1:
        raise ValueError(f"'{text}' has two scale rules or two modes")
    mode = modes[0] if modes else None
    if name not in BLOCK_NAMED:
        if rules:
            raise ValueError(f"'{text}': {name} has no scale; block formats are {' '.join(BLOCK_NAMED)}")
        found: Kept = rounding(name, mode)
    else:
        found = replace(block_format(name, mode, rule=rules[0] if rules else None), size=block)
    row_of(found)
    return found
