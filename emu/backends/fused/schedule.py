"""A graph cut into stages: loops over arrays, and sums, in an order in which they can run.

A stage may read what earlier stages wrote. All operations by entry that have the same shape and may
run in the same stage share one loop, so that their results stay in registers.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from roundscope.emu.backends.fused.entries import is_entrywise
from roundscope.emu.backends.fused.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Schedule:
    """What runs, stage by stage.

    stages  groups of operations by entry, which share a loop, and the others, each alone in its
            group
    stored  the numbers of the nodes that are written to memory
    """

    stages: list[list[list[Node]]]
    stored: set[int]


def needed(outputs: Sequence[Node]) -> list[Node]:
    """Return the nodes that the outputs depend on, each after its operands."""
    seen: dict[int, Node] = {}
    todo = list(outputs)
    while todo:
        x = todo.pop()
        if x.number not in seen:
            seen[x.number] = x
            todo.extend(x.args)
    return [seen[n] for n in sorted(seen)]


def scheduled(graph: Graph, outputs: Sequence[Node]) -> Schedule:
    """Return the schedule of the nodes that the outputs depend on; outputs are by entry."""
    nodes = needed(outputs)
    stage: dict[int, int] = {}
    ready: dict[int, int] = {}  # the first stage that may read a node from memory
    groups: dict[int, dict[object, list[Node]]] = defaultdict(lambda: defaultdict(list))
    stored = {x.number for x in outputs}
    for x in nodes:
        n = x.number
        if x.op in ("input", "constant", "table"):
            stage[n], ready[n] = 0, 0
        elif x.op == "view":
            stage[n] = ready[n] = ready[x.args[0].number]
        elif is_entrywise(x):
            # an operation by entry may use an operand of its own loop before that is in memory
            alike = {y.number: is_entrywise(y) and y.shape == x.shape for y in x.args}
            usable = (stage[m] if is_alike else ready[m] for m, is_alike in alike.items())
            stage[n] = max(usable, default=0)
            ready[n] = stage[n] + 1
            groups[stage[n]][x.shape].append(x)
        else:
            stage[n] = max((ready[y.number] for y in x.args), default=0)
            ready[n] = stage[n] + 1
            groups[stage[n]][n].append(x)
    for x in nodes:
        for y in x.args:
            alone = is_entrywise(x) and is_entrywise(y) and x.shape == y.shape
            if not (alone and stage[x.number] == stage[y.number]):
                stored.add(base(y).number)
    return Schedule([list(groups[n].values()) for n in sorted(groups)], stored)


def base(x: Node) -> Node:
    """Return the node in memory that a node is, or is a view of."""
    while x.op == "view":
        x = x.args[0]
    return x
