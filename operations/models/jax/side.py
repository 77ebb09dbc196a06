"""`Side`: a run of a JAX function, and `traced`: its operations before they run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roundscope.emu.shown import shown
from roundscope.emu.testing.foreign import raised
from roundscope.operations.models.jax.program import PASS, Constant, Program, program_of
from roundscope.operations.models.jax.running import Options
from roundscope.operations.models.jax.scopes import Operation, operations_of
from roundscope.operations.models.tape import leaves


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
        run: A function of (model, inputs) that calls the model, a function without parameters, once
            or several times and returns logits, such as of one token at a time; by default the
            model is called once.
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
    run: Callable[[Callable[..., Any], Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What a side computes.

    Attributes:
        program: Its steps.
        operations: Its operations.
        arrays: The arguments of the program: parameters and inputs.
        paths: The path of each parameter among them, "" for an input.
        function: A function of the arrays that returns what the side's function returns.
        options: Those of XLA, None for the default ones.
        tokens: The tokens among the inputs, None if there are none.
        place: Which of the results is the logits, or the output.
    """

    program: Program
    operations: list[Operation]
    arrays: list[Any]
    paths: list[str]
    function: Callable[..., Any]
    options: Options
    tokens: np.ndarray | None
    place: int


def traced(side: Side, name: str) -> Traced:
    """Trace the function of a side; name: what the run is called in an error message.

    Raises:
        TypeError, ValueError: As `recording.recorded` has them.
    """
    if not (isinstance(side.inputs, Mapping) or hasattr(side.inputs, "dtype")):
        raise TypeError(
            f"{name}: inputs {shown(side.inputs)}: must be an array or a dictionary of arguments"
        )
    function, parameters = _function(side, name)
    tokens = _tokens(name, side.inputs)
    options = None if side.compiler_options is None else dict(side.compiler_options)
    flat, structure = jax.tree_util.tree_flatten_with_path((parameters, side.inputs))
    arrays = [jnp.asarray(x) for _, x in flat]
    paths = [_path(path) for path, _ in flat]

    def flatly(*given: Any) -> Any:
        own, inputs = jax.tree.unflatten(structure, given)
        return function(own, inputs)

    plain = flatly if options is None else jax.jit(flatly)
    program, shape = called(name, "the function", program_of, plain, *arrays)
    dtypes = [
        x.number.dtype if isinstance(x, Constant) else program.avals[x].dtype
        for x in program.outputs
    ]
    return Traced(
        program=program,
        operations=operations_of(program, dict(zip(program.inputs, paths, strict=True))),
        arrays=arrays,
        paths=paths,
        function=flatly if options is None else jax.jit(flatly, compiler_options=options),
        options=options,
        tokens=tokens,
        place=_result(name, jax.tree.unflatten(shape, range(len(dtypes))), dtypes),
    )


def called(name: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
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
    modules = [x.__module__ for x in type(function).__mro__ if x.__name__ == "Module"]
    libraries = {".".join(name.split(".")[:2]) for name in modules}
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

    def both(own: Any, inputs: Any) -> Any:
        model = function if own is None else partial(function, own)
        if side.run is not None:
            return side.run(_counting(model), inputs)
        return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)

    return both, parameters


def _counting(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model whose calls are in scopes that have their numbers."""
    numbers = count()

    def called(*args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(f"{PASS}{next(numbers)}"):
            return model(*args, **kwargs)

    return called


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


def _result(name: str, tree: Any, dtypes: Sequence[Any]) -> int:
    """Return which of the arrays of a result is the logits, or the first of numbers."""
    logits = tree.get("logits") if isinstance(tree, Mapping) else getattr(tree, "logits", None)
    if isinstance(logits, int):
        return logits
    for i in leaves(tree) if isinstance(tree, tuple | list | Mapping) else range(len(dtypes)):
        if i is not None and jnp.issubdtype(dtypes[i], jnp.floating):
            return int(i)
    raise ValueError(f"{name}: the function returned no array of numbers")
