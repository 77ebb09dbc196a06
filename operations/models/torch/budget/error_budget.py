"""`error_budget`: which operation of a model makes how much of the error of its loss, of its
log-probabilities and of the gradients of its weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import torch.nn.functional as F
from torch import Tensor

from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.shown import shown
from roundscope.operations.models.budget import ModelBudget
from roundscope.operations.models.replay import check_replays
from roundscope.operations.models.torch.budget.grouping import By
from roundscope.operations.models.torch.budget.measuring import Measuring, Tell
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side


@known_arguments
def error_budget(
    model: Any,
    inputs: Any,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    run: Callable[[Any, Any], Any] | None = None,
    logprobs: Callable[[Tensor, Tensor], Tensor] | None = None,
    plan: Mapping[str, str] | None = None,
    by: By = "operation",
    gradients: bool = True,
    events: bool = True,
    tell: Tell = lambda text: None,
) -> ModelBudget:
    """Say which operation of a model makes how much of the error of its results and gradients.

    The judge is the same step in binary64: the same weights and inputs, every operation with its
    casts in binary64. Each group of operations is measured in two ways: alone in its own
    arithmetic, with all else in binary64, and by its absence, with it alone in binary64. An
    operation's arithmetic is that of its function, forward and backward, and of the rounding of its
    result; the sums of gradients where a value is read more than once are an operation of their
    own. Where one of the plans of `roundscope.operations` gives the bits of a group, each event of
    the plan is measured in the same two ways.

    Args:
        model: An `nn.Module` in evaluation mode.
        inputs: Its tokens (B, T), or a dictionary of its arguments.
        loss: A function of (what the model returned, inputs) that returns the loss. By default it
            is the `loss` that the model returned, or else the mean cross entropy of the next token,
            in binary64.
        run: As of `Side`.
        logprobs: As of `Side`.
        plan: What another arithmetic would change: for a group or an operation the words of a plan
            (`{"rms_norm": "transformers-llama; XC=fp32"}`), only changes of the plan that it has
            (`{"rms_norm": "XC=fp32"}`), "fp32" for its own function in binary32, or "exact". All
            are put in together; the errors with them are the last of `tried`.
        by: Groups of operations: "operation" for all of a kind, "name" by the last name of their
            module too, such as `down_proj`, "layer" by the number of their layer too, or "each".
        gradients: Whether gradients are measured.
        events: Whether rounding events are.
        tell: Told what runs next.

    Returns:
        A `ModelBudget`. Its text is the answer and two tables.

    Raises:
        TypeError: `model` is no `nn.Module`, or the inputs are of another type.
        ValueError: The model or a function raised an error; dropout is active; an operation cannot
            run in binary64; there is no loss and gradients are wanted; or `by` or `plan` names what
            there is not.
        RuntimeError: The run, run again, gives other bits (`ReplayError`).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from roundscope.torch import error_budget
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.SiLU()).bfloat16()
        >>> x = {"input": torch.randn(4, 64).bfloat16()}
        >>> found = error_budget(model, x, gradients=False)
        >>> sorted(line.group for line in found.lines)
        ['linear', 'silu']
    """
    if plan is not None and not isinstance(plan, Mapping):
        raise TypeError(
            f"plan={shown(plan)}: give a dictionary from operations to words, such as"
            " {'rms_norm': 'XC=fp32'} or {'linear': 'fp32'}"
        )
    if by not in get_args(By):
        raise ValueError(unknown("by", by, get_args(By)))
    side = Side(model, inputs, run, logprobs, loss=loss)
    return budget_of(side, plan=plan, by=by, gradients=gradients, events=events, tell=tell)


def budget_of(
    side: Side,
    *,
    plan: Mapping[str, str] | None = None,
    by: By = "operation",
    gradients: bool = True,
    events: bool = True,
    tell: Tell = lambda text: None,
    name: str = "run",
) -> ModelBudget:
    """Return the budget of a run; the arguments are those of `error_budget`."""
    tell("recording the model")
    side = replace(side, loss=_loss_of(side) if gradients else None)
    tape = record(side, name)
    check_replays(tape, name)
    tell("in binary64")
    return Measuring(tape, side, by, tell).budget(plan or {}, events)


def _loss_of(side: Side) -> Callable[[Any, Any], Tensor]:
    """Return the function of a run's loss."""
    if side.loss is not None:
        return side.loss

    def own(out: Any, inputs: Any) -> Tensor:
        if isinstance(x := getattr(out, "loss", None), Tensor):
            return x
        tokens = inputs if isinstance(inputs, Tensor) else inputs.get("input_ids")
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3 or not isinstance(tokens, Tensor):
            raise ValueError(
                "loss= is needed where a model has no logits of tokens: give a function of (what"
                " the model returned, inputs), or gradients=False"
            )
        if tokens.shape[1] < 2:
            raise ValueError(f"tokens {tuple(tokens.shape)}: give 2 or more in a row for a loss")
        wide = logits[:, :-1].double()
        return F.cross_entropy(wide.reshape(-1, wide.shape[-1]), tokens[:, 1:].reshape(-1))

    return own
