"""Tests of an attention kernel that need no code.

    pytest --pyargs roundscope.testing.attention --kernel my_module:my_function --claims fa2

The kernel is a function (q, k, v, *, scale, is_causal); see `roundscope.testing.kernel_of`. The
plan that it claims is a preset or the plan of a real kernel (docs/findings/kernels.md). A test
asks one
question: is the kernel as good as the plan on a family of inputs, are its results the same however
it is called, and is it right at an edge of what it takes? Calls that the kernel does not take are
skipped.
"""

import functools
from collections.abc import Callable, Iterator

import pytest

from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.cases import Answer, Case
from roundscope.attention.testing.comparison import FALSE_ALARM, Comparison, compare
from roundscope.attention.testing.edges import check_edges, edge_names
from roundscope.attention.testing.errors import UNITS, Margins
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.attention.testing.invariance import SECOND_CALL, changes, check_invariance
from roundscope.testing.options import ASKED, NOTE, USAGE, Asked

TOKENS, BATCH, HEADS, DRAWS = 128, 5, 8, 3
TOKENS_AGAIN = 100  # of calls that are repeated: no whole number of tiles
CALLS = {"full": False, "causal": True}
RESULTS = {"forward": ("out", "lse"), "gradients": ("dq", "dk", "dv")}


@pytest.fixture(scope="session")
def asked(pytestconfig: pytest.Config) -> Asked:
    """Return the kernel and the plan of the command line."""
    if ASKED not in pytestconfig.stash:
        pytest.fail(USAGE, pytrace=False)
    return pytestconfig.stash[ASKED]


@pytest.mark.parametrize("results", RESULTS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_good_as_the_plan(asked: Asked, family: str, call: str, results: str) -> None:
    """A kernel that is less exact than the plan it claims, or more biased, on these inputs."""
    compared, names = _compared(asked, family, CALLS[call]), RESULTS[results]
    for words in compared.raised.values():
        pytest.fail(f"The kernel raised an error on these inputs: {words}.", pytrace=False)
    if not set(names) & set(compared.equal):
        pytest.skip("The kernel has no gradients.")
    reasons = [g.sentence for g in compared.gross if g.result in names]
    reasons += [f.sentence for f in compared.alarms if f.result in names]
    if reasons:
        cause = f" {compared.cause}." if compared.cause else ""
        known = [compared.known] if compared.known else []
        lines = [f"Not as good as the plan:{cause}", *reasons, *known]
        pytest.fail("\n".join(lines), pytrace=False)


def _questions(names: Callable[[bool], Iterator[str] | tuple[str, ...]]) -> pytest.MarkDecorator:
    """Return the parameters of a test that is asked by name, of full and of causal calls."""
    pairs = [(call, name) for call, is_causal in CALLS.items() for name in names(is_causal)]
    ids = [f"{name}, {call}" for call, name in pairs]
    return pytest.mark.parametrize(("call", "name"), pairs, ids=ids)


def _repeated(features: int, is_causal: bool, dtype: str) -> Inputs:
    return draw(
        "gaussian", tokens=TOKENS_AGAIN, features=features, is_causal=is_causal, dtype=dtype
    )


def _changes(is_causal: bool) -> Iterator[str]:
    """Yield the names of the questions of `check_invariance`."""
    yield SECOND_CALL
    yield from (change.name for change in changes(_repeated(8, is_causal, "bfloat16"), True))


@_questions(_changes)
def test_same_results(asked: Asked, call: str, name: str, request: pytest.FixtureRequest) -> None:
    """A kernel whose results depend on the batch, on other heads, or on keys that it cannot see."""
    cases = {case.name: case for case in _repetitions(asked, CALLS[call])}
    if name not in cases:
        pytest.skip("The kernel takes no mask.")
    _answer(cases[name], request)


@_questions(edge_names)
def test_edges(asked: Asked, call: str, name: str, request: pytest.FixtureRequest) -> None:
    """A kernel that is wrong for few tokens, extreme scores, infinities or NaN."""
    cases = check_edges(
        asked.kernel,
        asked.plan,
        features=asked.features,
        is_causal=CALLS[call],
        margins=Margins(),
        dtype=asked.dtype,
        names=(name,),
    )
    for case in cases:
        _answer(case, request)


@functools.cache
def _compared(asked: Asked, family: str, is_causal: bool) -> Comparison:
    """Return how a kernel compares with its plan; forward and gradients share it."""

    def drawn(kind: str, look: int) -> Inputs:
        return draw(
            kind,
            seed=look,
            batch=BATCH,
            tokens=TOKENS,
            heads=HEADS,
            features=asked.features,
            is_causal=is_causal,
            dtype=asked.dtype,
        )

    return compare(
        asked.kernel,
        asked.plan,
        (family,),
        drawn,
        draws=DRAWS,
        margins=Margins(),
        unit=UNITS[asked.dtype],
        false_alarm=FALSE_ALARM / (len(FAMILIES) * len(CALLS)),
        stop=False,
    )


@functools.cache
def _repetitions(asked: Asked, is_causal: bool) -> tuple[Case, ...]:
    """Return what a kernel gives if it is called again, or otherwise."""
    x = _repeated(asked.features, is_causal, asked.dtype)
    return tuple(
        check_invariance(asked.kernel, asked.plan, x, margins=Margins(), dtype=asked.dtype)
    )


def _answer(case: Case, request: pytest.FixtureRequest) -> None:
    """End a test with the answer of a case.

    A note becomes a property of the test, without `record_property`, which warns if JUnit files are
    written in pytest's usual format.
    """
    if case.answer is Answer.FAIL:
        pytest.fail(case.sentence, pytrace=False)
    if case.answer is Answer.NOT_RUN:
        pytest.skip(case.sentence)
    if case.answer is Answer.NOTE:
        request.node.user_properties.append((NOTE, case.sentence))
