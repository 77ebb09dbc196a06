"""Data of others, compared with a shape."""

import math

import pytest

from roundscope.emu.plain_data import COUNT, misfit, parsed


@pytest.mark.parametrize(
    ("found", "shape", "said"),
    [
        (True, int, "it is true, not a whole number"),
        (1 << 63, int, "not a whole number"),
        (10**400, float, "not a number"),
        (-1, COUNT, "it is -1, not a whole number from 0"),
        (None, (float, "inf"), "it is null, not a number or 'inf'"),
        ({"a": [1, "x"]}, {"a": [int]}, 'a[1] is "x", not a whole number'),
        ({"a": {}}, {str: [int]}, "a is an object, not a list"),
        ({}, {"a": object}, "a is missing"),
        ({"alarm": {"step": "x"}}, {"alarm": (None, {"step": int})}, 'alarm.step is "x"'),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(found, shape, said):
    """A value of another type that passes, or is refused without its place."""
    assert said in str(misfit(found, shape))


@pytest.mark.parametrize(
    ("found", "shape"),
    [(1, float), (math.nan, float), ("inf", (float, "inf")), ([], [int]), ({"b": 1}, {}),
     ({"a": 1, "b": "x"}, {"a": int}), ([[1, "x"]], [[(int, str)]]), ({"x": []}, {str: list})],
)  # fmt: skip
def test_what_fits(found, shape):
    """Our own data refused."""
    assert misfit(found, shape) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("[" * 100_000, "too deeply"), ("1" * 5000, "thousands of digits"), (b"\xff", "UTF-8")],
)
def test_texts_that_are_no_data(text, said):
    """A RecursionError, or Python's own words."""
    with pytest.raises(ValueError, match=said):
        parsed(text)
