"""The options of `roundscope compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import Json, to_folder

_HELP = (
    " run: a safetensors file that roundscope.torch.capture(model, path, what='operations') or"
    " roundscope.jax.capture(path, what='operations') wrote, or module:function, a function without"
    " arguments that returns (model, inputs), of JAX (function, parameters, inputs); this folder is"
    " searched first."
)
_OTHER = (
    "The second run, on the same tokens and weights, or what another program kept of it: results by"
    " the names of modules in a .pt or .safetensors file, or a folder of SGLang's tensor dump."
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `roundscope compare`; the text of each field says what it does."""

    a: Annotated[str, typer.Argument(metavar="A", help="The first" + _HELP)]
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help=_OTHER,
        ),
    ]
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder, metavar="DIR", help="Folder for report.html and compare.json."
        ),
    ] = None
    json: Json = False
