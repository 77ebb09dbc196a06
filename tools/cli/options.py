"""What the commands share: options, places to write that are tried before the work, and parsers of
words that typer would misread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import typer
from typer.core import TyperCommand

from roundscope.tools.errors import UsageError, bad, shown


def to_folder(ctx: Any, param: Any, out: Path | None) -> Path | None:
    """Return the folder of an option once it is known that it can be written; a callback."""
    from roundscope.tools.results.folder import can_write_folder

    if _is_said(out, ctx, param):
        can_write_folder(_named(param), out)
    return out


def _is_said(out: Path | None, ctx: Any, param: Any) -> TypeGuard[Path]:
    """Return whether a place was named; what a command chooses itself it tries itself."""
    return out is not None and ctx.get_parameter_source(param.name).name != "DEFAULT"


def _named(param: Any) -> str:
    """Return an option as it is written, and an argument as the help shows it."""
    written: str = param.opts[0]
    return written if written.startswith("-") else param.metavar or written


def to_file(ctx: Any, param: Any, out: Path | None) -> Path | None:
    """Return the file of an option once it is known that it can be written; a callback."""
    from roundscope.tools.results.folder import can_write_file

    if _is_said(out, ctx, param):
        can_write_file(_named(param), out)
    return out


Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--full",
        help=(
            "Whether query t sees keys s <= t only; by default as in the file's metadata, else"
            " full."
        ),
    ),
]
Alignment = Annotated[
    str | None,
    typer.Option(
        metavar="top-left|bottom-right",
        help=(
            "Of causal and windowed calls with other numbers of queries and keys: whether they are"
            " counted from the first, as in PyTorch's SDPA, or from the last, as in FlashAttention"
            " since 2.1; by default as in the file's metadata, else top-left, with a note."
        ),
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|none",
        help="Factor of the scores; by default the file's; none, and else, is 1 / sqrt(H).",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="KEYS|none",
        help="Number of nearest keys that a query sees; by default the file's, else all.",
    ),
]
Softcap = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|none",
        help="Scores are softcap tanh(score / softcap); by default the file's, else without.",
    ),
]
Sinks = Annotated[
    str | None, typer.Option(metavar="none", help="none leaves the file's sinks out.")
]
Mask = Annotated[str | None, typer.Option(metavar="none", help="none leaves the file's mask out.")]
OVERRULING = ("causal", "alignment", "scale", "window", "softcap", "sinks", "mask", "scales")
Scales = Annotated[
    str | None,
    typer.Option(
        metavar="none", help="none takes q, k and v as they are stored, without the file's scales."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="A call of a kernel or cast that takes longer fails; by default any time. It cannot"
        " end a call of C or of a GPU before that returns.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def said(
    causal: bool | None,
    alignment: str | None,
    scale: str | None,
    window: str | None,
    softcap: str | None,
    sinks: str | None,
    mask: str | None,
    scales: str | None,
) -> dict[str, Any]:
    """Return the options that overrule a file, as `tools.tensors.overrides.words` takes them.

    Those that were not given are left out.
    """
    given = (causal, alignment, scale, window, softcap, sinks, mask, scales)
    return {name: x for name, x in zip(OVERRULING, given, strict=True) if x is not None}


class Command(TyperCommand):
    """A command: what its words say is wrong before it runs is one line, with the value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as the parent does; refuse empty words first."""
        for before, word in zip(["", *args], args, strict=False):
            name, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
            option = name or (before if before.startswith("--") else "")
            if (sign or not name) and not value.strip():
                raise bad(option or "argument", value, "is empty; write something, or leave it out")
        try:
            return super().parse_args(ctx, list(args))  # which empties the list
        except Exception as error:
            if (line := usage_line(error, args)) is None:
                raise
            raise UsageError(line) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; refuse to read what has no end or waits for somebody."""
        for param in self.params:
            value = ctx.params.get(param.name)
            for path in value if isinstance(value, list | tuple) else [value]:
                if (
                    isinstance(path, Path)
                    and path.exists()
                    and not (path.is_file() or path.is_dir())
                ):
                    raise bad(_named(param), str(path), "is a device or a pipe; name a file")
        return super().invoke(ctx)


def usage_line(error: Exception, args: Sequence[str]) -> str | None:
    """Return the line about an error of the parser of words; None for any other error."""
    if not hasattr(error, "format_message"):
        return None
    text = " ".join(str(error.format_message()).split())  # that of typer says neither value nor end
    param = getattr(error, "param", None)
    wrong = "" if param is None else _given(param.opts, args)
    return text.rstrip(".") + (f"; got {shown(wrong)}" if wrong else "")


def _given(options: Sequence[str], args: Sequence[str]) -> str:
    """Return the last value that is given to an option, or nothing."""
    found = ""
    for word, value in zip(args, [*args[1:], ""], strict=True):
        name, sign, joined = word.partition("=")
        if name in options and name.startswith("-"):
            found = joined if sign else value
    return found


class WordsCommand(Command):
    """A command whose help names lists in braces.

    They are filled in from our tables when the help is asked for.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help as the parent does, with the lists filled in."""
        lists = _lists()
        for param in self.params:
            if text := getattr(param, "help", None):
                for name, words in lists.items():
                    text = text.replace(f"{{{name}}}", words)
                param.help = text  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def _lists() -> dict[str, str]:
    """Return what a help may list, by the name that stands in braces.

    The imports are here since only the help of a command needs them.
    """
    from roundscope.attention.grammar.changes import STAGES
    from roundscope.attention.grammar.edits import KINDS
    from roundscope.attention.grammar.injections import WHERES
    from roundscope.attention.plans.choices import DeltaFrom
    from roundscope.attention.plans.presets import PRESETS
    from roundscope.attention.plans.twins import TWINS
    from roundscope.emu.sums.tensor_cores import ARCHITECTURES
    from roundscope.tools.identify.adapters import ADAPTERS
    from roundscope.tools.sweep.conditions.cell import DEFAULTS, OPTIONAL, PER_SITE

    return {
        "presets": ", ".join((*PRESETS, *TWINS)),
        "architectures": ", ".join(ARCHITECTURES),
        "wheres": ", ".join(f"{name}=" for name in WHERES),
        "delta_from": "|".join(DeltaFrom),
        "stages": ", ".join(STAGES),
        "per_site": ", ".join(PER_SITE),
        "of_plans": ", ".join(f"{name}=" for name, kind in KINDS.items() if not kind.per_site),
        "kernels": ", ".join(ADAPTERS),
        "axes": ", ".join(["tile", *DEFAULTS, *OPTIONAL]),
    }


class NumberCommand(Command):
    """A command whose argument may be a negative number.

    The number may stand before or after the options, with or without '--'. The command has long
    options only, so a word with a single dash is the number: it is moved to the end, after '--'.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as the parent does, once negative numbers are moved after the options."""
        words = [a for a in args if a != "--"]
        taking = {name for p in self.params if not getattr(p, "is_flag", True) for name in p.opts}
        numbers = [
            i for i, a in enumerate(words) if _single_dash(a) and not (i and words[i - 1] in taking)
        ]
        rest = [a for i, a in enumerate(words) if i not in numbers]
        if numbers:
            rest += ["--", *(words[i] for i in numbers)]
        return super().parse_args(ctx, rest)


class TrainCommand(WordsCommand):
    """A command whose --at takes two words, STEP and CHANGE.

    They are joined to one, STEP:CHANGE, since typer has no repeated option of two words.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as the parent does, once the two words are joined."""
        words = list(args)
        for i in range(len(words) - 2, 0, -1):
            if words[i - 1] == "--at" and ":" not in words[i]:
                words[i : i + 2] = [f"{words[i]}:{words[i + 1]}"]
        return super().parse_args(ctx, words)


def _single_dash(word: str) -> bool:
    return word.startswith("-") and not word.startswith("--") and len(word) > 1 and word != "-h"
