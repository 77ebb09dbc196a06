"""Which modules of a PyTorch model call attention themselves, read from their code.

Nothing is run. Names in the compiled code of a class's own methods decide, and those in functions
of the same file that these call, up to `DEPTH` calls away.
"""

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

NAMES = frozenset(
    ("scaled_dot_product_attention", "ALL_ATTENTION_FUNCTIONS", "multi_head_attention_forward")
)
DEPTH = 3


def calls_attention(module: nn.Module) -> bool:
    """Return whether the code of a module's own class calls attention."""
    return any(
        _reaches(function, DEPTH)
        for own in type(module).__mro__
        if own is not nn.Module and issubclass(own, nn.Module) and not _is_machinery(own)
        for function in _functions(own)
    )


def _is_machinery(kind: type) -> bool:
    """Return whether a class is a base of all models of the transformers library.

    Those read the registry of attention, and call none.
    """
    package = kind.__module__
    return package.startswith("transformers.") and not package.startswith("transformers.models.")


def _functions(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that a class defines, without their decorators."""
    for value in vars(kind).values():
        inner: Any = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        while hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        if isinstance(inner, FunctionType):
            yield inner


def _reaches(function: FunctionType, depth: int) -> bool:
    names = set(_names(function.__code__))
    if names & NAMES:
        return True
    if not depth:
        return False
    called = (function.__globals__.get(name) for name in names)
    return any(
        isinstance(other, FunctionType)
        and other.__module__ == function.__module__
        and _reaches(other, depth - 1)
        for other in called
    )


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a code refers to, those in the functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
