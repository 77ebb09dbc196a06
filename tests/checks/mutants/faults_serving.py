"""Faults of serving: splits of the keys, packed sequences, scales in FP8, and plans by size."""

from tests.checks.mutants.faults import Fault

SCALES = ("tests/attention/test_scales.py", "tests/tools/identify/test_scaled_calls.py")
PACKED = ("tests/attention/test_packed.py", "tests/tools/tensors/test_packed_tensors.py")
SIZES = ("tests/attention/test_sizes.py",)

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="splits-next-to-each-other",
        kind="splits of the keys",
        imitates="Key tiles are given to the splits in rows, and not dealt in turn.",
        file="attention/tiles/forward.py",
        old="parts[own::count]",
        new="parts[own * len(parts) // count : (own + 1) * len(parts) // count]",
        tests=("tests/attention/test_sizes.py", "tests/attention/test_tile_orders.py"),
    ),
    Fault(
        name="splits-of-one-wave",
        kind="plans by size",
        imitates="The best number of splits is taken, and not the fewest that are nearly as good.",
        file="attention/plans/sizes.py",
        old="if share >= 0.85 * max(full.values()))",
        new="if share >= max(full.values()))",
        tests=SIZES,
    ),
    Fault(
        name="keys-of-the-queries",
        kind="packed sequences",
        imitates="The keys of a sequence are cut by the lengths of the queries.",
        file="attention/inputs/packed.py",
        old="            k[None, s:to_s],",
        new="            k[None, t:to_t],",
        tests=PACKED,
    ),
    Fault(
        name="gradients-of-packed-keys",
        kind="packed sequences",
        imitates="dK and dV of a packed file are cut by the queries.",
        file="tools/identify/reading.py",
        old='keys if name in ("dk", "dv") else queries',
        new="queries",
        tests=PACKED,
    ),
    Fault(
        name="scale-of-the-first-head",
        kind="scales in FP8",
        imitates="The scale of a head is that of the first key head.",
        file="attention/inputs/scales.py",
        old="    return xp.broadcast_to(scale, (batch, heads)).reshape(-1)",
        new="    return xp.broadcast_to(scale[..., :1] if scale.ndim else scale,"
        " (batch, heads)).reshape(-1)",
        tests=SCALES,
    ),
    Fault(
        name="scale-before-log2-e",
        kind="scales in FP8",
        imitates="The scale of K enters before log2 e, so that c is rounded in another order.",
        file="attention/tiles/loops.py",
        old="        factor = in_base2(ops, plan, scale) if in_c else scale\n",
        new="        in_c, factor = False, scale\n",
        tests=SCALES,
    ),
    Fault(
        name="scale-of-v-after-the-output",
        kind="scales in FP8",
        imitates="1 / l times the scale of V is not rounded.",
        file="attention/algorithm.py",
        old="            inv = at.ops.round(inv, BINARY32, None)",
        new="            pass",
        tests=SCALES,
    ),
    Fault(
        name="scales-that-the-kernel-has-already",
        kind="scales in FP8",
        imitates="A plan with scales in the products gets numbers that contain them.",
        file="tools/identify/candidates.py",
        old="        q, k, v = stored_operands(q, k, v, scales)",
        new="        pass",
        tests=SCALES,
    ),
)
