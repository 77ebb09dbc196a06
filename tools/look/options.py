"""The options of `roundscope explain`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from roundscope.tools.options import Json


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """What `roundscope explain` can be told; see the texts of the fields."""

    value: Annotated[
        str, typer.Argument(help="For example -4.7, 1/3, 0x1.8p3, inf or nan.", metavar="VALUE")
    ]
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Target format, such as bf16 or e4m3fn:saturate.",
            metavar="FORMAT[:MODE[:OVERFLOW]]",
        ),
    ]
    mode: Annotated[
        str | None, typer.Option(help="Rounding mode, such as toward-zero; else ties-to-even.")
    ] = None
    overflow: Annotated[
        str | None, typer.Option(help="inf, nan or saturate; by default the format's own.")
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the stochastic mode.")] = 0
    plus: Annotated[
        str | None, typer.Option(help="Round VALUE + B, and draw the addition.", metavar="B")
    ] = None
    json: Json = False
