"""Small models with random weights whose attention tests capture: plain torch and transformers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HEADS, TOKENS = 61, 32, 4, 24


class Attention(nn.Module):
    """Causal self-attention; `key_heads` below HEADS makes it grouped."""

    def __init__(self, key_heads=HEADS):
        super().__init__()
        self.key_heads = key_heads
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * key_heads * WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
        q, k, v = heads.split([HEADS, self.key_heads, self.key_heads], dim=1)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.key_heads != HEADS
        )
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, key_heads):
        super().__init__()
        self.attention = Attention(key_heads)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class PlainGpt(nn.Module):
    """A GPT of plain torch; `reentrant` True or False checkpoints its blocks in that way."""

    def __init__(self, blocks=2, key_heads=HEADS, reentrant=None):
        super().__init__()
        self.reentrant = reentrant
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(key_heads) for _ in range(blocks)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def plain_gpt(seed=0, **options):
    torch.manual_seed(seed)
    return PlainGpt(**options)


def of_transformers(family, implementation, seed=0, **more):
    """A tiny causal language model of a family, with random weights."""
    import transformers

    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }[family]
    sizes = {
        "gpt2": {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    }.get(
        family,
        {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
        | {"intermediate_size": 64, "num_key_value_heads": 2},
    )
    torch.manual_seed(seed)
    made = config(vocab_size=VOCABULARY, attn_implementation=implementation, **sizes, **more)
    return model(made).train()


def tokens(batch=2, count=TOKENS, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, count), generator=g)


def logits(model, ids, **more):
    result = model(ids, **more)
    return result if isinstance(result, torch.Tensor) else result.logits


def step(model, ids, **more):
    """A forward and a backward: outputs, loss and the gradient of every parameter."""
    model.zero_grad()
    out = logits(model, ids, **more)
    loss = F.cross_entropy(out[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "loss": loss.detach()} | gradients


def bits(results):
    """The bytes of tensors by name, which tell -0 from 0 and one NaN from another."""
    flat = {n: x.reshape(-1).contiguous() for n, x in results.items()}
    return {n: x.view(torch.uint8).numpy().tobytes() for n, x in flat.items()}
