"""Calls at the edge of what a kernel takes: few tokens, extreme scores, infinities and NaN.

Most edges are judged by the plan: on the same inputs a head must not have twice the plan's error,
nor a number that is not finite where the plan has one. NaN and infinities have rules of their own.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.cases import Answer, Case, Verdict, not_run
from roundscope.attention.testing.comparison import suspected
from roundscope.attention.testing.errors import UNITS, Margins, all_gross
from roundscope.attention.testing.families import draw, rounded
from roundscope.attention.testing.foreign.user import Kernel, takes
from roundscope.attention.testing.reference import Reference

TEST = "edges"
BLIND = 3  # rows that see no key
ROWS = ("out", "dq")  # results that have a row for each query
TOKENS = 100  # no whole number of tiles
THOUSANDS = 4000.0
FAR_BELOW = -20000.0  # below the finite numbers that kernels put in place of masked scores
NAN, INFINITY = "NaN in a query", "infinity in a value"
MASK, BLIND_ROWS = "a mask", "rows that see no key"
MASKED = (MASK, BLIND_ROWS)  # edges that need a kernel that takes a mask
RULED = (NAN, INFINITY, BLIND_ROWS)  # edges where a plan's roundings explain no failure
SPECIAL = (NAN, INFINITY, *MASKED)  # edges with rules of their own
LARGE, SMALL = 2.0**100, 2.0**-100  # of V in types with eight exponent bits
HALF_LARGE, HALF_SMALL = 2.0**8, 2.0**-8  # of V in FP16
NOTHING: Mapping[str, Any] = MappingProxyType({})


def edges(
    features: int, is_causal: bool, dtype: str, said: Mapping[str, Any] = NOTHING
) -> Iterator[tuple[str, Inputs]]:
    """Yield named inputs that are judged by the plan.

    Args:
        features: The number of features of a head.
        is_causal: Whether a query sees only the keys up to its own position.
        dtype: The type of the inputs.
        said: What else is said of every call, such as a window.
    """

    def drawn(family: str = "gaussian", **sizes: int) -> Inputs:
        sizes = {"batch": 2, "heads": 2, "tokens": TOKENS} | sizes
        x = draw(family, features=features, is_causal=is_causal, dtype=dtype, **sizes)
        return replace(x, **said)

    x = drawn()
    yield "one token", drawn(tokens=1)
    yield "two tokens", drawn(tokens=2)
    yield "a tile and one token", drawn(tokens=129)
    yield "one entry and one head", drawn(batch=1, heads=1)
    yield "three query heads of a key head", drawn(heads=6, key_heads=2)
    if not is_causal:
        yield "one query, many keys", drawn(tokens=1, keys=TOKENS)
        yield "many queries, one key", drawn(keys=1)
        yield "more keys than queries", drawn(tokens=33, keys=TOKENS)
    yield "all scores equal", replace(x, k=np.zeros_like(x.k))
    yield "many ties for the maximum", drawn("repeated-maximum")
    yield "wide logits", drawn("large-logits")
    yield "scores of thousands", replace(x, q=rounded(_scores(x, THOUSANDS), dtype))
    far = FAR_BELOW if dtype == "bfloat16" else -THOUSANDS
    yield "all scores far below 0", _shifted(x, far, dtype)
    large, small = (HALF_LARGE, HALF_SMALL) if dtype == "float16" else (LARGE, SMALL)
    yield "large values", replace(x, v=rounded(x.v * np.float32(large), dtype))
    yield "small values", replace(x, v=rounded(x.v * np.float32(small), dtype))


def _scores(x: Inputs, size: float) -> np.ndarray:
    """Return q times a factor with which the largest score of the call is about `size`."""
    group = x.q.shape[2] // x.k.shape[2]
    s = x.scale * np.einsum("btnh,bsnh->bnts", x.q, x.k.repeat(group, 2))
    return np.asarray(x.q * (size / np.abs(s).max()), np.float32)


def _shifted(x: Inputs, score: float, dtype: str) -> Inputs:
    """Return a call whose scores are all about `score`: the first feature of k is 1, q's is large.

    The scores of a row share the shift, so that softmax does not depend on it.
    """
    q, k = x.q.copy(), x.k.copy()
    q[..., 0], k[..., 0] = score / x.scale, 1.0
    return replace(x, q=rounded(q, dtype), k=k)


def edge_names(is_causal: bool) -> tuple[str, ...]:
    """Return the names of the edges that `check_edges` asks about."""
    return (*(name for name, _ in edges(8, is_causal, "bfloat16")), *SPECIAL)


def check_edges(
    kernel: Kernel,
    plan: Reference,
    *,
    features: int,
    is_causal: bool,
    margins: Margins,
    dtype: str = "bfloat16",
    names: Collection[str] | None = None,
    said: Mapping[str, Any] = NOTHING,
    explains: bool = True,
) -> Iterator[Case]:
    """Yield the answer of a kernel at every edge.

    Args:
        kernel: The kernel.
        plan: The plan that it claims.
        features: The number of features of a head.
        is_causal: Whether a query sees only the keys up to its own position.
        margins: The ratios of errors that are gross.
        dtype: The type of the inputs and of the results.
        names: The names of the edges that are asked about; None for all of `edge_names`.
        said: What else is said of every call, such as a window.
        explains: Whether the mistake is looked for that makes a gross error; one that is known
            need not be found again at every edge.
    """

    def of(x: Inputs) -> Verdict:
        return judged(kernel, plan, x, margins, dtype, explains)

    for name, x in edges(features, is_causal, dtype, said):
        if names is None or name in names:
            yield _asked(name, partial(of, x))
    x = draw("gaussian", batch=1, heads=2, tokens=TOKENS, features=features, dtype=dtype)
    x = replace(x, is_causal=is_causal, **said)
    masked = _masked(x)
    special: dict[str, Callable[[], Verdict]] = {
        NAN: lambda: _nan_in_a_query(kernel, x),
        INFINITY: lambda: _infinite_value(kernel, plan, x),
        MASK: lambda: of(masked),
        BLIND_ROWS: lambda: _rows_without_keys(kernel, plan, masked, margins, dtype),
    }
    for name, ask in special.items():
        if names is not None and name not in names:
            continue
        if name in MASKED and not takes(kernel, "mask"):
            sentence = "The kernel takes no mask."
            yield Case(test=TEST, name=name, answer=Answer.NOT_RUN, sentence=sentence)
        else:
            yield _asked(name, ask)


def judged(
    kernel: Kernel,
    plan: Reference,
    x: Inputs,
    margins: Margins,
    dtype: str,
    explains: bool = True,
) -> Verdict:
    """Return whether a kernel is about as exact as the plan on some inputs, and why not."""
    own = kernel(x)
    theirs = plan.outputs(x, backward=own.dq is not None)
    problems = list(all_gross("", x, own, theirs, margins, UNITS[dtype]))
    if not problems:
        return Verdict(Answer.PASS, "As exact as the plan.")
    worst = max(problems, key=lambda p: p.size)
    suspect = suspected(x, own, theirs, problems) if explains else ""
    because = f"; {suspect}" if suspect else ""
    sentence = f"{worst.sentence.removeprefix(': ')}{because}."
    return Verdict(Answer.FAIL, sentence, is_lost=worst.feature is not None)


def _asked(name: str, ask: Callable[[], Verdict]) -> Case:
    began = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            verdict = ask()
    except Exception as error:  # whatever a library raises
        return not_run(TEST, name, error, began)
    seconds = time.perf_counter() - began
    return Case(test=TEST, name=name, seconds=seconds, **verdict._asdict())


def _nan_in_a_query(kernel: Kernel, x: Inputs) -> Verdict:
    """A row whose query has a NaN is NaN, and no other row changes."""
    row, q = x.q.shape[1] // 2, x.q.copy()
    q[0, row, 0, 0] = np.nan
    clean, own = kernel(x).out, kernel(replace(x, q=q)).out.copy()
    if not np.isnan(own[0, row, 0]).all():
        sentence = "The row of the NaN is not NaN: an error upstream would be hidden."
        return Verdict(Answer.FAIL, sentence)
    own[0, row, 0] = clean[0, row, 0]
    changed = ~np.isclose(own, clean, rtol=0.1, atol=0.1)
    if changed.any():
        rows = int(changed.any(-1).sum())
        return Verdict(Answer.FAIL, f"{rows} other rows change as well.")
    return Verdict(Answer.PASS, "Its row is NaN, and no other row changes.")


def _infinite_value(kernel: Kernel, plan: Reference, x: Inputs) -> Verdict:
    """A row that sees an infinite value is not finite in that feature; other rows are untouched.

    A plan that casts V to a format without infinities gives finite numbers too.
    """
    last, v = x.k.shape[1] - 1, x.v.copy()
    v[0, last, 0, 0] = np.inf
    infinite = replace(x, v=v)
    clean, own = kernel(x).out, kernel(infinite).out
    if np.isfinite(own[0, last, 0, 0]):
        sees = "The last row sees the infinity, and its result is finite"
        is_as_planned = np.isfinite(plan.outputs(infinite, backward=False).out[0, last, 0, 0])
        if is_as_planned:
            return Verdict(Answer.NOTE, f"{sees}, as that of the plan is.")
        return Verdict(Answer.FAIL, f"{sees}.")
    if not x.is_causal:
        return Verdict(Answer.PASS, "The rows that see it are not finite.")
    earlier = ~np.isclose(own[0, :last], clean[0, :last], rtol=0.1, atol=0.1)
    if earlier.any():
        rows = int(earlier.any(-1).any(-1).sum())
        return Verdict(
            Answer.NOTE,
            f"{rows} earlier rows, which do not see it, change as well, as where a kernel"
            " multiplies a masked P = 0 with the infinity.",
        )
    return Verdict(Answer.PASS, "The row that sees it is not finite, and no earlier row changes.")


def _masked(x: Inputs) -> Inputs:
    """Return the call with a random mask in place of causality; every row sees its own key."""
    queries, keys = x.q.shape[1], x.k.shape[1]
    sees = np.random.default_rng(0).random((1, 1, queries, keys)) < 0.5
    sees |= np.eye(queries, keys, dtype=bool)
    if x.is_causal:
        sees &= np.tri(queries, keys, dtype=bool)
    return replace(x, mask=sees, is_causal=False)


def _rows_without_keys(
    kernel: Kernel, plan: Reference, x: Inputs, margins: Margins, dtype: str
) -> Verdict:
    """Rows that see no key are 0; anything else is a note, and a failure if one is strict.

    They must not change the other results.
    dO is 0 in these rows, so that they add nothing to the gradients.
    """
    assert x.mask is not None
    mask, do = x.mask.copy(), x.do.copy()
    mask[..., :BLIND, :], do[:, :BLIND] = False, 0.0
    masked = replace(x, mask=mask, do=do)
    own = kernel(masked)
    blind = own.out[:, :BLIND]
    is_mean = np.allclose(blind, x.v.mean(1, keepdims=True), atol=0.02)
    what = "the mean of V" if is_mean else "neither 0, NaN nor the mean of V"
    if not blind.any() or np.isnan(blind).all():
        what = "NaN" if blind.any() else "0"
    theirs = plan.outputs(masked, backward=own.dq is not None)
    seeing = {
        n: np.concatenate([getattr(theirs, n)[:, :BLIND], a[:, BLIND:]], 1) if n in ROWS else a
        for n, a in own.named()
        if n != "lse"
    }
    own = Outputs(**seeing)
    problems = list(all_gross("", masked, own, theirs, margins, UNITS[dtype]))
    if problems:
        worst = max(problems, key=lambda p: p.size)
        words = worst.sentence.removeprefix(": ")
        sentence = f"They give {what}, and harm other results: {words}."
        return Verdict(Answer.FAIL, sentence, is_lost=worst.feature is not None)
    if what == "0":
        return Verdict(Answer.PASS, "They give 0; no other result is harmed.")
    sentence = (
        f"They give {what} where exact attention has 0: a row of padding that looks like a result;"
        " no other result is harmed."
    )
    return Verdict(Answer.NOTE, sentence, is_strict=True)
