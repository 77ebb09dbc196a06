"""The options of `roundscope budget`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import Json, to_folder


class By(StrEnum):
    """How operations are put into groups."""

    OPERATION = "operation"
    NAME = "name"
    LAYER = "layer"
    EACH = "each"


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """The options of `roundscope budget`; the text of each field says what it does."""

    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="module:function, a function without arguments that returns (model, inputs), or a"
            " roundscope.torch.Side, which has the loss too; this folder is searched first.",
        ),
    ]
    by: Annotated[
        By,
        typer.Option(
            help="Groups: all operations of a kind, by the last name of their module too, by their"
            " layer too, or each."
        ),
    ] = By.OPERATION
    plan: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP:WORDS",
            help="Another arithmetic to try, such as 'rms_norm: XC=fp32' or 'linear: fp32'; may be"
            " given several times.",
        ),
    ] = None
    gradients: Annotated[
        bool, typer.Option("--gradients/--no-gradients", help="Measure gradients.")
    ] = True
    events: Annotated[
        bool,
        typer.Option("--events/--no-events", help="Measure the rounding events of known plans."),
    ] = True
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder, metavar="DIR", help="Folder for report.html and budget.json."
        ),
    ] = None
    json: Json = False
