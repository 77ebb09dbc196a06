"""Twins: plans that give the bits of a real kernel, each with the tiles and versions for which
that was shown.

A twin is compared with outputs that the kernel wrote on an H200 or H100 (tests/golden/kernels), and
docs/findings/kernels.md has the share of equal bits. Plans that were not compared with a kernel
are in `attention.plans.presets`. `twin` says everything of one: the names, tables and tests of
twins follow from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    DeltaFrom,
    Descales,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    Logarithm,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
    Tanh,
)
from roundscope.attention.plans.hopper import (
    EIGHTS,
    HOPPER,
    WARP,
    octet_pairs,
    octets,
    on_hopper,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import ENDS, fa2_bf16, fp32, rounding_to
from roundscope.attention.sites import Site
from roundscope.emu.blocks.format import INT8, BlockFormat
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
    E4M3,
    FP16,
    Rounding,
    RoundingMode,
)
from roundscope.emu.sums.accumulator import Accumulator, Order

E4M3_CORE = Accumulator.tensor_core("hopper", "e4m3fn")
TORCH = "torch 2.11.0 (CUDA 13.0), one H200"
TOKAMAX = "tokamax 0.0.17, implementation='mosaic', jax 0.11.2, one H100"
RELEASED = (
    "ucker/why-low-precision-training-fails at 02f0ab6 (arXiv 2510.04212), under BF16 autocast"
)
Tiles: TypeAlias = Callable[[int, bool], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A real kernel as a plan.

    Args:
        name: Its name, which is that of its plan.
        make: A function that returns its arithmetic, under any name.
        tiles: A function that returns the tile sizes (block_q, block_k) of the kernel for so many
            features of a head, and for calls that are causal or have a window (True) or are not
            (False).
        source: The kernel and versions that the plan was compared with.
        kernels: The names in `roundscope check` and `identify` of kernels that are taken to have
            this plan.
        outputs: The files of tests/golden/kernels with which it is compared.
        least: The least share of equal bits of the results that do not agree in every bit, by name
            or, for one of the files, by FILE/NAME.
        wide: The words of what the kernel does otherwise above 128 features.
    """

    name: str
    make: Callable[[], Plan]
    tiles: Tiles
    source: str
    kernels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    least: Mapping[str, float] = field(default_factory=dict, hash=False)
    wide: str = ""

    @property
    def plan(self) -> Plan:
        """The arithmetic of the kernel, made when it is first asked for."""
        return _plan_of(self)


@cache
def _plan_of(twin: Twin) -> Plan:
    return replace(twin.make(), name=twin.name)


TWINS: dict[str, Twin] = {}
"""The twins by name; `Plan.preset` knows the names too and returns the plan alone."""


def twin(
    name: str,
    *,
    tiles: Tiles,
    source: str,
    kernels: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    least: Mapping[str, float] | None = None,
    wide: str = "",
) -> Callable[[Callable[[], Plan]], Callable[[], Plan]]:
    """Return a decorator that puts a function into `TWINS` and returns it; see `Twin`."""

    def entered(make: Callable[[], Plan]) -> Callable[[], Plan]:
        TWINS[name] = Twin(
            name=name,
            make=make,
            tiles=tiles,
            source=source,
            kernels=kernels,
            outputs=outputs,
            least=least or {},
            wide=wide,
        )
        return make

    return entered


def always(block_q: int, block_k: int) -> Tiles:
    """Return the tiles of a kernel that has the same ones in all calls."""
    return lambda width, is_cut: (block_q, block_k)


WHOLE = 2**20  # keys of a tile that holds every row whole


whole_rows = always(512, WHOLE)
"""The tiles of code that has none of keys."""


def _fused(core: Accumulator = HOPPER, lanes: int = 8) -> Plan:
    """Return what the twins of fused kernels share: tensor cores, ex2, and rows in four lanes that
    begin at alpha l.

    Args:
        core: The tensor core of all products of matrices.
        lanes: How many threads add up a row of delta.
    """
    plan = fa2_bf16().at(Site.AL, BINARY64)  # one multiply-add with the first column
    return replace(
        on_hopper(plan.adding(Site.DELTA, octets(lanes)), core),
        exp=Exponential.EX2,
        row_sum=RowSum.LANES,
        log=Logarithm.LG2,
        registers=True,
        gradients_apart=GradientsApart.DQ,
    )


# dQ of FlashAttention-2 and cuDNN is added up by atomics, in no fixed order
@twin(
    "fa2",
    tiles=lambda width, is_cut: (128, 128) if width < 128 else (64, 64),
    source=f"SDPA's flash back end, {TORCH}",
    kernels=("sdpa-flash",),
    outputs=("sdpa-flash", "sdpa-flash-gqa"),
    least={"dq": 0.9999},
)
def fa2() -> Plan:
    """Return FlashAttention-2 as torch's SDPA runs it: m is of the unscaled scores, and
    X = c S - c m with both products rounded.

    SDPA aligns causal calls at the top left; FlashAttention's own package aligns them at the bottom
    right since version 2.1, for which the argument `alignment` of a call stands.
    """
    plan = rounding_to(_fused(), BF16, "DKH DVH")
    plan = replace(plan, log2_e=Log2E.MAXIMUM, rounded_heads=True)
    return replace(plan, key_order=KeyOrder.DESCENDING, query_order=QueryOrder.DESCENDING)


@twin(
    "fa2-split",
    tiles=lambda width, is_cut: (128, 256) if width < 128 else (64, 128),
    source=f"SDPA's flash back end with few heads, {TORCH}",
    outputs=("sdpa-flash-few",),
    least={"dq": 0.9999},
)
def fa2_split() -> Plan:
    """Return FlashAttention-2 as it runs with few heads, where thread blocks share the keys of one
    head: each key tile is a softmax of its own, and the results are combined. The backward has key
    tiles of 128.
    """
    return replace(fa2(), split_tiles=1, backward_keys=128)


@twin(
    "cudnn",
    tiles=always(128, 128),
    source=f"SDPA's cuDNN back end (9.19), {TORCH}",
    kernels=("sdpa-cudnn", "jax-cudnn"),
    outputs=("sdpa-cudnn", "sdpa-cudnn-gqa", "jax-cudnn-gqa"),
    least={"dq": 0.9999},
)
def cudnn() -> Plan:
    """Return cuDNN's fused attention, which multiplies the scores by c before the maximum.

    With a negative scale it is not the kernel: of a full call with scale -0.125, half of the
    numbers of the output have the kernel's bits, and a causal call has NaN there.
    """
    return replace(
        rounding_to(_fused(lanes=16), BF16, "DKH DVH"),
        log2_e=Log2E.SCALE,
        row_sum=RowSum.TILE_LANES,
        reciprocal=Reciprocal.RCP,
        exponent_again=BackwardExponent.AFTER,
        gradient_scale=ScaleOfGradient.REGISTER,
        rounded_heads=True,
    )


# how the splits' L are combined is not known: L of half of the heads is one ulp off
@twin(
    "cudnn-split",
    tiles=always(128, 128),
    source="SDPA's cuDNN back end (9.19) with one query, torch 2.11.0 (CUDA 13.0), one H100",
    outputs=("sdpa-cudnn-one",),
    least={"lse": 0.0},
)
def cudnn_split() -> Plan:
    """Return cuDNN's fused attention as it runs with one query: four thread blocks share the keys
    of a head. Key tile j goes to block j mod 4, and each block has one softmax.
    """
    return replace(cudnn(), split_tiles=1, split_count=4)


@twin(
    "cudnn-fp8",
    tiles=always(64, 256),
    source="sdpa_fp8 and sdpa_fp8_backward of nvidia-cudnn-frontend 1.32.0, cuDNN 9.19, one H100",
    kernels=("cudnn-fp8",),
    outputs=("cudnn-fp8",),
)
def cudnn_fp8() -> Plan:
    """Return cuDNN's fused attention in FP8, with every scale of the call 1 and 128 features.

    The operands of all products, the output and the gradients are E4M3, and alpha l is rounded
    before a row sum is added to it. dS for dK is cast from FP32; dS for dQ is cast to FP16 first,
    so that it is rounded twice. The query heads of a key head are added before they are rounded. A
    scale of P, `scale_s` = 2^n, is offset=n (`cudnn-fp8-s256`). Where other scales enter is taken
    from the documentation, which multiplies products, and was compared in calls whose scales are 1.
    """
    ends = "Q K V P OUT DO P_B DS DSQ DQ_OUT DK_OUT DV_OUT"
    plan = on_hopper(cudnn().at(Site.AL, BINARY32), E4M3_CORE)
    plan = rounding_to(plan, E4M3, ends).at(Site.DSR, FP16)
    plan = replace(plan, ds_apart=True, backward_keys=128, offset_again=True)
    return replace(plan, rounded_heads=False, descales=Descales.PRODUCTS)


@twin(
    "cudnn-fp8-s256",
    tiles=always(64, 256),
    source="the same with scale_s = 256",
    kernels=("cudnn-fp8-s256",),
    outputs=("cudnn-fp8-s256",),
)
def cudnn_fp8_s256() -> Plan:
    """Return `cudnn-fp8` with P multiplied by 256 before its cast, which keeps small weights."""
    return replace(cudnn_fp8(), offset=8)


@twin(
    "sdpa-efficient",
    tiles=lambda width, is_cut: (64, 64) if width < 128 else (128, 128),
    source=f"SDPA's memory-efficient back end, {TORCH}",
    kernels=("sdpa-efficient",),
    outputs=("sdpa-efficient",),
    wide="pv_into_o=false AO=fp64 normalized_last=true",
)
def efficient() -> Plan:
    """Return memory-efficient attention (CUTLASS) as torch's SDPA runs it, on tensor cores that
    take 8 products at a time.

    Above 128 features the kernel keeps O in memory, which the words of `Twin.wide` say.
    """
    return replace(
        _fused(EIGHTS, lanes=2).at(Site.AL, BINARY32),
        log2_e=Log2E.SCORES,
        row_sum=RowSum.GROUPS,
        log=Logarithm.CUDA,
        exponent_again=BackwardExponent.NATURAL,
        ds_from_p=True,
        gradient_scale=ScaleOfGradient.REGISTER,
        gradients_apart=GradientsApart.NONE,
        query_order=QueryOrder.WRAPPED,
    )


@twin(
    "flex",
    tiles=lambda width, is_cut: (128, 128 if width == 64 else 64),
    source=f"flex_attention, compiled, {TORCH}",
    kernels=("flex",),
    outputs=("flex", "flex-served"),
)
def flex() -> Plan:
    """Return torch's flex_attention, which Triton compiles: the scores are scaled, and then
    multiplied by log2 e inside the multiply-add of X.
    """
    return replace(
        _fused().at(Site.TT, BINARY64),
        log2_e=Log2E.SCORES,
        fused_exponent=True,
        row_sum=RowSum.TILES,
        unfused_if_cut=True,
        reciprocal=Reciprocal.RCP,
        key_order=KeyOrder.MASKED_FIRST,
        gradients_apart=GradientsApart.NONE,
        lse_base2=True,
        log=Logarithm.CUDA,
        query_order=QueryOrder.MASKED_FIRST,
        capped_by=CappedBy.CHAIN,
        tanh=Tanh.CUDA,
    )


@twin(
    "triton-tutorial",
    tiles=lambda width, is_cut: (128, min(64, width)),
    source="Triton's tutorial 06, triton 3.6.0, one H200",
    kernels=("triton-tutorial",),
    outputs=("triton-tutorial",),
)
def triton_tutorial() -> Plan:
    """Return the attention of Triton's tutorial 06, in FP16.

    Its backward multiplies K by scale times log2 e and rounds it again, so the scores that it
    computes again, S_B, are not those of the forward.
    """
    plan = replace(
        _fused(Accumulator.tensor_core("hopper", "fp16"), lanes=16),
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        row_sum=RowSum.TILES,
        unfused_if_cut=True,
        reciprocal=Reciprocal.RCP,
        gradients_apart=GradientsApart.NONE,
        lse_base2=True,
        log=Logarithm.CUDA,
        query_order=QueryOrder.MASKED_FIRST,
        scaled_keys=True,
    )
    halves = (*(site for site in Site if plan[site] == BF16), Site.KC)
    return plan.rounded(dict.fromkeys(halves, FP16))


@twin(
    "eager",
    tiles=whole_rows,
    source=f"eager attention of transformers 5.17.0, {TORCH}",
    kernels=("eager",),
    outputs=("eager", "eager-gqa", "gemma2"),
)
def eager() -> Plan:
    """Return transformers' eager attention: operation by operation in BF16, with an FP32 softmax.

    The scores are rounded to BF16 after their product and scaled in BF16. A warp adds each row. P
    is divided in FP32 and cast. The backward keeps P in FP32, and dS is cast, scaled and cast
    again. Keys and values of grouped heads are repeated first (`repeat_kv`), so each query head's
    dK and dV are rounded before the group is added.
    """
    plan = on_hopper(fp32().at(Site.INV, BINARY64))
    plan = rounding_to(plan, BF16, f"{ENDS} S SCALED P PV OUT P_B DP DS SDS DKH DVH")
    plan = rounding_to(plan, BF16, "SS CAP TANH TT DTANH DSC DCT DCAP DCQ")
    return replace(
        plan.adding(Site.ROWSUM, WARP).adding(Site.DELTA, WARP),
        normalise_first=True,
        delta_from=DeltaFrom.P_DP,
        exp=Exponential.CUDA,
        registers=True,
        saved_p=True,
        score_gradient=ScoreGradient.SOFTMAX,
        gradient_scale=ScaleOfGradient.OPERAND,
        capped_by=CappedBy.CHAIN,
        tanh=Tanh.CUDA,
        rounded_heads=True,
    )


# with 32 features P V takes 16 products at a time (PV.sum=hopper:bf16), with 64 it takes 8
@twin(
    "gpt-oss",
    tiles=whole_rows,
    source=f"eager attention of gpt-oss in transformers 5.17.0, {TORCH}",
    outputs=("gpt-oss",),
    least={"out": 0.9998},
)
def gpt_oss() -> Plan:
    """Return transformers' eager attention of gpt-oss, whose softmax returns BF16.

    A sink is one more column of BF16 scores. The row maximum is subtracted in BF16 before the
    softmax, and automatic differentiation goes through it, so dS is made to add up to zero. P then
    has an odd number of columns, such as 513, which is not aligned for the longer instruction of
    the tensor core, so P V and dV use the one that takes 8 products at a time.
    """
    plan = rounding_to(eager(), BF16, "SINK X DM PDP PSINK DSINK DMAX DSM")
    plan = plan.adding(Site.PV, EIGHTS).adding(Site.DV, EIGHTS)
    return replace(plan, sinks=Sinks.KEY, ds_from_p=True, maximum_gradient=True)


def _released() -> Plan:
    """Return what both forms of the released code share: operations in BF16, CUDA's expf, and a
    scale that multiplies P before dS.
    """
    own = "S SCALED M X P DM L AO PV O OUT S_B SCALED_B P_B DP DS"
    plan = rounding_to(fp32(), BF16, f"{ENDS} {own}")
    return replace(
        on_hopper(plan.at(Site.INV, BINARY64)).adding(Site.ROWSUM, WARP),
        exp=Exponential.CUDA,
        registers=True,
        exponent_again=BackwardExponent.NATURAL,
        gradient_scale=ScaleOfGradient.PROBABILITY,
        kept_state=True,
        log=Logarithm.CUDA,
    )


@twin(
    "qiu-yao-eager",
    tiles=always(512, 512),
    source=f"attention.py of {RELEASED}, run eagerly, {TORCH}",
    kernels=("released-eager",),
    outputs=("released-eager-512",),
)
def qiu_yao_eager() -> Plan:
    """Return the released code run eagerly under autocast, tile by tile, where the result of every
    operation is BF16.
    """
    plan = rounding_to(_released(), BF16, "DOO DQP DQ DKP DK DVP DV")
    plan = plan.adding(Site.DELTA, Accumulator(order=Order.PAIRWISE))
    return replace(plan, gradients_apart=GradientsApart.ALL, delta_products=True)


@twin(
    "qiu-yao-compiled",
    tiles=always(512, 512),
    source=f"attention.py of {RELEASED}, compiled, one tile, {TORCH}",
    kernels=("released-compiled",),
    outputs=("released-compiled-512",),
)
def qiu_yao_compiled() -> Plan:
    """Return the released code as its training runs it, compiled and under autocast.

    The compiler keeps the scaled scores, the maximum, EXP and O in FP32, adds the tiles by
    multiply-adds, and writes m and l to memory in BF16. The backward computes BF16 scores again and
    adds BF16 parts in FP32. Without a mask X is one multiply-add. If there are several query tiles,
    the first divides by l in FP32 and the others divide by l in BF16. A single tile divides by l in
    BF16.
    """
    plan = rounding_to(_released(), BINARY32, "SCALED X DM M L O SCALED_B INV")
    plan = rounding_to(plan, BINARY64, "AL AO")
    plan = rounding_to(plan, BF16, "MS LANES DQP DKP DVP")
    return replace(
        plan.adding(Site.DELTA, octets(16)),
        gradients_apart=GradientsApart.ALL,
        reciprocal=Reciprocal.RCP,
        first_tile_apart=True,
        fused_without_mask=True,
    )


@twin(
    "sdpa-math",
    tiles=whole_rows,
    source=f"SDPA's math back end, {TORCH}",
    kernels=("sdpa-math",),
    outputs=("sdpa-math", "sdpa-math-gqa"),
)
def sdpa_math() -> Plan:
    """Return SDPA's math back end, which computes in FP32 until results are cast.

    q and k are each multiplied by the root of the scale. Products are chains of multiply-adds in
    ascending order, a warp adds up each row, and P is divided and kept in FP32. In calls with one
    head cuBLAS adds over keys in chunks of 64 instead, which is PV.sum=chunked64 and the same for
    DQ, DK and DV.
    """
    plan = rounding_to(fp32(), BF16, f"{ENDS} OUT").at(Site.INV, BINARY64)
    return replace(
        plan.adding(Site.ROWSUM, WARP).adding(Site.DELTA, WARP),
        normalise_first=True,
        delta_from=DeltaFrom.P_DP,
        exp=Exponential.CUDA,
        registers=True,
        saved_p=True,
        score_gradient=ScoreGradient.SOFTMAX,
        scale_roots=True,
        rounded_heads=True,
    )


@twin(
    "pallas-mha",
    tiles=always(128, 128),
    source="jax.experimental.pallas.ops.gpu.attention.mha, jax 0.11.2, one H200",
    kernels=("pallas",),
    outputs=("pallas",),
)
def pallas_mha() -> Plan:
    """Return `jax.experimental.pallas.ops.gpu.attention.mha`, which Triton compiles without fusing
    any multiply-add.
    """
    plan = rounding_to(_fused(), BINARY32, "AL AO")
    plan = rounding_to(plan, BF16, "DOO DELTA DSQ")
    return replace(
        plan.adding(Site.ROWSUM, Accumulator(order=Order.PAIRWISE)),
        log2_e=Log2E.SCALE,
        row_sum=RowSum.TILES,
        reciprocal=Reciprocal.RCP,
        log=Logarithm.CUDA,
        lse_base2=True,
        gradients_apart=GradientsApart.NONE,
        gradient_scale=ScaleOfGradient.REGISTER,
        delta_products=True,
        dp_from_delta=True,
    )


@twin(
    "tokamax-mosaic",
    tiles=lambda width, is_cut: (64, 128 if width <= 128 else 64),
    source=TOKAMAX,
    kernels=("tokamax-mosaic",),
    outputs=("tokamax-mosaic",),
)
def tokamax_mosaic() -> Plan:
    """Return tokamax's attention for Hopper, which is Pallas through Mosaic.

    The scores are multiplied by c inside the multiply-add of X, and a thread adds a row of a tile
    in four sums. The backward computes P from m and l. Compared with 32, 64, 128 and 256 features,
    causal, full and with a window, one head and four on one key head. With a softcap
    of 60 or less the kernel subtracts no maximum, which no plan does (docs/findings/kernels.md).
    """
    return replace(
        _fused(lanes=16),
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        row_sum=RowSum.SIXTEENS,
        reciprocal=Reciprocal.RCP,
        exponent_again=BackwardExponent.STATE,
        gradients_apart=GradientsApart.NONE,
        backward_keys=64,
    )


@twin(
    "tokamax-mosaic-stale",
    tiles=lambda width, is_cut: (64, 128 if width <= 128 else 64),
    source=f"{TOKAMAX}, with rescale_threshold = 2^-8",
    kernels=("tokamax-mosaic-stale",),
    outputs=("tokamax-mosaic-stale",),
)
def tokamax_mosaic_stale() -> Plan:
    """Return `tokamax-mosaic` with a maximum that keeps its value where it would grow by a factor
    of 2^8 or less, and alpha l rounded.
    """
    return replace(tokamax_mosaic().at(Site.AL, BINARY32), stale_maximum=8.0)


@twin(
    "jax-xla",
    tiles=whole_rows,
    source="jax.nn.dot_product_attention, implementation='xla', jax 0.11.2, one H200",
    kernels=("jax-xla",),
    outputs=("jax-xla",),
)
def jax_xla() -> Plan:
    """Return `jax.nn.dot_product_attention` as XLA compiles it for a GPU.

    Scores and their gradients are FP32, P = EXP rcp(l), and warps add up the rows. dS is the
    derivative of a quotient (`ScoreGradient.QUOTIENT`), as automatic differentiation of the softmax
    gives it.
    """
    fours, eights = (Accumulator(order=Order.WARPS, chunk=n) for n in (4, 8))
    plan = rounding_to(eager(), BINARY32, "S SCALED S_B INV SDS DKH DVH")
    return replace(
        plan.adding(Site.ROWSUM, fours).adding(Site.DELTA, eights),
        reciprocal=Reciprocal.RCP,
        gradient_scale=ScaleOfGradient.REGISTER,
        score_gradient=ScoreGradient.QUOTIENT,
        rounded_heads=False,
    )


H100_FA3 = "flash-attn3-jax 0.2.3 (CUDA 13.0), one H100"


# dQ, and dK and dV of grouped heads, are added as thread blocks arrive
@twin(
    "fa3",
    tiles=lambda width, is_cut: (128, 128 if is_cut else 176),
    source=f"FlashAttention-3, {H100_FA3}",
    kernels=("fa3",),
    outputs=("fa3", "fa3-gqa"),
    least={"dq": 0.9999},
)
def fa3() -> Plan:
    """Return FlashAttention-3, compiled for 128 features; heads with fewer run in it too.

    X is one multiply-add of S, c and c m, forward and backward. Key tiles go from the last to the
    first; they have 176 keys, or 128 in causal calls, in those with a window and in the backward.
    dK and dV go up through the queries. Parts of dQ are added in memory as thread blocks arrive,
    and so are, with grouped heads, dK and dV, in FP32.

    Compared with 32, 64 and 128 features, causal, full and with a window, one head and four on one
    key head, and in FP16. In full calls flash-attn3-jax 0.2.3 gives its backward too little memory,
    with which some gradients are not those of any call (docs/findings/kernels.md).
    """
    return replace(
        _fused(lanes=16),
        log2_e=Log2E.MAXIMUM,
        fused_exponent=True,
        reciprocal=Reciprocal.RCP,
        log=Logarithm.LG2_FACTOR,
        key_order=KeyOrder.DESCENDING,
        query_order=QueryOrder.FROM_DIAGONAL,
        backward_keys=128,
    )


@twin(
    "fa3-e4m3",
    tiles=always(128, 224),
    source=f"the forward of FlashAttention-3 in E4M3, {H100_FA3}",
    kernels=("fa3-fp8",),
    outputs=("fa3-fp8", "fa3-fp8-descaled"),
)
def fa3_e4m3() -> Plan:
    """Return the forward of FlashAttention-3 in E4M3.

    P is multiplied by 2^8, and the offset enters c m - 8 as one multiply-add, so CM is not rounded.
    The tensor core adds products of FP8 to O itself, 32 at a time. The output is BF16. Scales
    of q and k multiply c, and that of v multiplies 1 / l. The kernel has no backward; the plan's is
    that of fa2-bf16.
    """
    plan = fa3().adding(Site.S, E4M3_CORE).adding(Site.PV, E4M3_CORE).at(Site.CM, BINARY64)
    return replace(rounding_to(plan, E4M3, "Q K V P"), offset=8, descales=Descales.PRODUCTS)


def _tiles_of_fa4(width: int, is_cut: bool) -> tuple[int, int]:
    """Return the tiles of FlashAttention-4's forward on Hopper.

    Its backward has key tiles of 96 above 128 features and of 48 above 192, so that dQ of such
    widths is not the kernel's. Full calls with 65 to 96 features have key tiles of 144 forward.
    """
    if width <= 128:
        return (192 if width <= 96 else 128, 128)
    return (128, 112 if width <= 192 else 80)


# dQ, and dK and dV of grouped heads, are added as thread blocks arrive
@twin(
    "fa4-hopper",
    tiles=_tiles_of_fa4,
    source="flash-attn-4 4.0.0b36, 64, 96 and 128 features, torch 2.11.0 (CUDA 13.0), one H100",
    kernels=("fa4",),
    outputs=("fa4", "fa4-gqa"),
    least={"dq": 0.9999, "fa4-gqa/dk": 0.9999, "fa4-gqa/dv": 0.9998},
)
def fa4_hopper() -> Plan:
    """Return FlashAttention-4 as it runs on Hopper (flash_attn/cute, CuTe DSL, sm90).

    X is one multiply-add of S, c and c m, forward and backward. L is computed in base 2 and then
    multiplied by ln 2, and by log2 e again in the backward. Threads that hold parts of a row
    exchange them with their neighbors first, in the row sum and in delta. dK and dV go up through
    the queries. Parts of dQ are added in memory as thread blocks arrive; in a causal call those of
    the last keys reach a query first, which is also the order of the deterministic mode. With
    grouped heads dK and dV are added in FP32 in the order of arrival too, and rounded once.

    Compared with 64 and 128 features, causal and full, one head and four on one key head, and with
    96 features, causal. A softcap divides, ends in the instruction tanh.approx and is rounded as a
    score (`cap_apart`); its derivative is one multiply-add. It was compared with 128 features,
    causal.
    """
    return replace(
        fa3().at(Site.TT, BINARY64).adding(Site.DELTA, octet_pairs(16)),
        row_sum=RowSum.PAIRED_LANES,
        log=Logarithm.LG2_SUM,
        tanh=Tanh.APPROX,
        cap_apart=True,
        backward_keys=0,
    )


@twin(
    "sage-int8",
    tiles=always(128, 64),
    source="SageAttention 1.0.6, torch 2.11.0 (CUDA 13.0), one H100",
    kernels=("sage-int8",),
    outputs=("sage-int8",),
)
def sage_int8() -> Plan:
    """Return the forward of SageAttention 1 (arXiv 2410.02367), which Triton compiles.

    K loses its mean over the tokens, q is multiplied by c, and both become INT8 in blocks of 128
    queries and of 64 keys, by Triton's division and with ties away from zero. (The kernel adds 0.5
    in binary32, so of all quotients 0.5 - 2^-25 becomes 1, here 0.) The products of INT8 are added
    exactly and multiplied by the scale of Q and then by that of K. P and V are FP16, and the tensor
    core keeps the sum of a tile in FP16. The kernel has no backward; the plan's is that of
    fa2-bf16.
    """
    element = Rounding(format=INT8, mode=RoundingMode.TIES_TO_AWAY)
    q = BlockFormat(
        element=element, size=128, rows=128, scale=BINARY32.format, rule=ScaleRule.NEAREST
    )
    plan = fa2_bf16().rounded({Site.Q: q, Site.K: replace(q, rows=64)})
    plan = rounding_to(rounding_to(plan, FP16, "V P PV"), BINARY64, "AL AO").at(Site.KM, BF16)
    plan = plan.adding(Site.S, Accumulator(step=BINARY64))  # exact, as integers are
    return replace(
        plan.adding(Site.PV, Accumulator.tensor_core("hopper", "fp16", "fp16")),
        exp=Exponential.EX2,
        log2_e=Log2E.SCALE,
        fused_exponent=True,
        unfused_if_cut=True,
        pv_into_o=False,
        row_sum=RowSum.TILES,
        reciprocal=Reciprocal.RCP,
        registers=True,
        scaled_queries=True,
        smoothed_keys=True,
        key_scales=True,
        block_reciprocal=Reciprocal.RCP,
    )


TWIN_OF = {kernel: own.name for own in TWINS.values() for kernel in own.kernels}
"""The name of the twin of each kernel that `roundscope check` and `identify` call by name."""
