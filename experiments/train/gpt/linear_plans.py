"""The roundings of a run's linear layers as data: `LinearPlans`.

They go beside the attention's `HeadPlans`. A run without a change of its linear layers has no table
and no events in its executables: its layers are `experiments.train.gpt.linear` alone. Before the
first change the events round as `Config.matmul` says, so that mx= and formats change what is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from roundscope.emu.roundings.modes import BINARY32, rounding
from roundscope.experiments.train import mx
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt.interventions import Change, changes_of, layers_of
from roundscope.experiments.train.gpt.linear_words import BLOCK, MATRICES
from roundscope.experiments.train.mx import (
    GROUPS,
    Formats,
    How,
    Kept,
    Site,
    as_formats,
    put,
    put_written,
    reseeded,
)
from roundscope.tools.errors import bad


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LinearPlans:
    """The formats of all linear layers as data, a pytree.

    how    static;  table: (layers, matrices, events, FIELDS) int32, may be mapped
    taps   None, or zeros whose gradient is what the products read (`layers.watched`): matrix ->
           x (layers, rows, in), g (layers, rows, out)
    """

    how: How = field(metadata={"static": True})
    table: Any
    taps: Any = None


def formats_of(config: Config, texts: Sequence[str] = ()) -> Formats | None:
    """Return the formats of every layer and matrix, by config.changes, then texts.

    None if no change is one of linear layers. Raises UsageError for a layer that does not exist,
    and for a width or context that blocks do not divide.
    """
    changes = [
        change
        for text in (*config.changes, *texts)
        for change in changes_of(text)
        if change.matrices is not None
    ]
    if not changes:
        return None
    for name in ("width", "context"):
        if getattr(config, name) % BLOCK:
            raise bad(
                name,
                getattr(config, name),
                f"'{changes[0].text}' needs a multiple of the block of {BLOCK} numbers",
            )
    formats = np.full((config.layers, len(MATRICES), len(Site)), BINARY32, dtype=object)
    if config.matmul != "fp32":
        operands = (*GROUPS["weights"], *GROUPS["activations"])
        put(formats, range(config.layers), range(len(MATRICES)), operands, rounding(config.matmul))
    for change in changes:
        _apply(formats, change, config)
    return Formats(formats=as_formats(formats))


def _apply(formats: np.ndarray, change: Change, config: Config) -> None:
    put_written(
        formats,
        layers_of(change, config),
        [MATRICES.index(m) for m in change.matrices or ()],
        change.written,
    )


def how_of(found: Sequence[Formats]) -> How:
    """Return what an executable needs that serves all of these formats."""
    return mx.how_of(BLOCK, found)


def by_arm(how: How, found: Sequence[Formats], seeds: Sequence[int]) -> LinearPlans:
    """Return the plans of arms, with a leading axis of arms; seeds: one for each arm."""
    return LinearPlans(how, np.stack([f.table(seed) for f, seed in zip(found, seeds, strict=True)]))


def linear_at(plans: LinearPlans | None, step: Any) -> LinearPlans | None:
    """Return the plans of one step: stochastic roundings draw from (seed, step, place).

    Plans without any are returned as they are.
    """
    if plans is None or not plans.how.drawn:
        return plans
    return replace(plans, table=reseeded(jax.numpy.asarray(plans.table), jax.numpy.asarray(step)))


def described(found: Formats | None) -> list[dict[str, Any]]:
    """Return the different formats as words by event, and where each holds, as plain data."""
    where: dict[tuple[Kept, ...], list[list[Any]]] = {}
    for layer, row in enumerate(found.formats if found is not None else ()):
        for matrix, own in zip(MATRICES, row, strict=True):
            where.setdefault(own, []).append([layer, str(matrix)])
    return [
        {"formats": {str(s): str(f) for s, f in zip(Site, own, strict=True)}, "layers_matrices": at}
        for own, at in where.items()
    ]
