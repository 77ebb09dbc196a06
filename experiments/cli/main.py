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
from typing import IO, Annotated, Any

import typer
from typer import Argument, Option

from roundscope import __version__
from roundscope.experiments.options import (
    DoseOptions,
    KernelsOptions,
    ProxyOptions,
    ReproduceOptions,
    TrainOptions,
)
from roundscope.tools.cli import verbs as tools
from roundscope.tools.cli.commands import (
    Command,
    NumberCommand,
    Sections,
    TrainCommand,
    usage_line,
    verb,
)
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.errors import ExecutorError, StorageError, bad, one_line, printable
from roundscope.tools.options import Json, to_file, to_folder, to_page


@verb
def diagnose(options: DiagnoseOptions) -> None:
    """Find out why a run failed, or whether rounding adds up in tensors, and what repairs it."""
    from roundscope.tools.diagnose import command

    command.run(options, _of_run)


def _of_run(folder: Path, options: DiagnoseOptions, out: Path, progress: Any) -> Any:
    """Return the findings of a GPT's run, or the report of a student's; `out` keeps replays."""
    from roundscope.experiments.diagnose.student import case

    if case.file_of(folder) is None:
        from roundscope.experiments.diagnose.gpt.run import diagnose_run

        return diagnose_run(folder, options, out, progress)
    from roundscope.experiments.diagnose.student import report, run
    from roundscope.tools.diagnose.command import LAST

    found = run.diagnose(folder, options, out, progress)
    progress(LAST, "report")
    return report.diagnosis(found)


@verb
def reproduce(options: ReproduceOptions) -> int:
    """Measure the claims of a paper and give a verdict on each."""
    from roundscope.experiments import reproduce as papers

    return papers.run(options)


def studies(json: Json = False) -> None:
    """List every study: what it asks, its command, and how long it takes."""
    from roundscope.experiments import catalogue

    catalogue.show(as_json=json)


def accumulators(
    out: Annotated[
        Path, Option(callback=to_folder, help="Folder for report.html and accumulators.json.")
    ] = Path("accumulators"),
    order: Annotated[
        bool,
        Option(
            "--order", help="Find the order of additions in this machine's matrix products instead."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure how the sums of tensor cores are biased, as a function of their length K."""
    from roundscope.experiments.questions.tensor_cores import study

    if order:
        study.show(as_json=json)
    elif code := study.run(out=out, as_json=json):
        raise typer.Exit(code)


@verb
def kernels(options: KernelsOptions) -> int:
    """Measure which real attention kernels are biased, on named inputs."""
    from roundscope.experiments.questions.kernels import study

    return study.run(options)


def prepare(
    paths: Annotated[
        list[Path], Argument(help="Text files, and folders of text files.", metavar="DIR_OR_FILES")
    ],
    out: Annotated[Path, Option(callback=to_folder, help="Folder for train.bin and val.bin.")],
    json: Json = False,
) -> None:
    """Make training data from any text, one token per byte, in nanoGPT's file format."""
    from roundscope.experiments.train.gpt import data

    data.prepare(paths, out, as_json=json)


@verb
def train(options: TrainOptions) -> int:
    """Train a small GPT with emulated attention, or continue or replay a run."""
    from roundscope.experiments.train.run import command

    return command.run(options)


@verb
def dose(options: DoseOptions) -> int:
    """Measure how soon training diverges, by how one event rounds and the learning rate."""
    from roundscope.experiments.questions.dose import study

    return study.run(options)


@verb
def proxy(options: ProxyOptions) -> int:
    """Train a student MLP in block-scaled formats, and change the arithmetic during training."""
    from roundscope.experiments.questions.proxy import study

    return study.run(options)


def export(
    file: Annotated[Path, Argument(help="Results of a sweep.", metavar="SWEEP.sqlite")],
    out: Annotated[
        Path,
        Argument(
            callback=to_file,
            help="File to write; its ending chooses the format.",
            metavar="OUT.csv|OUT.parquet",
        ),
    ],
    table: Annotated[str, Option(help="The table to write: cells or sites.")] = "cells",
    raw: Annotated[
        bool,
        Option(
            "--raw",
            help="CSV: texts as they are, also those that a spreadsheet takes for formulas; else"
            " these have a ' before them.",
        ),
    ] = False,
) -> None:
    """Write a sweep's results as CSV or Parquet."""
    from roundscope.experiments.train.record import is_log
    from roundscope.tools.sweep.storage import export as export_results

    if is_log(file):
        repair = (
            "is the log of a training run: SQLite with the tables steps, heads, sites and alarms;"
            f" draw it with  roundscope report {file.parent}"
        )
        raise bad("SWEEP.sqlite", str(file), repair)
    rows = export_results.export(file, out, table, raw=raw)
    if said := export_results.lost(file):
        print(said)
    print(f"written: {out} ({rows} rows)")


def report(
    file: Annotated[
        Path,
        Argument(
            help="Results of a sweep, or the folder of a training run.", metavar="SWEEP.sqlite|RUN"
        ),
    ],
    out: Annotated[
        Path | None,
        Option(
            callback=to_page,
            help="File to write; by default SWEEP.html beside the results, or RUN/report.html.",
        ),
    ] = None,
) -> None:
    """Draw a sweep's results or a training run into one HTML file that opens offline."""
    from roundscope.experiments.train.config import LOG

    if file.is_dir() or file.name == LOG:  # for a sweep nobody waits for JAX
        from roundscope.experiments.train import report as page

        if (folder := page.folder_of(file)) is not None:
            print(f"written: {page.write(folder, out)}")
            return
    from roundscope.tools.report.terminal import show
    from roundscope.tools.sweep.report import report as sweep_report

    page_of = sweep_report.write(file, out)
    show(sweep_report.answer(file))
    print(f"written: {page_of}")


def bench(
    what: Annotated[
        str, Argument(help="round, mx, dot, attention, sweep or step.", metavar="WHAT")
    ],
    out: Annotated[
        Path | None,
        Option(
            callback=to_folder,
            help="Folder for bench-WHAT.json and bench-WHAT.png; not for sweep and step.",
            metavar="DIR",
        ),
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="A small measurement, whose ratios are rough.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure Roundscope's speed against that of the alternatives."""
    from roundscope.experiments.train import bench_step
    from roundscope.tools.bench import command as bench_command

    bench_command.run(what, as_json=json, out=out, quick=quick, more={"step": bench_step.run})


DEBUG = "--debug"
EXTRAS = {"optax": "train", "torch": "torch", "flax": "flax"}
"""The extra of `pip install` that brings a library, of those that some verbs import."""
MESSAGE = 300  # characters of an error that is not ours, at most

app = typer.Typer(
    name="roundscope",
    cls=Sections,
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


SECTIONS: dict[str, dict[str, tuple[Any, type[Command]]]] = {
    "Look at tensors, models and kernels": {
        "trace": (tools.trace, Command),
        "identify": (tools.identify, Command),
        "diagnose": (diagnose, Command),
        "compare": (tools.compare, Command),
        "budget": (tools.budget, Command),
        "watch": (tools.watch, Command),
    },
    "Test kernels and quantizers": {
        "check": (tools.check, Command),
        "check-cast": (tools.check_cast, Command),
    },
    "Look something up": {
        "plans": (tools.plans, Command),
        "sites": (tools.sites, Command),
        "formats": (tools.formats, Command),
        "explain": (tools.explain, NumberCommand),
        "doctor": (tools.doctor, Command),
    },
    "Study many conditions, papers and trainings": {
        "sweep": (tools.sweep, Command),
        "studies": (studies, Command),
        "reproduce": (reproduce, Command),
        "kernels": (kernels, Command),
        "accumulators": (accumulators, Command),
        "train": (train, TrainCommand),
        "dose": (dose, Command),
        "proxy": (proxy, TrainCommand),
        "bench": (bench, Command),
    },
    "Make and read files": {
        "prepare": (prepare, Command),
        "report": (report, Command),
        "export": (export, Command),
    },
}
"""The commands, in the sections and the order of the help."""

for _title, _section in SECTIONS.items():
    for _name, (_function, _class) in _section.items():
        app.command(_name, cls=_class, rich_help_panel=_title)(_function)


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
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            extra = EXTRAS[error.name]
            _fail(f"{words[0]} needs {error.name}: run  pip install 'roundscope[{extra}]'", 2)
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
