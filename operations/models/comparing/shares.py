"""How much of a change each of several players makes, by Shapley's value.

A game is a function of a set of players, such as groups of operations that are put into a run, and
`game(frozenset())` is 0.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from math import factorial
from typing import NamedTuple

Game = Callable[[frozenset[str]], float]
MOST = 4  # players up to which all of their sets are tried


class Share(NamedTuple):
    """What a player is worth.

    share    its part of the value of all, so that the parts of all players add up to it
    alone    the value of it alone
    without  what is lost where all but it play
    """

    share: float
    alone: float
    without: float


def shares(players: Sequence[str], game: Game) -> dict[str, Share]:
    """Return what each player is worth.

    Up to `MOST` players it is Shapley's value, the mean over all orders of what a player adds to
    those before it; of more, the mean over the order given and the reverse of it.

    Example:
        >>> worth = {"": 0.0, "a": 0.6, "b": 0.2, "ab": 1.0}
        >>> found = shares("ab", lambda s: worth["".join(sorted(s))])
        >>> {name: round(share.share, 2) for name, share in found.items()}
        {'a': 0.7, 'b': 0.3}
    """
    value = cache(game)
    everyone = frozenset(players)
    parts = _shapley if len(players) <= MOST else _both_ways
    return {
        name: Share(
            share=parts(players, name, value),
            alone=value(frozenset([name])),
            without=value(everyone) - value(everyone - {name}),
        )
        for name in players
    }


def _shapley(players: Sequence[str], name: str, value: Game) -> float:
    others, n = [p for p in players if p != name], len(players)
    total = 0.0
    for size in range(n):
        weight = factorial(size) * factorial(n - size - 1) / factorial(n)
        for each in map(frozenset, combinations(others, size)):
            total += weight * (value(each | {name}) - value(each))
    return total


def _both_ways(players: Sequence[str], name: str, value: Game) -> float:
    at = players.index(name)
    before, behind = frozenset(players[:at]), frozenset(players[at + 1 :])
    own = frozenset([name])
    return (value(before | own) - value(before) + value(behind | own) - value(behind)) / 2
