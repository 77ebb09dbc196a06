"""Pairs of runs whose culprit is known: does `compare` name it, it alone, and what it is worth?

    python -m tests.checks.pairs [--library jax] [--layers 2] [--width 64] [--device cuda]

Each pair is a tiny Llama with random weights, of the transformers library or of plain JAX
functions, and the same model with one change (or two) of its arithmetic, put in by hand. What a
change is worth is known by construction: of one change all of the gap, of two Shapley's values of
four runs of the models themselves, without any replay. Prints a table in Markdown, and ends with 1
if a pair is not told.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch import nn

from roundscope.jax import Side as JaxSide
from roundscope.jax import compare as compare_jax
from roundscope.operations.models.comparing.comparison import Comparison
from roundscope.torch import Side, compare
from tests.operations.models import jax_small, small

Change = Callable[[nn.Module], nn.Module]
AnySide = Side | JaxSide


class Pair(NamedTuple):
    """Two runs, and the operations that make them differ; none where they may be equal.

    combined: of two changes by the names of their operations, the run with some of them.
    """

    name: str
    a: Callable[[], AnySide]
    b: Callable[[], AnySide]
    culprits: frozenset[str]
    may_be_equal: bool = False
    combined: Callable[[Sequence[str]], AnySide] | None = None


def compiled_leaves(model: nn.Module) -> nn.Module:
    """RMSNorm compiled by Inductor, each module for itself."""
    for norm in small.norms(model):
        norm.compile()
    return model


def model_of(*changes: Change, kernel: str = "sdpa", dtype: torch.dtype = small.BF16) -> nn.Module:
    """Return the model with some changes."""
    model = small.llama(kernel, ASKED.layers, ASKED.width, dtype).to(ASKED.device)
    for change in changes:
        model = change(model)
    return model


def side(
    *changes: Change, batch: int = 1, run: Any = None, logprobs: Any = None, **of: Any
) -> Side:
    """Return a run of it."""
    ids = small.tokens(batch).to(ASKED.device)
    return Side(model_of(*changes, **of), ids, run, logprobs)


ASKED = argparse.Namespace(library="torch", layers=2, width=64, device="cpu", only="")
PLAIN = side
FP32 = partial(side, dtype=torch.float32)
TWO: Sequence[tuple[str, Change]] = (
    ("rms_norm", small.with_late_cast),
    ("linear", small.with_split_k),
)


def with_two(names: Sequence[str]) -> Side:
    """Return a run with some of two changes."""
    return side(*(change for name, change in TWO if name in names))


def pairs() -> list[Pair]:
    """Return the pairs of PyTorch."""
    both = [change for _, change in TWO]
    in_type = [partial(side, logprobs=small.log_softmax(t)) for t in (torch.float32, small.BF16)]
    kernels = [partial(side, kernel=name) for name in ("eager", "sdpa")]
    shaped = _of(
        "attention", "linear", "silu", "rms_norm"
    )  # whose loops depend on how many numbers there are
    return [
        Pair("equal runs", PLAIN, PLAIN, frozenset(), True),
        Pair(
            "RMSNorm: cast before, after",
            PLAIN,
            partial(side, small.with_late_cast),
            _of("rms_norm"),
        ),
        Pair(
            "table of RoPE in BF16", PLAIN, partial(side, small.with_bf16_table), _of("rope_table")
        ),
        Pair("split-K of down_proj", PLAIN, partial(side, small.with_split_k), _of("linear")),
        Pair("log-softmax in BF16", *in_type, _of("log_softmax")),
        Pair("residual in FP32", PLAIN, partial(side, small.with_fp32_residual), _of("add")),
        Pair("eager attention, SDPA", *kernels, _of("attention")),
        Pair("prefill, token by token", PLAIN, partial(side, run=small.by_token), shaped, True),
        Pair("the same in FP32", FP32, partial(FP32, run=small.by_token), shaped, True),
        Pair("batch 1, row of 8", PLAIN, partial(side, batch=8), shaped, True),
        Pair("the same in FP32 ", FP32, partial(FP32, batch=8), shaped, True),
        Pair("compiled RMSNorm", PLAIN, partial(side, compiled_leaves), _of("rms_norm")),
        Pair("FP8 linear", PLAIN, partial(side, small.with_fp8_linear), _of("linear")),
        Pair(
            "RMSNorm and split-K",
            PLAIN,
            partial(side, *both),
            _of("rms_norm", "linear"),
            combined=with_two,
        ),
    ]


def of_jax(batch: int = 1, is_jitted: bool = False, **of: Any) -> JaxSide:
    """Return a run of the model of plain JAX functions; of: its changes, and fields of the side."""
    names, count = ("logprobs", "compiler_options", "run"), of.pop("count", small.TOKENS)
    fields = {name: of.pop(name) for name in names if name in of}
    function = of.pop("function", None) or jax_small.changed(**of)
    weights = jax_small.parameters(ASKED.layers, ASKED.width)
    ids = jax_small.tokens(batch, count)
    return JaxSide(jax.jit(function) if is_jitted else function, ids, weights, **fields)


JAX_TWO: dict[str, dict[str, Any]] = {
    "rms_norm": {"norm": jax_small.late_rms_norm},
    "linear": {"down": jax_small.split_linear},
}


def with_two_of_jax(names: Sequence[str]) -> JaxSide:
    """Return a run of JAX with some of two changes."""
    return of_jax(**{key: x for name in names for key, x in JAX_TWO[name].items()})


def pairs_of_jax() -> list[Pair]:
    """Return the pairs of JAX."""
    in_type = [
        partial(of_jax, logprobs=jax_small.log_softmax(t)) for t in (jax_small.FP32, jax_small.BF16)
    ]
    strict = {"xla_allow_excess_precision": False}
    compiled, whole = partial(of_jax, is_jitted=True), _of("whole_program")
    shaped = _of("attention", "linear")

    def changed(name: str, culprit: str, **of: Any) -> Pair:
        return Pair(name, of_jax, partial(of_jax, **of), _of(culprit))

    return [
        Pair("equal runs", of_jax, of_jax, frozenset(), True),
        changed("RMSNorm: cast before, after", "rms_norm", norm=jax_small.late_rms_norm),
        changed("table of RoPE in BF16", "rope_table", table=jax_small.BF16),
        changed("split-K of down", "linear", down=jax_small.split_linear),
        Pair("log-softmax in BF16", *in_type, _of("log_softmax")),
        changed("residual in FP32", "add", residual=jax_small.FP32),
        changed("dot_product_attention, eager", "attention", attention=jax_small.eager_attention),
        changed("FP8 linear", "linear", down=jax_small.fp8_linear),
        Pair("batch 1, row of 8", of_jax, partial(of_jax, batch=8), shaped, True),
        Pair(
            "RMSNorm and split-K",
            of_jax,
            partial(with_two_of_jax, [*JAX_TWO]),
            frozenset(JAX_TWO),
            combined=with_two_of_jax,
        ),
        Pair(
            "prefill, token by token",
            partial(
                of_jax,
                count=16,
                function=lambda weights, ids: jax_small.decoded(weights, ids, [])[0],
            ),
            partial(of_jax, count=16, function=jax_small.decoded, run=jax_small.by_token),
            shaped,
            True,
        ),
        Pair("eager, jitted", of_jax, compiled, whole, True),
        Pair("the same, strict", of_jax, partial(of_jax, compiler_options=strict), whole, True),
        Pair(
            "RMSNorm, both strict",
            partial(of_jax, compiler_options=strict),
            partial(of_jax, compiler_options=strict, **JAX_TWO["rms_norm"]),
            _of("rms_norm") if jax.default_backend() == "cpu" else _of("rms_norm", *whole),
        ),
    ]


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


def logprobs_of(given: AnySide) -> np.ndarray:
    """Return the log-probabilities of a run of the model itself, in binary64."""
    if isinstance(given, JaxSide):
        function: Any = given.function
        if given.compiler_options:
            function = jax.jit(function, compiler_options=dict(given.compiler_options))
        model = partial(function, given.parameters)
        made = given.run(model, given.inputs) if given.run else model(given.inputs)
        if given.logprobs:
            return np.asarray(given.logprobs(made, given.inputs)[0], np.float64)
        return jax_small.exact_logprobs(made, given.inputs)
    model, ids = given.model, given.inputs
    with torch.no_grad():
        out = given.run(model, ids) if given.run else model(ids).logits
        if given.logprobs:
            found = given.logprobs(out, ids)[:1]
        else:
            table = torch.log_softmax(out.double(), -1)
            found = table[:, :-1].gather(-1, ids[:, 1:, None])[:1, :, 0]
    return found.double().cpu().numpy().reshape(-1)


def true_shares(pair: Pair) -> dict[str, float]:
    """Return what each change is worth, from runs of the models alone."""
    if pair.combined is None:
        return dict.fromkeys(pair.culprits, 1.0) if len(pair.culprits) == 1 else {}
    names = sorted(pair.culprits)
    value = {
        chosen: logprobs_of(pair.combined(chosen))
        for size in range(3)
        for chosen in combinations(names, size)
    }
    gap = value[tuple(names)] - value[()]
    worth = {key: float((x - value[()]) @ gap / (gap @ gap)) for key, x in value.items()}
    first, second = names
    share = (worth[first,] + 1 - worth[second,]) / 2
    return {first: share, second: 1 - share}


def judged(pair: Pair) -> tuple[bool, list[str]]:
    """Return whether a pair is told, and its row of the table."""
    a, b = pair.a(), pair.b()
    began = time.perf_counter()
    found = compare_jax(a, b) if isinstance(a, JaxSide) else compare(a, b)
    seconds = time.perf_counter() - began
    gap = logprobs_of(pair.b()) - logprobs_of(pair.a())
    is_gap = bool(np.allclose(found.gap, gap, rtol=0, atol=1e-12))
    made = {row.operation for row in found.rows if row.made == "here"}
    blamed = made - pair.culprits
    named = found.equal and pair.may_be_equal if not made else not blamed
    true = {} if found.equal else true_shares(pair)
    given: dict[str, float] = {}
    for group in found.groups:
        operation = group.name.split()[0]
        given[operation] = given.get(operation, 0.0) + group.share
    are_shares = all(abs(given.get(name, 0.0) - share) < 1e-6 for name, share in true.items())
    passed = bool(named and are_shares and is_gap and abs(found.left) < 1e-9)
    return passed, [
        pair.name,
        _named(found),
        ", ".join(f"{name} {share:.1%}" for name, share in given.items()) or "none",
        ", ".join(f"{name} {share:.1%}" for name, share in sorted(true.items())) or "not known",
        ", ".join(sorted(blamed)) or "none",
        f"{found.left:.1%}",
        f"{found.mean:.1e}",
        f"{seconds:.1f}",
        "yes" if passed else "NO",
    ]


def _named(found: Comparison) -> str:
    if found.equal:
        return "equal"
    return "; ".join(f"{g.name}: {g.a} / {g.b}" for g in found.groups)


HEADS = (
    "pair", "named: A / B", "share", "true share", "others blamed", "left", "mean gap", "s", "told",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Judge the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=("torch", "jax"))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--width", type=int, help="features, a multiple of 64")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--only", help="pairs whose name has this text")
    parser.parse_args(words, ASKED)
    torch.set_num_threads(1)
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    all_passed = True
    for pair in pairs_of_jax() if ASKED.library == "jax" else pairs():
        if ASKED.only not in pair.name:
            continue
        passed, row = judged(pair)
        all_passed &= passed
        print("| " + " | ".join(row) + " |", flush=True)
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
