"""Errors in parts, and the name that somebody may have meant."""

import pickle

import pytest

from roundscope.emu.errors import Problem, tidy_errors, unknown
from roundscope.emu.testing.foreign import ForeignError


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("kernel", "m:f", "takes no scale; add it"), "kernel=m:f: takes no scale; add it"),
        (Problem("", "'O='", "write SITE=FORMAT"), "'O=': write SITE=FORMAT"),
        (Problem("kernel", None, "returned None"), "kernel: returned None"),
        (ForeignError("kernel", "raised ValueError", is_refusal=True), "kernel: raised ValueError"),
    ],
)
def test_the_parts_make_the_message(problem, text):
    """A layer that prints other words than Python; an error that a worker cannot send home."""
    assert str(problem) == text
    again = pickle.loads(pickle.dumps(problem))
    assert str(again) == text and vars(again) == vars(problem)


def test_a_tidy_problem_keeps_its_parts():
    """A message that is rewritten as text because a name has control characters."""

    @tidy_errors
    def reading(name):
        raise Problem("kernel", name, "is none")

    with pytest.raises(Problem) as caught:
        reading("a\x1b[2J")
    assert (caught.value.value, caught.value.repair) == (r"a\x1b[2J", "is none")


def test_the_nearest_name():
    """A hint at a name that is far from what was written."""
    known = ("numpy", "xla", "pallas")
    assert unknown("engine", "XLA", known).startswith("unknown engine 'XLA'; did you mean 'xla'?")
    assert unknown("engine", "q", known, "or none") == (
        "unknown engine 'q'. Known: numpy xla pallas or none"
    )
