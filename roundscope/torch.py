"""Roundscope for PyTorch: `roundscope.attention.torch` under the name that users write."""

from roundscope.attention.torch import *  # noqa: F403
from roundscope.attention.torch import __all__ as __all__
