"""The tensor cores of this machine's GPU against `emu.sums.tensor_cores`, bit for bit: `make
gpu-tensor-core`, part of `make gpu-check`.

    python -m tests.checks.gpu_tensor_core --arch hopper [--size 4096] [--types bf16,fp16]
    python -m tests.checks.gpu_tensor_core --long

Triton's `tl.dot` multiplies tiles of 64 x 64 with the sums in the tensor core, K = 64 factors at a
time and ascending; the XLA executor of the model runs on the same GPU. Inputs of each type, size^2
sums each: normal numbers, a wide range of exponents, mostly zeros, numbers about the smallest
normal one, sums that cancel, random finite codes, q and k of the shipped tensors. Needs Triton,
PyTorch and JAX. `--long` prints by how much sums of 16,384 products of one sign are too small.
Exit code 1 on a difference.
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.emu import Accumulator, dot, format_named, round_to
from roundscope.emu.formats.format import Format
from tests.checks.engines import shipped

KINDS = ("normal", "wide", "sparse", "tiny", "cancelling", "codes", "real")
TYPES = ("bf16", "fp16", "tf32", "e4m3fn", "e5m2")
K, LONG, BLOCK = 128, 16384, 1024


def numbers(kind: str, seed: int, shape: tuple[int, int], f: Format) -> np.ndarray:
    """Finite numbers of a format, as float32."""
    rng = np.random.default_rng((seed, KINDS.index(kind)))
    if kind == "codes":
        x = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
        x = np.where(
            np.abs(x) < min(f.max_finite, 2.0**60), x, np.float32(0.0)
        )  # NaN too; a larger one would make all sums infinite
        return round_to(x, f, "toward-zero")
    if kind == "real":
        return round_to(np.resize(shipped("qk"[seed - 1]), shape), f)
    x = rng.standard_normal(shape, dtype=np.float32)
    scale = {
        "wide": 2.0 ** rng.integers(-9, 6, shape),
        "sparse": rng.random(shape) < 0.2,
        "tiny": 2.0**f.emin,
    }.get(kind, 1.0)
    x = round_to((x * scale).astype(np.float32), f)
    if kind == "cancelling":
        x[:, K // 2 :] = x[:, : K // 2]
    return x


def operands(kind: str, size: int, f: Format) -> tuple[np.ndarray, np.ndarray]:
    """(size, K) and (K, size); where one is tiny the other is not, or BF16's sums would all be
    0.
    """
    a = numbers(kind, 1, (size, K), f)
    b = numbers("normal" if kind == "tiny" else kind, 2, (size, K), f)
    if kind == "cancelling":
        b[:, K // 2 :] = -b[:, K // 2 :]
    return a, np.ascontiguousarray(b.T)


def on_tensor_core(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    """The hardware's product, float32."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def product(a, b, c, size, k: tl.constexpr, step: tl.constexpr):
        rows = tl.program_id(0) * 64 + tl.arange(0, 64)
        columns = tl.program_id(1) * 64 + tl.arange(0, 64)
        part = tl.arange(0, step)
        total = tl.zeros((64, 64), tl.float32)
        for lo in range(0, k, step):
            x = tl.load(a + rows[:, None] * k + (lo + part)[None, :])
            y = tl.load(b + (lo + part)[:, None] * size + columns[None, :])
            total = tl.dot(x, y, total, input_precision="tf32")
        tl.store(c + rows[:, None] * size + columns[None, :], total)

    types = {
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "tf32": torch.float32,
        "e4m3fn": torch.float8_e4m3fn,
    }
    types["e5m2"] = torch.float8_e5m2
    x, y = (torch.from_numpy(v).cuda().to(types[name]) for v in (a, b))
    c = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float32, device="cuda")
    product[(a.shape[0] // 64, b.shape[1] // 64)](x, y, c, b.shape[1], a.shape[1], 64, num_warps=4)
    found: np.ndarray = c.cpu().numpy()
    return found


def modelled(a: np.ndarray, b: np.ndarray, acc: Accumulator) -> np.ndarray:
    """The model's product, float32, in blocks of columns."""
    add = jax.jit(lambda a, b: dot(a, b, acc))
    with jax.enable_x64(True):
        parts = [
            np.asarray(add(jnp.asarray(a), jnp.asarray(b[:, lo : lo + BLOCK])))
            for lo in range(0, b.shape[1], BLOCK)
        ]
    return np.concatenate(parts, 1).astype(
        np.float32
    )  # here, since XLA's own conversion may flush subnormal numbers


def long_sums(arch: str, types: list[str]) -> int:
    """A line for each type: sums of `LONG` products of numbers without sign, against the model's
    bits and the exact sums.
    """
    wrong = 0
    for name in types:
        a, b = (np.abs(numbers("normal", seed, (64, LONG), format_named(name))) for seed in (1, 2))
        ours = modelled(a, b.T, Accumulator.tensor_core(arch, name))
        theirs = on_tensor_core(a, np.ascontiguousarray(b.T), name)
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        differ = int((ours.view(np.int32) != theirs.view(np.int32)).sum())
        wrong += differ
        print(
            f"{name:8} {differ} of {ours.size} sums of {LONG} differ; the GPU's are short by"
            f" {100 * (1 - (theirs / exact).mean()):.3f} %"
        )
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.gpu_tensor_core", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--arch", default="hopper")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--long", action="store_true")
    args = parser.parse_args()
    if args.long:
        return long_sums(args.arch, args.types.split(","))
    print(
        f"device {jax.devices()[0].device_kind}, {args.size}^2 sums of {K} products for each type"
        " and kind of input"
    )
    wrong = 0
    for name in args.types.split(","):
        acc, began, found = Accumulator.tensor_core(args.arch, name), time.perf_counter(), {}
        for kind in KINDS:
            a, b = operands(kind, args.size, format_named(name))
            ours, theirs = modelled(a, b, acc), on_tensor_core(a, b, name)
            differ = (ours.view(np.int32) != theirs.view(np.int32)) & ~(
                np.isnan(ours) & np.isnan(theirs)
            )
            found[kind] = int(differ.sum())
            if found[kind]:
                i, j = np.argwhere(differ)[0]
                print(
                    f"  {name} {kind}: row {i}, column {j}: model {ours[i, j].item().hex()}, GPU"
                    f" {theirs[i, j].item().hex()}"
                )
        wrong += sum(found.values())
        print(
            f"{name:8} {sum(found.values())} of {len(KINDS) * args.size**2} sums differ {found}"
            f" {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
