"""Our speed as a ratio, against the least that is accepted: `make bench-check`.

    python -m tests.checks.bench_check

Ratios to a copy of the same bytes, or to NumPy's float32 product, each from one interleaved run
(`roundscope bench`), so the machine's own speed cancels. A limit is about three quarters of the
ratio in docs/notes/measurements.md, on 2 cores with AVX-512. Exit code 1 if one is missed.
"""

import sys
from collections.abc import Iterator

from roundscope.tools.bench import mx
from roundscope.tools.bench.attention import SIZES, bench_attention
from roundscope.tools.bench.dot import bench_dot
from roundscope.tools.bench.round import ROUNDING, bench

SIZE = 1 << 25
ROUND = {"bf16": 0.72, "e4m3fn": 0.72}
STATS = {"bf16": 0.3, "e4m3fn": 0.29}
BLOCKS = {"mxfp8_e4m3": 0.38, "mxfp4": 0.38}
SUMS = {
    ("bf16", "Hopper"): 0.011,
    ("e4m3fn", "Hopper"): 0.012,
    ("bf16", "ascending, FP32 steps"): 0.05,
}
ATTENTION = {  # on the CPU: the speed of attention that emulates nothing is 1
    "numpy: fa2-bf16": 0.34,
    "numpy in jit: fa2-bf16": 0.28,
    "numpy: fa2-bf16, traced": 0.2,
    "numpy: fa2, Hopper's sums": 0.138,
    "numpy: fa2, traced": 0.095,
}


def measured() -> Iterator[tuple[str, float, float]]:
    """(what, ratio, the least)."""
    for contest, limits in ((ROUNDING, ROUND), (mx.BLOCKS, BLOCKS)):
        for row in bench(contest, SIZE, formats=tuple(limits)):
            least = {"ours": limits, "ours, with Stats": STATS}.get(row.name)
            if least is not None:
                yield (
                    f"bench {contest.name}: {row.format}, {row.name}, of a copy",
                    float(row.of_copy or 0.0),
                    least[row.format],
                )
    for row in bench_dot():
        if (row.operand, row.name) in SUMS:
            yield (
                f"bench dot: {row.operand}, {row.name}, of matmul",
                float(row.of_matmul or 0.0),
                SUMS[row.operand, row.name],
            )
    for row in bench_attention(lambda done: None, sizes=SIZES["cpu"][:1]):
        if row.what in ATTENTION:
            yield f"bench attention: {row.what}, of jax.nn", 1.0 / row.times, ATTENTION[row.what]


def main() -> int:
    slow = 0
    for what, ratio, least in measured():
        slow += ratio < least
        print(
            f"{what:<56}{ratio:8.3g}   at least {least:<6g}{'SLOW' if ratio < least else ''}",
            flush=True,
        )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
