"""Which modules and functions of PyTorch are which operation.

A module is claimed by its class, and what it calls inside is not recorded then; a function is
claimed by its name. What is claimed by nobody and has a floating-point result is `unknown`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from roundscope.attention.torch.calls import Wrapped
from roundscope.operations.models.tape import CAST, EXACT, UNKNOWN

GLOBALS = {"apply_rotary_pos_emb": "rope"}  # functions of a model's own file
CLASSES: dict[type[nn.Module], str] = {
    nn.LayerNorm: "layer_norm",
    nn.Linear: "linear",
    nn.Embedding: "embedding",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
}
ENDINGS = {
    "RMSNorm": "rms_norm",
    "LayerNorm": "layer_norm",
    "RotaryEmbedding": "rope_table",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu",
}

_NAMED = {
    "linear": "linear addmm",
    "matmul": "matmul __matmul__ __rmatmul__ mm bmm baddbmm einsum",
    "embedding": "embedding",
    "rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
    "silu": "silu",
    "gelu": "gelu",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "cross_entropy": "cross_entropy nll_loss",
    "attention": "scaled_dot_product_attention",
    "add": "add __add__ __radd__ __iadd__",
    "sub": "sub __sub__ __rsub__ __isub__",
    "mul": "mul __mul__ __rmul__ __imul__ multiply",
    CAST: "to float bfloat16 half double type type_as",
    # nothing is rounded: numbers are moved, chosen or counted
    EXACT: """view reshape transpose permute contiguous __getitem__ __setitem__ cat concat stack
        unsqueeze squeeze expand expand_as repeat repeat_interleave flatten unflatten chunk split
        tensor_split unbind narrow clone detach t T mT adjoint swapaxes movedim view_as reshape_as
        gather index_select take_along_dim index_copy index_put masked_fill where roll pad neg
        __neg__ abs relu clamp min max amax amin maximum minimum topk sort argsort triu tril diag
        zeros ones full empty arange tensor as_tensor zeros_like ones_like full_like empty_like
        new_zeros new_ones new_full new_empty new_tensor cpu cuda dropout copy fill zero data
        requires_grad_ lt le gt ge eq ne flip tile broadcast_to scatter alias lift_fresh""",
}
FUNCTIONS = {name: operation for operation, names in _NAMED.items() for name in names.split()}


def operation_of(module: nn.Module) -> str | None:
    """Return the operation that a module is; None where it is not one.

    Example:
        >>> from torch import nn
        >>> operation_of(nn.RMSNorm(8)), operation_of(nn.Linear(8, 8)), operation_of(nn.ReLU())
        ('rms_norm', 'linear', None)
    """
    for kind, operation in CLASSES.items():
        if isinstance(module, kind):
            return operation
    name = type(module).__name__
    return next((operation for end, operation in ENDINGS.items() if name.endswith(end)), None)


def operation_named(function: str) -> str:
    """Return the operation of a function by its full name, such as "torch.Tensor.add"."""
    last = function.removesuffix(".__get__").rpartition(".")[2]
    plain = last if last.startswith("__") else last.removesuffix("_")
    return FUNCTIONS.get(last) or FUNCTIONS.get(plain) or UNKNOWN


def compiled(module: nn.Module) -> nn.Module | None:
    """Return the module that was compiled, of a module that runs compiled; else None."""
    if (inner := getattr(module, "_orig_mod", None)) is not None:
        return inner  # type: ignore[no-any-return]
    return module if module.__dict__.get("_compiled_call_impl") is not None else None


def compiled_function(module: nn.Module) -> str | None:
    """Return the name of a function of a module, or of its class, that was compiled by itself."""
    if compiled(module) is not None:
        return None
    own = {**vars(type(module)), **vars(module)}
    return next((name for name, f in own.items() if hasattr(f, "_torchdynamo_orig_callable")), None)


def claims(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Yield (path, module, operation) of the modules of a model that are looked at.

    Those inside a claimed module are left out. A module that was compiled and is no operation by
    its class is one that is not known, whatever is in it.
    """
    closed: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{before}.") or not before for before in closed):
            continue
        inner = compiled(module)
        operation = operation_of(module if inner is None else inner)
        operation = operation or (None if inner is None else UNKNOWN)
        if operation:
            closed.append(path)
        yield path, module, operation


def plain_path(path: str) -> str:
    """Return the path of a module as it is without compilation."""
    return ".".join(name for name in path.split(".") if name != "_orig_mod")


class _Answered(Wrapped):
    """A function of a module whose calls `around(function, *args, **kwargs)` answers."""

    def __init__(self, forward: Callable[..., Any], around: Callable[..., Any]) -> None:
        super().__init__(forward)
        self.around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(self.forward, *args, **kwargs)


def wrap(module: nn.Module, around: Callable[..., Any]) -> Callable[[], None]:
    """Let `around(inner, *args, **kwargs)` answer the calls of a module; return what ends that."""
    own = module.__dict__
    place = "forward" if own.get("_compiled_call_impl") is None else "_compiled_call_impl"
    before, inner = own.get(place), getattr(module, place)
    own[place] = wrapped = _Answered(inner, around)

    def undo() -> None:
        if own.get(place) is not wrapped:
            return
        if before is None:
            del own[place]
        else:
            own[place] = before

    return undo
