"""`Draws`: blocks of numbers drawn alike, and the statistics of their rounding, draw by draw."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from roundscope.emu import BLOCK_NAMED, block_stats, round_to
from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.blocks.stats import BlockStats
from roundscope.experiments.framework.estimates import Estimate, Values, mean

DRAWS, BLOCKS = 8, 12_000  # independent draws, and blocks of 32 in each


@dataclass(frozen=True, slots=True)
class Draws:
    """Numbers centre + spread N(0, 1), rounded to BF16 first if `bf16`."""

    spread: float = 1.0
    centre: float = 0.0
    bf16: bool = False

    def each(self, f: str | BlockFormat, read: Callable[[BlockStats], float]) -> Values:
        """Return a number of every draw under a format."""
        f = f if isinstance(f, BlockFormat) else BLOCK_NAMED[f]
        return {seed: read(stats(self, f, seed)) for seed in range(DRAWS)}

    def of(self, f: str | BlockFormat, read: Callable[[BlockStats], float]) -> Estimate:
        """Return the mean of that number, with its 95 % interval."""
        return mean(self.each(f, read))


@lru_cache(256)
def stats(draws: Draws, f: BlockFormat, seed: int) -> BlockStats:
    """Return the statistics of one draw."""
    x = (
        np.random.Generator(np.random.Philox(key=seed))
        .standard_normal((BLOCKS, 32))
        .astype(np.float32)
    )
    x = np.float32(draws.centre) + np.float32(draws.spread) * x
    return block_stats(np.asarray(round_to(x, "bf16"), np.float32) if draws.bf16 else x, f)


NORMAL, AS_BF16 = Draws(), Draws(bf16=True)
