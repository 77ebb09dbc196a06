"""How often `roundscope check` fails kernels that are good: false alarms, counted.

    python -m tests.checks.good_kernels sdpa-math eager jax-xla --seeds 20 --jobs 2
    python -m tests.checks.good_kernels reference --seeds 100 --tokens 64 --out good.jsonl

Each run compares one kernel with its twin as the command does: seven families of causal inputs and
three of full ones, output and gradients, with evidence from up to three draws. Without kernels it
runs all that this machine has. Runs of one kernel share no inputs; two kernels have the same inputs
with the same seed.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from roundscope.tools.check.options import CheckOptions, claims_of

REFERENCE = "reference"
SOURCES = {REFERENCE: ("tests.checks.mutants.reference:attention", "fa2-bf16")}
ON_GPU = (
    "sdpa-flash",
    "sdpa-efficient",
    "sdpa-cudnn",
    "sdpa-math",
    "flex",
    "jax-xla",
    "jax-cudnn",
)
ON_CPU = ("sdpa-math", "eager", "jax-xla", REFERENCE)
APART = 1000  # between the seeds of two runs, so that no draw is drawn twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a kernel: why it failed, if it did."""

    kernel: str
    claims: str
    seed: int
    tokens: int
    heads: int
    draws: int
    undecided: int
    equal: dict[str, float]
    alarms: list[str]
    gross: list[str]
    worst_row: float
    seconds: float
    error: str = ""


def run(name: str, seed: int, tokens: int, batch: int) -> Run:
    """Compare a kernel with its twin on inputs of its own."""
    from roundscope.tools.check.run import comparison, kernel_asked, kinds

    source, claims = SOURCES.get(name, (name, claims_of(name)))
    asked = CheckOptions(
        source=source, claims=claims, tokens=tokens, batch=batch, seed=(seed + 1) * APART
    )
    began = time.perf_counter()
    about = {"kernel": name, "claims": claims, "seed": seed, "tokens": tokens}
    try:
        compared = comparison(kernel_asked(asked), asked, kinds(None))
    except Exception as error:  # whatever a library raises
        words = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        return Run(
            **about, heads=0, draws=0, undecided=0, equal={}, alarms=[], gross=[],
            worst_row=0.0, seconds=time.perf_counter() - began, error=words,
        )  # fmt: skip
    rows = [f.kernel / f.plan for f in compared.findings if f.statistic == "row" and f.plan]
    return Run(
        **about,
        heads=compared.heads,
        draws=compared.looks,
        undecided=compared.undecided,
        equal=compared.equal,
        alarms=[f.sentence for f in compared.alarms],
        gross=[g.sentence for g in compared.gross],
        worst_row=max(rows),
        seconds=time.perf_counter() - began,
    )


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table with a row for each kernel and length."""
    by = defaultdict(list)
    for r in runs:
        by[r.kernel, r.claims, r.tokens].append(r)
    lines = [
        "| kernel | claims | tokens | runs | heads | failed | of means | of single heads |"
        " undecided a run | largest ratio of worst rows | equal bits: out, dq, dk, dv |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (kernel, claims, tokens), each in sorted(by.items()):
        ran = [r for r in each if not r.error]
        if not ran:
            lines.append(f"| {kernel} | {claims} | {tokens} | {each[0].error} | | | | | | | |")
            continue
        failed = sum(bool(r.alarms or r.gross) for r in ran)
        equal = ", ".join(f"{sum(r.equal[n] for r in ran) / len(ran):.4f}" for n in ran[0].equal)
        lines.append(
            f"| {kernel} | {claims} | {tokens} | {len(ran)} | {sum(r.heads for r in ran):,} |"
            f" {failed} | {sum(bool(r.alarms) for r in ran)} | {sum(bool(r.gross) for r in ran)} |"
            f" {sum(r.undecided for r in ran) / len(ran):.1f} | {max(r.worst_row for r in ran):.2f}"
            f" | {equal} |"
        )
    return "\n".join(lines)


def main(args: Sequence[str] | None = None) -> None:
    """Run the kernels and print the table, then every failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="kernels; by default all of this machine")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after this time")
    parser.add_argument("--out", type=Path, help="a file that gets a line of JSON for each run")
    asked = parser.parse_args(args)
    names = asked.kernels or (ON_GPU if has_gpu() else ON_CPU)
    began = time.perf_counter()
    seeds = range(asked.first, asked.first + asked.seeds)
    todo = [(name, seed) for seed in seeds for name in names]
    lines = None if asked.out is None else asked.out.open("a", encoding="utf-8")
    runs = []
    for r in each(todo, asked.tokens, asked.batch, asked.jobs, began + asked.seconds):
        runs.append(r)
        if lines is not None:
            print(json.dumps(asdict(r)), file=lines, flush=True)
    print(table(runs))
    for r in runs:
        for sentence in (*r.gross, *r.alarms):
            print(f"- {r.kernel}, seed {r.seed}, {r.tokens} tokens: {sentence}")
    print(f"{len(runs)} of {len(todo)} runs in {time.perf_counter() - began:.0f} s")


def each(
    todo: Sequence[tuple[str, int]], tokens: int, batch: int, jobs: int, end: float
) -> Iterator[Run]:
    """Yield the runs as they end; none begins after a time of `time.perf_counter`.

    Every process has a processor of its own, so that their threads are not in each other's way.
    """
    context = get_context("spawn")
    number = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, context, initializer=alone, initargs=(number,)) as pool:
        waiting = iter(todo)
        running = {pool.submit(run, n, s, tokens, batch) for n, s in islice(waiting, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                if time.perf_counter() < end:
                    running |= {
                        pool.submit(run, n, s, tokens, batch) for n, s in islice(waiting, 1)
                    }
                yield future.result()


def alone(number: Any) -> None:
    """Keep this process on one processor: the next one, by a number that the processes share."""
    with number.get_lock():
        mine, number.value = number.value, number.value + 1
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[mine % len(processors)]})


def has_gpu() -> bool:
    """Return whether this machine has a GPU that PyTorch sees."""
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    main()
