"""`record`: the operations of one run of a JAX function, as a tape that can run again.

The function is traced, and its steps run one after the other, as JAX runs them when it is called
without `jax.jit`; in a jitted function each operation is a program of its own. The function itself
is called as well: where its result has other bits, an operation `whole_program` stands for what
the operations, one at a time, do not show, such as what XLA does across them.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

from roundscope.operations.models.jax.arrays import JaxArrays
from roundscope.operations.models.jax.program import Constant, Program, Step, program_of
from roundscope.operations.models.jax.running import Options, inputs_of, run_steps
from roundscope.operations.models.jax.scopes import Operation, operations_of, primitives
from roundscope.operations.models.jax.side import Side, called, traced
from roundscope.operations.models.jax.written import Unwritable, written
from roundscope.operations.models.replay import same
from roundscope.operations.models.tape import (
    INPUT,
    PARAMETER,
    Entry,
    Ref,
    Runner,
    Tape,
    Value,
    mapped,
)

WHOLE = "whole_program"


class _Recorder:
    """The tape of programs that run one after the other, behind those of a tape."""

    def __init__(self, options: Options, tape: Tape | None = None) -> None:
        self.options = options
        self.step = 0 if tape is None else tape.steps - 1
        self.entries: list[Entry] = [] if tape is None else [*tape.entries]
        self.values: list[Value] = [] if tape is None else [*tape.values]
        self.runners: dict[int, Runner] = {} if tape is None else {**tape.runners}

    def add(self, name: str, array: Any) -> int:
        """Return the number of a new value."""
        shape = JaxArrays().numpy(array).shape  # of a random key that of its numbers
        self.values.append(Value(name=name, dtype=str(array.dtype), shape=shape, array=array))
        return len(self.values) - 1

    def run(self, program: Program, operations: Sequence[Operation], given: Sequence[int]) -> Any:
        """Run a program whose inputs are values of the tape, and return its results: values of the
        tape, or constants.
        """
        place = dict(zip(program.inputs, given, strict=True))
        for v, array in program.constants.items():
            place[v] = self.add(f"{INPUT}constant {v}", array)
        needed = {x for x in program.outputs if not isinstance(x, Constant)}
        last: dict[int, int] = {v: len(operations) for v in needed}
        for n, operation in enumerate(operations):
            for v in inputs_of([eqn for step in operation.steps for eqn in step.equations]):
                last[v] = max(n, last.get(v, 0))
        for n, operation in enumerate(operations):
            equations = [eqn for step in operation.steps for eqn in step.equations]
            inputs = inputs_of(equations)
            outputs = [v for eqn in equations for v in eqn.outputs if last.get(v, -1) > n]
            if not outputs:
                continue
            run = partial(run_again, operation.steps, self.options, tuple(inputs), tuple(outputs))
            settings: dict[str, Any] = {"arithmetic": arithmetic(program, operation)}
            with suppress(Unwritable):
                settings["program"] = written(operation.steps, inputs, outputs, self.options)
            arguments = [place[v] for v in inputs]
            made = run([self.values[v].array for v in arguments], {})
            for v, array in zip(outputs, made, strict=True):
                place[v] = self.add("", array)
            number = len(self.entries)
            self.runners[number] = run
            self.entries.append(
                Entry(
                    number=number,
                    operation=operation.name,
                    function=operation.function,
                    module=operation.module,
                    step=self.step + operation.steps[0].number,
                    arguments=(tuple(map(Ref, arguments)), {}),
                    outputs=tuple(place[v] for v in outputs),
                    settings=settings,
                )
            )
        return [x if isinstance(x, Constant) else place[x] for x in program.outputs]


def run_again(
    steps: Sequence[Step],
    options: Options,
    inputs: Sequence[int],
    outputs: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Run the steps of an operation on arguments."""
    found = run_steps(steps, dict(zip(inputs, args, strict=True)), options)
    return [found[v] for v in outputs]


def arithmetic(program: Program, operation: Operation) -> list[str]:
    """Return what an operation computes in words: the primitives that round, casts as "to" and the
    type, products with the type of the result, and whether it is compiled as one program.
    """
    words = []
    for x in primitives(program, operation.steps):
        if not x.rounds:
            continue
        word = x.name
        if word == "convert_element_type":
            word = f"to {x.dtype}"
        elif word == "dot_general":
            word = f"dot_general to {x.dtype}{_precision(x.params['precision'])}"
        words.append(" ".join([word, *(f"{x:.6g}" for x in map(float, x.constants))]))
    return words + (["compiled"] if operation.steps[0].region else [])


def _precision(given: Any) -> str:
    if given is None:
        return ""
    each = given if isinstance(given, tuple) else (given,)
    return f" ({', '.join(dict.fromkeys(str(x) for x in each))})"


def record(side: Side, name: str = "run") -> Tape:
    """Run a function as a side says, and return the tape: the first result of `recorded`."""
    return recorded(side, name)[0]


def recorded(side: Side, name: str = "run") -> tuple[Tape, Any]:
    """Run a function as a side says, and return the tape and what the function returns.

    Args:
        side: It.
        name: What the run is called in an error message.

    Raises:
        TypeError: The function or the inputs are of another type.
        ValueError: The function or `logprobs` raised an error, cannot be traced, or returned what
            cannot be compared.
    """
    run = traced(side, name)
    recorder = _Recorder(run.options)
    given = [
        recorder.add(f"{PARAMETER}{path}" if path else f"{INPUT}{i}", x)
        for i, (path, x) in enumerate(zip(run.paths, run.arrays, strict=True))
    ]
    outs = recorder.run(run.program, run.operations, given)
    result = called(name, "the function", run.function, *run.arrays)
    whole = jax.tree.leaves(result)[run.place]
    value = _kept(recorder, outs[run.place])
    x = recorder.values[value]
    tokens = run.tokens
    has_logits = tokens is not None and len(x.shape) == 3 and x.shape[:2] == tokens.shape
    tape = Tape(
        entries=recorder.entries,
        values=recorder.values,
        tokens=tokens,
        logits=value if has_logits else None,
        output=value,
        about=about(x.array),
        runners=recorder.runners,
        arrays=JaxArrays(),
        row=side.row,
    )
    if not same(*map(JaxArrays().numpy, (x.array, whole))):
        tape = with_whole(tape, whole)
    if side.logprobs is not None:
        tape = _with_logprobs(tape, side.logprobs, name)
    return tape, result


def _kept(recorder: _Recorder, out: Any) -> int:
    if isinstance(out, Constant):
        return recorder.add(f"{INPUT}constant", jnp.asarray(out.number))
    return int(out)


def with_whole(tape: Tape, whole: Any = None) -> Tape:
    """Return a tape with an operation `whole_program` behind the result of its function.

    Args:
        tape: It.
        whole: The result of the whole program, whose difference is put in; None for the same.
    """
    value = tape.output if tape.logits is None else tape.logits
    assert value is not None
    own = tape.numpy(value)
    array = own if whole is None else JaxArrays().numpy(whole)
    at, made = 1 + tape.made_by.get(value, -1), len(tape.values)
    entry = Entry(
        number=at,
        operation=WHOLE,
        function="operation by operation" if whole is None else "across operations",
        module="",
        step=tape.steps - 1,
        arguments=((Ref(value),), {}),
        outputs=(made,),
        note="the difference between the program and its operations is put in",
    )

    def moved(x: Any) -> Any:
        return Ref(made) if x == Ref(value) else x

    later = [
        replace(e, number=e.number + 1, arguments=mapped(moved, tuple(e.arguments)))
        for e in tape.entries[at:]
    ]
    return replace(
        tape,
        entries=[*tape.entries[:at], entry, *later],
        values=[*tape.values, replace(tape.values[value], name="", array=jnp.asarray(array))],
        logits=None if tape.logits is None else made,
        output=made,
        runners={n + (n >= at): x for n, x in tape.runners.items()}
        | {at: partial(put_in, own, array)},
    )


def put_in(old: Any, new: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the argument of `whole_program`, plus new - old."""
    return [JaxArrays().shifted(args[0], new, old)]


def _with_logprobs(tape: Tape, function: Callable[..., Any], name: str) -> Tape:
    """Return a tape with what a side computes of its logits."""
    if tape.tokens is None or tape.logits is None:
        raise ValueError(f"{name}: logprobs= needs tokens of whole numbers as the inputs")
    recorder = _Recorder(None, tape)
    logits, tokens = tape.values[tape.logits].array, jnp.asarray(tape.tokens)
    program, _ = called(name, "logprobs=", program_of, function, logits, tokens)
    given = [tape.logits, recorder.add("", tokens)]
    outs = recorder.run(program, operations_of(program, dict.fromkeys(program.inputs, "")), given)
    wanted = (tokens.shape[0], tokens.shape[1] - 1)
    found = [_kept(recorder, out) for out in outs]
    if len(found) != 1 or recorder.values[found[0]].shape != wanted:
        raise ValueError(
            f"{name}: logprobs= returned something else than an array {wanted}, of each token but"
            " the first its log-probability"
        )
    return replace(
        tape,
        entries=recorder.entries,
        values=recorder.values,
        runners=recorder.runners,
        logprobs=found[0],
    )


def about(x: Any) -> dict[str, str]:
    """Return what a run's bits depend on beside its numbers: versions and the device."""
    device = next(iter(jnp.asarray(x).devices()))
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "device": device.device_kind,
        "default_matmul_precision": str(precision),
    }
