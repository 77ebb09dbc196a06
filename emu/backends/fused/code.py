"""The text of a program in LLVM's language: instructions on vectors, and loops."""

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from roundscope.emu.backends.fused.graph import F32, F64, I1, I32, I64

SCALARS = {F64: "double", F32: "float", I64: "i64", I32: "i32", I1: "i1"}
MEMORY = SCALARS | {I1: "i8"}
BYTES = {F64: 8, F32: 4, I64: 8, I32: 4, I1: 1}


def vector(scalar: str, width: int) -> str:
    """Return the type of a vector."""
    return f"<{width} x {scalar}>"


def literal(kind: str, value: float | int | bool) -> str:
    """Return a number as LLVM writes it."""
    if kind in (F64, F32):
        return f"0x{struct.unpack('<Q', struct.pack('<d', _float(value)))[0]:016X}"
    return str(int(value))


def vector_of(kind: str, value: float | int | bool, n: int) -> str:
    """Return a vector of n entries that all are one known number."""
    return "<" + ", ".join([f"{SCALARS[kind]} {literal(kind, value)}"] * n) + ">"


def _float(value: float) -> float:
    return math.nan if value != value else float(value)


@dataclass(slots=True)
class Code:
    """Instructions, written one after the other."""

    lines: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    count: int = 0
    block: str = "entry"

    def new(self, prefix: str = "v") -> str:
        """Return a name that no instruction has yet."""
        self.count += 1
        return f"{prefix}{self.count}"

    def do(self, instruction: str) -> str:
        """Write an instruction and return the name of its result."""
        name = f"%{self.new()}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def plain(self, instruction: str) -> None:
        """Write an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def call(self, result: str, name: str, *args: tuple[str, str]) -> str:
        """Write a call of one of LLVM's functions; args are (type, value)."""
        self.declared.add(f"declare {result} @{name}({', '.join(t for t, _ in args)})")
        return self.do(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in args)})")

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    @contextmanager
    def loop(
        self, count: int, step: int = 1, carried: Sequence[tuple[str, str]] = ()
    ) -> Iterator["Loop"]:
        """Write a loop over 0, step, 2 step ... below count.

        carried: (type, first value) of each number that a turn passes to the next. The body sets
        `Loop.after`; after the loop, `Loop.results` are the last values.
        """
        assert count > 0  # the first turn is not asked
        head, end, before = self.new("turn"), self.new("end"), self.block
        self.plain(f"br label %{head}")
        self.label(head)
        i, following = f"%{self.new('i')}", f"%{self.new('n')}"
        at = len(self.lines)
        values = [f"%{self.new('c')}" for _ in carried]
        loop = Loop(i, values, list(values), [f"{v}.last" for v in values])
        yield loop
        phis = [f"  {i} = phi i64 [ 0, %{before} ], [ {following}, %{self.block} ]"]
        for (kind, first), value, after in zip(carried, values, loop.after, strict=True):
            phis.append(
                f"  {value} = phi {kind} [ {first}, %{before} ], [ {after}, %{self.block} ]"
            )
        self.lines[at:at] = phis
        self.plain(f"{following} = add i64 {i}, {step}")
        more = self.do(f"icmp slt i64 {following}, {count}")
        last = self.block
        self.plain(f"br i1 {more}, label %{head}, label %{end}")
        self.label(end)
        for (kind, _), result, after in zip(carried, loop.results, loop.after, strict=True):
            self.plain(f"{result} = phi {kind} [ {after}, %{last} ]")

    def choice(
        self,
        condition: str,
        types: Sequence[str],
        yes: Callable[[], Sequence[str]],
        no: Callable[[], Sequence[str]],
    ) -> list[str]:
        """Write a branch, and return the values of the side that is taken.

        yes, no: what writes a side and returns its values, of these types.
        """
        names, end = [self.new("yes"), self.new("no")], self.new("end")
        self.plain(f"br i1 {condition}, label %{names[0]}, label %{names[1]}")
        sides = []
        for name, write in zip(names, (yes, no), strict=True):
            self.label(name)
            values = write()
            sides.append([f"[ {value}, %{self.block} ]" for value in values])
            self.plain(f"br label %{end}")
        self.label(end)
        return [self.do(f"phi {t} {a}, {b}") for t, a, b in zip(types, *sides, strict=True)]

    def splat(self, kind: str, scalar: str, width: int) -> str:
        """Return a vector of one number."""
        t = vector(SCALARS[kind], width)
        one = self.do(f"insertelement {t} poison, {SCALARS[kind]} {scalar}, i64 0")
        zeros = f"{vector('i32', width)} zeroinitializer"
        return self.do(f"shufflevector {t} {one}, {t} poison, {zeros}")


@dataclass(slots=True)
class Loop:
    """A loop that is being written: its counter, and what turns pass on."""

    i: str
    values: list[str]
    after: list[str]
    results: list[str]
