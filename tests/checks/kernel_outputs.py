"""Inputs on which real kernels were recorded, and their stored outputs: tests/golden/kernels holds
one head of each family.

python -m tests.checks.kernel_outputs FOLDER   writes the stored files from what
                                        tests.checks.gpu_kernels recorded
python -m tests.checks.kernel_outputs FILE     writes the files of `OWN` from a file of tensors
                                        NAME.q, .k, .v and .out, (B, N, T, H), of one causal call
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.models.capture_file import save_tensors
from roundscope.attention.testing.calls import Inputs
from roundscope.tools.tensors.files import open_tensors
from tests.checks.engines import normal, shipped

TOKENS = 512
GOLDEN = Path(__file__).parents[1] / "golden" / "kernels"
GROUPS = {
    "flash": ("sdpa-flash", "sdpa-flash-few"),
    "cudnn": ("sdpa-cudnn", "jax-cudnn"),
    "efficient": ("sdpa-efficient", "sdpa-math"),
    "torch": ("flex", "eager"),
    "served": ("flex-served", "gemma2", "gpt-oss"),
    "jax": ("jax-xla", "pallas"),
    "tokamax": ("tokamax-triton", "tokamax-mosaic", "tokamax-chunked"),
    "triton": ("triton-tutorial",),
    "released": (
        "released-eager-512",
        "released-eager-256",
        "released-compiled-512",
        "released-compiled-256",
    ),
}
STORED = ("layer4", "gaussian64")
OWN = {"sage-int8": "sage-int8-h128"}  # kernels whose stored files have q, k, v too -> their NAME


@cache
def real(layer: int, tokens: int = TOKENS) -> tuple[np.ndarray, ...]:
    """The first tokens of the shipped tensors of a layer, four times over the batch."""
    arrays = [shipped(name, layer)[:, :, :tokens] for name in ("q", "k", "v", "do")]
    return tuple(np.repeat(np.ascontiguousarray(x.swapaxes(1, 2)), 4, axis=0) for x in arrays)


@cache
def gaussian(width: int, tokens: int = TOKENS) -> tuple[np.ndarray, ...]:
    """About N(0, 1) in BF16; 48 heads."""
    return tuple(normal(1000 * width + i, 1, tokens, 48, width) for i in range(4))


FAMILIES = {  # name -> arrays, heads that are kept
    "layer4": (partial(real, 4), 3),
    "layer1": (partial(real, 1), 1),
    "gaussian64": (partial(gaussian, 64), 2),
    "gaussian128": (partial(gaussian, 128), 1),
    "long64": (partial(gaussian, 64, 1024), 1),
    "ragged32": (partial(real, 4, 300), 1),
}


@cache
def sinks() -> np.ndarray:
    """Logits of 48 heads, about N(0, 1) in BF16."""
    return normal(77, 1, 1, 48, 1).reshape(-1)


SERVED: dict[str, dict[str, Any]] = {
    "flex-served": {"window": 128, "softcap": 5.0},
    "gemma2": {"softcap": 50.0},
    "gpt-oss": {"sinks": True},
}


def inputs(family: str, causal: bool, kernel: str = "") -> Inputs:
    """The arguments of one call on the GPU; kernel: one of `SERVED` has some more."""
    q, k, v, do = FAMILIES[family][0]()
    more = dict(SERVED.get(kernel, {}))
    if more.get("sinks"):
        more["sinks"] = sinks()[: q.shape[2]]
    return Inputs(q=q, k=k, v=v, do=do, scale=q.shape[-1] ** -0.5, is_causal=causal, **more)


def of_one_head(x: Inputs, head: int = 0) -> Inputs:
    """One head alone."""
    parts = {
        n: np.ascontiguousarray(getattr(x, n)[:1, :, head : head + 1])
        for n in ("q", "k", "v", "do")
    }
    return replace(x, **parts, sinks=None if x.sinks is None else x.sinks[head : head + 1])


def widened(x: np.ndarray) -> np.ndarray:
    """The upper halves of words of FP32 as numbers; FP32 as it is."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def write(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write arrays to a safetensors file.

    Arrays of BF16 numbers are stored as BF16, those of FP16 numbers as FP16, others as FP32.
    """

    def stored(x: np.ndarray) -> np.ndarray:
        for dtype in (ml_dtypes.bfloat16, np.float16):
            narrow = x.astype(dtype)
            if np.array_equal(narrow.astype(np.float32), x, equal_nan=True):
                return narrow
        return x

    save_tensors(path, {n: np.ascontiguousarray(stored(x)) for n, x in arrays.items()}, about)


def write_own(path: Path) -> None:
    """Write q, k, v and out, (B, T, N, H), of each kernel of `OWN`, with what the file says."""
    with open_tensors(path) as file:
        for kernel, name in OWN.items():
            arrays = {
                part: file[f"{name}.{part}"].swapaxes(1, 2) for part in ("q", "k", "v", "out")
            }
            about = {"kernel": kernel, "versions": file.metadata["about"]}
            about |= {"layout": "BTNH", "is_causal": "true"}
            write(GOLDEN / f"{kernel}.safetensors", arrays, about)


def main() -> None:
    """Head 0 of the stored families, a file for each kernel."""
    folder = Path(sys.argv[1])
    if folder.is_file():
        return write_own(folder)
    GOLDEN.mkdir(exist_ok=True)
    about = json.loads((folder / "log.txt").read_text().splitlines()[0])
    for group, names in GROUPS.items():
        recorded = np.load(folder / f"{group}.npz")
        for name in names:
            arrays = {}
            for key in recorded:
                kernel, family, mode, part = key.split("/")
                if kernel == name and family in STORED:
                    x = widened(recorded[key])
                    arrays[f"{family}/{mode}/{part}"] = x[:1, :1] if part == "lse" else x[:1, :, :1]
            if arrays:
                command = "python -m tests.checks.gpu_kernels"
                write(
                    GOLDEN / f"{name}.safetensors",
                    arrays,
                    about | {"kernel": name, "command": command},
                )


if __name__ == "__main__":
    main()
