"""Plans of kernels that run on other hardware than we have, each read from public code.

None was compared with hardware: a plan says what the code computes and where it casts, and leaves
out what the code does not show (the instructions' approximations of 2^x, 1 / x and log2, and the
order in which a matrix unit and the lanes of a row add). Each is a plan of
`attention.plans.presets` in the words of the grammar of changes, so that a plan is one entry. Words
may follow the name as usual: `aiter-ck; casts=ties-to-even` is the same code compiled with another
conversion.
"""

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
    values of 128, and more than 128 queries go to other kernels (`aiter-asm`).

    The equations are those of ck_tile's pipelines (ROCm/composable_kernel at 8e22e1ae,
    include/ck_tile/ops/fmha/pipeline): P and P of the backward, dS, the output and the gradients
    are cast, scores and sums are binary32, and delta reads the cast output. Key tiles go up; they
    have 128 keys, or 64 with 64 features or fewer. Not compared with hardware; the order and the
    arithmetic of the matrix unit's sums, and its approximations of 2^x and log2, are not modelled.
    """
    return _read("aiter-ck", f"{COMPOSABLE_KERNEL} casts=toward-zero")


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
    return _read("aiter-asm", f"{COMPOSABLE_KERNEL} casts=ties-to-away")
