"""ddmin against brute force, and the bookkeeping of its tests."""

import itertools

import numpy as np
import pytest

from roundscope.tools.diagnose.replay.replayer import Fate, Outcome
from roundscope.tools.diagnose.search import (
    Replays,
    ddmin,
    halves,
    others,
    split,
    subsets,
)

N = 9


def asked(survives):
    """ask() of a predicate on sets, and the list of all questions."""
    questions = []

    def ask(sets, spare):
        questions.append(sets)
        return [survives(frozenset(x)) for x in sets]

    return ask, questions


@pytest.mark.parametrize("hidden", [{0}, {8}, {3, 4}, {0, 8}, {1, 4, 7}, set(range(N))])
def test_the_hidden_set_is_found(hidden):
    """Catches a search that stops early, drops a piece it needs, or returns more than what is
    needed.
    """
    ask, _ = asked(lambda x: hidden <= x)
    assert set(ddmin(range(N), ask)) == hidden


def test_one_culprit_is_found_by_bisection():
    """Catches a search that asks for every element in turn: 64 events take 6 rounds of two
    halves.
    """
    ask, questions = asked(lambda x: 37 in x)
    assert ddmin(range(64), ask) == [37]
    assert len(questions) == 6 and all(len(sets) == 2 for sets in questions)


def test_without_any_order_in_the_outcomes_no_element_can_be_left_out():
    """Catches a search that needs monotone outcomes: a larger set may fail where a smaller one
    survives.
    """
    rng = np.random.default_rng(4)
    for _ in range(40):
        table = {
            frozenset(c): bool(rng.random() < 0.3)
            for k in range(N + 1)
            for c in itertools.combinations(range(N), k)
        }
        table |= {frozenset(): False, frozenset(range(N)): True}
        ask, _ = asked(table.__getitem__)
        found = frozenset(ddmin(range(N), ask))
        assert table[found] and not any(table[found - {x}] for x in found)


def test_pieces_and_sets():
    """Catches pieces that overlap or lose elements, and a promise of all sets where they are too
    many.
    """
    for parts in range(1, N + 1):
        pieces = split(range(N), parts)
        assert [x for p in pieces for x in p] == list(range(N)) and {len(p) for p in pieces} <= {
            N // parts,
            -(-N // parts),
        }
    assert halves([[0, 1], [2, 3, 4]]) == [[0], [1], [2, 3], [4], [2], [3]]
    assert (
        len(subsets(range(4), 14)) == 14 and subsets(range(4), 13) == [] and subsets([], 14) == []
    )


def test_controls_are_other_sets_of_the_same_size():
    """Catches controls that contain the set itself or repeat, and an endless draw where there are
    few.
    """
    drawn = others(range(20), {1, 2, 3}, 8)
    assert len(set(drawn)) == 8 and all(len(x) == 3 and x != {1, 2, 3} for x in drawn)
    assert set(others("abc", "a", 8)) == {frozenset("b"), frozenset("c")}
    assert others("a", "a", 8) == []


def outcome(units, *failed):
    return Outcome(
        units=frozenset(units), fates=tuple(Fate(failed=f, losses=np.zeros(1)) for f in failed)
    )


def test_outcomes_are_kept_and_free_places_are_used():
    """Catches a set that is replayed twice, and launches whose free places stay empty or
    overflow.
    """
    launches = []

    def replay(sets):
        launches.append(sets)
        return [outcome(x, None if 1 in x else 5) for x in sets]

    replays = Replays(replay=replay, width=4)
    assert replays.ask([{1}, {2}], spare=[{2}, {3}, {4}, {5}]) == [True, False]
    assert launches == [[{1}, {2}, {3}, {4}]]
    assert replays.ask([{3}, {1}]) == [False, True] and len(launches) == 1
    blocks = {"a": frozenset({1, 2}), "b": frozenset({3})}
    assert replays.of_blocks(blocks)([["a", "b"], ["b"]], []) == [True, False]
    assert launches[1] == [{1, 2, 3}]


def test_one_repeat_that_fails_is_enough():
    """Catches a set that survives by luck in most of its repeats passing for the cause: many sets
    are asked for.
    """
    assert outcome("a", None, None, None).survives and not outcome("a", None, 3, None).survives


def test_ties_and_turns():
    """Catches other sets as good as the one found, and more exact events doing worse, going
    unsaid.
    """
    seen = [
        outcome("", 9),
        outcome("a", None),
        outcome("b", None),
        outcome("ab", 7),
        outcome("abc", None),
        outcome("c", 8),
    ]
    replays = Replays(replay=lambda sets: [], width=1, outcomes={o.units: o for o in seen})
    assert [o.units for o in replays.ties(frozenset("a"))] == [{"b"}]
    assert {(a.units, b.units) for a, b in replays.turns()} == {
        (frozenset("a"), frozenset("ab")),
        (frozenset("b"), frozenset("ab")),
    }
