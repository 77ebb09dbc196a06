"""`program_of`: what a JAX function computes, as a list of steps that run one after the other.

A step is what JAX runs as one program when the function is called: a primitive, or a function of
JAX that it compiles as a whole, such as `jnp.mean`. A function that the user has jitted, and a
`scan`, are taken apart, and their steps are marked as compiled together.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend import core

UNROLLED = 256  # turns of a scan that are taken apart, at most
PASS = "forward_pass_"  # begins the names of scopes around calls of a model
SMALL = 2  # matrix products of a jitted function that is left one step, as attention has
_OF_JAX = re.compile(r"\(|->|^$")  # names of transformations such as vmap(), and of einsum
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
CALLS |= {"remat2": "jaxpr", "checkpoint": "jaxpr", "remat": "jaxpr"}
CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
_JITTED = ("jit", "pjit")


class Constant(NamedTuple):
    """A number among the arguments of an equation, an array without axes."""

    number: np.ndarray


class Scope(NamedTuple):
    """A function, a named scope, or a turn of a scan, without a name, around an equation.

    name  its name; key  the places in the program from which it is called, and in a finished
    program the number of the call; is_named  whether the program names it, as `jax.named_scope`
    and modules of linen do.
    """

    name: str
    key: object
    is_named: bool


class Equation(NamedTuple):
    """A primitive and its arguments: numbers of values, or constants."""

    primitive: core.Primitive
    params: Mapping[str, Any]
    inputs: tuple[int | Constant, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Equations that run as one program.

    Attributes:
        equations: They.
        scopes: What is around them, from the outside to the inside.
        site: Where the innermost of the functions in `scopes` made it.
        region: The number of the jitted function or scan in which they are; 0 for none.
        turn: The turn of the scan in which they are; None for none.
        number: The number of the forward pass; what is between two passes belongs to the first.
    """

    equations: Sequence[Equation]
    scopes: tuple[Scope, ...]
    site: object = None
    region: int = 0
    turn: int | None = None
    number: int = 0


@dataclass(kw_only=True)
class Program:
    """The steps of a function, and the values between them.

    Attributes:
        steps: Them.
        avals: Shape and type of each value.
        constants: Arrays that the function has of its own, by the numbers of their values.
        inputs: The values of its arguments.
        outputs: What it returns: values, or constants.
        regions: How many jitted functions and scans were taken apart.
    """

    steps: list[Step] = field(default_factory=list)
    avals: list[Any] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int | Constant] = field(default_factory=list)
    regions: int = 0

    def new(self, aval: Any) -> int:
        """Return the number of a new value."""
        self.avals.append(aval)
        return len(self.avals) - 1


@dataclass(frozen=True)
class _Place:
    scopes: tuple[Scope, ...] = ()
    region: int = 0
    turn: int | None = None
    stack: str = ""  # the named scopes outside


def program_of(function: Callable[..., Any], *arguments: Any) -> tuple[Program, Any]:
    """Return what a function computes of arguments, and the structure of what it returns."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    program = Program()
    program.inputs = [program.new(v.aval) for v in closed.jaxpr.invars]
    program.outputs = _inlined(program, closed, program.inputs, _Place())
    program.steps = _by_call(program.steps)
    return program, jax.tree.structure(shape)


def _by_call(steps: Sequence[Step]) -> list[Step]:
    """Number the calls of functions and scopes, each of which has steps that follow each other.

    Calls from one place, as in a loop over layers, are told apart by their first step: where a step
    is at the place of the first one and of the same primitives, another call begins.
    """
    found: list[Step] = []
    named, functions = _Calls(), _Calls()
    number = 0
    for step in steps:
        passes = [x.name for x in step.scopes if x.is_named and x.name.startswith(PASS)]
        number = int(passes[0].removeprefix(PASS)) if passes else number
        mark = step.site, step.scopes, [_words(eqn) for eqn in step.equations]
        outside = named.numbered([x for x in step.scopes if x.is_named], mark)
        outside = [x for x in outside if not x.name.startswith(PASS)]
        inside = functions.numbered([x for x in step.scopes if not x.is_named], mark)
        found.append(replace(step, scopes=(*outside, *inside), number=number))
    return found


class _Calls:
    """The calls of scopes that go on, each with its first step and its number."""

    def __init__(self) -> None:
        self.open: list[tuple[Scope, object, int]] = []
        self.count = 0

    def numbered(self, scopes: Sequence[Scope], mark: object) -> list[Scope]:
        kept = 0
        for scope, (known, first, _) in zip(scopes, self.open, strict=False):
            if scope != known or first == mark:
                break
            kept += 1
        del self.open[kept:]
        for scope in scopes[kept:]:
            self.open.append((scope, mark, self.count))
            self.count += 1
        return [scope._replace(key=number) for scope, _, number in self.open]


def _words(eqn: Equation) -> tuple[str, str]:
    """Return a primitive and its parameters in words, of a call the name."""
    is_call = eqn.primitive.name in CALLS
    return eqn.primitive.name, str(eqn.params.get("name") if is_call else eqn.params)


def _inlined(
    program: Program, closed: Any, inputs: Sequence[int | Constant], place: _Place
) -> list[int | Constant]:
    """Add the steps of a jaxpr to a program, and return its results."""
    jaxpr = closed.jaxpr if hasattr(closed, "jaxpr") else closed
    known: dict[Any, int | Constant] = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, array in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True):
        known[var] = program.new(var.aval)
        program.constants[known[var]] = array  # type: ignore[index]

    def read(atom: Any) -> int | Constant:
        if isinstance(atom, core.Literal):
            return constant(atom)
        return known[atom]

    for eqns in _together(jaxpr.eqns):
        first = eqns[0]
        scopes, site = _scopes(first, place)
        name = first.primitive.name
        is_all = len(jaxpr.eqns) == 1 and not place.scopes
        if len(eqns) == 1 and _is_open(first, place, is_all):
            region = place.region
            if name in _JITTED and not region:
                program.regions += 1
                region = program.regions
            own = str(first.params.get("name", "")).lstrip("_")
            inside = (*scopes, Scope(own, (own, site), False)) if own else scopes
            results = _inlined(
                program,
                first.params[CALLS[name]],
                [read(x) for x in first.invars],
                _Place(inside, region, place.turn, _stack(first, place)),
            )
        elif len(eqns) == 1 and name == "scan" and first.params["length"] <= UNROLLED:
            results = _unrolled(program, first, [read(x) for x in first.invars], scopes, place)
        else:
            equations = []
            for eqn in eqns:
                given = tuple(read(x) for x in eqn.invars)
                outputs = tuple(program.new(v.aval) for v in eqn.outvars)
                known |= zip(eqn.outvars, outputs, strict=True)
                equations.append(Equation(eqn.primitive, eqn.params, given, outputs))
            program.steps.append(
                Step(
                    equations=equations,
                    scopes=scopes,
                    site=site,
                    region=place.region,
                    turn=place.turn,
                )
            )
            continue
        known |= zip(first.outvars, results, strict=True)
    return [read(x) for x in jaxpr.outvars]


def constant(atom: Any) -> Constant:
    """Return the number that stands in a jaxpr in the place of a value."""
    return Constant(np.asarray(atom.val, atom.aval.dtype))


def _is_open(eqn: Any, place: _Place, is_all: bool) -> bool:
    """Return whether a call is taken apart; is_all: whether it is all that the function does."""
    name = eqn.primitive.name
    if name not in CALLS:
        return False
    is_whole = name not in _JITTED or is_all or bool(place.region)
    return is_whole or _is_large(eqn.params[CALLS[name]])


def _is_large(closed: Any) -> bool:
    """Return whether a jitted function is more than one operation."""
    names = [eqn.primitive.name for eqn in _all(closed)]
    products = names.count("dot_general")
    return products > SMALL or "scan" in names or (products > 0 and "rsqrt" in names)


def _all(closed: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, and those of the calls in it."""
    jaxpr = closed.jaxpr if hasattr(closed, "jaxpr") else closed
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name in CALLS:
            yield from _all(eqn.params[CALLS[eqn.primitive.name]])


def _unrolled(
    program: Program,
    eqn: Any,
    inputs: Sequence[int | Constant],
    scopes: tuple[Scope, ...],
    place: _Place,
) -> list[int | Constant]:
    """Add the steps of a scan, turn by turn."""
    p = eqn.params
    region = place.region
    if not region:
        program.regions += 1
        region = program.regions
    n, m = p["num_consts"], p["num_consts"] + p["num_carry"]
    constants, carry, sequences = list(inputs[:n]), list(inputs[n:m]), inputs[m:]
    avals = [v.aval for v in eqn.invars[m:]]
    turns = range(p["length"])
    made: dict[int, list[int | Constant]] = {}
    for t in reversed(turns) if p["reverse"] else turns:
        inside = (*scopes, Scope("", t, False))
        at = _Place(inside, region, t, _stack(eqn, place))
        parts = [
            _inlined(program, _traced(_turn, t, aval=aval), [x], at)[0]
            for x, aval in zip(sequences, avals, strict=True)
        ]
        found = _inlined(program, p["jaxpr"], [*constants, *carry, *parts], at)
        carry, made[t] = found[: p["num_carry"]], found[p["num_carry"] :]
    rows = [[made[t][i] for t in turns] for i in range(len(eqn.outvars) - p["num_carry"])]
    at = _Place(scopes, region, place.turn, place.stack)
    stacked = [
        _inlined(program, _stack_of(row, v.aval), row, at)[0]
        for row, v in zip(rows, eqn.outvars[p["num_carry"] :], strict=True)
    ]
    return [*carry, *stacked]


def _turn(t: int, x: Any) -> Any:
    return lax.index_in_dim(x, t, keepdims=False)


def _traced(function: Callable[..., Any], t: int, *, aval: Any) -> Any:
    return jax.make_jaxpr(lambda x: function(t, x))(jax.ShapeDtypeStruct(aval.shape, aval.dtype))


def _stack_of(row: Sequence[Any], aval: Any) -> Any:
    one = jax.ShapeDtypeStruct(aval.shape[1:], aval.dtype)
    return jax.make_jaxpr(lambda *xs: jax.numpy.stack(xs))(*[one] * len(row))


def _together(eqns: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield equations that run as one program: those of one call of a function that JAX compiles.

    JAX puts the equations of its own jitted functions into those of their caller, and then all of
    them have the traceback of the call.
    """
    for _, group in groupby(eqns, lambda eqn: _raw(eqn)):
        own: list[Any] = []
        for eqn in group:
            is_call = eqn.primitive.name in CALLS or eqn.primitive.name == "scan"
            repeats = own and (eqn.primitive, eqn.outvars[0].aval) == (
                own[0].primitive,
                own[0].outvars[0].aval,
            )
            if own and (is_call or repeats):
                yield own
                own = []
            own.append(eqn)
            if is_call:
                yield own
                own = []
        if own:
            yield own


def _raw(eqn: Any) -> object:
    traceback = eqn.source_info.traceback
    if traceback is None:
        return id(eqn)
    codes, places = traceback.raw_frames()
    return tuple(map(id, codes)), tuple(places)


def _stack(eqn: Any, place: _Place) -> str:
    own = [x for x in str(eqn.source_info.name_stack).split("/") if not _OF_JAX.search(x)]
    return "/".join(x for x in (place.stack, *own) if x)


def _scopes(eqn: Any, place: _Place) -> tuple[tuple[Scope, ...], object]:
    """Return what is around an equation, and where the innermost function made it.

    Named scopes come first, since it is not known which functions are in which of them.
    """
    stack = _stack(eqn, place)
    names = [x for x in stack.split("/") if x]
    named = [Scope(x, "/".join(names[: i + 1]), True) for i, x in enumerate(names)]
    functions = [scope for scope in place.scopes if not scope.is_named]
    site: object = place.scopes[-1].key if place.scopes else None
    for name, code, at in frames(eqn):
        functions.append(Scope(name, (site, code), False))
        site = (site, code, at)
    return (*named, *functions), site


def frames(eqn: Any) -> list[tuple[str, int, int]]:
    """Return name, identity and position of the functions that made an equation, from the outside
    of the jaxpr to the inside, without those of JAX that have no name of an operation.
    """
    traceback = eqn.source_info.traceback
    if traceback is None:
        return []
    found = []
    for code, at in zip(*traceback.raw_frames(), strict=True):
        file = code.co_filename
        if code.co_name.startswith("trace_to_jaxpr") and "jax/_src" in file:
            break
        if name := _name(code):
            found.append((name, id(code), at))
    return found[::-1]


_LIBRARY = ("/jax/_src/nn/", "/jax/_src/scipy/", "/jax/_src/ops/special.py")
_MACHINES = ("/jax/", "/jaxlib/", "/contextlib.py", "/functools.py", "/roundscope/operations/")


def _name(code: Any) -> str:
    """Return the name of a function; of the call of a module that of its class; "" for JAX."""
    file, name = code.co_filename, code.co_name
    if "/flax/" in file and name != "__call__" and "attention" not in name:
        return ""
    if any(x in file for x in _MACHINES) and not any(x in file for x in _LIBRARY):
        return ""
    if name == "__call__":
        return code.co_qualname.split(".")[-2]  # type: ignore[no-any-return]
    return "" if name.startswith("<") else name.lstrip("_")
