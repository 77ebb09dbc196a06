"""Sums of products in MXFP8, MXFP4 and NVFP4 in `linear`, and MMA-Sim's models of Blackwell's
tensor cores (arXiv 2511.10909), which are models too: no hardware is asked.

    python -m tests.checks.against_mma_sim [--store]

needs mmasim (2.1.1) and torch. It prints how many results in binary32 are equal in every bit; with
--store it writes some of MMA-Sim's, which a test reads.
"""

import sys
from pathlib import Path

import numpy as np

from roundscope import emu
from roundscope.operations import run

ROWS, FEATURES, RESULTS = 32, 4096, 16
GOLDEN = Path(__file__).parents[1] / "golden" / "mma_sim_blocks.npz"
SPREADS = (0.0, 2.0, 6.0)
KINDS = {  # the plan, its blocks and MMA-Sim's instruction
    "mxfp8": ("mxfp8_e4m3:rceil", "m128n8k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0"),
    "mxfp4": ("mxfp4", "m128n8k64.kind::mxf4.block32.f32.e2m1.e2m1.ue8m0"),
    "nvfp4": ("e2m1fn[16]*e4m3fn", "m128n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
}


def theirs(x: np.ndarray, w: np.ndarray, block: str, instruction: str) -> np.ndarray:
    """Return x w^T, of which each sum runs through MMA-Sim's model of an instruction."""
    import torch
    from mmasim.nv_ptx.sim import TCGen05MMABlockScale

    model = TCGen05MMABlockScale("Blackwell", instruction)
    a, b = (emu.to_blocks(v, block, axis=1) for v in (x, w))
    left = np.repeat(np.arange(len(x)), len(w))
    right = np.tile(np.arange(len(w)), len(x))
    total = torch.zeros(len(left))
    for lo in range(0, x.shape[1], model.k):
        own = [
            torch.from_numpy(np.asarray(v.elements)[rows, lo : lo + model.k].copy())
            for v, rows in ((a, left), (b, right))
        ]
        blocks = slice(lo // model.block_size, (lo + model.k) // model.block_size)
        scales = [
            torch.from_numpy(np.asarray(v.scales)[rows, blocks].copy()).to(model.s_type)
            for v, rows in ((a, left), (b, right))
        ]
        total = model.dpa(*(_stored(v, model) for v in own), total, *scales)
    return total.numpy().reshape(len(x), len(w))


def _stored(v, model):  # type: ignore[no-untyped-def]
    """Return elements as a model takes them: of two E2M1 numbers, the codes in one byte."""
    import torch

    if model.packing == 1:
        return v.to(model.a_type)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = (v.abs()[..., None] == values).to(torch.uint8).argmax(-1).to(torch.uint8)
    codes |= torch.signbit(v).to(torch.uint8) << 3
    return codes[..., ::2] | codes[..., 1::2] << 4


def numbers(rows: int, features: int, results: int, spread: float) -> tuple[np.ndarray, ...]:
    """Return x and the weight, whose exponents spread as a normal distribution."""
    rng = np.random.default_rng(int(spread))
    return tuple(
        (rng.normal(size=(n, features)) * 2.0 ** rng.normal(0, spread, (n, features))).astype("f4")
        for n in (rows, results)
    )


def ours(name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return what a plan computes, without scales of tensors, which no tensor core has."""
    block = KINDS[name][0]
    plan = f"{name}; OUT=fp32 X={block} W={block}"
    found: np.ndarray = run("linear", plan, {"x": x, "weight": w}).outputs["out"]
    return found


def main() -> None:
    """Compare."""
    kept = {}
    for name, kind in KINDS.items():
        for spread in SPREADS:
            x, w = numbers(ROWS, FEATURES, RESULTS, spread)
            mine, wanted = ours(name, x, w), theirs(x, w, *kind)
            print(f"{name} spread 2^{spread:g}: {(mine == wanted).sum()} of {mine.size} equal")
            x, w = numbers(6, 1024, 5, spread)
            kept[f"{name} {spread:g}"] = theirs(x, w, *kind)
    if "--store" in sys.argv:
        np.savez_compressed(GOLDEN, **kept)


if __name__ == "__main__":
    main()
