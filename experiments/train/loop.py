"""The loop of all trainings: steps one after the other, fetched in blocks.

So the device never waits for the host. `blocks` is the loop of whatever has a step; `batches_of`,
`drawing` and `replayed` are for the GPT's settings.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from roundscope.experiments.train.gpt import data
from roundscope.experiments.train.groups import groups, together
from roundscope.experiments.train.settings import Settings

EVERY = 25  # steps of a block, after which results are fetched from the device
Batches = dict[int, np.ndarray]  # seed of arms -> tokens


class Block(NamedTuple):
    """Steps that are done.

    done           the number of steps after it
    losses, norms  (steps of the block, arms) as the device has them, at the weights before each
                   step
    look           what `look(done)` returned, on the host
    """

    done: int
    losses: np.ndarray
    norms: np.ndarray
    look: Any


def blocks(
    advance: Callable[[int], tuple[Any, Any]],
    first: int,
    last: int,
    *,
    every: int = EVERY,
    look: Callable[[int], Any] = lambda done: None,
    ahead: bool = True,
) -> Iterator[Block]:
    """Do steps `first` to `last` (not included) and yield them in blocks, in their order.

    advance  does a step by its number and returns (losses (arms,), gradient norms (arms,)), on the
             device
    every    the number of steps of a block
    look     called after the last step of a block, on states as they are then
    ahead    whether a block is sent before the one before it is fetched; False where the caller may
             stop early, or changes what follows
    """
    waiting: list[tuple[int, list[tuple[Any, Any]], Any]] = []
    for start in range(first, last, every):
        done = min(start + every, last)
        waiting.append((done, [advance(number) for number in range(start, done)], look(done)))
        if not ahead or len(waiting) > 1:
            yield _fetched(*waiting.pop(0))
    if waiting:
        yield _fetched(*waiting.pop())


def _fetched(done: int, seen: list[tuple[Any, Any]], look: Any) -> Block:
    seen, look = jax.device_get((seen, look))
    losses, norms = (np.stack(column) for column in zip(*seen, strict=True))
    return Block(done, losses, norms, look)


def batches_of(settings: Settings) -> dict[int, data.Batches]:
    """Return seed of arms -> batches."""
    c = settings.config
    return {
        seed: data.batches(c, c.data_seed + seed)
        for seed in dict.fromkeys(arm.seed for arm in settings.arms)
    }


def drawing(settings: Settings) -> Callable[[int], Batches]:
    """Return a function that returns the batches of a step by its number."""
    batches = batches_of(settings)
    return lambda number: {seed: own.batch(number) for seed, own in batches.items()}


def replayed(settings: Settings, state: Any, first: int, last: int) -> Any:
    """Return the state of all arms at step `last`, from that at `first`, by the steps between."""
    own, drawn = groups(settings, state), drawing(settings)
    for number in range(first, last):
        tokens = drawn(number)
        for group in own:
            group.advance(number, tokens)
    return together(own)
