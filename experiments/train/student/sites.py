"""`Matrix`: the product of a layer of the proxy that an event belongs to.

The events themselves are those of `experiments.train.mx.sites`.
"""

from enum import StrEnum

from roundscope.experiments.train.mx.sites import BACKWARD, FORWARD, GROUPS, INDEX, Site

__all__ = ["BACKWARD", "FORWARD", "GROUPS", "INDEX", "MATRICES", "Matrix", "Site"]


class Matrix(StrEnum):
    """The matrices of a layer: A + DOWN phi(UP LN(A)); only SwiGLU has GATE."""

    UP = "up"
    DOWN = "down"
    GATE = "gate"


MATRICES = tuple(Matrix)
