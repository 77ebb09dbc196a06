"""Random calls of the engines, a slice of `make fuzz`; what it has found; and that it finds.

A new difference comes with a literal to paste into REPRODUCERS.
"""

import ast
from dataclasses import replace

import numpy as np
import pytest

from roundscope import Plan, examine
from tests.checks import fuzz_engines
from tests.checks.fuzz_engines import Difference, are_close, checked, fuzz, outcome
from tests.some import some

ONE, TWO = (1, 1, 1, 1, 1, 1, 1), (2, 1, 1, 1, 1, 1, 1)
REPRODUCERS = [
    # keys whose elements are stochastic had no random bits where their scales were found again
    {
        "plan": "sage-int8 K=int8[8x16]:stochastic Q=int4[16x16]",
        "shape": (1, 9, 11, 1, 1, 16, 8),
        "seed": 6,
        "tiles": (16, 8),
        "record": None,
        "kinds": ["few"],
    },
    # a tensor of one number is its own maximum, so XLA saw through the zero that hides 0 + -0
    {"plan": "exact", "shape": ONE, "seed": 0, "record": None, "kinds": ["few"]},
    # a softcap that binary32 does not hold was an array under XLA where a number was needed
    {"plan": "fa4-bf16", "shape": ONE, "seed": 0, "softcap": 0.3, "record": None, "kinds": ["few"]},
    # so was the scale, where plans are data and log2 e enters it
    {"plan": ["fa2", "fa2 O=bf16"], "shape": TWO, "seed": 0, "record": None, "kinds": ["few"]},
    # NumPy warned of squares of errors that are infinite only when those of tiles are added
    {
        "plan": "exact backward=e5m2 X.mode=to-odd",
        "shape": (1, 7, 1, 1, 1, 8, 8),
        "seed": 388,
        "tiles": (2, 1),
        "is_causal": True,
        "record": {"steps": ("DELTA",)},
        "kinds": ["wide"],
    },
]
SUBNORMAL = (
    "a sink 709 above its scores: 1 / l is subnormal in binary64, and XLA on a CPU flushes it "
    "(docs/notes/decisions.md, 2026-11-20, the carrier)"
)
SIGN_OF_ZERO = (
    "which of 0 and -0 is the larger is left to the libraries: M may be -0 in one engine and 0 in "
    "the other, and so may CM and X; exp(X), L and every result have the same bits"
)
ZEROS = {"plan": "fa2-bf16 S=e4m3fn", "shape": (1, 4, 3, 1, 1, 1, 1), "seed": 11, "kinds": ["tiny"]}


def known(case, reason):
    """A parameter of a test that fails for a reason."""
    mark = pytest.mark.xfail(reason=reason, strict=True, raises=Difference)
    return pytest.param(case, marks=mark, id=reason.partition(":")[0])


ACCEPTED = [
    known(
        {"plan": "exact", "shape": ONE, "seed": 1, "sinks": "huge", "record": None},
        SUBNORMAL,
    ),
    known(ZEROS | {"record": {"events": ("M",)}, "backward": False}, SIGN_OF_ZERO),
]


def test_the_sign_of_a_maximum_of_zeros_is_in_no_result_and_no_count():
    checked(ZEROS | {"backward": False})


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_known_and_is_not_drawn(case):
    checked(case)


@pytest.mark.parametrize("case", REPRODUCERS, ids=lambda case: str(case["plan"]))
def test_what_was_found_stays_repaired(case):
    checked(case)


@pytest.mark.parametrize("how", ["lanes", "tile-lanes"])
def test_lanes_are_refused_where_no_row_keeps_them(how):
    """Found as errors inside: of whole rows, and of a first tile that divides by l as it is."""
    with pytest.raises(ValueError, match=f"row_sum={how}.*use row_sum=plain"):
        Plan.preset("fa2-bf16").changed(f"row_sum={how}", "unfused=true")
    with pytest.raises(ValueError, match=f"row_sum={how}.*use row_sum=plain"):
        Plan.preset("fa2-bf16").changed("kept_state=true first_tile_apart=true", f"row_sum={how}")


@pytest.mark.parametrize(
    ("first", "count"),
    [(3, 2), *(pytest.param(n, 4, marks=pytest.mark.thorough) for n in (3, 4))],
)
def test_random_calls_of_the_engines(first, count):
    """A few configurations that stay the same, each with every kind of numbers."""
    assert fuzz(first, count) is None


def test_random_calls_of_the_judge():
    assert fuzz(0, 8, has_xla=False) is None


def flipped(found, name):
    """A result with the last bit of its last number flipped, or with a count of S that is 1 off."""
    if name == "trace":
        own = found.trace.stats["S"]
        stats = found.trace.stats | {"S": replace(own, ties=own.ties + 1)}
        return replace(found, trace=replace(found.trace, stats=stats))
    array = np.array(getattr(found, name))
    array.view(np.uint32 if array.dtype == np.float32 else np.uint64).reshape(-1)[-1] ^= 1
    return replace(found, **{name: array})


@pytest.mark.parametrize("name", some(["out", "lse", "trace"], every=3))
def test_one_bit_in_one_call_is_found_and_shrunk(monkeypatch, name):
    """In calls of two queries or more and three features or more, in the place of XLA's result."""

    def wrong(q, *arrays, engine, record, **call):
        record = fuzz_engines.record_of({}) if name == "trace" else record
        found = examine(q, *arrays, engine="numpy", record=record, **call)
        is_hit = engine == "xla" and q.shape[1] >= 2 and q.shape[3] >= 3
        return flipped(found, name) if is_hit else found

    monkeypatch.setattr(fuzz_engines, "examine", wrong)
    monkeypatch.setattr(fuzz_engines, "KINDS", ("normal",))
    told, literal = fuzz(0, 40).split("\n")
    case = ast.literal_eval(literal.strip().removesuffix(","))
    assert told == ("ties of S" if name == "trace" else f"{name} of XLA")
    assert case["shape"] == (1, 2, 1, 1, 1, 3, 3) and set(case["plan"].split()) == {"exact"}
    with pytest.raises(Difference):
        checked(case)


def test_what_only_one_engine_refuses_is_a_difference(monkeypatch):
    def refusing(*arrays, engine, **call):
        if engine == "xla":
            raise ValueError("not this one")
        return examine(*arrays, engine=engine, **call)

    monkeypatch.setattr(fuzz_engines, "examine", refusing)
    with pytest.raises(Difference, match="XLA: ValueError: not this one"):
        checked(REPRODUCERS[0])


def test_other_errors_are_not_taken_for_refusals():
    with pytest.raises(KeyError):
        outcome(lambda: {}["x"])


def test_sums_that_overflow_alike_are_the_same_and_others_are_not():
    assert are_close(np.array([np.inf, 1.0]), np.array([np.inf, 1.0 + 1e-13]), 1.0)
    assert not are_close(np.array([np.nan]), np.array([1.0]), 1.0)
    assert not are_close(np.array([np.inf]), np.array([1.0]), np.inf)
    assert not are_close(np.zeros(2), np.zeros(3), 1.0)
