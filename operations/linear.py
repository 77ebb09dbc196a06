"""The linear layer, x W^T + b.

Implementations differ in how the products are added, in whether the features are split between
parts of a GPU (split-K), in the type of the sums of these parts, and in where the bias is added.
Operands may be in blocks along the features, such as MXFP8.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BINARY32, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published


class Site(SiteBase):
    """The events of a linear layer; F is the number of features of a row, G that of its results."""

    X = "X", "x", Axes.RF, "inputs", 0
    W = "W", "weight", Axes.GF, "inputs", 1
    B = "B", "bias", Axes.F, "inputs", 2
    Y = "Y", "sum_f X W, of all features or of a split", Axes.RF, "forward", 3
    YP = "YP", "Y of a split, as it is stored", Axes.RF, "forward", 4
    YS = "YS", "sum of YP over the splits", Axes.RF, "forward", 5
    YB = "YB", "Y + B, or YS + B", Axes.RF, "forward", 6
    OUT = "OUT", "the result as it is stored", Axes.RF, "forward", 7
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 8
    DX = "DX", "sum_g DOUT W", Axes.RF, "backward", 9
    DXO = "DXO", "DX as it is stored", Axes.RF, "backward", 10
    DW = "DW", "sum_r DOUT X", Axes.GF, "backward", 11
    DWO = "DWO", "DW as it is stored", Axes.GF, "backward", 12
    DB = "DB", "sum_r DOUT", Axes.F, "backward", 13
    DBO = "DBO", "DB as it is stored", Axes.F, "backward", 14


def _too_few(plan: Any) -> str:
    return "give 1 or more" if plan.splits < 1 else ""


def _no_unit(plan: Any) -> str:
    return "give 1 or more" if plan.split_unit < 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of a linear layer."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.Y, Site.YS, Site.DX, Site.DW, Site.DB)
    FACTORS: ClassVar = {
        Site.Y: (Site.X, Site.W),
        Site.YS: (Site.YP,),
        Site.DX: (Site.DOUT, Site.W),
        Site.DW: (Site.DOUT, Site.X),
        Site.DB: (Site.DOUT,),
    }
    BLOCK_AXIS: ClassVar = {Site.X: 1, Site.W: 1}

    splits: int = choice(
        1,
        number=0,
        doc="In how many parts of neighboring features the sum is split; the parts have"
        " ceil(F / splits) features, the last one those that are left. Default 1: no split.",
        source="split-K kernels",
        refused=_too_few,
        moves=Moves(forward=1, values=(1, 2, 3, 4, 5, 6, 8, 16)),
        words=("1", "2", "3", "4", "8", "16"),
    )
    split_unit: int = choice(
        1,
        number=2,
        doc="The parts of a split sum are rounded up to a multiple of so many features, the tile of"
        " a kernel. Default 1.",
        source="split-K kernels of cuBLAS",
        refused=_no_unit,
        words=("1", "64", "128"),
    )
    bias_first: bool = choice(
        False,
        number=1,
        doc="True starts the sum from the bias, instead of adding it at the end (YB). Default"
        " False.",
        source="addmm with beta 1 on a CPU",
        moves=Moves(forward=2),
    )


def forward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    x: Array,
    weight: Array,
    bias: Array | None,
) -> tuple[Array, ...]:
    """Return (out,), for x (R, F), weight (G, F) and bias (G,) or None; and behind it X, W and the
    bias, for `backward`.
    """
    xp, splits = at.ops.xp, at.plan.splits
    x, w = at(Site.X, x), at.ops.transposed(at(Site.W, weight))
    b = None if bias is None else xp.broadcast_to(at(Site.B, bias[None, :]), (len(x), w.shape[1]))
    first = b if b is not None and at.plan.bias_first else None
    if splits == 1:
        y = at.product(Site.Y, x, w, first)
    else:
        size = -(-x.shape[1] // (splits * at.plan.split_unit)) * at.plan.split_unit
        parts = []
        for lo in range(0, x.shape[1], size):
            own = at.product(Site.Y, x[:, lo : lo + size], w[lo : lo + size], None if lo else first)
            parts.append(at(Site.YP, own).reshape(-1))
        total, exact = at.sum(Site.YS, xp.stack(parts, axis=1), xp.ones((len(parts), 1)))
        shape = (x.shape[0], w.shape[1])
        y = at(Site.YS, total.reshape(shape), None if exact is None else exact.reshape(shape))
    if b is not None and first is None:
        y = at(Site.YB, y + b)
    return at(Site.OUT, y), x, w, b


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array, Array | None],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradients of x, of the weight and of the bias."""
    x, w, b = saved
    dout = at(Site.DOUT, gradients[0])
    turned = at.ops.transposed(dout)
    found = {
        "x": at(Site.DXO, at.product(Site.DX, dout, at.ops.transposed(w))),
        "weight": at(Site.DWO, at.product(Site.DW, turned, x)),
    }
    if b is not None:
        db = at.product(Site.DB, turned, at.ops.xp.ones((x.shape[0], 1)))
        found["bias"] = at(Site.DBO, db[:, 0])
    return found


IN_TYPE = (Site.X, Site.W, Site.B, Site.OUT, Site.DOUT, Site.DXO, Site.DWO, Site.DBO)


def torch_cpu() -> Plan:
    """Return torch.nn.functional.linear on a CPU with AVX-512: products added in binary32 in chunks
    of 192, which are added to the bias, and one cast (MKL's and oneDNN's products; torch 2.13).

    Equal in every bit in FP32 where a sum has up to 192 products or 384 and more, which was
    compared for 64 rows of 64 to 2048 features, and for autograd's gradients of 384 rows of 64 and
    1024 features. Between these MKL takes halves (`Y.sum=chunked128` for 256 features), which this
    plan does not. In BF16 and FP16 the order is another one, which is not known: at least 99.9 % of
    the numbers are equal in BF16, and 99.5 % in FP16 (tests/operations/test_linear.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *IN_TYPE)
    for site in (Site.Y, Site.DX, Site.DW):
        plan = plan.adding(site, Accumulator(order=Order.CHUNKED, chunk=192))
    plan = plan.adding(Site.DB, Accumulator(order=Order.LEVELS))
    return replace(plan, name="torch-cpu", bias_first=True)


def hopper() -> Plan:
    """Return products of BF16 on the tensor cores of Hopper, cast once: torch's linear with cuBLAS
    13 on an H100, in the order of `emu.sums.tensor_cores`, with the bias added before the cast.
    Where cuBLAS splits the features, `splits` says in how many parts, of whole tiles of 64, whose
    sums are added in binary32.

    Equal in every bit in BF16 and FP16, in 72 calls of 1 to 512 rows and 64 to 4096 features
    (tests/operations/test_on_a_gpu.py), and so are corners of the gradients of 12.
    """
    plan = in_bf16(Plan, "hopper", *IN_TYPE)
    for site in (Site.Y, Site.DX, Site.DW):
        plan = plan.adding(site, Accumulator.tensor_core("hopper", "bf16"))
    return replace(plan, name="hopper", split_unit=64)


def hopper_e4m3() -> Plan:
    """Return products of E4M3 on the tensor cores of Hopper, in binary32: torch._scaled_mm with
    fast accumulation before its scales: the product of two scales of tensors in binary32
    multiplies the result, and scales of rows multiply it one by one, the weight's first. Without
    fast accumulation, `splits` is the number of 128 features that there are (DeepGEMM's promotion,
    and cuBLAS's): each 128 products are added on their own, and their sums in binary32.

    Equal in every bit in 72 calls of torch 2.11 on an H100, with scales of the tensors and of rows
    (tests/operations/test_on_a_gpu.py).
    """
    plan = Plan.everywhere("hopper-e4m3", BINARY32)
    plan = plan.rounded(dict.fromkeys((Site.X, Site.W), rounding("e4m3fn")))
    plan = plan.adding(Site.Y, Accumulator.tensor_core("hopper", "e4m3fn"))
    return replace(plan, name="hopper-e4m3", split_unit=128)


LINEAR = Operation(
    name="linear",
    number=2,
    plan=Plan,
    inputs=(
        Value("x", Site.X),
        Value("weight", Site.W, Shape.SHARED),
        Value("bias", Site.B, Shape.SHARED, optional=True),
    ),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    by_result=("weight", "bias"),
    published=published(Plan, torch_cpu, hopper, hopper_e4m3),
)
