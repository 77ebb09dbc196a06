"""What must not change a result: a second call, the batch, the order of heads, later tokens.

A change of the call that leaves the exact results as they are may still change the order in which a
kernel adds, and so its last bits. Three answers are possible: the same bits, other bits that are as
exact as the plan, or results that are wrong.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roundscope.attention.inputs.alignment import Alignment
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.cases import Answer, Case, Verdict, not_run
from roundscope.attention.testing.errors import UNITS, Margins, all_gross
from roundscope.attention.testing.exact import RESULTS
from roundscope.attention.testing.foreign.user import Kernel, takes
from roundscope.attention.testing.reference import Reference
from roundscope.emu.testing.foreign import raised

TEST = "invariance"
CALLS = 3
SECOND_CALL = "a second call"  # the name of the question whether the kernel is deterministic
KINDS = ("batch", "heads", "prefix", "padding")
Part = Callable[[Outputs], Outputs]
Cut = Callable[[np.ndarray], np.ndarray]


def _same(outputs: Outputs) -> Outputs:
    return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a call that leaves its exact results as they are.

    Attributes:
        kind: "batch", "heads", "prefix" or "padding".
        name: The change in a few words.
        first: The inputs of the call that is not changed.
        changed: The inputs of the changed call.
        compared: The inputs whose exact results are compared: those of either call.
        of_first: Returns the compared results, given all results of the first call.
        of_changed: Returns the compared results, given those of the changed call.
    """

    kind: str
    name: str
    first: Inputs
    changed: Inputs
    compared: Inputs
    of_first: Part = _same
    of_changed: Part = _same


def changes(x: Inputs, with_mask: bool = False, kinds: Collection[str] = KINDS) -> Iterator[Change]:
    """Yield every change that the inputs allow.

    The batch needs two entries, the heads two heads, and the prefix a causal call.

    Args:
        x: The inputs of the call that is changed.
        with_mask: Whether the kernel takes a mask, which "padding" needs.
        kinds: The kinds of changes that are wanted, of `KINDS`.
    """
    if "batch" in kinds and x.q.shape[0] > 1:
        yield _alone(x)
        yield _reversed("batch", "the batch in reverse order", x, lambda a: a[::-1])
    if "heads" in kinds and x.k.shape[2] > 1:
        yield _reversed("heads", "the heads in reverse order", x, lambda a: a[:, :, ::-1])
    if "prefix" in kinds and x.is_causal and x.q.shape[1] > 1:
        yield _prefix(x)
    if "padding" in kinds and with_mask:
        yield _padded(x)


def _alone(x: Inputs) -> Change:
    """Return a call of the last entry of the batch alone."""
    last = _inputs(x, lambda a: a[-1:])
    return Change(
        kind="batch",
        name="an entry of the batch alone",
        first=x,
        changed=last,
        compared=last,
        of_first=lambda o: _outputs(o, lambda a: a[-1:]),
    )


def _reversed(kind: str, name: str, x: Inputs, turned: Cut) -> Change:
    changed, back = _inputs(x, turned), partial(_outputs, cut=turned)
    return Change(kind=kind, name=name, first=x, changed=changed, compared=x, of_changed=back)


def _prefix(x: Inputs) -> Change:
    """Return a call of the first tokens alone, about two thirds of them and no whole tiles.

    In the first call dO is 0 behind them, so that later tokens add nothing to the gradients.
    """
    count = max(1, 2 * x.q.shape[1] // 3 - 1)
    quiet = x.do.copy()
    quiet[:, count:] = 0.0
    prefix = _inputs(x, lambda a: a[:, :count])
    return Change(
        kind="prefix",
        name=f"the first {count} tokens alone",
        first=replace(x, do=quiet),
        changed=prefix,
        compared=prefix,
        of_first=lambda o: _outputs(o, lambda a: a[:, :count]),
    )


def _padded(x: Inputs) -> Change:
    """Return the call with 37 keys more, large ones, that a mask hides."""
    more, keys = 37, x.k.shape[1]

    def longer(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.full_like(a[:, :1], 3.0).repeat(more, 1)], 1)

    sees = np.ones((1, 1, x.q.shape[1], keys + more), bool)
    sees[..., keys:] = False
    if x.is_causal:
        sees[..., :keys] &= np.tri(x.q.shape[1], keys, dtype=bool)

    def shorter(o: Outputs) -> Outputs:
        cut = {n: a[:, :keys] if n in ("dk", "dv") else a for n, a in o.named() if n != "lse"}
        return Outputs(**cut)

    return Change(
        kind="padding",
        name="keys that a mask hides",
        first=x,
        changed=replace(
            x, k=longer(x.k), v=longer(x.v), mask=sees, is_causal=False, alignment=_of_first(x)
        ),
        compared=x,
        of_changed=shorter,
    )


def _of_first(x: Inputs) -> Alignment | None:
    """Return the alignment under which more keys behind those of a square call change nothing."""
    is_square = x.q.shape[1] == x.k.shape[1]
    return "top-left" if x.alignment and is_square else x.alignment


def check_invariance(
    kernel: Kernel,
    plan: Reference,
    x: Inputs,
    *,
    margins: Margins,
    dtype: str = "bfloat16",
    kinds: Collection[str] = KINDS,
) -> Iterator[Case]:
    """Yield whether a kernel gives the same results if it is called again, or otherwise.

    Args:
        kernel: The kernel.
        plan: The plan whose errors other bits may have.
        x: The inputs of a call of several entries and heads.
        margins: The ratios of errors that are gross.
        dtype: The type of the kernel's results.
        kinds: The kinds of changes that are asked about, of `KINDS`.
    """
    began = time.perf_counter()
    try:
        whole = kernel(x)
    except Exception as error:  # whatever a library raises
        yield not_run(TEST, SECOND_CALL, error, began)
        return
    try:
        again = [kernel(x) for _ in range(CALLS - 1)]
    except Exception as error:  # it took the same call before
        sentence = f"The same call fails the second time: {raised(error)}."
        yield Case(test=TEST, name=SECOND_CALL, answer=Answer.FAIL, sentence=sentence)
        return
    yield _case(SECOND_CALL, [(whole, other) for other in again], x, plan, margins, dtype, began)
    for change in changes(x, takes(kernel, "mask"), kinds):
        began = time.perf_counter()
        try:
            two = results_of(kernel, change, whole if change.first is x else None)
        except Exception as error:  # whatever a library raises
            yield not_run(TEST, change.name, error, began)
            continue
        yield _case(change.name, [two], change.compared, plan, margins, dtype, began)


def results_of(
    kernel: Kernel, change: Change, first: Outputs | None = None
) -> tuple[Outputs, Outputs]:
    """Return the results of a kernel that a change must leave as they are, before and after it.

    Args:
        kernel: The kernel.
        change: The change.
        first: The results of the call that is not changed, if they are known.
    """
    before = kernel(change.first) if first is None else first
    return change.of_first(before), change.of_changed(kernel(change.changed))


def _case(
    name: str,
    calls: Sequence[tuple[Outputs, Outputs]],
    x: Inputs,
    plan: Reference,
    margins: Margins,
    dtype: str,
    began: float,
) -> Case:
    differing = _differing(calls)
    verdict = Verdict(Answer.PASS, "The same bits.")
    if differing:
        shares = ", ".join(f"{100 * share:.3g} % of {n}" for n, share in differing.items())
        sentence = f"Other bits in {shares}, as exact as the plan: an order of additions changes."
        verdict = Verdict(Answer.NOTE, sentence, is_strict=True)
        theirs, unit = plan.outputs(x, backward=calls[0][0].dq is not None), UNITS[dtype]
        problems = [p for _, own in calls for p in all_gross(name, x, own, theirs, margins, unit)]
        if problems:
            worst = max(problems, key=lambda p: p.size)
            sentence = f"Other results, which are wrong: {worst.sentence}."
            verdict = Verdict(Answer.FAIL, sentence, is_lost=worst.feature is not None)
    seconds = time.perf_counter() - began
    return Case(test=TEST, name=name, seconds=seconds, **verdict._asdict())


def _differing(calls: Sequence[tuple[Outputs, Outputs]]) -> dict[str, float]:
    """Return the share of numbers whose bits differ, of each result that has any."""
    shares = {}
    for name in RESULTS:
        arrays = [(getattr(a, name), getattr(b, name)) for a, b in calls]
        if arrays[0][0] is None:
            continue
        share = max(float((~_equal(a, b)).mean()) for a, b in arrays)
        if share:
            shares[name] = share
    return shares


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    words = [np.ascontiguousarray(x, np.float32).view(np.int32) for x in (a, b)]
    return np.asarray((words[0] == words[1]) | (np.isnan(a) & np.isnan(b)))


def _inputs(x: Inputs, cut: Cut) -> Inputs:
    q, k, v, do = (np.ascontiguousarray(cut(a)) for a in (x.q, x.k, x.v, x.do))
    return replace(x, q=q, k=k, v=v, do=do)


def _outputs(o: Outputs, cut: Cut) -> Outputs:
    kept = {n: np.ascontiguousarray(cut(a)) for n, a in o.named() if n != "lse"}
    return Outputs(**kept)
