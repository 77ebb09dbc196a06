"""What `check-cast` says of public NVFP4 quantizers with a given scale or a Hadamard transform.

    python -m tests.checks.against_quantizers [FOLDER]

needs torchao (0.18.0) and compressed-tensors (0.20.0), which run on a CPU. FOLDER is
src/fouroversix of a copy of github.com/mit-han-lab/fouroversix (commit dadfad6), whose reference in
PyTorch runs on a CPU too. It prints the sentence of each. No quantizer of a GPU was run.
"""

import importlib
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from roundscope.emu.testing.casts import examine_cast

SCALE = torch.tensor(0.0037)
SIZE = 16


def torchao_given(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales under a calibrated scale of the array."""
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    scales, codes = nvfp4_quantize(x.contiguous(), SIZE, SCALE)
    return codes, scales


def torchao_derived(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and the scale of the array, which is that of its largest magnitude."""
    from torchao.prototype.mx_formats import nvfp4_tensor

    whole = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().max())
    scales, codes = nvfp4_tensor.nvfp4_quantize(x.contiguous(), SIZE, whole)
    return codes, scales, whole


def compressed_given(
    x: torch.Tensor, front: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return elements and scales under a global scale, which is 1 over that of the array."""
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams

    x = x if front is None else front(x)
    scheme = preset_name_to_scheme("NVFP4", ["Linear"]).weights
    assert scheme is not None
    blocks = x.reshape(x.shape[0], -1, SIZE)
    low, high, whole = blocks.amin(-1), blocks.amax(-1), 1.0 / SCALE
    scales, zeros = calculate_qparams(low, high, scheme, global_scale=whole)
    return quantize(x, scales, zeros, scheme, global_scale=whole), scales


def by_compressed_tensors(x: torch.Tensor) -> torch.Tensor:
    """Return the Hadamard transform of 16 neighbors, as its `HadamardTransform` computes it."""
    from compressed_tensors.transform.utils.hadamard import deterministic_hadamard_matrix

    h = deterministic_hadamard_matrix(SIZE, torch.float64)
    turned = x.to(h.dtype).unflatten(-1, (-1, SIZE)) @ h
    return (turned.flatten(-2) / torch.tensor(SIZE, dtype=torch.float64).sqrt()).to(x.dtype)


def fouroversix(x: torch.Tensor, folder: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales and the scale of the array behind a random transform in BF16."""
    reference, utils = _parts_of(folder)
    had = reference.get_rht_matrix(device="cpu")
    codes, scales, top = reference.quantize(
        x.bfloat16(), had=had, scale_rule=utils.ScaleRule.static_6, use_blackwell_scale_layout=False
    )
    return codes, scales.reshape(len(x), -1), top / (448 * 6)


def _parts_of(folder: str) -> tuple[Any, Any]:
    """Return its reference and its names, without the parts that need a GPU."""
    for name, place in (
        ("fouroversix", folder),
        ("fouroversix.quantize", f"{folder}/quantize"),
        ("fouroversix.quantize.pytorch", f"{folder}/quantize/pytorch"),
    ):
        package = sys.modules.setdefault(name, types.ModuleType(name))
        package.__path__ = [place]
    reference = importlib.import_module("fouroversix.quantize.pytorch.reference")
    helpers = importlib.import_module("fouroversix.quantize.utils")
    reference.get_rht_matrix = helpers.get_rht_matrix  # type: ignore[attr-defined]
    return reference, importlib.import_module("fouroversix.utils")


def main() -> None:
    """Print what each behaves as."""
    given = {"tensor_scale": float(SCALE)}
    asked: list[tuple[str, Callable[[torch.Tensor], Any], dict[str, Any]]] = [
        ("torchao, a given scale", torchao_given, given),
        ("torchao", torchao_derived, {}),
        ("compressed-tensors, a given scale", compressed_given, given),
        (
            "compressed-tensors, a given scale and its transform",
            partial(compressed_given, front=by_compressed_tensors),
            {**given, "hadamard": "16"},
        ),
    ]
    if len(sys.argv) > 1:
        _parts_of(sys.argv[1])
        helpers = importlib.import_module("fouroversix.quantize.utils")
        signs = helpers.get_wgrad_sign_vector("cpu").numpy()
        rounded = partial(fouroversix, folder=sys.argv[1])
        asked.append(
            ("fouroversix, random transform", rounded, {"hadamard": "16:bf16", "signs": signs})
        )
        asked.append(("fouroversix, its signs not told", rounded, {"hadamard": "16:bf16"}))
    for name, function, words in asked:

        def called(x: np.ndarray, function: Callable[[torch.Tensor], Any] = function) -> Any:
            with torch.no_grad():
                return function(torch.from_numpy(x))

        found = examine_cast(called, "nvfp4", **words)
        failed = ", ".join(row.name for row in found.failed)
        print(f"{name}: {found.sentence}\n    rows that fail: {failed or 'none'}", flush=True)


if __name__ == "__main__":
    main()
