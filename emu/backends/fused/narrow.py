"""`Ops` on the nodes of a graph: operations stay in binary32 where that gives the same bits.

The carrier of an event is binary64. An addition, product or quotient of two binary32 numbers that
is rounded to binary32 at once is one operation in binary32 (53 >= 2 * 24 + 2), and so is a product
plus a number, rounded to odd and then to binary32: it is a fused multiply-add. Subnormal numbers
stay as they are, since a CPU does not flush them unless it is asked to.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from roundscope.emu.backends.fused.graph import (
    F32,
    F64,
    I32,
    I64,
    Graph,
    Node,
    Untraceable,
    narrowest,
)
from roundscope.emu.backends.ops import Ops
from roundscope.emu.roundings.modes import BINARY32, Rounding, RoundingMode, rounding
from roundscope.emu.roundings.rule import C32, C64, Carrier, build_rule, target_of
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate
from roundscope.emu.sums.aligned import Alignment, GroupAlignment
from roundscope.emu.sums.matrix_cores import MatrixCore
from roundscope.emu.sums.odd import build_odd_sum, sum_to_round

ARITHMETIC = ("add", "sub", "mul", "div")
OF_ROWS = (Order.PAIRWISE, Order.STRIDED, Order.OCTETS, Order.OCTET_PAIRS, Order.WARPS)
LANES = 8  # the sums of statistics are added up in so many parts (`emu.backends.numba.stats`)


class Namespace:
    """The functions of NumPy that algorithms call, on nodes of a graph."""

    inf, nan, int32 = np.inf, np.nan, np.int32

    def __init__(self, graph: Graph) -> None:
        """Make the namespace of a graph."""
        self.graph = graph
        for name in ("maximum", "minimum", "fmax", "fmin"):
            setattr(self, name, partial(graph.choice, name))
        for name in ("abs", "floor", "trunc"):
            setattr(self, name, partial(graph.unary, name))
        self.where, self.asarray = graph.where, graph.of
        self.concatenate, self.max = graph.concatenate, graph.row_maximum
        self.copysign = partial(graph.choice, "copysign")
        self.zeros_like, self.ones_like = (
            lambda x, value=value: graph.constant(value, x.shape) for value in (0.0, 1.0)
        )

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"NumPy's function {name}")

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Node:
        """Return a node with all entries equal."""
        shape = tuple(shape) if np.ndim(shape) else (shape,)
        if dtype is not None:
            value = np.dtype(dtype).type(value)
        return self.graph.constant(value, shape)

    def zeros(self, shape: Any, dtype: Any = float) -> Node:
        """Return zeros."""
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = float) -> Node:
        """Return ones."""
        return self.full(shape, 1, dtype)

    def full_like(self, x: Node, value: Any) -> Any:
        """Return a node of the shape of x with all entries equal to a number or to a node."""
        return self.broadcast_to(value, x.shape)

    def arange(self, n: int) -> Node:
        """Return 0, 1 ... n - 1."""
        return self.graph.of(np.arange(n))

    def clip(self, x: Any, low: Any, high: Any) -> Node:
        """Return x within bounds."""
        return self.graph.choice("minimum", self.graph.choice("maximum", x, low), high)

    def isnan(self, x: Node) -> Node:
        """Return whether each entry is NaN."""
        return x != x

    def isfinite(self, x: Node) -> Node:
        """Return whether each entry is finite."""
        return abs(x) < np.inf

    def broadcast_to(self, x: Any, shape: Any) -> Node:
        """Return x in a larger shape."""
        return self.graph.view(self.graph.of(x), "broadcast", tuple(shape))

    def broadcast_arrays(self, *xs: Any) -> list[Node]:
        """Return nodes in their common shape."""
        nodes = [self.graph.of(x) for x in xs]
        shape = np.broadcast_shapes(*(x.shape for x in nodes))
        return [self.broadcast_to(x, shape) for x in nodes]

    def stack(self, parts: Sequence[Node]) -> Node:
        """Return nodes along a new first axis."""
        return self.graph.concatenate([self.graph.of(x)[None] for x in parts])

    def moveaxis(self, x: Node, source: int, to: int) -> Node:
        """Return x with an axis in another place."""
        axes = [n for n in range(x.ndim) if n != source % x.ndim]
        return x.transpose(*axes[: to % x.ndim], source % x.ndim, *axes[to % x.ndim :])

    def sum(self, x: Node, axis: Any = None) -> Node:
        """Return a sum that `Node.sum` has."""
        return x.sum(axis)


def _unable(what: str) -> Any:
    """Return a function that raises Untraceable."""

    def refuse(*_: Any) -> Any:
        raise Untraceable(what)

    return refuse


def graph_ops(graph: Graph) -> Ops:
    """Return the `Ops` record for the nodes of a graph."""
    xp: Any = Namespace(graph)
    bits = partial(_bits, graph)
    number = partial(_number, graph)
    odd_rule = build_odd_sum(graph.where, bits, number)
    rules = {c: build_rule(c, graph.where, lambda f: f) for c in (C32, C64)}

    def odd_sum(a: Any, b: Any) -> Node:
        a, b = graph.of(a), graph.of(b)
        total: Node = odd_rule(*xp.broadcast_arrays(a, b))
        graph.odd[total.number] = (a, b)  # for `_single`, which may do without the odd sum
        return total

    def by_rule(x: Node, r: Rounding, carrier: Carrier) -> Node:
        t = target_of(r, carrier)
        b = graph.unary("bits32", x, I32) if carrier is C32 else bits(x)
        even = r.mode is RoundingMode.TIES_TO_EVEN
        rounded = rules[carrier].nearest_even if even else rules[carrier].any_mode
        if carrier is C32:
            return graph.unary("number32", rounded(b, t), F32)
        y = number(rounded(b, t))
        return graph.unary("narrow", y, F32) if r.format.fits_binary32 else y

    def rounded(x: Node, r: Rounding, random: Any = None) -> Node:
        if random is not None:
            raise Untraceable("random bits")
        if r.is_identity or (r == BINARY32 and x.kind == F32):
            return x
        if r == BINARY32:
            return _single(graph, x)
        fits = x.kind == F32 and r.format.fits_binary32
        return by_rule(x, r, C32 if fits else C64)

    def by_halves(step: Rounding, a: Node, init: Node) -> Node:
        while (half := a.shape[1] // 2) > 0:
            sums = rounded(odd_sum(a[:, :half], a[:, half : 2 * half]), step)
            rest = a[:, 2 * half :]
            a = graph.concatenate([sums, rest], axis=1) if rest.shape[1] else sums
        return rounded(odd_sum(init, a), step)

    def own_sum(acc: Accumulator, a: Node, b: Node, init: Node) -> Node:
        a, b, init = graph.of(a), graph.of(b), graph.of(init)
        if acc == Accumulator() and init.kind == F64 and b.shape[1] == 1:
            # the first product is added in binary64, and everything after it in binary32
            first = rounded(odd_sum(init, a[:, :1] * b[:1]), BINARY32)
            a, b, init = a[:, 1:], b[1:], first
        if not a.shape[1]:
            return init
        if acc.order is Order.HALVES and b.is_constant and b.shape[1] == 1 and b.data == 1.0:
            return by_halves(acc.step, a, init)
        if acc.order in OF_ROWS and b.shape[1] == 1:
            total: Node = accumulate(graph_ops(graph), acc, graph.rows(a.T), b, init)
            return total
        if acc.step not in graph.steps:
            held, term = (graph.node("placeholder", (), (1,), F64, n) for n in ("total", "term"))
            before = sum_to_round(graph_ops(graph), acc.step.format.precision, held, term)
            graph.steps[acc.step] = held, term, rounded(before, acc.step)
        return _sum(graph, acc, a, b, init)

    return Ops(
        xp=xp,
        round=rounded,
        round_blocks=_unable("a block format"),
        transposed=lambda x: x.T,
        odd_sum=odd_sum,
        multiply=partial(graph.binary, "mul"),
        hidden=lambda x: x,
        divide=partial(graph.binary, "div"),
        bits=bits,
        from_bits=number,
        scan=_unable("a loop"),
        when=_unable("a choice"),
        call=lambda function, x: function(graph_ops(graph), x),
        native=_unable("a native sum"),
        aligned=_unable("a sum of other factors"),
        ascending=_unable("a sum of other factors"),
        stats=lambda events: [_summary(graph, *event) for event in events],
        own_sum=own_sum,
    )


def _bits(graph: Graph, x: Any) -> Node:
    return graph.unary("bits", graph.of(x), I64)


def _number(graph: Graph, b: Any) -> Node:
    return graph.unary("number", graph.of(b), F64)


def _single(graph: Graph, x: Node) -> Node:
    """Return a number rounded to binary32, by one operation in binary32 where one can do it."""
    if x.op in ARITHMETIC and all(y.kind == F32 for y in x.args):
        return graph.node(x.op, x.args, x.shape, F32)
    if x.number in graph.odd:
        a, b = graph.odd[x.number]
        if a.kind == F32 and b.kind == F32:
            return graph.node("add", (a, b), x.shape, F32)
        if b.kind == F32 and a.op == "mul" and all(y.kind == F32 for y in a.args):
            return graph.node("fma", (*a.args, b), x.shape, F32)
    return graph.unary("narrow", x, F32)


def _sum(graph: Graph, acc: Accumulator, a: Node, b: Node, init: Node) -> Node:
    """Return init + a @ b by an accumulator, with the operands as `sums` reads them."""
    shape, kept = (a.shape[0], b.shape[1]), acc.alignment
    narrow = narrowest((a, b, init)) == F32
    if kept is not None:
        if isinstance(kept, MatrixCore) or not (_in_words(acc) and narrow) or b.shape[1] == 1:
            raise Untraceable(f"a sum {acc}")
        if missing := -a.shape[1] % acc.chunk:  # as a kernel pads its tiles
            zeros = [graph.constant(0.0, x) for x in ((shape[0], missing), (missing, shape[1]))]
            a = graph.concatenate([a, zeros[0]], axis=1)
            b = graph.concatenate([b, zeros[1]], axis=0)
        data = (acc.chunk, kept.bits, kept.zero, acc.step.format.precision)
        first, second = kept.operands
        ma, ea = graph.significand(a, first.emin)
        mb, eb = graph.significand(graph.rows(b), second.emin)
        return graph.node("aligned", (ma, ea, mb, eb, init), shape, F32, data)
    kind = F32 if acc.step == BINARY32 and narrow else F64
    if acc.order is not Order.ASCENDING or acc.step.mode is RoundingMode.STOCHASTIC:
        raise Untraceable(f"a sum {acc}")
    step = None if kind == F32 or acc.step.is_identity else acc.step
    if shape[1] > 1:
        total = graph.node("dot", (a, graph.rows(b), init), shape, kind, step)
    elif b.is_constant and b.data == 1.0:
        total = graph.node("column", (graph.rows(a.T), init.reshape(-1)), shape[:1], kind, step)
    else:
        raise Untraceable("a sum of products in one column")
    if step is not None:
        total = graph.unary("narrow", total, F32) if step.format.fits_binary32 else total
    return total.reshape(shape)


def _in_words(acc: Accumulator) -> bool:
    """Return whether `sums.aligned` has a tensor core's sum.

    Products of two significands must be exact in binary32, half a chunk of them in units of 2^(E -
    F) must fit into 32 bits, and the step must cut binary32 numbers, of which it keeps some bits.
    """
    f, kept = acc.step.format, acc.alignment
    if isinstance(kept, GroupAlignment) or not isinstance(kept, Alignment):
        return False
    cuts = acc.step == rounding(f, "toward-zero") and f.emin == -126 and f.emax == 127
    fits = acc.chunk << (kept.bits + 1) < 2**31 and max(f.precision for f in kept.operands) <= 12
    return cuts and fits and f.precision <= 24 and acc.chunk % 2 == 0


def _summary(graph: Graph, before: Node, after: Node, f: Any, valid: Any) -> tuple[Node, ...]:
    """Return nodes of the counts, sums, peak, place and row sums of an event (`emu.stats`)."""
    shape = before.shape
    args = [graph.view(graph.of(x), "broadcast", shape) for x in (before, after, valid)]
    if shape[0] == 1 and shape[1] % LANES in (1, 4, 5):  # events that do not exist fill it up
        absent = (1, -shape[1] % LANES)
        fill = [graph.constant(x, absent) for x in (0.0, 0.0, False)]
        args = [graph.concatenate(pair, axis=1) for pair in zip(args, fill, strict=True)]
        shape = (1, shape[1] + absent[1])
    elif shape[1] % LANES:
        if shape[1] not in (1, 4) or before.size % LANES:
            raise Untraceable("statistics of rows of another length")
        args = [x.reshape(-1) for x in args]
    elif any(not x.is_constant and graph.place(x).strides[1] != 1 for x in args[:2]):
        args[:2] = [graph.rows(x) for x in args[:2]]
    parts = ((11,), I64), ((6,), F64), ((), F64), ((), I64), (shape[:1], F64)
    nodes = tuple(
        graph.node("summary", tuple(args), part, kind, (f, shape, n))
        for n, (part, kind) in enumerate(parts)
    )
    graph.parts[nodes[0].number] = nodes
    return nodes
