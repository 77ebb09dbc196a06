"""Sums of products, and what is computed from whole rows, as loops of a program."""

import math
from collections.abc import Callable, Sequence

from roundscope.emu.backends.fused.code import SCALARS, Code, literal, vector, vector_of
from roundscope.emu.backends.fused.entries import Entries
from roundscope.emu.backends.fused.graph import F32, F64, I1, I32, I64, NO_EXPONENT, Node
from roundscope.emu.backends.fused.loops import Place, Writer, width
from roundscope.emu.backends.fused.schedule import needed
from roundscope.emu.backends.fused.statistics import Summary


def _blocks(columns: int, most: int) -> list[tuple[int, int, int]]:
    """Return blocks of columns: (first column, how many blocks follow each other, columns)."""
    blocks, at = [], 0
    for size in (most, width()):
        if size <= columns - at:
            count = (columns - at) // size
            blocks.append((at, count, size))
            at += count * size
    if at < columns:
        size = min(width(), columns)
        blocks.append((columns - size, 1, size))
    return blocks


def _first(w: Writer, init: Node, i: str, j: str, n: int, kind: str) -> str:
    """Return n entries of a row of the numbers that sums begin with."""
    if init.is_constant:
        return vector_of(kind, init.data, n)
    place = w.place(init)
    value = w._vector(place, [(i, place.strides[0]), (j, place.strides[1])], n)
    if place.kind != kind:
        a, b = vector(SCALARS[place.kind], n), vector(SCALARS[kind], n)
        return w.code.do(f"fpext {a} {value} to {b}")
    return value


def dot(w: Writer, x: Node) -> None:
    """Write init + a @ b in ascending order: multiply-adds in binary32, or steps in binary64."""
    a, b, init = x.args
    (rows, columns), depth, n = x.shape, a.shape[1], width()
    out = Place(w.pointers[x.number], x.kind, 0, (columns, 1))
    # as many rows are added up together as registers hold
    at_once = math.gcd(rows, 8 if width() == 16 else 4) if x.data is None else 1
    for first, count, size in _blocks(columns, 2 * n if x.kind == F32 else n):
        parts = max(size // n, 1)
        lanes = min(size, n)
        with w.code.loop(rows, at_once) as over_rows, w.code.loop(count * size, size) as over:
            column = w.code.do(f"add i64 {over.i}, {first}")
            lines = [w.code.do(f"add i64 {over_rows.i}, {r}") for r in range(at_once)]
            places = [w.code.do(f"add i64 {column}, {p * n}") for p in range(parts)]
            t = vector(SCALARS[x.kind], lanes)
            begin = [(t, _first(w, init, i, j, lanes, x.kind)) for i in lines for j in places]
            with w.code.loop(depth, 1, begin) as turn:
                right = [_first(w, b, turn.i, j, lanes, x.kind) for j in places]
                after = []
                for r, i in enumerate(lines):
                    left = _one(w, a, i, turn.i, lanes, x.kind)
                    for p, y in enumerate(right):
                        after.append(_added(w, x, lanes, turn.values[r * parts + p], y, left))
                turn.after = after
            for r, i in enumerate(lines):
                for p, j in enumerate(places):
                    address = w.address(out, [(i, columns), (j, 1)])
                    w.store(x.kind, turn.results[r * parts + p], address, lanes)


def _added(w: Writer, x: Node, n: int, total: str, a: str, b: str | None = None) -> str:
    """Return total + a b of a sum x: one multiply-add in binary32, or rounded by its step.

    x.data: the step of a sum in binary64, or None if it only adds; b: None for 1.
    """
    t = vector(SCALARS[x.kind], n)
    if x.kind == F32 and b is not None:
        return w.code.call(t, f"llvm.fma.v{n}f32", (t, a), (t, b), (t, total))
    term = a if b is None else w.code.do(f"fmul {t} {a}, {b}")
    if x.data is None:
        return w.code.do(f"fadd {t} {total}, {term}")
    before, added, after = w.graph.steps[x.data]
    entries = Entries(w.code, n)
    entries.set(before, total)
    entries.set(added, term)
    for y in needed([after]):
        if y.op not in ("placeholder", "constant"):
            entries.compute(y)
    return entries.get(after, F64)


def _one(w: Writer, x: Node, i: str, j: str, n: int, kind: str) -> str:
    """Return a vector of n times one entry."""
    if x.is_constant:
        return _first(w, x, i, j, n, kind)
    place = w.place(x)
    one = w.scalar(place.kind, w.address(place, [(i, place.strides[0]), (j, place.strides[1])]))
    if place.kind != kind:
        one = w.code.do(f"fpext {SCALARS[place.kind]} {one} to {SCALARS[kind]}")
    return w.code.splat(kind, one, n)


def column(w: Writer, x: Node) -> None:
    """Write init + the sum of the rows of a matrix, one row after the other."""
    a, init = x.args
    out = Place(w.pointers[x.number], x.kind, 0, (1,))
    for first, count, size in _blocks(x.size, width()):
        t = vector(SCALARS[x.kind], size)
        with w.code.loop(count * size, size) as over:
            j = w.code.do(f"add i64 {over.i}, {first}")
            begin = _line(w, init, j, size, x.kind)
            with w.code.loop(a.shape[0], 1, [(t, begin)]) as turn:
                y = _first(w, a, turn.i, j, size, x.kind)
                turn.after = [_added(w, x, size, turn.values[0], y)]
            w.store(x.kind, turn.results[0], w.address(out, [(j, 1)]), size)


def _line(w: Writer, x: Node, j: str, n: int, kind: str) -> str:
    """Return n entries of an array with one axis."""
    return _first(w, w.graph.view(x, "reshape", (1, x.size)), "0", j, n, kind)


def row_maximum(w: Writer, x: Node) -> None:
    """Write the largest number of each row; NaN if a row has one."""
    (a,) = x.args
    rows, columns = a.shape
    n = min(width(), columns)
    t, i1, s = vector(SCALARS[x.kind], n), vector("i1", n), SCALARS[x.kind]
    out = Place(w.pointers[x.number], x.kind, 0, (1,))
    with w.code.loop(rows) as row:
        top = _first(w, a, row.i, "0", n, x.kind)
        starts = [n * k for k in range(1, columns // n)] + ([columns - n] if columns % n else [])
        for j in starts:
            top = _larger(w, t, i1, top, _first(w, a, row.i, str(j), n, x.kind))
        lanes = [w.code.do(f"extractelement {t} {top}, i64 {k}") for k in range(n)]
        while len(lanes) > 1:
            half = (len(lanes) + 1) // 2
            lanes = [
                _larger(w, s, "i1", lanes[k], lanes[k + half])
                if k + half < len(lanes)
                else lanes[k]
                for k in range(half)
            ]
        w.code.plain(f"store {s} {lanes[0]}, ptr {w.address(out, [(row.i, 1)])}")


def _larger(w: Writer, t: str, i1: str, a: str, b: str) -> str:
    """Return the larger of two, or NaN if one is NaN."""
    c = w.code.do(f"fcmp oge {t} {a}, {b}")
    larger = w.code.do(f"select {i1} {c}, {t} {a}, {t} {b}")
    nan = w.code.do(f"fcmp uno {t} {a}, {a}")
    return w.code.do(f"select {i1} {nan}, {t} {a}, {t} {larger}")


def count(w: Writer, x: Node) -> None:
    """Write how many entries of each row are true."""
    (a,) = x.args
    out, place = Place(w.pointers[x.number], I64, 0, (1,)), w.place(a)
    with w.code.loop(a.shape[0]) as row:
        with w.code.loop(a.shape[1], 1, [("i64", "0")]) as turn:
            terms = [(row.i, place.strides[0]), (turn.i, place.strides[1])]
            one = w.code.do(f"zext i1 {w.scalar(I1, w.address(place, terms))} to i64")
            turn.after = [w.code.do(f"add i64 {turn.values[0]}, {one}")]
        w.code.plain(f"store i64 {turn.results[0]}, ptr {w.address(out, [(row.i, 1)])}")


def concatenate(w: Writer, x: Node) -> None:
    """Write arrays one after the other along an axis."""
    at = 0
    strides = [math.prod(x.shape[n + 1 :]) for n in range(x.ndim)]
    for part in x.args:
        out = Place(w.pointers[x.number], x.kind, at * strides[x.data], tuple(strides))
        _copied(w, part, out, x.kind)
        at += part.shape[x.data]


def _copied(w: Writer, x: Node, out: Place, kind: str) -> None:
    """Copy the entries of x, one after the other."""
    s = SCALARS[kind]

    def along(axis: int, indices: Sequence[str]) -> None:
        if axis < x.ndim:
            with w.code.loop(x.shape[axis]) as loop:
                along(axis + 1, [*indices, loop.i])
            return
        if x.is_constant:
            value = literal(kind, x.data)
        else:
            place = w.place(x)
            terms = list(zip(indices, place.strides, strict=True))
            value = w.scalar(place.kind, w.address(place, terms))
            if place.kind != kind:
                value = w.code.do(f"fpext {SCALARS[place.kind]} {value} to {s}")
        address = w.address(out, list(zip(indices, out.strides, strict=True)))
        if kind == I1:
            value = w.code.do(f"zext i1 {value} to i8")
        w.code.plain(f"store {'i8' if kind == I1 else s} {value}, ptr {address}")

    along(0, [])


def aligned(w: Writer, x: Node) -> None:
    """Write init + a @ b as tensor cores add (`emu.sums.aligned`), in integers of 32 bits.

    Factors are significands m and exponents e. A product of two significands is exact in binary32
    and below 4. In units of 2^(E - F) the products of half a chunk are integers whose sum stays
    below 2^31 (`narrow._in_words`).
    """
    ma, ea, mb, eb, init = x.args
    chunk, bits, zero, precision = x.data
    (rows, columns), depth = x.shape, ma.shape[1]
    for e in (ea, eb):
        _finite(w, e)
    out = Place(w.pointers[x.number], F32, 0, (columns, 1))
    for first, count, n in _blocks(columns, width()):
        v = _Vectors(w, n)
        with w.code.loop(rows) as row, w.code.loop(count * n, n) as over:
            j = w.code.do(f"add i64 {over.i}, {first}")
            start = _first(w, init, row.i, j, n, F32)
            with w.code.loop(depth, chunk, [(v.f32, start)]) as turn:
                total = turn.values[0]
                lines = [w.code.do(f"add i64 {turn.i}, {k}") for k in range(chunk)]
                left = [
                    (_one(w, ma, row.i, k, n, F32), _one(w, ea, row.i, k, n, I32)) for k in lines
                ]
                right = [(_first(w, mb, k, j, n, F32), _first(w, eb, k, j, n, I32)) for k in lines]
                turn.after = [_chunk(v, total, left, right, (bits, zero, precision))]
            w.store(F32, turn.results[0], w.address(out, [(row.i, columns), (j, 1)]), n)


class _Vectors:
    """Instructions on vectors of n entries."""

    def __init__(self, w: Writer, n: int) -> None:
        """Name the types of n entries."""
        self.w, self.n, self.do = w, n, w.code.do
        self.f32, self.f64, self.i32, self.i64, self.i1 = (
            vector(t, n) for t in ("float", "double", "i32", "i64", "i1")
        )

    def all(self, kind: str, value: float) -> str:
        """Return a vector of one known number."""
        return vector_of(kind, value, self.n)

    def larger(self, a: str, b: str, order: str = "sgt") -> str:
        """Return the larger of two integers, or with slt the smaller."""
        c = self.do(f"icmp {order} {self.i32} {a}, {b}")
        return self.select(self.i32, c, a, b)

    def select(self, t: str, c: str, a: str, b: str) -> str:
        """Return a where c holds, else b."""
        return self.do(f"select {self.i1} {c}, {t} {a}, {t} {b}")

    def add(self, a: str, b: str) -> str:
        """Return a + b of integers."""
        return self.do(f"add {self.i32} {a}, {b}")

    def power(self, e: str) -> str:
        """Return 2^e in binary32, or 0 for exponents below -126."""
        field = self.larger(self.add(e, self.all(I32, 127)), self.all(I32, 0))
        shifted = self.do(f"shl {self.i32} {field}, {self.all(I32, 23)}")
        return self.do(f"bitcast {self.i32} {shifted} to {self.f32}")

    def times(self, a: str, b: str) -> str:
        """Return a b in binary32."""
        return self.do(f"fmul {self.f32} {a}, {b}")

    def whole(self, x: str) -> str:
        """Return a number cut to an integer."""
        return self.do(f"fptosi {self.f32} {x} to {self.i32}")


def _chunk(
    v: _Vectors,
    total: str,
    left: Sequence[tuple[str, str]],
    right: Sequence[tuple[str, str]],
    how: tuple[int, int, int],
) -> str:
    """Return the total after a chunk of products; factors are (significand, exponent).

    how: F, the exponent of a term of 0, and the precision of the total.
    """
    bits, zero, precision = how
    b = v.do(f"bitcast {v.f32} {total} to {v.i32}")
    raw = v.do(f"lshr {v.i32} {v.do(f'shl {v.i32} {b}, {v.all(I32, 1)}')}, {v.all(I32, 24)}")
    e = v.larger(v.add(raw, v.all(I32, -127)), v.all(I32, -126))
    is_zero = v.do(f"fcmp oeq {v.f32} {total}, {v.all(F32, 0.0)}")
    e_total = v.select(v.i32, is_zero, v.all(I32, NO_EXPONENT), e)
    exponents = [v.add(x[1], y[1]) for x, y in zip(left, right, strict=True)]
    top = low = e_total
    for s in exponents:
        top, low = v.larger(top, s), v.larger(low, s, "slt")
    some_zero = v.do(f"icmp slt {v.i32} {low}, {v.all(I32, NO_EXPONENT // 2)}")
    top = v.select(v.i32, some_zero, v.larger(top, v.all(I32, zero)), top)
    shift = v.do(f"sub {v.i32} {v.all(I32, bits)}, {top}")
    _flag(v, raw)
    halves = []
    for part in (slice(0, len(left) // 2), slice(len(left) // 2, None)):
        units = v.all(I32, 0)
        for (ma, _), (mb, _), s in zip(left[part], right[part], exponents[part], strict=True):
            product = v.times(v.times(ma, mb), v.power(v.add(s, shift)))
            units = v.add(units, v.whole(product))
        halves.append(units)
    half = v.do(f"ashr {v.i32} {e}, {v.all(I32, 1)}")
    rest = v.do(f"sub {v.i32} {e}, {half}")
    m = total
    for n in (half, rest):
        m = v.times(m, v.power(v.do(f"sub {v.i32} {v.all(I32, 0)}, {n}")))
    halves.append(v.whole(v.times(m, v.power(v.add(e, shift)))))
    wide = [v.do(f"sitofp {v.i32} {x} to {v.f64}") for x in halves]
    exact = v.do(f"fadd {v.f64} {v.do(f'fadd {v.f64} {wide[0]}, {wide[1]}')}, {wide[2]}")
    field = v.do(f"sub {v.i32} {v.all(I32, 1023)}, {shift}")
    field = v.do(f"zext {v.i32} {field} to {v.i64}")
    field = v.do(f"shl {v.i64} {field}, {v.all(I64, 52)}")
    unit = v.do(f"bitcast {v.i64} {field} to {v.f64}")
    return _toward_zero(v, v.do(f"fmul {v.f64} {exact}, {unit}"), precision)


def _toward_zero(v: _Vectors, x: str, precision: int) -> str:
    """Return binary64 numbers rounded toward zero; 2^128 and more are infinite.

    They are cut to binary32, and then to fewer bits where the precision is below 24.
    """
    near = v.do(f"fptrunc {v.f64} {x} to {v.f32}")
    size = v.w.code.call(v.f64, f"llvm.fabs.v{v.n}f64", (v.f64, x))
    back = v.do(f"fpext {v.f32} {near} to {v.f64}")
    back = v.w.code.call(v.f64, f"llvm.fabs.v{v.n}f64", (v.f64, back))
    beyond = v.do(f"fcmp olt {v.f64} {size}, {v.all(F64, 2.0**128)}")
    larger = v.do(f"fcmp ogt {v.f64} {back}, {size}")
    down = v.do(f"and {v.i1} {beyond}, {larger}")
    b = v.do(f"bitcast {v.f32} {near} to {v.i32}")
    b = v.do(f"add {v.i32} {b}, {v.do(f'sext {v.i1} {down} to {v.i32}')}")
    b = v.do(f"and {v.i32} {b}, {v.all(I32, -(1 << (24 - precision)))}")
    y = v.do(f"bitcast {v.i32} {b} to {v.f32}")
    is_zero = v.do(f"fcmp oeq {v.f32} {y}, {v.all(F32, 0.0)}")
    return v.select(v.f32, is_zero, v.all(F32, 0.0), y)


def _flag(v: _Vectors, raw: str) -> None:
    """Set the flag of the program if a total is infinite or NaN; raw: biased exponents."""
    code, wide = v.w.code, v.do(f"icmp eq {v.i32} {raw}, {v.all(I32, 255)}")
    found = code.call("i1", f"llvm.vector.reduce.or.v{v.n}i1", (v.i1, wide))
    _raise(code, v.w.flag, found)


def _raise(code: Code, flag: str, found: str) -> None:
    """Set the flag if a condition holds."""
    yes, on = code.new("yes"), code.new("on")
    code.plain(f"br i1 {found}, label %{yes}, label %{on}")
    code.label(yes)
    code.plain(f"store i64 1, ptr {flag}")
    code.plain(f"br label %{on}")
    code.label(on)


def _finite(w: Writer, e: Node) -> None:
    """Set the flag of the program if a factor is infinite or NaN; e: exponents of factors."""
    place, n = w.place(e), width()
    if e.size % n:
        n = math.gcd(e.size, n)
    flat = Place(place.pointer, place.kind, 0, (1,))
    t = vector("i32", n)
    with w.code.loop(e.size, n, [(t, vector_of(I32, 0, n))]) as turn:
        y = w.load(I32, w.address(flat, [(turn.i, 1)]), n)
        c = w.code.do(f"icmp sgt {t} {y}, {turn.values[0]}")
        turn.after = [w.code.do(f"select {vector('i1', n)} {c}, {t} {y}, {t} {turn.values[0]}")]
    top = w.code.call("i32", f"llvm.vector.reduce.smax.v{n}i32", (t, turn.results[0]))
    _raise(w.code, w.flag, w.code.do(f"icmp sge i32 {top}, 128"))


def summary(w: Writer, x: Node) -> None:
    """Write the statistics of an event, in the order of sums of `emu.backends.numba.stats`."""
    f, shape, part = x.data
    if part == 0:
        Summary(w, x, f, shape).write()


WRITERS: dict[str, Callable[[Writer, Node], None]] = {
    "dot": dot,
    "column": column,
    "row_maximum": row_maximum,
    "count": count,
    "concatenate": concatenate,
    "aligned": aligned,
    "summary": summary,
}
