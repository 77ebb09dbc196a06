"""A GPT in PyTorch, in BF16 on the real FlashAttention, with and without a planted leak.

Arms of a seed, all on the same batches and from the same weights:

    healthy   the kernel as it is
    nearest   the output that delta reads is rounded to nearest, which is no bias
    leaking   it is rounded toward zero
    cured     leaking until its alarm, from there with `roundscope.torch.correct`
    sham      the same, with a correction whose row sums belong to other rows

    python -m tests.checks.watching.in_torch --seeds 10 --out FOLDER

`--width 256 --context 256 --batch 8 --arms leaking healthy nearest` is another size without the
cures; `--rotary` has rotary positions in place of learned ones.
"""

import copy
import json
import time
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundscope.attention.torch import correction
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import data
from roundscope.experiments.train.spikes import Follow
from roundscope.torch import correct, use, watch
from tests.checks.watching.leak import check_rounded, leaking
from tests.checks.watching.outcomes import lines, means

EVERY = 25  # steps from one look to the next
ARMS = ("healthy", "nearest", "leaking", "cured", "sham")


class Attention(nn.Module):
    """Causal self-attention, with rotary positions where there are some."""

    def __init__(self, width: int, heads: int, *, is_rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.is_rotary = heads, is_rotary
        self.qkv, self.out = (nn.Linear(width, n, bias=False) for n in (3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.is_rotary:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(b, t, d))
        return y


def rotated(x: Tensor) -> Tensor:
    """Turn feature pairs (i, i + H/2) of x (B, N, T, H) by t 10000^(-2 i / H), in binary32."""
    t, half = x.shape[2], x.shape[3] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    turn = torch.arange(t, device=x.device)[:, None] * rates
    first, second = x.float().split(half, dim=-1)
    turned = (first * turn.cos() - second * turn.sin(), second * turn.cos() + first * turn.sin())
    return torch.cat(turned, dim=-1).to(x.dtype)


class Block(nn.Module):
    """A layer: attention and an MLP, each behind a norm."""

    def __init__(self, width: int, heads: int, *, is_rotary: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = Attention(width, heads, is_rotary=is_rotary)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """GPT-2 with tied embeddings and its initial weights; returns the loss in nats.

    `position=False` of its configuration stands for rotary positions in place of learned ones.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = config
        self.tokens = nn.Embedding(c.vocab, c.width)
        self.places = nn.Embedding(c.context, c.width) if c.position else None
        self.blocks = nn.ModuleList(
            Block(c.width, c.heads, is_rotary=not c.position) for _ in range(c.layers)
        )
        self.norm = nn.LayerNorm(c.width, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                into = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * c.layers) ** 0.5 if into else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        read, wanted = tokens[:, :-1], tokens[:, 1:]
        x = self.tokens(read)
        if self.places is not None:
            x = x + self.places.weight[: read.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


@dataclass
class Training:
    """A model in training, and what was seen of it."""

    config: Config
    model: GPT
    optimizer: torch.optim.Optimizer
    done: int = 0
    losses: list[float] = field(default_factory=list)
    shares: list[tuple[int, float]] = field(default_factory=list)


def begun(config: Config, seed: int, device: str) -> Training:
    """Return a training at step 0."""
    torch.manual_seed(seed)
    model = GPT(config).to(device)
    # without a fused step a copy of the state would not be whole on every version
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=(config.beta1, config.beta2), weight_decay=0.0
    )
    return Training(config, model, optimizer)


def advance(t: Training, batches: data.Batches, device: str) -> Tensor:
    """Do a step, and return its loss on the device."""
    c = t.config
    for group in t.optimizer.param_groups:
        group["lr"] = c.lr * min(1.0, (t.done + 1) / (c.warmup + 1))
    tokens = torch.from_numpy(batches.batch(t.done)).to(device, torch.int64)
    t.optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16):
        loss: Tensor = t.model(tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(t.model.parameters(), c.clip or torch.inf)
    t.optimizer.step()
    t.done += 1
    return loss.detach()


def run(
    t: Training, batches: data.Batches, device: str, log: Path | None
) -> tuple[int | None, int | None, Training | None]:
    """Train to the end, or to a divergence.

    Returns the steps of the divergence and of the alarm, and the training at the alarm.
    """
    follow, waiting = Follow(1), []
    alarm: int | None = None
    kept: Training | None = None
    for n, loss in enumerate(t.losses):
        follow.update(n, torch.tensor([loss]).numpy())
    with watch(t.model, EVERY, log=log, start=t.done, on_alarm=lambda _: None) as w:
        while t.done < t.config.steps:
            waiting.append(advance(t, batches, device))
            numbers = w.numbers()
            if numbers:
                t.shares.append((t.done - 1, numbers["attention/drift_history"]))
            is_new = w.alarm is not None and alarm is None
            if t.done % EVERY == 0 or is_new or t.done == t.config.steps:
                for loss in torch.stack(waiting).tolist():
                    follow.update(len(t.losses), torch.tensor([loss]).numpy())
                    t.losses.append(loss)
                waiting = []
                if follow.first[0] >= 0:
                    break
            if is_new and w.alarm is not None:
                alarm, kept = w.alarm.step, copied(t)
    first = int(follow.first[0])
    return (None if first < 0 else first), alarm, kept


def copied(t: Training) -> Training:
    """Return a copy of a training, whose model nobody intercepts."""
    device = next(t.model.parameters()).device
    other = begun(t.config, 0, str(device))
    other.model.load_state_dict(t.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(t.optimizer.state_dict()))
    other.done, other.losses, other.shares = t.done, list(t.losses), list(t.shares)
    return other


def permuted(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the correction uses, with the row sums of other rows of the same head."""
    dq, dk, dv, r = correction_of(*arguments)
    order = torch.randperm(r.shape[2], device=r.device)
    return dq, dk, dv, r[:, :, order]


correction_of = correction._with_row_sums


def seed_of(
    config: Config, seed: int, arms: tuple[str, ...], bits: int, out: str, device: str
) -> list[dict[str, Any]]:
    """Train arms of a seed, and return what came of them."""
    torch.set_num_threads(1)
    batches, found, at_alarm = data.batches(config, seed), [], None
    for arm in arms:
        if arm in ("cured", "sham") and at_alarm is None:
            continue
        start = time.perf_counter()
        t = (
            copied(at_alarm)
            if arm in ("cured", "sham") and at_alarm
            else begun(config, seed, device)
        )
        log = Path(out) / f"{arm}-{seed}.jsonl"
        with ExitStack() as stack:
            if arm != "healthy":
                mode = "ties-to-even" if arm == "nearest" else "toward-zero"
                stack.enter_context(use(t.model, leaking(bits, mode)))
            if arm in ("cured", "sham"):
                stack.enter_context(correct(t.model))
            if arm == "sham":
                stack.enter_context(patch.object(correction, "_with_row_sums", permuted))
            diverged, alarm, kept = run(t, batches, device, log if arm != "sham" else None)
        if arm == "leaking":
            at_alarm = kept
        found.append(
            {
                "arm": arm,
                "seed": seed,
                "diverged": diverged,
                "alarm": alarm,
                "from": 0 if arm not in ("cured", "sham") else at_alarm.done if at_alarm else None,
                "means": means(t.losses),
                "shares": t.shares,
                "seconds": time.perf_counter() - start,
            }
        )
        loss, seconds = sum(t.losses[-25:]) / 25, found[-1]["seconds"]
        print(
            f"seed {seed} {arm}: diverged {diverged}, alarm {alarm}, loss {loss:.3f},"
            f" {seconds:.0f} s",
            flush=True,
        )
    return found


def main() -> None:
    """Train all seeds, several at a time, and write runs.json after each."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--seeds", type=int, default=10)
    ask.add_argument("--bits", type=int, default=5)
    ask.add_argument("--steps", type=int, default=1000)
    ask.add_argument("--jobs", type=int, default=10)
    ask.add_argument("--width", type=int, default=128)
    ask.add_argument("--context", type=int, default=128)
    ask.add_argument("--batch", type=int, default=16)
    ask.add_argument("--rotary", action="store_true", help="in place of learned positions")
    ask.add_argument("--arms", nargs="*", default=ARMS, help="only these")
    ask.add_argument("--tiny", action="store_true", help="a model for a CPU")
    asked = ask.parse_args()
    check_rounded()
    sizes = {n: getattr(asked, n) for n in ("width", "context", "batch")} | {"layers": 4}
    if asked.tiny:
        sizes = {"layers": 2, "width": 32, "context": 32, "batch": 8}
    sizes |= {"heads": sizes["layers"]}
    config = Config(**sizes, warmup=min(100, asked.steps // 10), steps=asked.steps, lr=1e-2,
                    position=not asked.rotary)  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked.out.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda"
             else "cpu", "bits": asked.bits, **sizes, "rotary": asked.rotary,
             "steps": asked.steps, "lr": 1e-2}  # fmt: skip
    cures = tuple(arm for arm in ("leaking", "cured", "sham") if arm in asked.arms)
    tasks = [(arm,) for arm in ("healthy", "nearest") if arm in asked.arms]
    tasks = [cures, *tasks] if cures else tasks
    runs: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(seed_of, config, seed, arms, asked.bits, str(asked.out), device)
            for arms in tasks
            for seed in range(asked.seeds)
        ]
        for job in as_completed(jobs):
            runs = sorted(runs + job.result(), key=lambda x: (ARMS.index(x["arm"]), x["seed"]))
            (asked.out / "runs.json").write_text(json.dumps({"about": about, "runs": runs}))
    print(*lines(runs), sep="\n")


if __name__ == "__main__":
    main()
