"""Functions of arrays that run as one program where that is possible."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from roundscope.emu.backends.fused.graph import F32, F64, I1, I64, Graph, Node
from roundscope.emu.backends.fused.narrow import graph_ops
from roundscope.emu.backends.fused.program import Program
from roundscope.emu.backends.ops import Ops, mapped, rebuilt

_made: WeakValueDictionary[Any, Program] = WeakValueDictionary()  # by all operations of a graph


def program(
    function: Callable[..., Any], like: Any, narrow: Any
) -> tuple[Program, Callable[[list[Any]], Any]]:
    """Return function(ops, *like) as a program, and what gives its outputs the form of its result.

    The summaries of events in a dict are one output together, a record of records whose fields are
    the parts of a summary. Its name in the form is the tuple of their names.
    Raises `graph.Untraceable` if the function does something that programs do not have.

    Args:
        function: a function of the operations and of tuples of arrays.
        like: tuples of arrays with the shapes and types of the arguments.
        narrow: for each array, whether binary32 holds its numbers.
    """
    graph = Graph()
    inputs: list[Node] = []

    def entered(x: Any, is_narrow: bool) -> Node:
        kind = {"f": F64, "b": I1, "i": I64}[np.asarray(x).dtype.kind]
        node = graph.node("input", (), np.shape(x), kind, len(inputs))
        inputs.append(node)
        return graph.unary("narrow", node, F32) if is_narrow and kind == F64 else node

    ops: Ops = graph_ops(graph)
    result = function(ops, *mapped(entered, like, narrow))
    leaves: list[tuple[Node, ...]] = []
    form = _form(graph, result, leaves)
    return _of(graph, inputs, leaves), lambda arrays: mapped(lambda n: arrays[n], form)


def _of(graph: Graph, inputs: Sequence[Node], outputs: Sequence[tuple[Node, ...]]) -> Program:
    """Return the program of a graph: one that is in use, if it has the same operations."""
    key = tuple(graph.known), *(tuple(x.number for x in xs) for xs in (inputs, *outputs))
    program = _made.get(key)
    if program is None:
        program = _made[key] = Program(graph, inputs, outputs, repr(key))
    return program


def _form(graph: Graph, x: Any, leaves: list[tuple[Node, ...]]) -> Any:
    """Return a result with the number of an output for each node and for summaries of a dict."""
    if isinstance(x, dict):
        names = tuple(name for name, part in x.items() if _is_summary(graph, part))
        others = {name: _form(graph, x[name], leaves) for name in x if name not in names}
        if not names:
            return others
        leaves.append(tuple(part for name in names for part in x[name]))
        return {names: len(leaves) - 1} | others
    if isinstance(x, tuple):
        return rebuilt(x, (_form(graph, part, leaves) for part in x))
    leaves.append((graph.of(x),))
    return len(leaves) - 1


def _is_summary(graph: Graph, x: Any) -> bool:
    """Return whether a result is a tuple of the parts of a summary, and nothing else."""
    first = x[0] if isinstance(x, tuple) and x else None
    return isinstance(first, Node) and graph.parts.get(first.number) == x
