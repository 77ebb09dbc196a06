"""`linear`'s FP8 plans and mmaemu on the same inputs, with a Hopper GPU's results as the judge.

    python -m tests.checks.against_mmaemu [--numbers 2e6]

needs mmaemu (pip install mmaemu), which is called as its documentation says and not read. It prints
for each group of recorded calls how many numbers of each side equal the recording's, then a larger
comparison of the two sides alone, what mmaemu decides about splits, and both times.
"""

import json
import os
import time
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from roundscope.operations import run
from tests.checks.gpu_operations import inputs as recorded_inputs
from tests.checks.gpu_scaled_mm import BYTES, GOLDEN, corner
from tests.checks.scaled_mm_cases import TYPES, Call, calls, inputs, plan_words
from tests.operations.gpu_cases import digest, golden
from tests.operations.test_scaled_mm import of_corner

MOST = 2**24  # products of a recorded call that both sides compute
SHAPES = ((128, 96, 256), (64, 256, 192), (128, 512, 128), (32, 1040, 64))


def rival(call: Call, given: dict[str, np.ndarray], splits: int | str) -> np.ndarray:
    """Return what mmaemu.scaled_mm computes on the CPU, for the H100 PCIe of its documentation."""
    import mmaemu

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = mmaemu.scaled_mm(*_arguments(call, given), **_settings(call, splits))
    import torch

    return out.view(getattr(torch, BYTES[call.out])).numpy().view(TYPES[call.out])


def _arguments(call: Call, given: dict[str, np.ndarray]) -> tuple[Any, ...]:
    import torch

    def tensor(x: np.ndarray) -> Any:
        name = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
        if x.dtype.name not in name:
            return torch.from_numpy(x.astype(np.float32))
        return torch.from_numpy(x.view(np.uint8).copy()).view(name[x.dtype.name])

    x, w, by_x, by_w = (tensor(given[n]) for n in ("x", "weight", "x_scale", "weight_scale"))
    bias = tensor(given["bias"]) if "bias" in given else None
    return x, w.t(), by_x, by_w if call.scales == "tensor" else by_w.t(), bias


def _settings(call: Call, splits: int | str) -> dict[str, Any]:
    import torch

    kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
    own = (splits, "contiguous") if isinstance(splits, int) and splits > 1 else splits
    return {
        "out_dtype": kinds.get(call.out, torch.float16 if call.out == "fp16" else torch.float32),
        "use_fast_accum": call.fast,
        "splitk": own,
        "profile": "hopper",
    }


def ours(call: Call, given: dict[str, np.ndarray], splits: int) -> np.ndarray:
    """Return what `linear` computes."""
    found: np.ndarray = run("linear", plan_words(call, splits), given).outputs["out"]
    return found


def equal(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many numbers are equal in every bit; all NaNs are one."""
    same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    return int((same | (np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32)))).sum())


def judged() -> None:
    """Print the recorded calls: numbers, which side gives the recording's digest."""
    notes = json.loads(GOLDEN.read_text())["cases"]
    table: dict[str, Counter[str]] = {}
    decided: Counter[str] = Counter()
    for name, call in ((f"{n:03d}/{c.name}", c) for n, c in enumerate(calls())):
        note = notes[name]
        row = table.setdefault(f"{call.group}, {call.scales}", Counter())
        if "sha256" in note and call.scales == "tensor" and not call.bias:
            decided[_decision(call, note["splits"])] += 1
        if np.prod(corner(call)) * call.k > MOST:
            row["left out: long"] += 1
            continue
        given = of_corner(call)
        if "sha256" in note:
            row["calls"] += 1
            row["numbers"] += int(np.prod(corner(call)))
            if call.scales != "blocks":
                mine = ours(call, given, note["splits"])
                row["ours"] += digest(mine) == note["sha256"]
        try:
            theirs = rival(call, given, note.get("splits", 1))
        except Exception as error:
            row[f"mmaemu: {type(error).__name__}"] += 1
            continue
        if "sha256" not in note:
            row["torch refuses, mmaemu does not"] += 1
            continue
        row["mmaemu"] += digest(theirs) == note["sha256"]
        row["same"] += equal(mine, theirs)
    for group, row in table.items():
        print(f"{group:24}", dict(row), flush=True)
    print("splits, as the profile decides:", dict(decided), flush=True)


def judged_by_an_h100() -> None:
    """Print how many of the calls recorded on an H100 mmaemu gives; ours are test_on_a_gpu's."""
    notes = {name: note for name, note in golden().items() if "/scaled_mm/" in name}
    counts: Counter[str] = Counter()
    for name, note in notes.items():
        out, how = name.split("/")[2:4]
        if not how.startswith("tensor"):
            continue
        given = recorded_inputs(note)
        rows, results = note["corner"]
        rows, results = (rows, results) if len(given["x"]) > 1 else (1, 1024)
        given["x"], given["weight"] = given["x"][:rows], given["weight"][:results]
        call = Call(0, 0, 0, out=out.partition("-")[2], fast=how.endswith("fast"))
        counts["calls"] += 1
        counts["mmaemu"] += digest(rival(call, given, 1)) == note["sha256"]
    print("on an H100, scales of tensors:", dict(counts), flush=True)


def _decision(call: Call, splits: int) -> str:
    """Return how mmaemu's own decision about splits compares with the recorded kernel."""
    import mmaemu

    x, w = np.zeros((call.m, call.k), TYPES[call.a]), np.zeros((call.n, call.k), TYPES[call.b])
    one = np.ones((), np.float32)
    empty = {"x": x, "weight": w, "x_scale": one, "weight_scale": one}
    plan = mmaemu.explain(*_arguments(call, empty), **_settings(call, "auto"))
    if plan.split is None:  # the table and the envelope do not decide it
        return "unknown"
    return "as recorded" if splits == plan.split.S else "another number than recorded"


def bulk(numbers: float) -> Iterator[tuple[Call, int]]:
    """Yield calls that both sides compute, of at least so many numbers."""
    seed, count = 500_000, 0.0
    while count < numbers:
        for m, k, n in SHAPES:
            for family in ("normal", "codes", "sparse", "tiny", "cancel", "special"):
                for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")):
                    seed += 10
                    out = ("fp32", "bf16", "fp16")[seed // 10 % 3]
                    size = ("plain", "one", "huge", "tiny", "over")[seed // 10 % 5]
                    splits = (1, 1, 2, 3)[seed // 10 % 4] if k > 256 else 1
                    count += m * n
                    fast = seed // 20 % 2 == 0
                    yield (
                        Call(m, k, n, a, b, out, fast, family=family, size=size, seed=seed),
                        splits,
                    )


def compared(numbers: float) -> None:
    """Print the comparison of both sides without a recording."""
    total: Counter[str] = Counter()
    for call, splits in bulk(numbers):
        given = inputs(call)
        mine, theirs = ours(call, given, splits), rival(call, given, splits)
        total[f"{call.family}: numbers"] += mine.size
        total[f"{call.family}: equal"] += equal(mine, theirs)
        if equal(mine, theirs) < mine.size:
            differ = mine.size - equal(mine, theirs)
            print("differs", call.name, splits, differ, flush=True)
    print(dict(total))


def timed() -> None:
    """Print the times of both sides on the same calls, the best of three in seconds."""
    for m, k, n in ((64, 1024, 64), (256, 1024, 256), (256, 4096, 256)):
        for fast in (True, False):
            call = Call(m, k, n, out="fp32", fast=fast, family="codes")
            given = inputs(call)
            best = {}
            for name, side in (("ours", ours), ("mmaemu", rival)):
                times = []
                for _ in range(3):
                    start = time.perf_counter()
                    side(call, given, 1)
                    times.append(time.perf_counter() - start)
                best[name] = min(times)
            told = "  ".join(f"{name} {t:.3f} s" for name, t in best.items())
            print(f"{m}x{k}x{n} {'fast' if fast else 'slow'}  {told}")


def main() -> None:
    """Compare."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=float, default=2e6)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    judged()
    judged_by_an_h100()
    compared(given.numbers)
    timed()


if __name__ == "__main__":
    main()
