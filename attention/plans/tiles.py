"""The choices of a plan for its tiles: their order, and what is kept between them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundscope.attention.plans.choices import KeyOrder, QueryOrder, RescaledSum
from roundscope.attention.plans.forward import KEPT_LANES
from roundscope.attention.plans.served import ServedChoices
from roundscope.events.choice import Moves, choice

if TYPE_CHECKING:
    from roundscope.attention.plans.record import PlanRecord


def _split(p: "PlanRecord") -> str:
    is_whole = p.normalise_first or p.lse_base2 or p.key_order is KeyOrder.MASKED_FIRST
    if p.split_tiles > 0 and not is_whole:
        return ""
    needs = "goes with a softmax in tiles, an L in base e, and key tiles that go up or down"
    return f"a number of key tiles, 0 for no split; it {needs}"


def _flushed(p: "PlanRecord") -> str:
    if p.flushed_tiles > 0 and not p.normalise_first and not p.split_tiles:
        return ""
    return (
        "a number of key tiles, 0 for never; it goes with a softmax in tiles, whose keys are not"
        " split"
    )


def _normalized_last(p: "PlanRecord") -> str:
    if not (p.pv_into_o or p.normalise_first or p.split_tiles or p.flushed_tiles):
        return ""
    return "needs pv_into_o=false, a softmax in tiles, keys that are not split, and O in one sum"


def _first_tile(p: "PlanRecord") -> str:
    if not p.kept_state:
        return "only a row sum that is kept in memory is another one there; it goes with kept_state"
    if p.row_sum in KEPT_LANES:
        return f"lanes are not a row sum yet, and row_sum={p.row_sum} has them; use row_sum=plain"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileChoices(ServedChoices):
    """The tiles of a head, and what is kept between them."""

    key_order: KeyOrder = choice(
        KeyOrder.ASCENDING,
        number=9,
        called="order of keys",
        doc="The order of the key tiles in the forward, one of `KeyOrder`: ascending (default),"
        " descending (FlashAttention-2 and -3), masked-first (flex).",
        kernels=(KeyOrder.ASCENDING, KeyOrder.DESCENDING),
    )
    query_order: QueryOrder = choice(
        QueryOrder.ASCENDING,
        number=21,
        called="order of queries",
        doc="The order of the tiles in dK, dV and dQ, one of `QueryOrder`: ascending (default),"
        " descending (FlashAttention-2), masked-first (flex), from-diagonal (FlashAttention-4) or"
        " wrapped (CUTLASS).",
        kernels=(QueryOrder.ASCENDING, QueryOrder.DESCENDING),
        moves=Moves(backward=4, follows=True),
    )
    split_tiles: int = choice(
        0,
        number=25,
        doc="With a number n above 0, the keys are split into parts of n key tiles. Each part has a"
        " softmax of its own, and the events SW and SO combine the results. 0 (default): no split.",
        source="FlashAttention-2 with few heads (fa2-split)",
        refused=_split,
        kernels=(0,),
        moves=Moves(forward=5, values=(0, 1)),
        words=("0", "1", "2"),
    )
    split_count: int = choice(
        0,
        number=54,
        doc="With split_tiles and a number n above 0, the parts of split_tiles key tiles are dealt"
        " in turn to n splits, so that part i belongs to split i mod n, and each split has one"
        " softmax. 0 (default): every part is a split. It has no effect without split_tiles.",
        source="cuDNN with one query (cudnn-split)",
        refused=lambda p: (
            "a number of splits, 0 for as many as there are parts" if p.split_count < 0 else ""
        ),
        kernels=(0,),
        words=("0", "2", "4"),
        example="split_tiles=1 split_count=4",
    )
    flushed_tiles: int = choice(
        0,
        number=26,
        doc="With a number n above 0, O is added to a second sum after every n key tiles and starts"
        " again at 0. Site OA rounds the second sum, to binary32 unless the plan gives OA another"
        " rounding. 0 (default): there is no second sum.",
        source="FlashAttention-3 in FP8 as vLLM runs it",
        refused=_flushed,
        kernels=(0,),
        programs=(0,),
        words=("0", "1", "2"),
    )
    normalized_last: bool = choice(
        False,
        number=53,
        doc="True divides by the row sum in the last key tile: the output is INV PV + IO, one"
        " multiply-add, where IO is (INV ALPHA) O of the earlier tiles. False (default) divides O"
        " after the last tile.",
        source="memory-efficient attention above 128 features, which keeps O in memory",
        refused=_normalized_last,
        kernels=(False,),
        programs=(False,),
        moves=Moves(forward=16),
        example="pv_into_o=false normalized_last=true",
    )
    kept_state: bool = choice(
        False,
        number=36,
        doc="True models code that stores m and l in memory between tiles, where the event MS"
        " rounds m and the event LANES rounds l. alpha then uses the stored m, 1 / l the stored l,"
        " and L both. Default False.",
        source="the released code of arXiv 2510.04212",
        moves=Moves(forward=11),
    )
    first_tile_apart: bool = choice(
        False,
        number=37,
        doc="With kept_state, True lets the first query tile divide by l without the rounding"
        " LANES, in heads that have more than one query tile. Default False.",
        source="the same code, compiled",
        refused=_first_tile,
        moves=Moves(forward=12),
        example="kept_state=true first_tile_apart=true",
    )
    rescaled_sum: RescaledSum = choice(
        RescaledSum.KEPT,
        number=56,
        called="maxima of a rescaled sum",
        doc="With kept_state, the maxima whose alpha multiplies l, one of `RescaledSum`: kept"
        " (default), first-tile or unrounded.",
        source="the same code, compiled, without a mask and with several tiles",
        refused=lambda p: (
            ""
            if p.kept_state
            else "only a maximum that is kept in memory is rounded there; it goes with kept_state"
        ),
        kernels=(RescaledSum.KEPT,),
        programs=(RescaledSum.KEPT,),
        moves=Moves(forward=17),
        example="kept_state=true rescaled_sum=first-tile",
    )
    backward_keys: int = choice(
        0,
        number=46,
        doc="The keys of a tile in the backward. 0 (default), or tiles of the forward (`block_k`)"
        " that are smaller: those of the forward.",
        source="cuDNN in FP8, with 256 in the forward and 128 in the backward, and"
        " FlashAttention-3, with 176 and 128",
        refused=lambda p: (
            "a number of keys, 0 for those of the forward; a softmax of whole rows has none"
            if p.backward_keys < 0 or p.normalise_first
            else ""
        ),
        kernels=(0,),
        words=("0", "64", "128"),
        moves=Moves(backward=15, values=(0, 64, 128)),
    )
