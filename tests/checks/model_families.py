"""Families of models in `compare`: equal runs are equal, and one planted change is told.

Run it from the root: `python -m tests.checks.model_families`. It prints the table of
docs/howto/compare.md; models are tiny, with random weights in BF16, on this machine's CPU.
"""

import os
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

from roundscope.torch import Side, capture, compare, decoded
from tests.attention.torch.models import gpt
from tests.operations.models import small

TOKENS = 12


def late_cast(model: nn.Module) -> nn.Module:
    """Return a model whose first norm is 1 + 2^-7 times as large, rounded once."""
    norm = next(m for m in model.modules() if "Norm" in type(m).__name__)
    norm.register_forward_hook(lambda module, args, out: (out.float() * (1 + 2**-7)).to(out.dtype))
    return model


def made(found: object) -> str:
    """Return what a comparison says is made, in a cell."""
    if found.equal:
        return "equal"
    told = [f"{g.name}" + ("" if g.share != g.share else f" {g.share:.0%}") for g in found.groups]
    return ", ".join(told) or found.sentence


def attempt(function) -> str:
    """Return what a function says, or the sentence with which it refuses."""
    try:
        return function()
    except Exception as error:  # whatever it raises
        return f"{type(error).__name__}: {error}"


def rows(kind: str, folder: Path) -> list[str]:
    """Return a row of the table."""

    def model(implementation: str = "sdpa") -> nn.Module:
        if kind == "nn.Module":
            return gpt(layers=2).bfloat16().eval()
        return small.tiny(kind, "eager" if kind == "gpt_oss" else implementation)

    ids = small.tokens(1, TOKENS) % (61 if kind == "nn.Module" else small.FEW_TOKENS)
    has_two = kind not in ("nn.Module", "gpt_oss")

    def written(own: nn.Module, name: str) -> Path:
        path = folder / f"{kind}-{name}.safetensors"
        with torch.no_grad(), capture(own, path, what="operations"):
            own(ids)
        return path

    def equal() -> str:
        live = compare((model(), ids), (model(), ids))
        from_files = compare(written(model(), "a"), written(model(), "a2"))
        assert live.equal and from_files.equal, (live, from_files)
        return f"{len(live.rows)} operations, {live.unknown} unknown"

    def planted(files: bool) -> str:
        other = model("eager") if has_two else late_cast(model())
        if files:
            return made(compare(written(model(), "a"), written(other, "b")))
        return made(compare((model(), ids), (other, ids)))

    def logits() -> str:
        wide = Side(model(), ids, logprobs=small.log_softmax(torch.float32))
        return made(compare(wide, Side(model(), ids, logprobs=small.log_softmax(torch.bfloat16))))

    def rollout() -> str:
        if kind == "nn.Module":
            return "it has no cache"
        return made(compare((model(), ids), Side(model(), ids, decoded(TOKENS // 2))))

    what = "eager attention" if has_two else "a norm"
    return [
        kind,
        attempt(equal),
        f"{what}: {attempt(lambda: planted(False))}",
        attempt(lambda: planted(True)),
        attempt(logits),
        attempt(rollout),
    ]


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    heads = ["model", "equal runs", "one change, live", "from files", "BF16 log-softmax"]
    print("|", " | ".join([*heads, "decoding with a cache"]), "|")
    print("|---" * (len(heads) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in [*small.KINDS, "nn.Module"]:
            print("|", " | ".join(rows(kind, Path(folder))), "|", flush=True)


if __name__ == "__main__":
    main()
