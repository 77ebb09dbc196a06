"""What torch._scaled_mm returns in FP8 on this machine, for the calls of `scaled_mm_cases`.

    python -m tests.checks.gpu_scaled_mm --out FOLDER     on a GPU: results and kernels
    python -m tests.checks.gpu_scaled_mm --store FOLDER   digests of a folder, into tests/golden

Needs NumPy, ml_dtypes and torch. A call that torch refuses is recorded with its message.
"""

import json
import tempfile
from argparse import ArgumentParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tests.checks.scaled_mm_cases import PROMOTED, TYPES, Call, calls, inputs

GOLDEN = Path(__file__).parents[1] / "golden" / "operations" / "calls" / "scaled-mm.json"
BYTES = {"e4m3": "uint8", "e5m2": "uint8", "bf16": "int16", "fp16": "int16", "fp32": "int32"}


def corner(call: Call) -> tuple[int, int]:
    """Return how many rows and results of a call are kept."""
    rows, results = (32, 128) if call.group == "split" else (64, 64)
    return min(rows, call.m), min(results, call.n)


def _tensor(x: np.ndarray, kind: str) -> Any:
    import torch

    own = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
    whole = torch.from_numpy(np.ascontiguousarray(x).view(BYTES[kind]))
    return whole.view(own.get(kind, torch.float16 if kind == "fp16" else torch.float32)).cuda()


def called(call: Call) -> Any:
    """Return the function that makes a call."""
    import torch

    given = inputs(call)
    x, w = _tensor(given["x"], call.a), _tensor(given["weight"], call.b)
    by_x, by_w = (_tensor(given[name], "fp32") for name in ("x_scale", "weight_scale"))
    if call.scales != "tensor":
        by_w = by_w.t()
    if call.scales.startswith("blocks"):  # the layout that cuBLAS reads: rows follow each other
        by_x = by_x.t().contiguous().t()
        by_w = by_w if call.scales == "blocks" else by_w.contiguous()
    bias = _tensor(given["bias"], call.bias) if call.bias else None
    out = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
    kind = out.get(call.out, torch.float16 if call.out == "fp16" else torch.float32)
    return lambda: torch._scaled_mm(
        x, w.t(), scale_a=by_x, scale_b=by_w, bias=bias, out_dtype=kind, use_fast_accum=call.fast
    )


def promoted(call: Call) -> Any:
    """Return what the Triton kernel of `promoted_kernel` computes."""
    import torch

    from tests.checks.promoted_kernel import product

    given = inputs(call)
    x, w = _tensor(given["x"], call.a), _tensor(given["weight"], call.b)
    scales = (_tensor(given[name], "fp32") for name in ("x_scale", "weight_scale"))
    out = torch.empty(call.m, call.n, device="cuda")
    product[(call.m // 64, call.n // 64)](x, w, *scales, out, call.n, call.k, 64, 64)
    return out


def kernels(f: Any) -> list[Any]:
    """Return (name, grid) of the kernels that a call runs."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        f()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    ran = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    return [(e["name"][:160], e["args"].get("grid")) for e in ran]


def record(folder: Path) -> None:
    """Write out.npz and notes.json."""
    import torch

    arrays, notes = {}, {}
    for number, call in enumerate(calls()):
        name = f"{number:03d}/{call.name}"
        notes[name] = note = {}
        try:
            f = called(call)
            rows, results = corner(call)
            own = f()[:rows, :results].contiguous().cpu()
            arrays[name] = own.view(getattr(torch, BYTES[call.out])).numpy()
            note["kernels"] = kernels(f)
        except (RuntimeError, ValueError) as error:
            note["failed"] = str(error)[:300]
    for name, call in PROMOTED.items():
        arrays[f"triton/{name}"] = promoted(call)[:64, :64].contiguous().cpu().view(torch.int32)
    about = {name: version(name) for name in ("torch", "nvidia-cublas", "numpy")}
    notes["versions"] = about | {"gpu": torch.cuda.get_device_name(0)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "out.npz", **arrays)
    (folder / "notes.json").write_text(json.dumps(notes))


def recorded(folder: Path) -> dict[str, np.ndarray]:
    """Return the results of a folder by the names of their calls."""
    kinds = {f"{n:03d}/{call.name}": call.out for n, call in enumerate(calls())}
    kinds |= {f"triton/{name}": "fp32" for name in PROMOTED}
    found = np.load(folder / "out.npz")
    return {kind: found[kind].view(TYPES[kinds[kind]]) for kind in found.files if kind in kinds}


def store(folder: Path) -> None:
    """Write the digests of a folder's results."""
    from tests.operations.gpu_cases import digest, splits_of

    notes = json.loads((folder / "notes.json").read_text())
    found = recorded(folder)
    cases = {}
    for number, call in enumerate(calls()):
        name = f"{number:03d}/{call.name}"
        if name in found:
            ran = notes[name].get("kernels") or [["", [1, 1, 1]]]
            splits = splits_of(ran[0][0], ran[0][1], call.m, call.n)
            cases[name] = {"sha256": digest(found[name]), "splits": splits}
        else:
            cases[name] = {"refused": notes[name]["failed"][:90]}
    kernel = {name: digest(found[f"triton/{name}"]) for name in PROMOTED}
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"versions": notes["versions"], "promoted": kernel, "cases": cases}, separators=(",", ":")
    )
    GOLDEN.write_text(text.replace('},"', '},\n"') + "\n")


def main() -> None:
    """Record, or store what was recorded."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    if given.out:
        record(given.out)
    if given.store:
        store(given.store)


if __name__ == "__main__":
    main()
