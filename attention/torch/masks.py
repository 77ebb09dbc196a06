"""Masks of PyTorch: numbers that are added to the scores, as booleans."""

from typing import Any

import torch
from torch import Tensor

from roundscope.emu.numbers import check_array

OF_MASKS = (torch.bool, torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_mask(mask: Any, where: str = "") -> None:
    """Raise TypeError or ValueError unless a mask has booleans, or floats without a gradient.

    where: the beginning of the message
    """
    if mask is None:
        return
    check_array(f"{where}mask", mask)
    if not isinstance(mask, Tensor) or mask.dtype not in OF_MASKS:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{where}mask: {kind}, must be a tensor of bool, True where a query sees a key, or of"
            " floats that are added to the scores; mask.bool() makes one of 0 and 1"
        )
    if mask.is_floating_point() and mask.requires_grad:
        raise ValueError(f"{where}mask: requires a gradient, so it is a bias. {BIAS}")


BIAS = (
    "A bias of the scores is not modelled, only a mask: 0 where a query sees a key, and -inf or the"
    " lowest number of the type elsewhere"
)


@torch.library.custom_op("roundscope::visible", mutates_args=())
def visible(mask: Tensor, where: str = "") -> Tensor:
    """Return where a query sees a key, of a mask of numbers that are added to the scores.

    A number is 0, or at most the lowest finite number of the type. This is an operator, so that a
    compiled function looks at the numbers too.

    Args:
        mask: Floats of any shape.
        where: The beginning of the message about a bias, such as the name of a layer.

    Returns:
        Booleans of this shape, True where the number is 0.

    Raises:
        ValueError: Any other number, which is a bias.

    Example:
        >>> import torch
        >>> from roundscope.attention.torch.masks import visible
        >>> visible(torch.tensor([0.0, -torch.inf, torch.finfo(torch.float32).min]))
        tensor([ True, False, False])
    """
    sees = mask == 0.0
    wrong = ~(sees | (mask <= torch.finfo(mask.dtype).min))
    if bool(wrong.any()):
        raise ValueError(f"{where}mask: has the number {mask[wrong][0].item():g}. {BIAS}")
    return sees


@visible.register_fake
def _(mask: Tensor, where: str = "") -> Tensor:
    return torch.empty_like(mask, dtype=torch.bool)
