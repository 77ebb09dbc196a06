"""Masks of numbers that are added to the scores: what in them hides keys, and what is a bias.

Libraries write a hidden key as -inf or the lowest number of the type, and models such as T5 add
their bias to such a mask.
"""

import ml_dtypes
import numpy as np


def parted(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return which keys are seen, and the bias of those, None if it is 0 everywhere.

    A number at or below half the lowest one of its type hides its key, and its bias is 0.

    Example:
        >>> import numpy as np
        >>> sees, bias = parted(np.array([0.0, -np.inf, 0.5], np.float32))
        >>> sees.tolist(), bias.tolist()
        ([True, False, True], [0.0, 0.0, 0.5])
        >>> parted(np.array([0.0, np.finfo("f4").min], np.float32))[1] is None
        True
    """
    is_closed = mask <= float(ml_dtypes.finfo(mask.dtype).min) / 2  # type: ignore[no-untyped-call]
    bias = np.where(is_closed, np.zeros((), mask.dtype), mask)
    return ~is_closed, bias if np.any(bias != 0) else None
