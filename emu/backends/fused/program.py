"""Programs: a function of arrays, traced, as machine code, which is called with NumPy arrays."""

import ctypes
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain, count
from typing import Any
from weakref import WeakValueDictionary

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from roundscope.emu.backends.fused.code import Code
from roundscope.emu.backends.fused.entries import is_entrywise
from roundscope.emu.backends.fused.graph import DTYPES, F32, F64, FLOATS, I1, I64, Graph, Node
from roundscope.emu.backends.fused.loops import Writer, memory
from roundscope.emu.backends.fused.narrow import graph_ops
from roundscope.emu.backends.fused.schedule import Schedule, scheduled
from roundscope.emu.backends.fused.sums import WRITERS
from roundscope.emu.backends.kept import keep, read_kept
from roundscope.emu.backends.ops import Ops, mapped, rebuilt
from roundscope.emu.backends.threads import kept_folder, over_threads
from roundscope.emu.stats.summary import record_type, records_type

_LINE = 64  # bytes of a line of the cache
_building = threading.Lock()


class Program:
    """A compiled function of arrays, which a call runs once or several times.

    Calls may run in several threads at once; each thread has a workspace of its own.
    """

    def __init__(
        self, graph: Graph, inputs: Sequence[Node], outputs: Sequence[tuple[Node, ...]], key: str
    ) -> None:
        """Compile the program that computes the outputs from the inputs.

        Each output is one node, or the parts of summaries, which the caller gets as one record. No
        other program has its key, a text; its code is written only if no machine code is kept under
        the key.
        """
        n = count()
        groups = [[_left(graph, x, next(n)) for x in xs] for xs in outputs]
        made = [*chain.from_iterable(groups)]
        self.inputs = [_form(x) for x in inputs]
        self.outputs = [_form(*xs) if len(xs) == 1 else ((), _type_of(xs), ()) for xs in groups]
        schedule = scheduled(graph, made)
        tables, offsets, self.size = memory(schedule, inputs, made)
        self.tables = [x.data for x in tables]
        named = [*inputs, *made, *tables]

        def text() -> str:
            return module(written(graph, schedule, named, offsets), len(named) + 2)

        with _building:
            self.function, self.engine = _compiled(key, text)
        sizes = [
            -(-math.prod(shape) * dtype.itemsize // _LINE) * _LINE + _LINE
            for shape, dtype, _ in self.outputs
        ]
        self.offsets, self.memory = [0, *accumulate(sizes)][:-1], sum(sizes)
        self.parts = [
            part
            for offset, (_, dtype, _) in zip(self.offsets, self.outputs, strict=True)
            for part in _places(dtype, offset)
        ]
        self.addresses = [address_of(x) for x in self.tables]
        self.own = threading.local()

    def __call__(
        self, count: int, arrays: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the outputs of `count` runs, in order, and which of the runs are void, (count,).

        A run is void if the program met a number that it cannot compute with. Inputs and outputs
        have a first axis of runs; of an input that is the same for all runs it has one entry.
        """
        void = np.zeros(count, np.int64)
        memory = np.empty(count * self.memory + _LINE, np.uint8)
        start = -address_of(memory) % _LINE
        held = [  # without gaps between the entries of a run
            x if x.dtype == dtype and x.strides[1:] == strides else np.ascontiguousarray(x, dtype)
            for x, (_, dtype, strides) in zip(arrays, self.inputs, strict=True)
        ]
        first = address_of(memory) + start
        addresses = [
            *map(address_of, held),
            *(first + offset for offset in self.parts),
            *self.addresses,
            address_of(void),
            0,
        ]
        steps = [
            *(x.strides[0] if len(x) > 1 else 0 for x in held),
            *[self.memory] * len(self.parts),
            *[0] * len(self.addresses),
            void.itemsize,
            0,
        ]
        table = np.array(addresses) + np.arange(count)[:, None] * np.array(steps)
        written_to = held, memory, void  # a thread that still runs after an error keeps them alive

        def run(begin: int, end: int) -> None:
            assert written_to
            table[begin:end, -1] = self._workspace()
            self.function(address_of(table) + begin * table.strides[0], end - begin)

        over_threads(run, count, count * self.memory)
        results: list[Any] = [
            np.ndarray((count, *shape), dtype, memory, start + offset, (self.memory, *strides))
            for (shape, dtype, strides), offset in zip(self.outputs, self.offsets, strict=True)
        ]
        return results, void != 0

    def _workspace(self) -> int:
        """Return the address of this thread's workspace."""
        if not hasattr(self.own, "space"):
            self.own.space = np.empty(self.size + 2 * _LINE, np.uint8)
        return -(-address_of(self.own.space) // _LINE) * _LINE


def _form(x: Node) -> tuple[tuple[int, ...], Any, tuple[int, ...]]:
    """Return shape, NumPy's type, and the distances in bytes between entries without gaps."""
    dtype = np.dtype(DTYPES[x.kind])
    gaps = (math.prod(x.shape[n + 1 :]) * dtype.itemsize for n in range(x.ndim))
    return x.shape, dtype, tuple(gaps)


def _type_of(summaries: Sequence[Node]) -> Any:
    """Return the type of a record of the summaries with these parts, of which rows are the last."""
    parts = len(record_type(0))
    return records_type([rows.size for rows in summaries[parts - 1 :: parts]])


def _places(dtype: Any, offset: int) -> list[int]:
    """Return where the fields of a type, and the fields of these, begin after an offset."""
    if not dtype.names:
        return [offset]
    places = (_places(*dtype.fields[name][:2]) for name in dtype.names)
    return [offset + place for part in places for place in part]


def address_of(x: np.ndarray) -> int:
    """Return where the first entry of an array is in memory."""
    return int(x.__array_interface__["data"][0])


def _left(graph: Graph, x: Node, n: int) -> Node:
    """Return a node as an operation by entry of its own, in the type that callers get."""
    if x.kind in FLOATS:
        return graph.node("widen", (x,), kind=F64, data=("output", n))
    return graph.node("copy", (x,), kind=x.kind, data=("output", n), bounds=x.bounds)


def written(
    graph: Graph, schedule: Schedule, named: Sequence[Node], offsets: dict[int, int]
) -> Code:
    """Return the code of a program.

    Its argument points to the addresses of the named nodes (the inputs, the outputs and the
    tables), of a flag and of the workspace.
    """
    w = Writer(graph)
    for slot, number in enumerate([*(x.number for x in named), None, None]):
        at = w.code.do(f"getelementptr ptr, ptr %args, i64 {slot}")
        pointer = w.code.do(f"load ptr, ptr {at}")
        if number is not None:
            w.pointers[number] = pointer
        elif not w.flag:
            w.flag = pointer
    for number, offset in offsets.items():
        w.pointers[number] = w.code.do(f"getelementptr i8, ptr {pointer}, i64 {offset}")
    for stage in schedule.stages:
        for group in stage:
            if not group[0].size:
                continue  # a loop runs at least once
            if is_entrywise(group[0]):
                w.entrywise(group, schedule.stored)
            else:
                WRITERS[group[0].op](w, group[0])
    return w.code


def module(code: Code, slots: int) -> str:
    """Return the text of a module with the function `run(addresses, count)`.

    It runs the code `count` times, each time with the next `slots` of the addresses.
    """
    declared = "\n".join(sorted(code.declared))
    body = "\n".join(code.lines)
    return (
        f"{declared}\ndefine internal void @once(ptr noalias %args) #0 {{\nentry:\n{body}\n"
        f"  ret void\n}}\n{_RUNS.format(slots=slots)}"
        'attributes #0 = { "prefer-vector-width"="512" "min-legal-vector-width"="512" }\n'
    )


_RUNS = """define void @run(ptr %addresses, i64 %count) #0 {{
entry:
  br label %turn
turn:
  %i = phi i64 [ 0, %entry ], [ %n, %turn ]
  %first = mul i64 %i, {slots}
  %args = getelementptr ptr, ptr %addresses, i64 %first
  call void @once(ptr %args)
  %n = add i64 %i, 1
  %more = icmp slt i64 %n, %count
  br i1 %more, label %turn, label %end
end:
  ret void
}}
"""


@cache
def _processor() -> tuple[str, str]:
    """Return the name and the features of this machine's processor, as LLVM calls them."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _compiled(key: str, text: Callable[[], str]) -> tuple[Callable[[int, int], None], Any]:
    """Return the function `run` of a module, and the engine that owns its memory.

    The machine code is kept on disk, under a digest of the key and of the machine.
    """
    name, features = _processor()
    made_by = (key, name, features, str(llvm.llvm_version_info))
    digest = hashlib.sha256("\n".join(made_by).encode()).hexdigest()
    folder, file = kept_folder("fused", llvmlite.__version__), f"{digest[:24]}.o"
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=name, features=features, opt=2)
    data = read_kept(folder, file)
    if data is None:
        parsed = llvm.parse_assembly(text())
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(machine, options)
        passes = builder.getModulePassManager()
        passes.run(parsed, builder)
        data = machine.emit_object(parsed)
        keep(folder, file, data)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    address = engine.get_function_address("run")
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address), engine


_made: WeakValueDictionary[Any, Program] = WeakValueDictionary()  # by all operations of a graph


def program(
    function: Callable[..., Any], like: Any, narrow: Any
) -> tuple[Program, Callable[[list[Any]], Any]]:
    """Return function(ops, *like) as a program, and what gives its outputs the form of its result.

    The summaries of events in a dict are one output together, a record of records whose fields are
    the parts of a summary. Its name in the form is the tuple of their names. Raises
    `graph.Untraceable` if the function does something that programs do not have.

    like: tuples of arrays with the shapes and types of the arguments; narrow: for each array,
    whether binary32 holds its numbers.
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
    form = _outline(graph, result, leaves)
    return _of(graph, inputs, leaves), lambda arrays: mapped(
        lambda n: None if n is None else arrays[n], form
    )


def _of(graph: Graph, inputs: Sequence[Node], outputs: Sequence[tuple[Node, ...]]) -> Program:
    """Return the program of a graph: one that is in use, if it has the same operations."""
    key = tuple(graph.known), *(tuple(x.number for x in xs) for xs in (inputs, *outputs))
    program = _made.get(key)
    if program is None:
        program = _made[key] = Program(graph, inputs, outputs, repr(key))
    return program


def _outline(graph: Graph, x: Any, leaves: list[tuple[Node, ...]]) -> Any:
    """Return a result with the number of an output for each node and for summaries of a dict.

    None stays None.
    """
    if isinstance(x, dict):
        names = tuple(name for name, part in x.items() if _is_summary(graph, part))
        others = {name: _outline(graph, x[name], leaves) for name in x if name not in names}
        if not names:
            return others
        leaves.append(tuple(part for name in names for part in x[name]))
        return {names: len(leaves) - 1} | others
    if isinstance(x, tuple):
        return rebuilt(x, (_outline(graph, part, leaves) for part in x))
    if x is None:
        return None
    leaves.append((graph.of(x),))
    return len(leaves) - 1


def _is_summary(graph: Graph, x: Any) -> bool:
    """Return whether a result is a tuple of the parts of a summary, and nothing else."""
    first = x[0] if isinstance(x, tuple) and x else None
    return isinstance(first, Node) and graph.parts.get(first.number) == x
