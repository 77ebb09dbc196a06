"""The graph of a traced function: nodes that behave like NumPy arrays and remember their origin.

A node has a shape and a kind. Kinds f64 and f32 are numbers, i64 integers, i32 words of 32 bits
that wrap around, and i1 booleans. All numbers are binary64 numbers; kind f32 says that binary32
holds all of them. A function is traced by calling it with nodes in place of arrays. Equal
operations on equal nodes give the same node.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

F64, F32, I64, I32, I1 = "f64", "f32", "i64", "i32", "i1"
FLOATS = (F64, F32)
DTYPES = {F64: np.float64, F32: np.float32, I64: np.int64, I32: np.int32, I1: np.bool_}
NO_EXPONENT = -10000
WHOLE = (-(2**63), 2**63 - 1)  # bounds of integers of which nothing is known
SMALL = (-(2**31), 2**31 - 1)
Index: TypeAlias = Any


class Untraceable(Exception):
    """The function does something that the graph has no node for; it runs as it is instead."""


def _binary(op: str, is_reversed: bool = False) -> "Callable[[Node, Any], Node]":
    """Return the method of an operator; is_reversed: for a node that is the second operand."""

    def method(self: "Node", other: Any) -> "Node":
        return self.graph.binary(op, *((other, self) if is_reversed else (self, other)))

    return method


def _relation(op: str) -> "Callable[[Node, Any], Node]":
    return lambda self, other: self.graph.compare(op, self, other)


@dataclass(eq=False, slots=True)
class Node:
    """One operation of the graph, or an input or a constant; it behaves like a NumPy array.

    It has the operation's name and operands, and in `data` what it needs besides; shape and kind
    (f64, f32, i64 or i1) of the result; the least and the largest integer that a node of kind i64
    can have; and its number in the graph, after those of its operands.
    """

    graph: "Graph"
    op: str
    args: "tuple[Node, ...]"
    shape: tuple[int, ...]
    kind: str
    data: Any
    bounds: tuple[int, int]
    number: int

    __array_ufunc__ = None  # NumPy leaves operations with a node to the node
    __hash__ = object.__hash__

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """NumPy's type of the entries; numbers count as float64."""
        return np.dtype(np.float64 if self.kind in FLOATS else DTYPES[self.kind])

    @property
    def T(self) -> "Node":
        """The transpose of a matrix."""
        return self.transpose(*range(self.ndim)[::-1])

    @property
    def is_constant(self) -> bool:
        """Return whether all entries of the node are one number that is known."""
        return self.op == "constant"

    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", True)
    __lshift__, __rlshift__ = _binary("shl"), _binary("shl", True)
    __rshift__ = _binary("shr")
    __and__ = __rand__ = _binary("and")
    __or__ = __ror__ = _binary("or")
    __xor__ = __rxor__ = _binary("xor")
    __lt__, __le__ = _relation("lt"), _relation("le")
    __gt__, __ge__ = _relation("gt"), _relation("ge")
    __eq__ = _relation("eq")  # type: ignore[assignment]
    __ne__ = _relation("ne")  # type: ignore[assignment]

    def __neg__(self) -> "Node":
        return self.graph.unary("neg", self) if self.kind in FLOATS else 0 - self

    def __abs__(self) -> "Node":
        return self.graph.unary("abs", self)

    def __invert__(self) -> "Node":
        return self ^ (True if self.kind == I1 else -1)

    def __bool__(self) -> bool:
        raise Untraceable("a decision that depends on an array")

    def __getitem__(self, where: Any) -> "Node":
        if isinstance(where, Node):
            if self.op != "table" or self.ndim != 1:
                raise Untraceable("an index that is an array")
            return self.graph.node(
                "gather", (where, self), where.shape, self.kind, None, self.bounds
            )
        return self.graph.view(self, "index", where)

    def __array__(self, *_: Any) -> Any:
        raise Untraceable("a node as an array of NumPy")

    def reshape(self, *shape: Any) -> "Node":
        """Return the entries, in the same order, in another shape."""
        return self.graph.view(self, "reshape", shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: int) -> "Node":
        """Return the node with its axes in another order."""
        return self.graph.view(self, "transpose", axes)

    def swapaxes(self, a: int, b: int) -> "Node":
        """Return the node with two axes exchanged."""
        axes = list(range(self.ndim))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(*axes)

    def squeeze(self, axis: int) -> "Node":
        """Return the node without an axis of one entry."""
        return self.reshape(self.shape[:axis] + self.shape[axis + 1 :])

    def astype(self, dtype: Any) -> "Node":
        """Return the numbers as whole numbers, which they must be, or integers as numbers."""
        kind = I64 if np.dtype(dtype).kind == "i" else F64
        if kind == self.kind or (kind == F64 and self.kind == F32):
            return self
        if self.kind == I1:
            return self.graph.where(self, 1 if kind == I64 else 1.0, 0 if kind == I64 else 0.0)
        return self.graph.node("to_integer" if kind == I64 else "to_number", (self,), kind=kind)

    def sum(self, axis: Any = None) -> "Node":
        """Return the sum along an axis of two entries, or how many booleans of a row are true."""
        if isinstance(axis, int) and self.kind in FLOATS and self.shape[axis] == 2:
            first = (slice(None),) * (axis % self.ndim)
            return self[(*first, 0)] + self[(*first, 1)]
        if axis == (1, 2) and self.shape[1:] == (1, 2):
            return self.reshape(self.shape[0], 2).sum(axis=1)
        if self.kind == I1 and axis in (1, -1) and self.ndim == 2:
            return self.graph.node("count", (self,), self.shape[:1], I64, bounds=(0, self.shape[1]))
        raise Untraceable("a sum along an axis, whose order is not defined")

    def max(self, axis: Any = None) -> "Node":
        """Return the largest number of each row."""
        return self.graph.row_maximum(self, axis)


@dataclass(slots=True)
class Graph:
    """The nodes of a traced function, in the order in which they were made."""

    nodes: list[Node] = field(default_factory=list)
    known: dict[Any, Node] = field(default_factory=dict)
    odd: dict[int, tuple[Node, Node]] = field(default_factory=dict)  # sums that are rounded to odd
    parts: dict[int, tuple[Node, ...]] = field(default_factory=dict)  # of a summary, by its first
    places: dict[int, Any] = field(default_factory=dict)
    steps: dict[Any, tuple[Node, Node, Node]] = field(default_factory=dict)  # total, term, result

    def place(self, x: Node) -> Any:
        """Return an array of bytes that has a byte where each entry of x is in memory.

        Its memory is that of the node whose entries x is a view of.
        """
        if x.number not in self.places:
            if x.op == "view":
                how, what = x.data
                self.places[x.number] = VIEWS[how](self.place(x.args[0]), what)
            else:
                self.places[x.number] = np.empty(x.shape, np.int8)
        return self.places[x.number]

    def rows(self, x: Node) -> Node:
        """Return x with the entries of each row next to each other in memory."""
        if x.is_constant or self.place(x).strides[-1] != 1:
            return self.node("copy", (x,), kind=x.kind, bounds=x.bounds)
        return x

    def significand(self, x: Node, emin: int) -> tuple[Node, Node]:
        """Return m and e of x = m 2^e, with e at least emin; of 0, e is NO_EXPONENT."""
        b = self.unary("bits32", x, I32)
        e = self.choice("maximum", ((b & 0x7F800000) >> 23) - 127, emin)
        # a power of two that binary32 holds, twice, since 2^-e may be 2^127 or 2^-127
        half = e >> 1
        one, two = (self.unary("number32", (127 - n) << 23, F32) for n in (half, e - half))
        product = self.node("mul", (x, one), kind=F32)
        m = self.node("mul", (product, two), kind=F32)
        return m, self.where(x == 0.0, NO_EXPONENT, e)

    def node(
        self,
        op: str,
        args: tuple[Node, ...],
        shape: tuple[int, ...] | None = None,
        kind: str = F64,
        data: Any = None,
        bounds: tuple[int, int] = WHOLE,
    ) -> Node:
        """Return the node of an operation, which may exist already; its shape is that of args."""
        if shape is None:
            shapes = {x.shape for x in args}
            shape = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
        key = (op, tuple(x.number for x in args), shape, kind, _identity(data))
        if key not in self.known:
            self.known[key] = Node(self, op, args, shape, kind, data, bounds, len(self.nodes))
            self.nodes.append(self.known[key])
        return self.known[key]

    def constant(self, value: Any, shape: tuple[int, ...] = ()) -> Node:
        """Return a node of one number, integer or boolean, which all entries are equal to."""
        if isinstance(value, (bool, np.bool_)):
            return self.node("constant", (), shape, I1, bool(value))
        if isinstance(value, (int, np.integer)):
            return self.node("constant", (), shape, I64, int(value), (int(value), int(value)))
        value = float(value)
        with np.errstate(over="ignore"):
            narrow = value != value or float(np.float32(value)) == value
        return self.node("constant", (), shape, F32 if narrow else F64, value)

    def of(self, x: Any) -> Node:
        """Return a node for anything that an operation takes: a node, a number or an array."""
        if isinstance(x, Node):
            return x
        if np.ndim(x) == 0:
            return self.constant(x.item() if hasattr(x, "item") else x)
        array = np.asarray(x)
        if array.size and array.tobytes() == array.flat[0].tobytes() * array.size:
            return self.constant(array.flat[0].item(), array.shape)
        kind = {"f": F64, "i": I64, "u": I64, "b": I1}[array.dtype.kind]
        held: Any = np.ascontiguousarray(array.astype(DTYPES[kind]))
        bounds = (int(held.min()), int(held.max())) if kind == I64 else WHOLE
        return self.node("table", (), held.shape, kind, held, bounds)

    def _operands(self, *xs: Any) -> tuple[Node, ...]:
        """Return nodes of one type: all numbers, all integers, or all booleans."""
        nodes = [self.of(x) for x in xs]
        if len({x.kind for x in nodes}) == 1:
            return tuple(nodes)
        if any(x.kind in FLOATS for x in nodes):
            nodes = [x if x.kind in FLOATS else self._number_of(x) for x in nodes]
        elif any(x.kind == I32 for x in nodes):
            nodes = [x if x.kind == I32 else self._word_of(x) for x in nodes]
        elif any(x.kind == I64 for x in nodes):
            nodes = [x if x.kind == I64 else x.astype(np.int64) for x in nodes]
        return tuple(nodes)

    def _number_of(self, x: Node) -> Node:
        return self.constant(float(x.data), x.shape) if x.is_constant else x.astype(np.float64)

    def _word_of(self, x: Node) -> Node:
        if not x.is_constant:
            return self.node("word", (x,), kind=I32)
        word = (int(x.data) + 2**31) % 2**32 - 2**31
        return self.node("constant", (), x.shape, I32, word, (word, word))

    def binary(self, op: str, a: Any, b: Any) -> Node:
        """Return the result of an operation on numbers, integers or booleans."""
        a, b = self._operands(a, b)
        if a.kind in FLOATS:
            return self.node(op, (a, b))
        if a.kind == I1:
            return self._logical(op, a, b)
        if a.kind == I32:
            bounds = _bounds(op, a.bounds, b.bounds) if op == "and" else WHOLE
            return self.node(op, (a, b), kind=a.kind, bounds=bounds)
        if a.is_constant and b.is_constant:
            value = _INTEGERS[op](a.data, b.data)
            return self.constant(value, np.broadcast_shapes(a.shape, b.shape))
        return self.node(op, (a, b), kind=I64, bounds=_bounds(op, a.bounds, b.bounds))

    def _logical(self, op: str, a: Node, b: Node) -> Node:
        """Return the result of an operation on booleans; a constant may leave nothing to do."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        for x, y in ((a, b), (b, a)):
            if x.is_constant and x.data == (op == "or") and op != "xor":
                return self.constant(x.data, shape)
            if x.is_constant and x.data == (op == "and") and y.shape == shape:
                return y
        return self.node(op, (a, b), kind=I1)

    def compare(self, op: str, a: Any, b: Any) -> Node:
        """Return whether a relation holds, by entry."""
        a, b = self._operands(a, b)
        if a.is_constant and b.is_constant:
            value = bool(getattr(operator, op)(a.data, b.data))
            return self.constant(value, np.broadcast_shapes(a.shape, b.shape))
        if a.kind in (I32, I64) and (known := _ordered(op, a.bounds, b.bounds)) is not None:
            return self.constant(known, np.broadcast_shapes(a.shape, b.shape))
        return self.node(op, (a, b), kind=I1)

    def unary(self, op: str, a: Any, kind: str | None = None) -> Node:
        """Return the result of an operation on one node; it keeps the kind unless one is given."""
        (a,) = self._operands(a)
        return self.node(op, (a,), kind=kind or a.kind)

    def choice(self, op: str, *xs: Any) -> Node:
        """Return the result of an operation that returns one of its numbers, such as a maximum."""
        nodes = self._operands(*xs)
        kind = nodes[0].kind if nodes[0].kind not in FLOATS else narrowest(nodes)
        return self.node(op, nodes, kind=kind, bounds=_hull(nodes))

    def where(self, condition: Any, yes: Any, no: Any) -> Node:
        """Return yes where a condition holds, else no."""
        condition, (yes, no) = self.of(condition), self._operands(yes, no)
        if condition.is_constant:
            taken = yes if condition.data else no
            shape = np.broadcast_shapes(condition.shape, yes.shape, no.shape)
            return taken if taken.shape == shape else self.view(taken, "broadcast", shape)
        kind = yes.kind if yes.kind not in FLOATS else narrowest((yes, no))
        return self.node("where", (condition, yes, no), kind=kind, bounds=_hull((yes, no)))

    def view(self, x: Node, how: str, what: Any) -> Node:
        """Return entries of a node in another shape or order; `how` is a key of `VIEWS`."""
        shape = VIEWS[how](np.empty(x.shape, np.int8), what).shape
        if x.is_constant:
            return self.constant(x.data, shape)
        if shape == x.shape and how in ("reshape", "broadcast"):
            return x
        place = self.place(x)
        if how == "reshape" and not np.may_share_memory(VIEWS[how](place, what), place):
            x = self.node("copy", (x,), kind=x.kind, bounds=x.bounds)
        return self.node("view", (x,), shape, x.kind, (how, what), x.bounds)

    def row_maximum(self, x: Any, axis: Any) -> Node:
        """Return the largest number of each row of a matrix."""
        x = self.of(x)
        if x.ndim != 2 or axis not in (1, -1) or x.kind not in FLOATS:
            raise Untraceable("a maximum along another axis")
        return self.node("row_maximum", (x,), x.shape[:1], x.kind)

    def concatenate(self, parts: Sequence[Any], axis: int = 0) -> Node:
        """Return arrays of one kind, one after the other along an axis."""
        nodes = self._operands(*parts)
        nodes = tuple(x for x in nodes if x.size) or nodes[:1]
        if len(nodes) == 1:
            return nodes[0]
        kind = nodes[0].kind if nodes[0].kind not in FLOATS else narrowest(nodes)
        shape = list(nodes[0].shape)
        shape[axis] = sum(x.shape[axis] for x in nodes)
        return self.node("concatenate", nodes, tuple(shape), kind, axis % len(shape), _hull(nodes))


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, where: x[where],
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, axes: x.transpose(axes),
    "broadcast": np.broadcast_to,
}
_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
}


def narrowest(nodes: Sequence[Node]) -> str:
    """Return f32 if binary32 holds the numbers of all nodes, else f64."""
    return F32 if all(x.kind == F32 for x in nodes) else F64


def _identity(data: Any) -> Any:
    """Return a hashable value that tells the data of two operations apart."""
    if isinstance(data, np.ndarray):
        return data.dtype.str, data.shape, data.tobytes()
    if isinstance(data, float):
        return data.hex()
    return repr(data) if isinstance(data, (tuple, list, slice)) else (type(data), data)


def _hull(nodes: Sequence[Node]) -> tuple[int, int]:
    """Return the bounds of integers that come from any of the nodes."""
    return min(x.bounds[0] for x in nodes), max(x.bounds[1] for x in nodes)


def _ordered(op: str, a: tuple[int, int], b: tuple[int, int]) -> bool | None:
    """Return whether a relation holds for all integers within bounds; None if for some."""
    if op in ("gt", "ge"):
        return _ordered({"gt": "lt", "ge": "le"}[op], b, a)
    if op == "ne":
        known = _ordered("eq", a, b)
        return None if known is None else not known
    if op == "eq":
        return False if a[1] < b[0] or b[1] < a[0] else None
    always, never = getattr(operator, op)(a[1], b[0]), not getattr(operator, op)(a[0], b[1])
    return True if always else False if never else None


def _bounds(op: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Return the bounds of an operation's integers; WHOLE where they may wrap around."""
    if op == "and":  # by a mask that is not negative
        tops = [high for low, high in (a, b) if low >= 0]
        return (0, min(tops)) if tops else WHOLE
    if op in ("or", "xor"):
        if min(a[0], b[0]) < 0:
            return WHOLE
        return 0, (1 << max(a[1], b[1]).bit_length()) - 1
    if op in ("shl", "shr") and (b[0] < 0 or b[1] > 63):
        return WHOLE
    ends = [_INTEGERS[op](x, y) for x in a for y in b]
    low, high = min(ends), max(ends)
    return (low, high) if WHOLE[0] <= low and high <= WHOLE[1] else WHOLE
