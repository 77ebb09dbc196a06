"""The command line: every verb, in the order of its help. Data to stdout, progress to stderr.

Exit codes: 0 ok, 1 a check failed, 2 bad usage, always with one line and never a traceback.
Nothing heavy is imported before a verb runs.
"""

import sys

import typer

from roundscope.experiments.cli import look as cli_look
from roundscope.experiments.cli import sweep as cli_sweep
from roundscope.experiments.cli import trace as cli_trace
from roundscope.experiments.cli import train as cli_train
from roundscope.experiments.cli.options import NumberCommand, TrainCommand
from roundscope.experiments.errors import ExecutorError, StorageError, one_line

app = typer.Typer(
    name="roundscope",
    help="A microscope for low-precision arithmetic in attention.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command()(cli_look.formats)
app.command(cls=NumberCommand)(cli_look.explain)
app.command()(cli_look.sites)
app.command()(cli_trace.trace)
app.command()(cli_trace.diagnose)
app.command()(cli_sweep.sweep)
app.command()(cli_sweep.reproduce)
app.command()(cli_look.studies)
app.command()(cli_look.accumulators)
app.command()(cli_train.prepare)
app.command(cls=TrainCommand)(cli_train.train)
app.command()(cli_train.dose)
app.command(cls=TrainCommand)(cli_train.proxy)
app.command()(cli_sweep.export)
app.command()(cli_sweep.report)
app.command()(cli_look.bench)
app.command()(cli_look.doctor)


def main(args: list[str] | None = None) -> None:
    """Run the command line; every error that we raise ends as one line on stderr."""
    try:
        app(args=args, prog_name="roundscope")
    except (ArithmeticError, StorageError, ExecutorError) as error:  # a check of ours failed, or what we write to or compute on
        _fail(error, 1)
    except (ValueError, OSError) as error:
        _fail(error, 2)


def _fail(error: Exception, code: int) -> None:
    print(f"roundscope: {one_line(error)}", file=sys.stderr)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()
