"""Assertions on kernels: `assert_as_good_as`, which replaces a tolerance, and that results repeat.

`assert_deterministic` calls a kernel again, `assert_invariant` calls it otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.arguments import plan_given
from roundscope.attention.plans.plan import Plan
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.cases import strict as as_failure
from roundscope.attention.testing.comparison import (
    FALSE_ALARM,
    Comparison,
    check_heads,
    compare,
)
from roundscope.attention.testing.edges import MASKED, check_edges
from roundscope.attention.testing.errors import UNITS, Margins, check_margins
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.attention.testing.foreign.user import Kernel, kernel_of, takes
from roundscope.attention.testing.invariance import KINDS, changes, check_invariance, results_of
from roundscope.attention.testing.reference import reference
from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.numbers import check_count, check_real, check_truth, listed
from roundscope.emu.shown import shown, tidy
from roundscope.emu.stats.comparison import share_words
from roundscope.emu.testing.arrays import assert_bit_equal

SHOWN = 8  # reasons in a message


@known_arguments
def assert_as_good_as(
    kernel: Callable[..., Any] | str,
    plan: Plan | str,
    inputs: str | Sequence[str] = tuple(FAMILIES),
    *,
    is_causal: bool = False,
    tokens: int = 192,
    keys: int | None = None,
    features: int = 64,
    batch: int = 5,
    heads: int = 8,
    key_heads: int | None = None,
    scale: float | None = None,
    dtype: str = "bfloat16",
    backward: bool = True,
    draws: int = 4,
    seed: int = 0,
    margins: Margins | None = None,
    false_alarm: float = FALSE_ALARM,
    strict: bool = False,
    library: str | None = None,
    layout: str | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Comparison:
    """Assert that an attention kernel is as good as a plan: as exact, and no more biased.

    The kernel and the plan run on the same inputs, and the errors of both are compared with exact
    attention: the relative rms error, the error of the worst row, the gain (is the result too long
    or too short?) and the mean error (is it too high or too low?), for the output and for each
    gradient. More inputs are drawn for as long as a question is open, `draws` times at most.

    A difference that only chance could make is no failure: if, for each of the errors, the kernel
    is as likely better than the plan by some amount as worse by it, the probability of an alarm
    from the means over heads is at most `false_alarm` for the whole call. A single head fails the
    assertion as well if its rms error is twice the plan's or its worst row is eight times the worst
    of the plan in any head (`Margins`); docs/findings/kernels-check.md has how often that happened
    to good kernels.

    Args:
        kernel: A function (q, k, v, *, scale, is_causal), or its name; see `kernel_of`.
        plan: A `Plan`, or the name of a preset or a twin: the arithmetic that the kernel claims.
        inputs: The name of a family of inputs (`FAMILIES`), or several; by default all of them.
        is_causal: Whether a query sees only the keys up to its own position.
        tokens: The number of queries of a head.
        keys: The number of keys of a head; by default that of the queries.
        features: The number of features of a head.
        batch: The number of batch entries of a draw.
        heads: The number of heads of q. Heads of all entries are independent.
        key_heads: The number of heads of k and v; by default that of q.
        scale: The factor of the scores; by default 1 / sqrt(features).
        dtype: The type of the inputs: "bfloat16", "float16" or "float32".
        backward: Whether the gradients are compared too, if the kernel has any.
        draws: The largest number of draws of each family.
        seed: The seed of the first draw.
        margins: How much worse than the plan the kernel may be; by default `Margins()`.
        false_alarm: The probability that a kernel as good as the plan fails.
        strict: Whether the kernel also has to give the same bits at a second call and in another
            batch, and, if it takes a mask, 0 in rows that see no key.
        library: "numpy", "jax" or "torch"; by default as the function's module imports.
        layout: "BTNH" or "BNTH"; by default that of the library's own attention.
        block_q: Queries of a tile of the plan; by default those of the twin, or 128.
        block_k: Keys of a tile of the plan; by default those of the twin, or 128.

    Returns:
        The `Comparison`, with every question and its answer.

    Raises:
        AssertionError: The kernel is worse than the plan. The message says in which respects.
        ValueError: An argument has a wrong value, or there are too few heads for evidence. As a
            `ForeignError`: the kernel raised an error, ended the process, returned no such arrays,
            or did what no kernel may do (`roundscope.emu.testing.foreign.call_foreign`).
        unittest.SkipTest: The kernel needs a GPU or a library that is not here; pytest skips the
            test.
        TypeError: An argument has the wrong type.

    Example:
        >>> import numpy as np
        >>> from roundscope import attend
        >>> from roundscope.testing import assert_as_good_as
        >>> def attention(q, k, v, *, scale, is_causal):
        ...     return attend(q, k, v, plan="fa2-bf16", scale=scale, is_causal=is_causal)
        >>> compared = assert_as_good_as(attention, "fa2-bf16", "sink", tokens=32, library="numpy")
        >>> compared.equal["out"]
        1.0
    """
    __tracebackhide__ = True
    kinds = (inputs,) if isinstance(inputs, str) else inputs
    if not isinstance(kinds, list | tuple) or not kinds:
        raise ValueError(f"inputs={shown(inputs)}: give families of {', '.join(FAMILIES)}")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise ValueError(f"inputs: {unknown('family', kind, FAMILIES)}")
    for name, count in {"batch": batch, "heads": heads, "draws": draws, "tokens": tokens}.items():
        check_count(name, count)
    check_count("features", features)
    check_count("seed", seed, 0, most=2**62)
    check_real(
        "false_alarm", false_alarm, 1e-300, 1.0, "a probability between 0 and 1, such as 1e-4"
    )
    check_truth("strict", strict)
    check_margins(margins)
    check_heads(batch * heads, false_alarm, len(kinds), draws)

    sizes: dict[str, Any] = {"batch": batch, "tokens": tokens, "keys": keys, "heads": heads}
    sizes |= {"key_heads": key_heads, "features": features, "scale": scale}

    def drawn(kind: str, look: int) -> Inputs:
        return draw(kind, seed=seed + look, is_causal=is_causal, dtype=dtype, **sizes)

    called = kernel_of(kernel, library=library, layout=layout, dtype=dtype, backward=backward)
    theirs, margins = reference(plan, dtype, block_q, block_k), margins or Margins()
    compared = compare(
        called,
        theirs,
        kinds,
        drawn,
        draws=draws,
        margins=margins,
        unit=UNITS[dtype],
        false_alarm=false_alarm,
    )
    if not compared.is_fine:
        raise AssertionError(message(name_of(kernel), compared))
    if strict:
        x, how = drawn(kinds[0], 0), dict[str, Any](margins=margins, dtype=dtype)
        edges = dict[str, Any](features=features, is_causal=is_causal, names=MASKED)
        cases = [
            *check_invariance(called, theirs, x, **how),
            *check_edges(called, theirs, **edges, **how),
        ]
        failed = [c for c in map(as_failure, cases) if c.answer is Answer.FAIL]
        if failed:
            lines = [f"  {c.test}, {c.name}: {c.sentence}" for c in failed]
            head = f"{name_of(kernel)} is as exact as {compared.plan}, but not strictly right:"
            raise AssertionError("\n".join([head, *lines]))
    return compared


def name_of(kernel: Callable[..., Any] | str) -> str:
    """Return the name of a function for messages."""
    if isinstance(kernel, str):
        return kernel
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    return str(getattr(kernel, "__name__", "the kernel"))


def message(name: str, compared: Comparison) -> str:
    """Return why a kernel is not as good as the plan, one reason a line."""
    reasons = compared.worst()
    more = len(reasons) - SHOWN
    lines = [f"{name} is not as good as {compared.plan}:", *(f"  {r}" for r in reasons[:SHOWN])]
    if compared.cause:
        lines[0] = f"{name} is not as good as {compared.plan}: {compared.cause}."
    if more > 0:
        lines.append(f"  and {more} more")
    if compared.known:
        lines.append(f"  {compared.known}")
    shares = ", ".join(f"{share_words(share, 4)} of {n}" for n, share in compared.equal.items())
    lines.append(f"  bits equal to the plan's: {shares}; {compared.heads} heads compared")
    return "\n".join(lines)


NEEDS = {
    "batch": "the inputs need two batch entries",
    "heads": "the inputs need two key heads",
    "prefix": "the inputs need to be causal, with two tokens",
    "padding": "the kernel needs an argument `mask` or `attn_mask`",
}


@known_arguments
def assert_deterministic(
    kernel: Callable[..., Any] | str,
    inputs: Inputs | None = None,
    *,
    is_causal: bool | None = None,
    calls: int = 3,
    results: Sequence[str] = RESULTS,
    library: str | None = None,
    layout: str | None = None,
    dtype: str = "bfloat16",
) -> None:
    """Assert that an attention kernel returns the same bits each time that it is called.

    Args:
        kernel: A function (q, k, v, *, scale, is_causal), or its name; see `kernel_of`.
        inputs: The inputs of all calls; by default a causal call of 100 tokens, two batch entries
            and four heads of 64 features.
        is_causal: Whether the calls are causal; None for what the inputs say.
        calls: How often the kernel is called, at least twice.
        results: The names of the results that are compared, of "out", "dq", "dk" and "dv". Those
            that the kernel does not return are left out.
        library: "numpy", "jax" or "torch"; by default as the function's module imports.
        layout: "BTNH" or "BNTH"; by default that of the library's own attention.
        dtype: The type of the kernel's inputs: "bfloat16", "float16" or "float32".

    Raises:
        AssertionError: A call returned other bits than the first one. The message says how many
            numbers differ, and shows the two that are farthest apart in decimal, in hexadecimal and
            in bits.
        ValueError: An argument has a wrong value.
        TypeError: An argument has the wrong type.

    Example:
        >>> from roundscope import attend
        >>> from roundscope.testing import assert_deterministic
        >>> def attention(q, k, v, *, scale, is_causal):
        ...     return attend(q, k, v, plan="fa2-bf16", scale=scale, is_causal=is_causal)
        >>> assert_deterministic(attention, library="numpy")
    """
    __tracebackhide__ = True
    words = "it is the number of calls, such as 3, and a second call is needed"
    check_count("calls", calls, 2, words)
    names = _names("results", results, RESULTS)
    backward = any(name != "out" for name in names)
    called = kernel_of(kernel, library=library, layout=layout, dtype=dtype, backward=backward)
    x = _called(inputs, is_causal, dtype)
    first = called(x)
    for number in range(2, calls + 1):
        words = f"of call {number}, compared with the first call"
        _assert_same(name_of(kernel), words, called(x), first, names, dtype)


@known_arguments
def assert_invariant(
    kernel: Callable[..., Any] | str,
    to: str | Sequence[str] | None = None,
    inputs: Inputs | None = None,
    *,
    is_causal: bool | None = None,
    plan: Plan | str | None = None,
    bits: bool = True,
    results: Sequence[str] = RESULTS,
    margins: Margins | None = None,
    library: str | None = None,
    layout: str | None = None,
    dtype: str = "bfloat16",
) -> None:
    """Assert that changes of a call that must not matter leave a kernel's results as they are.

    The changes are the last entry of the batch alone and the batch in reverse order ("batch"), the
    heads in reverse order ("heads"), the first two thirds of a causal call alone ("prefix"), and 37
    more keys that a mask hides ("padding").

    Args:
        kernel: A function (q, k, v, *, scale, is_causal), or its name; see `kernel_of`.
        to: A kind of changes, "batch", "heads", "prefix" or "padding", or several. By default all
            that the inputs and the kernel allow.
        inputs: The inputs of the call; by default a causal call of 100 tokens, two batch entries
            and four heads of 64 features.
        is_causal: Whether the call is causal; None for what the inputs say.
        plan: The plan that the kernel claims, or its name, which `bits=False` needs.
        bits: Whether any other bit is a failure. If False, other bits are accepted where the
            results are as exact as the plan, since a change may change the order of additions.
        results: The names of the results that are compared bit for bit, of "out", "dq", "dk" and
            "dv". Those that the kernel does not return are left out.
        margins: How much worse than the plan a head may be; by default `Margins()`.
        library: "numpy", "jax" or "torch"; by default as the function's module imports.
        layout: "BTNH" or "BNTH"; by default that of the library's own attention.
        dtype: The type of the kernel's inputs: "bfloat16", "float16" or "float32".

    Raises:
        AssertionError: A change has changed a result. The message names the change and, for bits,
            shows the two numbers that are farthest apart.
        ValueError: An argument has a wrong value, or the inputs or the kernel do not allow a change
            that was named.
        TypeError: An argument has the wrong type.

    Example:
        >>> from roundscope import attend
        >>> from roundscope.testing import assert_invariant
        >>> def attention(q, k, v, *, scale, is_causal):
        ...     return attend(q, k, v, plan="fa2-bf16", scale=scale, is_causal=is_causal)
        >>> assert_invariant(attention, ("batch", "heads"), library="numpy")
    """
    __tracebackhide__ = True
    names = _names("results", results, RESULTS)
    backward = any(name != "out" for name in names)
    called = kernel_of(kernel, library=library, layout=layout, dtype=dtype, backward=backward)
    x = _called(inputs, is_causal, dtype)
    kinds = _kinds(called, x, to)
    check_truth("bits", bits)
    check_margins(margins)
    if plan is not None:
        plan = plan_given(plan)
    if bits:
        whole = called(x)
        for change in changes(x, takes(called, "mask"), kinds):
            before, after = results_of(called, change, whole if change.first is x else None)
            words = f"of {change.name}, compared with the whole call"
            _assert_same(name_of(kernel), words, after, before, names, dtype)
        return
    if plan is None:
        raise ValueError("plan=None: bits=False needs the plan that the kernel claims, as 'fa2'")
    theirs = reference(plan, dtype)
    cases = check_invariance(
        called, theirs, x, margins=margins or Margins(), dtype=dtype, kinds=kinds
    )
    bad = [f"  {c.sentence}" for c in cases if c.answer in (Answer.FAIL, Answer.NOT_RUN)]
    if bad:
        raise AssertionError("\n".join([f"{name_of(kernel)} is not invariant:", *bad]))


def _called(inputs: Inputs | None, is_causal: bool | None, dtype: str) -> Inputs:
    """Return the inputs of the call, which are those of a usual causal one if none are given."""
    if inputs is not None and not isinstance(inputs, Inputs):
        raise TypeError(
            f"inputs={shown(inputs)}: give Inputs, as draw('gaussian') returns, or None"
        )
    if is_causal is not None:
        check_truth("is_causal", is_causal)
    if inputs is None:
        inputs = draw("gaussian", batch=2, tokens=100, heads=4, is_causal=True, dtype=dtype)
    return inputs if is_causal is None else replace(inputs, is_causal=is_causal)


def _kinds(kernel: Kernel, x: Inputs, to: str | Sequence[str] | None) -> tuple[str, ...]:
    able = {change.kind for change in changes(x, takes(kernel, "mask"))}
    if to is None:
        if not able:
            raise ValueError(f"inputs: allow no change; {'; '.join(NEEDS.values())}")
        return tuple(kind for kind in KINDS if kind in able)
    kinds = _names("to", to, KINDS)
    for kind in kinds:
        if kind not in able:
            raise ValueError(f"to={kind}: {NEEDS[kind]}")
    return kinds


def _names(argument: str, given: str | Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else listed(argument, given, f"names of {known}")
    names = tuple(several)
    if not names:
        raise ValueError(f"{argument}=(): name at least one of {', '.join(known)}")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{argument}={tidy(str(name))}: {unknown('name', name, known)}")
    return names


def _assert_same(
    kernel: str, words: str, own: Outputs, other: Outputs, names: tuple[str, ...], dtype: str
) -> None:
    """Assert that two calls have the same bits in the named results that both have."""
    __tracebackhide__ = True
    both = [n for n in names if getattr(own, n) is not None and getattr(other, n) is not None]
    if not both:
        raise ValueError(f"results={','.join(names)}: {kernel} returns none of them; name 'out'")
    for name in both:
        actual, expected = _stored((getattr(own, name), getattr(other, name)), dtype)
        assert_bit_equal(actual, expected, what=f"{kernel}: {name} {words}")


def _stored(pair: tuple[np.ndarray, np.ndarray], dtype: str) -> Iterator[np.ndarray]:
    """Yield two float32 arrays in the type of the kernel, if it holds all their numbers."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = [a.astype(kind) for a in pair]
    both = zip(narrow, pair, strict=True)
    is_held = all(np.array_equal(n.astype(np.float32), a, equal_nan=True) for n, a in both)
    yield from narrow if is_held else pair
