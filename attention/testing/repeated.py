"""Assertions that a kernel gives the same results again, and that other calls give them too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention.arguments import plan_given
from roundscope.attention.plans.plan import Plan
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.foreign.user import Kernel, kernel_of, takes
from roundscope.attention.testing.invariance import KINDS, changes, check_invariance, results_of
from roundscope.attention.testing.margins import Margins, check_margins
from roundscope.attention.testing.paired import name_of
from roundscope.attention.testing.reference import reference
from roundscope.emu.errors import unknown
from roundscope.emu.numbers import check_count, check_truth, listed
from roundscope.emu.shown import shown, tidy
from roundscope.emu.testing.arrays import assert_bit_equal

NEEDS = {
    "batch": "the inputs need two batch entries",
    "heads": "the inputs need two key heads",
    "prefix": "the inputs need to be causal, with two tokens",
    "padding": "the kernel needs an argument `mask` or `attn_mask`",
}


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
    check_count(
        "calls", calls, 2, "it is the number of calls, such as 3, and a second call is needed"
    )
    names = _names("results", results, RESULTS)
    called = _kernel(kernel, names, library, layout, dtype)
    x = _called(inputs, is_causal, dtype)
    first = called(x)
    for number in range(2, calls + 1):
        words = f"of call {number}, compared with the first call"
        _assert_same(name_of(kernel), words, called(x), first, names, dtype)


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
    called = _kernel(kernel, names, library, layout, dtype)
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
    theirs = reference(plan, x.q.shape[-1], dtype)
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


def _kernel(
    kernel: Callable[..., Any] | str,
    results: tuple[str, ...],
    library: str | None,
    layout: str | None,
    dtype: str,
) -> Kernel:
    """Return a kernel that takes gradients only if they are compared."""
    backward = any(name != "out" for name in results)
    return kernel_of(kernel, library=library, layout=layout, dtype=dtype, backward=backward)


def _kinds(kernel: Kernel, x: Inputs, to: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of changes that are asked about, all of which the call allows."""
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
    names = (
        (given,) if isinstance(given, str) else tuple(listed(argument, given, f"names of {known}"))
    )
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
    is_held = all(
        np.array_equal(n.astype(np.float32), a, equal_nan=True)
        for n, a in zip(narrow, pair, strict=True)
    )
    yield from narrow if is_held else pair
