"""Call kernels twice and write what they return, with all that says where it came from."""

import json
import platform
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from . import of_gpus, of_jax, of_processors, of_torch
from .calls import EPS, SEEDS, Kernel, digest, inputs

FORMAT = "roundscope-kernel-outputs-1"
KERNELS: dict[str, tuple[str, str, str, tuple[str, ...], Kernel]] = {
    **of_torch.KERNELS,
    **of_jax.KERNELS,
    **of_processors.KERNELS,
    **of_gpus.KERNELS,
}
NAMED = ("numpy", "torch", "triton", "transformers", "jax", "jaxlib", "flax", "tokamax", "keras",
         "mlx", "mlx-cpu", "onnxruntime", "openvino", "liger-kernel", "sageattention",
         "fla-core", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13")  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a kernel may depend on, of those installed."""
    found = {"python": platform.python_version()}
    for name in NAMED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device(library: str) -> str:
    """Return the name of the processor that kernels of a library run on."""
    if library in ("jax", "flax", "tokamax", "keras"):
        import jax

        first = jax.devices()[0]
        return first.device_kind if first.platform == "gpu" else processor()
    if library in ("torch", "transformers") or library in {k[0] for k in of_gpus.KERNELS.values()}:
        import torch

        return torch.cuda.get_device_name(0) if of_torch.has_gpu() else processor()
    return processor()


def processor() -> str:
    """Return the name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def wanted(only: Iterable[str] | None, there: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the kernels and types that an environment has. Raises ValueError for unknown names."""
    names = list(KERNELS if only is None else only)
    for name in names:
        if name not in KERNELS:
            raise ValueError(f"kernel {name!r}: must be among {', '.join(KERNELS)}")
    for name in names:
        if KERNELS[name][0] in there:
            yield from ((name, kind) for kind in KERNELS[name][3])


def write(
    folder: Path, only: Iterable[str] | None = None, tell: Callable[[str], None] = print
) -> list[Path]:
    """Write the files of an environment and return their paths; failures are told in the files."""
    folder.mkdir(parents=True, exist_ok=True)
    there, paths = versions(), []
    for name, kind in wanted(only, there):
        library, operation, where, _, kernel = KERNELS[name]
        own = device(library)
        is_cpu = own == processor()
        if where not in ("any", "cpu" if is_cpu else "gpu"):
            continue
        x = inputs(operation)
        about: dict[str, Any] = {
            "format": FORMAT,
            "kernel": name,
            "library": library,
            "version": there[library],
            "operation": operation,
            "type": kind,
            "versions": there,
            "device": own,
            "seed": SEEDS[operation],
            "inputs": {n: digest(a) for n, a in x.items()},
            "settings": {"eps": EPS[operation]} if operation in EPS else {},
            "failed": "",
        }
        results: dict[str, np.ndarray] = {}
        try:
            results = {n: np.asarray(a, np.float32) for n, a in kernel(dict(x), kind).items()}
            again = kernel(dict(x), kind)
            about["again"] = all(digest(a) == digest(again[n]) for n, a in results.items())
        except Exception as error:  # whatever a library raises
            said = str(error).strip().splitlines() or [""]
            about["failed"] = f"{type(error).__name__}: {said[0]}"
        path = folder / f"{name}-{kind}-{there[library]}.npz"
        np.savez_compressed(path, about=np.array(json.dumps(about)), **results)  # type: ignore
        paths.append(path)
        tell(f"{name} {kind} {there[library]}: {about['failed'] or 'written'}")
    return paths
