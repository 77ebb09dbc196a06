"""The changes of a run that are of its linear layers, in words.

    -> mx=mxfp8_e4m3:rceil                        the six operands of every product in MX, the layers' other events in BF16
    layer=0-1 matrix=fc1 site=operands -> mxfp8_e4m3:rceil
    layer=0,3 matrix=all -> bf16                  matrix=all site=X -> mxfp8_e5m2         site=gradients -> mxfp8_e5m2

left     matrix= qkv, proj, fc1, fc2 or all; site= events, or names of several (`experiments.train.mx.sites`). Left out: all of them
right    FORMAT[:RULE][:MODE], a block format or a plain one; mx=FORMAT...

A change is of linear layers if it has matrix= or mx=, or if a name after site= is none of attention's. X, forward and backward are names
of both: without matrix= they are attention's. Without a change of linear layers they round as the config's matmul says; the first change
starts from just that. LN events of the first norm go by the formats of qkv, those of the second and the activation function's by those of
fc1. The embedding, the last norm and the output matrix have no events.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from roundscope.attention.sites import Site as AttentionSite
from roundscope.emu.formats.format import unknown
from roundscope.experiments.train.mx.formats import kept, sites_named
from roundscope.experiments.train.mx.sites import GROUPS, Site

BLOCK = 32  # numbers of a block, as in the MX formats
MX, ALL = "mx", "all"
NAMES = frozenset((*Site, *GROUPS)) - {ALL}  # `all` alone does not say of what


class Matrix(StrEnum):
    """The matrices of a layer, in the order in which they are met."""

    QKV = "qkv"
    PROJ = "proj"
    FC1 = "fc1"
    FC2 = "fc2"


MATRICES = tuple(Matrix)


def is_linear(where: Mapping[str, str], words: Sequence[str], stages: Sequence[str]) -> bool:
    """Whether a change, by its places and what stands to the right, is of linear layers; stages: attention's names of several events."""
    taken = {name.lower() for name in (*AttentionSite, *stages)}
    own = any(name in NAMES and name.lower() not in taken for name in where.get("site", "").split(","))
    return "matrix" in where or own or any(word.startswith(f"{MX}=") for word in words)


def matrices_of(text: str) -> tuple[Matrix, ...]:
    """Those of qkv,fc1 or all. Raises ValueError."""
    found: list[Matrix] = []
    for name in text.split(","):
        if name != ALL and name not in MATRICES:
            raise ValueError(unknown("matrix", name, (*MATRICES, ALL)))
        found += MATRICES if name == ALL else [Matrix(name)]
    return tuple(found)


def sites_of(text: str) -> tuple[Site, ...]:
    """The events of a list of names. Raises ValueError."""
    return tuple(site for name in text.split(",") for site in sites_named(name))


def what(word: str, has_sites: bool) -> tuple[str, str]:
    """("format" or "mx", FORMAT...). Raises ValueError for anything else."""
    name, given, value = word.partition("=")
    if given and name != MX:
        raise ValueError(f"{name}= is not of linear layers; those take FORMAT[:RULE][:MODE] or {MX}=FORMAT; put ; between two changes")
    if given and has_sites:
        raise ValueError(f"{MX}= is of all events; leave site= out, or write the format alone")
    kept(value if given else word, BLOCK)
    return (MX, value) if given else ("format", word)
