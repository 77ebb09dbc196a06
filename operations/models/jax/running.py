"""Running the steps of an operation again: each as JAX runs it, or all as one compiled program."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from roundscope.operations.models.jax.program import Constant, Equation, Step

Options = dict[str, Any] | None
_compiled: dict[object, Callable[..., Any]] = {}  # by what is computed, so that layers share it


def run_steps(
    steps: Sequence[Step], known: Mapping[int, Any], options: Options = None
) -> dict[int, Any]:
    """Return the values that some steps make of values that are known.

    Steps of a region are compiled as one program, with options of XLA, and others step by step.
    """
    if steps[0].region:
        return _run([eqn for step in steps for eqn in step.equations], known, options, True)
    made: dict[int, Any] = {}
    for step in steps:
        made |= _run(step.equations, {**known, **made})
    return made


def inputs_of(equations: Sequence[Equation]) -> list[int]:
    """Return the values that equations read and have not made, each once."""
    made = {v for eqn in equations for v in eqn.outputs}
    read = [x for eqn in equations for x in eqn.inputs if not isinstance(x, Constant)]
    return [v for v in dict.fromkeys(read) if v not in made]


def _run(
    equations: Sequence[Equation],
    known: Mapping[int, Any],
    options: Options = None,
    is_compiled: bool = False,
) -> dict[int, Any]:
    inputs = inputs_of(equations)
    outputs = [v for eqn in equations for v in eqn.outputs]
    if len(equations) == 1 and not is_compiled:
        (eqn,) = equations
        given = [x.number if isinstance(x, Constant) else known[x] for x in eqn.inputs]
        return dict(zip(outputs, bound(eqn, given), strict=True))
    places = {v: i for i, v in enumerate(inputs)}
    places |= {v: len(inputs) + i for i, v in enumerate(outputs)}
    plain = [
        eqn._replace(
            inputs=tuple(x if isinstance(x, Constant) else places[x] for x in eqn.inputs),
            outputs=tuple(places[v] for v in eqn.outputs),
        )
        for eqn in equations
    ]
    key = (
        len(inputs),
        repr(options),
        repr([(e.primitive.name, e.params, e.inputs, e.outputs) for e in plain]),
    )
    if key not in _compiled:
        _compiled[key] = jax.jit(partial(_evaluated, plain, len(inputs)), compiler_options=options)
    return dict(zip(outputs, _compiled[key](*(known[v] for v in inputs)), strict=True))


def _evaluated(equations: Sequence[Equation], count: int, *given: Any) -> list[Any]:
    values = list(given)
    for eqn in equations:
        args = [x.number if isinstance(x, Constant) else values[x] for x in eqn.inputs]
        values += bound(eqn, args)
    return values[count:]


def bound(eqn: Equation, args: Sequence[Any]) -> list[Any]:
    """Return the results of an equation on arguments."""
    out = eqn.primitive.bind(*args, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]
