"""Attention that a model of another file calls: by a function, and under another name."""

from functools import wraps

import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as own_sdpa


def counted(function):
    """A decorator that hides the function's own code."""

    @wraps(function)
    def wrapped(*args):
        return function(*args)

    return wrapped


@counted
def decorated(x: Tensor) -> Tensor:
    return own_sdpa(x, x, x)


def attended(x: Tensor) -> Tensor:
    return decorated(x)


def normalized(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)
