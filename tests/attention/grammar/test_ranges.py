"""Numbers and ranges in words, against Python's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundscope.attention.grammar.ranges import is_range, numbers, selection, spelled

SMALL = st.integers(0, 40)


@given(SMALL, SMALL, st.one_of(st.none(), st.integers(-5, 5)))
def test_a_colon_is_python_s_range(first, stop, step):
    """A stop that is included, a step that is lost, an empty range that passes."""
    text = f"{first}:{stop}" + ("" if step is None else f":{step}")
    wanted = range(first, stop, 1 if step is None else step) if step != 0 else ()
    if not wanted:
        with pytest.raises(ValueError, match="step is 0" if step == 0 else "is empty"):
            numbers(text)
    else:
        assert numbers(text) == tuple(wanted) and selection(text) == wanted and is_range(text)


@given(SMALL, SMALL)
def test_a_dash_has_both_ends(first, last):
    """The older spelling read as Python's, in which published commands would lose a seed."""
    if last < first:
        with pytest.raises(ValueError, match="smaller number first"):
            numbers(f"{first}-{last}")
    else:
        assert numbers(f"{first}-{last}") == tuple(range(first, last + 1))


def test_lists_join_all_of_these():
    """A part that ends the list, or that takes the place of another."""
    assert numbers("7,0:3,5-6,10:4:-3,:2") == (7, 0, 1, 2, 5, 6, 10, 7, 0, 1)
    assert (
        numbers("3") == (3,)
        and selection("3") == range(3, 4)
        and selection("1,2") == (1, 2)
        and not is_range("3")
    )


@given(st.sets(SMALL, min_size=1))
def test_numbers_are_spelled_as_they_are_read(chosen):
    """A run that loses its last number in words."""
    assert (
        set(numbers(spelled(tuple(chosen)))) == chosen
        and spelled(range(0, 64)) == "0:64"
        and spelled(3) == "3"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'': no whole number from 0"),
        ("x", "'x': no whole number"),
        ("-3", "'-3': no whole number"),
        ("1,", "'': no whole number"),
        ("1.5", "'1.5'"),
        ("²", "'²'"),
        ("0:x", "'0:x': write a range as a:b"),
        ("0:", "'0:': write a range as a:b"),
        ("-3:5", "'-3:5': write a range"),
        ("0:1:2:3", "write a range"),
        ("0:9999999", "has 9999999 values"),
        ("1-2-3", "'1-2-3'"),
        ("0:5:0", "the step is 0"),
        ("5:5", "the stop is left out, so that 0:10 is 0 to 9"),
    ],
)
def test_what_is_none_is_named(text, said):
    """A traceback, or digits of another script taken for numbers."""
    with pytest.raises(ValueError) as error:
        numbers(text)
    assert said in str(error.value) and "\n" not in str(error.value)
