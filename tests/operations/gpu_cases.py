"""What torch, transformers, Liger and Inductor computed on an H100, and the plan of each case.

The files of `tests/golden/operations` have the inputs of each case, made from seeds, and the
SHA-256 of its outputs. `tests.checks.gpu_operations` records the outputs themselves, and
`python -m tests.operations.gpu_cases FOLDER [FOLDER [NAME]]` prints the share of equal numbers of
such a folder, and writes digests into another.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.instructions.error_function import erff, erff_of_libdevice
from roundscope.emu.instructions.polynomials import tanhf
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.operations import OPERATIONS, run
from roundscope.operations.definitions.layer_norm import torch_cuda as layer_norm
from roundscope.operations.definitions.linear import Plan as Linear
from roundscope.operations.definitions.rms_norm import liger_llama, triton_sum
from roundscope.operations.definitions.softmax import torch_cuda as softmax
from roundscope.operations.run import plan_of
from tests.checks.gpu_operations import TYPES, cases, inputs

GOLDEN = Path(__file__).parents[1] / "golden" / "operations"
SUFFIX = {"bf16": "", "fp16": "-fp16", "fp32": "-fp32"}
NORMS = {
    "torch": "torch-cuda",
    "llama": "transformers-llama-cuda",
    "gemma": "transformers-gemma-cuda",
    "liger-llama": "liger-llama",
    "liger-gemma": "liger-gemma",
    "compiled-llama": "inductor-llama",
}


# operations whose gradients were compared, and what a capture calls them
BACKWARDS = ("layer_norm", "gelu", "gelu-tanh", "softmax")
GRADIENTS = {"dx": "x", "dw": "weight", "db": "bias"}


class Twin(NamedTuple):
    """The plan of a case and its call; `outputs` are computed in the types of the capture."""

    operation: str
    plan: Any
    inputs: dict[str, Any]
    settings: dict[str, Any]
    gradient: Any = None


def norm_of(name: str, kind: str, features: int, threads: int) -> Any:
    """Return the plan of a recorded RMSNorm."""
    plan = plan_of(OPERATIONS["rms_norm"], NORMS[name] + SUFFIX[kind])
    bits = 32 if kind == "fp32" else 16
    if name.startswith("liger"):
        return plan.adding("SS", liger_llama(features, bits).accumulator("SS"))
    return plan.adding("SS", triton_sum(features, threads, bits)) if "compiled" in name else plan


def splits_of(kernel: str, grid: list[int], rows: int, results: int) -> int:
    """Return in how many parts a kernel of cuBLAS splits the features: its blocks by its tiles.

    A name has the tile, results x rows, and the cluster, to whose multiples tiles are filled up.
    """
    if "splitK" not in kernel:
        return 1
    tile, cluster = (
        tuple(map(int, re.findall(pattern, kernel)[0]))
        for pattern in (r"_(\d+)x(\d+)_", r"_(\d+)x(\d+)_[vh]_")
    )
    tiles = 1
    for count, size, group in zip((results, rows), tile, cluster, strict=True):
        tiles *= math.ceil(count / size / group) * group
    return math.prod(grid) // tiles


def linear_of(name: str, note: dict[str, Any]) -> Linear:
    """Return the plan of a recorded linear layer in BF16 or FP16."""
    kind, _, shape = name.split("/")[2:]
    rows, _, results = map(int, shape.split("x"))
    kernel, grid, _ = note["kernels"][0]
    splits = splits_of(kernel, grid, rows, results)
    return plan_of(OPERATIONS["linear"], "hopper" + SUFFIX[kind]).changed(f"splits={splits}")


def softmax_order(classes: int, bits: int) -> Accumulator:
    """Return how torch's softmax on a GPU adds a row."""
    if classes <= 1024:
        return Accumulator(order=Order.STRIDED, chunk=32)
    return Accumulator(order=Order.QUAD_STRIDES if bits == 32 else Order.OCTET_STRIDES, chunk=1024)


def with_gradient(operation: str, kind: str, note: dict[str, Any], given: dict[str, Any]) -> Twin:
    """Return the call of a case whose gradients were compared too."""
    call = {key: x for key, x in given.items() if key != "gradient"}
    rows, width = given["x"].shape if given["x"].ndim > 1 else (1, 0)
    plan = {"layer_norm": layer_norm(rows), "softmax": softmax(width, 32 if kind == "fp32" else 16)}
    own = operation.replace("-", "_")
    made = plan_of(OPERATIONS[own], "torch-cuda" + SUFFIX[kind])
    for site in made.PRODUCTS:
        made = made.adding(site, plan[own].accumulator(site))
    settings = {"eps": note["eps"]} if "eps" in note else {}
    after = given.get("gradient", np.ones_like(given["x"]))
    return Twin(own, made, call, settings, after)


def twin_of(name: str, note: dict[str, Any], given: dict[str, Any], rows: int) -> Twin | None:
    """Return the call whose outputs are those of a case; None for a case without a plan."""
    operation, source, kind, *rest = (*name.split("/"), "")
    if operation == "rms_norm" and source in NORMS:
        plan = norm_of(source, kind, int(rest[0]), note["threads"])
        call = {"x": given["x"][:rows], "weight": given["weight"]}
        return Twin(operation, plan, call, {"eps": note["eps"]})
    if operation == "linear" and source == "torch" and kind in ("bf16", "fp16"):
        return Twin(operation, linear_of(name, note), given, {})
    if operation == "linear" and source == "scaled_mm" and "blocks" not in rest[0]:
        features = given["x"].shape[1]
        splits = 1 if "fast" in rest[0] else math.ceil(features / 128)
        plan = plan_of(OPERATIONS["linear"], "hopper-e4m3").changed(f"splits={splits}")
        return Twin(operation, plan, {key: given[key] for key in ("x", "weight")}, {})
    if operation in ("log_softmax", "log_softmax-fp32") and source == "torch":
        wide = operation.endswith("fp32") or kind == "fp32"
        plan = plan_of(OPERATIONS["log_softmax"], "torch-cuda" + ("-fp32" if wide else ""))
        order = softmax_order(int(rest[0]), 32 if wide else 16)
        return Twin("log_softmax", plan.adding("S", order), {"x": given["x"][:rows]}, {})
    if operation == "cross_entropy" and source in ("torch", "torch-fp32"):
        wide = source == "torch-fp32" or kind == "fp32"
        plan = plan_of(OPERATIONS[operation], "torch-cuda" + ("-fp32" if wide else ""))
        plan = plan.adding("S", softmax_order(int(rest[0]), 32 if wide else 16))
        return Twin(operation, plan, given, {"reduction": rest[1]})
    if operation in BACKWARDS and source.startswith("torch"):
        if operation == "layer_norm" and given["x"].shape[1] % 4:
            return None  # another kernel
        return with_gradient(operation, kind, note, given)
    if operation == "silu" and source == "torch":
        return Twin(
            operation, plan_of(OPERATIONS[operation], "torch-cuda" + SUFFIX[kind]), given, {}
        )
    if operation == "silu_mul":
        name = {"torch": "torch-cuda", "compiled": "fused"}.get(source, source)
        call = {key: given[key][:4] for key in ("gate", "up")}
        return Twin(operation, plan_of(OPERATIONS[operation], name + SUFFIX[kind]), call, {})
    return None


def outputs_of(name: str, note: dict[str, Any], made: dict[str, Any]) -> dict[str, Any] | None:
    """Return the outputs of a case's twin, those that were kept."""
    rows, results = note.get("kept"), None
    if name.startswith("linear"):
        rows, results = note["corner"]
        results = results if made["x"].shape[0] > 1 else 1024
        made = dict(made)
        for key, lead in (("x", rows), ("weight", results), ("bias", results)):
            if key in made:
                made[key] = made[key][:lead]
    twin = twin_of(name, note, made, rows)
    if twin is None:
        return None
    with np.errstate(invalid="ignore"):  # signalling NaNs among all numbers of a type
        after = None if twin.gradient is None else {"out": twin.gradient}
        found = run(twin.operation, twin.plan, twin.inputs, settings=twin.settings, gradients=after)
    out = next(iter(found.outputs.values()))
    if after is not None:
        gradients = {
            key: found.gradients[n].astype(out.dtype)[: rows if n == "x" else None]
            for key, n in GRADIENTS.items()
            if n in found.gradients
        }
        return {"out": out[:rows], **gradients}
    if "scaled_mm" in name:
        by_x, by_w = made["x_scale"], made["weight_scale"]
        out = out * by_w[:, :results] * by_x[:rows] if by_x.ndim else out * (by_x * by_w)
        out = out.astype(TYPES[name.split("/")[2].partition("-")[2]])
    return {"out": out}


def digest(x: np.ndarray) -> str:
    """Return the SHA-256 of an array's bytes, with one NaN for all of them."""
    x = np.where(np.isnan(x.astype(np.float64)), np.array(np.nan, x.dtype), x)
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


def golden() -> dict[str, dict[str, Any]]:
    """Return the notes of the stored cases, with the digests of their outputs."""
    files = sorted(GOLDEN.glob("*.json"))
    return {name: note for f in files for name, note in json.loads(f.read_text())["cases"].items()}


def _noted(name: str, note: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan and a call need of a note."""
    kernels = [k for k in note.get("kernels") or () if k[1]] or [["", [1, 1, 1], [1, 1, 1]]]
    kept = {key: note[key] for key in ("inputs", "eps", "kept", "corner") if key in note}
    if not name.startswith(BACKWARDS):
        kept["inputs"] = {k: x for k, x in kept["inputs"].items() if k != "gradient"}
    own = kernels[0]
    kept["kernels"] = [[own[0][:80], own[1], own[2]]]
    rows = 64 if name.startswith("rms_norm") else 1
    kept["threads"] = own[2][0] * own[1][0] // rows if "compiled" in name else own[2][0]
    return kept


def compared(
    folder: Path,
) -> Iterator[tuple[str, dict[str, Any], dict[str, np.ndarray], dict[str, float]]]:
    """Yield the cases of a capture with a twin: name, note, outputs, shares of equal numbers."""
    for name, (note, outputs) in cases(folder).items():
        wanted = dict(outputs)
        if "loss" in outputs:
            wanted["out"] = outputs["loss"]
        if "failed" in note or not wanted:
            continue
        kept = _noted(name, note)
        found = outputs_of(name, kept, inputs(kept))
        if found is None:
            continue
        shares = {}
        for key in found.keys() & wanted.keys():
            a, b = (x.reshape(-1).astype(np.float64) for x in (found[key], wanted[key]))
            shares[key] = float(((a == b) | (np.isnan(a) & np.isnan(b))).mean())
        yield name, kept, wanted, dict(sorted(shares.items(), reverse=True))


FUNCTIONS = {
    "function/torch/erf-near": ("out", erff),
    "function/torch/erf-far": ("out", erff),
    "function/torch/erf-many": ("out", erff),
    "function/torch/tanh-many": ("out", tanhf),
    "functions/libdevice": ("erf", erff_of_libdevice),
}


def functions(folder: Path) -> Iterator[tuple[str, float]]:
    """Yield functions of a capture with the share of equal numbers; of many there is a digest, and
    the share is 0 or 1.
    """
    for name, (note, outputs) in cases(folder).items():
        if name not in FUNCTIONS or "failed" in note:
            continue
        key, function = FUNCTIONS[name]
        x = inputs(note)["x"].astype(np.float64)
        found = function(numpy_ops(), x).astype(np.float32)
        if key in outputs:
            yield name, float((found == outputs[key]).mean())
        else:
            yield name, float(hashlib.sha256(found.tobytes()).hexdigest() == note["sha256"])


def file_of(name: str) -> str:
    """Return the file of a case's digest."""
    operation, source = name.split("/")[:2]
    if source == "scaled_mm":
        return "scaled-mm"
    own = {"rms_norm": "rms-norm", "linear": "linear", "silu": "gated", "silu_mul": "gated"}
    own |= {"layer_norm": "layer-norm", "gelu": "gelu", "gelu-tanh": "gelu", "softmax": "softmax"}
    return own.get(operation, "losses")


def main() -> None:
    """Print the shares; with a second folder, write the digests of a GPU's outputs there: into one
    file for each operation, or into one file of the name that follows.
    """
    stored: dict[str, dict[str, Any]] = {}
    for name, note, outputs, shares in compared(Path(sys.argv[1])):
        told = "  ".join(f"{key} {share:9.4%}" for key, share in shares.items())
        print(f"{told}  {name}  {note['kernels'][0][0]}", flush=True)
        own = [key for key in shares if shares[key] == 1.0 or not name.startswith(BACKWARDS)]
        equal = {key: digest(outputs[key]) for key in own}
        kept = note | {"type": str(outputs["out" if "out" in outputs else own[0]].dtype)}
        kept |= {"sha256": equal.pop("out")} if "out" in equal else {}
        kept |= {"gradients": equal} if equal else {}
        stored.setdefault(sys.argv[3] if len(sys.argv) > 3 else file_of(name), {})[name] = kept
    for name, share in functions(Path(sys.argv[1])):
        print(f"{share:9.4%}  {name}", flush=True)
    for file, own in stored.items() if len(sys.argv) > 2 else ():
        with safe_open(next(Path(sys.argv[1]).glob("*.safetensors")), "numpy") as capture:
            about = {k: v for k, v in capture.metadata().items() if k != "notes"}
        text = json.dumps({"versions": about, "cases": own}, separators=(",", ":"))
        (Path(sys.argv[2]) / f"{file}.json").write_text(text.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
