"""Which modules of a PyTorch model call attention themselves, read from their code.

Nothing is run. Names in the compiled code of a class's own methods decide, and what global names
stand for there, as in `from torch.nn.functional import scaled_dot_product_attention as sdpa`; then
those in functions that these call, up to `DEPTH` calls away. Functions of PyTorch and of the
transformers library are followed within a file only. Modules of the diffusers library leave their
attention to an object, `module.processor`: its `__call__` counts as code of the module.
"""

import dis
from collections.abc import Collection, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch.nn.functional as F
from torch import nn

from roundscope.attention.models.selection import Layer
from roundscope.attention.torch.declared import MARK
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import listed
from roundscope.emu.shown import shown
from roundscope.emu.told import warn_outside

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
PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "einsum", "__matmul__"))
SHOWN = 4  # how many modules that write attention out are named
MARK_IT = (
    "mark the function that computes softmax(q k^T) v with roundscope.torch.attention_function"
)


@known_arguments
def attention_layers(
    model: nn.Module, modules: Iterable[str] | None = None
) -> dict[Layer, nn.Module]:
    """Return the modules of a model that call attention themselves, in the model's order.

    A module is one of them if the code of its class, or a function that it calls, names
    `scaled_dot_product_attention`, the registry of the transformers or the diffusers library, or
    the function under `nn.MultiheadAttention`, or is marked by `attention_function`. So does the
    `processor` of a module of diffusers.

    Args:
        model: Any `nn.Module`; a compiled model gives those of the model that was compiled.
        modules: The paths of the modules, as in `model.named_modules()`, where they are not found
            so.

    Returns:
        Layer -> module. Layers are numbered from 0.

    Raises:
        TypeError: `model` is not an `nn.Module`.
        ValueError: `model` has no such module, or not one of the paths.

    Example:
        >>> from torch import nn
        >>> from roundscope.attention.torch.discovery import attention_layers
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.MultiheadAttention(8, 2))
        >>> list(attention_layers(model))
        [Layer(name='1', number=0)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: {shown(model)}, must be a torch.nn.Module")
    model = getattr(model, "_orig_mod", model)
    known = dict(model.named_modules())
    if modules is None:
        names = [name for name, module in known.items() if _calls_attention(module)]
        if not names:
            raise ValueError(
                f"model: no module of this {type(model).__name__} calls"
                " F.scaled_dot_product_attention in its own code;"
                f" {_way_in(written_out(model, ()))}"
            )
    else:
        names = (
            [modules]
            if isinstance(modules, str)
            else listed("modules", modules, "a list, as ['layer.0']")
        )
        names = [name for n, name in enumerate(names) if name not in names[:n]]
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise ValueError(f"modules: {shown(name)} is no path of model.named_modules()")
        if not names:
            raise ValueError(f"modules={shown(modules)}: names none; leave it out for all")
    return {Layer(name=name, number=n): known[name] for n, name in enumerate(names)}


def written_out(model: nn.Module, found: Collection[nn.Module]) -> list[str]:
    """Return the paths of modules that seem to compute attention by products and a softmax.

    Args:
        model: The model.
        found: Modules whose attention is seen.

    Returns:
        Paths of modules, none of `found`, whose own code has a softmax and two products at least.
        It is a guess: a mixture of experts may be written so too.
    """
    known = getattr(model, "_orig_mod", model).named_modules()
    kinds: dict[type, bool] = {}
    own = {id(module) for module in found}
    paths = []
    for path, module in known:
        kind = type(module)
        if kind not in kinds:
            kinds[kind] = _writes_out(module) and not _calls_attention(module)
        if kinds[kind] and id(module) not in own:
            paths.append(path)
    return paths


def tell_unseen(model: nn.Module, found: Collection[nn.Module]) -> None:
    """Warn of modules that seem to compute attention and are not seen, beside those that are."""
    if paths := written_out(model, found):
        warn_outside(
            f"model: {len(found)} of {len(found) + len(paths)} modules that seem to compute"
            f" attention are seen. Not seen: {_some(paths)}, with products and a softmax in its own"
            f" code. If that is attention, {MARK_IT}; modules=[...] with those that are seen ends"
            " this warning"
        )


def _way_in(paths: list[str]) -> str:
    """Return what to do where no module calls SDPA, given those that write attention out."""
    whole = "capture(model, path, what='operations') sees every model, operation by operation"
    if not paths:
        return (
            "name those that do, as in modules=['blocks.0.attention'], or, where attention is"
            f" written out or another kernel's, {MARK_IT}. {whole}"
        )
    return f"its code writes it out, it seems, in {_some(paths)}: {MARK_IT}. {whole}"


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(path or "the model itself" for path in paths[:SHOWN]) + more


def _writes_out(module: nn.Module) -> bool:
    codes = [
        function.__code__
        for own in type(module).__mro__
        if own is not nn.Module and issubclass(own, nn.Module) and not _is_machinery(own)
        for function in _functions(own)
    ]
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


def _calls_attention(module: nn.Module) -> bool:
    kinds = [
        own
        for own in type(module).__mro__
        if own is not nn.Module and issubclass(own, nn.Module) and not _is_machinery(own)
    ]
    return any(
        any(hasattr(value, MARK) for value in vars(own).values())
        or any(_reaches(function, DEPTH) for function in _functions(own))
        for own in [*kinds, *_processors(module)]
    )


def _processors(module: nn.Module) -> list[type]:
    """Return the class of the object to which a module of diffusers leaves its attention."""
    own = getattr(module, "processor", None)
    return [] if isinstance(own, nn.Module) or not callable(own) else [type(own)]


def _is_machinery(kind: type) -> bool:
    """Return whether a class is a base of all models of the transformers library.

    Those read the registry of attention, and call none.
    """
    package = kind.__module__
    return package.startswith("transformers.") and not package.startswith("transformers.models.")


def _functions(kind: type) -> Iterator[FunctionType]:
    """Yield the functions that a class defines, without their decorators."""
    for value in vars(kind).values():
        inner = _bare(value.__func__ if isinstance(value, (staticmethod, classmethod)) else value)
        if isinstance(inner, FunctionType):
            yield inner


def _bare(function: Any) -> Any:
    """Return a function without its decorators."""
    while not isinstance(function, type) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _reaches(function: FunctionType, depth: int) -> bool:
    """Return whether a function calls attention, or calls one that does, `depth` calls away."""
    names = set(_names(function.__code__))
    if names & NAMES:
        return True
    meant = list(_meant(function, names))
    if any(value is own for value in meant for own in OBJECTS):
        return True
    if any(hasattr(value, MARK) for value in meant if callable(value)):
        return True
    return depth > 0 and any(
        isinstance(other, FunctionType)
        and (
            other.__module__ == function.__module__
            or (other.__module__ or "").partition(".")[0] not in LIBRARIES
        )
        and _reaches(other, depth - 1)
        for other in map(_bare, meant)
    )


def _meant(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yield what names in a function stand for: globals, those around it, and parts of modules."""
    known = dict(function.__globals__)
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in (*names, *function.__code__.co_freevars):
        value = known.get(name)
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value)[part] for part in names & vars(value).keys())


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a code refers to, those in the functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
