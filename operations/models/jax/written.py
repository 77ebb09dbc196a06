"""The equations of an operation as text, so that a file can have them, and from text.

Text holds no code: primitives are found by their names among those of JAX, and parameters are
numbers, words, types, and the few records and choices of JAX that are named here.
"""

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import jax.extend.core.primitives as known_primitives
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from roundscope.operations.models.jax.program import CALLS, Constant, Equation, Step, constant
from roundscope.operations.models.jax.running import Options
from roundscope.operations.models.jax.scopes import MOVES

_RECORDS = ("GatherDimensionNumbers", "ScatterDimensionNumbers", "ConvDimensionNumbers")
_CHOICES = ("GatherScatterMode", "Precision", "DotAlgorithmPreset", "AccuracyMode")
_COMPUTING = """add add_any sub mul div rem neg sign floor ceil round abs exp exp2 expm1 log log1p
    sqrt rsqrt cbrt square integer_pow pow sin cos tan tanh sinh cosh asin acos atan atan2 logistic
    erf erfc erf_inv max min and or not xor eq ne lt le gt ge is_finite select_n clamp nextafter
    convert_element_type reduce_precision reduce_sum reduce_max reduce_min reduce_prod reduce_and
    reduce_or argmax argmin cumsum cumprod cumlogsumexp dot_general conv_general_dilated iota
    scatter-add shift_left shift_right_arithmetic shift_right_logical"""
OPTIONS = ("xla_allow_excess_precision",)  # others could write files, or call what is not XLA
NAMES = frozenset(_COMPUTING.split()) | MOVES


class Unwritable(ValueError):
    """Equations that a file cannot have, such as a loop, or a function in another language."""


@cache
def _primitives() -> dict[str, core.Primitive]:
    every = [getattr(known_primitives, name) for name in dir(known_primitives)]
    every += [getattr(lax, name) for name in dir(lax)]
    return {x.name: x for x in every if isinstance(x, core.Primitive) and x.name in NAMES}


class _Writer:
    """The rows of equations, with numbers for values from 0 on, in which calls are taken apart."""

    def __init__(self, inputs: Sequence[int]) -> None:
        self.places: dict[int, Any] = {v: i for i, v in enumerate(inputs)}
        self.count = len(inputs)
        self.rows: list[Any] = []

    def step(self, step: Step) -> list[Any]:
        """Return the rows of a step."""
        self.rows = []
        for eqn in step.equations:
            given = [x if isinstance(x, Constant) else self.places[x] for x in eqn.inputs]
            results = self._equation(eqn.primitive.name, eqn.params, given, len(eqn.outputs))
            self.places |= zip(eqn.outputs, results, strict=True)
        return self.rows

    def _equation(
        self, name: str, params: Mapping[str, Any], given: Sequence[Any], count: int
    ) -> list[Any]:
        if name in CALLS:
            return self._call(params[CALLS[name]], given)
        if name not in NAMES:
            raise Unwritable(name)
        told = [_plain(x.number) if isinstance(x, Constant) else x for x in given]
        self.rows.append([name, {n: _plain(x) for n, x in params.items()}, told, count])
        self.count += count
        return [*range(self.count - count, self.count)]

    def _call(self, closed: Any, given: Sequence[Any]) -> list[Any]:
        jaxpr = getattr(closed, "jaxpr", closed)
        if getattr(closed, "consts", ()):
            raise Unwritable("arrays inside a jitted function")
        names: dict[Any, Any] = dict(zip(jaxpr.invars, given, strict=True))

        def read(x: Any) -> Any:
            return constant(x) if isinstance(x, core.Literal) else names[x]

        for eqn in jaxpr.eqns:
            inside = [read(x) for x in eqn.invars]
            results = self._equation(eqn.primitive.name, eqn.params, inside, len(eqn.outvars))
            names |= zip(eqn.outvars, results, strict=True)
        return [read(x) for x in jaxpr.outvars]


def written(
    steps: Sequence[Step], inputs: Sequence[int], outputs: Sequence[int], options: Options = None
) -> str:
    """Return steps as text, with the values that they are given and that they return.

    Args:
        steps: They.
        inputs: The values that they are given.
        outputs: Those that they return.
        options: Of XLA, where they are compiled.

    Raises:
        Unwritable: They have what a file cannot have.
    """
    if set(options or {}) - set(OPTIONS):
        raise Unwritable(f"options of XLA other than {', '.join(OPTIONS)}")
    writer = _Writer(inputs)
    told = [writer.step(step) for step in steps]
    results = [writer.places[v] for v in outputs]
    if any(isinstance(x, Constant) for x in results):
        raise Unwritable("a constant result")
    data = {"steps": told, "inputs": len(inputs), "outputs": results}
    return json.dumps(data | {"region": int(bool(steps[0].region)), "options": options})


def read_steps(text: str) -> tuple[list[Step], list[int], list[int], Options]:
    """Return the steps of a text, the values that they are given, those that they return, and the
    options of XLA.

    Raises:
        ValueError: It is none that `written` makes.
    """
    try:
        data = json.loads(text)
        count, steps = int(data["inputs"]), []
        for rows in data["steps"]:
            equations = []
            for name, params, given, outputs in rows:
                told = tuple(x if isinstance(x, int) else Constant(_value(x)) for x in given)
                own = {n: _value(x) for n, x in params.items()}
                made = tuple(range(count, count + outputs))
                count += outputs
                equations.append(Equation(_primitives()[name], own, told, made))
            steps.append(Step(equations=equations, scopes=(), region=int(data["region"])))
        options = data["options"]
        if set(options or {}) - set(OPTIONS):
            raise ValueError(f"an operation of the file has options of XLA: {[*options]}")
        return steps, [*range(data["inputs"])], [int(v) for v in data["outputs"]], options
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an operation of the file cannot be read: {error!r}") from None


def _plain(x: Any) -> Any:
    """Return a parameter as JSON has it."""
    if x is None or isinstance(x, bool | str) or type(x) is int:
        return x
    if isinstance(x, np.ndarray | np.generic) and np.ndim(x) == 0:
        if np.issubdtype(x.dtype, np.integer) and not isinstance(x, np.ndarray):
            return int(x)
        return {"number": [str(x.dtype), _digits(x)]}
    if isinstance(x, float):
        return {"float": x.hex()}
    if isinstance(x, Enum) and type(x).__name__ in _CHOICES:
        return {type(x).__name__: x.name}
    if type(x).__name__ in _RECORDS:
        names = getattr(x, "_fields", None) or list(vars(x))
        return {type(x).__name__: {n: _plain(getattr(x, n)) for n in names}}
    if isinstance(x, tuple | list):
        return {"tuple": [_plain(y) for y in x]}
    if isinstance(x, np.dtype | type):
        return {"dtype": str(np.dtype(x))}
    raise Unwritable(f"{type(x).__name__} {x}")


def _digits(x: Any) -> Any:
    """Return a number so that it is read again with every bit."""
    return float(x).hex() if jnp.issubdtype(x.dtype, jnp.floating) else x.item()


def _value(x: Any) -> Any:
    """Return a parameter from JSON."""
    if not isinstance(x, dict):
        return x
    ((kind, told),) = x.items()
    if kind == "number":
        dtype, digits = told
        return np.asarray(
            float.fromhex(digits) if isinstance(digits, str) else digits, jnp.dtype(dtype)
        )
    if kind == "float":
        return float.fromhex(told)
    if kind in _CHOICES:
        return getattr(lax, kind)[told]
    if kind in _RECORDS:
        return getattr(lax, kind)(**{n: _value(y) for n, y in told.items()})
    if kind == "tuple":
        return tuple(map(_value, told))
    if kind == "dtype":
        return jnp.dtype(told)
    raise ValueError(f"a parameter of kind {kind!r}")
