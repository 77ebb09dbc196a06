"""The contents of a benchmark's picture, and numbers as it and its title have them."""

from collections.abc import Sequence
from typing import NamedTuple

Bar = tuple[str, str, float, bool]  # group, name, ratio of speeds, whether it is ours


class Drawing(NamedTuple):
    """The contents of a picture: its bars, the sentence above them and the label of their axis."""

    bars: Sequence[Bar]
    title: str
    axis: str


def number(value: float) -> str:
    """Return a number with two digits, and without a power of ten that a reader has to work out."""
    return f"{value:.2g}" if value < 99.5 else f"{value:,.0f}"


def span(values: Sequence[float]) -> str:
    """Return the least and the largest as words of a title, or one number if both are the same."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"
