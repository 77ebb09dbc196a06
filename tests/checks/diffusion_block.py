"""Attention of a diffusion transformer: how far tiled attention is from unfused, on its tensors.

    pip install diffusers scikit-learn
    python -m tests.checks.diffusion_block --train diffusion.json [--steps 500]
    python -m tests.checks.diffusion_block diffusion.json

The first command trains a `DiTTransformer2DModel` of the diffusers library (adaLN-zero blocks,
attention without a causal mask) to take noise away from scikit-learn's 8 x 8 digits, which it gets
as 16 x 16 images of 256 tokens, in BF16 by autocast. Then it runs the model at five timesteps under
`roundscope.torch.capture`, which changes no bit of its outputs, and computes each call's attention
beside it: by plans in tiles, by the same plan without tiles, and exactly. The file keeps the
largest and the rms deviation of each image. The second command prints the table, and trains
nothing.

It is a small model of small images: no text, no latents, no published weights.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundscope import Plan, attend
from roundscope.experiments.framework.estimates import factor
from roundscope.experiments.framework.verdicts import interval
from roundscope.tools.sweep.measuring.calls import unfused_plan

TIMESTEPS = (20, 250, 500, 750, 980)
IMAGES, TILE, SIZE, BATCH = 8, 64, 16, 8
PLANS = {  # as `reproduce golden` names its emulations -> the plan
    "ops:bf16": Plan.preset("fp32").changed("format=bf16"),
    "sums:bf16": Plan.preset("all:bf16"),
    "qiu-yao": Plan.preset("qiu-yao"),
    "fa2-bf16": Plan.preset("fa2-bf16"),
}
BASELINE = "baseline-bf16"


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return attention without a mask in binary64; (B, N, T, H)."""
    s = np.einsum("bnth,bnsh->bnts", q, k) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bnts,bnsh->bnth", p / p.sum(-1, keepdims=True), v)


def deviations(own: np.ndarray, golden: np.ndarray) -> dict[str, list[float]]:
    """Return the largest and the rms deviation of each image, over its heads; NaN stays NaN."""
    d = np.abs(np.asarray(own, np.float64) - golden)
    return {
        "largest": d.max((1, 2, 3)).tolist(),
        "rms": np.sqrt(np.square(d).mean((1, 2, 3))).tolist(),
    }


def computed(plan: Plan | str, *qkv: np.ndarray, tile: int) -> np.ndarray:
    """Return what a plan makes of q, k and v, each (B, N, T, H)."""
    q, k, v = (x.swapaxes(1, 2) for x in qkv)
    out = attend(q, k, v, plan=plan, is_causal=False, block_q=TILE, block_k=tile)
    return np.asarray(out).swapaxes(1, 2)


def measured(q: np.ndarray, k: np.ndarray, v: np.ndarray, own: np.ndarray) -> dict[str, Any]:
    """Return the deviations of the model's own output, of each plan, and of it without tiles."""
    wide = [np.asarray(x, np.float64) for x in (q, k, v)]
    golden, whole = exact(*wide), q.shape[2]
    found: dict[str, Any] = {"rms of output": np.sqrt(np.square(golden).mean((1, 2, 3))).tolist()}
    found["own"] = deviations(own, golden)
    found[BASELINE] = deviations(computed(BASELINE, *wide, tile=whole), golden)
    for name, plan in PLANS.items():
        found[name] = {
            "tiled": deviations(computed(plan, *wide, tile=TILE), golden),
            "unfused": deviations(computed(unfused_plan(plan), *wide, tile=whole), golden),
        }
    return found


def trained(steps: int, seed: int = 0) -> tuple[Any, Any, Any, float]:
    """Return the model, images to run it on, their digits, and its last mean loss."""
    import torch
    from diffusers import DDPMScheduler, DiTTransformer2DModel
    from sklearn.datasets import load_digits
    from torch.nn import functional as F

    torch.manual_seed(seed)
    data = load_digits()
    images = torch.tensor(data.images / 8.0 - 1.0, dtype=torch.float32)[:, None]
    images = F.interpolate(images, size=(SIZE, SIZE), mode="bilinear")
    digits = torch.tensor(data.target)
    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=1, out_channels=1, num_layers=3,
        sample_size=SIZE, patch_size=1, norm_num_groups=1,
    )  # fmt: skip
    noising = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 50)
        chosen = torch.randint(len(images) - IMAGES, (BATCH,))
        noise, t = torch.randn(BATCH, 1, SIZE, SIZE), torch.randint(1000, (BATCH,))
        noisy = noising.add_noise(images[chosen], noise, t)
        with torch.autocast("cpu", torch.bfloat16):
            told = model(noisy, timestep=t, class_labels=digits[chosen]).sample
        loss = F.mse_loss(told.float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}: loss {np.mean(losses[-50:]):.3f}", flush=True)
    noise = torch.randn(IMAGES, 1, SIZE, SIZE)
    held = [noising.add_noise(images[-IMAGES:], noise, torch.full((IMAGES,), t)) for t in TIMESTEPS]
    return model.eval(), held, digits[-IMAGES:], float(np.mean(losses[-50:]))


def run(steps: int) -> dict[str, Any]:
    """Train, capture and measure; return what the file keeps."""
    import diffusers
    import torch

    from roundscope.torch import capture

    model, held, digits, loss = trained(steps)

    def outputs() -> list[torch.Tensor]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return [
                model(x, timestep=torch.full((IMAGES,), t), class_labels=digits).sample
                for x, t in zip(held, TIMESTEPS, strict=True)
            ]

    before = outputs()
    with (
        tempfile.TemporaryDirectory() as folder,
        capture(model, f"{folder}/dit.safetensors", steps=None, batch=None) as calls,
    ):
        beside = outputs()
    assert all(torch.equal(a, b) for a, b in zip(before, beside, strict=True))
    rows = []
    for call in calls:
        assert not call.is_causal
        arrays = [np.asarray(x, np.float32) for x in (call.q, call.k, call.v, call.out)]
        row = {"layer": call.number, "timestep": TIMESTEPS[call.step], **measured(*arrays)}
        rows.append(row)
        print("layer", row["layer"], "timestep", row["timestep"], flush=True)
    about = {"diffusers": diffusers.__version__, "torch": torch.__version__, "steps": steps}
    return {"about": about | {"loss": loss, "images": IMAGES}, "rows": rows}


def ratios(row: Mapping[str, Any], name: str, below: str = "") -> list[float]:
    """Return by image the largest deviation, tiled over unfused in its formats or a baseline's."""
    under = row[below] if below else row[name]["unfused"]
    pairs = zip(row[name]["tiled"]["largest"], under["largest"], strict=True)
    return [a / b for a, b in pairs]


def told(values: Sequence[float]) -> str:
    """Return the geometric mean over images with its 95 % t interval."""
    return interval(factor(dict(enumerate(values))))


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown, and what all of it says together."""
    about = found["about"]
    yield (
        f"diffusers {about['diffusers']}, torch {about['torch']}; {about['steps']} steps, loss"
        f" {about['loss']:.3f}; largest deviation, tiled over unfused, n = {about['images']}\n"
    )
    columns = [*((name, "") for name in PLANS), ("sums:bf16", BASELINE)]
    heads = [f"{name} over {below}" if below else name for name, below in columns]
    yield f"| layer | timestep | own kernel | {' | '.join(heads)} |"
    yield "|---" * (len(heads) + 3) + "|"
    for row in found["rows"]:
        own = [x / y for x, y in zip(row["own"]["rms"], row["rms of output"], strict=True)]
        cells = [told(own), *(told(ratios(row, *column)) for column in columns)]
        yield f"| {row['layer']} | {row['timestep']} | {' | '.join(cells)} |"
    for head, column in zip(heads, columns, strict=True):
        each = np.log([ratios(row, *column) for row in found["rows"]])
        ends = np.exp([each.mean(1).min(), each.mean(1).max()])
        yield (
            f"\n{head}: {told(np.exp(each.mean(0)).tolist())} over layers and timesteps; of one"
            f" layer and timestep {ends[0]:.3g} to {ends[1]:.3g}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--train", action="store_true", help="train, and write the file")
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args()
    if asked.train:
        asked.file.write_text(json.dumps(run(asked.steps)))
    print("\n".join(table(json.loads(asked.file.read_text("utf-8")))))


if __name__ == "__main__":
    main()
