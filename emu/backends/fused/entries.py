"""The operations that act on each entry by itself, as instructions on vectors of entries."""

from typing import Any

from roundscope.emu.backends.fused.code import SCALARS, Code, vector, vector_of
from roundscope.emu.backends.fused.graph import F32, F64, FLOATS, I1, I32, I64, SMALL, Node

FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
SHIFTS = {"shl": "shl", "shr": "ashr"}
FLOAT_ORDER = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
INTEGER_ORDER = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
# the larger or smaller entry: LLVM's order, and whether it is NaN if one entry is NaN
CHOICES = {
    "maximum": ("ge", True),
    "minimum": ("le", True),
    "fmax": ("ge", False),
    "fmin": ("le", False),
}
INTRINSICS = {"copysign": "copysign", "fma": "fma", "abs": "fabs", "floor": "floor"}
INTRINSICS |= {"trunc": "trunc"}
BITCASTS = {"bits": (F64, I64), "number": (I64, F64), "bits32": (F32, I32), "number32": (I32, F32)}
SAME = {"copy": None, "widen": F64, "narrow": F32, "word": I32}  # the operand, of a kind
ELSEWHERE = ["input", "constant", "table", "view", "concatenate", "row_maximum", "count", "dot"]
ELSEWHERE += ["column", "aligned", "summary", "placeholder"]
MAGIC = 2.0**52 + 2.0**51  # with a whole number below 2^51, it leaves the number in the low bits
MAGIC_BITS = 0x4338_0000_0000_0000


def is_entrywise(x: Node) -> bool:
    """Return whether each entry of a node depends on the same entry of its operands only."""
    return x.op not in ELSEWHERE


def is_small(x: Node) -> bool:
    """Return whether 32 bits hold the integers of a node."""
    return x.kind == I64 and SMALL[0] <= x.bounds[0] and x.bounds[1] <= SMALL[1]


class Entries:
    """The values of nodes for one vector of entries."""

    def __init__(self, code: Code, width: int, *, keeps_width: bool = False) -> None:
        """Make an empty set of values; keeps_width: small integers also stay 64 bits wide."""
        self.code, self.width, self.keeps_width = code, width, keeps_width
        self.values: dict[tuple[int, str], str] = {}

    def type(self, kind: str) -> str:
        """Return the type of a vector of a kind."""
        return vector(SCALARS[kind], self.width)

    def own(self, x: Node) -> str:
        """Return the kind of the vector that a node is computed in."""
        return I32 if is_small(x) and not self.keeps_width else x.kind

    def set(self, x: Node, value: str) -> None:
        """Keep the vector of a node, of its own kind."""
        self.values[x.number, self.own(x)] = value

    def get(self, x: Node, kind: str | None = None) -> str:
        """Return the vector of a node, of its own kind or of a given one."""
        own = self.own(x)
        kind = own if kind is None else kind
        if x.is_constant:
            return vector_of(kind, x.data, self.width)
        key = (x.number, kind)
        if key not in self.values:
            self.values[key] = self._converted(self.values[x.number, own], own, kind)
        return self.values[key]

    def _converted(self, value: str, own: str, kind: str) -> str:
        a, b = self.type(own), self.type(kind)
        how = {
            (F32, F64): "fpext",
            (F64, F32): "fptrunc",
            (I32, I64): "sext",
            (I64, I32): "trunc",
            (I1, I64): "zext",
            (I1, I32): "zext",
        }[own, kind]
        return self.code.do(f"{how} {a} {value} to {b}")

    def compute(self, x: Node) -> None:
        """Write the instructions of a node whose operands have values."""
        if x.op in CHOICES:
            value = self._chosen(x, *CHOICES[x.op])
        elif x.op in INTRINSICS:
            value = self._intrinsic(INTRINSICS[x.op], x.kind, *x.args)
        elif x.op in BITCASTS:
            own, kind = BITCASTS[x.op]
            value = self._cast(self.get(x.args[0], own), own, kind)
        elif x.op in SAME:
            value = self.get(x.args[0], SAME[x.op])
        else:
            value = getattr(self, f"_{x.op}", self._arithmetic)(x)
        self.set(x, value)

    def _arithmetic(self, x: Node) -> str:
        a, b = x.args
        if x.kind in FLOATS and x.op in FLOAT:
            v, w = self.get(a, x.kind), self.get(b, x.kind)
            return self.code.do(f"{FLOAT[x.op]} {self.type(x.kind)} {v}, {w}")
        if x.op in FLOAT_ORDER:
            return self._ordered(x, a, b)
        if x.op in SHIFTS:
            return self._shifted(x, a, b)
        kind = self.own(x)
        if kind == I32 and x.kind == I64 and not (is_small(a) and is_small(b)) and x.op != "and":
            return self._converted(self._integers(x.op, a, b, I64), I64, I32)
        return self._integers(x.op, a, b, kind)

    def _integers(self, op: str, a: Node, b: Node, kind: str) -> str:
        return self.code.do(
            f"{INTEGER[op]} {self.type(kind)} {self.get(a, kind)}, {self.get(b, kind)}"
        )

    def _shifted(self, x: Node, a: Node, b: Node) -> str:
        kind = self.own(x)
        small = kind == I32 and (x.kind == I32 or is_small(a))
        used = kind if small or kind == I64 else I64
        v, w = self.get(a, used), self.get(b, used)
        y = self.code.do(f"{SHIFTS[x.op]} {self.type(used)} {v}, {w}")
        return y if used == kind else self._converted(y, used, kind)

    def _ordered(self, x: Node, a: Node, b: Node) -> str:
        if a.kind in FLOATS:
            kind = F32 if a.kind == b.kind == F32 else F64
            how = f"fcmp {FLOAT_ORDER[x.op]}"
        elif a.kind == I1:
            kind, how = I1, f"icmp {INTEGER_ORDER[x.op]}"
        else:
            small = self.own(a) == I32 and self.own(b) == I32
            kind, how = (I32 if small else I64), f"icmp {INTEGER_ORDER[x.op]}"
        return self.code.do(f"{how} {self.type(kind)} {self.get(a, kind)}, {self.get(b, kind)}")

    def _select(self, kind: str, c: str, a: str, b: str) -> str:
        t = self.type(kind)
        return self.code.do(f"select {self.type(I1)} {c}, {t} {a}, {t} {b}")

    def _where(self, x: Node) -> str:
        kind = self.own(x)
        c, a, b = x.args
        return self._select(kind, self.get(c), self.get(a, kind), self.get(b, kind))

    def _chosen(self, x: Node, order: str, keeps_nan: bool) -> str:
        """Return the larger or smaller entry; `keeps_nan`: NaN if one is NaN, else the other."""
        kind, t = self.own(x), self.type(self.own(x))
        a, b = (self.get(y, kind) for y in x.args)
        if kind not in FLOATS:
            c = self.code.do(f"icmp s{order} {t} {a}, {b}")
            return self._select(kind, c, a, b)
        c = self.code.do(f"fcmp o{order} {t} {a}, {b}")
        larger = self._select(kind, c, a, b)
        tested, other = (a, a) if keeps_nan else (b, a)
        is_nan = self.code.do(f"fcmp uno {t} {tested}, {tested}")
        return self._select(kind, is_nan, other, larger)

    def _intrinsic(self, name: str, kind: str, *args: Node) -> str:
        t = self.type(kind)
        full = f"llvm.{name}.v{self.width}{'f32' if kind == F32 else 'f64'}"
        return self.code.call(t, full, *((t, self.get(y, kind)) for y in args))

    def _neg(self, x: Node) -> str:
        return self.code.do(f"fneg {self.type(x.kind)} {self.get(x.args[0])}")

    def _cast(self, value: str, a: str, b: str) -> str:
        return self.code.do(f"bitcast {self.type(a)} {value} to {self.type(b)}")

    def _to_number(self, x: Node) -> str:
        (a,) = x.args
        return self.code.do(f"sitofp {self.type(self.own(a))} {self.get(a)} to {self.type(F64)}")

    def _to_integer(self, x: Node) -> str:
        t, number = self.type(F64), self.get(x.args[0], F64)
        magic = vector_of(F64, MAGIC, self.width)
        shifted = self._cast(self.code.do(f"fadd {t} {number}, {magic}"), F64, I64)
        less = vector_of(I64, MAGIC_BITS, self.width)
        return self.code.do(f"sub {self.type(I64)} {shifted}, {less}")

    def _gather(self, x: Node) -> str:
        where, table = x.args
        kind: Any = x.kind
        assert kind in (I64, F64)
        indices, pointer = self.get(where, I64), self.values[table.number, "pointer"]
        pointers = self.code.do(
            f"getelementptr {SCALARS[kind]}, ptr {pointer}, {self.type(I64)} {indices}"
        )
        y = self._loads(kind, pointers)
        return self._converted(y, I64, I32) if self.own(x) == I32 else y

    def _loads(self, kind: str, pointers: str) -> str:
        """Return the numbers at a vector of addresses, read one after the other."""
        t, scalar, result = self.type(kind), SCALARS[kind], "poison"
        for n in range(self.width):
            p = self.code.do(f"extractelement {vector('ptr', self.width)} {pointers}, i64 {n}")
            one = self.code.do(f"load {scalar}, ptr {p}")
            result = self.code.do(f"insertelement {t} {result}, {scalar} {one}, i64 {n}")
        return result
