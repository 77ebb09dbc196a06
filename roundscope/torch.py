"""Roundscope for PyTorch: `roundscope.attention.torch` under the name that users write, and the
operations of whole models.
"""

from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, Literal

from roundscope.attention.torch import *  # noqa: F403
from roundscope.attention.torch import __all__ as _of_attention
from roundscope.attention.torch import capture as _capture_attention
from roundscope.emu.errors import unknown
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
        TypeError: An argument that there is not, or that the other `what` has.
    """
    kinds: dict[str, Any] = {"attention": _capture_attention, "operations": capture_operations}
    if what not in kinds:
        raise ValueError(
            f"what={what!r}: must be 'attention', which has the gradients too if a backward runs"
            " within, or 'operations'"
        )
    whose: dict[str, list[str]] = {"model": [], "path": [], "what": []}
    for kind, function in kinds.items():
        for name in signature(function).parameters:
            whose.setdefault(name, []).append(kind)
    for name in options:
        if name not in whose:
            raise TypeError(f"capture: {unknown('argument', name, list(whose))}")
        if what not in whose[name]:
            raise TypeError(f"capture: {name}= is an argument of what={whose[name][0]!r} alone")
    found: AbstractContextManager[Any] = kinds[what](model, path, **options)
    return found
