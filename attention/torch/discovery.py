"""Which modules of a PyTorch model call attention themselves, read from their code.

`attention.torch.reached` reads a module; here is what a whole model has, and what its user is told.
"""

from collections.abc import Collection, Iterable

from torch import nn

from roundscope.attention.models.selection import Layer
from roundscope.attention.torch.reached import calls_attention, held, is_of, writes_out
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import listed
from roundscope.emu.shown import shown
from roundscope.emu.told import warn_outside

SHOWN = 4  # how many modules that write attention out are named
MARK_IT = (
    "mark the function that computes softmax(q k^T) v with roundscope.torch.attention_function;"
    " where it stands inside a forward, move it into a function first, in a subclass of that module"
)


@known_arguments
def attention_layers(
    model: nn.Module, modules: Iterable[str] | None = None
) -> dict[Layer, nn.Module]:
    """Return the modules of a model that call attention themselves, in the model's order.

    A module is one of them if the code of its class, or a function that it calls, names
    `scaled_dot_product_attention`, the registry of the transformers or the diffusers library, or
    the function under `nn.MultiheadAttention`, or is marked by `attention_function`. A function
    that it calls may be a global one, or the value of an attribute: itself, in a partial, a list or
    a dictionary, or that of an object there, as the `processor` of a module of diffusers is.

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
        names = [name for name, module in known.items() if calls_attention(module)]
        if not names:
            raise ValueError(
                f"model: no module of this {type(model).__name__} calls"
                " F.scaled_dot_product_attention in its own code;"
                f" {_way_in(model, written_out(model, ()))}"
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
    own = {id(module) for module in found}
    return [
        path
        for path, module in known
        if id(module) not in own and writes_out(module) and not calls_attention(module)
    ]


def tell_unseen(model: nn.Module, found: Collection[nn.Module]) -> None:
    """Warn of modules that seem to compute attention and are not seen, beside those that are."""
    if paths := written_out(model, found):
        warn_outside(
            f"model: {len(found)} of {len(found) + len(paths)} modules that seem to compute"
            f" attention are seen. Not seen: {_some(paths)}, with products and a softmax in its own"
            f" code. If that is attention, {MARK_IT}; modules=[...] with those that are seen ends"
            " this warning"
        )


def _way_in(model: nn.Module, paths: list[str]) -> str:
    """Return what to do where no module calls SDPA, given those that write attention out."""
    whole = "capture(model, path, what='operations') sees every model, operation by operation"
    if paths:
        return f"its code writes it out, it seems, in {_some(paths)}: {MARK_IT}. {whole}"
    known = {p: m for p, m in model.named_modules() if not is_of(type(m), ("torch",))}
    holding = {p: [f"{p}.{n}".lstrip(".") for n, _ in held(m)] for p, m in known.items()}
    holding = {p: names for p, names in holding.items() if names}
    if holding:
        names = [name for names in holding.values() for name in names]
        return (
            f"of the functions that attributes hold ({_some(names)}) none is seen to call it: give"
            f" modules={[*holding][:SHOWN]} if they do, or, where another kernel computes it,"
            f" {MARK_IT}. {whole}"
        )
    likely = [p for p, m in known.items() if "att" in f"{p} {type(m).__name__}".lower()]
    inner = [p for p in known or dict(model.named_modules()) if p]
    return (
        f"name those that do, as in modules={(likely or inner or [''])[:1]}, or, where attention is"
        f" written out or another kernel's, {MARK_IT}. {whole}"
    )


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(path or "the model itself" for path in paths[:SHOWN]) + more
