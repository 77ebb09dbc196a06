"""A second implementation of the tiny Llama as engines for serving have it, which dumps by hooks.

It has no code of any engine. It reads packed tokens (tokens, features), has one product for q, k
and v and one for gate and up, a norm that adds the residual in FP32 and normalizes the sum before
it is rounded, and a cache. `dumped` writes what `--debug-tensor-dump-output-folder` writes, in the
order in which that does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), eps

    def forward(self, x, residual=None):
        dtype, x = x.dtype, x.float()
        if residual is not None:
            x = x + residual.float()
            residual = x.to(dtype)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        y = (y * self.weight.float()).to(dtype)
        return y if residual is None else (y, residual)


class Merged(nn.Module):
    """Linear layers as one product; it returns the bias too, which there is none of."""

    def __init__(self, *layers: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]))

    def forward(self, x):
        return F.linear(x, self.weight), None


class Rotary(nn.Module):
    def __init__(self, own: nn.Module, head: int) -> None:
        super().__init__()
        self.table, self.head = (own,), head  # no module inside

    def forward(self, positions, q, k):
        cos, sin = self.table[0](q, positions[None])

        def turned(x):
            x = x.view(len(x), -1, self.head)
            one, two = x.chunk(2, -1)
            out = x * cos[0][:, None] + torch.cat((-two, one), -1) * sin[0][:, None]
            return out.reshape(len(x), -1)

        return turned(q), turned(k)


class Cached(nn.Module):
    """Attention of a sequence, by a token at a time or many, with the keys before them."""

    def __init__(self, head: int) -> None:
        super().__init__()
        self.head, self.kept = head, None

    def forward(self, q, k, v):
        q, k, v = (x.view(1, len(x), -1, self.head).transpose(1, 2) for x in (q, k, v))
        if self.kept is not None:
            k, v = (torch.cat((old, new), 2) for old, new in zip(self.kept, (k, v), strict=True))
        self.kept = k, v
        out = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        return out.transpose(1, 2).reshape(q.shape[2], -1)


class Gate(nn.Module):
    def forward(self, x):
        one, two = x.chunk(2, -1)
        return F.silu(one) * two


class Attention(nn.Module):
    def __init__(self, own: nn.Module, rotary: nn.Module, head: int) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = Merged(own.q_proj, own.k_proj, own.v_proj), Merged(own.o_proj)
        self.rotary_emb, self.attn = Rotary(rotary, head), Cached(head)
        self.sizes = [len(x.weight) for x in (own.q_proj, own.k_proj, own.v_proj)]

    def forward(self, positions, x):
        q, k, v = self.qkv_proj(x)[0].split(self.sizes, -1)
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(self.attn(q, k, v))[0]


class Mlp(nn.Module):
    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.gate_up_proj, self.act_fn = Merged(own.gate_proj, own.up_proj), Gate()
        self.down_proj = Merged(own.down_proj)

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class Layer(nn.Module):
    def __init__(self, own: nn.Module, rotary: nn.Module, head: int) -> None:
        super().__init__()
        eps = own.input_layernorm.variance_epsilon
        self.self_attn, self.mlp = Attention(own.self_attn, rotary, head), Mlp(own.mlp)
        self.input_layernorm = Norm(own.input_layernorm.weight.detach(), eps)
        self.post_attention_layernorm = Norm(own.post_attention_layernorm.weight.detach(), eps)

    def forward(self, positions, x, residual):
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(positions, x), residual)
        return self.mlp(x), residual


class Model(nn.Module):
    def __init__(self, own: nn.Module, head: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding.from_pretrained(own.embed_tokens.weight.detach())
        self.layers = nn.ModuleList(Layer(x, own.rotary_emb, head) for x in own.layers)
        self.norm = Norm(own.norm.weight.detach(), own.norm.variance_epsilon)

    def forward(self, tokens, positions):
        x, residual = self.embed_tokens(tokens), None
        for layer in self.layers:
            x, residual = layer(positions, x, residual)
        return self.norm(x, residual)[0]


class LogitsProcessor(nn.Module):
    def forward(self, x, weight):
        return F.linear(x[-1:], weight)  # of the last token


class Engine(nn.Module):
    """An engine with the weights of a Llama of the transformers library."""

    def __init__(self, llama: nn.Module) -> None:
        super().__init__()
        head = llama.config.hidden_size // llama.config.num_attention_heads
        self.model, self.lm_head = Model(llama.model, head), Merged(llama.lm_head)
        self.logits_processor = LogitsProcessor()

    def forward(self, tokens, positions):
        return self.logits_processor(self.model(tokens, positions), self.lm_head.weight)

    def passes(self, tokens: Tensor, prompt: int) -> list[Tensor]:
        """Read tokens (T,): `prompt` of them at once, and each further one by itself."""
        for module in self.modules():
            if isinstance(module, Cached):
                module.kept = None
        ends = range(prompt, len(tokens) + 1)
        starts = [0, *ends[:-1]]
        with torch.no_grad():
            return [
                self(tokens[s:e], torch.arange(s, e)) for s, e in zip(starts, ends, strict=True)
            ]


def dumped(engine: nn.Module, folder) -> None:
    """Let hooks write the results of every pass to a folder."""
    current: dict[str, object] = {}
    count = [0]

    def plain(x):
        if isinstance(x, tuple | list):
            each = [y.clone() for y in x if y is not None]
            return each[0] if len(each) == 1 else each
        return x.clone()

    def keep(name):
        def hook(module, args, out):
            if name == "model":
                current["model.forward_batch_info.input_ids"] = args[0].clone()
                current["model.forward_batch_info.positions"] = args[1].clone()
                current["model.forward_batch_info.seq_lens"] = args[1][-1:] + 1
                torch.save(dict(current), folder / f"Pass{count[0]:05d}.pt")
                count[0] += 1
                current.clear()
            current[name] = plain(out)

        return hook

    for name, module in engine.named_modules():
        if name == "model" or (name and not list(module.children())):
            module.register_forward_hook(keep(name))
