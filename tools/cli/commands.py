"""Commands made of verbs, and how their words are parsed where typer would misread them."""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from roundscope.tools.errors import UsageError, bad, shown
from roundscope.tools.options import named

ALLOCATIONS = 1_000_000  # after how many new objects a trace looks for garbage


def verb(function: Callable[[Any], int | None]) -> Callable[..., None]:
    """Return the command of a function whose argument is a dataclass of options.

    The command has an argument or option for each field, and the function's docstring as its help.
    It ends with the exit code that the function returns.
    """
    record = next(iter(get_type_hints(function).values()))
    parameters = list(_parameters(record))

    def command(**words: Any) -> None:
        if code := function(_filled(record, words)):
            raise typer.Exit(code)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameters(record: Any) -> Iterator[Parameter]:
    """Yield the fields of a record as parameters; those of records in it stand in their places."""
    for field in fields(record):
        if is_dataclass(field.type):
            yield from _parameters(field.type)
            continue
        default = field.default if field.default_factory is MISSING else None
        yield Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if default is MISSING else default,
            annotation=field.type,
        )


def _filled(record: Any, words: dict[str, Any]) -> Any:
    """Return a record of the words that were given; of lists that were not, an empty one."""
    values = {
        field.name: _filled(field.type, words) if is_dataclass(field.type) else words[field.name]
        for field in fields(record)
    }
    missing = {f.name for f in fields(record) if f.default_factory is not MISSING}
    return record(**{n: x for n, x in values.items() if x is not None or n not in missing})


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
            for name in value if isinstance(value, list | tuple) else [value]:
                if isinstance(name, str | Path) and _is_device(name):
                    raise bad(named(param), str(name), "is a device or a pipe; name a file")
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; the lists that it names in braces are filled in from our tables."""
        texts = {param: getattr(param, "help", None) or "" for param in self.params}
        lists = _lists() if any("{" in text for text in texts.values()) else {}
        for param, text in texts.items():
            for name, words in lists.items():
                text = text.replace(f"{{{name}}}", words)
            param.help = text  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def _is_device(name: str | Path) -> bool:
    """Return whether a word names a device or a pipe; typer's newest has paths as texts here."""
    path = Path(name)
    try:
        return path.exists() and not (path.is_file() or path.is_dir())
    except (OSError, ValueError):  # a text that no file can have as its name
        return False


def usage_line(error: Exception, args: Sequence[str]) -> str | None:
    """Return the line about an error of the parser of words; None for any other error."""
    if not hasattr(error, "format_message"):
        return None
    text = " ".join(str(error.format_message()).split())  # that of typer says neither value nor end
    param = getattr(error, "param", None)
    if "extra argument" in text:
        path = getattr(getattr(error, "ctx", None), "command_path", "roundscope")
        text = f"{text.rstrip('.')}; {path} --help says what it takes"
    if text.startswith("Missing argument") and (said := getattr(param, "help", None)):
        what = re.split(r"[:;.(]", said)[0].strip()
        return f"{text.rstrip('.')}: {what[:1].lower()}{what[1:]}"
    wrong, options = "", getattr(param, "opts", ())  # the last value that was given
    for word, value in zip(args, [*args[1:], ""], strict=True):
        name, sign, joined = word.partition("=")
        if name in options and name.startswith("-"):
            wrong = joined if sign else value
    kind = re.search(r"valid (integer|number|float)", text)
    if wrong and kind:
        such = "whole number, such as 3" if kind[1] == "integer" else "number, such as 0.5"
        return f"{max(options, key=len)} {shown(wrong)}: give a {such}"
    return text.rstrip(".") + (f"; got {shown(wrong)}" if wrong else "")


def _lists() -> dict[str, str]:
    """Return what a help may list, by the name in braces; only a help needs these imports."""
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


class Sections(TyperGroup):
    """The commands of a program, which its help lists in sections, each under its title."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each title, in the order in which titles come first."""
        titles = {n: getattr(c, "rich_help_panel", "") for n, c in self.commands.items()}
        room = formatter.width - 6 - max(map(len, titles))
        for title in dict.fromkeys(titles.values()):
            names = [name for name, own in titles.items() if own == title]
            with formatter.section(title):
                formatter.write_dl([(n, self.commands[n].get_short_help_str(room)) for n in names])


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
            i
            for i, a in enumerate(words)
            if a[:1] == "-" and a not in ("-", "-h") and not a.startswith("--")
            if not (i and words[i - 1] in taking)
        ]
        rest = [a for i, a in enumerate(words) if i not in numbers]
        if numbers:
            rest += ["--", *(words[i] for i in numbers)]
        return super().parse_args(ctx, rest)


class TrainCommand(Command):
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


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for garbage seldom: most objects of a trace live until its page is written.

    They are modules, graphs and pictures, to go through which takes a seventh of its processor
    time. A caller that has objects frozen, or looks for no garbage, keeps that.
    """
    before, are_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    if not before[0]:
        yield
        return
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        if not are_frozen:
            gc.freeze()
            gc.unfreeze()  # now all objects count as old, so that none is gone through at once
        gc.set_threshold(*before)
