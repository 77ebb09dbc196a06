"""The events and choices of a linear layer, x W^T + b; `operations.linear` has its equations."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from roundscope.emu.sums.aligned import GroupAlignment
from roundscope.events.choice import Moves, choice
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase


class Site(SiteBase):
    """The events of a linear layer; F is the number of features of a row, G that of its results."""

    X = "X", "x", Axes.RF, "inputs", 0
    W = "W", "weight", Axes.GF, "inputs", 1
    B = "B", "bias", Axes.F, "inputs", 2
    SX = "SX", "scale of x: of the tensor, of rows or of blocks", Axes.RF, "inputs", 15
    SW = "SW", "scale of the weight, likewise", Axes.GF, "inputs", 16
    Y = "Y", "sum_f X W, of all features, of a split or of a promoted part", Axes.RF, "forward", 3
    YX = "YX", "Y SX, of blocks", Axes.RF, "forward", 31
    YM = "YM", "YM + Y, YM + Y SA or YM + YX SW, over promoted parts", Axes.RF, "forward", 17
    YP = "YP", "Y or YM of a split, as it is stored", Axes.RF, "forward", 4
    YS = "YS", "sum of YP over the splits", Axes.RF, "forward", 5
    SA = "SA", "SX SW, of tensors or of blocks", Axes.RF, "forward", 18
    YW = "YW", "the sum times SW, of rows of the weight", Axes.RF, "forward", 19
    YA = "YA", "the sum times SA, or YW SX", Axes.RF, "forward", 20
    YB = "YB", "the sum so far + B", Axes.RF, "forward", 6
    OUT = "OUT", "the result as it is stored", Axes.RF, "forward", 7
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 8
    HG = "HG", "Hadamard matrix times DOUT, along the rows", Axes.RF, "backward", 21
    HX = "HX", "Hadamard matrix times x, along the rows", Axes.RF, "backward", 22
    GX = "GX", "DOUT, as DX reads it", Axes.RF, "backward", 23
    WX = "WX", "weight, as DX reads it", Axes.GF, "backward", 24
    GW = "GW", "DOUT or HG, as DW reads it", Axes.RF, "backward", 25
    XW = "XW", "x or HX, as DW reads it", Axes.RF, "backward", 26
    DX = "DX", "sum_g DOUT W, or sum_g GX WX", Axes.RF, "backward", 9
    DXP = "DXP", "DX of a part, as it is stored (splits_dx)", Axes.RF, "backward", 40
    DXS = "DXS", "sum of DXP over the parts", Axes.RF, "backward", 41
    SDX = "SDX", "product of the scales of the tensors in DX", Axes.RF, "backward", 27
    DXA = "DXA", "DX SDX, or DXS SDX", Axes.RF, "backward", 28
    DXO = "DXO", "DX, DXS or DXA as it is stored", Axes.RF, "backward", 10
    DW = "DW", "sum_r DOUT X, or sum_r GW XW", Axes.GF, "backward", 11
    DWP = "DWP", "DW of a part, as it is stored (splits_dw)", Axes.GF, "backward", 42
    DWS = "DWS", "sum of DWP over the parts", Axes.GF, "backward", 43
    SDW = "SDW", "product of the scales of the tensors in DW", Axes.RF, "backward", 29
    DWA = "DWA", "DW SDW, or DWS SDW", Axes.GF, "backward", 30
    DWO = "DWO", "DW, DWS or DWA as it is stored", Axes.GF, "backward", 12
    DB = "DB", "sum_r DOUT", Axes.F, "backward", 13
    DBO = "DBO", "DB as it is stored", Axes.F, "backward", 14


AGAIN = {Site.DX: (Site.GX, Site.WX), Site.DW: (Site.GW, Site.XW)}
"""The factors of the gradients that are quantized again."""


def _at_least_one(name: str) -> Callable[[Any], str]:
    return lambda plan: "give 1 or more" if getattr(plan, name) < 1 else ""


def _split_gradient(name: str, terms: str, result: str, *, number: int, backward: int) -> int:
    """Return the declaration of a field: in how many parts the sum of a gradient is split."""
    return choice(
        1,
        number=number,
        doc=f"In how many parts of neighboring {terms} the sum of {result} is split, as `splits`"
        " has it. Default 1.",
        source="split-K kernels",
        refused=_at_least_one(name),
        moves=Moves(backward=backward, values=(1, 2, 4, 8)),
        words=("1", "2", "3", "4", "8", "16"),
    )


def _no_matrix(plan: Any) -> str:
    n = plan.hadamard
    if n and (n < 4 or math.log(n, 4) % 1):
        return "give 0, or a power of 4, whose root divides exactly"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of a linear layer."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.Y, Site.YS, Site.DX, Site.DXS, Site.DW, Site.DWS, Site.DB)
    FACTORS: ClassVar = {
        Site.Y: (Site.X, Site.W),
        Site.YS: (Site.YP,),
        Site.DX: (Site.DOUT, Site.W),
        Site.DXS: (Site.DXP,),
        Site.DW: (Site.DOUT, Site.X),
        Site.DWS: (Site.DWP,),
        Site.DB: (Site.DOUT,),
    }
    BLOCK_AXIS: ClassVar = {
        Site.X: 1,
        Site.W: 1,
        Site.GX: 1,
        Site.WX: 0,
        Site.GW: 0,
        Site.XW: 0,
    }

    splits: int = choice(
        1,
        number=0,
        doc="In how many parts of neighboring features the sum is split; the parts have"
        " ceil(F / splits) features, the last one those that are left. Default 1: no split.",
        source="split-K kernels",
        refused=_at_least_one("splits"),
        moves=Moves(forward=1, values=(1, 2, 3, 4, 5, 6, 8, 16)),
        words=("1", "2", "3", "4", "8", "16"),
    )
    split_unit: int = choice(
        1,
        number=2,
        doc="The parts of a split sum are rounded up to a multiple of so many features, the tile of"
        " a kernel. Default 1.",
        source="split-K kernels of cuBLAS",
        refused=_at_least_one("split_unit"),
        words=("1", "64", "128"),
    )
    splits_dx: int = _split_gradient("splits_dx", "outputs", "dX", number=63, backward=1)
    splits_dw: int = _split_gradient("splits_dw", "rows", "dW", number=64, backward=2)
    bias_first: bool = choice(
        False,
        number=1,
        doc="True starts the sum from the bias, instead of adding it at the end (YB). Default"
        " False.",
        source="addmm with beta 1 on a CPU",
        moves=Moves(forward=2),
    )
    promoted: int = choice(
        0,
        number=3,
        doc="So many neighboring features are added on their own, and their sums one after the"
        " other (YM), within a split too. With scales of blocks, whose size this is, each sum is"
        " multiplied by its scales on the way, in one rounding. Default 0: not at all.",
        source="DeepSeek-V3, arXiv 2412.19437, 3.3.2, DeepGEMM, and cuBLAS without fast"
        " accumulation: 128",
        words=("0", "128", "256"),
    )
    scales_apart: bool = choice(
        False,
        number=6,
        doc="With scales of blocks, True multiplies a part by the scale of x (YX) and, in one"
        " rounding with the addition, by that of the weight. False multiplies it by their product"
        " (SA). Default False.",
        source="cuBLAS with scales of 128 features of both operands",
    )
    requantized: bool = choice(
        False,
        number=4,
        doc="True quantizes the operands of the gradients anew, from the same numbers as X, W and"
        " DOUT, along the axis that each product sums over (GX, WX, GW, XW). False reads X, W and"
        " DOUT as they are. Default False.",
        source="training in MX formats, arXiv 2506.08027; NVFP4, arXiv 2509.25149",
    )
    hadamard: int = choice(
        0,
        number=5,
        doc="Before GW and XW, every so many rows of DOUT and of x are multiplied by a Hadamard"
        " matrix (HG, HX), without random signs; missing rows are 0. It goes with `requantized`."
        " Default 0: no such matrix.",
        source="NVFP4 training, arXiv 2509.25149: 16",
        refused=_no_matrix,
        words=("0", "16", "64"),
    )

    def factors(self, site: SiteBase | str) -> tuple[Any, ...]:
        """Return the events whose results are multiplied at a site."""
        of = self._product(site)
        return AGAIN[of] if self.requantized and of in AGAIN else self.FACTORS[of]

    def core_reads(self, product: Any, factor: Any) -> bool:
        """Return whether the tensor core of a product may read a factor in blocks: those of its own
        elements, along the sum, with powers of two as scales, or with the scales of its own.
        """
        block = self.block(factor)
        kept = self.accumulator(product).alignment
        if block is None or kept is None:
            return False
        own = block.power_of_two
        if isinstance(kept, GroupAlignment):
            own = block.scale == kept.scale and block.size % kept.group == 0
        if not own:
            return False
        operand = kept.operands[self.factors(product).index(factor)]
        return block.element.format == operand and (product is Site.Y or self.requantized)
