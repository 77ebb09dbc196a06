"""Writes tests/golden/mma_sim.npz: what MMA-Sim (arXiv 2511.10909) says of sums of products, with
inputs.

    pip install mmasim     # 2.1.1 with torch 2.15 were used
    python -m tests.emu.sums.mma_sim [sums per case]

No test needs MMA-Sim: they read the file. Inputs of a case: random codes, NaN and infinities among
them; finite random codes; normal numbers; a wide range of exponents; mostly zeros; numbers about
the smallest normal one times normal ones; sums that cancel.
"""

import sys
from pathlib import Path

import numpy as np

PATH = Path(__file__).parents[2] / "golden" / "mma_sim.npz"
KINDS = ("codes", "finite", "normal", "wide", "sparse", "tiny", "cancelling")
SMALLEST = {"fp16": -14, "bf16": -126, "tf32": -126, "e4m3fn": -6, "e5m2": -14, "fp32": -126}


def cases():
    """(architecture, type of the factors, format of the sum) -> MMA-Sim's model."""
    from mmasim.nv_ptx.sim import MMA, WGMMA, TCGen05MMA

    short = {
        "fp16": "f16",
        "bf16": "bf16",
        "tf32": "tf32",
        "e4m3fn": "e4m3",
        "e5m2": "e5m2",
        "fp32": "f32",
    }
    sizes = {
        "volta": "m8n8k4",
        "turing": "m16n8k8",
        "fp16": "m16n8k16",
        "bf16": "m16n8k16",
        "tf32": "m16n8k8",
        "e4m3fn": "m16n8k32",
    }
    found = {}
    for arch, title in (
        ("volta", "Volta"),
        ("turing", "Turing"),
        ("ampere", "Ampere"),
        ("ada", "Ada Lovelace"),
    ):
        types = {"volta": ("fp16",), "turing": ("fp16",), "ampere": ("fp16", "bf16", "tf32")}.get(
            arch, ("fp16", "bf16", "e4m3fn", "e5m2")
        )
        for t in types:
            for total in ("fp32", "fp16") if t in ("fp16", "e5m2") else ("fp32",):
                size = sizes.get(arch) or sizes["e4m3fn" if t == "e5m2" else t]
                found[arch, t, total] = MMA(
                    title, f"{size}.{short[total]}.{short[t]}.{short[t]}.{short[total]}"
                )
    for t, k in (("fp16", 16), ("bf16", 16), ("tf32", 8), ("e4m3fn", 32), ("e5m2", 32)):
        for total in ("fp32", "fp16") if t in ("fp16", "e4m3fn", "e5m2") else ("fp32",):
            kind = "tf32" if t == "tf32" else "f16" if k == 16 else "f8f6f4"
            found["hopper", t, total] = WGMMA(
                "Hopper", f"m64n8k{k}.{short[total]}.{short[t]}.{short[t]}"
            )
            found["blackwell", t, total] = TCGen05MMA(
                "Blackwell", f"m64n8k{k}.kind::{kind}.{short[total]}.{short[t]}.{short[t]}"
            )
    return found


def numbers(rng, kind, shape, t):
    """Numbers of one type as a torch tensor."""
    import torch

    types = {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "e4m3fn": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
    }
    own = types.get(t, torch.float32)
    if kind in ("codes", "finite"):
        word = {1: np.uint8, 2: np.int16, 4: np.int32}[own.itemsize]
        x = (
            torch.from_numpy(
                rng.integers(0, 2 ** (8 * own.itemsize), shape, dtype=np.uint64).astype(word)
            )
            .view(own)
            .float()
        )
        x = x if kind == "codes" else torch.where(torch.isfinite(x), x, 0.0)
    else:
        x = rng.standard_normal(shape)
        scale = {
            "wide": 2.0 ** rng.integers(-12, 8, shape),
            "sparse": rng.random(shape) < 0.2,
            "tiny": 2.0 ** SMALLEST[t] * (rng.random(shape) < 0.8),
        }.get(kind, 1.0)
        x = torch.from_numpy((x * scale).astype(np.float32))
    if t == "tf32":
        x = (x.view(torch.int32) >> 13 << 13).view(torch.float32)
    return x.to(own)


def main(sums=3):
    rng, found = np.random.default_rng(2511), {}
    for (arch, t, total), model in cases().items():
        for kind in KINDS:
            shape = (sums, 3 * model.arithmetic_op.L_max)
            a = numbers(rng, kind, shape, t)
            b = numbers(rng, "normal" if kind == "tiny" else kind, shape, t)
            if kind == "cancelling":
                half = shape[1] // 2
                a[:, half : 2 * half] = a[:, :half]
                b[:, half : 2 * half] = (-b[:, :half].float()).to(b.dtype)
            c = numbers(rng, "sparse" if kind in ("normal", "cancelling") else kind, (sums,), total)
            d = model.dpa(a.clone(), b.clone(), c.clone())
            for name, x in zip("abcd", (a, b, c, d), strict=True):
                found[f"{arch} {t} {total} {kind} {name}"] = x.float().numpy()
    np.savez_compressed(PATH, **found)
    print(f"{len(found) // 4} cases of {sums} sums: {PATH}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
