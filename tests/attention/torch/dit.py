"""A diffusion transformer by hand, as arXiv 2212.09748 has it, whose modules are like diffusers'.

Attention has no mask. What is asked for, the timestep and a label, enters each block by a shift, a
scale and a gate of each half (adaLN). The module of attention leaves the computation to an object,
its processor, as the modules of the diffusers library do.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def normed(x: Tensor) -> Tensor:
    """Return LayerNorm without weights."""
    return F.layer_norm(x, x.shape[-1:])


def split(attn: "Attention", x: Tensor) -> list[Tensor]:
    """Return q, k and v, each (B, N, T, H)."""
    parts = attn.qkv(x).chunk(3, -1)
    return [part.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for part in parts]


class Processor:
    """What computes the attention of a module."""

    def __call__(self, attn: "Attention", x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*split(attn, x)).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, processor: object) -> None:
        super().__init__()
        self.heads, self.processor = heads, processor
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.processor(self, x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, processor: object) -> None:
        super().__init__()
        self.attn = Attention(width, heads, processor)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        parts = self.modulation(F.silu(asked))[:, None].chunk(6, -1)
        for part, asks in ((self.attn, parts[:3]), (self.mlp, parts[3:])):
            shift, scale, gate = asks
            x = x + gate * part(normed(x) * (1 + scale) + shift)
        return x


class DiT(nn.Module):
    """Called as `DiTTransformer2DModel` of diffusers; a pixel is a token."""

    def __init__(
        self, layers: int = 2, width: int = 16, heads: int = 2, size: int = 4,
        processor: object = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.pixels, self.head = nn.Linear(1, width), nn.Linear(width, 1)
        self.places = nn.Parameter(torch.randn(size * size, width))
        self.steps, self.labels = nn.Embedding(1000, width), nn.Embedding(10, width)
        each = (Block(width, heads, processor or Processor()) for _ in range(layers))
        self.blocks = nn.ModuleList(each)

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, class_labels: Tensor
    ) -> SimpleNamespace:
        x = self.pixels(hidden_states.flatten(1)[..., None]) + self.places
        asked = self.steps(timestep) + self.labels(class_labels)
        for block in self.blocks:
            x = block(x, asked)
        return SimpleNamespace(sample=self.head(normed(x)).view_as(hidden_states))


def dit(seed: int = 0, **options: object) -> DiT:
    """Return a small one with random weights, whose gates are open."""
    torch.manual_seed(seed)
    return DiT(**options)  # type: ignore[arg-type]
