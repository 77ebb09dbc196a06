"""Tiny Llamas and changes of their arithmetic, whose culprit is known."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256
BF16 = torch.bfloat16
TOKENS = 64


def llama(
    implementation: str = "sdpa", layers: int = 2, width: int = 64, dtype: torch.dtype = BF16
) -> nn.Module:
    """Return a Llama of the transformers library with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 32,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        attn_implementation=implementation,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    for norm in norms(model):  # a weight of ones would hide where it is cast
        norm.weight.data = (1 + 0.3 * torch.randn_like(norm.weight.float())).to(dtype)
    return model


FEW_TOKENS = 128
KINDS: dict[str, dict[str, object]] = {  # what a family's config has beside the sizes
    "llama": {"head_dim": 16},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    },
    "gemma3_text": {
        "head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_oss": {
        "head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    },
}  # fmt: skip


def tiny(kind: str, implementation: str = "sdpa", dtype: torch.dtype = BF16) -> nn.Module:
    """Return a model of a family of the transformers library with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, object] = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64,
    }  # fmt: skip
    own = KINDS[kind] if kind == "gpt2" else sizes | KINDS[kind]
    config = AutoConfig.for_model(
        kind, vocab_size=FEW_TOKENS, initializer_range=0.1, pad_token_id=0, **own
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation, dtype=dtype
    ).eval()


def tokens(batch: int = 1, count: int = TOKENS) -> Tensor:
    """Return tokens, of which a larger batch begins with those of a smaller one."""
    return torch.randint(0, VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(1))


def norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]


def with_late_cast(model: nn.Module) -> nn.Module:
    """RMSNorm whose result is cast after it is multiplied by the weight."""

    def changed(norm):
        def late_cast(h):
            x = h.float()
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
            return (norm.weight.float() * x).to(h.dtype)

        return late_cast

    for norm in norms(model):
        norm.forward = changed(norm)
    return model


def with_split_k(model: nn.Module) -> nn.Module:
    """`down_proj` as the sum of two products, each of which is rounded."""

    def changed(linear):
        def split_k(x):
            k, w = x.shape[-1] // 2, linear.weight
            return F.linear(x[..., :k], w[:, :k]) + F.linear(x[..., k:], w[:, k:])

        return split_k

    for path, module in model.named_modules():
        if path.endswith("down_proj"):
            module.forward = changed(module)
    return model


def with_bf16_table(model: nn.Module) -> nn.Module:
    """Angles of the rotary embedding in BF16."""
    rotary = model.model.rotary_emb

    def bf16_table(x, position_ids):
        half = position_ids[:, :, None].bfloat16() * rotary.inv_freq.bfloat16()
        angle = torch.cat((half, half), -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    rotary.forward = bf16_table
    return model


def with_fp32_residual(model: nn.Module) -> nn.Module:
    """Layers that add to a residual stream in FP32, which norms read in BF16."""

    def changed(layer):
        def fp32_residual(h, **given):
            h = h.float()
            h = h + layer.self_attn(hidden_states=layer.input_layernorm(h.bfloat16()), **given)[0]
            return h + layer.mlp(layer.post_attention_layernorm(h.bfloat16()))

        return fp32_residual

    for layer in model.model.layers:
        layer.forward = changed(layer)
    model.model.norm.register_forward_pre_hook(lambda module, args: (args[0].bfloat16(),))
    return model


def with_fp8_linear(model: nn.Module) -> nn.Module:
    """Linear layers of the MLPs whose operands are E4M3 with a scale for each tensor."""

    def quantized(x):
        scale = x.float().abs().max() / 448
        return (x.float() / scale).to(torch.float8_e4m3fn).float() * scale

    def changed(linear):
        weight = quantized(linear.weight.data)

        def fp8(x):
            return F.linear(quantized(x), weight).to(x.dtype)

        return fp8

    for path, module in model.named_modules():
        if path.endswith(("gate_proj", "up_proj", "down_proj")):
            module.forward = changed(module)
    return model


def log_softmax(dtype):
    """Return how log-probabilities are computed from logits in a type."""

    def logprobs(logits, tokens):
        table = torch.log_softmax(logits[:, :-1].to(dtype), -1)
        return table.gather(-1, tokens[:, 1:, None])[..., 0]

    return logprobs


def by_token(model, inputs):
    """Run a model on one token after the other, with a cache."""
    from transformers import DynamicCache

    cache, logits = DynamicCache(config=model.config), []
    for t in range(inputs.shape[1]):
        with warnings.catch_warnings():  # newer versions have another name for it
            warnings.simplefilter("ignore", FutureWarning)
            out = model(inputs[:, t : t + 1], past_key_values=cache, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, 1)
