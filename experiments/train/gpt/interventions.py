"""The changes of a run in words (docs/reference/grammar.md), and the plans that they make.

Of attention:

    layer=1 head=7 -> O=fp32
    layer=0:3,5 site=PV,O -> bf16:stochastic
    backward=fp32
    -> plan=fp32 ; site=OD -> e8m3:toward-zero
    layer=1 head=0:2 -> offset=16:bias
    -> offset=-1:noise:all

left     layer= head= numbers and ranges; site= names of events, or inputs, forward, backward. What
         is left out means all
right    a change of `attention.grammar`; plan=PRESET keeps the sums that the config says; or
         offset=C:bias|noise|fixed[:all]|none, no edit of a plan (`offset`): the output that delta
         reads is off by C x half a BF16 ulp of V, in rows with several P = 1 or in all; it stays,
         whatever else changes, until offset=none. C = 0 keeps the executable

There is one plan per layer and head; those of two layers may differ in everything, so
`layer=1 -> plan=fa2-bf16` is a plan for that layer. Of the linear layers, which leave the
attention's plans alone:

    -> mx=mxfp8_e4m3:rceil               the six operands of every product in MX, the layers'
                                         other events in BF16
    layer=0-1 matrix=fc1 site=operands -> mxfp8_e4m3:rceil
    layer=0,3 matrix=all -> bf16
    matrix=all site=X -> mxfp8_e5m2
    site=gradients -> mxfp8_e5m2

left     matrix= qkv, proj, fc1, fc2 or all; site= events, or names of several
         (`experiments.train.mx`). What is left out means all
right    FORMAT[:RULE][:MODE], a block format or a plain one; mx=FORMAT...; SITE=FORMAT without
         site=, as in  matrix=fc1 -> operands=mxfp4

A change is one of linear layers if it has matrix= or mx=, or if a name of an event is none of
attention's. X, forward and backward are names of both: without matrix= they are attention's.
Without a change of linear layers they round as the config's matmul says; the first change starts
from just that. LN events of the first norm have the formats of qkv, those of the second and the
activation function's those of fc1. The embedding, the last norm and the output matrix have no
events.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

from roundscope.attention.grammar import changes as grammar
from roundscope.attention.grammar.changes import STAGES
from roundscope.attention.grammar.ranges import numbers
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import native
from roundscope.attention.plans.traced import common_structure
from roundscope.attention.sites import Site as AttentionSite
from roundscope.experiments.train.config import JAX, Config
from roundscope.experiments.train.gpt.plans import Plans, base
from roundscope.experiments.train.mx import ALL, GROUPS, MX, Site, Written, matrices_of, written
from roundscope.tools.errors import UsageError, bad

BLOCK = 32  # numbers of a block, as in the MX formats
TAKEN = {name.lower() for name in (*AttentionSite, *STAGES)}
# names that belong to linear layers only; `all` alone does not say of what
NAMES = frozenset(n for n in (*Site, *GROUPS) if n.lower() not in TAKEN) - {ALL}


class Matrix(StrEnum):
    """The matrices of a layer, in the order in which they are used."""

    QKV = "qkv"
    PROJ = "proj"
    FC1 = "fc1"
    FC2 = "fc2"


MATRICES = tuple(Matrix)


def is_linear(change: grammar.Change) -> bool:
    """Return whether a change is one of linear layers, by its places and what is changed."""
    names = {*change.where.get("site", "").split(","), *(name for name, _ in change.what)}
    return "matrix" in change.where or not names.isdisjoint((*NAMES, MX))


OFFSET = "offset"  # the one change that is no edit of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: where (None: everywhere), and what in turn.

    text               the text of the change
    layers, heads      where it holds
    edits, offsets     edits of attention's plan, and errors of the output that delta reads
    matrices, written  places and formats of a change of linear layers; matrices None: of attention
    """

    text: str
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None = None
    edits: tuple[grammar.Edit, ...] = ()
    offsets: tuple[str, ...] = ()
    matrices: tuple[Matrix, ...] | None = None
    written: Written = ()


@functools.lru_cache(maxsize=4096)
def changes_of(text: str) -> tuple[Change, ...]:
    """Return the changes that a text asks for. Raises UsageError naming the text and the repair."""
    try:
        return tuple(_change(change) for change in grammar.changes(text))
    except ValueError as error:
        raise UsageError(f"change '{text}': {error}") from None


def plans_of(config: Config, texts: Sequence[str] = (), seed: int = 0) -> Plans | None:
    """Return the plan of every layer and head; None for plan = "jax", which takes no change.

    It is the config's preset with its sums, changed by config.changes, then by texts. seed: that of
    all stochastic roundings.

    Raises UsageError for a layer or head that does not exist, an event that a plan lacks, and plans
    of two structures in a layer: what changes the program (stabiliser, delta_from, accumulators,
    stochastic rounding, some presets) must be the same in all heads of a layer.
    """
    texts = (*config.changes, *texts)
    changes = [change for text in texts for change in changes_of(text) if change.matrices is None]
    if config.plan == JAX and not changes:
        return None
    plans = [[base(config)] * config.heads for _ in range(config.layers)]
    for change in changes:
        there = places(change, config)
        try:
            for (layer, head), edit in product(there, change.edits):
                plan = grammar.edited(plans[layer][head], edit)
                to_native = edit.kind == "plan" and config.sums == "native"
                plans[layer][head] = native(plan) if to_native else plan
        except ValueError as error:
            raise UsageError(f"change '{change.text}': {error}") from None
    try:
        for row in plans:
            common_structure(row)
    except ValueError:
        repair = (
            "only formats and modes other than stochastic may differ between heads of a layer; for"
            " stabiliser, delta_from, accumulator, stochastic rounding and presets that differ in"
            " these leave head= out"
        )
        raise bad("changes", "; ".join(texts), repair) from None
    return tuple(tuple(plan.seeded(seed) for plan in row) for row in plans)


def described(plans: Plans | None) -> list[dict[str, Any]]:
    """Return the different plans and where each holds, as plain data."""
    where: dict[Plan, list[list[int]]] = {}
    for layer, row in enumerate(plans or ()):
        for head, plan in enumerate(row):
            where.setdefault(plan, []).append([layer, head])
    return [{"plan": plan.describe(), "layers_heads": places} for plan, places in where.items()]


def places(change: Change, config: Config) -> Iterator[tuple[int, int]]:
    """Return the (layer, head) that a change is for; UsageError for one that does not exist."""
    return product(layers_of(change, config), _there(change, "head", change.heads, config.heads))


def layers_of(change: Change, config: Config) -> Sequence[int]:
    """Return the layers that a change is for. Raises UsageError for one that does not exist."""
    return _there(change, "layer", change.layers, config.layers)


def _there(change: Change, name: str, chosen: tuple[int, ...] | None, size: int) -> Sequence[int]:
    if chosen and max(chosen) >= size:
        there = f"the model has {size}, numbered from 0 to {size - 1}"
        raise UsageError(f"change '{change.text}': {name}={max(chosen)}: {there}")
    return chosen or range(size)


def _change(change: grammar.Change) -> Change:
    where, text = change.where, change.text
    layers, heads = (numbers(where[name]) if name in where else None for name in ("layer", "head"))
    if is_linear(change):
        if heads is not None:
            raise ValueError("linear layers have no heads; leave head= out")
        matrices = matrices_of(where["matrix"], Matrix) if "matrix" in where else MATRICES
        return Change(text=text, layers=layers, matrices=matrices, written=written(change, BLOCK))
    offsets = tuple(value for name, value in change.what if name == OFFSET)
    if offsets and "site" in where:
        raise ValueError("offset= is of what delta reads; leave site= out")
    rest = tuple(pair for pair in change.what if pair[0] != OFFSET)
    edits = grammar.edits_of(replace(change, what=rest), (OFFSET, MX))
    return Change(text=text, layers=layers, heads=heads, edits=edits, offsets=offsets)
