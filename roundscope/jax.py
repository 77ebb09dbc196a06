"""Roundscope for JAX: `roundscope.attention.jax` under the name that users write, and the
operations of whole models.
"""

from contextlib import AbstractContextManager
from typing import Any, Literal

from roundscope.attention.jax import Watch, corrected, tap, watch
from roundscope.attention.jax import capture as _capture_attention
from roundscope.operations.models.jax.across import across
from roundscope.operations.models.jax.capturing import capture_operations
from roundscope.operations.models.jax.comparing import compare
from roundscope.operations.models.jax.side import Side

__all__ = ["Side", "Watch", "across", "capture", "compare", "corrected", "tap", "watch"]


def capture(
    path: Any, *, what: Literal["attention", "operations"] = "attention", **options: Any
) -> AbstractContextManager[Any]:
    """Capture a model while it runs, and write a file at the end.

    Args:
        path: The safetensors file.
        what: "attention" for q, k, v and the output of tapped attention, as
            `roundscope.attention.jax.capture` says; "operations" for the inputs and results of all
            operations of a function, as
            `operations.models.jax.capturing.capture_operations` says.
        **options: The further arguments of these.

    Returns:
        A context manager, within which the model runs.

    Raises:
        ValueError: `what` is neither.
    """
    if what == "operations":
        return capture_operations(path, **options)
    if what != "attention":
        raise ValueError(f"what={what!r}: must be 'attention' or 'operations'")
    return _capture_attention(path, **options)
