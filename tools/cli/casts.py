"""The command check-cast."""

from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.cli.options import Json, Timeout, to_file, to_folder


def check_cast(
    function: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="The cast or quantizer, as module:function; this folder is searched first. It"
            " takes a float32 array: of any shape for a number format, (rows, K) with blocks along"
            " K for a block format. It returns numbers, codes, or (elements, scales).",
        ),
    ],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="What it is meant to do: FORMAT[:MODE][:OVERFLOW], such as e4m3fn:nan, or"
            " FORMAT[:RULE][:MODE], such as mxfp8_e4m3:rceil.",
        ),
    ],
    library: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The arrays that it is given: numpy, torch or jax; by default those of the"
            " library that its module has imported.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder, metavar="DIR", help="Folder for report.html and check-cast.json."
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            callback=to_file, metavar="FILE", help="A file of JUnit's XML, with a case a row."
        ),
    ] = None,
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Test a cast or a quantizer: ties, subnormals, overflow, NaN, scales of blocks, bias."""
    from roundscope.tools.check_cast import command as cast_command

    code = cast_command.run(
        function,
        format=format,
        library=library,
        out=out,
        junit=junit,
        timeout=timeout,
        as_json=json,
    )
    if code:
        raise typer.Exit(code)
