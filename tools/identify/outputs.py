"""A safetensors file of the inputs and the outputs of a kernel."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from roundscope.attention.models.capture_file import save_tensors


def write(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write arrays to a safetensors file.

    Arrays of BF16 numbers are stored as BF16, those of FP16 numbers as FP16, others as FP32.

    Args:
        path: the file.
        arrays: float32 arrays by name.
        about: the file's metadata.
    """
    import ml_dtypes

    def stored(x: np.ndarray) -> np.ndarray:
        for dtype in (ml_dtypes.bfloat16, np.float16):
            narrow = x.astype(dtype)
            if np.array_equal(narrow.astype(np.float32), x, equal_nan=True):
                return narrow
        return x

    save_tensors(path, {n: np.ascontiguousarray(stored(x)) for n, x in arrays.items()}, about)
