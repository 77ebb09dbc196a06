"""Inputs on which real kernels were recorded, and their stored outputs: tests/golden/kernels holds
one head of each family.

python -m tests.checks.kernel_outputs FOLDER   writes the stored files from what
                                        tests.checks.gpu_kernels recorded
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
    "tokamax": (
        *("tokamax-triton", "tokamax-mosaic", "tokamax-mosaic-stale", "tokamax-chunked"),
        *("tokamax-triton-gqa", "tokamax-mosaic-gqa"),
    ),
    "triton": ("triton-tutorial",),
    "grouped": ("sdpa-flash-gqa", "sdpa-cudnn-gqa", "sdpa-math-gqa", "jax-cudnn-gqa"),
    "repeated": ("eager-gqa", "flex-gqa"),
    "fp8": ("cudnn-fp8", "cudnn-fp8-s256"),
    "fa3": ("fa3", "fa3-gqa", "fa3-fp16", "fa3-split"),
    "fa3-fp8": ("fa3-fp8", "fa3-fp8-gqa", "fa3-fp8-descaled"),
    "fa4": ("fa4", "fa4-gqa"),
    "sage": ("sage-int8",),
    "released": (
        "released-eager-512",
        "released-eager-256",
        "released-eager-128",
        "released-compiled-512",
        "released-compiled-256",
        "released-compiled-128",
    ),
}
STORED = ("layer4", "gaussian64")
STORED_OF = {  # of kernels that do not run with the widths of the families above, or of calls
    # whose heads fill a file
    "fa4": ("gaussian64", "gaussian128"),
    "sage-int8": ("gaussian64", "gaussian128"),
    "cudnn-fp8": ("gaussian128",),
    "cudnn-fp8-s256": ("gaussian128",),
    "fa4-gqa": ("gaussian64",),
    "fa3": ("gaussian128", "ragged32"),
    "fa3-gqa": ("layer4",),
    "fa3-fp8": ("gaussian128", "ragged32"),
    "fa3-fp8-descaled": ("ragged32",),
    "tokamax-mosaic": ("gaussian128",),
    "tokamax-mosaic-stale": ("gaussian128",),
    "sdpa-flash-gqa": ("layer4",),
    "sdpa-cudnn-gqa": ("layer4",),
    "sdpa-math-gqa": ("layer4",),
    "jax-cudnn-gqa": ("layer4",),
    "eager-gqa": ("layer4",),
    "flex-gqa": ("layer4",),
    "sdpa-cudnn-one": ("one-query",),
}
FULL_ONLY = ("sdpa-cudnn-one",)  # kernels that were called without causality alone
WITH_INPUTS = ("one-query",)  # families whose q, k, v and do are in the kernel's file
LEFT_OUT = (  # gradients that are not stored: of a backward with too little memory, or like others
    "fa3/gaussian128/full/d",
    "fa3-gqa/layer4/full/d",
    "tokamax-mosaic-stale/gaussian128/full/d",
    "tokamax-mosaic-stale/gaussian128/causal/d",
)
GROUP = 4  # query heads of a key head, in the calls of kernels whose names end with -gqa


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
    "fa3-fp8-descaled": {
        "scales": {
            f"descale_{x}": np.full((1, 1), scale, np.float32)
            for x, scale in {"q": 0.75, "k": 1.25, "v": 0.625}.items()
        },
    },
}


def inputs(family: str, causal: bool, kernel: str = "") -> Inputs:
    """The arguments of one call on the GPU; kernel: one of `SERVED` has some more, and one with
    -gqa has every fourth key head.
    """
    if family in WITH_INPUTS:
        with open_tensors(GOLDEN / f"{kernel}.safetensors") as file:
            q, k, v, do = (file[f"{family}/full/{name}"] for name in ("q", "k", "v", "do"))
    else:
        q, k, v, do = FAMILIES[family][0]()
    if kernel.endswith("-gqa"):
        k, v = (np.ascontiguousarray(x[:, :, ::GROUP]) for x in (k, v))
    more = dict(SERVED.get(kernel, {}))
    if more.get("sinks"):
        more["sinks"] = sinks()[: q.shape[2]]
    return Inputs(q=q, k=k, v=v, do=do, scale=q.shape[-1] ** -0.5, is_causal=causal, **more)


def of_one_head(x: Inputs, head: int = 0) -> Inputs:
    """One key head alone, with the query heads that share it."""
    group = x.q.shape[2] // x.k.shape[2]
    own = {"q": group, "k": 1, "v": 1, "do": group}
    parts = {
        n: np.ascontiguousarray(getattr(x, n)[:1, :, head * count : (head + 1) * count])
        for n, count in own.items()
    }
    return replace(x, **parts, sinks=None if x.sinks is None else x.sinks[head : head + 1])


def of_first_head(kernel: str, part: str, x: np.ndarray) -> np.ndarray:
    """What a kernel returned for the first key head and the query heads that share it."""
    count = GROUP if kernel.endswith("-gqa") and part not in ("dk", "dv") else 1
    return x[:1, :count] if part == "lse" else x[:1, :, :count]


def widened(x: np.ndarray) -> np.ndarray:
    """The upper halves of words of FP32 as numbers; FP32 as it is."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def write(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write arrays to a safetensors file.

    Arrays of E4M3 numbers are stored as E4M3, of BF16 numbers as BF16, of FP16 numbers as FP16,
    others as FP32.
    """

    def stored(x: np.ndarray) -> np.ndarray:
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.float16):
            narrow = x.astype(dtype)
            if np.array_equal(narrow.astype(np.float32), x, equal_nan=True):
                return narrow
        return x

    save_tensors(path, {n: np.ascontiguousarray(stored(x)) for n, x in arrays.items()}, about)


def main() -> None:
    """Head 0 of the stored families, a file for each kernel."""
    folder = Path(sys.argv[1])
    GOLDEN.mkdir(exist_ok=True)
    about = json.loads((folder / "log.txt").read_text().splitlines()[0])
    for group, names in GROUPS.items():
        recorded = np.load(folder / f"{group}.npz")
        for name in names:
            arrays = {}
            for key in recorded:
                kernel, family, mode, part = key.split("/")
                if key.startswith(LEFT_OUT):
                    continue
                if kernel == name and family in STORED_OF.get(name, STORED):
                    x = widened(recorded[key])
                    arrays[f"{family}/{mode}/{part}"] = of_first_head(kernel, part, x)
            if arrays:
                command = "python -m tests.checks.gpu_kernels"
                write(
                    GOLDEN / f"{name}.safetensors",
                    arrays,
                    about | {"kernel": name, "command": command},
                )


if __name__ == "__main__":
    main()
