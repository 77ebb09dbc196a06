"""`record`: the operations of one run of a JAX function, as a tape that can run again.

The function is traced, and its steps run one after the other, as JAX runs them when it is called
without `jax.jit`; in a jitted function each operation is a program of its own. The function itself
is called as well: where its result has other bits, an operation `whole_program` stands for what
the operations, one at a time, do not show, such as what XLA does across them.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

from roundscope.emu.shown import shown
from roundscope.emu.testing.foreign import raised
from roundscope.operations.models.jax.arrays import JaxArrays
from roundscope.operations.models.jax.program import Constant, Program, program_of
from roundscope.operations.models.jax.running import Options, inputs_of, run_steps
from roundscope.operations.models.jax.scopes import Operation, operations_of, primitives
from roundscope.operations.models.replay import same
from roundscope.operations.models.tape import (
    INPUT,
    PARAMETER,
    Entry,
    Ref,
    Runner,
    Tape,
    Value,
    leaves,
)

WHOLE = "whole_program"


@dataclass(frozen=True, slots=True)
class Side:
    """A run of a JAX function, which `compare` repeats and records.

    Attributes:
        function: A function of (parameters, inputs) or of the inputs alone, jitted or not, such as
            `model.apply` of a module of flax's linen; or a module of flax's nnx.
        inputs: Its tokens (B, T) as an array of whole numbers, an array that is no tokens, or a
            dictionary of the function's arguments by name.
        parameters: A tree of arrays, None for a function of the inputs alone. Those of a module of
            nnx are its own.
        logprobs: A function of (logits, tokens) that computes the log-probabilities as this side
            does; by default they are computed from the logits in binary64.
        row: Which entry of the batch is compared, if the other side has a smaller batch.
        compiler_options: The function is compiled as a whole with these options of XLA, such as
            {"xla_allow_excess_precision": False}, which `jax.jit` takes too.
    """

    function: Callable[..., Any]
    inputs: Any
    parameters: Any = None
    logprobs: Callable[[Any, Any], Any] | None = None
    row: int = 0
    compiler_options: Mapping[str, Any] | None = None


class _Recorder:
    """The tape of programs that run one after the other."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.entries: list[Entry] = []
        self.values: list[Value] = []
        self.runners: dict[int, Runner] = {}

    def add(self, name: str, array: Any) -> int:
        """Return the number of a new value."""
        shape, dtype = tuple(jnp.shape(array)), str(jnp.result_type(array))
        self.values.append(Value(name=name, dtype=dtype, shape=shape, array=array))
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
            run = partial(_again, operation, self.options, tuple(inputs), tuple(outputs))
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
                    step=0,
                    arguments=(tuple(map(Ref, arguments)), {}),
                    outputs=tuple(place[v] for v in outputs),
                    settings={"arithmetic": arithmetic(program, operation)},
                )
            )
        return [x if isinstance(x, Constant) else place[x] for x in program.outputs]


def _again(
    operation: Operation,
    options: Options,
    inputs: Sequence[int],
    outputs: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Run an operation on arguments."""
    found = run_steps(operation.steps, dict(zip(inputs, args, strict=True)), options)
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


def record(side: Side, name: str = "run", *, with_whole: bool = False) -> Tape:
    """Run a function as a side says, and return the tape.

    Args:
        side: It.
        name: What the run is called in an error message.
        with_whole: Whether the tape has an operation `whole_program` in any case.

    Raises:
        TypeError: The function or the inputs are of another type.
        ValueError: The function or `logprobs` raised an error, cannot be traced, or returned what
            cannot be compared.
    """
    function, parameters = _function(side, name)
    tokens = _tokens(name, side.inputs)
    options = None if side.compiler_options is None else dict(side.compiler_options)
    recorder = _Recorder(options)
    flat, structure = jax.tree_util.tree_flatten_with_path((parameters, side.inputs))
    arrays = [jnp.asarray(x) for _, x in flat]
    paths = [_path(path) for path, _ in flat]

    def called(*given: Any) -> Any:
        own, inputs = jax.tree.unflatten(structure, given)
        return function(own, inputs)

    traced = called if options is None else jax.jit(called)
    compiled = called if options is None else jax.jit(called, compiler_options=options)
    program, shape = _called(name, "the function", program_of, traced, *arrays)
    named = {v: path for v, path in zip(program.inputs, paths, strict=True) if path}
    given = [
        recorder.add(f"{PARAMETER}{path}" if path else f"{INPUT}{i}", x)
        for i, (path, x) in enumerate(zip(paths, arrays, strict=True))
    ]
    operations = operations_of(program, named)
    outs = recorder.run(program, operations, given)
    whole = jax.tree.leaves(_called(name, "the function", compiled, *arrays))
    place = _result(name, jax.tree.unflatten(shape, range(len(outs))), whole, tokens)
    value = _kept(recorder, outs[place])
    value = _with_whole(recorder, value, whole[place], program.regions, is_wanted=with_whole)
    logprobs = None
    if side.logprobs is not None:
        if tokens is None:
            raise ValueError(f"{name}: logprobs= needs tokens of whole numbers as the inputs")
        logprobs = _logprobs(recorder, side.logprobs, name, value, jnp.asarray(tokens))
    x = recorder.values[value]
    has_logits = tokens is not None and len(x.shape) == 3 and x.shape[:2] == tokens.shape
    return Tape(
        entries=recorder.entries,
        values=recorder.values,
        tokens=tokens,
        logits=value if has_logits else None,
        logprobs=logprobs,
        output=value,
        about=about(x.array),
        runners=recorder.runners,
        arrays=JaxArrays(),
        row=side.row,
    )


def _kept(recorder: _Recorder, out: Any) -> int:
    if isinstance(out, Constant):
        return recorder.add(f"{INPUT}constant", jnp.asarray(out.number))
    return int(out)


def _with_whole(
    recorder: _Recorder, value: int, whole: Any, regions: int, *, is_wanted: bool
) -> int:
    """Return the value of a function's result, with an operation for what its operations miss."""
    old, new = (JaxArrays().numpy(x) for x in (recorder.values[value].array, whole))
    if same(old, new) and not is_wanted:
        return value
    made = recorder.add("", jnp.asarray(whole))
    arrays = JaxArrays()

    def run(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return [arrays.shifted(args[0], new, old)]

    number = len(recorder.entries)
    recorder.runners[number] = run
    recorder.entries.append(
        Entry(
            number=number,
            operation=WHOLE,
            function="compiled" if regions else "operation by operation",
            module="",
            step=0,
            arguments=((Ref(value),), {}),
            outputs=(made,),
            note="the difference between the program and its operations is put in",
        )
    )
    return made


def _logprobs(
    recorder: _Recorder, function: Callable[..., Any], name: str, logits: int, tokens: Any
) -> int:
    """Record how a side computes log-probabilities, and return their value."""
    array = recorder.values[logits].array
    program, _ = _called(name, "logprobs=", program_of, function, array, tokens)
    outs = recorder.run(program, operations_of(program, {}), [logits, recorder.add("", tokens)])
    wanted = (tokens.shape[0], tokens.shape[1] - 1)
    if len(outs) != 1 or recorder.values[_kept(recorder, outs[0])].shape != wanted:
        raise ValueError(
            f"{name}: logprobs= returned something else than an array {wanted}, of each token but"
            " the first its log-probability"
        )
    return _kept(recorder, outs[0])


def _called(name: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a user's function returns.

    Raises:
        ValueError: It raised an error, which is the cause.
    """
    try:
        return function(*args)
    except Exception as error:  # whatever it raises
        raise ValueError(f"{name}: {what} raised {raised(error)}") from error


def _path(path: Sequence[Any]) -> str:
    """Return the path of a parameter, "" for an input."""
    if path[0].idx:
        return ""
    return jax.tree_util.keystr(tuple(path[1:]), simple=True, separator=".") or "parameters"


def _function(side: Side, name: str) -> tuple[Callable[[Any, Any], Any], Any]:
    """Return a function of (parameters, inputs), and the parameters."""
    function, parameters = side.function, side.parameters
    libraries = {".".join(c.__module__.split(".")[:2]) for c in type(function).__mro__}
    if "flax.nnx" in libraries:
        from flax import nnx

        if parameters is not None:
            raise ValueError(f"{name}: parameters: a module of nnx has its own; leave them out")
        graph, parameters = nnx.split(function)

        def function(state: Any, *args: Any, **kwargs: Any) -> Any:
            return nnx.merge(graph, state)(*args, **kwargs)

    elif "flax.linen" in libraries:
        function = function.apply  # type: ignore[attr-defined]
    if not callable(function):
        raise TypeError(f"{name}: function {shown(function)}, must be a function or a module")

    def called(own: Any, inputs: Any) -> Any:
        first = () if own is None else (own,)
        if isinstance(inputs, Mapping):
            return function(*first, **inputs)
        return function(*first, inputs)

    return called, parameters


def _tokens(name: str, inputs: Any) -> np.ndarray | None:
    """Return the tokens among the inputs, None if there are none."""
    is_named = isinstance(inputs, Mapping)
    x = (
        next((inputs[n] for n in ("tokens", "input_ids") if n in inputs), None)
        if is_named
        else inputs
    )
    if x is None or not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.integer):
        return None
    if np.ndim(x) != 2 or not np.size(x):
        raise ValueError(f"{name}: inputs of shape {np.shape(x)}: tokens must be of shape (B, T)")
    return np.asarray(x)


def _result(name: str, tree: Any, arrays: Sequence[Any], tokens: np.ndarray | None) -> int:
    """Return which of the arrays of a result is the logits, or the first of numbers."""
    logits = tree.get("logits") if isinstance(tree, Mapping) else getattr(tree, "logits", None)
    if isinstance(logits, int):
        return logits
    for i in leaves(tree) if isinstance(tree, tuple | list | Mapping) else range(len(arrays)):
        if i is not None and jnp.issubdtype(jnp.result_type(arrays[i]), jnp.floating):
            return int(i)
    raise ValueError(f"{name}: the function returned no array of numbers")


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
