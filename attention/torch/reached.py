"""Which functions the code of a PyTorch module calls, and whether one of them is attention.

Nothing is run. Names in the compiled code of a class's own methods decide, and what global names
stand for there, as in `from torch.nn.functional import scaled_dot_product_attention as sdpa`; then
those in functions that these call, up to `DEPTH` calls away. Functions of PyTorch and of the
transformers library are followed within a file only.

A function may also be the value of an attribute, or of an entry of a list or a dictionary there, or
belong to an object there, one object deep: what the module's code, its `__init__` apart, names is
looked at (`held`). The diffusers library leaves attention to such an object, `module.processor`.
"""

import dis
from collections.abc import Iterator
from functools import cached_property, partial, partialmethod
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from roundscope.attention.torch.declared import MARK

NAMES = frozenset(
    (
        "scaled_dot_product_attention",
        "ALL_ATTENTION_FUNCTIONS",  # of transformers
        "dispatch_attention_fn",  # of diffusers
        "multi_head_attention_forward",
    )
)
OBJECTS = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
LIBRARIES = ("torch", "transformers")
DEPTH = 3
WRAPPERS: tuple[tuple[Any, str], ...] = (
    ((staticmethod, classmethod, MethodType), "__func__"),
    (property, "fget"),
    (cached_property, "func"),
)
PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "einsum", "__matmul__"))


def writes_out(module: nn.Module) -> bool:
    """Return whether a module's code, or a function that it holds, has a softmax and products."""
    codes = [f.__code__ for own in _kinds(module) for f in _functions(own)]
    held_ones = (_bare(value) for _, value in held(module))
    codes += [f.__code__ for f in held_ones if isinstance(f, FunctionType)]
    if not any("softmax" in name.lower() for code in codes for name in _names(code)):
        return False
    return sum(map(_products, codes)) > 1


def _products(code: CodeType) -> int:
    """Return how many products of matrices a code has, those in the functions inside it too."""
    own = sum(
        (step.opname == "BINARY_OP" and step.argrepr.startswith("@")) or step.argval in PRODUCTS
        for step in dis.get_instructions(code)
        if step.opname == "BINARY_OP" or isinstance(step.argval, str)
    )
    return own + sum(_products(c) for c in code.co_consts if isinstance(c, CodeType))


def calls_attention(module: nn.Module) -> bool:
    """Return whether a module's code, or a function that it holds, calls attention."""
    return any(
        any(hasattr(value, MARK) for value in vars(own).values())
        or any(_reaches(f, DEPTH) for f in _functions(own) if f.__name__ != "__init__")
        for own in _kinds(module)
    ) or any(
        _is_attention(value, DEPTH, getattr(value, "__module__", None)) for _, value in held(module)
    )


def _kinds(module: nn.Module) -> list[type]:
    """Return the classes whose code is a module's own."""
    return [
        own
        for own in type(module).__mro__
        if own is not nn.Module and issubclass(own, nn.Module) and not _is_machinery(own)
    ]


def held(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a module's attributes hold and its code names, with their names."""
    kinds = _kinds(module)
    functions = (f for own in kinds for f in _functions(own) if f.__name__ != "__init__")
    names = {name for f in functions for name in _names(f.__code__)} | {"forward"}
    of_classes = {n: x for own in reversed(kinds) for n, x in vars(own).items()}
    owned = {n: x for n, x in of_classes.items() if not isinstance(_bare(x), FunctionType)}
    owned |= vars(module)
    for name in sorted(names & owned.keys()):
        yield from _parts(name, owned[name], names)


def _parts(name: str, value: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the functions in the value of an attribute: itself, its entries, and its object's."""
    if isinstance(value, (nn.Module, Tensor, type, ModuleType)):
        return
    if isinstance(value, (list, tuple, dict)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"{name}[{key!r}]", x) for key, x in entries if _is_function(x))
    elif _is_function(value):
        yield name, value
    elif hasattr(value, "__dict__") and not is_of(type(value), LIBRARIES):
        parts = {n: getattr(type(value), n, None) for n in (*names, "__call__")}
        parts |= {n: x for n, x in vars(value).items() if n in names}
        yield from ((f"{name}.{n}", x) for n, x in parts.items() if _is_function(x))


def _is_function(value: Any) -> bool:
    """Return whether a value is a function, or one in a method, a property or a partial."""
    inner = _bare(value)
    return isinstance(inner, (FunctionType, BuiltinFunctionType)) or hasattr(value, MARK)


def is_of(kind: type, packages: tuple[str, ...]) -> bool:
    """Return whether a class is one of these packages'."""
    return (kind.__module__ or "").partition(".")[0] in packages


def _is_machinery(kind: type) -> bool:
    """Return whether a class is a base of all models of the transformers library.

    Those read the registry of attention, and call none.
    """
    package = kind.__module__
    return package.startswith("transformers.") and not package.startswith("transformers.models.")


def _functions(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that a class defines, without their decorators."""
    for value in vars(kind).values():
        inner = _bare(value)
        if isinstance(inner, FunctionType):
            yield inner


def _bare(function: Any) -> Any:
    """Return the function that others stand around."""
    while inside := _inside(function):
        function = inside[0]
    return function


def _inside(value: Any) -> tuple[Any, ...]:
    """Return the function that a decorated one, a method, a property or a partial is of.

    The functions that a partial gives to it are behind it.
    """
    if isinstance(value, partial | partialmethod):
        return value.func, *filter(callable, (*value.args, *value.keywords.values()))
    for kind, name in WRAPPERS:
        if isinstance(value, kind):
            return (getattr(value, name),)
    if not isinstance(value, type) and hasattr(value, "__wrapped__"):
        return (value.__wrapped__,)
    return ()


def _reaches(function: FunctionType, depth: int) -> bool:
    """Return whether a function calls attention, or calls one that does, `depth` calls away."""
    names = set(_names(function.__code__))
    return bool(names & NAMES) or any(
        _is_attention(value, depth - 1, function.__module__) for value in _meant(function, names)
    )


def _is_attention(value: Any, depth: int, origin: str | None) -> bool:
    """Return whether a value is attention, or a function that reaches it `depth` calls away.

    origin: the file of whoever names it, in which functions of `LIBRARIES` are followed
    """
    if any(value is own for own in OBJECTS) or (callable(value) and hasattr(value, MARK)):
        return True
    if inside := _inside(value):
        return any(_is_attention(inner, depth, origin) for inner in inside)
    return (
        depth >= 0
        and isinstance(value, FunctionType)
        and (
            value.__module__ == origin
            or (value.__module__ or "").partition(".")[0] not in LIBRARIES
        )
        and _reaches(value, depth)
    )


def _meant(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yield what names in a function stand for: globals, those around it, and parts of modules.

    The defaults of its arguments are among them.
    """
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    around: dict[str, Any] = {}
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            around[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in (*names, *function.__code__.co_freevars):
        value = around.get(name, function.__globals__.get(name))
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value)[part] for part in names & vars(value).keys())


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a code refers to, those in the functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
