"""Which steps of a program are which operation: `operations_of`.

A step belongs to the outermost function, module or named scope around it whose name is that of an
operation (`NAMES`), unless that has other operations inside, as a module of attention has linear
layers. What no name claims is taken by what it computes (`_by_content`): a function of the user's
that has no layers inside is one operation, and else each step is one. What is left is `unknown`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from roundscope.operations.models.jax.program import CALLS, Constant, Program, Scope, Step
from roundscope.operations.models.tape import CAST, EXACT, UNKNOWN

_NAMES = {
    "rms_norm": "rms_norm llama_rms_norm gemma_rms_norm",
    "layer_norm": "layer_norm",
    "linear": "linear dense linear_general dense_general lm_head fp8_linear",
    "embedding": "embed embedding embed_tokens token_embedding",
    "rope_table": "rope_table rotary_embedding rotary_table rope_angles cos_sin sin_cos",
    "rope": "rope apply_rope rotary apply_rotary apply_rotary_pos_emb apply_rotary_emb rotate",
    "attention": "attention sdpa dot_product_attention scaled_dot_product_attention",
    "silu": "silu swish",
    "silu_mul": "silu_mul swiglu",
    "gelu": "gelu",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "cross_entropy": "cross_entropy cross_entropy_loss softmax_cross_entropy",
    "add": "residual add_residual residual_add",
}
NAMES = {name.replace("_", ""): op for op, names in _NAMES.items() for name in names.split()}
LAYERS = ("rms_norm", "layer_norm", "linear", "embedding", "rope", "attention")
_MOVES = """reshape transpose broadcast_in_dim slice dynamic_slice dynamic_update_slice gather
    concatenate pad rev squeeze expand_dims select_n max min neg abs iota reduce_max reduce_min
    sort stop_gradient copy copy_p sign clamp split scatter real imag optimization_barrier
    bitcast_convert_type top_k cummax cummin empty broadcast full stack
    unstack"""
MOVES = frozenset(_MOVES.split())  # nothing is rounded
NAMED = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul"}
_CURVES = {"exp", "exp2", "log", "rsqrt", "sqrt", "tanh", "logistic", "erf", "cos", "sin", "pow"}
CLOSED = "constant "  # begins the names of arrays that a function has of its own
_LEAVES = ("weight", "kernel", "scale", "embedding", "bias", "w", "b")


@dataclass(kw_only=True)
class Operation:
    """Steps that are one operation.

    Attributes:
        name: Its name, as `operations.models.tape.Entry` has it.
        function: The function or the primitives that compute it.
        steps: The steps.
        module: The path of its parameters, or the named scopes around it.
    """

    name: str
    function: str
    steps: list[Step] = field(default_factory=list)
    module: str = ""


class Primitive(NamedTuple):
    """A primitive: its name and parameters, the type of its result, whether that is of numbers that
    may have been rounded, and the numbers among its arguments.
    """

    name: str
    params: Mapping[str, Any]
    dtype: Any
    is_number: bool
    constants: tuple[Any, ...] = ()

    @property
    def rounds(self) -> bool:
        """Whether it may round."""
        return self.is_number and self.name not in MOVES


@dataclass(frozen=True)
class _Origin:
    """Where a value comes from: arguments that are no parameters, and parameters."""

    is_active: bool = False
    parameters: frozenset[str] = frozenset()


def operations_of(program: Program, parameters: dict[int, str]) -> list[Operation]:
    """Return the operations of a program in their order; every step is in one of them.

    Args:
        program: It.
        parameters: Of each of its inputs the path of the parameter that it is, "" for none.
    """
    origins = _origins(program, parameters)
    runs = list(_runs(program.steps, _claimed(program, origins)))
    found = []
    for steps, scope, name in runs:
        kind, function = name, scope.name if scope else ""
        if not kind:
            kind = _by_content(program, steps, origins)
            function = function or _computed_by(program, steps)
        elif kind == UNKNOWN:  # a function without layers inside
            kind = _by_content(program, steps, origins)
        found.append(Operation(name=kind, function=function, steps=list(steps)))
    _place(found, origins)
    return found


def primitives(program: Program, steps: Sequence[Step]) -> list[Primitive]:
    """Return the primitives of some steps, with those of a jitted function in its place."""
    return [
        found
        for step in steps
        for eqn in step.equations
        for found in _inside(eqn, [program.avals[v] for v in eqn.outputs])
    ]


def _inside(eqn: Any, avals: Sequence[Any]) -> Iterator[Primitive]:
    inner = inner_jaxpr(eqn)
    if inner is None:
        given = eqn.inputs if hasattr(eqn, "inputs") else eqn.invars
        numbers = [getattr(x, "number", getattr(x, "val", None)) for x in given]
        scalars = tuple(x for x in numbers if x is not None and np.ndim(x) == 0)
        kind = avals[0].dtype, any(map(is_number, avals))
        yield Primitive(eqn.primitive.name, eqn.params, *kind, scalars)
        return
    for each in inner.eqns:
        yield from _inside(each, [v.aval for v in each.outvars])


def inner_jaxpr(eqn: Any) -> Any:
    """Return the jaxpr that an equation calls, None if it calls none."""
    inner = eqn.params.get(CALLS.get(eqn.primitive.name, ""))
    return getattr(inner, "jaxpr", inner)


def _computed_by(program: Program, steps: Sequence[Step]) -> str:
    """Return what computes some steps in a word: a function of JAX, or the primitive."""
    for step in steps:
        for eqn in step.equations:
            if eqn.primitive.name in ("jit", "pjit"):
                return str(eqn.params["name"]).lstrip("_")
    found = primitives(program, steps)
    told = [x.name for x in found if x.rounds and x.name != "convert_element_type"]
    return (told or [x.name for x in found])[0]


def _origins(program: Program, parameters: dict[int, str]) -> dict[int, _Origin]:
    """Return the origin of each value."""
    found = {
        v: _Origin(not path, frozenset([path] if path else [])) for v, path in parameters.items()
    }
    tables = 0
    for v, array in program.constants.items():
        is_table = getattr(array, "ndim", 0) > 1 and is_number(program.avals[v])
        tables += is_table
        found[v] = _Origin(parameters=frozenset([f"{CLOSED}{tables}"] if is_table else []))
    for step in program.steps:
        for eqn in step.equations:
            given = [found[x] for x in eqn.inputs if not isinstance(x, Constant)]
            own = _Origin(
                any(x.is_active for x in given),
                frozenset().union(*(x.parameters for x in given)),
            )
            found |= dict.fromkeys(eqn.outputs, own)
    return found


def is_number(aval: Any) -> bool:
    """Return whether a value is of a floating-point type."""
    return bool(jnp.issubdtype(aval.dtype, jnp.floating))


def _weights(steps: Sequence[Step], origins: dict[int, _Origin]) -> list[frozenset[str]]:
    """Return the parameters of each product of what is computed with weights; of a product of two
    things that are computed an empty set.
    """
    found = []
    for step in steps:
        for eqn in step.equations:
            if eqn.primitive.name == "dot_general":
                sides = [
                    _Origin() if isinstance(x, Constant) else origins[x] for x in eqn.inputs[:2]
                ]
                own = [x.parameters for x in sides if not x.is_active and x.parameters]
                found.append(own[0] if own else frozenset())
    return found


@cache
def claim(name: str) -> str:
    """Return the operation that a function, a class or a scope is by its name, "" for none.

    Example:
        >>> claim("RMSNorm_0"), claim("dot_product_attention"), claim("Block")
        ('rms_norm', 'attention', '')
    """
    plain = re.sub(r"[^a-z]", "", name.lower())
    for end in ("rmsnorm", "layernorm"):
        plain = end if plain.endswith(end) and plain != "t5layernorm" else plain
    return NAMES.get(plain, "")


def _claimed(program: Program, origins: dict[int, _Origin]) -> list[tuple[Scope | None, str]]:
    """Return the scope that claims each step, and the operation that it is by its name."""
    inside: dict[Scope, set[str]] = {}
    within: dict[Scope, list[Step]] = {}
    for step in program.steps:
        for i, scope in enumerate(step.scopes):
            within.setdefault(scope, []).append(step)
            inside.setdefault(scope, set()).update(
                name for other in step.scopes[i + 1 :] if (name := claim(other.name))
            )
    everything = len(program.steps)
    root = {scope for scope, steps in within.items() if len(steps) == everything}
    open_scopes = {
        scope
        for scope, steps in within.items()
        if scope in root
        or not scope.name
        or (set(LAYERS) & inside[scope]) - {claim(scope.name)}
        or not _is_one(claim(scope.name), program, steps, origins)
    }
    layers = {
        scope: name
        for scope, steps in within.items()
        if scope not in open_scopes
        and (name := claim(scope.name) or _by_content(program, steps, origins)) in LAYERS
    }
    found: list[tuple[Scope | None, str]] = []
    for step in program.steps:
        closed = [scope for scope in step.scopes if scope not in open_scopes]
        functions = [x for x in closed if not x.is_named] or closed
        named = next(((x, layers[x]) for x in functions[:1] if x in layers), None)
        named = named or next(((x, name) for x in closed if (name := claim(x.name))), None)
        found.append(named or ((functions[0], UNKNOWN) if functions else (None, "")))
    return found


def _is_one(
    name: str, program: Program, steps: Sequence[Step], origins: dict[int, _Origin]
) -> bool:
    """Return whether a scope can be one operation, by its products."""
    products = _weights(steps, origins)
    weighted = [x for x in products if x]
    if name == "linear" or not weighted:
        return True
    if name in ("", "add") and len(set(weighted)) == 1 and len(weighted) == len(products):
        return not any(p.name in _CURVES for p in primitives(program, steps))
    return False


def _runs(
    steps: Sequence[Step], claims: Sequence[tuple[Scope | None, str]]
) -> Iterator[tuple[list[Step], Scope | None, str]]:
    """Yield steps that are one call of what claims them."""
    own: list[Step] = []
    for i, step in enumerate(steps):
        is_new = (
            not own
            or claims[i] != claims[i - 1]
            or claims[i][0] is None
            or (step.region, step.number) != (own[0].region, own[0].number)
        )
        if own and is_new:
            yield (own, *claims[i - 1])
            own = []
        own.append(step)
    if own:
        yield (own, *claims[-1])


def _by_content(program: Program, steps: Sequence[Step], origins: dict[int, _Origin]) -> str:
    """Return the operation that some steps are by what they compute."""
    inside = primitives(program, steps)
    counts = Counter(x.name for x in inside)
    products = _weights(steps, origins)
    if len(products) > 1 and not any(products) and counts["exp"]:
        return "attention"
    if products:
        return "linear" if all(products) else "matmul" if len(products) == 1 else UNKNOWN
    if not any(x.is_number for x in inside):
        return EXACT
    told = {x.name for x in inside if x.rounds}
    table = [
        x
        for step in steps
        for eqn in step.equations
        if eqn.primitive.name == "gather" and not isinstance(x := eqn.inputs[0], Constant)
    ]
    if any(origins[x].parameters and not origins[x].is_active for x in table):
        return "embedding" if told <= {"convert_element_type"} else UNKNOWN
    if not told:
        return EXACT
    if told == {"convert_element_type"}:
        return CAST
    told.discard("convert_element_type")
    if counts["rsqrt"] and counts["reduce_sum"]:
        return "rms_norm" if counts["reduce_sum"] == 1 and not counts["sub"] else "layer_norm"
    if counts["logistic"]:
        return "silu" if told <= {"logistic", "mul"} else UNKNOWN
    if counts["exp"] and counts["reduce_sum"]:
        return "log_softmax" if counts["log"] else "softmax" if counts["div"] else UNKNOWN
    return NAMED.get(told.pop(), UNKNOWN) if len(told) == 1 else UNKNOWN


def _place(found: Sequence[Operation], origins: dict[int, _Origin]) -> None:
    """Say of each operation to which module it belongs.

    It is that of its parameters; of one without the named scopes around it, or the numbered part of
    the path of the parameters before it, such as "layers.0".
    """
    last = ""
    stacks = [_path(op) for op in found]
    root = {x.split(".")[0] for x in stacks if x}
    for operation, stack in zip(found, stacks, strict=True):
        given = [
            x
            for step in operation.steps
            for eqn in step.equations
            for x in eqn.inputs
            if not isinstance(x, Constant)
        ]
        own = [p for x in given if not origins[x].is_active for p in sorted(origins[x].parameters)]
        turn = operation.steps[0].turn
        at = "" if turn is None else f"[{turn}]"
        if own and operation.name not in (EXACT, CAST):
            operation.module = _module(own[0]) + at
            numbered = re.match(r"(.*?\d+)(\.|$)", own[0])
            last = numbered[1] if numbered and not own[0].startswith(CLOSED) else ""
        elif stack:
            operation.module = (stack.partition(".")[2] if len(root) == 1 else stack) + at
        else:
            operation.module = last or at


def _path(operation: Operation) -> str:
    named = [scope.name for scope in operation.steps[0].scopes if scope.is_named]
    while named and claim(named[-1]) == operation.name:
        named.pop()
    return ".".join(named)


def _module(parameter: str) -> str:
    """Return the path of a module from that of its parameter."""
    parts = parameter.removeprefix("params.").split(".")
    if parts[-1] == "value" and parts[-2:-1] and parts[-2] in _LEAVES:  # of a variable of nnx
        parts.pop()
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] in _LEAVES else parts)
