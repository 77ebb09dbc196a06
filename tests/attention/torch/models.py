"""Small models with attention, of PyTorch and of the transformers library, with random weights.

Nothing is downloaded: a transformers model is made from its config.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 61


class SelfAttention(nn.Module):
    """Causal self-attention as users write it."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.own = heads, groups, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.own)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, c = x.shape
        sizes = [n * self.own for n in (self.heads, self.groups, self.groups)]
        q, k, v = (
            y.view(b, t, -1, self.own).transpose(1, 2) for y in self.qkv(x).split(sizes, dim=-1)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.groups
        )
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A layer of the GPT."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, groups)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A GPT of plain PyTorch, which returns logits (B, T, vocabulary).

    Args:
        layers: How many layers it has.
        width: Features of a token.
        heads: Query heads.
        groups: Key heads; `heads` if None.
        checkpointing: None, or whether activation checkpointing is the reentrant one.
    """

    def __init__(
        self,
        layers: int = 3,
        width: int = 16,
        heads: int = 4,
        groups: int | None = None,
        checkpointing: bool | None = None,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups or heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x, mask)
            else:
                x = checkpoint(block, x, mask, use_reentrant=self.checkpointing)
        return self.head(self.norm(x))


def gpt(seed: int = 0, **options: object) -> GPT:
    """Return a plain GPT with random weights, large enough that its softmax is not flat."""
    torch.manual_seed(seed)
    model = GPT(**options)  # type: ignore[arg-type]
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.mul_(4.0)
    return model


def pretrained(kind: str, implementation: str = "sdpa", seed: int = 0, **more: object) -> nn.Module:
    """Return a tiny model of the transformers library with random weights.

    Args:
        kind: "llama" (two heads share keys), "qwen2", "qwen3" or "gpt2".
        implementation: "sdpa" or "eager".
        seed: Seed of the weights.
        **more: Further entries of the config.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        sizes |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        sizes |= {"bos_token_id": 0, "eos_token_id": 0}
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8}
        sizes |= {"max_position_embeddings": 64}
    config = AutoConfig.for_model(
        kind,
        vocab_size=VOCABULARY,
        initializer_range=0.3,
        **sizes,
        **more,
    )
    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation, dtype=torch.float32
    )
    return model


def batch(rows: int = 2, tokens: int = 12, seed: int = 1) -> Tensor:
    """Return tokens (rows, tokens)."""
    return torch.randint(0, VOCABULARY, (rows, tokens), generator=torch.manual_seed(seed))
