"""`Side`: a run of a PyTorch model, with what it is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from roundscope.emu.shown import shown
from roundscope.emu.testing.foreign import raised
from roundscope.operations.models.tape import leaves
from roundscope.operations.models.torch.arrays import dtype_named
from roundscope.operations.models.torch.recording.refusals import Refused


@dataclass(frozen=True, slots=True)
class Side:
    """A run of a model, which `compare` repeats and records.

    Attributes:
        model: The model.
        inputs: Its tokens (B, T) as a tensor of whole numbers, or a dictionary of its arguments.
        run: A function of (model, inputs) that runs the model and returns what it returns, or
            logits; by default the model is called once.
        logprobs: A function of (logits, tokens) that computes the log-probabilities as this side
            does; by default they are computed from the logits in binary64.
        row: Which entry of the batch is compared, if the other side has a smaller batch.
        loss: A function of (what the model returned, inputs) that returns its loss, of which
            `error_budget` says how exact it and its gradients are.
    """

    model: nn.Module
    inputs: Any
    run: Callable[[nn.Module, Any], Any] | None = None
    logprobs: Callable[[Tensor, Tensor], Tensor] | None = None
    row: int = 0
    loss: Callable[[Any, Any], Tensor] | None = None


def called(name: str, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a user's function returns.

    Raises:
        ValueError: It raised an error, which is the cause.
    """
    try:
        return function(*args, **kwargs)
    except Refused as error:
        raise Refused(f"{name}: {error}") from None
    except Exception as error:  # whatever it raises
        raise ValueError(f"{name}: {what} raised {raised(error)}") from error


def check_tokens(name: str, inputs: Any) -> None:
    """Refuse tokens that are not whole numbers (B, T).

    Raises:
        ValueError: The tensor, or the argument `input_ids`, is something else.
    """
    is_bare = isinstance(inputs, Tensor)
    x = inputs if is_bare else inputs.get("input_ids")
    if not isinstance(x, Tensor):
        return
    is_whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    if is_whole and x.dim() == 2 and x.numel():
        return
    argument = "inputs" if is_bare else "inputs['input_ids']"
    repair = "give x[None] for one sequence" if is_whole and x.dim() == 1 else ""
    if not is_whole:
        repair = "give x.long()"
    if is_bare:
        repair += f"{', or ' if repair else 'give '}a dictionary for arguments that are no tokens"
    raise ValueError(
        f"{name}: {argument} {_kind(x)}: tokens must be whole numbers of shape (B, T)"
        + (f"; {repair}" if repair else "")
    )


def checked_result(name: str, out: Any, tokens: Tensor | None) -> Tensor:
    """Return the logits, or the first tensor, of what a run returned.

    Args:
        name: What the run is called.
        out: What it returned.
        tokens: Of a function `run=` the tokens, each of which must have logits.

    Raises:
        ValueError: There are none.
    """
    wanted = ""
    if tokens is not None:
        b, t = tokens.shape
        wanted = f", must return logits ({b}, {t}, vocabulary), of every token"
    what = "the model" if tokens is None else "run="
    try:
        result = result_of(out)
    except ValueError:
        raise ValueError(f"{name}: {what} returned {_kind(out)}{wanted or ', no tensor'}") from None
    if tokens is not None and (result.dim() != 3 or result.shape[:2] != tokens.shape):
        raise ValueError(f"{name}: run= returned {_kind(result)}{wanted}")
    return result


def check_logprobs(name: str, logprobs: Any, tokens: Tensor) -> None:
    """Refuse what a function `logprobs=` returned if it has not a number of each token but one.

    Raises:
        ValueError: It has another type or shape.
    """
    wanted = (tokens.shape[0], tokens.shape[1] - 1)
    if not isinstance(logprobs, Tensor) or tuple(logprobs.shape) != wanted:
        raise ValueError(
            f"{name}: logprobs= returned {_kind(logprobs)}, must return a tensor {wanted}, of each"
            " token but the first its log-probability"
        )


def check_loss(name: str, loss: Any) -> None:
    """Refuse what a function `loss=` returned if it is not one number.

    Raises:
        ValueError: It has another type or shape.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise ValueError(
            f"{name}: loss= returned {_kind(loss)}, must return a tensor of one number, the loss"
        )


def _kind(x: Any) -> str:
    """Return a tensor's type and shape in words, or another value as errors show it."""
    return f"{dtype_named(x)} {tuple(x.shape)}" if isinstance(x, Tensor) else shown(x)


def result_of(out: Any) -> Tensor:
    """Return the logits of what a model returned, or its first tensor."""
    logits = getattr(out, "logits", None)
    return logits if isinstance(logits, Tensor) else _first(out)


def _first(out: Any) -> Tensor:
    for x in leaves(out):
        if isinstance(x, Tensor):
            return x
    raise ValueError(f"the run returned {shown(type(out).__name__)}, which has no tensor")


def tokens_of(inputs: Any) -> Tensor | None:
    """Return the tokens (B, T) among the inputs of a model; None if there are none."""
    named = {"input_ids": inputs} if isinstance(inputs, Tensor) else inputs
    x = named.get("input_ids")
    return x if isinstance(x, Tensor) and not x.is_floating_point() and x.dim() == 2 else None
