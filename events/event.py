"""How an event rounds: `Event`, a rounding of single numbers or of blocks, read from names."""

from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat, block_format
from roundscope.emu.blocks.names import is_of_blocks
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding

Event = Rounding | BlockFormat
"""How one site rounds: each number by itself, or in blocks that share a scale."""


def event_to(
    format: str | Rounding | BlockFormat,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | None = None,
    seed: int | None = None,
) -> Event:
    """Return how an event rounds to a format, as a `BlockFormat` or a `Rounding`.

    The result is a `BlockFormat` if `format` is one or the name of one.

    Args:
        format: A format by name, a rounding in words, a `Rounding`, or a `BlockFormat`.
        mode: The rounding mode; None keeps the mode of the format, by default ties-to-even.
        overflow: "inf", "nan" or "saturate"; None keeps the overflow of the format.
        seed: Seed of stochastic rounding; None keeps the seed of the format, by default 0.

    Raises:
        ValueError: A name is unknown, or the words contradict each other.
    """
    if isinstance(format, BlockFormat) or (
        isinstance(format, str) and is_of_blocks(format.partition(":")[0])
    ):
        return block_format(format, mode, overflow=overflow, seed=seed)
    return rounding(
        _named(format) if isinstance(format, str) else format, mode, overflow=overflow, seed=seed
    )


def _named(text: str) -> Rounding:
    """Return a rounding in words; the error for an unknown format lists the block formats too."""
    try:
        return rounding(text)
    except ValueError as error:
        if not str(error).startswith("unknown format"):
            raise
        raise ValueError(f"{error}; in blocks: {' '.join(BLOCK_NAMED)}") from None


def precision_of(event: Event) -> int:
    """Return how many significand bits the results of an event can have.

    A number in blocks is the product of its element, the scale of its block, and, where the format
    has one, the scale of the whole tensor.
    """
    if isinstance(event, Rounding):
        return event.format.precision
    scale = 0 if event.power_of_two else event.scale.precision
    return event.element.format.precision + scale + (24 if event.tensor else 0)
