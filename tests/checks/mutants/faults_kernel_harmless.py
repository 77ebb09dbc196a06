"""Changes of the reference kernel that are no faults: a check that objects to them is wrong.

Their results have other bits and errors of the same size.
"""

from tests.checks.mutants.kernel_fault import Fault

HARMLESS = (
    Fault(
        name="other-tiles",
        level="harmless",
        shows="gaussian",
        imitates="Tiles have 64 queries and 128 keys instead of 128 and 64.",
        old="BLOCK_Q, BLOCK_K = 128, 64",
        new="BLOCK_Q, BLOCK_K = 64, 128",
    ),
    Fault(
        name="descending-keys",
        level="harmless",
        shows="gaussian",
        imitates="Key tiles go from the last to the first, as in FlashAttention-3.",
        old="in tiles(0, last_key(rows, k.shape[2], is_causal), BLOCK_K):",
        new="in in_order(tiles(0, last_key(rows, k.shape[2], is_causal), BLOCK_K), batch=2):",
    ),
    Fault(
        name="exp-in-base-2",
        level="harmless",
        shows="gaussian",
        imitates="exp(x) is computed as 2^(x log2 e), for which a GPU has an instruction.",
        old="p = np.exp(s - base)",
        new="p = np.exp2((s - base) * np.float32(1.4426950))",
    ),
    Fault(
        name="row-sum-of-rounded-p",
        level="harmless",
        shows="gaussian",
        imitates="The row sum adds the P that meets V, in BF16, and not the P before its cast.",
        old="p.sum(-1, keepdims=True)",
        new="bf16(p).sum(-1, keepdims=True)",
    ),
    Fault(
        name="scale-in-float32-first",
        level="harmless",
        shows="gaussian",
        imitates="Q is scaled in float32, by a factor that is no power of two, before the product.",
        old="return q @ turned(k) * scale",
        new="return (q * (scale * np.float32(1.4426950))) @ turned(k) * np.float32(0.6931472)",
    ),
    Fault(
        name="reciprocal-in-float32",
        level="harmless",
        shows="gaussian",
        imitates="The output is multiplied by the float32 reciprocal of the row sum.",
        old="bf16(o / l)",
        new="bf16(o * (1 / l))",
    ),
)
