"""`roundscope accumulators --order`: trees of sums that we know, and functions that have none."""

import json

import numpy as np
import pytest

from roundscope.emu import Accumulator, Order, dot
from roundscope.experiments.cli import main as cli
from roundscope.experiments.questions.tensor_cores import study as order


def by(acc):
    return lambda a, b: dot(a, b, acc)


@pytest.mark.parametrize(
    ("acc", "said"),
    [
        (Accumulator(), "ascending"),
        (Accumulator(order=Order.PAIRWISE), "pairwise"),
        (Accumulator(order=Order.HALVES), "halves"),
        (Accumulator(order=Order.CHUNKED, chunk=16), "chunks of 16, each ascending"),
        (
            Accumulator.tensor_core("hopper", "bf16"),
            "16 and the sum so far at once, ascending: a tensor core",
        ),
        (
            Accumulator.tensor_core("ampere", "fp16"),
            "8 and the sum so far at once, ascending: a tensor core",
        ),
    ],
)
def test_our_own_accumulators_are_found(acc, said):
    """A subtree's size off by one, or children in the wrong node."""
    assert order.told(by(acc)) == said


def test_another_tree_is_outlined():
    """(chunk 0 + chunk 1) + chunk 2 of 24, 24 and 16 terms."""
    assert (
        order.told(by(Accumulator(order=Order.CHUNKED, chunk=24)))
        == "another tree: ((((...) 23) ((...) 47)) (((...) 62) 63))"
    )


def test_an_order_by_hand():
    """((0 3) (1 2)) + 4, by an addition of our own."""

    def product(a, b):
        x = (a[:, :, None] * b[None, :, :]).astype(np.float32)
        return ((x[:, 0] + x[:, 3]) + (x[:, 1] + x[:, 2])) + x[:, 4]

    found = order.tree_of(order.sizes(product, 5))
    assert found == (((0, 3), (1, 2)), 4)
    assert order.outline(found) == "(((0 3) (1 2)) 4)"
    assert order.outline((((0, 1, 2, 3), 4, 5, 6, 7), 8)) == "(((0..3) 4..7) 8)"


def test_no_tree_no_answer():
    """An exact sum loses nothing; one that adds in another order each time has sizes of no tree."""
    assert order.told(by(Accumulator(order=Order.EXACT))).startswith("not found")
    assert "no whole number" in order.told(lambda a, b: a @ b * 0.7)
    sizes = order.sizes(by(Accumulator()), 8)
    sizes[1, 2] = sizes[2, 1] = 7
    with pytest.raises(ValueError, match="those of no tree"):
        order.tree_of(sizes)


def test_the_command_names_every_product(capsys):
    with pytest.raises(SystemExit):
        cli.main(["accumulators", "--order", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (
        data["terms"] == 64 and len(data["ways"]) == 5 and all(way["order"] for way in data["ways"])
    )
