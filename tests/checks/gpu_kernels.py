"""Outputs of real attention kernels on a GPU, for the plans that are to give the same bits; and its
approximate functions.

    python -m tests.checks.gpu_kernels --out FOLDER
        [--released FOLDER] [--tutorial FILE] [--only NAME,...]
"""

import argparse
import json
import os
import time
import traceback
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

from roundscope.attention.testing.calls import Outputs
from roundscope.tools.identify.adapters import ADAPTERS, kernel
from tests.checks.kernel_outputs import FAMILIES, GROUP, GROUPS, SERVED, inputs, of_one_head


def adapter(name: str, folder: Path | None, tutorial: Path | None):
    """The function of that name; folder: of the released code; tutorial: Triton's file."""
    if name == "triton-tutorial":
        return kernel(f"{name}:{tutorial or ''}")
    if name.startswith("released"):
        from roundscope.tools.identify.adapters.released import released

        if folder is None:
            raise ValueError("--released: name the folder of the released code")
        _, form, bucket = name.split("-")
        return released(folder, int(bucket), form == "compiled")
    if name in SERVED:
        from roundscope.tools.identify.adapters import torch_flex, transformers_eager

        return {
            "flex-served": torch_flex.compiled,
            "gemma2": transformers_eager.eager,
            "gpt-oss": transformers_eager.gpt_oss,
        }[name]
    return kernel(plain(name))


def plain(name: str) -> str:
    """The adapter's name of a kernel that is called in some other way here."""
    return name.removesuffix("-few").removesuffix("-gqa")


def packed(x: Outputs) -> dict[str, np.ndarray]:
    """BF16 numbers as the upper half of their words; others as they are."""
    found = {}
    for name, array in x.named():
        word = np.ascontiguousarray(array, np.float32).view(np.uint32)
        found[name] = array if (word & 0xFFFF).any() else (word >> 16).astype(np.uint16)
    return found


def capture(
    names: tuple[str, ...], theirs: tuple[Path | None, Path | None], log
) -> dict[str, np.ndarray]:
    """The outputs of some kernels on every family, causal and full."""
    arrays = {}
    for name in names:
        for family, (_, heads) in FAMILIES.items():
            for causal in (False, True):
                begun = time.perf_counter()
                label = f"{name}/{family}/{'causal' if causal else 'full'}"
                x = inputs(family, causal, name)
                x = of_one_head(x) if name.endswith("-few") else x
                try:
                    run = adapter(name, *theirs)
                    first, again = run(x), run(x)
                except Exception as error:
                    log(f"{label}: {type(error).__name__}: {str(error)[:300]}")
                    traceback.print_exc(limit=-3)
                    continue
                same = {
                    n: bool(np.array_equal(a, dict(again.named())[n], equal_nan=True))
                    for n, a in first.named()
                }
                kept = slice(0, GROUP * heads if name.endswith("-gqa") else heads)
                for part, array in packed(first.heads(kept)).items():
                    arrays[f"{label}/{part}"] = array
                log(f"{label}: {time.perf_counter() - begun:.1f} s, again {same}")
    return arrays


INSTRUCTIONS = {
    "ex2": "ex2.approx.ftz.f32",
    "rcp": "rcp.approx.ftz.f32",
    "lg2": "lg2.approx.ftz.f32",
    "rsqrt": "rsqrt.approx.f32",
    "tanh_approx": "tanh.approx.f32",
}
PACKAGES = (
    *("flash-attn-4", "flash-attn3-jax", "nvidia-cudnn-frontend", "sageattention", "tokamax"),
    "transformers",
)
FUNCTIONS = (*INSTRUCTIONS, "expf", "logf", "log2f", "tanhf")


def approximate(name: str, words: np.ndarray) -> np.ndarray:
    """Return the results of the instruction, or of the function of CUDA's library, on this GPU;
    arguments and results are uint32 words.
    """
    import cupy

    return cupy.asnumpy(launched(name, cupy.asarray(words)))


def launched(name: str, words: Any) -> Any:
    """The same of a CuPy array, which stays on the GPU."""
    import cupy
    from cupy.cuda.compiler import compile_using_nvrtc

    instruction = (
        f'asm("{INSTRUCTIONS[name]} %0, %1;" : "=f"(r) : "f"(x[i]));'
        if name in INSTRUCTIONS
        else f"r = {name}(x[i]);"
    )
    source = (
        'extern "C" __global__ void f(const float* x, float* y, long long n) {'
        "  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;"
        f"  if (i < n) {{ float r; {instruction} y[i] = r; }} }}"
    )
    x = words.view(cupy.float32)
    y = cupy.empty_like(x)
    binary, _ = compile_using_nvrtc(
        source, ("--ftz=false",)
    )  # RawKernel would flush subnormal numbers to 0
    module = cupy.cuda.function.Module()
    module.load(binary)
    module.get_function("f")(((x.size + 255) // 256,), (256,), (x, y, np.int64(x.size)))
    return y.view(cupy.uint32)


def sampled_words() -> np.ndarray:
    """Numbers of every sign and exponent, 2^13 significands each."""
    rng = np.random.default_rng(5)
    low = np.sort(rng.integers(0, 1 << 23, (512, 1 << 13), dtype=np.uint32), axis=1)
    low[:, :2], low[:, -2:] = (0, 1), ((1 << 23) - 2, (1 << 23) - 1)
    return ((np.arange(512, dtype=np.uint32) << 23)[:, None] | low).reshape(-1)


def functions() -> dict[str, np.ndarray]:
    """All significands of one binade, as the distance from the correctly rounded result; and a
    sample of all numbers.
    """
    binade = np.arange(1 << 23, dtype=np.uint32) | np.float32(1.0).view(np.uint32)
    x = binade.view(np.float32).astype(np.float64)
    nearest = {"ex2": np.exp2(x), "rcp": 1 / x, "lg2": np.log2(x)}
    found = {}
    for name, y in nearest.items():
        own = approximate(name, binade).astype(np.int64) - y.astype(np.float32).view(np.uint32)
        small = np.abs(own).max() < 128
        found[f"{name}/binade"] = own.astype(np.int8 if small else np.int32)
        if name != "lg2":
            found[f"{name}/sample"] = approximate(name, sampled_words())
    return found


def versions() -> dict[str, str]:
    """Return the names and versions of the GPU and of the libraries that are there."""
    import jax
    import torch
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "jax": jax.__version__,
    } | {d.name: d.version for d in distributions() if d.name in PACKAGES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--released", type=Path)
    parser.add_argument("--tutorial", type=Path)
    parser.add_argument("--only", default=",".join(("functions", *GROUPS)))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True, parents=True)
    lines: list[str] = []

    def log(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    log(json.dumps(versions()))
    for group in options.only.split(","):
        begun = time.perf_counter()
        try:
            arrays = (
                functions()
                if group == "functions"
                else capture(GROUPS[group], (options.released, options.tutorial), log)
            )
        except Exception:
            traceback.print_exc()
            continue
        np.savez_compressed(options.out / f"{group}.npz", **arrays)
        log(f"{group}: {time.perf_counter() - begun:.0f} s")
        (options.out / "log.txt").write_text("\n".join(lines))


THEIR_FILES = ("released", "triton-tutorial")  # kernels that lie in folders and files of others
assert set(ADAPTERS) >= {
    plain(n)
    for g in GROUPS.values()
    for n in g
    if not n.startswith(THEIR_FILES) and n not in SERVED
}

if __name__ == "__main__":
    main()
