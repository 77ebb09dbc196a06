"""Outputs of real kernels in calls with few heads or queries, and in FP8 with scales; and which of
some plans has their bits.

    python -m tests.checks.gpu_sizes --out FOLDER [--only math,xla,flash,cudnn,fp8]   on a GPU
    python -m tests.checks.gpu_sizes FOLDER                                           anywhere
"""

import argparse
import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

from roundscope.attention import Plan
from roundscope.attention.plans.sizes import plan_of_call
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs
from roundscope.emu import round_to
from roundscope.tools.identify.adapters import kernel
from roundscope.tools.identify.candidates import Candidate, emulated
from tests.checks.engines import normal

PARTS = ("out", "dq", "dk", "dv")
SUMS = {"out": "PV", "dq": "DQ", "dk": "DK", "dv": "DV"}
CHUNKS = (0, 32, 64, 96, 128, 192, 256, 384, 512)
KERNELS = {"math": "sdpa-math", "xla": "jax-xla", "flash": "sdpa-flash", "cudnn": "sdpa-cudnn"}
KERNELS["fp8"] = "cudnn-fp8"
SPLITS = (0, 2, 3, 4, 5, 6, 8, 12, 16)


def sizes(group: str) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield queries, keys, query heads, key heads and features of the calls of a group."""
    if group in ("math", "xla"):
        for tokens in (128, 256, 512, 1024):
            yield from ((tokens, tokens, n, n, 64) for n in (1, 2, 3, 4, 6, 8, 12))
        yield from ((512, 512, n, n, h) for n in (1, 4) for h in (32, 128))
        yield from ((300, 300, 1, 1, 64), (1, 640, 1, 1, 64), (1, 640, 4, 4, 64))
    elif group == "flash":
        yield from ((1, 4096, n, n, 128) for n in (8, 48, 88, 100, 132, 220))
        yield from ((1, 2048, 8, 2, 64), (4, 2048, 2, 2, 64), (64, 1024, 12, 12, 64))
    elif group == "cudnn":
        yield from ((1, s, 4, 4, 64) for s in (128, 256, 384, 512, 640, 1024, 1100, 2048, 4096))
        yield from ((1, 640, n, n, 64) for n in (1, 16, 64, 256))
        yield from ((1, 640, 4, 4, 128), (1, 640, 8, 2, 64), (2, 640, 4, 4, 64), (3, 640, 4, 4, 64))
    else:
        yield (512, 512, 2, 2, 128)


SCALES: dict[str, dict[str, float]] = {  # of the calls in FP8
    "descale_q": {"descale_q": 0.7},
    "descale_k": {"descale_k": 1.3},
    "descale_qk": {"descale_q": 0.7, "descale_k": 1.3},
    "descale_v": {"descale_v": 0.9},
    "scale_o": {"scale_o": 3.0},
    "descale_v-scale_o": {"descale_v": 0.9, "scale_o": 3.0},
    "all": {"descale_q": 0.7, "descale_k": 1.3, "descale_v": 0.9, "scale_s": 256.0, "scale_o": 3.0},
    "powers": {"descale_q": 0.5, "descale_k": 2.0, "descale_v": 0.25, "scale_o": 4.0},
}


def calls(group: str) -> Iterator[tuple[str, Inputs]]:
    """Yield the calls of a group by their labels."""
    for t, s, n, g, h in sizes(group):
        shapes = ((t, n), (s, g), (s, g), (t, n))
        q, k, v, do = (normal(900 + i, 1, rows, heads, h) for i, (rows, heads) in enumerate(shapes))
        call: dict[str, Any] = {"do": do, "scale": h**-0.5, "is_causal": False}
        label = f"{KERNELS[group]}/{t}x{s}x{n}x{g}x{h}"
        if group != "fp8":
            yield label, Inputs(q=q, k=k, v=v, **call)
            continue
        for name, own in SCALES.items():
            arrays = dict(zip("qkv", (q, k, v), strict=True))
            scales = {x: np.full((1, g), y, np.float32) for x, y in own.items()}
            if "scale_s" in scales:
                scales["scale_s"] = np.array(own["scale_s"], np.float32)
            for role, x in arrays.items():
                stored = np.asarray(round_to(x, "e4m3fn"), np.float32)
                arrays[role] = stored * np.float32(own.get(f"descale_{role}", 1.0))
            call["do"] = np.asarray(round_to(do, "e4m3fn"), np.float32)
            yield f"{label}/{name}", Inputs(**arrays, **call, scales=scales)


def record(folder: Path, groups: list[str]) -> None:
    """Write what the kernels return: BF16 and FP8 numbers as the upper halves of FP32."""
    folder.mkdir(parents=True, exist_ok=True)
    for group in groups:
        arrays = {}
        for label, x in calls(group):
            try:
                outputs = kernel(KERNELS[group])(x)
            except Exception as error:
                print(f"{label}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                traceback.print_exc(limit=-2)
                continue
            for part, array in outputs.named():
                word = np.ascontiguousarray(array, np.float32).view(np.uint32)
                whole = part == "lse" or bool((word & 0xFFFF).any())
                arrays[f"{label}/{part}"] = array if whole else (word >> 16).astype(np.uint16)
            print(f"{label}: recorded", flush=True)
        np.savez_compressed(folder / f"{group}.npz", **arrays)


def plans(group: str, x: Inputs) -> Iterator[tuple[str, Candidate]]:
    """Yield the plans that are compared with a call, by what is changed."""
    width, keys = x.q.shape[3], x.k.shape[1]
    if group in ("math", "xla"):
        plan = Plan.preset(KERNELS[group])
        for chunk in CHUNKS:
            words = " ".join(f"{site}.sum=chunked{chunk}" for site in SUMS.values())
            own = plan.changed(words) if chunk else plan
            yield f"chunks of {chunk}" if chunk else "twin", Candidate(plan=own, block_k=keys)
        return
    call = plan_of_call(KERNELS[group], x.q.shape, x.k.shape)
    yield f"plan_of_call: {call['plan'].name}", Candidate(**call)
    if group == "flash":
        few = TWINS["fa2-split"]
        for tiles in (0, 1, 2, 4, 8, 16):
            own = few.plan.changed(f"split_tiles={tiles}")
            block = min(few.tiles(width, False)[1], keys)
            yield f"split_tiles={tiles}", Candidate(plan=own, block_k=block)
    elif group == "cudnn":
        yield "cudnn", Candidate(plan=TWINS["cudnn"].plan, block_k=min(128, keys))
        for count in SPLITS:
            own = TWINS["cudnn-split"].plan.changed(f"split_count={count}")
            yield f"split_count={count}", Candidate(plan=own, block_k=min(128, keys))
    else:
        for words in ("descales=operands", "INV=fp64", "reciprocal=correct"):
            own = call["plan"].changed(words)
            yield words, Candidate(plan=own, block_k=min(256, keys), block_q=64)


def compare(folder: Path) -> None:
    """Print, for each call and plan, how many numbers of each part differ in the first key head."""
    for group in KERNELS:
        if not (folder / f"{group}.npz").exists():
            continue
        arrays = np.load(folder / f"{group}.npz")
        for label, x in calls(group):
            if f"{label}/out" not in arrays:
                continue
            has_do = f"{label}/dq" in arrays
            rows = {}
            for words, c in plans(group, x):
                try:
                    do = x.do if has_do else None
                    got = emulated(c, x.q, x.k, x.v, do, scales=x.scales, **x.options)
                except ValueError as error:
                    rows[words] = {"refused": str(error)[:80]}
                    continue
                rows[words] = {
                    part: int(
                        (np.asarray(getattr(got, part)) != _wide(arrays[f"{label}/{part}"])).sum()
                    )
                    for part in PARTS
                    if f"{label}/{part}" in arrays
                }
            print(label, json.dumps(rows), flush=True)


def _wide(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def main() -> None:
    """Record on a GPU, or compare what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(KERNELS))
    options = parser.parse_args()
    if options.out is not None:
        record(options.out, options.only.split(","))
    if options.folder is not None:
        compare(options.folder)


if __name__ == "__main__":
    main()
