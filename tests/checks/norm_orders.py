"""What the published orders of RMSNorm do to their output, to a residual stream, and to the
log-probabilities: the tables of docs/findings/norms.md, in Markdown.

python -m tests.checks.norm_orders [--rows N] [--features F]

A stream has two norms a layer. Each call adds what the call before returned, with its features
permuted and their signs flipped, so that no product rounds; then it normalizes the sum. A last norm
and a head of random weights in binary64 give log-probabilities. All numbers but those of the norms
and of the stream's sums are exact, so each difference is that of the norm. Gemma's orders add 1 to
their weights: they are given weights that are 1 smaller, which BF16 holds, so that all orders
approximate one function.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from roundscope.emu import ulp_of
from roundscope.operations import OPERATIONS, run
from roundscope.operations.run import plan_of
from tests.checks.gpu_operations import made

NORM = OPERATIONS["rms_norm"]
TRUNCATING = "truncating"  # torch-cpu with casts toward zero, of the output and of the stream
NAMES = (*(name for name in NORM.published if name not in ("exact", "fp32")), TRUNCATING)
LAYERS = (12, 36, 48)
PAIRED = (12, 48)  # the layers after which orders are compared with each other
VOCABULARY = 1000


def plan_named(name: str) -> Any:
    """Return a published plan, or the truncating one."""
    if name != TRUNCATING:
        return plan_of(NORM, name)
    return plan_of(NORM, "torch-cpu").changed("OUT=bf16:toward-zero ADD=bf16:toward-zero")


def called(name: str, x: np.ndarray, weight: np.ndarray, **more: np.ndarray) -> dict[str, Any]:
    """Return the outputs of a call in binary64, which holds them."""
    plan = plan_named(name)
    given = {"x": x, "weight": weight - 1.0 if plan.unit_offset else weight, **more}
    return {n: y.astype(np.float64) for n, y in run(NORM, plan, given).outputs.items()}


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def alone(rows: int, features: int) -> None:
    """Print the bias and the error of one call."""
    x = made(1, (rows, features), "bf16", 1.5).astype(np.float64)
    weight = made(2, (features,), "bf16", 0.1, 1.0).astype(np.float64)
    wanted = called("exact", x, weight)["out"]
    ulp, found = ulp_of(wanted, "bf16"), []
    for name in NAMES:
        got = called(name, x, weight)["out"]
        longer, error = (np.abs(got) - np.abs(wanted)) / ulp, (got - wanted) / ulp
        gain = ((got - wanted) * wanted).sum() / (wanted * wanted).sum()
        found.append(
            (
                f"`{name}`",
                f"{longer.mean():+.4f} +- {longer.mean(1).std() / np.sqrt(rows):.4f}",
                f"{1e5 * gain:+.2f}",
                f"{np.sqrt((error**2).mean()):.3f}",
            )
        )
    heads = ("order", "bias of \\|out\\|, ulp", "gain, 1e-5", "rms error, ulp")
    table(f"One call: {rows} rows of {features} features", heads, found)


def stream(
    name: str, rows: int, features: int, calls: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (residual, output) after each call of a stream under a plan."""
    weight = made(12, (features,), "bf16", 0.1, 1.0).astype(np.float64)
    residual = made(13, (rows, features), "bf16").astype(np.float64)
    added = made(14, (rows, features), "bf16").astype(np.float64)
    rng = np.random.default_rng(15)
    for _ in range(calls):
        found = called(name, added, weight, residual=residual)
        residual, out = found["summed"], found["out"]
        yield residual, out
        added = out[:, rng.permutation(features)] * rng.choice([-1.0, 1.0], features)


def log_probabilities(out: np.ndarray) -> np.ndarray:
    """Return those of one token of each row, by a head in binary64."""
    features = out.shape[1]
    head = np.random.default_rng(16).normal(size=(features, VOCABULARY)) * features**-0.5 * 2.0
    logits = out @ head
    tokens = np.random.default_rng(17).integers(0, VOCABULARY, len(out))
    top = logits.max(1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
    return logs[np.arange(len(out)), tokens]


def streams(rows: int, features: int) -> None:
    """Print what streams lose of their norms, their errors, and the gaps of each pair of orders."""
    seen: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
    for name in ("exact", *NAMES):
        for n, (residual, out) in enumerate(stream(name, rows, features, 2 * LAYERS[-1]), 1):
            if n % 2 == 0 and n // 2 in LAYERS:
                seen[name, n // 2] = residual, log_probabilities(out)

    def gap(one: str, other: str, layers: int) -> float:
        return float(np.abs(seen[one, layers][1] - seen[other, layers][1]).mean())

    whole = {layers: np.linalg.norm(seen["exact", layers][0]) for layers in LAYERS}
    lost = {at: 1.0 - np.linalg.norm(seen[at][0]) / whole[at[1]] for at in seen}
    error = {
        at: np.linalg.norm(seen[at][0] - seen["exact", at[1]][0]) / whole[at[1]] for at in seen
    }
    table(
        f"Streams: {rows} rows of {features} features",
        (
            "order",
            *(f"norm lost: {n} layers" for n in LAYERS),
            *(f"error: {n}" for n in PAIRED),
            *(f"mean \\|d logprob\\|: {n}" for n in LAYERS),
        ),
        [
            (
                f"`{name}`",
                *(f"{lost[name, n]:.3%}" for n in LAYERS),
                *(f"{error[name, n]:.2%}" for n in PAIRED),
                *(f"{gap(name, 'exact', n):.3f}" for n in LAYERS),
            )
            for name in NAMES
        ],
    )
    table(
        f"Mean |d logprob| of each pair after {' and after '.join(map(str, PAIRED))} layers",
        ("", *(f"`{name}`" for name in NAMES[1:])),
        [
            (
                f"`{name}`",
                *(
                    ", ".join(f"{gap(name, other, n):.4f}" for n in PAIRED) if m > at else ""
                    for m, other in enumerate(NAMES[1:], 1)
                ),
            )
            for at, name in enumerate(NAMES[:-1])
        ],
    )


def adding(rows: int, features: int, calls: int = 72) -> None:
    """Print what a stream loses that adds new normal numbers at each call."""
    whole = np.zeros((rows, features))
    kept = {name: np.zeros((rows, features)) for name in ("torch-cpu", TRUNCATING)}
    for n in range(calls):
        x = made(100 + n, (rows, features), "bf16").astype(np.float64)
        whole += x
        for name, residual in kept.items():
            kept[name] = called(name, x, np.ones(features), residual=residual)["summed"]
    print()
    for name, residual in kept.items():
        lost = 1.0 - np.linalg.norm(residual) / np.linalg.norm(whole)
        print(f"{name}: norm lost {lost:+.3%} in {calls} calls that add new numbers")


def main() -> None:
    """Print the tables."""
    ask = ArgumentParser(description=__doc__)
    ask.add_argument("--rows", type=int, default=32)
    ask.add_argument("--features", type=int, default=4096)
    asked = ask.parse_args()
    alone(8 * asked.rows, asked.features)
    streams(asked.rows, asked.features)
    adding(asked.rows, asked.features)


if __name__ == "__main__":
    main()
