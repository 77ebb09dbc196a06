"""Error budgets of small models where they run: is the replay the model, and the judge binary64?

    python -m tests.checks.gpu_budget [cpu|cuda]

For a model of torch's modules in BF16, FP16, FP32 and under autocast, and a Llama of transformers
in BF16 if it is installed, it prints in how many numbers the gradients of the replay differ from
the model's own, the budget's error of the gradients, the same from the model in binary64 (not of
the Llama, whose norms cast), and the seconds. Exit code 1 if the errors differ by 1e-9 of their
size, or a number does (but in FP32 and under autocast on a CPU, where torch's norm reads a value
twice, and errors may differ by 1e-2).
"""

import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundscope.torch import error_budget

WIDTH, HEADS, VOCABULARY, TOKENS = 128, 4, 512, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = (nn.RMSNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (
            f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        x = x + self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        )
        h = self.other(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(Block(), Block())
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.cast = cast
        for norm in (m for m in self.modules() if isinstance(m, nn.RMSNorm)):
            norm.weight.data += 0.3 * torch.randn(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.cast):
            return self.head(self.norm(self.blocks(self.embed(ids))))


def loss(out: Any, ids: Tensor) -> Tensor:
    """The mean cross entropy of the next token, in binary32 or wider."""
    x = (out if isinstance(out, Tensor) else out.logits)[:, :-1]
    x = x if x.dtype == torch.float64 else x.float()
    return F.cross_entropy(x.flatten(0, 1), ids[:, 1:].flatten())


def made(dtype: torch.dtype, device: str, weights: torch.dtype, cast: bool = False) -> Model:
    torch.manual_seed(0)
    return Model(cast).to(weights).to(device, dtype).eval()


def by_torch(model: nn.Module, wide: nn.Module, ids: Tensor) -> float:
    """Return the relative error of the gradients of a model from those of its copy."""
    both = []
    for each in (model, wide):
        loss(each(ids), ids).backward()
        both.append(torch.cat([p.grad.double().flatten() for p in each.parameters()]))
    return float((both[0] - both[1]).norm() / both[1].norm())


def llama(device: str) -> nn.Module | None:
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).to(device, torch.bfloat16).eval()


def main(device: str) -> int:
    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), device=device)
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    failed = 0
    for name, dtype, cast in (
        ("bf16", bf16, False),
        ("fp16", fp16, False),
        ("fp32", fp32, False),
        ("autocast", fp32, True),
        ("llama", bf16, False),
    ):
        model = llama(device) if name == "llama" else made(dtype, device, dtype, cast)
        if model is None:
            continue
        began = time.perf_counter()
        found = error_budget(model, ids, loss=loss, events=dtype == bf16)
        seconds = time.perf_counter() - began
        ours, theirs = found.total.of("gradients"), float("nan")
        if name != "llama":
            theirs = by_torch(model, made(torch.float64, device, dtype), ids)
            failed += not abs(ours / theirs - 1) < (1e-2 if found.unequal else 1e-9)
        failed += found.unequal > 0 and not (device == "cpu" and dtype == fp32)
        print(
            f"{name}: unequal {found.unequal:.3%}, error of the gradients {ours:.12e}, by torch"
            f" {theirs:.12e}, interaction {found.interaction('gradients'):+.3f}; {seconds:.1f} s"
        )
        print(f"    {found.sentence}")
        for note in found.notes:
            print(f"    {note}")
    return failed > 0


if __name__ == "__main__":
    print(f"torch {torch.__version__}")
    place = sys.argv[1] if sys.argv[1:] else "cuda" if torch.cuda.is_available() else "cpu"
    print(torch.cuda.get_device_name() if place == "cuda" else "cpu", flush=True)
    sys.exit(main(place))
