"""The statistics of rounding events inside a program (`emu.stats`)."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from roundscope.emu.backends.fused.code import SCALARS, literal, vector, vector_of
from roundscope.emu.backends.fused.entries import Entries
from roundscope.emu.backends.fused.graph import F64, I1, I32, I64, Graph, Node
from roundscope.emu.backends.fused.loops import Place, Writer
from roundscope.emu.backends.fused.schedule import needed
from roundscope.emu.roundings.rule import C64
from roundscope.emu.stats.classify import COUNTS, build_classify, judged

LANES = 8
FLAGS = 9  # that are counted; `inexact` is the sum of `away` and `toward`


class Summary:
    """What writes the statistics of one event: a loop over rows, in vectors of LANES entries.

    The sums are added up in LANES parts, and those of a row in four, as `emu.backends.numba.stats`
    adds them, so that their bits are the same.
    """

    def __init__(self, w: Writer, x: Node, f: Any, shape: tuple[int, ...]) -> None:
        """Trace the classification of one event."""
        self.w, self.code, self.args, self.shape = w, w.code, x.args, shape
        self.out = [w.pointers[part.number] for part in w.graph.parts[x.number]]
        self.is_exact = x.args[0] is x.args[1]  # the rounding changes nothing
        self.numbers, self.sizes, self.usual, self.classes = classified(
            judged(f), self.is_exact, f.is_deep
        )
        self.f64, self.i64, self.i32, self.i1 = (
            vector(SCALARS[k], LANES) for k in (F64, I64, I32, I1)
        )

    def _all(self, kind: str, value: float) -> str:
        return vector_of(kind, value, LANES)

    def write(self) -> None:
        """Write the loops, and the results after them."""
        rows, columns = self.shape
        in_rows = columns % LANES == 0
        counts = [("i64", "0")] * (FLAGS + 1)
        sums = [(self.f64, self._all(F64, 0.0))] * 5
        best = [(self.i64, self._all(I64, -1))] * 2
        carried = [*counts, *sums, *best]
        if in_rows:
            with self.code.loop(rows, 1, carried) as row:
                four = "<4 x double>"
                zero = vector_of(F64, 0.0, 4)
                inner = [(t, v) for (t, _), v in zip(carried, row.values, strict=True)]
                with self.code.loop(columns, LANES, [*inner, (four, zero)]) as turn:
                    first = self.code.do(f"mul i64 {row.i}, {columns}")
                    at = self.code.do(f"add i64 {first}, {turn.i}")
                    after, ulps = self._vector(row.i, turn.i, at, turn.values[:-1])
                    total = turn.values[-1]
                    for half in (0, 4):
                        total = self.code.do(f"fadd {four} {total}, {self._half(ulps, half)}")
                    turn.after = [*after, total]
                row.after = turn.results[:-1]
                self._row(row.i, turn.results[-1])
            results = row.results
        else:
            with self.code.loop(rows * columns, LANES, carried) as turn:
                after, ulps = self._vector(None, turn.i, turn.i, turn.values)
                turn.after = after
                self._rows_of(turn.i, ulps, columns)
            results = turn.results
        self._finish(results, rows)

    def _half(self, v: str, first: int) -> str:
        mask = ", ".join(f"i32 {first + k}" for k in range(4))
        return self.code.do(f"shufflevector {self.f64} {v}, {self.f64} poison, <4 x i32> <{mask}>")

    def _read(self, x: Node, row: str | None, column: str) -> str:
        if x.is_constant:
            return self._all(x.kind, x.data)
        w = self.w
        if row is None:
            place = w.place(x)
            value = w._vector(place, [(column, place.strides[0])], LANES)
        else:
            place = w.place(x, self.shape)
            if place.strides[1] == 0:
                one = w.scalar(place.kind, w.address(place, [(row, place.strides[0])]))
                value = self.code.splat(place.kind, one, LANES)
            else:
                terms = [(row, place.strides[0]), (column, place.strides[1])]
                value = w._vector(place, terms, LANES)
        if x.kind == "f32":
            return self.code.do(f"fpext {vector('float', LANES)} {value} to {self.f64}")
        return value

    def _vector(
        self, row: str | None, column: str, at: str, carried: list[str]
    ) -> tuple[list[str], str]:
        """Return what is carried after one vector of events, and their errors in ulps."""
        code = self.code
        before, after, valid = (self._read(x, row, column) for x in self.args)
        entries = Entries(code, LANES, keeps_width=True)
        normal, (least, most) = np.float64(1.0).view(np.int64), self.usual[0]
        other = self._all(F64, 1.0 if least <= normal <= most else 0.0)
        for node, value in zip(self.numbers, (before, after), strict=True):
            kept = code.do(f"select {self.i1} {valid}, {self.f64} {value}, {self.f64} {other}")
            entries.set(node, kept)
        _computed(entries, self.sizes)
        usual = [
            self._between(entries.get(size), *bounds)
            for size, bounds in dict(zip(self.sizes, self.usual, strict=True)).items()
        ]
        condition, *of_after = usual
        if of_after:
            condition = code.do(f"and {self.i1} {condition}, {of_after[0]}")
        all_usual = code.call("i1", f"llvm.vector.reduce.and.v{LANES}i1", (self.i1, condition))
        types = [*["i64"] * (FLAGS + 1), *[self.f64] * 5, *[self.i64] * 2, self.f64]
        *after_turn, ulps = code.choice(
            all_usual,
            types,
            *(partial(self._added, entries, valid, at, carried, own) for own in self.classes),
        )
        return after_turn, ulps

    def _between(self, size: str, least: int, most: int) -> str:
        shifted = self.code.do(f"sub {self.i64} {size}, {self._all(I64, least)}")
        return self.code.do(f"icmp ule {self.i64} {shifted}, {self._all(I64, most - least)}")

    def _added(
        self, before: Entries, valid: str, at: str, carried: list[str], classes: Sequence[Node]
    ) -> list[str]:
        """Return what is carried after one vector of events, and their errors in ulps.

        classes: what `classified` returns of the events.
        """
        code, entries = self.code, Entries(self.code, LANES, keeps_width=True)
        entries.values = dict(before.values)
        *flags, error, ulps, size = classes
        _computed(entries, [*flags, error, size])
        new, own = [], [valid, *(None if y.is_constant else entries.get(y) for y in flags)]
        for count, flag in zip(carried, own, strict=False):
            if flag is None:
                new.append(count)
                continue
            bits = code.do(f"bitcast {self.i1} {flag} to i{LANES}")
            wide = code.do(f"zext i{LANES} {bits} to i64")
            ones = code.call("i64", "llvm.ctpop.i64", ("i64", wide))
            new.append(code.do(f"add i64 {count}, {ones}"))
        e, u = entries.get(error, F64), entries.get(ulps, F64)
        new.extend(carried[FLAGS + 1 : FLAGS + 6] if self.is_exact else self._terms(carried, e, u))
        return [*new, *self._peak(valid, entries.get(size, I64), at, *carried[-2:]), u]

    def _peak(self, valid: str, size: str, at: str, top: str, place: str) -> list[str]:
        """Return the bits of the largest errors and their places, after one vector of errors.

        It is rare that one of them grows.
        """
        code, none = self.code, self._all(I64, -1)
        steps = "<" + ", ".join(f"i64 {k}" for k in range(LANES)) + ">"
        if self.is_exact and self.args[2].is_constant and self.args[2].data:
            return [self._all(I64, 0), steps]  # no error, and the first event has it
        found = code.do(f"select {self.i1} {valid}, {self.i64} {size}, {self.i64} {none}")
        grows = code.do(f"icmp sgt {self.i64} {found}, {top}")
        one_grows = code.call("i1", f"llvm.vector.reduce.or.v{LANES}i1", (self.i1, grows))

        def grown() -> list[str]:
            here = code.splat(I64, at, LANES)
            here = code.do(f"add {self.i64} {here}, {steps}")
            return [
                code.do(f"select {self.i1} {grows}, {self.i64} {a}, {self.i64} {b}")
                for a, b in ((found, top), (here, place))
            ]

        return code.choice(one_grows, [self.i64] * 2, grown, lambda: [top, place])

    def _terms(self, carried: list[str], e: str, u: str) -> list[str]:
        """Return the sums after the terms of one vector, from its errors and those in ulps."""
        terms = [e, self._abs(e), self._squared(e), self._abs(u), self._squared(u)]
        sums = zip(carried[FLAGS + 1 : FLAGS + 6], terms, strict=True)
        return [self.code.do(f"fadd {self.f64} {total}, {term}") for total, term in sums]

    def _abs(self, v: str) -> str:
        return self.code.call(self.f64, f"llvm.fabs.v{LANES}f64", (self.f64, v))

    def _squared(self, v: str) -> str:
        return self.code.do(f"fmul {self.f64} {v}, {v}")

    def _row(self, row: str, four: str) -> None:
        """Write the sum of a row, (a + b) + (c + d)."""
        a, b, c, d = (
            self.code.do(f"extractelement <4 x double> {four}, i64 {k}") for k in range(4)
        )
        left, right = self.code.do(f"fadd double {a}, {b}"), self.code.do(f"fadd double {c}, {d}")
        total = self.code.do(f"fadd double {left}, {right}")
        address = self.w.address(Place(self.out[4], F64, 0, (1,)), [(row, 1)])
        self.code.plain(f"store double {total}, ptr {address}")

    def _rows_of(self, at: str, ulps: str, columns: int) -> None:
        """Write the sums of the rows that a vector has, of one entry or of four entries each."""
        zero = self._all(F64, 0.0)
        ulps = self.code.do(f"fadd {self.f64} {ulps}, {zero}")
        if columns == 1:
            address = self.w.address(Place(self.out[4], F64, 0, (1,)), [(at, 1)])
            self.w.store(F64, ulps, address, LANES)
            return
        row = self.code.do(f"udiv i64 {at}, 4")
        for half in (0, 1):
            number = self.code.do(f"add i64 {row}, {half}")
            self._row(number, self._half(ulps, 4 * half))

    def _finish(self, results: list[str], rows: int) -> None:
        """Write counts, sums, the peak and its place from what the loops carried."""
        code, out = self.code, self.out
        total, *flags = results[: FLAGS + 1]
        away, toward = (flags[COUNTS.index(name) - 2] for name in ("away", "toward"))
        inexact = code.do(f"add i64 {away}, {toward}")
        for index, count in enumerate((total, inexact, *flags)):
            self._put(I64, out[0], index, count)
        zero = literal(F64, 0.0)
        for n, lanes in enumerate(results[FLAGS + 1 : FLAGS + 6]):
            total = zero
            for k in range(LANES):
                one = code.do(f"extractelement {self.f64} {lanes}, i64 {k}")
                total = code.do(f"fadd double {total}, {one}")
            self._put(F64, out[1], n + (n > 2), total)
        with code.loop(rows, 1, [("double", zero)]) as turn:
            address = self.w.address(Place(out[4], F64, 0, (1,)), [(turn.i, 1)])
            one = code.do(f"load double, ptr {address}")
            turn.after = [code.do(f"fadd double {turn.values[0]}, {one}")]
        self._put(F64, out[1], 3, turn.results[0])
        top, place = results[-2:]
        most = code.call("i64", f"llvm.vector.reduce.smax.v{LANES}i64", (self.i64, top))
        equal = code.do(f"icmp eq {self.i64} {top}, {code.splat(I64, most, LANES)}")
        last = self._all(I64, 2**63 - 1)
        place = code.do(f"select {self.i1} {equal}, {self.i64} {place}, {self.i64} {last}")
        first = code.call("i64", f"llvm.vector.reduce.smin.v{LANES}i64", (self.i64, place))
        none = code.do(f"icmp slt i64 {most}, 0")
        bits = code.do(f"select i1 {none}, i64 0, i64 {most}")
        self._put(F64, out[2], 0, code.do(f"bitcast i64 {bits} to double"))
        self._put(I64, out[3], 0, first)

    def _put(self, kind: str, pointer: str, n: int, value: str) -> None:
        address = self.w.address(Place(pointer, kind, n, ()), [])
        self.code.plain(f"store {SCALARS[kind]} {value}, ptr {address}")


@cache
def classified(f: Any, is_exact: bool, is_deep: bool) -> tuple[Any, ...]:
    """Return the classification of the events of a format as nodes of a graph of its own.

    They are the two numbers of an event and their bits without signs; the usual bounds of these
    bits; and the flags but `inexact`, the error, that in ulps and its bits without a sign, if the
    bits are within these bounds and if they may be anything. is_exact: whether the rounding changes
    nothing.
    """
    graph = Graph()
    before, after = (graph.node("placeholder", (), (LANES,), F64, n) for n in range(2))
    numbers = (before, before if is_exact else after)
    sizes = [_size(graph, x) for x in numbers]
    bounds = (f.min_normal, f.largest), (f.min_normal, C64.infinity - 1)
    usual = bounds[1:] * 2 if is_exact else bounds
    bounded = [
        graph.node("copy", (x,), kind=I64, data=b, bounds=b)
        for x, b in zip(sizes, usual, strict=True)
    ]
    never, no_error = graph.constant(False), graph.constant(0.0)

    def classes(sizes: Sequence[Node], is_bounded: bool) -> tuple[Node, ...]:
        classify = build_classify(
            graph.where,
            lambda e: graph.unary("number", graph.of(e << 52), F64),
            lambda f: f,
            is_exact=is_bounded,
            has_deep=is_deep,
        )
        _, *flags, error, ulps = classify(*numbers, *sizes, f)
        if is_exact:
            kept = ("subnormal", "nan")
            named = zip(COUNTS[2:], flags, strict=True)
            flags, error = [y if name in kept else never for name, y in named], no_error
            ulps = no_error
        return *flags, error, ulps, _size(graph, ulps)

    return numbers, sizes, usual, (classes(bounded, True), classes(sizes, False))


def _size(graph: Graph, x: Node) -> Node:
    """Return the bits of |x|."""
    return graph.unary("bits", x, I64) & (2**63 - 1)


def _computed(entries: Entries, nodes: Sequence[Node]) -> None:
    """Compute nodes, and what they depend on, where that is not done yet."""
    for y in needed(nodes):
        is_known = (y.number, entries.own(y)) in entries.values
        if y.op not in ("placeholder", "constant") and not is_known:
            entries.compute(y)
