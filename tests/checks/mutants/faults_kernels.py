"""Faults in our fused kernels: sums of rows, parts of tiles, and what is kept in memory."""

from tests.checks.mutants.faults import Fault

TWINS = ("tests/attention/engines/test_twins_on_engines.py",)
DELTA = ("tests/attention/engines/test_pallas_delta.py",)
HOPPER = ("tests/attention/engines/test_hopper.py",)
OPS = "emu/backends/kernels/ops.py"

FAULTS = (
    Fault(
        name="rescaled-sum-rounded-twice",
        kind="two roundings",
        imitates="A multiply-add of a compiled kernel rounds its product before the sum.",
        file="attention/softmax/row_sums.py",
        old="    if not at.plan.registers:\n",
        new="    if True:\n",
        tests=("tests/attention/test_rescaling.py",),
    ),
    Fault(
        name="first-of-a-lane-unrounded",
        kind="missing rounding",
        imitates="A lane of a strided row sum begins with a number that is not rounded.",
        file=OPS,
        old="x = x if single else machine.round(x, acc.step, None)",
        new="x = x if single else x",
        tests=TWINS,
    ),
    Fault(
        name="tile-rounded-in-slices",
        kind="order of sums",
        imitates="The part of a tile is rounded after every slice of 16 rows.",
        file="attention/engines/kernels/call.py",
        old="are_whole = setup.plan.gradients_apart is GradientsApart.NONE",
        new="are_whole = True",
        tests=TWINS,
    ),
    Fault(
        name="pages-of-octets-mixed",
        kind="order of sums",
        imitates="Lanes of delta add the first numbers of all pages before the second ones.",
        file=OPS,
        old="return [column for page in zip(*parts, strict=True) for column in page]",
        new="return [column for part in map(list, parts) for column in part]",
        tests=DELTA,
    ),
    Fault(
        name="first-tile-like-others",
        kind="tiles",
        imitates="The first query tile of a kernel divides by the row sum that memory rounded.",
        file="attention/engines/kernels/forward.py",
        old="is_apart = jnp.full(setup.block_q, i == 0)",
        new="is_apart = jnp.full(setup.block_q, i < 0)",
        tests=TWINS,
    ),
    Fault(
        name="scores-without-memory",
        kind="memory",
        imitates="A kernel writes the gradients of all scores, however many there are.",
        file="attention/engines/kernels/backward.py",
        old="by_scores = wanted and size <= SCORE_BYTES",
        new="by_scores = wanted",
        tests=HOPPER,
    ),
)
