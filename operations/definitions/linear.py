"""The linear layer, x W^T + b.

Implementations differ in how the products are added, in whether the features are split between
parts of a GPU (split-K), in the type of the sums of these parts, and in where scales and the bias
come in. Operands may be in blocks along the axis that a product sums over, such as MXFP8; the two
products of the backward sum over other axes, and may quantize their operands anew.

`x_scale` and `weight_scale` multiply the sums of products, as those of torch._scaled_mm do. Each is
one number; one for each row of x or of the weight, (R,) and (G,); or, with `promoted`, one for each
promoted part too, (R, parts) and (G, parts), where a row of scales may stand for several rows, such
as 128 outputs. Such a call has no gradients.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from roundscope.emu.backends.ops import Array
from roundscope.emu.blocks.format import BLOCK_NAMED, block_format
from roundscope.emu.roundings.modes import BINARY32, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.odd import sum_to_round
from roundscope.events.hook import Events
from roundscope.events.operand import Operand
from roundscope.events.place import Rows
from roundscope.operations.definitions.linear_plan import AGAIN, Plan, Site
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published

ALL = slice(None)


class Scales(NamedTuple):
    """The scales of both operands as matrices: one number, a column (rows, 1), or one number for
    each row and each promoted part (rows, parts). None where an operand has none.
    """

    x: Array | None
    w: Array | None

    def of_blocks(self, promoted: int) -> bool:
        """Return whether the scales are those of promoted parts: one differs along the features,
        or, with one part, one alone is of rows.
        """
        own = [s for s in self if s is not None]
        along = any(s.shape[1] > 1 for s in own)
        return along or (promoted > 0 and len({s.size == 1 for s in own}) == 2)


class Saved(NamedTuple):
    """What the backward reads: the numbers that were given, and what the forward made of them."""

    given: tuple[Array, Array]
    factors: tuple[Operand, Operand]
    bias: Array | None
    has_scales: bool


def forward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    x: Array,
    weight: Array,
    bias: Array | None,
    x_scale: Array | None = None,
    weight_scale: Array | None = None,
) -> tuple[Any, ...]:
    """Return (out,), for x (R, F), weight (G, F) and bias (G,) or None, and scales that multiply
    the sums; and behind it a `Saved`.

    Raises:
        ValueError: A scale does not fit its operand or the plan.
    """
    x_own, w_own = at.operand(Site.X, x), at.operand(Site.W, weight)
    scales = Scales(
        _scale(at, "x", Site.SX, x_scale, x_own, len(x)),
        _scale(at, "weight", Site.SW, weight_scale, w_own, len(weight)),
    )
    if scales.of_blocks(at.plan.promoted):
        parts = -(-x.shape[1] // (at.plan.promoted or 1))
        for name, own in zip(("x_scale", "weight_scale"), scales, strict=True):
            if own is None or own.shape[1] not in (1, parts) or not at.plan.promoted:
                raise ValueError(
                    f"{name}: scales of blocks need promoted=, the size of a block, here"
                    f" {at.plan.promoted}, and both scales: (rows, {parts}) each"
                )
    w = w_own.turned(at.ops)
    shape = (len(x), len(weight))
    b = None if bias is None else at.ops.xp.broadcast_to(at(Site.B, bias[None, :]), shape)
    first = b if b is not None and at.plan.bias_first else None
    y = _scaled(at, _in_splits(at, x_own, w, first, scales), scales)
    if b is not None and first is None:
        y = at(Site.YB, y + b)
    given = x_scale is not None or weight_scale is not None
    return at(Site.OUT, y), Saved((x, weight), (x_own, w), b, given)


def _scale(
    at: Events[Plan, Rows], name: str, site: Site, given: Array | None, own: Operand, rows: int
) -> Array | None:
    """Return the scale of an operand as a matrix, after its event: that given or that of its block
    format.
    """
    if given is None:
        return None if own.scale is None else at(site, own.scale)
    if own.scale is not None:
        raise ValueError(f"{name}_scale: {at.plan.event(name[0])} has a scale of its own")
    scale = given.reshape(1, 1) if given.ndim == 0 else given
    scale = scale[:, None] if scale.ndim == 1 else scale.reshape(-1, scale.shape[-1])
    if scale.size == 1:
        return at(site, scale)
    return at(site, at.ops.xp.repeat(scale, -(-rows // len(scale)), axis=0)[:rows])


def _in_splits(
    at: Events[Plan, Rows], x: Operand, w: Operand, first: Array | None, scales: Scales
) -> Array:
    """Return x w, whose features may be split between parts that are added at the end."""
    plan, features = at.plan, x.numbers.shape[1]
    if plan.splits == 1:
        return _in_parts(at, x, w, range(features), first, scales)
    parts = [
        _in_parts(at, x, w, own, None if own.start else first, scales)
        for own in _split(plan, features, plan.splits)
    ]
    return _added(at, Site.YP, Site.YS, parts)


def _split(plan: Plan, count: int, splits: int) -> list[range]:
    """Return the parts of a sum of so many products."""
    size = -(-count // (splits * plan.split_unit)) * plan.split_unit
    return [range(lo, min(lo + size, count)) for lo in range(0, count, size)]


def _added(at: Events[Plan, Rows], stored: Site, whole: Site, parts: list[Array]) -> Array:
    """Return the sum of the parts of a split, each of which is stored before."""
    xp, shape = at.ops.xp, parts[0].shape
    columns = [at(stored, part).reshape(-1) for part in parts]
    total, exact = at.sum(whole, xp.stack(columns, axis=1), xp.ones((len(parts), 1)))
    return at(whole, total.reshape(shape), None if exact is None else exact.reshape(shape))


def _in_parts(
    at: Events[Plan, Rows],
    x: Operand,
    w: Operand,
    features: range,
    first: Array | None,
    scales: Scales,
) -> Array:
    """Return the sum over some features, whose promoted parts are added one after the other."""
    size, total = at.plan.promoted or max(len(features), 1), None
    for lo in features[::size] or (0,):
        part = slice(lo, min(lo + size, features.stop))
        y = at.product(
            Site.Y, x.part(ALL, part), w.part(part), None if total is not None else first
        )
        if not at.plan.promoted:
            return y
        if scales.of_blocks(at.plan.promoted):
            y = _times_scales(at, y, scales, lo // size)
        precision = at.plan[Site.YM].format.precision
        total = at(Site.YM, y if total is None else sum_to_round(at.ops, precision, total, y))
    return total


def _times_scales(at: Events[Plan, Rows], y: Array, scales: Scales, part: int) -> Array:
    """Return the sum of a promoted part times its scales, whose last product is exact."""
    by_x, by_w = (s[:, part : part + 1] if s.shape[1] > 1 else s for s in scales if s is not None)
    by_w = at.ops.transposed(by_w)
    if at.plan.scales_apart:
        return at.ops.multiply(at(Site.YX, at.ops.multiply(y, by_x)), by_w)
    return at.ops.multiply(y, at(Site.SA, at.ops.multiply(by_x, by_w)))


def _scaled(at: Events[Plan, Rows], y: Array, scales: Scales) -> Array:
    """Return a sum times the scales of tensors or of rows."""
    if scales.of_blocks(at.plan.promoted) or (scales.x is None and scales.w is None):
        return y
    one = at.ops.xp.ones((1, 1))
    by_x, by_w = (one if s is None else s for s in scales)
    by_w = at.ops.transposed(by_w)
    if by_x.size == by_w.size == 1:
        return at(Site.YA, at.ops.multiply(y, at(Site.SA, by_x * by_w)))
    return at(Site.YA, at.ops.multiply(at(Site.YW, at.ops.multiply(y, by_w)), by_x))


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Saved],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradients of x, of the weight and of the bias.

    Raises:
        ValueError: The call has scales, whose gradients are not defined here.
    """
    (x, weight), (x_own, w), b, has_scales = saved[0]
    if has_scales:
        raise ValueError("gradients: of a call with x_scale or weight_scale there are none")
    dout = at(Site.DOUT, gradients[0])
    if at.plan.requantized:
        xs, gs = _turned_by_hadamard(at, x, dout)
        of_x = at.operand(Site.GX, dout), at.operand(Site.WX, weight)
        of_w = at.operand(Site.GW, gs).turned(at.ops), at.operand(Site.XW, xs)
    else:
        of_x = Operand(dout), w.turned(at.ops)
        of_w = Operand(at.ops.transposed(dout)), x_own
    of_dx = Site.DX, Site.DXP, Site.DXS, Site.SDX, Site.DXA
    of_dw = Site.DW, Site.DWP, Site.DWS, Site.SDW, Site.DWA
    dx = _gradient(at, of_dx, at.plan.splits_dx, *of_x)
    dw = _gradient(at, of_dw, at.plan.splits_dw, *of_w)
    found = {"x": at(Site.DXO, dx), "weight": at(Site.DWO, dw)}
    if b is not None:
        db = at.product(Site.DB, at.ops.transposed(dout), at.ops.xp.ones((x.shape[0], 1)))
        found["bias"] = at(Site.DBO, db[:, 0])
    return found


def _gradient(
    at: Events[Plan, Rows], sites: tuple[Site, ...], splits: int, a: Operand, b: Operand
) -> Array:
    """Return a product of the backward, times the scales of its operands' tensors.

    sites: of the sum, of a part of it, of the sum of the parts, and of the scale and its product.
    """
    product, stored, whole, scale, scaled = sites
    if splits == 1:
        y = at.product(product, a, b)
    else:
        bounds = [slice(own.start, own.stop) for own in _split(at.plan, len(b.numbers), splits)]
        parts = [at.product(product, a.part(ALL, own), b.part(own)) for own in bounds]
        y = _added(at, stored, whole, parts)
    own = [s for s in (a.scale, b.scale) if s is not None]
    if not own:
        return y
    both = own[0] * own[1] if len(own) == 2 else own[0]
    return at(scaled, at.ops.multiply(y, at(scale, both)))


def _turned_by_hadamard(at: Events[Plan, Rows], x: Array, dout: Array) -> tuple[Array, Array]:
    """Return x and the gradient, after the Hadamard matrix of the plan if it has one."""
    n = at.plan.hadamard
    if not n:
        return x, dout
    return at(Site.HX, _hadamard(at.ops.xp, x, n)), at(Site.HG, _hadamard(at.ops.xp, dout, n))


def _hadamard(xp: Any, x: Array, n: int) -> Array:
    """Return H x for every n rows of x, where H is Sylvester's matrix over the root of n."""
    groups = -(-x.shape[0] // n)
    y = xp.concatenate([x, xp.zeros((groups * n - x.shape[0], x.shape[1]))])
    half = 1
    while half < n:
        pairs = y.reshape(-1, 2, half, x.shape[1])
        y = xp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half *= 2
    return y.reshape(groups * n, x.shape[1]) * float(n) ** -0.5


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
    (tests/operations/test_on_a_gpu.py), and so are corners of the gradients of 28, of which two
    have splits_dw=3 (test_gradients_on_a_gpu.py).
    """
    plan = in_bf16(Plan, "hopper", *IN_TYPE)
    for site in (Site.Y, Site.DX, Site.DW):
        plan = plan.adding(site, Accumulator.tensor_core("hopper", "bf16"))
    return replace(plan, name="hopper", split_unit=64)


def hopper_e4m3() -> Plan:
    """Return products of E4M3 on the tensor cores of Hopper, in binary32: torch._scaled_mm with
    fast accumulation. The product of two scales of tensors in binary32 multiplies the result, and
    scales of rows multiply it one by one, the weight's first. `promoted=128` is the call without
    fast accumulation: each 128 products are added on their own, and their sums in binary32.

    Equal in every bit in 72 calls of torch 2.11 on an H100 (tests/operations/test_on_a_gpu.py) and
    272 on an H200, both with cuBLAS 13.1 (tests/operations/test_scaled_mm.py): E4M3 with E5M2
    (`Y.sum=hopper:e4m3fn*e5m2`), results of 8 to 32 bits, biases, features in up to 25 parts, NaN
    and infinity, and scales of 1 x 128 and 128 x 128 numbers (`promoted=128`, DeepGEMM's promotion
    after four instructions; with 1 x 128 of both operands `scales_apart=true`, which DeepSeek-V3's
    loop in Triton is too). DeepGEMM itself was not compared.
    """
    plan = Plan.everywhere("hopper-e4m3", BINARY32)
    plan = plan.rounded(dict.fromkeys((Site.X, Site.W), rounding("e4m3fn")))
    plan = plan.adding(Site.Y, Accumulator.tensor_core("hopper", "e4m3fn"))
    return replace(plan, name="hopper-e4m3", split_unit=128)


OPERANDS = (Site.X, Site.W, *AGAIN[Site.DX], *AGAIN[Site.DW])
SUMS = (Site.Y, Site.DX, Site.DW)


def mxfp8() -> Plan:
    """Return training in MXFP8 (arXiv 2506.08027): x, weight and gradient in blocks of 32 numbers
    of E4M3, whose scale is rounded up (RCEIL). Each tensor is quantized twice from BF16, along the
    two axes over which products sum: x and the weight along the features for the forward, the
    gradient and the weight along the outputs for dX, and the gradient and x along the rows for dW.
    Sums are those of Blackwell's tensor cores.

    Not compared with hardware: these products run on Blackwell alone. The sums are those of MMA-Sim
    2.1.1 in every bit, as those of `mxfp4`. With `chunked192` in place of
    the tensor cores, result and gradients equal torchao 0.18's emulated training on a CPU in every
    bit (tests/checks/against_torchao.py).
    """
    plan = in_bf16(Plan, "mxfp8", *IN_TYPE)
    plan = plan.rounded(dict.fromkeys(OPERANDS, block_format("mxfp8_e4m3", rule="rceil")))
    for site in SUMS:
        plan = plan.adding(site, Accumulator.tensor_core("blackwell", "e4m3fn"))
    return replace(plan, name="mxfp8", requantized=True)


def mxfp4() -> Plan:
    """Return the operands of `mxfp8` in MXFP4 (OCP MX 1.0): blocks of 32 numbers of E2M1, with the
    scales of the standard (FLOOR). Sums are those of Blackwell's instructions for FP4.

    Not compared with hardware; in every bit the sums of MMA-Sim 2.1.1 (arXiv 2511.10909), a model
    of it, in 4,608 cases (tests/checks/against_mma_sim.py). With `chunked192` equal to torchao's
    training, as `mxfp8` is.
    """
    plan = in_bf16(Plan, "mxfp4", *IN_TYPE)
    plan = plan.rounded(dict.fromkeys(OPERANDS, BLOCK_NAMED["mxfp4"]))
    for site in SUMS:
        plan = plan.adding(site, Accumulator.tensor_core("blackwell", "mxfp4"))
    return replace(plan, name="mxfp4", requantized=True)


def nvfp4() -> Plan:
    """Return the operands of `mxfp8` in NVFP4: blocks of 16 numbers of E2M1 with E4M3 scales, and
    one binary32 scale of each tensor, whose product multiplies the sum (SA, SDX, SDW). Sums are
    those of Blackwell's instructions for FP4.

    Not compared with hardware; in every bit the sums of MMA-Sim 2.1.1, as those of `mxfp4`.
    """
    plan = mxfp4().rounded(dict.fromkeys(OPERANDS, BLOCK_NAMED["nvfp4"]))
    for site in SUMS:
        plan = plan.adding(site, Accumulator.tensor_core("blackwell", "nvfp4"))
    return replace(plan, name="nvfp4")


def nvfp4_training() -> Plan:
    """Return NVIDIA's recipe of training in NVFP4 (arXiv 2509.25149): `nvfp4` with weights in
    tiles of 16 x 16, so that forward and backward read the same ones, gradients rounded
    stochastically, and a Hadamard matrix of 16 rows before the operands of dW.

    Without the paper's random signs. Not compared with hardware.
    """
    plan, near = nvfp4(), BLOCK_NAMED["nvfp4"]
    random = replace(near, element=rounding(near.element, "stochastic"))
    plan = plan.rounded(
        {
            **dict.fromkeys((Site.W, Site.WX), replace(near, rows=16)),
            **dict.fromkeys((Site.GX, Site.GW), random),
        }
    )
    return replace(plan, name="nvfp4-training", hadamard=16)


LINEAR = Operation(
    name="linear",
    number=2,
    plan=Plan,
    inputs=(
        Value("x", Site.X),
        Value("weight", Site.W, Shape.SHARED),
        Value("bias", Site.B, Shape.SHARED, optional=True),
        Value("x_scale", Site.SX, Shape.SHARED, optional=True),
        Value("weight_scale", Site.SW, Shape.SHARED, optional=True),
    ),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    by_result=("weight", "bias"),
    published=published(Plan, torch_cpu, hopper, hopper_e4m3, mxfp8, mxfp4, nvfp4, nvfp4_training),
)
