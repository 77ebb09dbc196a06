"""A command made of a record of options: its parameters, what it fills in, and its exit code."""

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from roundscope.experiments.cli.main import app
from roundscope.experiments.options import ProxyOptions, TrainOptions
from roundscope.tools.check.options import CheckOptions
from roundscope.tools.cli.commands import Command, verb
from roundscope.tools.trace.options import TraceOptions


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Options that several verbs have."""

    causal: Annotated[bool | None, typer.Option("--causal/--full")] = None
    scale: Annotated[str | None, typer.Option()] = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of one verb."""

    file: Annotated[Path, typer.Argument()]
    call: Inner = field(default_factory=Inner)
    changes: Annotated[list[str], typer.Option("--set")] = field(default_factory=list)
    most: Annotated[int, typer.Option()] = 3


def called(*words: str) -> tuple[Options, int]:
    """The record that the words make, and the exit code."""
    seen: list[Options] = []

    def own(options: Options) -> int:
        """Do nothing."""
        seen.append(options)
        return 5

    made = typer.Typer()
    made.command(cls=Command)(verb(own))
    code = made(args=list(words), standalone_mode=False)
    return seen[0], code


def test_words_become_the_record():
    """Words that are lost on their way, or that reach another field."""
    got, code = called("x", "--full", "--scale", "2", "--set", "a", "--set", "b", "--most", "4")
    inner = Inner(causal=False, scale="2")
    assert got == Options(file=Path("x"), call=inner, changes=["a", "b"], most=4)
    assert code == 5


def test_what_is_not_said_is_the_default_of_the_record():
    """Another default on the command line than in Python."""
    assert called("x")[0] == Options(file=Path("x"))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("trace", TraceOptions),
        ("check", CheckOptions),
        ("train", TrainOptions),
        ("proxy", ProxyOptions),
    ],
)
def test_a_verb_has_the_options_of_its_record_in_order(name, record):
    """A field that the command line does not have, or an option that Python has not."""

    def names(of: Any) -> list[str]:
        return [
            n for f in fields(of) for n in (names(f.type) if is_dataclass(f.type) else [f.name])
        ]

    assert [p.name for p in get_command(app).commands[name].params] == names(record)
