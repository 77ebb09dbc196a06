"""What `compare` says of random small runs in which some operations are changed: these are made
here and no others, and the shares are those of the runs themselves.

A run is a graph of twelve operations on 3 x 5 numbers. The truth is computed here, in a loop over
the operations: no replay, no alignment.
"""

from itertools import permutations

import numpy as np
import pytest
import torch

from roundscope.operations.models.comparing.tapes import compare_tapes
from roundscope.operations.models.tape import Entry, Ref, Tape, Value
from roundscope.operations.models.torch.arrays import TensorArrays

SHAPE, COUNT = (3, 5), 12
WEIGHT = torch.linspace(0.7, 1.3, SHAPE[1])


def from_the_end(x):
    return x.flip(-1).cumsum(-1).flip(-1)[:, :1]


# operation -> how the first run computes it, and how the second one does where it is changed
ARITHMETIC = {
    "center": (lambda x, y: x - x.cumsum(-1)[:, -1:] / 5, lambda x, y: x - from_the_end(x) / 5),
    "scale": (lambda x, y: x * WEIGHT, lambda x, y: x.bfloat16().float() * WEIGHT),
    "mix": (
        lambda x, y: 0.3 * x + y,
        lambda x, y: (0.3 * x.double() + y.double()).float(),
    ),
    "clip": (lambda x, y: x.clamp(-2.0, 2.0) + 0.1 * y, lambda x, y: x.clamp(-1.0, 2.0) + 0.1 * y),
}


def drawn(seed):
    """A graph: of each operation its name and the two values that it reads, and which change."""
    rng = np.random.default_rng(seed)
    graph = [
        (
            str(rng.choice(list(ARITHMETIC))),
            max(0, n - int(rng.integers(2))),
            int(rng.integers(n + 1)),
        )
        for n in range(COUNT)
    ]
    changed = {int(n) for n in np.flatnonzero(rng.random(COUNT) < rng.choice([0.1, 0.3, 0.6]))}
    return graph, changed, torch.from_numpy(rng.normal(size=SHAPE).astype(np.float32))


def computed(graph, changed, x):
    """All values of a run: its input, and the results of its operations."""
    values = [x]
    for n, (name, one, two) in enumerate(graph):
        values.append(ARITHMETIC[name][n in changed](values[one], values[two]))
    return values


def tape_of(graph, changed, x):
    arrays = computed(graph, changed, x)
    return Tape(
        entries=[
            Entry(
                number=n,
                operation=name,
                function=f"{name} {'changed' if n in changed else 'as it was'}",
                module=f"layers.{n}",
                step=0,
                arguments=((Ref(one), Ref(two)), {}),
                outputs=(n + 1,),
            )
            for n, (name, one, two) in enumerate(graph)
        ],
        values=[
            Value(name="" if n else "input 0", dtype="float32", shape=SHAPE, array=y)
            for n, y in enumerate(arrays)
        ],
        output=COUNT,
        runners={
            n: lambda args, kwargs, f=ARITHMETIC[name][n in changed]: [f(*args)]
            for n, (name, _, _) in enumerate(graph)
        },
        arrays=TensorArrays(),
    )


def same(x, y):
    """Of numbers: NaN is equal to NaN, and 0 is not equal to -0."""
    x, y = (np.where(np.isnan(z), np.float32(np.nan), z).view(np.int32) for z in (x, y))
    return np.array_equal(x, y)


def expected(graph, changed, x):
    """What is made of each operation, from its values in both runs."""
    a, b = computed(graph, set(), x), computed(graph, changed, x)
    found = []
    for n, (name, one, two) in enumerate(graph):
        again = ARITHMETIC[name][0](b[one], b[two])
        if not same(again.numpy(), b[n + 1].numpy()):
            found.append("here")
        else:
            found.append("equal" if same(a[n + 1].numpy(), b[n + 1].numpy()) else "inherited")
    return found


def compared(graph, changed, x):
    return compare_tapes(tape_of(graph, set(), x), tape_of(graph, changed, x))


def made(found):
    return [row.made for row in found.rows if row.number < COUNT]


@pytest.mark.parametrize("seed", range(24))
def test_made_here_and_its_shares(seed):
    graph, changed, x = drawn(seed)
    found = compared(graph, changed, x)
    assert made(found) == expected(graph, changed, x)
    rows = {group.name: set(group.rows) for group in found.groups}
    assert set().union(*rows.values()) == {n for n, m in enumerate(made(found)) if m == "here"}

    def end(names):
        swapped = set().union(*(rows[name] for name in names))
        return computed(graph, swapped, x)[-1].double().numpy().reshape(-1)

    gap = computed(graph, changed, x)[-1].double().numpy().reshape(-1) - end(())
    assert np.array_equal(found.gap, gap)
    assert found.equal == (set(made(found)) <= {"equal"})
    if not gap.any():
        return
    value = {}
    for order in permutations(rows):
        for n in range(len(order) + 1):
            names = frozenset(order[:n])
            value[names] = float((end(names) - end(())) @ gap / (gap @ gap))
    largest = max(map(abs, value.values()))
    least = 2.0**-52 * 2 ** len(rows) * largest  # sums of 2^groups numbers of binary64
    for group in found.groups:
        orders = [order[: order.index(group.name)] for order in permutations(rows)]
        added = [value[frozenset((*o, group.name))] - value[frozenset(o)] for o in orders]
        assert group.share == pytest.approx(np.mean(added), abs=len(orders) * least)
        assert group.alone == pytest.approx(value[frozenset([group.name])], abs=least)
    assert abs(found.left) <= least
    assert sum(group.share for group in found.groups) == pytest.approx(1.0, abs=len(rows) * least)


@pytest.mark.parametrize("planted", [np.nan, np.inf, -np.inf, -0.0])
@pytest.mark.parametrize("seed", range(6))
def test_of_numbers_that_are_not_finite(seed, planted):
    """A difference that a NaN hides, and equal NaN or infinities that are told as one."""
    graph, changed, x = drawn(100 + seed)
    x[1, 2] = planted
    found = compared(graph, changed, x)
    assert made(found) == expected(graph, changed, x)
    equal = compared(graph, set(), x)
    assert equal.equal and not equal.gap.any() and not equal.groups


def test_the_graphs_have_what_is_asked():
    """Graphs in which nothing is changed, or all that is changed shows."""
    told = [expected(*drawn(seed)) for seed in range(24)]
    assert sum(len(drawn(seed)[1]) for seed in range(24)) > sum(m.count("here") for m in told) > 40
    assert all(sum(name in m for m in told) > 8 for name in ("here", "inherited", "equal"))
