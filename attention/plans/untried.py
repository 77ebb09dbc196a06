"""Plans of kernels that run on other hardware than we have, each read from public code.

None was compared with hardware: a plan says what the code computes and where it casts, and leaves
out what the code does not show (the instructions' approximations of 2^x, 1 / x and log2, and the
order in which a matrix unit and the lanes of a row add). Each is a plan of
`attention.plans.presets` in the words of the grammar of changes, so that a plan is one entry. Words
may follow the name as usual: `aiter-ck; casts=ties-to-even` is the same code compiled with another
conversion.
"""

from collections.abc import Callable
from dataclasses import replace

from roundscope.attention.plans.plan import Plan


def _read(name: str, words: str, base: str = "fa2-bf16") -> Plan:
    """Return the plan `base` with these changes, under a name."""
    return replace(Plan.preset(base).changed(words), name=name)


# X = c S - c m, and c S - log2(e) L in the backward, is one multiply-add, which HIP makes of a
# product and a sum; m is of the unscaled scores, and the parts of dQ are added in memory
COMPOSABLE_KERNEL = (
    "exp=base2 log2_e=maximum fused_exponent=true AL=fp64 registers=true gradients_apart=dq"
)


def aiter_ck() -> Plan:
    """Return BF16 attention of ROCm/aiter through Composable Kernel, as its build has it on an
    MI300 (gfx942): every cast toward zero.

    aiter at e4048607 (August 2026; aiter/jit/optCompilerConfig.json) compiles its modules of
    attention, forward and backward, with CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT=2, unless the
    environment variable of that name says otherwise. Modes of the conversion are 0 and 3, to
    nearest with ties to even (`casts=ties-to-even`), 1 and 2, toward zero (the default), and 4,
    ties away from zero (`casts=ties-to-away`). On an MI350 (gfx950) the conversion is an
    instruction that rounds to nearest, whatever the mode. Calls of 128 features, and of 192 with
    values of 128, and more than 128 queries go to other kernels (`aiter-asm`), and so do most
    backwards (docs/findings/truncation.md has which).

    The equations are those of ck_tile's pipelines (ROCm/composable_kernel at 8e22e1ae,
    include/ck_tile/ops/fmha/pipeline): P and P of the backward, dS, the output and the gradients
    are cast, scores and sums are binary32, and delta reads the cast output. Key tiles go up; they
    have 128 keys, or 64 with 64 features or fewer. Products are on the matrix cores of CDNA3, by a
    published model of these (`@cdna3`). Not compared with hardware; the approximations of 2^x and
    log2, and the order in which rows are added up, are not modelled.
    """
    return _read("aiter-ck", f"{COMPOSABLE_KERNEL} casts=toward-zero", "fa2-bf16@cdna3")


def aiter_asm() -> Plan:
    """Return BF16 attention of ROCm/aiter by its assembly kernels on an MI300 (gfx942), as it runs
    by default: ties away from zero.

    aiter at e4048607 (aiter/ops/mha.py; hsa/gfx942/fmha_v3_fwd/fmha_fwd.csv) has three binaries of
    each kernel and chooses by `how_v3_bf16_cvt`: 0 rounds to nearest with ties to even
    (`casts=ties-to-even`), 1, the default, with ties away from zero, and 2 toward zero
    (`casts=toward-zero`). It takes them for 128 features, or 192 with values of 128, more than 128
    queries, and neither window, bias nor dropout; their tiles have 256 queries and 32 keys. On an
    MI350 (gfx950) there is one binary, and the backward is given mode 0.

    Not compared with hardware, and the binaries have no public source: that they compute and cast
    as `aiter-ck` does is an assumption.
    """
    return _read("aiter-asm", f"{COMPOSABLE_KERNEL} casts=ties-to-away", "fa2-bf16@cdna3")


def tpu_splash() -> Plan:
    """Return splash attention of JAX for TPUs (jax.experimental.pallas.ops.tpu.splash_attention of
    jax 0.10.2), as its program says.

    The kernel multiplies by no scale: callers multiply q before, so give scale=1. P is not cast: O
    is a product of P and V in binary32. P of the backward and dS are cast to the type of q, and dQ,
    dK and dV add whole tiles. Compared with the kernel in Pallas' interpreter on a CPU, tiles of
    128, 64 and 128 features, causal and full: 0.9997 or more of the numbers of out are equal, of dq
    0.997, of dk and dv 0.998 (`python -m tests.checks.splash`; the order of the sums there and
    XLA's exp are not modelled). Not compared with a TPU, whose matrix unit reads operands of
    binary32 as BF16 by default: there P and V enter the product in BF16, which is `P=bf16`.
    """
    words = "P=fp32 pv_into_o=false gradients_apart=all registers=true"
    return _read("tpu-splash", words)


def mlx_sdpa() -> Plan:
    """Return the attention of MLX on an Apple GPU for more than a few queries
    (`mx.fast.scaled_dot_product_attention`; ml-explore/mlx at 846d1762,
    mlx/backend/metal/kernels/steel/attn/kernels/steel_attention.h).

    P is not cast: it enters the product with V in binary32. The scores are multiplied by scale
    log2 e, 2^x is computed, and O is divided by the row sum. Tiles have 32 queries, and 32 keys, or
    16 from 128 features on; few queries have a kernel of their own. Not compared with hardware: the
    fast exponential and the order of sums are not modelled. The kernel has no backward (training
    runs unfused operations); the plan's is that of fa2-bf16.
    """
    words = "P=fp32 exp=base2 log2_e=scale AL=fp64 registers=true INV=fp64"
    return _read("mlx-sdpa", words)


def flash_mla() -> Plan:
    """Return dense decoding by FlashMLA on Hopper (deepseek-ai/FlashMLA at 9241ae3e,
    csrc/sm90/decode/dense/splitkv_mla.cuh): q and k of 576 features, v of the first 512 of k.

    Key tiles of 64 go up. m is of the scaled scores in base 2, X is one multiply-add, the row sum
    adds P before its cast, and O is divided by it. Two groups of warps share a pair of tiles: the
    first 256 features of O are as here, and for the others P of the first tile is cast after it was
    multiplied by alpha of the second, which no plan says. Splits of the keys stay in binary32. Not
    compared with hardware. The kernel has no backward; the plan's is that of fa2-bf16.
    """
    words = (
        "exp=ex2 log2_e=scale fused_exponent=true row_sum=tile-lanes AL=fp64 registers=true"
        " INV=fp64"
    )
    return _read("flash-mla", words, "fa2-bf16@hopper")


def flashinfer_split() -> Plan:
    """Return FlashInfer's attention with its keys split, as it serves long contexts
    (flashinfer-ai/flashinfer at fb28d724, include/flashinfer/attention/prefill.cuh, cascade.cuh).

    Two things differ from FlashAttention-2: the row sum adds P after its cast, and the output of
    each split is kept in the type of the output (event OI; `OI=fp32` is a kernel without that cast)
    before the splits are merged. A split is one key tile here, so that `block_k` is the keys of a
    split. m is of the unscaled scores, X is one multiply-add, and l is rcp.approx. Not compared
    with hardware: tensor cores also add the row sum, and splits are merged one after the other,
    which is not modelled. There is no backward; the plan's is that of fa2-bf16.
    """
    words = (
        "exp=ex2 log2_e=maximum fused_exponent=true reciprocal=rcp registers=true row_sum_of=P"
        " split_tiles=1 OI=bf16"
    )
    return _read("flashinfer-split", words)


UNTRIED: dict[str, Callable[[], Plan]] = {
    "aiter-ck": aiter_ck,
    "aiter-asm": aiter_asm,
    "tpu-splash": tpu_splash,
    "mlx-sdpa": mlx_sdpa,
    "flash-mla": flash_mla,
    "flashinfer-split": flashinfer_split,
}
"""These plans by name, a part of `PRESETS`."""
