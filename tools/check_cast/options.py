"""The options of `roundscope check-cast`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from roundscope.tools.options import Json, JUnit, Timeout, to_folder


@dataclass(frozen=True, kw_only=True)
class CheckCastOptions:
    """What `roundscope check-cast` can be told; see the texts of the fields."""

    function: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="The cast or quantizer, as module:function; this folder is searched first. It"
            " takes a float32 array: of any shape for a number format, (rows, K) with blocks along"
            " K for a block format. It returns numbers, codes, or (elements, scales).",
        ),
    ]
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="What it is meant to do: FORMAT[:MODE][:OVERFLOW], such as e4m3fn:nan, or"
            " FORMAT[:RULE][:MODE], such as mxfp8_e4m3:rceil. int8[tensor], int8[token] and"
            " int8[channel] have one scale for an array, a row and a column.",
        ),
    ]
    tensor_scale: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="A given scale, such as a calibrated one: of a number format, what the function"
            " divides by before it rounds (of int8[tensor] too); of nvfp4, the scale of the whole"
            " array, which is otherwise its largest magnitude over 2688.",
        ),
    ] = None
    hadamard: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE[:FORMAT][:unnormalized]",
            help="Of a block format: a Hadamard transform of so many neighbors, which the function"
            " computes before it quantizes, such as 16, or 16:bf16 if it reads and writes BF16"
            " (16:bf16:fp32: reads BF16, writes FP32). The results are not transformed back.",
        ),
    ] = None
    signs: Annotated[
        str | None,
        typer.Option(
            metavar="SIGNS",
            help="Of the transform: the signs by which numbers are multiplied before, as"
            " --signs=+-++, one for each, or a file.npy of 1 and -1.",
        ),
    ] = None
    divided: Annotated[
        str,
        typer.Option(
            metavar="exact|float32",
            help="Of a block format: whether a quotient by a scale is rounded once, to its element,"
            " or to float32 before, as most kernels do.",
        ),
    ] = "exact"
    library: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The arrays that it is given: numpy, torch or jax; by default those of the"
            " library that its module has imported.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            callback=to_folder, metavar="DIR", help="Folder for report.html and check-cast.json."
        ),
    ] = None
    junit: JUnit = None
    timeout: Timeout = None
    json: Json = False
