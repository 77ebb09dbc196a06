"""The options of `roundscope identify`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import CallOptions, Json, Source, Timeout, to_folder


@dataclass(frozen=True, kw_only=True)
class IdentifyOptions:
    """What `roundscope identify` can be told; see the texts of the fields."""

    source: Source
    call: CallOptions = field(default_factory=CallOptions)
    layout: Annotated[
        str | None,
        typer.Option(help="Axes of a file: BNTH or BTNH; by default as in its metadata."),
    ] = None
    layer: Annotated[str | None, typer.Option(help="Layer of a file with several.")] = None
    head: Annotated[
        int, typer.Option(help="The key head to examine, in the first entry of the batch.")
    ] = 0
    budget: Annotated[
        int,
        typer.Option(
            metavar="PLANS",
            help="Plans that the search of the forward tries; that of the backward a sixteenth.",
        ),
    ] = 8000
    probe: Annotated[
        bool,
        typer.Option(help="Find the order of a kernel's sums first, in some hundred calls of it."),
    ] = True
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder,
            help="Folder for identify.json; by default identify-<name>, with -2 added if that holds"
            " another request.",
        ),
    ] = None
    timeout: Timeout = None
    json: Json = False
