"""The table of models: what `use`, `capture`, `watch` and `correct` do with them, measured.

    python -m tests.checks.models_table [MODEL ...]

Tiny models of the transformers library with random weights, and modules of plain PyTorch, in
float64 (mixtures of experts in float32, which their grouped products need). For each model:

    use      largest difference of the logits under "exact", over the largest logit
    capture  relative rms error of the file's outputs against softmax(scale Q K^T + B) V, computed
             here in float64 from the file alone; whether any bit of the logits changed
    watch    the drift, 0 in exact arithmetic
    correct  largest difference of the weights' gradients, over the largest gradient

A refusal is followed by what it advises, which is tried here; one of which no advice works is a
dead end, and the command then returns 1.
"""

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundscope.attention.models.capture_file import Captured
from roundscope.torch import attention_function, capture, correct, use, watch

VOCABULARY = 61
TOKENS = torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8,
    "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
OLD = {"vocab_size": VOCABULARY, "hidden_size": 32, "initializer_range": 0.3, "bos_token_id": 1,
       "eos_token_id": 2}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "Mistral, window": ("mistral", {"sliding_window": 6}),
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Gemma 2, softcap": ("gemma2", {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "Gemma 3": ("gemma3_text", {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "OLMo 2": ("olmo2", {}),
    "Phi": ("phi", {"num_key_value_heads": 4}),
    "gpt-oss, sinks": ("gpt_oss", {"num_local_experts": 4, "sliding_window": 6}),
    "Mixtral": ("mixtral", {"num_local_experts": 4}),
    "Qwen3-MoE": ("qwen3_moe", EXPERTS),
    "Qwen3-Next": ("qwen3_next", EXPERTS | LINEAR),
    "GPT-2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **OLD,
                       "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "GPT-NeoX": ("gpt_neox", {}),
    "Falcon": ("falcon", OLD | {"num_hidden_layers": 2, "num_attention_heads": 4}),
    "Falcon, ALiBi": (
        "falcon", OLD | {"num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}
    ),
    "BLOOM, ALiBi": ("bloom", OLD | {"n_layer": 2, "n_head": 4}),
    "MPT, ALiBi": ("mpt", OLD | {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "GPT-Neo": ("gpt_neo", OLD | {
        "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 6, "max_position_embeddings": 64}),
    "T5, learned bias": ("t5", {
        "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
        "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0}),
}  # fmt: skip
OWN_NAMES = ("gpt2", "falcon", "bloom", "mpt", "gpt_neo", "t5")  # configs that do not take SMALL


def of_transformers(name: str, implementation: str) -> nn.Module:
    """Return a tiny model with random weights.

    Raises:
        ValueError: The model has no such implementation.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind, more = CONFIGS[name]
    config = AutoConfig.for_model(kind, **(more if kind in OWN_NAMES else SMALL | more))
    make = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    has_experts = "num_local_experts" in more or "num_experts" in more
    dtype = torch.float32 if has_experts else torch.float64
    torch.manual_seed(0)
    model: nn.Module = make.from_config(config, attn_implementation=implementation, dtype=dtype)
    return model


class _Plain(nn.Module):
    """Embedding, attention modules and a head of plain PyTorch."""

    def __init__(self, *kinds: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.blocks = nn.ModuleList(kind() for kind in kinds)
        self.double()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return argparse.Namespace(logits=logits, loss=loss)


class _Own(nn.Module):
    """Self-attention of four heads of 8, whose subclasses say how it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind()


class Sdpa(_Own):
    def forward(self, x: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return out.transpose(1, 2).flatten(2)


class Twice(_Own):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        first = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = first - 0.5 * F.scaled_dot_product_attention(k, q, v, is_causal=True)
        return out.transpose(1, 2).flatten(2)


class WithoutHeads(_Own):
    def forward(self, x: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(*(y.flatten(0, 1) for y in self.heads(x)))
        return out.unflatten(0, (-1, 4)).transpose(1, 2).flatten(2)


class WrittenOut(_Own):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Marked(_Own):
    @attention_function(scale=8**-0.5)
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 8**0.5).softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(*self.heads(x)).transpose(1, 2).flatten(2)


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "SDPA": lambda: _Plain(Sdpa, Sdpa),
    "SDPA twice in a module": lambda: _Plain(Twice, Twice),
    "SDPA of (B N, T, H)": lambda: _Plain(WithoutHeads, WithoutHeads),
    "softmax(q k) v by hand": lambda: _Plain(WrittenOut, WrittenOut),
    "the same, marked": lambda: _Plain(Marked, Marked),
    "SDPA beside by hand": lambda: _Plain(Sdpa, WrittenOut),
}


def stepped(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits and the gradients of a step."""
    model.zero_grad()
    out = model(input_ids=TOKENS, labels=TOKENS)
    out.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return out.logits.detach(), grads


def textbook(call: Captured) -> np.ndarray:
    """Return softmax(scale Q K^T + B) V of a captured call, in float64."""
    q, k, v = (x.astype(np.float64) for x in (call.q, call.k, call.v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = call.scale * q @ k.swapaxes(-1, -2)
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    if call.mask is not None:
        scores = np.where(call.mask, scores, -np.inf)
    if call.is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    sink = 0.0
    if call.sinks is not None:
        logits = call.sinks.astype(np.float64)[None, :, None, None]
        top = np.maximum(top, logits)
        sink = np.exp(logits - top)
    p = np.exp(scores - top)
    return np.asarray(p / (p.sum(-1, keepdims=True) + sink) @ v)


class Table:
    """One model: what each function does, in words, and the dead ends."""

    def __init__(self, make: Callable[..., nn.Module], folder: Path) -> None:
        self.make, self.file, self.dead = make, folder / "calls.safetensors", False
        self.model = make()
        self.logits, self.gradients = stepped(self.model)

    def use(self) -> str:
        with use(self.model, "exact"):
            logits, _ = stepped(self.model)
        return f"{(logits - self.logits).abs().max() / self.logits.abs().max():.0e}"

    def capture(self) -> str:
        with capture(self.model, self.file, calls=None, batch=None) as calls:
            logits, _ = stepped(self.model)
        errors = []
        for call in calls:
            expected = textbook(call)
            assert call.out is not None
            off = call.out.astype(np.float64) - expected
            errors.append(float(np.sqrt((off**2).sum() / (expected**2).sum())))
        bits = "" if torch.equal(logits, self.logits) else ", logits changed"
        count = f"{len(calls)} call{'s' if len(calls) > 1 else ''}"
        return f"{max(errors):.0e} ({count}){bits}"

    def watch(self) -> str:
        with watch(self.model, every=1) as watched:
            stepped(self.model)
            found = watched.numbers()["attention/drift"]
        return f"{found:.0e}" + (", note" if watched.note else "")

    def correct(self) -> str:
        with correct(self.model):
            _, gradients = stepped(self.model)
        largest = max(float(g.abs().max()) for g in self.gradients.values())
        off = max(float((g - gradients[n]).abs().max()) for n, g in self.gradients.items())
        return f"{off / largest:.0e}"

    def cell(self, name: str) -> str:
        """Return what a function does, or why it refuses and which advice works."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                found: str = getattr(self, name)()
            except (ValueError, RuntimeError) as error:
                return self._refused(name, str(error))
        words = [str(x.message) for x in told]
        partial = [x for x in words if "are seen. Not seen" in x]
        return found + (" (told: not all layers are seen)" if partial else "")

    def _refused(self, name: str, message: str) -> str:
        reasons = {"sinks": "sinks", "softcap": "a softcap", "mask has a gradient": "learned bias",
                   "bias": "a bias", "writes it out": "written out", "another way": "its own code",
                   }  # fmt: skip
        why = next((x for word, x in reasons.items() if word in message), "?")
        for advice, attempt in self._ways(name):
            if advice in message and (works := _tried(attempt)):
                return f"refused, {why}: {works}"
        self.dead = True
        return f"refused, {why}: DEAD END {message}"

    def _ways(self, name: str) -> list[tuple[str, Callable[[], str]]]:
        def by_sdpa() -> str:
            other = type(self)(partial(self.make, implementation="sdpa"), self.file.parent)
            other.capture()
            return "make it with sdpa"

        def traced() -> str:
            self.capture()
            words = ["-m", "roundscope", "trace", str(self.file), "--layer", "layers.0"]
            words += ["--out", str(self.file.parent / "page")]
            done = subprocess.run([sys.executable, *words], capture_output=True, check=False)
            return "" if done.returncode else "capture and trace"

        def frozen() -> str:
            for name_of, p in self.model.named_parameters():
                p.requires_grad_("relative_attention_bias" not in name_of)
            with correct(self.model):
                stepped(self.model)
            self.model.requires_grad_(True)
            return "freeze it"

        def operations() -> str:
            from roundscope.torch import capture as any_capture

            with any_capture(self.model, self.file, what="operations"):
                stepped(self.model)
            return "`what='operations'`"

        return [
            ("attn_implementation='sdpa'", by_sdpa),
            ("roundscope trace", traced),
            ("freeze the bias", frozen),
            ("what='operations'", operations),
        ]


def _tried(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except (ValueError, RuntimeError, SystemExit):
        return ""


def rows(names: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield the cells of each model and whether one is a dead end; of all models if none is named.

    An implementation that a model does not have gives no row.
    """
    makes: dict[tuple[str, str], Callable[..., nn.Module]] = {
        (name, own): partial(of_transformers, name, implementation=own)
        for name in CONFIGS
        for own in ("sdpa", "eager")
    } | {(name, "torch"): make for name, make in PLAIN.items()}
    with tempfile.TemporaryDirectory() as folder:
        for (name, implementation), make in makes.items():
            if names and not any(word.lower() in name.lower() for word in names):
                continue
            try:
                table = Table(make, Path(folder))
            except ValueError as error:
                if "does not support an attention implementation" in str(error):
                    continue
                raise
            cells = [table.cell(what) for what in ("use", "capture", "watch", "correct")]
            yield [name, implementation, *cells], table.dead


def main() -> int:
    """Print the table in Markdown, and return 1 if there is a dead end."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("models", nargs="*", help="parts of the names of models; all by default")
    warnings.simplefilter("ignore")
    is_dead = False
    print("| model | by | `use` | `capture` | `watch` | `correct` |")
    print("|---|---|---|---|---|---|")
    for cells, dead in rows(ask.parse_args().models):
        print("| " + " | ".join(cells) + " |", flush=True)
        is_dead |= dead
    import transformers

    print(f"\ntorch {torch.__version__}, transformers {transformers.__version__}")
    return int(is_dead)


if __name__ == "__main__":
    sys.exit(main())
