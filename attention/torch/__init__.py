"""Attention in PyTorch models: capture it, choose its plans, watch it, correct it."""

from roundscope.attention.torch.call import Call, Handler
from roundscope.attention.torch.calls import Interception, intercept
from roundscope.attention.torch.capturing import capture
from roundscope.attention.torch.correction import correct, corrected
from roundscope.attention.torch.declared import attention_function
from roundscope.attention.torch.discovery import attention_layers
from roundscope.attention.torch.operator import attention
from roundscope.attention.torch.replacement import use
from roundscope.attention.torch.watching import Watch, watch

__all__ = [
    "Call",
    "Handler",
    "Interception",
    "Watch",
    "attention",
    "attention_function",
    "attention_layers",
    "capture",
    "correct",
    "corrected",
    "intercept",
    "use",
    "watch",
]
