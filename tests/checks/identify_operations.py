"""What `operations.identify` says of planted changes, and of what an H100 computed.

python -m tests.checks.identify_operations [--gpu] [NAME ...]
                            prints the recall of planted changes, or of the stored H100's cases
"""

import sys
import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np

from roundscope.emu.roundings.modes import rounding
from roundscope.operations import OPERATIONS, Identified, identify, run
from roundscope.operations.identification.plans_tried import Tried
from roundscope.operations.operation import Shape
from roundscope.operations.run import plan_of
from tests.checks.gpu_operations import inputs, whole
from tests.checks.gpu_operations import made as normal
from tests.operations.gpu_cases import digest, golden, outputs_of, twin_of

QUICK = (
    "rms_norm/liger-gemma/fp32/64",
    "log_softmax/torch/bf16/256",
    "silu_mul/liger/fp16",
)
"""Cases of the H100 that CI looks at."""
CI = (
    "rms_norm: cast after the weight",
    "log_softmax: lse in BF16",
    "silu_mul: no cast before the product",
    "add: sum cut to BF16",
)
"""Changes that CI looks at."""
PLANTED = {
    "rms_norm: sum in pairs": ("rms_norm", "torch-cpu-fp32; SS.sum=pairwise"),
    "rms_norm: sum of chunks": ("rms_norm", "transformers-llama-fp32; SS.sum=chunked64"),
    "rms_norm: cast before the weight": ("rms_norm", "liger-gemma; XC=bf16"),
    "rms_norm: cast after the weight": ("rms_norm", "transformers-llama-cuda; XC=fp32 XW=fp32"),
    "rms_norm: mean of squares in BF16": ("rms_norm", "torch-cpu; MS=bf16"),
    "rms_norm: eps beside the root": ("rms_norm", "torch-cpu-fp32; eps_outside=true"),
    "linear: chunks of 64": ("linear", "torch-cpu-fp32; Y.sum=chunked64"),
    "linear: two parts, each rounded": ("linear", "hopper; splits=2 YP=bf16"),
    "linear: rounded before the bias": ("linear", "hopper; Y=bf16"),
    "linear: chunks of 4 on a tensor core": ("linear", "hopper; Y.sum=ampere:bf16"),
    "log_softmax: all of it in BF16": ("log_softmax", "all:bf16"),
    "log_softmax: lse in BF16": ("log_softmax", "torch-cuda; form=lse LSE=bf16"),
    "log_softmax: exp by ex2": ("log_softmax", "torch-cuda-fp32; exp=ex2"),
    "cross_entropy: sum of exp in BF16": ("cross_entropy", "torch-cuda; S=bf16"),
    "silu: sigmoid in BF16": ("silu", "torch-cpu; sigmoid=apart SI=bf16"),
    "silu_mul: no cast before the product": ("silu_mul", "liger; SC=fp32"),
    "rope: fused": ("rope", "transformers-llama-fp32; fused=true"),
    "rope: products in binary32": ("rope", "transformers-llama; XC=fp32 XS=fp32"),
    "layer_norm: all of it in BF16": ("layer_norm", "all:bf16"),
    "softmax: all of it in BF16": ("softmax", "all:bf16"),
    "gelu: all of it in BF16": ("gelu", "all:bf16"),
    "add: sum cut to BF16": ("add", "fp32; OUT=bf16:toward-zero"),
}
"""Changes by name: an operation and the plan that made the numbers."""
Case = tuple[Identified, str, Any]


def inputs_of(name: str, kind: str, seed: int = 0) -> dict[str, Any]:
    """Return inputs of an operation, of about N(0, 1) in a type."""
    f = 256

    def made(own: int, *more: Any) -> np.ndarray:
        return normal(seed + own, *more)

    x = made(1, (32, f), kind, 1.5)
    return {
        "rms_norm": {"x": x, "weight": made(2, (f,), kind, 0.2, 1.0)},
        "linear": {"x": x, "weight": made(2, (64, f), kind), "bias": made(3, (64,), kind, 4.0)},
        "layer_norm": {
            "x": x,
            "weight": made(2, (f,), kind, 0.2, 1.0),
            "bias": made(3, (f,), kind, 0.2),
        },
        "gelu": {"x": x},
        "gelu_tanh": {"x": x},
        "softmax": {"x": x},
        "log_softmax": {"x": x},
        "cross_entropy": {"x": x, "target": whole(4, (32,), f)},
        "silu": {"x": x},
        "silu_mul": {"gate": x, "up": made(2, (32, f), kind)},
        "rope": {"x": x, "cos": made(2, (32, f), kind, 0.5), "sin": made(3, (32, f), kind, 0.5)},
        "add": {"a": x, "b": made(2, (32, f), kind)},
    }[name]


def planted(name: str) -> Case:
    """Return what is said of a planted change."""
    operation, words = PLANTED[name]
    given = inputs_of(operation, "fp32" if "fp32;" in words else "bf16")
    settings = {"reduction": "none"} if operation == "cross_entropy" else {}
    settings = {"eps": 1e-3} if "eps" in words else settings
    outputs = run(operation, words, given, settings=settings).outputs
    found = identify(operation, given, outputs, settings=settings)
    return found, operation, plan_of(OPERATIONS[operation], words)


def of_gpu(name: str) -> Case:
    """Return what is said of a case of the H100; its numbers are checked by their digest."""
    note = golden()[name]
    given, rows = inputs(note), note.get("kept")
    found = outputs_of(name, note, given)
    assert found is not None and digest(found["out"]) == note["sha256"]
    if name.startswith("linear"):
        rows, results = note["corner"]
        results = results if given["x"].shape[0] > 1 else 1024
        sizes = {"x": rows, "weight": results, "bias": results}
        given = {key: x[: sizes[key]] for key, x in given.items() if key in sizes}
    twin = twin_of(name, note, given, rows)
    assert twin is not None
    own = OPERATIONS[twin.operation]
    output, kept = own.outputs[0].name, len(np.atleast_1d(found["out"]))
    of_rows = {
        v.name for v in own.inputs if v.shape is Shape.ROWS and own.outputs[0].shape is v.shape
    }
    call = {key: x[:kept] if key in of_rows else x for key, x in twin.inputs.items()}
    said = identify(twin.operation, call, {output: found["out"]}, settings=twin.settings)
    return said, twin.operation, twin.plan


def is_right(found: Identified, operation: str, wanted: Any) -> bool:
    """Return whether one of the plans that are named is the wanted one: the same in its choices,
    sums and events, or one that gives the same bits of other inputs, on which orders of sums
    differ.
    """
    if not found.is_found:
        return False
    own, key = OPERATIONS[operation], key_of(wanted)
    plans = [plan_of(own, words) for words in found.plans]
    if any(key_of(plan) == key for plan in plans):
        return True
    kind = "bf16" if str(wanted.roundings[0]) == "bf16" else "fp32"
    given = inputs_of(operation, kind, 50)
    other = _bits(operation, wanted, given)
    return any(np.array_equal(_bits(operation, plan, given), other) for plan in plans)


def key_of(plan: Any) -> tuple[object, ...]:
    """Return what decides the bits of a plan's forward."""
    return Tried("", (), plan).key


def _bits(operation: str, plan: Any, given: dict[str, Any]) -> np.ndarray:
    """Return the results of a plan that are kept in binary32, where orders of sums differ."""
    last = OPERATIONS[operation].outputs[0].site
    wide = plan if operation == "linear" else plan.rounded({last: rounding("fp32")})
    settings = {"reduction": "none"} if operation == "cross_entropy" else {}
    found = run(operation, wide, given, settings=settings).outputs
    return next(iter(found.values()))


def main(words: Iterable[str]) -> None:
    """Print a line of each case, and the recall by operation."""
    gpu, names = "--gpu" in words, [w for w in words if not w.startswith("--")]
    stored = [n for n, note in golden().items() if "sha256" in note and "scaled_mm" not in n]
    cases = stored if gpu else list(PLANTED)
    cases = [n for n in cases if not names or any(name in n for name in names)]
    rights: dict[str, list[tuple[bool, int, float]]] = {}
    for name in cases:
        begun = time.process_time()
        found, operation, wanted = (of_gpu if gpu else planted)(name)
        seconds = time.process_time() - begun
        right = is_right(found, operation, wanted)
        rights.setdefault(operation, []).append((right, len(found.ties), seconds))
        said = found.name or found.sentence
        print(f"{'right' if right else 'WRONG':5} {seconds:6.1f} s  {name:50} {said}", flush=True)
    print(f"\n{'operation':15} {'right':>9} {'ties':>6} {'median s':>9} {'worst s':>8}")
    for operation, own in rights.items():
        times = [t for _, _, t in own]
        ties = float(np.median([n for _, n, _ in own]))
        print(
            f"{operation:15} {sum(r for r, _, _ in own):4}/{len(own):<4} {ties:6.0f}"
            f" {median(times):9.2f} {max(times):8.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
