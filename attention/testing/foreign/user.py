"""A user's function as a kernel: how it is called, and in which library.

The function has the signature that `jax.nn.dot_product_attention` and PyTorch's
`scaled_dot_product_attention` share, (query, key, value, *, scale, is_causal), or that of
FlashAttention, (q, k, v, *, softmax_scale, causal).
"""

import functools
import importlib
import inspect
import sys
import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.attention.testing.calls import (
    Inputs,
    Outputs,
    check_kept,
    first_of,
    parts_of,
    sums_of,
)
from roundscope.emu.errors import Problem, known_arguments, tidy_errors, unknown
from roundscope.emu.numbers import check_truth
from roundscope.emu.shown import shown
from roundscope.emu.testing.foreign import ForeignError, call_foreign, ends, limited, raised

Kernel = Callable[[Inputs], Outputs]

LISTED = 12  # functions of a module that a message names
LIBRARIES = ("numpy", "jax", "torch")
LAYOUTS = ("BTNH", "BNTH")
TYPES = ("bfloat16", "float16", "float32")
NAMES = {  # argument -> the names that kernels have for it
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "is_causal": ("is_causal", "causal"),
    "mask": ("mask", "attn_mask"),
    "do": ("do", "dout", "grad_out"),
    "window": ("window", "sliding_window", "window_size"),
    "softcap": ("softcap", "soft_cap", "logits_soft_cap"),
    "alignment": ("alignment",),
}
GIVEN = ("window", "softcap", "alignment")  # what a function is given if the call has it
USUAL = {"scale": "scale", "is_causal": "is_causal"}  # of a function that tells no names
NO_DEVICE = (  # what libraries say, in lower case, where a kernel finds no device
    "not compiled with cuda",
    "no cuda gpus are available",
    "no nvidia driver",
    "no cuda-capable device",
    "0 active drivers",
    "unable to initialize backend",
    "unknown backend",
    "no available kernel",
    "no viable backend for scaled_dot_product_attention",
    "no gpu",
    "cudnn is not detected",
    "only interpret mode is supported on cpu",
)


class Unavailable(unittest.SkipTest):
    """A kernel needs a GPU or a library that is not here; pytest and unittest skip the test.

    Attributes:
        repair: What it needs, and what to do.
    """

    def __init__(self, repair: str) -> None:
        super().__init__(f"kernel: {repair}")
        self.repair = repair


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a function is called.

    library    the library of its arrays
    layout     the order of the axes of its arrays
    dtype      the type of its arrays; NumPy has float32 arrays of numbers of that type
    names      argument -> the function's name for it, of those in NAMES that it takes
    backward   whether gradients are wanted
    pair       whether its window is (keys before, keys after), as FlashAttention's
    """

    library: str
    layout: str
    dtype: str = "bfloat16"
    names: Mapping[str, str]
    backward: bool = True
    pair: bool = False

    def options(self, x: Inputs) -> dict[str, Any]:
        """Return the options of a call, without the mask, by the function's own names."""
        said = {n: getattr(x, n) for n in ("scale", "is_causal", *GIVEN)}
        if self.pair and x.window is not None:
            said["window"] = (x.window - 1, 0 if x.is_causal else x.window - 1)
        left = {n for n in GIVEN if said[n] is None}
        return {self.names[n]: value for n, value in said.items() if n in self.names.keys() - left}

    @property
    def is_own_backward(self) -> bool:
        """True if the function is given dO and returns the gradients itself."""
        return "do" in self.names and self.backward


@known_arguments
def kernel_of(
    function: Callable[..., Any] | str,
    *,
    library: str | None = None,
    layout: str | None = None,
    dtype: str = "bfloat16",
    backward: bool = True,
) -> Kernel:
    """Return the kernel that a user's function is.

    Args:
        function: The function, or its name as "module:function". It is called as function(q, k, v,
            scale=..., is_causal=...), where `softmax_scale`, `sm_scale` and `causal` serve too. It
            returns the output. `window` (or `sliding_window`, or `window_size`), `softcap` and
            `alignment` are given to a function that has them, where a call has one; a window whose
            default is a pair is given as (keys before, keys after). A function that takes `do` (or
            `dout`, or `grad_out`) returns (out, dq, dk, dv) itself; the gradients of others are
            taken by JAX's or PyTorch's differentiation.
        library: "numpy", "jax" or "torch", the library of the arrays that the function takes. By
            default that which the function's module imports; if it imports PyTorch and JAX, JAX.
        layout: "BTNH" (batch, tokens, heads, features) or "BNTH". By default BNTH for PyTorch and
            BTNH for others.
        dtype: "bfloat16", "float16" or "float32", the type of the function's inputs. A function of
            NumPy arrays is given float32 arrays of numbers that this type has.
        backward: Whether gradients are wanted.

    Raises:
        ValueError: No function has this name, it takes neither scale nor is_causal, or an option is
            not one of those above.
        TypeError: The function is neither a function nor a name.

    Example:
        >>> import numpy as np
        >>> from roundscope.testing import draw, kernel_of
        >>> def attention(q, k, v, *, scale, is_causal):
        ...     s = scale * np.einsum("btnh,bsnh->bnts", q, k)
        ...     p = np.exp(s - s.max(-1, keepdims=True))
        ...     return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)
        >>> kernel = kernel_of(attention, library="numpy")
        >>> kernel(draw("gaussian", tokens=16, features=8)).out.shape
        (2, 16, 4, 8)
    """
    what = function if isinstance(function, str) else getattr(function, "__name__", "kernel")
    found = function_named(function) if isinstance(function, str) else function
    if not callable(found):
        raise TypeError(f"kernel: {shown(found)}, must be a function, or a name as module:function")
    check_truth("backward", backward)
    chosen = library_of(found) if library is None else library
    _check("library", chosen, LIBRARIES)
    _check("dtype", dtype, TYPES)
    axes = ("BNTH" if chosen == "torch" else "BTNH") if layout is None else layout
    axes = axes.upper() if isinstance(axes, str) else axes
    _check("layout", axes, LAYOUTS)
    names = _names(found, what)
    is_able = chosen != "numpy" or "do" in names
    convention = Convention(
        library=chosen,
        layout=axes,
        dtype=dtype,
        names=names,
        backward=backward and is_able,
        pair=_is_pair(found, names.get("window", "")),
    )
    return functools.partial(_run, found, convention)


def _run(function: Callable[..., Any], c: Convention, x: Inputs) -> Outputs:
    """Return the outputs of a user's function, whose shapes are those of the call.

    Raises:
        ForeignError: The function gave no such results, or did what no kernel may do.
        Unavailable: The function needs a GPU or a library that is not here.
    """
    outputs: Outputs = called_here(_caller(c.library), function, c, x)
    shapes = {"out": (*x.q.shape[:3], x.v.shape[3])}
    shapes |= {f"d{n}": getattr(x, n).shape for n in "qkv"}
    for name, array in outputs.named():
        if name in shapes and array.shape != shapes[name]:
            axes = "(batch, tokens, heads, features)"
            raise ForeignError(
                "kernel",
                f"returned {name} of shape {array.shape} as {axes}, must be {shapes[name]}; is the"
                f" layout {c.layout}?",
            )
    return outputs


def called_here(function: Callable[..., Any], *given: Any) -> Any:
    """Return what `call_foreign` does; raise Unavailable if the function needs what is not here."""
    try:
        return call_foreign(function, *given)
    except ForeignError as error:
        cause = error.__cause__
        if isinstance(cause, Exception) and (reason := unavailable(cause)) is not None:
            raise Unavailable(reason) from cause
        raise


def unavailable(error: Exception) -> str | None:
    """Return what is missing on this machine, in words, if that is why a kernel raised an error.

    Example:
        >>> unavailable(AssertionError("Torch not compiled with CUDA enabled"))
        'needs a GPU, and none is found here (Torch not compiled with CUDA enabled)'
        >>> unavailable(ValueError("tokens: at least 16")) is None
        True
    """
    words = " ".join(str(error).split())[:160]
    if isinstance(error, ImportError):
        missing = (error.name or words).partition(".")[0]
        return f"needs {missing}, which is not installed here; install it"
    if any(said in words.lower() for said in NO_DEVICE):
        return f"needs a GPU, and none is found here ({words})"
    return None


def takes(function: Kernel, argument: str) -> bool:
    """Return whether a kernel of `kernel_of` takes an argument of `NAMES`, such as "mask"."""
    parts = getattr(function, "args", ())
    return any(
        argument in part.names if isinstance(part, Convention) else takes(part, argument)
        for part in parts
    )


def in_time(kernel: Kernel, seconds: float | None) -> Kernel:
    """Return a kernel that fails if a call takes longer than so many seconds; None: any time."""
    return kernel if seconds is None else functools.partial(limited, kernel, seconds)


def library_of(function: Callable[..., Any]) -> str:
    """Return the library whose arrays a function takes, by its module and what that imports."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    home = module.partition(".")[0]
    if home in ("torch", "jax", "flax"):
        return "torch" if home == "torch" else "jax"
    names = {**vars(sys.modules.get(module, sys)), **getattr(inner, "__globals__", {})}
    imported = {_home(value) for value in names.values()} | set(names)
    if imported & {"jax", "flax"}:
        return "jax"
    return "torch" if "torch" in imported else "numpy"


def _home(value: Any) -> str:
    """Return the library in which a value was made: that of a module, a function or a class."""
    if inspect.ismodule(value):
        return value.__name__.partition(".")[0]
    made = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
    return str(made.__module__).partition(".")[0]


def _check(name: str, value: str, among: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in among:
        raise ValueError(unknown(name, value, among))


def _caller(library: str) -> Callable[[Callable[..., Any], Convention, Inputs], Outputs]:
    """Return what calls kernels of a library; its module alone imports the library."""
    if library == "numpy":
        return _run_numpy
    if library == "jax":
        from roundscope.attention.testing.foreign import jax_call

        return jax_call.run
    from roundscope.attention.testing.foreign import torch_call

    return torch_call.run


def _run_numpy(function: Callable[..., Any], c: Convention, x: Inputs) -> Outputs:
    """Return the outputs of a function of float32 arrays of NumPy, whatever type they stand for."""
    options = c.options(x)
    if x.mask is not None:
        options[c.names["mask"]] = x.mask.copy()
    given = [_turned(a, c.layout) for a in (x.q, x.k, x.v, x.do)]
    before = [a.tobytes() for a in given]
    q, k, v, do = given
    sums = None
    if c.is_own_backward:
        results = parts_of(function(q, k, v, **options | {c.names["do"]: do}))
    else:
        result = function(q, k, v, **options)
        results, sums = (first_of(result),), sums_of(result, x)
    check_kept(before, (a.tobytes() for a in given))
    named = zip(("out", "dq", "dk", "dv"), results, strict=False)
    lse = None if sums is None else np.asarray(sums, np.float32)
    return Outputs(lse=lse, **{name: _float32(a, c.layout) for name, a in named})


def _turned(x: np.ndarray, layout: str) -> np.ndarray:
    return np.array(x.swapaxes(1, 2) if layout == "BNTH" else x, order="C")


def _float32(x: Any, layout: str) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray) or np.iscomplexobj(x):
        what = "complex" if np.iscomplexobj(x) else "masked"
        raise ForeignError("kernel", f"returned a {what} array; return real numbers")
    array = np.asarray(x)
    if array.dtype.kind not in "fV":  # those of ml_dtypes are V
        raise ForeignError("kernel", f"returned an array of {array.dtype}; return floats")
    if array.ndim != 4:
        raise ForeignError("kernel", f"returned shape {array.shape}, must have four axes")
    return _turned(array.astype(np.float32), layout)


@tidy_errors
def function_named(name: str, argument: str = "kernel") -> Any:
    """Return what "module:function" names; the current folder is searched first.

    Args:
        name: The module and the function, or an attribute of an object in the module.
        argument: What the name is called in an error message.

    Raises:
        ValueError: The module or the function does not exist.
    """
    module, _, function = name.partition(":")
    name = shown(name)[1:-1]
    sys.path.insert(0, ".")
    try:
        home: Any = importlib.import_module(module)
        found = home
        if not function and (own := _functions(home)):
            such = ", ".join(f"{name}:{each}" for each in own[:LISTED])
            raise Problem(argument, name, f"is a module; name a function of it: {such}")
        for part in function.split("."):
            if found is home and part and not hasattr(home, part) and (own := _functions(home)):
                more = "..." if len(own) > LISTED else ""
                raise Problem(argument, name, unknown("function", part, own[:LISTED], more, own))
            found = getattr(found, part)
    except Problem:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise Problem(
            argument, name, f"{error}; name a module and a function of it, as module:function"
        ) from error
    except SystemExit as error:
        repair = f'importing it {ends(error)}; put what runs under if __name__ == "__main__"'
        raise Problem(argument, name, repair) from error
    except Exception as error:  # whatever the module raises
        raise Problem(argument, name, f"importing it raised {raised(error)}") from error
    finally:
        sys.path.pop(0)
    return found


def _functions(module: Any) -> list[str]:
    """Return the names of a module's own public functions."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def _is_pair(function: Callable[..., Any], name: str) -> bool:
    """Return whether an argument of a function has a pair as its default."""
    if not name:
        return False
    return isinstance(inspect.signature(function).parameters[name].default, tuple)


def _names(function: Callable[..., Any], what: str) -> dict[str, str]:
    """Return what a function calls the arguments that it takes."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C
        return dict(USUAL)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = {
        argument: next(name for name in known if name in parameters)
        for argument, known in NAMES.items()
        if any(name in parameters for name in known)
    }
    missing = [n for n in USUAL if n not in names]
    if takes_all:
        return {**USUAL, **names}
    if missing:
        raise Problem("kernel", what, f"takes no {' or '.join(missing)}; add the keyword")
    return names
