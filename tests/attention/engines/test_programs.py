"""Calls of the NumPy engine whose tiles run as compiled programs give the bits of those without."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from roundscope import attend, examine
from roundscope.attention.engines import fused
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from tests.checks.fuzz_programs import differences, fuzz

USUAL = ("fa2", "fa2-bf16", "fa3-fp8", "cudnn", "qiu-yao")
ALL = [
    pytest.param(name, marks=() if name in USUAL else (pytest.mark.thorough,))
    for name in (*PRESETS, *TWINS)
]
UNCOVERED = ("mxfp8-attention", "gpt-oss")  # block formats, and the gradient of a maximum


@pytest.fixture(autouse=True)
def no_programs_of_other_tests() -> Iterator[None]:
    fused.programs.cache_clear()
    yield
    fused.programs.cache_clear()


def _made(plan: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that will tell, of each program that is asked for, whether it was made."""
    made: list[bool] = []
    own = fused.Programs._made

    def told(self: Any, *args: Any) -> Any:
        made.append((found := own(self, *args)) is not None)
        return found

    monkeypatch.setattr(fused.Programs, "_made", told)
    return made


@pytest.mark.parametrize("plan", ALL)
def test_presets(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made(plan, monkeypatch)
    case = {"plan": plan, "shape": (1, 40, 48, 2, 1, 16, 24), "seed": 5, "tiles": (16, 16)}
    for more in ({"record": None}, {"is_causal": True}):
        for kind in ("normal", "huge", "nan"):
            assert not differences(case | more, kind)
    assert all(made) or plan in UNCOVERED
    assert made


def test_random_calls() -> None:
    assert fuzz(27, 6) is None


def test_programs_are_of_one_shape() -> None:
    """The setup of a call does not know the features of its tensors."""
    for features in (16, 8):
        case = {"plan": "fa2-bf16", "shape": (1, 16, 16, 1, 1, features, features), "seed": 1}
        assert not differences(case, "normal")


def test_only_calls_with_many_scores_use_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made("fa2-bf16", monkeypatch)
    rng = np.random.default_rng(1)
    few, many = (rng.normal(size=(1, t, 1, 16)).astype("f4") for t in (256, 512))
    attend(few, few, few, plan="fa2-bf16")
    assert made == []
    attend(many, many, many, plan="fa2-bf16")
    assert made == [True]


def test_injections_run_without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _made("fa2-bf16", monkeypatch)
    x = np.random.default_rng(2).normal(size=(1, 32, 1, 16)).astype("f4")
    with fused.from_scores(0):
        examine(x, x, x, plan="fa2-bf16", inject="P:ulps=1")
    assert made == []
    with fused.from_scores(math.inf):
        examine(x, x, x, plan="fa2-bf16")
    assert made == []
