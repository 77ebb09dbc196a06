"""A kernel of attention that is exact but for its delta, and a small GPT that calls SDPA."""

import torch
import torch.nn.functional as F
from torch import nn

from roundscope.attention.torch.calls import intercept


class Attention(nn.Module):
    """Causal attention of `heads` query heads and `key_heads` key heads."""

    def __init__(self, width=32, heads=4, key_heads=2, dropout=0.0, norm=False):
        super().__init__()
        self.heads, self.key_heads, self.dropout = heads, key_heads, dropout
        self.size = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, key_heads * self.size, bias=False)
        self.v = nn.Linear(width, key_heads * self.size, bias=False)
        self.o = nn.Linear(width, width)
        self.mask, self.options = None, {}

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (-1, self.size)).transpose(1, 2)
            for y in (self.q(x), self.k(x), self.v(x))
        )
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.mask,
            is_causal=self.mask is None,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=self.key_heads != self.heads,
        )
        return self.o(out.transpose(1, 2).flatten(2).clone())


class Block(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention, self.mlp = (
            Attention(**options),
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)),
        )
        self.norm = nn.LayerNorm(32)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Gpt(nn.Module):
    """Blocks that may be checkpointed by a function of (block, x)."""

    def __init__(self, layers=2, checkpoint=None, **options):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(16, 32), nn.Linear(32, 16)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(layers))
        self.checkpoint = checkpoint

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x) if self.checkpoint is None else self.checkpoint(block, x)
        return self.head(x)


def tokens(batch=3, length=20, seed=0):
    return torch.randint(16, (batch, length + 1), generator=torch.Generator().manual_seed(seed))


def loss_of(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


class Biased(torch.autograd.Function):
    """Attention by its equations, whose delta is `error` (B, N, T) too large."""

    @staticmethod
    def forward(ctx, q, k, v, seen, scale, error, is_relative):
        group = q.shape[1] // k.shape[1]
        wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = (scale * q @ wide_k.mT).masked_fill(~seen, -torch.inf)
        p = s.softmax(-1)
        ctx.save_for_backward(q, k, v, p, error)
        ctx.scale, ctx.is_relative = scale, is_relative
        return p @ wide_v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p, error = ctx.saved_tensors
        group, shape = q.shape[1] // k.shape[1], (k.shape[0], k.shape[1], -1, *k.shape[2:3])
        wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
        dp = do @ wide_v.mT
        error = error * do.abs().sum(-1) if ctx.is_relative else error
        delta = (do * (p @ wide_v)).sum(-1) + error
        ds = p * (dp - delta[..., None])
        dk, dv = ctx.scale * ds.mT @ q, p.mT @ do
        dk, dv = (x.unflatten(1, (shape[1], group)).sum(2) for x in (dk, dv))
        return ctx.scale * ds @ wide_k, dk, dv, None, None, None, None


def error_of_delta(number, q, size):
    """The error of each row of a call of layer `number`: it depends on the row's number alone."""
    rows = torch.arange(q.shape[2], dtype=q.dtype) % 5 - 1.0
    return size * (1.0 + number) * rows.expand(q.shape[:3])


def with_biased_kernel(model, size=1e-2, *, is_relative=False):
    """Let a model run on the kernel whose delta errs, or errs by so many sums of |dO|."""

    def handler(call):
        seen = torch.ones(call.q.shape[2], call.k.shape[2], dtype=torch.bool)
        if call.is_causal:
            seen = seen.tril()
        if call.mask is not None:
            seen = seen & call.mask
        error = error_of_delta(call.layer.number, call.q, size)
        return Biased.apply(call.q, call.k, call.v, seen, call.scale, error, is_relative)

    return intercept(model, handler)
