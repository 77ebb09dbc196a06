"""Attention in PyTorch models: capture, choose plans, watch, correct."""

from roundscope.attention.torch.calls import (
    Call,
    Handler,
    Interception,
    attention_layers,
    intercept,
)
from roundscope.attention.torch.capturing import capture
from roundscope.attention.torch.operator import attention
from roundscope.attention.torch.replacement import use

__all__ = [
    "Call",
    "Handler",
    "Interception",
    "attention",
    "attention_layers",
    "capture",
    "intercept",
    "use",
]
