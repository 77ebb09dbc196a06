"""What the published orders of RMSNorm do to their output, to a residual stream, and to the
log-probabilities: three tables.

python -m tests.checks.norm_orders [--rows N]

A stream has two norms a layer. Each call adds what the call before returned, with its features
permuted and their signs flipped, so that no product rounds; then it normalizes the sum. A last norm
and a head of random weights in binary64 give log-probabilities. All numbers but those of the norms
and of the stream's sums are exact, so each difference is that of the norm.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.emu import ulp_of
from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from tests.checks.gpu_operations import made

NORM = OPERATIONS["rms_norm"]
TRUNCATING = "truncating"  # torch-cpu with casts toward zero, of the output and of the stream
NAMES = (
    "transformers-llama",
    "transformers-llama-cuda",
    "liger-llama",
    "torch-cpu",
    "torch-cuda",
    "inductor-llama",
    TRUNCATING,
)
GEMMA = ("transformers-gemma", "transformers-gemma-cuda", "liger-gemma")
FEATURES = 4096
LAYERS = (12, 36, 48)
VOCABULARY = 1000
BF16 = ml_dtypes.bfloat16


def plan_named(name: str) -> Any:
    """Return a published plan, or the truncating one."""
    if name != TRUNCATING:
        return plan_of(NORM, name)
    return plan_of(NORM, "torch-cpu").changed("OUT=bf16:toward-zero ADD=bf16:toward-zero")


def alone(rows: int) -> None:
    """Print the bias and the error of one call."""
    x = made(1, (rows, FEATURES), "bf16", 1.5).astype(np.float64)
    for names, offset in ((NAMES, False), (GEMMA, True)):
        weight = made(2, (FEATURES,), "bf16", 0.2, 0.0 if offset else 1.0).astype(np.float64)
        given = {"x": x, "weight": weight}
        exact = plan_of(NORM, "exact").changed(f"unit_offset={str(offset).lower()}")
        wanted = run(NORM, exact, given).outputs["out"]
        ulp = ulp_of(wanted, "bf16")
        for name in names:
            got = run(NORM, plan_named(name), given).outputs["out"].astype(np.float64)
            longer = (np.abs(got) - np.abs(wanted)) / ulp
            gain = ((got - wanted) * wanted).sum() / (wanted * wanted).sum()
            error = (got - wanted) / ulp
            print(
                f"{name:25}  bias {longer.mean():+9.5f} ulp"
                f" +- {longer.mean(1).std() / np.sqrt(len(longer)):.5f}"
                f"  gain {1e5 * gain:+8.2f}e-5  rms error {np.sqrt((error**2).mean()):.4f} ulp",
                flush=True,
            )


def stream(name: str, rows: int, calls: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (residual, output) after each call of a stream under a plan."""
    plan = plan_of(NORM, "exact") if name == "exact" else plan_named(name)
    weight = made(12, (FEATURES,), "bf16", 0.1, 1.0).astype(np.float64)
    residual = made(13, (rows, FEATURES), "bf16").astype(np.float64)
    added = made(14, (rows, FEATURES), "bf16").astype(np.float64)
    rng = np.random.default_rng(15)
    for _ in range(calls):
        given = {"x": added, "weight": weight, "residual": residual}
        found = run(NORM, plan, given).outputs
        residual, out = (found[k].astype(np.float64) for k in ("summed", "out"))
        yield residual, out
        added = out[:, rng.permutation(FEATURES)] * rng.choice([-1.0, 1.0], FEATURES)


def log_probabilities(out: np.ndarray) -> np.ndarray:
    """Return those of one token of each row, by a head in binary64."""
    head = np.random.default_rng(16).normal(size=(FEATURES, VOCABULARY)) * FEATURES**-0.5 * 2.0
    logits = out @ head
    tokens = np.random.default_rng(17).integers(0, VOCABULARY, len(out))
    top = logits.max(1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
    return logs[np.arange(len(out)), tokens]


def streams(rows: int) -> None:
    """Print what is lost of the norm of a stream, and the gaps of log-probability of each pair."""
    seen: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
    for name in ("exact", *NAMES):
        for n, (residual, out) in enumerate(stream(name, rows, 2 * LAYERS[-1]), 1):
            if n % 2 == 0 and n // 2 in LAYERS:
                seen[name, n // 2] = residual, log_probabilities(out)
    for layers in LAYERS:
        whole = np.linalg.norm(seen["exact", layers][0])
        print(f"\n{layers} layers, {2 * layers} norms, {rows} rows of {FEATURES} features")
        for name in NAMES:
            residual, logs = seen[name, layers]
            lost = 1.0 - np.linalg.norm(residual) / whole
            error = np.linalg.norm(residual - seen["exact", layers][0]) / whole
            away = np.abs(logs - seen["exact", layers][1])
            print(
                f"{name:25}  norm lost {lost:+9.4%}  error {error:8.4%}"
                f"  |d logprob| mean {away.mean():.5f} max {away.max():.5f}",
                flush=True,
            )
        print("mean |d logprob| of each pair")
        for name in NAMES:
            gaps = [np.abs(seen[name, layers][1] - seen[o, layers][1]).mean() for o in NAMES]
            print(f"{name:25}", *(f"{gap:8.5f}" for gap in gaps))


def adding(rows: int, calls: int = 72) -> None:
    """Print what a stream loses that adds new normal numbers at each call."""
    whole = np.zeros((rows, FEATURES))
    kept = {name: np.zeros((rows, FEATURES)) for name in ("torch-cpu", TRUNCATING)}
    plans = {name: plan_named(name) for name in kept}
    weight = np.ones(FEATURES)
    for n in range(calls):
        x = made(100 + n, (rows, FEATURES), "bf16").astype(np.float64)
        whole += x
        for name, residual in kept.items():
            given = {"x": x, "weight": weight, "residual": residual}
            kept[name] = run(NORM, plans[name], given).outputs["summed"].astype(np.float64)
    for name, residual in kept.items():
        lost = 1.0 - np.linalg.norm(residual) / np.linalg.norm(whole)
        print(f"{name:25}  norm lost {lost:+9.4%} in {calls} calls that add new numbers")


def main() -> None:
    """Print the tables."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--rows", type=int, default=16)
    rows = ask.parse_args().rows
    alone(8 * rows)
    streams(rows)
    adding(rows)


if __name__ == "__main__":
    main()
