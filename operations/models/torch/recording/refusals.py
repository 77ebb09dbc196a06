"""What a run cannot be recorded with: active dropout, and tokens that a table does not have."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

DROPOUT = ["dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"]
DROPOUT += ["feature_alpha_dropout", "native_dropout"]


class Refused(ValueError):
    """A model that is not recorded; the message says why, and what to do."""


def active_dropout(where: str, p: float) -> Refused:
    """Return the error that dropout is."""
    return Refused(
        f"its dropout {where!r} is active (p = {p}), so no run of it repeats; call model.eval()"
        " first, and give the dropout of functions as dropout(x, p, training=self.training)"
    )


def check_call(function: str, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call of dropout that would drop something, before it runs, and a token that a table
    does not have.

    Raises:
        Refused: It is one.
    """
    if function in DROPOUT:
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        on = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        if on and p:
            raise active_dropout(f"{function} in {path or 'the model'}", p)
    if function == "scaled_dot_product_attention":
        p = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        if p:
            raise active_dropout(f"{function} in {path or 'the model'}", p)
    if function == "embedding" and len(args) > 1:
        table = args[1] if isinstance(args[0], Tensor) and not args[0].is_floating_point() else None
        if isinstance(table, Tensor):
            check_rows(path, args[0], table)


def check_rows(path: str, tokens: Any, table: Tensor) -> None:
    """Refuse tokens that an embedding has no row of.

    Raises:
        Refused: There is one.
    """
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or not tokens.numel():
        return
    low, high = (int(x) for x in tokens.detach().aminmax())
    if low >= 0 and high < len(table):
        return
    worst = low if low < 0 else high
    raise Refused(
        f"token {worst} has no row in {path or 'the embedding'}, which has {len(table)} (0 to"
        f" {len(table) - 1}); give tokens of this model's tokenizer"
        + (", with attention_mask= in the place of negative numbers" if low < 0 else "")
    )
