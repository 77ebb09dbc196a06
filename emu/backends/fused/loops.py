"""The loops of a program: operations by entry over whole arrays, and the memory that they use."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from roundscope.emu.backends.fused.code import BYTES, MEMORY, SCALARS, Code, vector
from roundscope.emu.backends.fused.entries import Entries
from roundscope.emu.backends.fused.graph import I1, Graph, Node
from roundscope.emu.backends.fused.schedule import Schedule, base

ALIGNED = 64  # bytes of a line of the cache


@cache
def width() -> int:
    """Return how many entries a vector has: binary32 numbers in a register of this processor."""
    return 16 if llvm.get_host_cpu_features().get("avx512f") else 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where the entries of an array are: a pointer, and the distance between entries by axis."""

    pointer: str
    kind: str
    offset: int
    strides: tuple[int, ...]


class Writer:
    """A writer of one program: it holds the code so far and the pointers of arrays in memory."""

    def __init__(self, graph: Graph) -> None:
        """Begin an empty program."""
        self.graph, self.code = graph, Code()
        self.pointers: dict[int, str] = {}
        self.flag = ""

    def place(self, x: Node, shape: tuple[int, ...] | None = None) -> Place:
        """Return where the entries of a stored node, or of a view of one, are."""
        root = base(x)
        seen, whole = self.graph.place(x), self.graph.place(root)
        offset = seen.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        strides = (seen if shape is None else np.broadcast_to(seen, shape)).strides
        return Place(self.pointers[root.number], root.kind, offset, strides)

    def address(self, place: Place, terms: Sequence[tuple[str, int]]) -> str:
        """Return a pointer to an entry: at the sum of index times distance, of each axis."""
        index = str(place.offset)
        for i, distance in terms:
            if distance:
                far = i if distance == 1 else self.code.do(f"mul i64 {i}, {distance}")
                index = far if index == "0" else self.code.do(f"add i64 {index}, {far}")
        if index == "0":
            return place.pointer
        return self.code.do(f"getelementptr {MEMORY[place.kind]}, ptr {place.pointer}, i64 {index}")

    def load(self, kind: str, address: str, n: int) -> str:
        """Return a vector of n entries that are next to each other."""
        t = vector(MEMORY[kind], n)
        v = self.code.do(f"load {t}, ptr {address}, align {BYTES[kind]}")
        return self.code.do(f"trunc {t} {v} to {vector('i1', n)}") if kind == I1 else v

    def scalar(self, kind: str, address: str) -> str:
        """Return one entry."""
        v = self.code.do(f"load {MEMORY[kind]}, ptr {address}")
        return self.code.do(f"trunc i8 {v} to i1") if kind == I1 else v

    def store(self, kind: str, value: str, address: str, n: int) -> None:
        """Write a vector of n entries next to each other."""
        t = vector(SCALARS[kind], n)
        if kind == I1:
            value = self.code.do(f"zext {t} {value} to {vector('i8', n)}")
            t = vector("i8", n)
        self.code.plain(f"store {t} {value}, ptr {address}, align {BYTES[kind]}")

    def entrywise(self, group: Sequence[Node], stored: set[int]) -> None:
        """Write the loop over a group of operations by entry of one shape."""
        shape = group[0].shape
        inside = {x.number for x in group}
        read = {
            y.number: y
            for x in group
            for y in x.args
            if y.number not in inside and not y.is_constant and y.op != "table"
        } | {y.number: y for x in group if x.op != "gather" for y in x.args if y.op == "table"}
        places = {n: self.place(y, shape) for n, y in read.items()}
        written = [x for x in group if x.number in stored]
        sizes, axes = _merged(shape, [p.strides for p in places.values()])
        inner = sizes[-1]
        n = min(width(), inner)
        strides = {m: _along(p.strides, axes) for m, p in places.items()}
        own = _along(_contiguous(shape), axes)

        def outer(axis: int, indices: list[str]) -> None:
            if axis < len(sizes) - 1:
                with self.code.loop(sizes[axis]) as loop:
                    outer(axis + 1, [*indices, loop.i])
                return
            fixed: dict[int, str] = {}
            for m, p in places.items():
                if strides[m][-1] == 0:
                    terms = list(zip(indices, strides[m], strict=False))
                    one = self.scalar(p.kind, self.address(p, terms))
                    fixed[m] = self.code.splat(p.kind, one, n)
            if (main := inner // n) > 1:
                with self.code.loop(main * n, n) as loop:
                    body([*indices, loop.i], fixed)
            else:
                body([*indices, "0"], fixed)
            if inner % n:  # the last vector overlaps the one before: some entries are made again
                body([*indices, str(inner - n)], fixed)

        def body(indices: list[str], fixed: dict[int, str]) -> None:
            entries = Entries(self.code, n)
            for m, p in places.items():
                terms = list(zip(indices, strides[m], strict=True))
                value = fixed[m] if m in fixed else self._vector(p, terms, n)
                x = read[m]
                if entries.own(x) != p.kind:
                    t = f"{entries.type(p.kind)} {value} to {entries.type(entries.own(x))}"
                    value = self.code.do(f"trunc {t}")
                entries.set(x, value)
            for x in group:
                for y in x.args:
                    if y.op == "table" and x.op == "gather":
                        entries.values[y.number, "pointer"] = self.pointers[y.number]
                entries.compute(x)
            for x in written:
                place = Place(self.pointers[x.number], x.kind, 0, own)
                address = self.address(place, list(zip(indices, own, strict=True)))
                self.store(x.kind, entries.get(x, x.kind), address, n)

        outer(0, [])

    def _vector(self, p: Place, terms: list[tuple[str, int]], n: int) -> str:
        """Return n entries along the last axis."""
        if terms[-1][1] == 1:
            return self.load(p.kind, self.address(p, terms), n)
        first, distance = self.address(p, terms), terms[-1][1]
        result, t, scalar = "poison", vector(SCALARS[p.kind], n), SCALARS[p.kind]
        for k in range(n):
            at = self.code.do(f"getelementptr {MEMORY[p.kind]}, ptr {first}, i64 {k * distance}")
            one = self.scalar(p.kind, at)
            result = self.code.do(f"insertelement {t} {result}, {scalar} {one}, i64 {k}")
        return result


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances between entries of an array without gaps."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def _merged(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[list[int], list[int]]:
    """Return the sizes of as few loops as can walk over all arrays, and the axis that each walks.

    Two axes are one loop if in every array the first one only continues the second.
    """
    every = [*strides, _contiguous(shape)]
    sizes: list[int] = []
    axes: list[int] = []
    for axis, size in enumerate(shape):
        if size == 1 and axis < len(shape) - 1 and not sizes:
            continue
        joins = sizes and all(s[axes[-1]] == s[axis] * size for s in every)
        if joins:
            sizes[-1] *= size
            axes[-1] = axis
        else:
            sizes.append(size)
            axes.append(axis)
    return (sizes, axes) if sizes else ([1], [0])


def _along(strides: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the distances along the axes of loops."""
    return tuple(strides[a] if strides else 0 for a in axes)


def memory(
    schedule: Schedule, inputs: Sequence[Node], outputs: Sequence[Node]
) -> tuple[list[Node], dict[int, int], int]:
    """Return the tables, the offsets of other stored nodes in the workspace, and the size of that.

    The offsets are by the numbers of the nodes.
    """
    nodes = [x for stage in schedule.stages for group in stage for x in group]
    tables = {y.number: y for x in nodes for y in map(base, x.args) if y.op == "table"}
    elsewhere = {*tables, *(x.number for x in (*inputs, *outputs))}
    offsets, size = {}, 0
    for x in nodes:
        if x.number in schedule.stored and x.number not in elsewhere:
            offsets[x.number] = size
            size += -(-(x.size * BYTES[x.kind]) // ALIGNED) * ALIGNED + ALIGNED
    return list(tables.values()), offsets, size
