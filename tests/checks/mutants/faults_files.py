"""Faults in what a call means and what a file says: alignment, types, scales, what overrules."""

from tests.checks.mutants.faults import Fault

ALIGNMENT = ("tests/attention/test_alignment.py",)
FILES = ("tests/tools/tensors/test_types.py",)
LOOPS = "attention/tiles/loops.py"
SCALES = "tools/tensors/files.py"

OF_ALIGNMENT = (
    Fault(
        name="rows-of-a-tile-from-the-first",
        kind="alignment",
        imitates="The mask is aligned, but which rows see a key of a tile is not.",
        file=LOOPS,
        old="at = t + setup.shift",
        new="at = t",
        tests=ALIGNMENT,
    ),
    Fault(
        name="cut-tiles-from-the-first",
        kind="alignment",
        imitates="Which tiles the diagonal cuts, and so the order of tiles, is not aligned.",
        file=LOOPS,
        old="return (i * setup.block_q + setup.shift, (i + 1) * setup.block_q + setup.shift), (",
        new="return (i * setup.block_q, (i + 1) * setup.block_q), (",
        tests=ALIGNMENT,
    ),
    Fault(
        name="window-from-the-first",
        kind="alignment",
        imitates="The diagonal moves to the last key, and the window stays at the first.",
        file=LOOPS,
        old="gap = t[:, None] + setup.shift - s[None, :]",
        new="gap = t[:, None] - s[None, :]",
        tests=ALIGNMENT,
    ),
    Fault(
        name="rows-before-the-first-key",
        kind="alignment",
        imitates="Rows that stand before the first key divide 0 by 0.",
        file="attention/tiles/forward.py",
        old="is_blind = setup.is_causal and setup.shift < 0",
        new="is_blind = False",
        tests=ALIGNMENT,
    ),
    Fault(
        name="no-note-of-windows",
        kind="silence",
        imitates="A windowed call with fewer queries than keys is aligned without a word.",
        file="attention/inputs/alignment.py",
        old="or queries == keys or not (is_causal or window)",
        new="or queries == keys or not is_causal",
        tests=ALIGNMENT,
    ),
)

OF_FILES = (
    Fault(
        name="scales-ignored",
        kind="scales of files",
        imitates="k_scale of an FP8 cache is read, and multiplies nothing.",
        file=SCALES,
        old="products = wide.astype(np.float64) * factor",
        new="products = wide.astype(np.float64) * np.ones_like(factor)",
        tests=FILES,
    ),
    Fault(
        name="scales-of-heads-along-tokens",
        kind="scales of files",
        imitates="A scale for each head is laid along the tokens of the other layout.",
        file=SCALES,
        old='heads = 1 if layout == "BNTH" else 2',
        new='heads = 2 if layout == "BNTH" else 1',
        tests=FILES,
    ),
    Fault(
        name="unknown-scales-ignored",
        kind="silence",
        imitates="A scale whose name is not known is dropped.",
        file=SCALES,
        old='if own in ("", prefix) and LIKE_SCALE.fullmatch(last) and not is_scale(last):',
        new="if False:",
        tests=FILES,
    ),
    Fault(
        name="high-nibble-first",
        kind="types of files",
        imitates="The two FP4 numbers of a byte are read in the wrong order.",
        file="tools/tensors/files.py",
        old="np.stack([data & 15, data >> 4], axis=-1)",
        new="np.stack([data >> 4, data & 15], axis=-1)",
        tests=FILES,
    ),
    Fault(
        name="none-is-not-given",
        kind="what overrules a file",
        imitates="0 on the command line counts as not given, so that the file's window stays.",
        file="tools/tensors/layers.py",
        old="for n, x in given.items() if x is not None}",
        new="for n, x in given.items() if x}",
        tests=FILES,
    ),
    Fault(
        name="fp16-on-a-plan-in-bf16",
        kind="types of files",
        imitates="FP16 tensors are rounded to BF16 by the default plan, without a word.",
        file="attention/plans/named.py",
        old='return name + SUFFIX if "float16" in own and "bfloat16" not in own else name',
        new="return name",
        tests=FILES,
    ),
)

FAULTS: tuple[Fault, ...] = (*OF_ALIGNMENT, *OF_FILES)
