"""`attention`: emulated attention of PyTorch tensors, differentiable, as an operator of PyTorch.

Two operators are registered, `roundscope::attention` and `roundscope::attention_backward`. They
look at the numbers of a mask, so that a compiled function does too. An operator takes strings and
no records, so a plan enters as its text (`attention.grammar.text`). The text holds the whole plan:
a graph that torch.compile stored means the same in another process, and shows which plan it runs.
A registry of plans under digests would be empty there.
"""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundscope.attention.api import attend, examine
from roundscope.attention.arguments import (
    block_given,
    causal_given,
    check_scores_shape,
    engine_given,
    layout_hint,
    plan_given,
    scale_given,
    served_given,
)
from roundscope.attention.engines.fused import from_scores
from roundscope.attention.grammar.text import plan_of, text_of
from roundscope.attention.inputs.alignment import Alignment, alignment_given
from roundscope.attention.plans.plan import Plan
from roundscope.attention.settings import output_type
from roundscope.attention.sites import Site
from roundscope.attention.torch.arrays import (
    NUMPY,
    TORCH,
    numpy_of,
    tensor_of,
    turned,
)
from roundscope.attention.torch.options import Options
from roundscope.emu.errors import known_arguments
from roundscope.emu.numbers import check_array
from roundscope.emu.shown import shown

REPEATED = 8  # calls of one kind after which programs are compiled for it
MOST_CALLS = 4096  # kinds of calls that are counted
_calls: Counter[Any] = Counter()
OF_MASKS = (torch.bool, torch.float64, torch.float32, torch.bfloat16, torch.float16)
# the arguments of both operators; those behind the tensors are the fields of `Options`
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? sinks, str plan, bool is_causal,"
    " float? scale, SymInt block_q, SymInt block_k, SymInt? window, float? softcap, str engine,"
    " str? alignment, bool learns"
)


@known_arguments
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    plan: Plan | str,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    block_q: int = 128,
    block_k: int = 128,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    engine: str | None = None,
    alignment: Alignment | None = None,
) -> Tensor:
    """Return softmax(scale Q K^T) V of PyTorch tensors, with every rounding that the plan names.

    The output has the bits of `roundscope.attend`, and the gradients of q, k, v, sinks and a mask
    of numbers have those of its derivative, in every bit: the emulated backward. The layout is that
    of `F.scaled_dot_product_attention`. The call runs under torch.compile (with fullgraph=True too)
    and under activation checkpointing. Entries that `torch.func.vmap` maps over run one after the
    other and draw the same random bits. Second derivatives are refused, and `torch.func.grad`
    refuses operators of libraries; autograd takes them.

    The backward computes the forward again, so that a call keeps its inputs and nothing else until
    then. Autocast casts no argument of the call, since the plan says what rounds: cast q, k and v
    where a kernel under autocast would get them in 16 bits. Dropout does not exist here.

    On a GPU, JAX takes most of the memory at its first use, unless the variable
    XLA_PYTHON_CLIENT_PREALLOCATE of the process is "false".

    Args:
        q: Queries (B, N, T, H): float64, float32, bfloat16 or float16, of any strides.
        k: Keys (B, G, S, H), where G divides N: heads of q share heads of k in groups, in order.
        v: Values (B, G, S, Hv).
        plan: A `Plan`, the name of a preset, or a text of `attention.grammar.text`, such as
            "fa2-bf16; O=bf16". Inside a compiled function it has to be a string; `text_of(plan)`
            makes one.
        mask: What broadcasts to (B, N, T, S). Booleans, True where a query sees a key; a row that
            sees no key gives 0. Or numbers that are added to the scaled scores, a bias: -inf and
            the lowest numbers of the type, as the transformers library writes, hide a key. If the
            others are all 0 and have no gradient, the numbers are taken as booleans; else the plan
            has to be one that adds a bias (`roundscope.attend`). With is_causal a query sees a key
            that both let it see.
        is_causal: Whether query t sees only keys s <= t, both counted from the start unless
            `alignment` says otherwise.
        scale: The factor of the scores, 1 / sqrt(H) by default; rounded as by `attend`.
        block_q: Query rows of a tile.
        block_k: Keys of a tile.
        window: How many keys a query sees, its own included. It replaces the plan's window.
        softcap: A bound c > 0 of the scores. It replaces the plan's softcap.
        sinks: One logit for each head, (N,).
        engine: "numpy" (tensors on a CPU), "xla", or "pallas" (fused kernels). By
            default "numpy" for tensors on a CPU and "xla" for those on a GPU, which JAX takes by
            DLPack without a copy and compiles once for each plan and shape.
        alignment: "top-left", as `F.scaled_dot_product_attention` has it, which None (default) is
            too; or "bottom-right", as `torch.nn.attention.bias.causal_lower_right` and
            FlashAttention's own package since 2.1: query t sees only keys s <= t + S - T.

    Returns:
        The output (B, N, T, Hv), contiguous, on q's device. It has the type that `attend` says:
        float64 if an input is float64; that of q, k and v if they all are bfloat16 or all float16
        and this type holds every number of the plan's event OUT; else float32. Gradients have the
        types of their tensors.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or arguments do not fit together.
        RuntimeError: A second derivative is asked for.

    Example:
        >>> import torch
        >>> from roundscope.torch import attention
        >>> q, k, v = torch.randn(3, 1, 2, 4, 8, dtype=torch.bfloat16).unbind()
        >>> out = attention(q.requires_grad_(), k, v, plan="fa2-bf16", is_causal=True)
        >>> out.dtype, bool((out[:, :, 0] == v[:, :, 0]).all())  # sees only the first key
        (torch.bfloat16, True)
        >>> out.sum().backward()
        >>> q.grad.shape, q.grad.dtype
        (torch.Size([1, 2, 4, 8]), torch.bfloat16)
    """
    text = plan if isinstance(plan, str) else _text(plan)
    if not torch.compiler.is_compiling():
        _check_tensors(q, k, v, None, sinks)
        check_mask(mask)
        engine_given(engine)
        causal_given(is_causal)
        alignment_given(alignment)
        scale, block_q, block_k, window, softcap = _numbers(
            q, plan_of(text), scale, block_q, block_k, window, softcap
        )
    if engine is None:
        engine = "numpy" if q.device.type == "cpu" else "xla"
    learns = mask is not None and mask.is_floating_point() and mask.requires_grad
    options = Options(
        text, is_causal, scale, block_q, block_k, window, softcap, engine, alignment, learns
    )
    out: Tensor = _attention(q, k, v, mask, sinks, *options)
    return out


def _text(plan: Any) -> str:
    """Return the text of a plan. torch.compile reads no record, so it needs the text itself."""
    if torch.compiler.is_compiling():
        raise TypeError(
            "plan: a Plan inside torch.compile, which takes a string there; give"
            " text=roundscope.attention.grammar.text.text_of(plan), made outside"
        )
    return text_of(plan_given(plan))


def _numbers(
    q: Tensor, plan: Plan, scale: Any, block_q: Any, block_k: Any, window: Any, softcap: Any
) -> tuple[Any, ...]:
    """Return scale, tiles, window and softcap as the numbers that an operator takes."""
    if scale is not None:
        scale_given(scale, q.shape[3], is_wide=plan[Site.SCALED].format.precision > 24)
        scale = float(scale)
    served = served_given(plan, window, softcap, None, q.shape[1])
    return (
        scale,
        block_given("block_q", block_q),
        block_given("block_k", block_k),
        None if window is None else served.window,
        None if softcap is None else served.softcap,
    )


def _check_tensors(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None
) -> None:
    """Raise TypeError or ValueError unless the tensors of a call fit together."""
    for name, x in (("q", q), ("k", k), ("v", v), ("sinks", sinks)):
        if x is None and name == "sinks":
            continue
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{name}: {shown(x)}, must be a PyTorch tensor; roundscope.attend takes"
                " arrays of NumPy and JAX"
            )
        if x.dtype not in NUMPY:
            raise TypeError(
                f"{name}: dtype {x.dtype}, must be float64, float32, bfloat16 or float16; convert"
                f" it with {name}.float()"
            )
        if x.device != q.device:
            raise ValueError(f"{name}: on {x.device}, must be on {q.device} as q")
        check_array(name, x)
        if name != "sinks" and (x.ndim != 4 or 0 in x.shape):
            raise ValueError(
                f"{name}: shape {tuple(x.shape)}, must be (batch, heads, tokens, features), none 0"
            )
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q: on {q.device}, must be on a CPU or a CUDA device; q.cpu() is")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"v: shape {tuple(v.shape)}, must agree with k {tuple(k.shape)} in batch, heads and"
            " keys"
        )
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise ValueError(
            f"k: shape {tuple(k.shape)}, must agree with q {tuple(q.shape)} in batch and features"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q: {q.shape[1]} heads, must be a multiple of the {k.shape[1]} heads of k"
            + layout_hint(q.shape[1], k.shape[1], k.shape[2], "(B, S, G, H)", "transpose(1, 2)")
        )
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise ValueError(
            f"sinks: shape {tuple(sinks.shape)}, must be a logit for each of the {q.shape[1]} heads"
            f" of q, ({q.shape[1]},)"
        )
    if mask is not None:
        if mask.device != q.device:
            raise ValueError(f"mask: on {mask.device}, must be on {q.device} as q")
        check_scores_shape("mask", mask, (*q.shape[:3], k.shape[2]))


@torch.library.custom_op(
    "roundscope::attention", mutates_args=(), schema=f"({ARGUMENTS}) -> Tensor"
)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, *given: Any
) -> Tensor:
    """Return the output (B, N, T, Hv)."""
    options = _options(q, k, v, mask, sinks, given)
    mask, bias = _parted(mask, options)
    if options.engine != "numpy":
        (out,) = _by_jax("forward", options, (q, k, v, mask, sinks, bias))
        return out
    arrays = [turned(numpy_of(x)) for x in (q, k, v)]
    own: Any = {"mask": _numpy(mask), "sinks": _numpy(sinks), "bias": _numpy(bias)}
    with _compiled_if_repeated(options, q, k):
        return tensor_of(turned(attend(*arrays, **own | options.of_attend())))


@torch.library.custom_op(
    "roundscope::attention_backward",
    mutates_args=(),
    schema=f"(Tensor do, {ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, sinks and mask; the last two are empty if there are none."""
    options = _options(q, k, v, mask, sinks, given)
    mask, bias = _parted(mask, options)
    if options.engine != "numpy":
        found = _by_jax("backward", options, (do, q, k, v, mask, sinks, bias))
    else:
        arrays = [turned(numpy_of(x)) for x in (q, k, v, do)]
        own: Any = {"mask": _numpy(mask), "sinks": _numpy(sinks), "bias": _numpy(bias)}
        with _compiled_if_repeated(options, do, q, k):
            e = examine(*arrays, record=None, **own | options.of_attend())
        found = tuple(tensor_of(turned(x), of.dtype) for x, of in ((e.dq, q), (e.dk, k), (e.dv, v)))
        found += () if sinks is None else (tensor_of(e.dsinks, sinks.dtype),)
        found += () if bias is None else (tensor_of(e.dbias, bias.dtype),)
    dsinks = q.new_empty(0) if sinks is None else found[3]
    dmask = found[-1] if options.learns else q.new_empty(0)
    return found[0], found[1], found[2], dsinks, dmask


def _compiled_if_repeated(options: Options, *tensors: Tensor) -> AbstractContextManager[None]:
    """Let compiled programs compute a call that comes again and again, as in a training.

    They have the same bits. A single call of this size ends before they are compiled; the steps of
    a small training are five times as fast with them.
    """
    key = (options, *(tuple(x.shape) for x in tensors))
    if len(_calls) > MOST_CALLS:
        _calls.clear()
    _calls[key] += 1
    return from_scores(0) if _calls[key] > REPEATED else nullcontext()


def _options(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    given: tuple[Any, ...],
) -> Options:
    """Return what an operator is given beside tensors, once all of it is checked."""
    _check_tensors(q, k, v, mask, sinks)
    options = Options(*given)
    options = options._replace(alignment=alignment_given(options.alignment))
    if options.engine == "numpy" and q.device.type != "cpu":
        raise ValueError(f"engine='numpy': q is on {q.device}; use engine='xla', or q.cpu()")
    return options


def _parted(mask: Tensor | None, options: Options) -> tuple[Tensor | None, Tensor | None]:
    """Return the booleans of a mask and the bias in it, as `attention.inputs.float_masks` does.

    A mask that learns is a bias, whatever its numbers are.
    """
    if mask is None or not mask.is_floating_point():
        return mask, None
    is_closed = mask <= torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(is_closed, 0.0)
    sees = ~is_closed if bool(is_closed.any()) else None
    return sees, bias if options.learns or bool((bias != 0.0).any()) else None


def _numpy(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else numpy_of(x)


def _by_jax(name: str, options: Options, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    from roundscope.attention.torch import by_jax

    return by_jax.run(getattr(by_jax, name), options, tensors)


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Any, sinks: Any, plan: str, *options: Any) -> Tensor:
    _check_tensors(q, k, v, mask, sinks)
    like = (np.empty(0, NUMPY[x.dtype]) for x in (q, k, v))
    dtype = TORCH[np.dtype(output_type(plan_of(plan), (), *like))]
    return q.new_empty((*q.shape[:3], v.shape[3]), dtype=dtype)


@_backward.register_fake
def _(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Any, sinks: Any, *options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dsinks = q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
    dmask = mask.new_empty(mask.shape) if Options(*options).learns else q.new_empty(0)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsinks, dmask


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _differentiate(ctx: Any, do: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # read once, which checkpointing asks for
    dq, dk, dv, dsinks, dmask = _backward(do, *saved, *ctx.options)
    others = dmask if Options(*ctx.options).learns else None, None if saved[4] is None else dsinks
    return dq, dk, dv, *others, *(None for _ in ctx.options)


def _refuse(ctx: Any, *gradients: Any) -> None:
    raise RuntimeError(
        "roundscope.torch.attention: a second derivative, which is not modelled, and which no"
        " kernel has."
        " Call backward and autograd.grad without create_graph, or take the math back end of"
        " F.scaled_dot_product_attention for this loss"
    )


_attention.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)


def _mapped(op: Any, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    """Return an operator's results for every entry that `torch.func.vmap` maps over, stacked."""
    each = [
        op(*(x if d is None else x.select(d, n) for x, d in zip(args, in_dims, strict=True)))
        for n in range(info.batch_size)
    ]
    if isinstance(each[0], Tensor):
        return torch.stack(each), 0
    return tuple(map(torch.stack, zip(*each, strict=True))), (0,) * len(each[0])


_attention.register_vmap(partial(_mapped, _attention))
_backward.register_vmap(partial(_mapped, _backward))


def check_mask(mask: Any, where: str = "") -> None:
    """Raise TypeError unless a mask has booleans or floats.

    where: the beginning of the message
    """
    if mask is None:
        return
    check_array(f"{where}mask", mask)
    if not isinstance(mask, Tensor) or mask.dtype not in OF_MASKS:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"{where}mask: {kind}, must be a tensor of bool, True where a query sees a key, or of"
            " floats that are added to the scores; mask.bool() makes one of 0 and 1"
        )
