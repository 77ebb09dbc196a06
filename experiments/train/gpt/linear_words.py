"""The changes of a run's linear layers, in words.

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

from enum import StrEnum

from roundscope.attention.grammar.changes import STAGES, Change
from roundscope.attention.sites import Site as AttentionSite
from roundscope.experiments.train.mx import ALL, GROUPS, MX, Site

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


def is_linear(change: Change) -> bool:
    """Return whether a change is one of linear layers.

    Its places and what is right of the arrow decide that.
    """
    names = {*change.where.get("site", "").split(","), *(name for name, _ in change.what)}
    return "matrix" in change.where or not names.isdisjoint((*NAMES, MX))
