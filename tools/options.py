"""Options that several verbs have.

What a verb can be told is one dataclass in the verb's folder: a field has the type, the default and
the help text of an option. The command line (`tools.cli.commands.verb`), the help, the reference of
options and the verb's function in Python (`command.run`) all read it. A field whose type is a
dataclass, such as `CallOptions`, stands for the fields of that.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import typer

from roundscope.tools.errors import bad

PAGES = (".html", ".htm", ".json")  # of what a command writes into its folder


def to_folder(ctx: Any, param: Any, out: Path | None) -> Path | None:
    """Return the folder of an option once it is known that it can be written; a callback."""
    from roundscope.tools.results.folder import can_write_folder

    if _is_said(out, ctx, param):
        if out.suffix in PAGES and not out.is_dir():
            repair = f"is a folder, with report.html in it; give a name such as {out.stem}"
            raise bad(named(param), str(out), repair)
        can_write_folder(named(param), out)
    return out


def _is_said(out: Path | None, ctx: Any, param: Any) -> TypeGuard[Path]:
    """Return whether a place was named; what a command chooses itself it tries itself."""
    return out is not None and ctx.get_parameter_source(param.name).name != "DEFAULT"


def named(param: Any) -> str:
    """Return an option as it is written, and an argument as the help shows it."""
    written: str = param.opts[0]
    return written if written.startswith("-") else param.metavar or written


def to_file(ctx: Any, param: Any, out: Path | None) -> Path | None:
    """Return the file of an option once it is known that it can be written; a callback."""
    from roundscope.tools.results.folder import can_write_file

    if _is_said(out, ctx, param):
        can_write_file(named(param), out)
    return out


def to_page(ctx: Any, param: Any, out: Path | None) -> Path | None:
    """Return the file of a page, whose name says so, once it is known that it can be written."""
    to_file(ctx, param, out)
    if _is_said(out, ctx, param) and out.suffix not in PAGES and not out.exists():
        repair = f"is a file here, a page; give a name such as {out.name}.html"
        raise bad(named(param), str(out), repair)
    return out


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """What is said of a call in place of what its file says; None for as the file says.

    `tools.tensors.overrides.overrides_of` reads the words.
    """

    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--full",
            help="Whether query t sees keys s <= t only; by default as in the file's metadata, else"
            " full.",
        ),
    ] = None
    alignment: Annotated[
        str | None,
        typer.Option(
            metavar="top-left|bottom-right",
            help="Of causal and windowed calls with other numbers of queries and keys: whether they"
            " are counted from the first, as in PyTorch's SDPA, or from the last, as in"
            " FlashAttention since 2.1; by default as in the file's metadata, else top-left, with a"
            " note.",
        ),
    ] = None
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|none",
            help="Factor of the scores; by default the file's; none, and else, is 1 / sqrt(H).",
        ),
    ] = None
    window: Annotated[
        str | None,
        typer.Option(
            metavar="KEYS|none",
            help="Number of nearest keys that a query sees; by default the file's, else all.",
        ),
    ] = None
    softcap: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|none",
            help="Scores are softcap tanh(score / softcap); by default the file's, else without.",
        ),
    ] = None
    sinks: Annotated[
        str | None, typer.Option(metavar="none", help="none leaves the file's sinks out.")
    ] = None
    mask: Annotated[
        str | None, typer.Option(metavar="none", help="none leaves the file's mask out.")
    ] = None
    bias: Annotated[
        str | None, typer.Option(metavar="none", help="none leaves the file's bias out.")
    ] = None
    scales: Annotated[
        str | None,
        typer.Option(
            metavar="none",
            help="none takes q, k and v as they are stored, without the file's scales.",
        ),
    ] = None


Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="A call of a kernel or cast that takes longer fails; by default any time. It cannot"
        " end a call of C or of a GPU before that returns.",
    ),
]
Sample = Annotated[
    bool, typer.Option("--sample", help="Use the real tensors that come with Roundscope.")
]
Layout = Annotated[
    str | None,
    typer.Option(help="Order of the axes: BNTH or BTNH; by default as in the file's metadata."),
]
Layers = Annotated[
    str | None, typer.Option(help="Use these layers only: names, numbers or patterns, by commas.")
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL|FILE",
        help="A kernel to call here ({kernels}, or module:function); or safetensors or npz with"
        " q, k, v, out and optionally do, dq, dk, dv.",
    ),
]
JUnit = Annotated[
    Path | None,
    typer.Option(
        callback=to_file, metavar="FILE", help="A file of JUnit's XML, with a case a row."
    ),
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="CHANGE",
        help="Change the plan: SITE=FORMAT[:MODE[:OVERFLOW]], SITE.sum=ACCUMULATOR or"
        " {of_plans}, for example O=bf16:stochastic; repeatable."
        " docs/reference/grammar.md explains every word.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
