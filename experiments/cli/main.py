"""The command line: every command, in the order of its help.

Data go to stdout, progress to stderr. Exit codes: 0 for success, 1 if a check failed, 2 for bad
usage, 3 for a fault of ours; an error prints one line, and its traceback only with --debug. Nothing
heavy is imported before a command runs.
"""

import io
import os
import sys
import traceback
from pathlib import Path
from typing import IO, Annotated

import typer

from roundscope import __version__
from roundscope.experiments.cli import verbs as experiments
from roundscope.tools.cli import verbs as tools
from roundscope.tools.cli.commands import Command, NumberCommand, TrainCommand, usage_line
from roundscope.tools.errors import ExecutorError, StorageError, one_line, printable

DEBUG = "--debug"
MESSAGE = 300  # characters of an error that is not ours, at most

app = typer.Typer(
    name="roundscope",
    help="A microscope for low-precision arithmetic in attention.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"roundscope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error; anywhere in the line.")
    ] = False,
) -> None:
    """A microscope for low-precision arithmetic in attention."""


for _name, _function, _class in (  # in the order of the help
    ("formats", tools.formats, Command),
    ("explain", tools.explain, NumberCommand),
    ("sites", tools.sites, Command),
    ("trace", tools.trace, Command),
    ("diagnose", experiments.diagnose, Command),
    ("identify", tools.identify, Command),
    ("check", tools.check, Command),
    ("sweep", tools.sweep, Command),
    ("reproduce", experiments.reproduce, Command),
    ("studies", experiments.studies, Command),
    ("accumulators", experiments.accumulators, Command),
    ("kernels", experiments.kernels, Command),
    ("watch", tools.watch, Command),
    ("check-cast", tools.check_cast, Command),
    ("prepare", experiments.prepare, Command),
    ("train", experiments.train, TrainCommand),
    ("dose", experiments.dose, Command),
    ("proxy", experiments.proxy, TrainCommand),
    ("export", experiments.export, Command),
    ("report", experiments.report, Command),
    ("bench", experiments.bench, Command),
    ("doctor", tools.doctor, Command),
):
    app.command(_name, cls=_class)(_function)


def main(args: list[str] | None = None) -> None:
    """Run the command line on words, by default this process's; errors are one line on stderr."""
    given = sys.argv[1:] if args is None else args
    words = [word for word in given if word != DEBUG]
    _open_streams()
    try:
        code = app(args=words or ["--help"], prog_name="roundscope", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except typer.Abort:
        _fail("aborted", 1)
    except BrokenPipeError:
        _close(sys.stdout)
        raise SystemExit(1) from None
    except Exception as error:
        if len(words) < len(given):
            traceback.print_exc()
        if (line := usage_line(error, words)) is not None:
            _fail(f"{printable(line)}; see  roundscope -h", 2)
        if isinstance(error, ArithmeticError | StorageError | ExecutorError):
            # a check of ours failed, or the place that we write to or compute on
            _fail(one_line(error), 1)
        if isinstance(error, ValueError | OSError):
            _fail(one_line(error), 2)
        if _is_of_platforms(error):
            named = os.environ.get("JAX_PLATFORMS", "")
            _fail(f"JAX_PLATFORMS={named}: JAX finds no such platform here; set it to cpu", 2)
        _fail(unexpected(error, words), 3)


def _is_of_platforms(error: Exception) -> bool:
    """Return whether JAX raised an error when it looked for its platforms."""
    frames = traceback.walk_tb(error.__traceback__)
    files = {Path(frame.f_code.co_filename).name for frame, _ in frames}
    return "JAX_PLATFORMS" in os.environ and "xla_bridge.py" in files


def unexpected(error: Exception, words: list[str]) -> str:
    """Return the line about an error that no code of ours expects; tests fail where it is asked."""
    return (
        f"{words[0] if words else 'help'} met an error that it does not know,"
        f" {type(error).__name__}: {one_line(error)[:MESSAGE]}; this is a fault of Roundscope:"
        f" please report it with what  roundscope {DEBUG} ...  prints"
    )


def _open_streams() -> None:
    """Make stdout and stderr take all that is printed, also where they are closed or ASCII."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _close(stream: IO[str]) -> None:
    """Make a stream that nobody reads any more swallow what is left in it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(line: str, code: int) -> None:
    print(f"roundscope: {line}", file=sys.stderr)
    raise SystemExit(code) from None
