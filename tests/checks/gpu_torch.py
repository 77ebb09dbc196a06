"""`roundscope.torch` on a GPU: the operator's bits, models on plans, capture, and who was captured.

python -m tests.checks.gpu_torch [--out FOLDER]
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import roundscope as rs
from roundscope.torch import attention, capture, use, watch
from tests.attention.torch.models import GPT

PLANS = ("fa2-bf16", "fp32", "qiu-yao", "baseline-bf16", "fa3-fp8")
failures = 0


def told(what: str, is_right: bool, more: object = "") -> None:
    """Print a line, and count what is wrong."""
    global failures
    failures += not is_right
    print(f"{'ok   ' if is_right else 'WRONG'} {what} {more}", flush=True)


def words(x: Tensor) -> Tensor:
    """Return the bits of a tensor."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.detach().contiguous().view(kinds[x.element_size()]).cpu()


def operator() -> None:
    """The operator on CUDA against the same operator on the CPU, which the tests hold to attend."""
    for dtype in (torch.float32, torch.bfloat16):
        for plan in PLANS:
            torch.manual_seed(0)
            x = [torch.randn(2, n, 65, 32, dtype=dtype) for n in (4, 2, 2)]
            do, found = torch.randn(2, 4, 65, 32), []
            for device in ("cpu", "cuda"):
                q, k, v = (y.to(device).requires_grad_() for y in x)
                out = attention(q, k, v, plan=plan, is_causal=True)
                gradients = torch.autograd.grad(out, (q, k, v), do.to(device, out.dtype))
                found.append([words(y) for y in (out, *gradients)])
            same = [int((a != b).sum()) for a, b in zip(*found, strict=True)]
            told(f"operator {plan} {dtype}", not any(same), f"differ: out, dq, dk, dv {same}")


def models() -> None:
    """A model on plans: plain, checkpointed, compiled, on CUDA."""
    tokens, found = torch.arange(64).reshape(2, 32) % 61, {}
    for how in ("plain", "reentrant", "checkpointed", "compiled"):
        torch.manual_seed(1)
        checkpointing = {"reentrant": True, "checkpointed": False}.get(how)
        model = GPT(checkpointing=checkpointing).cuda().train()
        with use(model, {"layers.0-1": "fa2-bf16", "*": "baseline-bf16"}):
            runs = torch.compile(model) if how == "compiled" else model
            runs(tokens.cuda()).logsumexp(-1).mean().backward()
        found[how] = [words(p.grad) for p in model.parameters() if p.grad is not None]
    for how in ("reentrant", "checkpointed"):
        same = all(map(torch.equal, found["plain"], found[how]))
        told(f"use, {how}: the gradients of the plain model", same)
    off = max(
        float((a.view(torch.float32) - b.view(torch.float32)).abs().max())
        for a, b in zip(found["plain"], found["compiled"], strict=True)
    )
    told(
        "use, compiled: gradients near the plain model's", off < 1e-3, f"largest difference {off:g}"
    )


def captured(out: Path) -> None:
    """Check that capture changes no bit of a model on any back end of SDPA, and identify each."""
    from roundscope.tools.identify.command import run as identify
    from roundscope.tools.identify.options import IdentifyOptions

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
    torch.manual_seed(2)
    model = GPT(layers=2, width=128, heads=2).cuda().train()
    tokens = torch.randint(0, 61, (32, 64), device="cuda")

    def step() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens).logsumexp(-1).mean()
        loss.backward()
        return [words(loss), *(words(p.grad) for p in model.parameters() if p.grad is not None)]

    for name, backend in backends.items():
        path = out / f"{name}.safetensors"
        with sdpa_kernel(backend):
            before = step()
            again = step()
            with capture(model, path):
                during = step()
        is_steady = all(map(torch.equal, before, again))
        same = all(map(torch.equal, before, during))
        told(f"capture, {name}: no bit changes", same or not is_steady,
             "" if is_steady else "(the step itself is not reproducible)")  # fmt: skip
        identify(IdentifyOptions(source=str(path), layer="layers.0", out=out / name))


def watched() -> None:
    """A watched step changes no bit, and finds little in FlashAttention."""
    torch.manual_seed(3)
    model = GPT(layers=2, width=128, heads=2).cuda().train()
    tokens = torch.randint(0, 61, (4, 64), device="cuda")

    def step() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens).logsumexp(-1).mean()
        loss.backward()
        return [words(p.grad) for p in model.parameters() if p.grad is not None]

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        before = step()
        with watch(model, 1) as w:
            during, numbers = step(), w.numbers()
    share = numbers["attention/drift_history"]
    told("watch: no bit changes", all(map(torch.equal, before, during)), w.note)
    told("watch: FlashAttention hardly leaks", 0.0 < share < 0.05, f"share {share:.3g}")


def main() -> None:
    """Run all checks; exit 1 if one failed."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--only", nargs="*", help="operator, models, watched, captured")
    ask.add_argument("--out", type=Path, default=Path("gpu-torch"))
    asked = ask.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, roundscope {rs.__version__}, numpy {np.__version__},"
          f" {torch.cuda.get_device_name()}")  # fmt: skip
    checks = {
        "operator": operator,
        "models": models,
        "watched": watched,
        "captured": lambda: captured(asked.out),
    }
    for name in asked.only or checks:
        checks[name]()
    print(f"{failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
