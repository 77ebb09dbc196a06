"""A user's `module:function` as a kernel.

Its signature is that of `jax.nn.dot_product_attention` or of torch's
`scaled_dot_product_attention`.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from roundscope.attention.testing.calls import Inputs, Outputs


def user_kernel(name: str) -> Callable[[Inputs], Outputs]:
    """Return the kernel that a user's function is; it is given torch tensors or JAX arrays.

    The function is called by the convention that both libraries share: (query, key, value, *,
    scale, is_causal). It is given torch tensors (B, N, T, H) if its module has imported torch and
    not jax, JAX arrays (B, T, N, H) otherwise.

    Raises:
        ValueError: the module or the function does not exist, or takes no `scale` or `is_causal`.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, ".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"kernel={name}: {error}; name a module and a function of it") from error
    finally:
        sys.path.pop(0)
    accepted = inspect.signature(found).parameters
    missing = {"scale", "is_causal"} - set(accepted)
    if missing and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        raise ValueError(f"kernel={name}: takes no {' or '.join(sorted(missing))}; add the keyword")
    names = vars(sys.modules[found.__module__])
    return partial(_torch if "torch" in names and "jax" not in names else _jax, found)


def _torch(function: Callable[..., Any], x: Inputs) -> Outputs:
    from roundscope.attention.testing.torch_call import called

    return called(partial(function, scale=x.scale, is_causal=x.is_causal), x)


def _jax(function: Callable[..., Any], x: Inputs) -> Outputs:
    from roundscope.attention.testing.jax_call import called

    return called(partial(function, scale=x.scale, is_causal=x.is_causal), x)
