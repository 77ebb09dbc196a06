"""Roundscope for PyTorch: `roundscope.attention.torch` under the name that users write, and the
operations of whole models.
"""

from contextlib import AbstractContextManager
from typing import Any, Literal

from roundscope.attention.torch import *  # noqa: F403
from roundscope.attention.torch import __all__ as _of_attention
from roundscope.attention.torch import capture as _capture_attention
from roundscope.operations.models.torch.budget.error_budget import error_budget
from roundscope.operations.models.torch.comparing.compare import compare
from roundscope.operations.models.torch.decoding import decoded
from roundscope.operations.models.torch.recording.capture import capture_operations
from roundscope.operations.models.torch.side import Side

__all__ = [*_of_attention, "Side", "compare", "decoded", "error_budget"]


def capture(  # type: ignore[no-redef]  # attention's own has the star
    model: Any, path: Any, *, what: Literal["attention", "operations"] = "attention", **options: Any
) -> AbstractContextManager[Any]:
    """Capture a model while it runs, and write a file at the end.

    Args:
        model: Any `nn.Module`.
        path: The safetensors file.
        what: "attention" for q, k, v and the output of its attention, as
            `roundscope.attention.torch.capture` says; "operations" for the inputs and results of
            all its operations, as `capture_operations` in
            `operations.models.torch.recording.capture` says.
        **options: The further arguments of these.

    Returns:
        A context manager, within which the model runs.

    Raises:
        ValueError: `what` is neither.
    """
    if what == "operations":
        return capture_operations(model, path, **options)
    if what != "attention":
        raise ValueError(
            f"what={what!r}: must be 'attention', which has the gradients too if a backward runs"
            " within, or 'operations'"
        )
    return _capture_attention(model, path, **options)
