"""Sums of matrix units that were not compared with hardware against MMA-Sim (arXiv 2511.10909), a
model too: AMD's matrix cores, RTX Blackwell, FP6 and FP4 on Blackwell, and factors in blocks.

    pip install mmasim     # 2.1.1 with torch 2.13 were used
    python -m tests.checks.other_hardware [--sums 14700] [--only cdna3] [--store]

Every sum has three chunks and an init; it is equal if all bits are, NaN without sign or payload.
Kinds of input: random codes, infinities and NaN among them; finite codes; normal numbers; a wide
range of exponents; mostly zeros; numbers about the smallest normal one times normal ones; sums that
cancel. Speed is of 256 x 256 sums of 256 normal products, for a second of one core, and MMA-Sim's
that of the sums compared. --store writes a few sums of each case to
tests/golden/mma_sim_others.npz, which a test reads.
"""

import argparse
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from roundscope import emu
from roundscope.emu import Accumulator
from roundscope.emu.sums.tensor_cores import products_of

PATH = Path(__file__).parents[1] / "golden" / "mma_sim_others.npz"
SIDE = 3  # rows of each factor whose sums are stored
KINDS = ("codes", "finite", "normal", "wide", "sparse", "tiny", "cancelling")
AMD = {
    "cdna1": {
        "fp32": "f32_16x16x4f32",
        "fp16": "f32_16x16x16f16",
        "bf16": "f32_16x16x8bf16",
    },
    "cdna2": {
        "fp32": "f32_16x16x4f32",
        "fp16": "f32_16x16x16f16",
        "bf16": "f32_16x16x16bf16_1k",
        "bf16/2": "f32_16x16x8bf16",
    },
    "cdna3": {
        "fp32": "f32_16x16x4_f32",
        "fp16": "f32_16x16x16_f16",
        "bf16": "f32_16x16x16_bf16",
        "tf32": "f32_16x16x8_xf32",
        "e4m3fnuz": "f32_16x16x32_fp8_fp8",
        "e5m2fnuz": "f32_16x16x32_bf8_bf8",
        "e4m3fnuz*e5m2fnuz": "f32_16x16x32_fp8_bf8",
        "e5m2fnuz*e4m3fnuz": "f32_16x16x32_bf8_fp8",
    },
}
SHORT = {
    "fp16": "f16",
    "bf16": "bf16",
    "tf32": "tf32",
    "e4m3fn": "e4m3",
    "e5m2": "e5m2",
    "e3m2fn": "e3m2",
    "e2m3fn": "e2m3",
    "e2m1fn": "e2m1",
}
TYPES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
}
CODES = {"e3m2fn": 64, "e2m3fn": 64, "e2m1fn": 16}  # of types with fewer than 8 bits
BLOCKS = {  # blocks, the kind and the type of the scales in the names of the instructions
    "mxfp8_e4m3": ("m{}k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3", "ue8m0"),
    "mxfp8_e5m2": ("m{}k32.kind::mxf8f6f4.block32.f32.e5m2.e5m2", "ue8m0"),
    "mxfp6_e3m2": ("m{}k32.kind::mxf8f6f4.block32.f32.e3m2.e3m2", "ue8m0"),
    "mxfp6_e2m3": ("m{}k32.kind::mxf8f6f4.block32.f32.e2m3.e2m3", "ue8m0"),
    "mxfp4": ("m{}k64.kind::mxf4.block32.f32.e2m1.e2m1", "ue8m0"),
    "e2m1fn[16]*e8m0fnu": ("m{}k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1", "ue8m0"),
    "e2m1fn[16]*e4m3fn": ("m{}k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1", "ue4m3"),
}


class Case(NamedTuple):
    """One accumulator, and the model of MMA-Sim that it is compared with."""

    name: str  # architecture, factors, format of the sum
    acc: Accumulator
    model: Callable[[], Any]
    types: tuple[str, str]
    total: str = "fp32"
    block: str = ""


def plain_cases() -> Iterator[Case]:
    """Return the cases of plain factors."""
    for arch, own in AMD.items():
        for factors, suffix in own.items():
            name, _, chunk = factors.partition("/")
            acc = Accumulator() if name == "fp32" else Accumulator.tensor_core(arch, name)
            acc = replace(acc, chunk=int(chunk)) if chunk else acc
            both = (name.split("*") * 2)[:2]
            yield Case(f"{arch} {factors} fp32", acc, partial(_mfma, arch, suffix), tuple(both))
    for arch in ("rtx_blackwell", "blackwell"):
        for name, short in SHORT.items():
            if arch == "blackwell" and name not in ("e3m2fn", "e2m3fn", "e2m1fn"):
                continue  # tests.emu.sums.mma_sim has the others
            for total in ("fp32",) if name in ("bf16", "tf32") else ("fp32", "fp16"):
                acc = Accumulator.tensor_core(arch, name, total)
                how = partial(_nvidia, arch, name, short, total)
                yield Case(f"{arch} {name} {total}", acc, how, (name, name), total)


def block_cases() -> Iterator[Case]:
    """Return the cases of factors in blocks."""
    for arch in ("rtx_blackwell", "blackwell"):
        for block, (words, scale) in BLOCKS.items():
            f = emu.block_format(block)
            element, own = f.element.format.name, "nvfp4" if scale == "ue4m3" else "mxfp4"
            acc = Accumulator.tensor_core(arch, element if "mxf8" in words else own)
            how = partial(_nvidia_blocks, arch, words, scale)
            yield Case(f"{arch} {block} fp32", acc, how, (element, element), "fp32", block)


def _mfma(arch: str, suffix: str) -> Any:
    from mmasim.amd.sim import MFMA

    return MFMA(arch.upper(), suffix)


def _nvidia(arch: str, name: str, short: str, total: str) -> Any:
    from mmasim.nv_ptx.sim import MMA, TCGen05MMA

    k = {"fp16": 16, "bf16": 16, "tf32": 8}.get(name, 32)
    out, small = SHORT.get(total, "f32"), name in ("e3m2fn", "e2m3fn", "e2m1fn")
    if arch == "blackwell":
        return TCGen05MMA("Blackwell", f"m64n8k{k}.kind::f8f6f4.{out}.{short}.{short}")
    kind = ".kind::f8f6f4" if small else ""
    return MMA("RTX Blackwell", f"m16n8k{k}{kind}.{out}.{short}.{short}.{out}")


def _nvidia_blocks(arch: str, words: str, scale: str) -> Any:
    from mmasim.nv_ptx.sim import MMABlockScale, TCGen05MMABlockScale

    if arch == "blackwell":
        return TCGen05MMABlockScale("Blackwell", f"{words.format('128n8')}.{scale}")
    return MMABlockScale("RTX Blackwell", f"{words.format('16n8')}.f32.{scale}")


def numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return numbers of a format in binary32."""
    f, own = emu.format_named(name), TYPES.get(name)
    if kind in ("codes", "finite"):
        if own is None:
            x = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
            x = (x.view(np.uint32) & 0xFFFF_E000).view(np.float32) if name == "tf32" else x
        else:
            size = np.dtype(own).itemsize
            codes = rng.integers(0, CODES.get(name, 2 ** (8 * size)), shape)
            x = codes.astype(f"u{size}").view(own).astype(np.float32)
        return x if kind == "codes" else np.where(np.isfinite(x), x, 1).astype(np.float32)
    x = rng.standard_normal(shape)
    x *= {
        "wide": 2.0 ** rng.integers(-12, 8, shape),
        "sparse": rng.random(shape) < 0.2,
        "tiny": 2.0**f.emin * (rng.random(shape) < 0.8),
    }.get(kind, 1.0)
    return emu.round_to(x, f, "toward-zero").astype(np.float32)


def scales(rng: np.random.Generator, kind: str, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return scales of blocks: no sign, and powers of two in E8M0."""
    if kind in ("codes", "finite") or name == "e4m3fn":
        return abs(numbers(rng, "finite" if kind == "finite" else "codes", shape, name))
    low, high = {"wide": (-40, 40), "tiny": (-127, -60)}.get(kind, (-4, 4))
    return np.exp2(rng.integers(low, high, shape)).astype(np.float32)


def given(rng: np.random.Generator, case: Case, kind: str, side: int) -> dict[str, np.ndarray]:
    """Return rows a and b, init c and, for blocks, their scales: `side` rows of each."""
    k = 3 * (case.acc.chunk if case.acc.alignment is not None else 4)
    a = numbers(rng, kind, (side, k), case.types[0])
    b = numbers(rng, "normal" if kind == "tiny" else kind, (side, k), case.types[1])
    if kind == "cancelling":  # the sum of a row with its own partner is 0, of others it is not
        half = k // 2
        a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half], -b[:, :half]
    own = "sparse" if kind in ("normal", "cancelling") else kind
    found = {"a": a, "b": b, "c": numbers(rng, own, (side, side), case.total)}
    if case.block:
        f = emu.block_format(case.block)
        for side_name in ("sa", "sb"):
            found[side_name] = scales(rng, kind, (side, k // f.size), f.scale.name)
    return found


def ours(case: Case, x: dict[str, np.ndarray]) -> np.ndarray:
    """Return our sums of all pairs of rows."""
    with np.errstate(all="ignore"):
        if not case.block:
            sums: np.ndarray = emu.dot(x["a"], x["b"].T, case.acc, x["c"])
            return sums
        f = emu.block_format(case.block)
        one = np.float32(1.0)
        a, b = (
            emu.Blocked(elements=x[n], scales=x[s], tensor=one, format=f, axis=1)
            for n, s in (("a", "sa"), ("b", "sb"))
        )
        return emu.dot(a, b.T, case.acc, x["c"])


def theirs(case: Case, x: dict[str, np.ndarray]) -> np.ndarray:
    """Return MMA-Sim's sums of all pairs of rows."""
    import torch

    model, side = case.model(), len(x["a"])
    left, right = np.repeat(np.arange(side), side), np.tile(np.arange(side), side)
    a = _tensor(x["a"][left], model.a_type, case.types[0], getattr(model, "packing", 1))
    b = _tensor(x["b"][right], model.b_type, case.types[1], getattr(model, "packing", 1))
    own = np.ascontiguousarray(x["c"].reshape(-1))
    c = torch.from_numpy(own).to(model.c_type)
    if not case.block:
        return model.dpa(a, b, c).float().numpy().reshape(side, side)
    total, f = c, emu.block_format(case.block)  # a call is one instruction
    for lo in range(0, x["a"].shape[1], model.k):
        part, over = slice(lo, lo + model.k), slice(lo // f.size, (lo + model.k) // f.size)
        columns = slice(part.start // model.packing, part.stop // model.packing)
        own_scales = [
            torch.from_numpy(np.ascontiguousarray(x[s][rows, over])).to(model.s_type)
            for s, rows in (("sa", left), ("sb", right))
        ]
        total = model.dpa(a[:, columns], b[:, columns], total, *own_scales)
    return total.float().numpy().reshape(side, side)


def _tensor(x: np.ndarray, kind: Any, name: str, packing: int) -> Any:
    """Return numbers as a model of MMA-Sim takes them; FP6 and FP4 are codes of 8 bits."""
    import torch

    if name in ("fp32", "tf32"):
        return torch.from_numpy(np.ascontiguousarray(x))
    with np.errstate(invalid="ignore"):  # NaN
        codes = np.ascontiguousarray(x).astype(TYPES[name])
    words = codes.view(np.int16 if codes.itemsize == 2 else np.uint8).copy()
    if packing == 2:
        words = words[..., ::2] | words[..., 1::2] << 4
    elif name == "e2m1fn":  # four bits in the middle of eight
        words <<= 2
    tensor = torch.from_numpy(words)
    return tensor if kind == torch.uint8 else tensor.view(kind)


def equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return where two arrays have the same bits in binary32, or both NaN."""
    a, b = (np.asarray(x, dtype=np.float32) for x in (a, b))
    same: np.ndarray = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    return same


def speed(case: Case, side: int = 256) -> float:
    """Return how many million products a core adds in a second, after a first call."""
    rng, k = np.random.default_rng(2511), side
    x = {n: numbers(rng, "normal", (side, k), t) for n, t in zip("ab", case.types, strict=True)}
    x["c"] = numbers(rng, "normal", (side, side), case.total)
    if case.block:
        f = emu.block_format(case.block)
        for n in ("sa", "sb"):
            x[n] = scales(rng, "normal", (side, k // f.size), f.scale.name)
            x[n][~np.isfinite(x[n])] = 1.0
    ours(case, x)
    began = time.process_time()
    ours(case, x)
    return side * side * k / (time.process_time() - began) / 1e6


def forgotten(case: Case, x: dict[str, np.ndarray], sums: np.ndarray) -> np.ndarray:
    """Return where MMA-Sim forgets an infinite or NaN running sum: FP8 on CDNA3, which leaves out a
    running sum below 2^-25 of the largest product, takes these for 1 in that comparison.
    """
    if getattr(case.acc.alignment, "least", None) is None:
        return np.zeros(sums.shape, dtype=bool)
    products = abs(x["a"][:, None] * x["b"][None])
    large: np.ndarray = np.nanmax(np.where(np.isfinite(products), products, 0), axis=2) >= 2.0**25
    return large & ~np.isfinite(sums)


def shapes() -> Iterator[tuple[str, int, int]]:
    """Return every instruction of MMA-Sim that has our types, how many products it adds at once,
    and how many our table says.
    """
    from mmasim.amd.isa_mfma import arch_mfma_suffix
    from mmasim.amd.sim import MFMA
    from mmasim.nv_ptx import isa_mma, isa_tcgen05mma, isa_wgmma, sim

    names = {short: name for name, short in SHORT.items()}
    makers = (
        (sim.MMA, isa_mma.mma_shape_and_type),
        (sim.WGMMA, isa_wgmma.wgmma_shape_and_type),
        (sim.TCGen05MMA, isa_tcgen05mma.tcgen05mma_shape_and_type),
    )
    for maker, table in makers:
        for title, words in table.items():
            arch = {"Ada Lovelace": "ada"}.get(title, title.lower().replace(" ", "_"))
            for word in words:
                shape, *rest = (x for x in word.split(".") if not x.startswith("kind"))
                if rest[1] in names and rest[1] == rest[2]:
                    model = maker(title, word)
                    want = min(model.arithmetic_op.L_max, int(shape.split("k")[1]))
                    yield f"{arch} {word}", want, products_of(arch, names[rest[1]], shape)
    amd = {"f16": "fp16", "bf16": "bf16", "xf32": "tf32", "fp8": "e4m3fnuz", "bf8": "e5m2fnuz"}
    for title, words in arch_mfma_suffix.items():
        for word in words:
            found = re.fullmatch(r"f32_(\d+x\d+x(\d+))_?(?:\d+b_)?(\w+?)(_1k)?", word)
            kind = found[3].split("_")[0] if found else ""
            if kind not in amd or (title == "CDNA2" and kind == "bf16" and not found[4]):
                continue  # FP32 and FP64, and BF16 instructions that cdna2-2:bf16 has
            op = MFMA(title, word).arithmetic_op
            want = min(getattr(op, "L_max", None) or op.P, int(found[2]))
            yield f"{title} {word}", want, products_of(title.lower(), amd[kind], found[1])


def main(argv: list[str] | None = None) -> int:
    """Compare; return 1 if a sum differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sums", type=int, default=14_700, help="sums of each kind of input")
    parser.add_argument("--only", default="", help="part of the name of a case")
    parser.add_argument("--store", action="store_true")
    args = parser.parse_args(argv)
    side, kept, wrong = round(args.sums**0.5), {}, 0
    for case in (*plain_cases(), *block_cases()):
        if args.only not in case.name:
            continue
        rng = np.random.default_rng(2511)
        found, count, products, seconds, out = {}, 0, 0, 0.0, 0
        for kind in KINDS:
            x = given(rng, case, kind, SIDE if args.store else side)
            began = time.process_time()
            want = theirs(case, x)
            seconds += time.process_time() - began
            sums = ours(case, x)
            products, count = products + sums.size * x["a"].shape[1], count + sums.size
            differs, lost = ~equal(sums, want), forgotten(case, x, sums)
            out += int((differs & lost).sum())
            if off := int((differs & ~lost).sum()):
                found[kind], wrong = off, wrong + off
            if args.store:
                kept[case.name] = [*kept.get(case.name, []), want]
        said = f"differ: {found}" if found else "all equal"
        said += f" but {out} whose infinite or NaN running sum MMA-Sim forgets" if out else ""
        rates = "" if args.store else f"; {speed(case):.0f} million multiply-adds a second"
        rates += f", MMA-Sim {products / max(seconds, 1e-9) / 1e6:.1f}" if rates else ""
        print(f"{case.name}: {count} sums, {said}{rates}", flush=True)
    told = list(shapes())
    wrong += (off := sum(want != own for _, want, own in told))
    print(f"{len(told)} instructions: {off} add another number of products at once")
    if args.store:
        np.savez_compressed(PATH, **kept)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
