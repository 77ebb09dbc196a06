"""`assert_as_good_as`: the assertion that replaces a tolerance."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from roundscope.attention.plans.plan import Plan
from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.cases import strict as as_failure
from roundscope.attention.testing.comparison import (
    FALSE_ALARM,
    Comparison,
    check_heads,
    compare,
)
from roundscope.attention.testing.edges import MASKED, check_edges
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.attention.testing.foreign.user import kernel_of
from roundscope.attention.testing.gross import UNITS
from roundscope.attention.testing.invariance import check_invariance
from roundscope.attention.testing.margins import Margins, check_margins
from roundscope.attention.testing.reference import reference
from roundscope.emu.errors import unknown
from roundscope.emu.numbers import check_count, check_real, check_truth
from roundscope.emu.shown import shown

SHOWN = 8  # reasons in a message


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
    of the plan in any head (`Margins`); docs/howto/check.md has how often that happened to good
    kernels.

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

    def drawn(kind: str, look: int) -> Inputs:
        return draw(
            kind,
            seed=seed + look,
            batch=batch,
            tokens=tokens,
            keys=keys,
            heads=heads,
            key_heads=key_heads,
            features=features,
            scale=scale,
            is_causal=is_causal,
            dtype=dtype,
        )

    called = kernel_of(kernel, library=library, layout=layout, dtype=dtype, backward=backward)
    theirs, margins = reference(plan, features, dtype, block_q, block_k), margins or Margins()
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
        x = drawn(kinds[0], 0)
        cases = [
            *check_invariance(called, theirs, x, margins=margins, dtype=dtype),
            *check_edges(
                called,
                theirs,
                features=features,
                is_causal=is_causal,
                margins=margins,
                dtype=dtype,
                names=MASKED,
            ),
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
    if more > 0:
        lines.append(f"  and {more} more")
    shares = ", ".join(f"{share:.4f} of {n}" for n, share in compared.equal.items())
    lines.append(f"  bits equal to the plan's: {shares}; {compared.heads} heads compared")
    return "\n".join(lines)
