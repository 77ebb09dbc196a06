"""Twins: plans that give the bits of a real kernel, each with the tiles and versions for which
that was shown.

A twin is compared with outputs that the kernel wrote on an H200 (tests/golden/kernels), and
docs/findings/kernels.md has the share of equal bits. Plans that were not compared with a kernel
are in `attention.plans.presets`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    Exponential,
    GradientsApart,
    KeyOrder,
    Log2E,
    Logarithm,
    QueryOrder,
    Reciprocal,
    RowSum,
    ScaleOfGradient,
    Tanh,
)
from roundscope.attention.plans.hopper import EIGHTS, HOPPER, octets, on_hopper
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import fa2_bf16
from roundscope.attention.plans.released import qiu_yao_compiled, qiu_yao_eager
from roundscope.attention.plans.unfused import eager, gpt_oss, jax_xla, sdpa_math
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64, FP16
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import tensor_core


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A real kernel as a plan.

    Args:
        name: Its name, which is that of its plan.
        make: A function that returns its arithmetic, under any name.
        tiles: A function from the features of a head to the tile sizes (block_q, block_k) of the
            kernel.
        source: The kernel and versions that the plan was compared with.
    """

    name: str
    make: Callable[[], Plan]
    tiles: Callable[[int], tuple[int, int]]
    source: str

    @property
    def plan(self) -> Plan:
        """The arithmetic of the kernel, made when it is first asked for."""
        return _plan_of(self)


@cache
def _plan_of(twin: Twin) -> Plan:
    return replace(twin.make(), name=twin.name)


def _fused(name: str, core: Accumulator = HOPPER, lanes: int = 8) -> Plan:
    """Return what the twins of fused kernels share: tensor cores, ex2, and rows in four lanes that
    begin at alpha l.

    Args:
        name: Name of the plan.
        core: The tensor core of all products of matrices.
        lanes: How many threads add up a row of delta.
    """
    plan = fa2_bf16().at(Site.AL, BINARY64)  # one multiply-add with the first column
    plan = on_hopper(plan.adding(Site.DELTA, octets(lanes)), core)
    return replace(
        plan,
        name=name,
        exp=Exponential.EX2,
        row_sum=RowSum.LANES,
        log=Logarithm.LG2,
        registers=True,
        gradients_apart=GradientsApart.DQ,
    )


def fa2() -> Plan:
    """Return FlashAttention-2 as torch's SDPA runs it: m is of the unscaled scores, and
    X = c S - c m with both products rounded.

    SDPA aligns causal calls at the top left; FlashAttention's own package aligns them at the bottom
    right since version 2.1, for which the argument `alignment` of a call stands.
    """
    plan = replace(_fused("fa2"), log2_e=Log2E.MAXIMUM)
    return replace(plan, key_order=KeyOrder.DESCENDING, query_order=QueryOrder.DESCENDING)


def fa2_split() -> Plan:
    """Return FlashAttention-2 as it runs with few heads, where thread blocks share the keys of one
    head: each key tile is a softmax of its own, and the results are combined.
    """
    return replace(fa2(), name="fa2-split", split_tiles=1)


def cudnn() -> Plan:
    """Return cuDNN's fused attention, which multiplies the scores by c before the maximum.

    With a negative scale it is not the kernel: of a full call with scale -0.125, half of the
    numbers of the output have the kernel's bits, and a causal call has NaN there.
    """
    return replace(
        _fused("cudnn", lanes=16),
        log2_e=Log2E.SCALE,
        row_sum=RowSum.TILE_LANES,
        reciprocal=Reciprocal.RCP,
        exponent_again=BackwardExponent.AFTER,
        gradient_scale=ScaleOfGradient.REGISTER,
    )


def efficient() -> Plan:
    """Return memory-efficient attention (CUTLASS) as torch's SDPA runs it, on tensor cores that
    take 8 products at a time.
    """
    plan = _fused("sdpa-efficient", EIGHTS, lanes=2).at(Site.AL, BINARY32)
    return replace(
        plan,
        log2_e=Log2E.SCORES,
        row_sum=RowSum.GROUPS,
        log=Logarithm.CUDA,
        exponent_again=BackwardExponent.NATURAL,
        ds_from_p=True,
        gradient_scale=ScaleOfGradient.REGISTER,
        gradients_apart=GradientsApart.NONE,
        query_order=QueryOrder.WRAPPED,
    )


def flex() -> Plan:
    """Return torch's flex_attention, which Triton compiles: the scores are scaled, and then
    multiplied by log2 e inside the multiply-add of X.
    """
    return replace(
        _fused("flex").at(Site.TT, BINARY64),
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


def triton_tutorial() -> Plan:
    """Return the attention of Triton's tutorial 06, in FP16.

    Its backward multiplies K by scale times log2 e and rounds it again, so the scores that it
    computes again, S_B, are not those of the forward.
    """
    plan = replace(
        _fused("triton-tutorial", tensor_core("hopper", "fp16"), lanes=16),
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


def pallas_mha() -> Plan:
    """Return `jax.experimental.pallas.ops.gpu.attention.mha`, which Triton compiles without fusing
    any multiply-add.
    """
    plan = _fused("pallas-mha").rounded(dict.fromkeys((Site.AL, Site.AO), BINARY32))
    plan = plan.rounded(dict.fromkeys((Site.DOO, Site.DELTA, Site.DSQ), BF16)).adding(
        Site.ROWSUM, Accumulator(order=Order.PAIRWISE)
    )
    return replace(
        plan,
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


RELEASED = (
    "ucker/why-low-precision-training-fails at 02f0ab6 (arXiv 2510.04212), under BF16 autocast"
)
TORCH = "torch 2.11.0 (CUDA 13.0), one H200"


def _square(size: int) -> Callable[[int], tuple[int, int]]:
    """Return the tiles of a kernel that has square ones of one size for all widths."""
    return lambda width: (size, size)


WHOLE = 2**20  # keys of a tile that holds every row whole
_TWINS = (
    Twin(
        name="fa2",
        make=fa2,
        tiles=lambda width: (128, 128) if width < 128 else (64, 64),
        source=f"SDPA's flash back end, {TORCH}",
    ),
    Twin(
        name="fa2-split",
        make=fa2_split,
        tiles=lambda width: (128, 256) if width < 128 else (64, 128),
        source=f"SDPA's flash back end with few heads, {TORCH}",
    ),
    Twin(
        name="cudnn",
        make=cudnn,
        tiles=_square(128),
        source=f"SDPA's cuDNN back end (9.19), {TORCH}",
    ),
    Twin(
        name="sdpa-efficient",
        make=efficient,
        tiles=lambda width: (64, 64) if width < 128 else (128, 128),
        source=f"SDPA's memory-efficient back end, {TORCH}",
    ),
    Twin(
        name="flex",
        make=flex,
        tiles=lambda width: (128, 128 if width == 64 else 64),
        source=f"flex_attention, compiled, {TORCH}",
    ),
    Twin(
        name="triton-tutorial",
        make=triton_tutorial,
        tiles=lambda width: (128, min(64, width)),
        source="Triton's tutorial 06, triton 3.6.0, one H200",
    ),
    Twin(
        name="eager",
        make=eager,
        tiles=lambda width: (512, WHOLE),
        source=f"eager attention of transformers 5.17.0, {TORCH}",
    ),
    Twin(
        name="gpt-oss",
        make=gpt_oss,
        tiles=lambda width: (512, WHOLE),
        source=f"eager attention of gpt-oss in transformers 5.17.0, {TORCH}",
    ),
    Twin(
        name="qiu-yao-eager",
        make=qiu_yao_eager,
        tiles=_square(512),
        source=f"attention.py of {RELEASED}, run eagerly, {TORCH}",
    ),
    Twin(
        name="qiu-yao-compiled",
        make=qiu_yao_compiled,
        tiles=_square(512),
        source=f"attention.py of {RELEASED}, compiled, one tile, {TORCH}",
    ),
    Twin(
        name="sdpa-math",
        make=sdpa_math,
        tiles=lambda width: (512, WHOLE),
        source=f"SDPA's math back end, {TORCH}",
    ),
    Twin(
        name="pallas-mha",
        make=pallas_mha,
        tiles=_square(128),
        source="jax.experimental.pallas.ops.gpu.attention.mha, jax 0.11.2, one H200",
    ),
    Twin(
        name="jax-xla",
        make=jax_xla,
        tiles=lambda width: (512, WHOLE),
        source="jax.nn.dot_product_attention, implementation='xla', jax 0.11.2, one H200",
    ),
)
TWINS = {twin.name: twin for twin in _TWINS}
"""The twins by name; `Plan.preset` knows the names too and returns the plan alone."""
