"""Calls of the NumPy engine whose tiles run as compiled programs give the bits of those without."""

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from roundscope import attend, examine
from roundscope.attention.engines import fused
from roundscope.attention.engines.fused import Heads, arrays
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.emu.backends.fused.graph import I64, Graph
from tests.checks.fuzz_programs import differences, fuzz, traced

USUAL = ("fa2", "fa2-bf16", "fa3-fp8", "cudnn", "qiu-yao")
OFTEN = ("fa2", "fa3-fp8", "qiu-yao")
ALL = [
    pytest.param(name, marks=() if name in OFTEN else (pytest.mark.thorough,))
    for name in (*PRESETS, *TWINS)
]
UNCOVERED = ("mxfp8-attention", "gpt-oss", "sage-int8")  # blocks, the gradient of a maximum


@pytest.fixture(autouse=True)
def no_programs_of_other_tests() -> Iterator[None]:
    fused.programs.cache_clear()
    yield
    fused.programs.cache_clear()


def _made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return a list that will tell the step of each program asked for, and if it was made."""
    made: list[tuple[str, bool]] = []
    own = fused.Programs._made

    def told(self: Any, step: Any, *args: Any) -> Any:
        made.append((step.__name__, (found := own(self, step, *args)) is not None))
        return found

    monkeypatch.setattr(fused.Programs, "_made", told)
    return made


@pytest.mark.parametrize("plan", ALL)
def test_presets(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made(monkeypatch)
    case = {"plan": plan, "shape": (1, 40, 48, 2, 1, 16, 24), "seed": 5, "tiles": (16, 16)}
    if plan == "mxfp8-attention":  # its blocks of 32 divide features and tiles
        case |= {"shape": (1, 40, 64, 2, 1, 32, 32), "tiles": (32, 32)}
    for more in ({"record": None}, {"is_causal": True}):
        for kind in ("normal", "huge", "nan"):
            assert not differences(case | more, kind)
    of_tiles = [is_made for name, is_made in made if name == "_step"]
    assert all(of_tiles) or plan in UNCOVERED
    assert of_tiles or Plan.preset(plan).key_scales  # for which no program is asked


@pytest.mark.thorough
@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=[] if plan == "fa2" else pytest.mark.thorough) for plan in USUAL],
)
def test_kept_events_need_no_other_code(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events that a page shows are kept by programs, also in tiles that are cut."""
    made = _made(monkeypatch)
    case = {"plan": plan, "shape": (1, 40, 48, 2, 1, 16, 24), "seed": 5, "tiles": (16, 16)}
    record = {"away": True, "events": ("P", "O", "OUT", "EXP", "ALPHA", "P_B")}
    for more in ({}, {"is_causal": True}):
        for kind in ("normal", "huge", "nan"):
            assert not differences(case | more | {"record": record}, kind)
    assert len(made) > 8 and all(is_made for _, is_made in made)


def test_random_calls() -> None:
    assert fuzz(27, 6) is None


@pytest.mark.thorough
@pytest.mark.parametrize("plan", ["fa2-bf16", "fa2"])
def test_heads_in_step(plan: str) -> None:
    """Four query heads share two key heads; one head meets NaN, so its tiles have no program."""
    case = {"plan": plan, "shape": (1, 20, 24, 4, 2, 8, 8), "seed": 3, "tiles": (16, 16)}
    assert not differences(case, "normal")
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(1, 20, heads, 8)).astype("f4") for heads in (4, 2, 2))
    v[0, 3, 1, 2] = math.nan
    found = []
    for least in (0, math.inf):
        with fused.from_scores(least):
            found.append(examine(q, k, v, q, plan=plan, engine="numpy", block_q=16, block_k=16))
    assert np.isnan(found[0].out[0, :, 2:, 2]).any() and not np.isnan(found[0].out[0, :, :2]).any()
    assert not traced(*found)
    for name in ("out", "dq", "dk", "dv"):
        np.testing.assert_array_equal(*(getattr(x, name) for x in found), strict=True)


def test_heads_look_like_one_head() -> None:
    """Each head of the result is what NumPy returns for that head."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2))
    row, one = rng.normal(size=(4, 1)), rng.normal(size=2) > 0
    calls: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a[1:, 0],
        lambda a, b: a[::-1].reshape(2, -1),
        lambda a, b: (b > -math.inf) & one,
        lambda a, b: one | (b > 0),
        lambda a, b: row * b,
        lambda a, b: np.zeros_like(a),
        lambda a, b: np.where(one, a, b),
        lambda a, b: np.stack([b, b + 1, y[0]]),
    ]
    for call in calls:
        found = arrays(call(Heads(x), Heads(y)), 3)
        want = np.stack([call(a, b) for a, b in zip(x, y, strict=True)])
        np.testing.assert_array_equal(found, want, strict=True)
        assert found.flags.c_contiguous


def test_programs_are_of_one_shape() -> None:
    """The setup of a call does not know the features of its tensors."""
    for features in (16, 8):
        case = {"plan": "fa2-bf16", "shape": (1, 16, 16, 1, 1, features, features), "seed": 1}
        assert not differences(case, "normal")


def test_only_calls_with_many_scores_use_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made(monkeypatch)
    rng = np.random.default_rng(1)
    few, many = (rng.normal(size=(1, t, 1, 16)).astype("f4") for t in (256, 512))
    attend(few, few, few, plan="fa2-bf16")
    assert made == []
    attend(many, many, many, plan="fa2-bf16")
    assert [name for name, is_made in made if is_made].count("_step") == 1


def test_injections_run_without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made(monkeypatch)
    x = np.random.default_rng(2).normal(size=(1, 32, 1, 16)).astype("f4")
    with fused.from_scores(0):
        examine(x, x, x, plan="fa2-bf16", inject="P:ulps=1")
    assert made == []
    with fused.from_scores(math.inf):
        examine(x, x, x, plan="fa2-bf16")
    assert made == []


def test_comparisons_of_integers_within_bounds() -> None:
    """A comparison is known if it has one result for all integers within the bounds."""
    ends = [(low, high) for low in range(-2, 3) for high in range(low, 3)]
    relations = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    for (a, b), relation in itertools.product(itertools.product(ends, ends), relations):
        graph = Graph()
        x, y = (graph.node("input", (), (1,), I64, n, ends) for n, ends in enumerate((a, b)))
        pairs = itertools.product(range(a[0], a[1] + 1), range(b[0], b[1] + 1))
        results = {relation(*pair) for pair in pairs}
        found = relation(x, y)
        if found.is_constant:
            assert results == {found.data}
        elif relation not in (operator.eq, operator.ne):
            assert len(results) == 2
