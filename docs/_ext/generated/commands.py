"""The pages of commands, made from the command line itself."""

import re
from typing import Any

import typer.main

from roundscope.experiments.cli.main import app

from .cells import code, escaped, table


def command_line() -> tuple[Any, Any]:
    """Return the group of all commands and its context."""
    group = typer.main.get_command(app)
    return group, group.make_context("roundscope", [], resilient_parsing=True)


def command_list() -> str:
    """Return the table of commands."""
    group, _ = command_line()
    rows = [[f"[`{name}`](#command-{name})", escaped(c.help)] for name, c in group.commands.items()]
    return table(("command", "what it does"), rows)


def command_sections() -> str:
    """Return a section for each command: its usage, its arguments and its options."""
    group, context = command_line()
    return "\n".join(_section(name, c, context) for name, c in group.commands.items())


def _section(name: str, command: Any, parent: Any) -> str:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    command.get_help(context)  # fills in the lists that the texts name in braces
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    rows = [_row(p.get_help_record(context)) for p in command.params]
    return (
        f"(command-{name})=\n## {name}\n\n{escaped(command.help)}\n\n"
        f"```text\n{usage}\n```\n\n{table(('argument or option', 'meaning', 'default'), rows)}"
    )


def _row(record: tuple[str, str]) -> list[str]:
    words, text = record
    noted = re.search(r"\s*\[(?:default: (?P<default>.*)|(?P<required>required))\]$", text)
    default = ""
    if noted:
        text = text[: noted.start()]
        default = "required" if noted["required"] else code(noted["default"])
    return [code(words), escaped(text), default]
