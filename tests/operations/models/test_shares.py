"""Shapley's value of games whose answer is known."""

from fractions import Fraction
from itertools import permutations

import pytest

from roundscope.operations.models.comparing.shares import shares


def by_all_orders(players, game):
    """The definition: the mean over all orders of what a player adds."""
    orders = list(permutations(players))
    return {
        p: sum(
            Fraction(game(frozenset(order[: order.index(p) + 1])))
            - Fraction(game(frozenset(order[: order.index(p)])))
            for order in orders
        )
        / len(orders)
        for p in players
    }


@pytest.mark.parametrize("players", ["a", "ab", "abc", "abcd"])
def test_the_mean_over_all_orders(players):
    def game(chosen):
        return sum(1 << players.index(p) for p in chosen) ** 2 / 16

    found, true = shares(players, game), by_all_orders(players, game)
    for p in players:
        assert found[p].share == pytest.approx(float(true[p]), abs=1e-12)
    assert sum(x.share for x in found.values()) == pytest.approx(game(frozenset(players)))


def test_many_players_add_up_and_few_sets_are_tried():
    tried = set()

    def game(chosen):
        tried.add(chosen)
        return len(chosen) ** 2 / 64

    found = shares("abcdefgh", game)
    assert sum(x.share for x in found.values()) == pytest.approx(1)
    assert len(tried) < 5 * 8
    assert found["a"].alone == 1 / 64 and found["a"].without == 1 - 49 / 64
