"""What the rest of dS (`training.rest`) says of a run, from what its `extra` holds as "rest".

rest   |sum R|, sum |R| and sum |dW_Q| of layers and heads, in the steps after the warm-up
"""

import math
from typing import Any

from roundscope.tools.results.run import Run


def share(run: Run[Any]) -> float:
    """Return the share of the rest of dS in the gradient of W_Q: sum |R| / sum |dW_Q|.

    The sums are over looks and heads.
    """
    return _ratio(run, 1, 2)


def steady(run: Run[Any]) -> float:
    """Return |sum R| / sum |R|: how far R points one way."""
    return _ratio(run, 0, 1)


def drift(run: Run[Any]) -> float:
    """Return share x steady = |sum R| / sum |dW_Q|: what the rest adds to W_Q in one direction."""
    return _ratio(run, 0, 2)


def _ratio(run: Run[Any], over: int, under: int) -> float:
    heads = [head for layer in run.extra["rest"] for head in layer]
    total = sum(head[under] for head in heads)
    return sum(head[over] for head in heads) / total if total else math.nan
