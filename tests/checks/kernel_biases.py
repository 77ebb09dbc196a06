"""Attention with an additive bias as a GPU computed it, against plans: the share of equal numbers.

    python -m tests.checks.kernel_biases

`tests/golden/biases.safetensors` has what torch 2.11.0 (CUDA 13.0, one H100) and the modules of
transformers 5.17.0 returned in BF16: two batch entries of two heads of 64 tokens, a bias (1, 2, 64,
64), scale 0.3; of the modules the first layer of tiny models with random weights, forward.
"""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from roundscope.attention import examine

STORED = Path(__file__).parents[1] / "golden" / "biases.safetensors"
BF16 = ml_dtypes.bfloat16
PARTS = ("out", "dq", "dk", "dv", "dbias")
BLOOM = "eager; biased=true S=fp32"
CASES = {  # name -> what it is, the plan that gives its bits, features
    "math": ("SDPA's math back end", "sdpa-math", 32),
    "efficient": ("SDPA's memory-efficient back end", "sdpa-efficient", 32),
    "eager": ("eager attention, op by op", "eager", 32),
    "flex": ("flex_attention, score + bias[h, q, kv]", "flex", 32),
    "bloom": ("baddbmm, as in BLOOM", f"{BLOOM} gradient_scale=result DQ=bf16 DK=bf16", 64),
}
MODULES = {  # the same of modules, and their scale
    "t5": ("T5Attention", "eager", 1.0),
    "bloom-module": ("BloomAttention", BLOOM, 32**-0.5),
    "mpt": ("MptAttention", "eager; biased=true BIAS=fp32 BIASED=fp32", 32**-0.5),
}


def inputs(features: int) -> list[np.ndarray]:
    """Return q, k, v, do (B, N, T, H) and the bias of the cases, in BF16."""
    rng = np.random.default_rng(17)
    (*tensors,) = rng.standard_normal((4, 2, 2, 64, features))
    tensors.append(rng.standard_normal((1, 2, 64, 64)))
    return [x.astype(np.float32).astype(BF16) for x in tensors]


def share(found: np.ndarray, stored: np.ndarray) -> float:
    """Return the share of equal numbers in BF16."""
    return float((np.asarray(found).astype(BF16) == stored).mean())


def shares() -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield what was compared, the plan, and the share of equal numbers of each part."""
    stored = load_file(STORED)
    for name, (what, plan, features) in CASES.items():
        *tensors, bias = inputs(features)
        tiles = {"block_q": 64, "block_k": 64}
        arrays = (x.swapaxes(1, 2) for x in tensors)
        e = examine(*arrays, plan=plan, bias=bias, scale=0.3, record=None, **tiles)
        found = {n: getattr(e, n) for n in PARTS}
        found |= {n: x.swapaxes(1, 2) for n, x in found.items() if n != "dbias"}
        yield what, plan, {n: share(x, stored[f"{name}.{n}"]) for n, x in found.items()}
    for name, (what, plan, scale) in MODULES.items():
        q, k, v, out = (stored[f"{name}.{n}"].swapaxes(1, 2) for n in ("q", "k", "v", "out"))
        call = {"bias": stored[f"{name}.bias"], "is_causal": name != "t5", "scale": scale}
        e = examine(q, k, v, plan=plan, record=None, **call)
        yield what, plan, {"out": share(e.out, out)}


def main() -> None:
    """Print the table of docs/findings/kernels.md."""
    print("| computed by | plan | out | dq | dk | dv | gradient of the bias |")
    print("|---" * 7 + "|")
    for what, plan, found in shares():
        cells = [f"{found[n]:.5f}".rstrip("0").rstrip(".") if n in found else "" for n in PARTS]
        print(f"| {what} | `{plan}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
