"""How the paper's arithmetic may be meant.

It does not say where its re-implementation rounds, so there are several emulations.
"""

from roundscope.experiments.papers.stability_2405_02803.scale import REAL
from roundscope.tools.sweep.conditions.cell import Value

Point = dict[str, Value]
FORMATS = ("bf16", "fp16", "fp32", "fp64")
TILED = ("ops:bf16", "sums:bf16", "qiu-yao", "fa2-bf16")
BASELINE = "baseline-bf16"


def emulation(name: str) -> Point:
    """Return the axes of an emulation.

    ops:FORMAT   every operation rounds to FORMAT, sums inside products are FP32
    sums:FORMAT  the steps of sums round to FORMAT too

    Any other name is a preset. In FP32 both are the preset fp32, in FP64 exact.
    """
    kind, _, form = name.partition(":")
    if kind not in ("ops", "sums"):
        return {"preset": name}
    if form in ("fp32", "fp64"):
        return {"preset": {"fp32": "fp32", "fp64": "exact"}[form]}
    return {"preset": "fp32", "format": form} if kind == "ops" else {"preset": f"all:{form}"}


def at(
    name: str, size: tuple[int, int], block_k: int, family: str = "gaussian", **more: Value
) -> Point:
    """Return a point: an emulation at (T, N) in tiles of 64 queries.

    Real tensors have their own N, S and H.
    """
    length, heads = size
    place: Point = {"T": length, "block_k": block_k, "input": family}
    return emulation(name) | place | ({} if family == REAL else {"N": heads}) | more
