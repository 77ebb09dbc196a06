"""A slice of `make hostile`: hostile words, texts and calls, on a few verbs and functions.

It catches an error that Python or a library words, a wrong argument that is accepted, a refusal
after the work, and a file outside the folder that was named.
"""

import pytest

from tests.checks.hostile import grammar, words
from tests.checks.hostile.verdict import Asked

pytest.importorskip("torch")  # whose tensors are among the calls

from tests.checks.hostile import calls

VERBS = ("formats", "explain", "sites", "prepare", "watch", "export", "report")
CALLS = (
    "attend(",
    "round_to(",
    "reseeded(",
    "head_plans(",
    "Injection(",
    "Record(",
    "unpack(",
    "draw(",
    "assert_max_ulp(",
    "torch.attention(",
    "jax.tap(",
)


def faults(verdicts):
    return [f"{v.case}: {v.fault}: {v.answer}" for v in verdicts if v.fault]


@pytest.mark.parametrize("verb", VERBS)
def test_hostile_words_are_refused(verb):
    assert faults(words.verdicts(Asked(f"{verb}: "))) == []


def test_hostile_texts_are_read_or_refused():
    assert faults(grammar.verdicts()) == []


@pytest.mark.parametrize("call", CALLS)
def test_hostile_calls_are_refused(call):
    assert faults(v for v in calls.verdicts(Asked(call)) if v.case.startswith(call)) == []
