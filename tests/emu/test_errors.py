"""Errors in parts, and the name that somebody may have meant."""

import pickle

import pytest

from roundscope.attention import Plan
from roundscope.emu.errors import MEANT, Problem, tidy_errors, unknown
from roundscope.emu.formats.format import NAMED
from roundscope.emu.roundings.modes import Overflow, RoundingMode, rounding
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


FORMATS = ("fp64", "fp32", "e5m2", "e4m3fn", "e2m1fn", "mxfp8_e4m3", "mxfp8_e5m2")
MODES = ("ties-to-even", "toward-zero", "stochastic", "inf", "saturate")
PLANS = ("exact", "fa2-bf16", "fa3-fp8", "fa4-fp8-offset4", "cudnn-mxfp8", "fa2")


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("fp8", FORMATS, "did you mean 'e4m3fn' or 'e5m2'?"),
        ("FP4", FORMATS, "did you mean 'e2m1fn'?"),
        ("mxfp8", FORMATS, "did you mean 'mxfp8_e4m3' or 'mxfp8_e5m2'?"),
        ("trunc", MODES, "did you mean 'toward-zero'?"),
        ("sr", MODES, "did you mean 'stochastic'?"),
        ("fp8", PLANS, "did you mean 'fa3-fp8', 'fa4-fp8-offset4' or 'cudnn-mxfp8'?"),
        ("mxfp8", PLANS, "did you mean 'cudnn-mxfp8'?"),
    ],
)
def test_a_word_of_another_library_leads_to_its_family(name, known, hint):
    """'fp8' that is told to be fp64, because their letters are alike."""
    assert hint in unknown("name", name, known)


def test_every_word_of_other_libraries_stands_for_something():
    """A word that leads to a name which nothing has."""
    names = {*NAMED, *RoundingMode, *Overflow}
    assert {n for meant in MEANT.values() for n in meant} <= names
    assert not set(MEANT) & names


@pytest.mark.parametrize(
    ("text", "hint"),
    [("fp8", "'e4m3fn' or 'e5m2'"), ("bf16:trunc", "'toward-zero'"), ("mxfp8", "'mxfp8_e4m3'")],
)
def test_every_reader_of_roundings_suggests_alike(text, hint):
    """A hint that only one of the readers has."""
    for read in (rounding, lambda words: Plan.preset("fa2-bf16").changed(f"P={words}")):
        with pytest.raises(ValueError, match=f"did you mean {hint}"):
            read(text)
