"""Gradients, tables of angles and steps of AdamW that torch computed on a GPU, and their plans.

The files of `tests/golden/operations/training` have the inputs of each case, made from seeds, and
the SHA-256 of its outputs; `tests.checks.gpu_operations` records the outputs themselves.
`python -m tests.operations.gpu_gradients FOLDER [FILE]` prints the share of equal numbers of such
a folder, and writes the digests of the cases that are equal into a file.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from tests.checks.gpu_operations import TYPES, cases, inputs
from tests.operations.gpu_cases import GOLDEN, SUFFIX, digest, norm_of, softmax_order, splits_of

TRAINING = GOLDEN / "training"
NAMES = {"dx": "x", "dw": "weight", "da": "gate", "db": "up"}  # in a recording, and in a plan
KEPT = (
    "inputs",
    "eps",
    "kept",
    "corner",
    "parts",
    "settings",
    "start",
    "theta",
    "width",
)  # of a note
STATES = {"parameter": "parameter", "first": "exp_avg", "second": "exp_avg_sq"}


def outputs_of(name: str, note: dict[str, Any], made: dict[str, Any]) -> dict[str, Any] | None:
    """Return the gradients of a case's plan, or the states after steps of AdamW, by the names of
    the recording and as far as they were kept; None for a case without a plan.
    """
    operation, source, kind, *rest = name.split("/")
    if operation == "adamw":
        return _steps(source, kind, note["settings"], made)
    if operation == "rope" and kind == "bf16":
        positions = np.arange(note["start"], note["start"] + 128, dtype=np.float32)
        told = {"theta": note["theta"], "features": note["width"]}
        found = run("rope_table", "transformers-llama", {"positions": positions}, settings=told)
        return dict(found.outputs)
    if operation in ("linear", "linear_gradients") and source == "torch" and kind != "fp32":
        return _of_linear(kind, note["corner"], note.get("parts", 1), made)
    gradient = made.get("gradient", np.ones(()))
    given = {key: x for key, x in made.items() if key != "gradient"}
    settings: dict[str, Any] = {}
    if operation == "rms_norm" and source in ("torch", "llama", "gemma"):
        plan = norm_of(source, kind, int(rest[0]), 1)
        if rest[0] == "64" and source != "torch":
            plan = plan.changed("DW.sum=block1")
        settings = {"eps": note["eps"]}
    elif operation in ("silu", "silu_mul") and source in ("torch", "compiled"):
        own = {"torch": "torch-cuda", "compiled": "fused"}[source]
        plan = plan_of(OPERATIONS[operation], own + SUFFIX[kind])
        gradient = np.ones_like(given["x"]) if operation == "silu" else gradient
    elif operation in ("log_softmax", "cross_entropy") and source in ("torch", "torch-fp32"):
        wide = kind == "fp32" or source == "torch-fp32"
        plan = plan_of(OPERATIONS[operation], "torch-cuda" + ("-fp32" if wide else SUFFIX[kind]))
        for site in ("S", "DS"):
            plan = plan.adding(site, softmax_order(int(rest[0]), 32 if wide else 16))
        if operation == "cross_entropy":
            threads = min(max(2 ** round(math.log2(len(given["x"]) / 16)), 32), 1024)
            plan = plan.adding("TOTAL", Accumulator(order=Order.STRIDED, chunk=threads))
            settings = {"reduction": rest[1]}
    elif operation == "embedding" and len(given["tokens"]) <= 3072:
        plan = plan_of(OPERATIONS[operation], "torch-cuda" + SUFFIX[kind])
    else:
        return None
    name = next(v.name for v in OPERATIONS[operation].outputs)
    with np.errstate(invalid="ignore"):  # signalling NaNs among all numbers of a type
        found = run(operation, plan, given, settings=settings, gradients={name: gradient})
    kept = {n: x.astype(TYPES[kind]) for n, x in found.gradients.items()}
    for n in set(kept) - {"weight"}:
        kept[n] = kept[n][: note.get("kept")]
    named = {short: kept[n] for short, n in NAMES.items() if n in kept}
    return named | ({"loss": found.outputs["loss"]} if operation == "cross_entropy" else {})


def _of_linear(
    kind: str, corner: tuple[int, int], parts: int, made: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return corners of the gradients of a linear layer, whose sums read no more than is needed.

    parts: those of the sum of dW.
    """
    rows, columns = corner
    columns = columns if len(made["x"]) > 1 else 1024
    x, w, dout = made["x"], made["weight"], made["gradient"]
    plan, found = f"hopper{SUFFIX[kind]}; splits_dw={parts}", {}
    for n, own in (
        ("dx", (x[:rows, :columns], w[:, :columns], dout[:rows])),
        ("dw", (x[:, : corner[1]], w[:rows, : corner[1]], dout[:, :rows])),
    ):
        given = dict(zip(("x", "weight"), own[:2], strict=True))
        gradients = run("linear", plan, given, gradients={"out": own[2]}).gradients
        found[n] = gradients[NAMES[n]].astype(TYPES[kind])
    return found


def _steps(
    how: str, kind: str, told: dict[str, Any], made: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return the states after the first, the second and the fifth step of AdamW."""
    plan = "torch-cuda" + ("" if how == "plain" else f"-{how}") + SUFFIX[kind]
    settings = {key: told[key] for key in ("lr", "eps", "weight_decay")}
    settings |= dict(zip(("beta1", "beta2"), told["betas"], strict=True))
    zero = np.zeros_like(made["parameter"])
    states = {"parameter": made["parameter"], "exp_avg": zero, "exp_avg_sq": zero}
    found = {}
    for step in range(1, 6):
        given = states | {"gradient": made[f"gradient{step}"]}
        states = dict(run("adamw", plan, given, settings=settings | {"step": step}).outputs)
        states.pop("copy")
        if step in (1, 2, 5):
            found |= {f"{short}{step}": states[name] for short, name in STATES.items()}
    return found


def golden() -> dict[str, dict[str, Any]]:
    """Return the notes of the stored cases, with the digests of their outputs."""
    files = sorted(TRAINING.glob("*.json"))
    return {name: note for f in files for name, note in json.loads(f.read_text())["cases"].items()}


def compared(folder: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, np.ndarray], float]]:
    """Yield the cases of a capture with a plan: name, note, outputs, least share of equal ones."""
    for name, (note, outputs) in cases(folder).items():
        if "failed" in note or not {"dx", "dw", "da", "parameter1", "cos"} & set(outputs):
            continue
        if name.startswith("adamw") and "settings" not in note:
            continue
        if name.startswith("linear_gradients"):
            own = [k for k in note["kernels"] if "splitK_" in k[0]]
            out, features = note["inputs"]["weight"][1][1]
            note["parts"] = splits_of(*own[0][:2], features, out) if own else 1
        found = outputs_of(name, note, inputs(note))
        if found is None:
            continue
        wanted = {n: outputs[n].reshape(x.shape) for n, x in found.items() if n in outputs}
        shares = []
        for n, x in wanted.items():
            a, b = x.astype(np.float64), found[n].astype(np.float64)
            shares.append(float(((a == b) | (np.isnan(a) & np.isnan(b))).mean()))
        yield name, note, wanted, min(shares)


def main() -> None:
    """Print the shares; with a file, write the digests of the cases that are equal there."""
    stored = {}
    for name, note, wanted, share in compared(Path(sys.argv[1])):
        print(f"{share:9.4%}  {name}  {' '.join(wanted)}", flush=True)
        if share == 1.0:
            kept = {key: note[key] for key in KEPT if key in note}
            stored[name] = kept | {"sha256": {n: digest(x) for n, x in wanted.items()}}
    if len(sys.argv) > 2:
        with safe_open(next(Path(sys.argv[1]).glob("*.safetensors")), "numpy") as capture:
            about = {k: v for k, v in capture.metadata().items() if k != "notes"}
        text = json.dumps({"versions": about, "cases": stored}, separators=(",", ":"))
        Path(sys.argv[2]).parent.mkdir(exist_ok=True)
        Path(sys.argv[2]).write_text(text.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
